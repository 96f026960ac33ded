"""The namer of functions: batched as in the plain loop, in a few types however functions look."""

import ast
from pathlib import Path
from typing import Any

import pytest
from flax import nnx
from plain_loop import assert_batches_like_loop, assert_predicts_like_loop, through_samples_and_plan

from jitbatch.data import Vocabulary
from jitbatch.data.ast_functions import FunctionVocabularies, functions_of, number_functions
from jitbatch.models import FunctionNamer

SOURCE = """
def get(self): return self.size
def put(self, x, *, y=1):
    self.item_list[x] = y
def is_empty(): return not 1
"""
VOCABULARIES = FunctionVocabularies(Vocabulary(), Vocabulary(), Vocabulary(), Vocabulary(["get", "put", "is"]))
SAMPLES = number_functions(functions_of(SOURCE), VOCABULARIES)


@pytest.fixture(scope="module")
def model() -> FunctionNamer:
    return FunctionNamer(*(len(vocabulary) for vocabulary in VOCABULARIES), 3, 4, rngs=nnx.Rngs(0))  # type: ignore[misc]


@through_samples_and_plan
def test_loss(model: FunctionNamer, through: str) -> None:
    assert_batches_like_loop(model, "loss", SAMPLES, through)


def test_predicts(model: FunctionNamer) -> None:
    assert_predicts_like_loop(model, "predict", SAMPLES)


def test_functions_of_any_shape_are_the_same_few_types(model: Any) -> None:
    """Real functions, of up to 200 nodes and a dozen children, are of the types of three short ones."""
    source = Path(ast.__file__).read_bytes()
    names = Vocabulary({one.name for one in functions_of(source)})
    many = number_functions(functions_of(source), VOCABULARIES._replace(names=names))
    assert len(many) > 50
    summary = model.loss.plan(many, like=None).summary
    assert summary.types == model.loss.plan(SAMPLES, like=None).summary.types == 13
    assert summary.steps <= 1.1 * summary.bound
