"""Parts of minibatches: of any pytree, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch.data import local
from jitbatch.util.errors import ArgumentError


class Batch(NamedTuple):
    trees: Any
    labels: Any


@jax.tree_util.register_dataclass
@dataclass
class Registered:
    trees: Any
    labels: Any


def parts(minibatch: Any, processes: int = 2) -> list[Any]:
    return [next(local([minibatch], seed=None, process=p, processes=processes)) for p in range(processes)]


def test_parts_are_the_minibatch_and_differ_by_one_sample_at_most() -> None:
    for count in range(6):
        found = parts(list(range(count)), 4)
        assert [sample for part in found for sample in part] == list(range(count))
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_all_processes_have_one_order() -> None:
    minibatches = [[10 * number, 10 * number + 1] for number in range(8)]
    first, second = (list(local(minibatches, seed=[3, 1], process=p, processes=2)) for p in range(2))
    assert [[*a, *b] for a, b in zip(first, second, strict=True)] != minibatches
    assert sorted([*a, *b] for a, b in zip(first, second, strict=True)) == minibatches


def test_minibatches_are_pytrees_of_any_depth() -> None:
    labels = np.arange(8).reshape(4, 2)
    first, second = parts(([1, 2, 3, 4], {"y": labels, "w": (jnp.ones(4), None)}))
    assert first[0] == [1, 2]
    assert second[0] == [3, 4]
    assert second[1]["y"].tolist() == labels[2:].tolist()
    assert second[1]["w"][0].shape == (2,)
    assert second[1]["w"][1] is None


def test_fields_are_kept() -> None:
    assert parts(Batch([1, 2, 3, 4], [5, 6, 7, 8])) == [Batch([1, 2], [5, 6]), Batch([3, 4], [7, 8])]
    assert parts(Registered([1, 2], (["a", "b"],))) == [Registered([1], (["a"],)), Registered([2], (["b"],))]


@pytest.mark.parametrize(
    ("minibatch", "text"),
    [
        ({"trees": [1, 2, 3, 4], "y": np.arange(3)}, r"different lengths: \['trees'\] has 4, \['y'\] has 3"),
        (([1, 2], (["a"],)), r"\[0\] has 2, \[1\]\[0\] has 1. Each has one row per sample"),
        (Batch([1, 2], [1]), r"\.trees has 2, \.labels has 1"),
        (([1, 2], 3.0), r"the part \[1\] of a minibatch is 3.0, which has no rows"),
        (([1, 2], np.float32(3)), r"the part \[1\] of a minibatch is np.float32\(3.0\), which has no rows"),
        ({"names": "ab"}, r"the part \['names'\] of a minibatch is 'ab', which has no rows"),
        (3, "a minibatch is 3, which has no rows"),
    ],
)  # fmt: skip
def test_what_is_no_minibatch_is_named(minibatch: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        parts(minibatch)


def test_minibatches_have_an_order_and_processes_a_number() -> None:
    some: Any = iter([[1, 2]])
    with pytest.raises(ArgumentError, match="which has no length and no order: give a list"):
        local(some)
    with pytest.raises(ArgumentError, match="process=5 is none of 2 processes"):
        local([[1, 2]], process=5, processes=2)
