"""Differences between types of one function, as the table of a report tells them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jitbatch import jitbatch
from jitbatch.inspect.differences import called, families
from jitbatch.inspect.explain import find_groups

WEIGHTS = {"w": jnp.eye(4), "u": 2 * jnp.eye(4)}


def rnn(w: Any, xs: Any) -> Any:
    h = jnp.zeros(4)
    for x in xs:
        h = jnp.tanh(h @ w["w"] + x @ w["u"])
    return h


SAMPLES = [np.full((length, 4), length, np.float32) for length in (3, 5, 9)]


def test_pieces_of_a_bare_loop_are_told_by_what_they_run() -> None:
    report = jitbatch(rnn).explain(WEIGHTS, SAMPLES)
    differs = {cell.differs for cell in report.cells}
    assert "runs `+`, `tanh`, `matmul`" in differs
    assert "runs `matmul`" in differs


def test_pieces_of_a_bare_loop_are_no_variants_of_each_other() -> None:
    groups = find_groups(jitbatch(rnn).plan(WEIGHTS, SAMPLES))
    clusters = [cluster for some in families(groups).values() for cluster in some]
    assert len(groups) == len(clusters) > 1


def test_bare_operations_on_different_shapes_are_variants() -> None:
    def summed(w: Any, xs: Any) -> Any:
        return jnp.tanh(xs @ w["w"]).sum()

    groups = find_groups(jitbatch(summed).plan(WEIGHTS, SAMPLES))
    ((cluster,),) = families(groups).values()
    assert len(cluster) == len(groups) == 3


def test_operations_have_the_names_of_users() -> None:
    assert (called("mul"), called("integer_pow"), called("tanh")) == ("`*`", "a power", "`tanh`")
