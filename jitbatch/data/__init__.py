"""Data sets of structured samples: ListOps and a toy language, made on the fly, and readers for treebanks."""

from jitbatch.data.brackets import Constituent as Constituent
from jitbatch.data.brackets import read_ptb as read_ptb
from jitbatch.data.brackets import read_sst as read_sst
from jitbatch.data.conllu import Parsed as Parsed
from jitbatch.data.conllu import read_conllu as read_conllu
from jitbatch.data.listops import ListOps as ListOps
from jitbatch.data.listops import make_listops as make_listops
from jitbatch.data.sick import read_sick as read_sick
from jitbatch.data.tagging import Spelled as Spelled
from jitbatch.data.tagging import Tagged as Tagged
from jitbatch.data.tagging import tagged as tagged
from jitbatch.data.toy import make_toy_language as make_toy_language
from jitbatch.data.transitions import Transitions as Transitions
from jitbatch.data.transitions import transitions as transitions
from jitbatch.data.trees import Dependency as Dependency
from jitbatch.data.trees import Pair as Pair
from jitbatch.data.trees import Sentence as Sentence
from jitbatch.data.trees import Tree as Tree
from jitbatch.data.vocabulary import Vectors as Vectors
from jitbatch.data.vocabulary import Vocabulary as Vocabulary
from jitbatch.data.vocabulary import read_vectors as read_vectors
from jitbatch.util.errors import DataError as DataError
