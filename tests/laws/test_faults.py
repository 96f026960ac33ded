"""What goes wrong half way leaves every cache right: the next call works and gives what it would have given."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from zoo import assert_bits, assert_same, named

import jitbatch as package
from jitbatch import Static, clear_caches, jitbatch

FOLDER = str(Path(package.__file__).parent)
WORKLOAD = named("binary_tree")
PARAMS, SAMPLES = WORKLOAD.draw()
POINTS = 16


@contextmanager
def interrupted(at: int | None) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt when the library enters its function number `at`; counts what it enters."""
    entered = [0]

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            entered[0] += 1
            if entered[0] == at:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        yield entered
    finally:
        sys.setprofile(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt at a generator's end
@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_an_interrupt_in_recording_or_planning(executor: Any) -> None:
    def fresh() -> Any:
        return jitbatch(WORKLOAD.fun, executor=executor)

    want = fresh().plan(PARAMS, SAMPLES)
    with interrupted(None) as entered:
        fresh().plan(PARAMS, SAMPLES)
    raised = 0
    for at in np.linspace(1, entered[0], POINTS).astype(int).tolist():
        fun = fresh()
        try:
            with interrupted(at):
                fun.plan(PARAMS, SAMPLES)
        except KeyboardInterrupt:  # which C swallows in some places, such as the end of an object
            raised += 1
        again = fun.plan(PARAMS, SAMPLES)
        assert str(again) == str(want)
        assert_bits(jax.tree.leaves(again), jax.tree.leaves(want))
    assert raised > POINTS // 2
    assert_same(fun.batch(PARAMS, SAMPLES), WORKLOAD.loop(PARAMS, SAMPLES))


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_an_interrupt_while_a_batch_is_traced_compiled_or_run(executor: Any) -> None:
    want = WORKLOAD.loop(PARAMS, SAMPLES)
    fun = jitbatch(WORKLOAD.fun, executor=executor)
    plan = fun.plan(PARAMS, SAMPLES)
    clear_caches()
    with interrupted(None) as entered:
        fun.batch(PARAMS, plan)
    for at in np.linspace(1, entered[0], 4).astype(int).tolist():
        clear_caches()
        with contextlib.suppress(KeyboardInterrupt), interrupted(at):
            fun.batch(PARAMS, plan)
        assert_same(fun.batch(PARAMS, plan), want)


def test_an_exception_in_the_users_code() -> None:
    is_broken = True

    @jitbatch
    def inner(w: Any, x: Any) -> Any:
        if is_broken:
            raise OSError("the network is down")
        return jnp.tanh(w * x)

    fun = jitbatch(lambda w, xs: sum(inner(w, x) for x in xs))
    samples = [(1.0, 2.0), (3.0,)]
    with pytest.raises(OSError, match="network is down"):
        fun.batch(2.0, samples)
    assert fun.cache_info()["structures"].currsize == fun.cache_info()["subgraphs"].currsize == 0
    is_broken = False
    got = fun.batch(2.0, samples)
    np.testing.assert_allclose(got, [np.tanh(2.0) + np.tanh(4.0), np.tanh(6.0)], rtol=1e-6)


def test_a_second_sample_that_fails_takes_nothing_from_the_first() -> None:
    @jitbatch
    def fun(w: Any, xs: Any) -> Any:
        if len(xs) == 2:
            raise ValueError("two are too many")
        return w * xs[0]

    with pytest.raises(ValueError, match="two are too many"):
        fun.batch(2.0, [(1.0,), (1.0, 2.0)])
    assert fun.cache_info()["structures"].currsize == 1
    assert fun.batch(2.0, [(1.0,), (5.0,)]).tolist() == [2.0, 10.0]


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_a_compilation_that_fails_is_not_kept(executor: Any) -> None:
    """A primitive that the compiler does not know at first."""
    unknown = Primitive("unknown")
    unknown.def_abstract_eval(lambda aval: aval)
    batching.primitive_batchers[unknown] = lambda args, dims: (unknown.bind(*args), dims[0])  # type: ignore[index]
    fun = jitbatch(lambda w, x: unknown.bind(w * x) + 1, executor=executor)
    xs = [1.0, 2.0, 3.0]
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="unknown"):
            fun.batch(2.0, xs)
    mlir.register_lowering(unknown, mlir.lower_fun(lambda x: 10 * x, multiple_results=False))
    assert fun.batch(2.0, xs).tolist() == [21.0, 41.0, 61.0]


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_an_interrupt_in_the_middle_of_a_compilation(executor: Any) -> None:
    slow = Primitive("slow")
    slow.def_abstract_eval(lambda aval: aval)
    batching.primitive_batchers[slow] = lambda args, dims: (slow.bind(*args), dims[0])  # type: ignore[index]
    tenfold = mlir.lower_fun(lambda x: 10 * x, multiple_results=False)
    interrupts = 2

    def lowering(*args: Any) -> Any:
        nonlocal interrupts
        if interrupts:
            interrupts -= 1
            raise KeyboardInterrupt
        return tenfold(*args)

    mlir.register_lowering(slow, lowering)
    fun = jitbatch(lambda w, x: slow.bind(w * x) + 1, executor=executor)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fun.batch(2.0, [1.0, 2.0, 3.0])
    assert fun.batch(2.0, [1.0, 2.0, 3.0]).tolist() == [21.0, 41.0, 61.0]


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_a_batch_that_memory_has_no_room_for(executor: Any) -> None:
    def fun(w: Any, sample: Any) -> Any:
        return jnp.sort(w * jnp.arange(sample[0].value, dtype=jnp.float32) + sample[1])[:2]

    batched = jitbatch(fun, executor=executor)
    fits, too_large = (Static(4), 1.0), (Static(1 << 50), 1.0)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
            jax.block_until_ready(batched.batch(jnp.float32(2), [too_large, fits]))
        assert batched.batch(jnp.float32(2), [fits]).tolist() == [[1.0, 3.0]]
