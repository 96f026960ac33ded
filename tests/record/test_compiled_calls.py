"""Known calls are recorded by the compiled core as by Python, and nothing that Python gives it brings it down."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cores import CORES, assert_equal_plans, planning_by

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.core import choice
from jitbatch.ir.tables import Tables
from jitbatch.record import compiled_calls
from jitbatch.record.known_calls import KnownCalls
from jitbatch.record.recorder import Recorder
from jitbatch.record.values import Value
from jitbatch.util import compat
from jitbatch.util.errors import LeakError

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="there is no compiled core")

PARAMS = {"b": jnp.ones(2), "a": jnp.full(2, 0.5)}


class State(NamedTuple):
    h: Any
    c: Any


@jax.tree_util.register_pytree_node_class
class Reversed(namedtuple("Reversed", "x y")):
    """A class of tuples that JAX takes apart in the order of its own."""

    def tree_flatten(self) -> Any:
        return (self.y, self.x), None

    @classmethod
    def tree_unflatten(cls, _: Any, parts: Any) -> Any:
        return cls(*reversed(parts))


@jitbatch
def step(params: Any, *args: Any, **named: Any) -> Any:
    """A state made of all that is given."""
    h = params["b"]
    for place, leaf in enumerate(jax.tree.leaves((args, named))):
        h = jnp.tanh(h * params["a"] + (place + 1) * leaf)
    return State(h, h * params["a"])


@jitbatch
def apart(params: Any, x: Any) -> Any:
    return {"y": x + params["a"], "b": [x * params["b"], (x,)], "again": x}


@jitbatch
def same(params: Any, x: Any) -> Any:
    return x


@jitbatch
def constant(params: Any, x: Any) -> Any:
    return jnp.ones(2) * params["b"]


def walk(first: Callable[[Any], Any], each: Callable[[Any, Any], Any], last: Callable[[Any], Any]) -> Any:
    def sample(params: Any, xs: Any) -> Any:
        state = first(params)
        for x in xs:
            state = each(params, (state, x * jnp.ones(2)))
        return last(state)

    return sample


PROGRAMS = {
    "values": lambda p, xs: sum((step(p, x * p["a"], x * p["b"]).h for x in xs), jnp.zeros(2)),
    "one value twice": lambda p, xs: [step(p, y, y).h for y in [x * p["a"] for x in xs]][-1],
    "states": walk(lambda p: step(p), lambda p, sx: step(p, *sx), lambda s: s.c),
    "states by name": walk(lambda p: step(p), lambda p, sx: step(p, x=sx[1], state=sx[0]), lambda s: s.c),
    "other names": walk(
        lambda p: step(p), lambda p, sx: step(p, state=sx[0], x=step(p, b=sx[1], a=sx[0]).h), lambda s: s.c
    ),
    "lists of states": lambda p, xs: step(p, [step(p, x * p["a"]) for x in xs]).h,
    "nested tuples": walk(lambda p: step(p), lambda p, sx: step(p, ((sx[0], (sx[1],)), ())), lambda s: s.c),
    "dicts": walk(lambda p: step(p), lambda p, sx: step(p, {"x": sx[1], "s": sx[1] + 1}), lambda s: s.c),
    "dicts of another order": walk(
        lambda p: step(p), lambda p, sx: step(p, {"z": sx[1] - 1, "b": sx[1], "x": sx[0].h}), lambda s: s.c
    ),
    "dicts of states": walk(lambda p: step(p), lambda p, sx: step(p, {"s": sx[0], "x": [sx[1]]}), lambda s: s.c),
    "nothing": walk(lambda p: step(p), lambda p, sx: step(p, None, sx[0], [None, sx[1]]), lambda s: s.c),
    "numbers": walk(lambda p: step(p), lambda p, sx: step(p, sx[0], 3, 2.5, [True]), lambda s: s.c),
    "shared parts": walk(lambda p: step(p), lambda p, sx: step(p, sx[0], p["a"], [p["b"], sx[1]], p), lambda s: s.c),
    "shared values alone": walk(lambda p: step(p, p["a"]), lambda p, sx: step(p, (p["a"], p["b"])), lambda s: s.c),
    "tuples of a class of its own": walk(
        lambda p: step(p), lambda p, sx: step(p, Reversed(sx[1], sx[0].h)), lambda s: s.c
    ),
    "several results": lambda p, xs: sum((apart(p, x * p["a"])["b"][0] for x in xs), jnp.zeros(2)),
    "arguments as results": lambda p, xs: sum((same(p, x) * p["a"] for x in xs), jnp.zeros(2)),
    "constant results": lambda p, xs: sum((constant(p, x) * x for x in xs), jnp.zeros(2)),
}

SAMPLES = [(1.0, 2.0), (3.0,), (4.0, 5.0, 6.0, 7.0), (2.0, 1.0, 3.0)]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_both_cores_record_the_same_graphs(program: Any) -> None:
    made = {}
    for core in ("native", "python"):
        with planning_by(core):
            batched = jitbatch(program)
            first = batched.plan(PARAMS, SAMPLES[:2])
            made[core] = batched.plan(PARAMS, SAMPLES, like=first), batched.cache_info()["subgraphs"]
    assert_equal_plans(made["native"][0], made["python"][0])
    assert made["native"][1][:2] == made["python"][1][:2], "the same calls are known"


@pytest.mark.parametrize("name", PROGRAMS)
def test_known_calls_do_not_reach_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    record = Recorder.call
    monkeypatch.setattr(
        Recorder, "call", lambda self, fun, *args: calls.append(fun.__name__) or record(self, fun, *args)
    )
    with planning_by("native"):
        batched = jitbatch(PROGRAMS[name])
        plan = batched.plan(PARAMS, SAMPLES)
        batched.plan(PARAMS, [(1.0,) * 5, (2.0,) * 6], like=plan)
        calls.clear()
        batched.plan(PARAMS, [(1.0,) * 7, (2.0,) * 8], like=plan)
    left_to_python = {"numbers", "shared values alone", "tuples of a class of its own"}
    once_for_each_length = {"lists of states"}
    if name not in left_to_python:
        assert len(calls) <= (2 if name in once_for_each_length else 0), calls


SUMS = {
    "sum": lambda p, xs: sum((step(p, x).h for x in xs), jnp.zeros(2)),
    "a loop": lambda p, xs: in_a_loop(p, xs),
    "two in turn": lambda p, xs: two_in_turn(p, xs),
    "read on the way": lambda p, xs: read_on_the_way(p, xs),
    "in a body": lambda p, xs: total(p, [step(p, x).h for x in xs]) + step(p, xs[0]).h,
}


def in_a_loop(p: Any, xs: Any) -> Any:
    h = step(p, xs[0]).h
    for x in xs:
        h = h + step(p, x).h
    return h


def two_in_turn(p: Any, xs: Any) -> Any:
    h = c = step(p, xs[0]).h
    for x in xs:
        state = step(p, x)
        h, c = h + state.h, c + state.c
    return h * c


def read_on_the_way(p: Any, xs: Any) -> Any:
    h = step(p, xs[0]).h
    for x in xs:
        h = h + step(p, h * x).h
    return h


@jitbatch
def total(p: Any, hs: Any) -> Any:
    kept = hs[0]
    for h in hs:
        kept = kept + step(p, h).h
    return kept


@pytest.mark.parametrize("program", SUMS.values(), ids=SUMS)
def test_both_cores_record_the_same_sums(program: Any) -> None:
    made = {}
    for core in ("native", "python"):
        with planning_by(core):
            batched = jitbatch(program)
            batched.plan(PARAMS, SAMPLES[:2])
            made[core] = batched.plan(PARAMS, SAMPLES, like=None)
    assert_equal_plans(made["native"], made["python"])


def test_running_totals_do_not_reach_python(monkeypatch: pytest.MonkeyPatch) -> None:
    additions: list[Any] = []
    add = Recorder.arithmetic
    monkeypatch.setattr(Recorder, "arithmetic", lambda self, *args: additions.append(1) or add(self, *args))
    with planning_by("native"):
        batched = jitbatch(SUMS["a loop"])
        batched.plan(PARAMS, SAMPLES)
        additions.clear()
        batched.plan(PARAMS, [(1.0,) * 12])
    assert len(additions) == 2, "what begins a total, and what makes it one that runs"


def test_a_hidden_value_is_noticed_in_a_known_call() -> None:
    def sample(params: Any, xs: Any) -> Any:
        kept: list[Any] = []

        @jitbatch
        def outer(params: Any, x: Any) -> Any:
            kept.append(step(params, x).h)
            return step(params, kept[-1]).h

        y = outer(params, xs[0] * params["a"])
        return step(params, kept[0] if len(xs) > 1 else y).h

    with planning_by("native"):
        batched = jitbatch(sample)
        batched.plan(PARAMS, [(1.0,)])
        with pytest.raises(LeakError, match=r"is used at .*after the call has ended"):
            batched.plan(PARAMS, [(1.0, 2.0)])


def test_other_traces_than_that_of_a_recording_run_the_function() -> None:
    def sample(params: Any, xs: Any) -> Any:
        mapped = jax.vmap(lambda x: step(params, x * params["a"]).h)(jnp.stack(xs))
        return step(params, mapped[0]).h

    assert jitbatch(sample).check(PARAMS, SAMPLES)
    assert jax.jit(lambda x: step(PARAMS, x).h)(1.0).shape == (2,)


def test_recordings_of_several_samples_alternate() -> None:
    """As samples do that wait for values: each has rows of its own."""
    tables, known = Tables(), KnownCalls(64)
    vector = compat.typeof(jnp.ones(2))
    aval = vector, tables.avals.number(vector)
    double = jitbatch(lambda w, x: x * w)
    code = test_recordings_of_several_samples_alternate.__code__
    recorders = [Recorder(tables, known, "subgraph", code, "sample 0") for _ in range(3)]
    weights = [recorder.shared_inputs([aval])[0] for recorder in recorders]
    values = [recorder.inputs([aval])[0] for recorder in recorders]
    for turn in range(4):
        for place in range(3 - turn % 2):
            with compat.set_current_trace(recorders[place]):
                values[place] = double(weights[place], values[place])
    assert [one.builder.operands for one in recorders] == [[-1, 0, 1, 2], [-1, 0, 1, 2], [-1, 0]]
    assert [one.caller.count for one in recorders] == [3, 3, 2], (
        "a call of the first and one of the second are learned from"
    )
    for one in recorders:
        one.invalidate()
        one.release()
    with compat.set_current_trace(recorders[2]):
        assert double(weights[2], values[2]).row == 2, "a recording that has ended is Python's"


def test_errors_and_interrupts_of_a_body_pass_through() -> None:
    for error in (KeyboardInterrupt, ValueError, GeneratorExit):

        @jitbatch
        def fails(params: Any, x: Any, error: Any = error) -> Any:
            raise error("stopped")

        with planning_by("native"), pytest.raises(error, match="stopped"):
            jitbatch(lambda p, xs: [fails(p, step(p, x).h) for x in xs]).plan(PARAMS, SAMPLES)


def test_an_error_of_a_class_of_results_passes_through() -> None:
    made: list[int] = []

    @jax.tree_util.register_pytree_node_class
    class Result:
        def __init__(self, x: Any):
            made.append(1)
            if len(made) > 40:
                raise KeyboardInterrupt("stopped")
            self.x = x

        def tree_flatten(self) -> Any:
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, _: Any, parts: Any) -> Any:
            return cls(*parts)

    wrap = jitbatch(lambda params, x: Result(x * params["a"]))
    with planning_by("native"), pytest.raises(KeyboardInterrupt, match="stopped"):
        jitbatch(lambda p, xs: [wrap(p, x).x for x in xs]).plan(PARAMS, [(1.0,) * n for n in range(1, 40)])


def test_wrong_objects_raise() -> None:
    native: Any = choice.native
    for wrong in (None, 3, [], object()):
        with pytest.raises((TypeError, RuntimeError)):
            native.Calls(*[wrong] * 7)
        with pytest.raises(TypeError):
            native.bind_recorder(*[wrong] * 9)
    with pytest.raises(TypeError, match="caller is no slot"):
        native.bind_recorder(Value, Value, Value, Value, 1, 2, 3, 4, 5)
    with pytest.raises(AttributeError, match="__wrapped__"):
        native.Decorated()(1)


def test_what_a_recording_asks_for_is_checked() -> None:
    recorder = Recorder(Tables(), KnownCalls(4), "subgraph", test_wrong_objects_raise.__code__, "sample 0")
    calls = recorder.caller
    for given in (3, [3], [(1, 2)], [((1, 2),)], [((1, 2, 3), 4)]):
        with pytest.raises(TypeError):
            calls.given_rows(given, 0)
    (row,) = calls.given_rows([(("aval", 5), "source")], 2)
    assert (row.row, row.aval_id, row.form, row.source, row._trace) == (-3, 5, 5, "source", recorder)
    assert not calls.end_body(print, 0, [1], 0), "results with other things are Python's"
    assert not calls.end_body(print, -1, None, 0)
    recorder.leaks.exposed += [1, 2, -3]
    assert calls.end_body(print, 1, (row, None), 1)
    assert recorder.leaks.exposed == [1, -3]
    assert recorder.leaks.hidden == {2: print}
    recorder.invalidate()
    recorder.release()
    with pytest.raises(RuntimeError, match="the recording has ended"):
        calls.given_rows([], 0)


def test_recordings_and_their_values_die() -> None:
    with planning_by("native"):
        batched = jitbatch(PROGRAMS["states"])
        batched.plan(PARAMS, SAMPLES)
        recorders: list[Any] = []
        enter = Recorder.inputs
        try:
            Recorder.inputs = lambda self, avals: recorders.append(weakref.ref(self)) or enter(self, avals)  # type: ignore
            batched.plan(PARAMS, [(1.0,) * n for n in range(5, 15)])
        finally:
            Recorder.inputs = enter  # type: ignore[method-assign]
        assert recorders
        assert [ref() for ref in recorders] == [None] * len(recorders), "without a collection of garbage"


@pytest.mark.parametrize("plans", [80, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_object_is_left_by_many_plans(plans: int) -> None:
    """Structures come again after all caches were cleared, so the number of objects does not grow."""
    batched = jitbatch(PROGRAMS["states"])

    def objects(count: int) -> int:
        for number in range(count):
            if number % 20 == 0:
                clear_caches()
            batched.plan(PARAMS, [(1.0,) * (1 + number % 20)])
        clear_caches()
        gc.collect()
        return len(gc.get_objects())

    with planning_by("native"):
        objects(20)
        before = objects(20)
        assert objects(plans) <= before + 50


def test_python_records_where_jax_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> Any:
        raise LookupError("`trace_state_strong_ref` is not the current trace")

    monkeypatch.setattr(compat, "trace_state", changed)
    monkeypatch.setattr(compiled_calls, "_bound", False)
    with pytest.warns(compiled_calls.SlowRecordingWarning, match="does not know this release of JAX"):
        compiled_calls.bind(Recorder)
    assert not compiled_calls.is_bound()
    batched = jitbatch(PROGRAMS["states"])
    assert batched.check(PARAMS, SAMPLES)


def test_calls_that_read_constants_and_shared_values_as_rows() -> None:
    """Their rows are asked for once a recording, and are those that Python gives them."""

    @jitbatch
    def node(params: Any, token: Any, state: Any) -> Any:
        return state * params["b"][token] + 1

    def walk(params: Any, tree: Any) -> Any:
        if isinstance(tree, tuple):
            return node(params, 1, walk(params, tree[0])) + node(params, 0, walk(params, tree[1]))
        start = jnp.zeros(2) if tree is None else params["a"] * 1.5
        return node(params, 0, node(params, 1, start))

    trees = [(None, (None, None)), ((None, None), None), ((True, None), (None, True)), (None, None)]
    trees = [(Static(tree), 1.0) for tree in trees]
    f: Any = lambda params, sample: walk(params, sample[0].value) * sample[1]  # noqa: E731
    plans = []
    for core in ("native", "python"):
        with planning_by(core):
            batched = jitbatch(f)
            plans.append([batched.plan(PARAMS, trees[:2], like=None), batched.plan(PARAMS, trees, like=None)])
            if core == "native":
                got = batched.batch(PARAMS, trees)
    for one, other in zip(*plans, strict=True):
        assert_equal_plans(one, other)
    np.testing.assert_allclose(got, jnp.stack([f(PARAMS, tree) for tree in trees]), rtol=1e-6)
