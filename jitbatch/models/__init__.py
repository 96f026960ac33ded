"""Flax nnx models of structured samples, each written for one sample. Needs the extra `flax`."""

from jitbatch.models.listops import ListOpsTreeLSTM as ListOpsTreeLSTM
from jitbatch.models.lstm import LSTM as LSTM
from jitbatch.models.lstm import BiLSTM as BiLSTM
from jitbatch.models.parser import StackLSTMParser as StackLSTMParser
from jitbatch.models.sentiment import Sentiment as Sentiment
from jitbatch.models.similarity import Similarity as Similarity
from jitbatch.models.tagger import CharacterTagger as CharacterTagger
from jitbatch.models.tagger import Tagger as Tagger
from jitbatch.models.tree_lstm import ChildSumTreeLSTM as ChildSumTreeLSTM
from jitbatch.models.tree_lstm import NaryTreeLSTM as NaryTreeLSTM
from jitbatch.models.tree_lstm import State as State
