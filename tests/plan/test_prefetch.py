"""Plans made ahead of time are the plans that would have been made, in order, and leave nothing behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jitbatch import JitbatchError, jitbatch
from jitbatch.util.errors import ArgumentError, PlanError

MINIBATCHES = [[(1.0, 2.0), (3.0,)], [(4.0, 5.0, 6.0), (7.0,)], [(8.0,), (9.0, 10.0)]]


@jitbatch
def total(scale: Any, xs: Any) -> Any:
    return scale * sum(xs)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jitbatch-plans"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threads():
        thread.join(timeout=5)
    assert not threads()


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_plans_are_those_of_the_minibatches(prefetch: int) -> None:
    plans = list(total.plans(2.0, MINIBATCHES, prefetch=prefetch, like=None))
    like = None
    for plan, minibatch in zip(plans, MINIBATCHES, strict=True):
        like = total.plan(2.0, minibatch, like=like)
        assert plan.static == like.static
        for ours, theirs in zip(jax.tree.leaves(plan), jax.tree.leaves(like), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(total.batch(2.0, plan), [2 * sum(xs) for xs in minibatch])


def test_plans_are_like_a_given_one() -> None:
    large = total.plan(2.0, [(float(i), float(i) / 2) for i in range(20)])
    for plan in total.plans(2.0, MINIBATCHES, like=large):
        assert plan.static.arenas == total.plan(2.0, MINIBATCHES[0], like=large).static.arenas


def test_several_mapped_arguments_and_names() -> None:
    @jitbatch
    def error(scale: Any, xs: Any, target: Any) -> Any:
        return scale * sum(xs) - target

    targets = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    want = [[2 * sum(xs) - t for xs, t in zip(*one, strict=True)] for one in zip(MINIBATCHES, targets, strict=True)]
    for plans in (error.plans(2.0, MINIBATCHES, targets), error.plans(2.0, MINIBATCHES, target=targets)):
        assert [error.batch(2.0, plan).tolist() for plan in plans] == want


def test_methods() -> None:
    class Model:
        scale = 3.0

        @jitbatch
        def score(self, xs: Any) -> Any:
            return self.scale * sum(xs)

    jax.tree_util.register_pytree_node(Model, lambda model: ((), None), lambda _, __: Model())
    model = Model()
    assert [model.score.batch(plan).tolist() for plan in model.score.plans(MINIBATCHES)] == [
        [9.0, 9.0], [45.0, 21.0], [24.0, 57.0]
    ]  # fmt: skip


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_surfaces_at_its_item(prefetch: int) -> None:
    plans = total.plans(2.0, [MINIBATCHES[0], [object()], MINIBATCHES[1]], prefetch=prefetch)
    assert next(plans).summary.samples == 2
    with pytest.raises(JitbatchError, match=r"sample 0: xs\[0\]"):
        next(plans)
    with pytest.raises(StopIteration):
        next(plans)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_of_the_minibatches_surfaces(prefetch: int) -> None:
    def minibatches() -> Iterator[Any]:
        yield MINIBATCHES[0]
        raise OSError("disk")

    plans = total.plans(2.0, minibatches(), prefetch=prefetch)
    next(plans)
    with pytest.raises(OSError, match="disk"):
        next(plans)
    with pytest.raises(StopIteration):
        next(plans)


def test_minibatches_are_taken_as_they_are_needed() -> None:
    taken = []

    def minibatches() -> Iterator[Any]:
        for number in range(100):
            taken.append(number)
            yield MINIBATCHES[number % 3]

    with total.plans(2.0, minibatches(), prefetch=2) as plans:
        for _ in range(3):
            next(plans)
    assert 3 <= len(taken) <= 6


def endless() -> Iterator[Any]:
    while True:
        yield from MINIBATCHES


def test_closing_ends_the_thread() -> None:
    plans = total.plans(2.0, endless(), prefetch=2)
    next(plans)
    assert len(threads()) == 1
    plans.close()
    plans.close()
    assert not threads()
    with pytest.raises(StopIteration):
        next(plans)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_closing_closes_the_minibatches(prefetch: int) -> None:
    ended = []

    def minibatches() -> Iterator[Any]:
        try:
            yield from endless()
        finally:
            ended.append(True)

    held = minibatches()
    with total.plans(2.0, held, prefetch=prefetch) as plans:
        next(plans)
    del held
    assert ended


@pytest.mark.parametrize(("backend", "number"), [("cpu", 0), ("gpu", 1)])
def test_a_device_with_cores_of_its_own_has_a_thread(
    monkeypatch: pytest.MonkeyPatch, backend: str, number: int
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with total.plans(2.0, endless()) as plans:
        assert len(threads()) == number
        monkeypatch.undo()
        next(plans)


@pytest.mark.parametrize(("backend", "kind"), [("cpu", np.ndarray), ("gpu", jax.Array)])
def test_plans_are_put_on_a_device_that_has_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, backend: str, kind: Any
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    plan = next(total.plans(2.0, MINIBATCHES, prefetch=0))
    assert all(isinstance(leaf, kind) for leaf in jax.tree.leaves(plan))
    assert total.batch(2.0, plan).shape == (2,)


def test_leaving_a_loop_ends_the_thread() -> None:
    for plan in total.plans(2.0, endless(), prefetch=2):
        assert plan.summary.samples == 2
        break
    gc.collect()


def test_nothing_is_asked_of_it() -> None:
    total.plans(2.0, endless(), prefetch=2)
    gc.collect()


def test_settings_of_one_thread_are_refused() -> None:
    with jax.enable_x64(True):
        with pytest.raises(PlanError, match="prefetch=0"):
            next(total.plans(2.0, MINIBATCHES, prefetch=2))
        assert total.batch(2.0, next(total.plans(2.0, MINIBATCHES, prefetch=0))).dtype == np.float64


def test_caches_of_jax_are_cleared_meanwhile() -> None:
    with total.plans(2.0, endless(), prefetch=1) as plans:
        for _ in range(4):
            assert next(plans).summary.samples == 2
            jax.clear_caches()


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="prefetch=-1"):
        total.plans(2.0, MINIBATCHES, prefetch=-1)
    with pytest.raises(ArgumentError, match="'xs' is mapped"):
        total.plans(2.0, 3)
    with pytest.raises(ArgumentError, match="take the arguments"):
        total.plans(2.0)
    with pytest.raises(ValueError, match="zip"):
        list(jitbatch(lambda s, a, b: s).plans(1.0, [[1.0]], []))


LEFT_OPEN = """
import itertools
import numpy as np
from jitbatch import jitbatch

cell = jitbatch(lambda w, x, y: w * x + y)
total = jitbatch(lambda w, xs: sum(cell(w, x, 1.0) for x in xs))
batches = ([tuple(map(float, range(1 + (i + j) % 7))) for j in range(8)] for i in itertools.count())
plans = total.plans(2.0, batches, prefetch=2)
print(total.batch(2.0, next(plans)).shape)
"""


def test_a_process_ends_cleanly_while_plans_are_made() -> None:
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "(8,)\n"), done.stderr
