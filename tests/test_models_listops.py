"""The ListOps Tree-LSTM: batched as in the plain loop."""

import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop

from jitbatch.data import make_listops
from jitbatch.models import ListOpsTreeLSTM


@pytest.fixture(scope="module")
def samples():
    return make_listops(0, [6], depth=3)[0]


@pytest.fixture(scope="module")
def model():
    return ListOpsTreeLSTM(5, rngs=nnx.Rngs(0))


def test_loss(model, samples):
    assert_batches_like_loop(model, "loss", samples)


def test_predict(model, samples):
    assert_predicts_like_loop(model, "predict", [sample.expression for sample in samples])
