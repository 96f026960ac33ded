"""Flax nnx models of structured samples, each written for one sample. Needs the extra `flax`."""

from jitbatch.models.decoder import Decoder as Decoder
from jitbatch.models.drnn import DRNN as DRNN
from jitbatch.models.early_exit import EarlyExit as EarlyExit
from jitbatch.models.lattice import LatticeGRU as LatticeGRU
from jitbatch.models.lattice import LatticeLSTM as LatticeLSTM
from jitbatch.models.listops import ListOpsTreeLSTM as ListOpsTreeLSTM
from jitbatch.models.lstm import LSTM as LSTM
from jitbatch.models.lstm import BiLSTM as BiLSTM
from jitbatch.models.lstm import LSTMCell as LSTMCell
from jitbatch.models.molecule import MoleculeEnergy as MoleculeEnergy
from jitbatch.models.molecule import losses_at_rest as losses_at_rest
from jitbatch.models.mv_rnn import MVRNN as MVRNN
from jitbatch.models.nested import NestedRNN as NestedRNN
from jitbatch.models.parser import StackLSTMParser as StackLSTMParser
from jitbatch.models.sentiment import Sentiment as Sentiment
from jitbatch.models.seq2seq import Seq2Seq as Seq2Seq
from jitbatch.models.similarity import Similarity as Similarity
from jitbatch.models.syntax import FunctionNamer as FunctionNamer
from jitbatch.models.tagger import CharacterTagger as CharacterTagger
from jitbatch.models.tagger import Tagger as Tagger
from jitbatch.models.tree_gru import BinaryTreeGRU as BinaryTreeGRU
from jitbatch.models.tree_gru import ChildSumTreeGRU as ChildSumTreeGRU
from jitbatch.models.tree_lstm import ChildSumTreeLSTM as ChildSumTreeLSTM
from jitbatch.models.tree_lstm import NaryTreeLSTM as NaryTreeLSTM
from jitbatch.models.tree_lstm import State as State
from jitbatch.models.two_type import TwoTypeTreeLSTM as TwoTypeTreeLSTM
