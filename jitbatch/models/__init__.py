"""Flax nnx models of structured samples, each written for one sample. Needs the extra `flax`."""

from jitbatch.models.listops import ListOpsTreeLSTM as ListOpsTreeLSTM
