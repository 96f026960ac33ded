"""The ListOps Tree-LSTM: batched as in the plain loop."""

import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch.data import ListOps
from jitbatch.models import ListOpsTreeLSTM

MIN, MAX, MED, SUM_MOD = range(10, 14)
SAMPLES = [
    ListOps((MAX, 3, 9), 9),
    ListOps((MIN, (MED, 1, 2), 4, 7), 1),
    ListOps((SUM_MOD, 8, (MAX, (MIN, 4, 5))), 2),
]


@pytest.fixture(scope="module")
def model():
    return ListOpsTreeLSTM(4, rngs=nnx.Rngs(0))


@through_samples_and_plan
def test_loss(model, through):
    assert_batches_like_loop(model, "loss", SAMPLES, through)


def test_predict(model):
    assert_predicts_like_loop(model, "predict", [sample.expression for sample in SAMPLES])
