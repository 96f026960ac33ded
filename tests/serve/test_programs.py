"""A few programs serve the batches of all sizes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from zoo import counted_compilations

from jitbatch import jitbatch
from jitbatch.plan.recorded import Recorded
from jitbatch.plan.run import execute
from jitbatch.serve.programs import Programs, counts_up_to
from jitbatch.serve.whole import results_of


def make() -> tuple[Any, Any]:
    """A function of lists of numbers, and its planner."""
    cell = jitbatch(lambda w, x, y: jnp.tanh(w * x + y))
    other = jitbatch(lambda w, x: jnp.exp(-w * x))

    @jitbatch
    def chain(w: Any, xs: Any) -> Any:
        h = jnp.float32(0)
        for x in xs:
            h = cell(w, x, h) if isinstance(x, float) or x.ndim == 0 else other(w, x).sum()
        return h

    return chain, chain._planner.for_serving()


W = jnp.float32(0.5)


def chains(*lengths: int) -> list[Any]:
    rng = np.random.default_rng(len(lengths))
    return [tuple(rng.normal(size=length).tolist()) for length in lengths]


def recorded(function: Any, planner: Any, samples: list[Any]) -> Recorded:
    return planner.record(function._call((W, samples), {}))


def test_counts() -> None:
    assert [counts_up_to(most) for most in (1, 2, 4, 5, 64)] == [[1], [1, 2], [1, 4], [1, 4, 5], [1, 4, 16, 64]]


def test_warmed_programs_have_room_for_each_sample_and_for_usual_batches() -> None:
    function, planner = make()
    programs = Programs(planner, 16)
    samples = chains(*range(1, 30))
    for plan in programs.warm_up(recorded(function, planner, samples), counts_up_to(16)):
        execute(plan, [W])
    rng = np.random.default_rng(0)
    want = {one: float(function(W, one)) for one in samples}
    with counted_compilations() as made:
        for count in (1, 1, 2, 3, 4, 7, 12, 16, 16):
            chosen = [samples[i] for i in rng.choice(len(samples), count, replace=False)]
            plan = programs.plan(recorded(function, planner, chosen))
            assert plan is not None
            got = results_of(plan, execute(plan, [W]))
            np.testing.assert_allclose(got, [want[one] for one in chosen], rtol=1e-5)
        assert programs.plan(recorded(function, planner, [samples[-1], samples[-2]])) is not None
        alone = [programs.plan(recorded(function, planner, [one])) for one in samples]
        assert len({plan.static for plan in alone if plan is not None}) == 1  # the smallest program has room for each
    assert not made
    assert len(programs) == 3


def test_batches_that_do_not_fit_are_to_be_split() -> None:
    function, planner = make()
    programs = Programs(planner, 4)
    programs.warm_up(recorded(function, planner, chains(2, 3, 2, 3, 2)), counts_up_to(4))
    large = chains(60, 61, 62)
    assert programs.plan(recorded(function, planner, large)) is None
    assert programs.plan(recorded(function, planner, chains(2, 2, 2, 2, 2))) is None  # more samples than warmed up
    plan = programs.plan(recorded(function, planner, large[:1]))  # cannot be split: a program grows
    assert plan is not None
    grown = len(programs)
    assert programs.plan(recorded(function, planner, large[:1])).static is plan.static  # type: ignore[union-attr]
    assert len(programs) == grown


def test_new_cell_types_grow_a_program_once() -> None:
    function, planner = make()
    programs = Programs(planner, 4)
    programs.warm_up(recorded(function, planner, chains(2, 3, 2, 3)), counts_up_to(4))
    samples = [(1.0, jnp.ones(3)), *chains(2, 3)]
    plan = programs.plan(recorded(function, planner, samples))
    assert plan is not None
    np.testing.assert_allclose(results_of(plan, execute(plan, [W])), [function(W, one) for one in samples], rtol=1e-5)
    again = programs.plan(recorded(function, planner, samples[:2]))
    assert again is not None
    assert again.static is plan.static


@pytest.mark.parametrize("most", [1, 5])
def test_programs_are_made_when_they_are_needed(most: int) -> None:
    function, planner = make()
    programs = Programs(planner, most)
    for count in (1, most, 1):
        assert programs.plan(recorded(function, planner, chains(*range(1, count + 1)))) is not None
    assert len(programs) == len({1, most})


def test_samples_with_equal_beginnings_fit() -> None:
    """Equal calls are merged, so their results have several readers. Only cotangents would need room for that."""
    function, planner = make()
    programs = Programs(planner, 4)
    programs.warm_up(recorded(function, planner, chains(*range(3, 12))), [1, 4])
    (first,) = chains(3)
    plan = programs.plan(recorded(function, planner, [(*first, 1.0), (*first, 2.0), (*first, 3.0, 1.0), (*first, 0.0)]))
    assert plan is not None
    assert not any(any(block.flows) for block in plan.static.program.blocks)  # type: ignore[attr-defined]
