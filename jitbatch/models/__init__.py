"""Flax nnx models of structured samples, each written for one sample. Needs the extra `flax`."""

from jitbatch.models.listops import ListOpsTreeLSTM as ListOpsTreeLSTM
from jitbatch.models.sentiment import Sentiment as Sentiment
from jitbatch.models.similarity import Similarity as Similarity
from jitbatch.models.tree_lstm import ChildSumTreeLSTM as ChildSumTreeLSTM
from jitbatch.models.tree_lstm import NaryTreeLSTM as NaryTreeLSTM
from jitbatch.models.tree_lstm import State as State
