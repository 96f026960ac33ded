"""Data sets of structured samples: ListOps, made on the fly, and readers for treebanks. Needs only numpy."""

from jitbatch.data import listops as listops
from jitbatch.data.listops import ListOps as ListOps
from jitbatch.data.listops import make_listops as make_listops
