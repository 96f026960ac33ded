"""Arguments of calls: what is looked up by identity, which forms they have, and what must not change."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax
from test_recorder import X, inputs, recording
from test_templates import State, Swapped

from jitbatch import Static, jitbatch
from jitbatch.record.call_arguments import weakly
from jitbatch.util.errors import ArgumentError, MutationError


def test_what_holds_nothing_but_shared_values_is_looked_up() -> None:
    with recording() as recorder:
        (w,) = inputs(recorder, X, shared=True)
        (x,) = inputs(recorder, X)
        params, sample, mixed = {"w": w}, {"x": x}, {"w": w, "x": x}
        arguments = recorder.arguments
        assert arguments.flatten(params).leaves is arguments.flatten(params).leaves
        assert arguments.flatten(params).is_shared
        assert not arguments.flatten(params).rows
        for other in (sample, mixed):
            assert arguments.flatten(other).leaves is not arguments.flatten(other).leaves
            assert not arguments.flatten(other).is_shared
        assert arguments.flatten(mixed).rows == [None, x.row]


def test_forms_say_what_a_call_depends_on() -> None:
    """Trees, avals, statics and bits of what is no array, and which shared value; not which row."""
    with recording() as recorder:
        w, v = inputs(recorder, X, X, shared=True)
        x, y, z = inputs(recorder, X, X, jnp.ones(3))
        distinct = [x, z, w, v, [x], (x,), [x, x], [z], [w], {"a": x}, [x, Static(1)], [x, Static(2)], [x, None]]
        forms = [recorder.arguments.flatten(arg, is_new=True).form for arg in distinct]
        assert len(set(forms)) == len(forms)
        for one, other in ((x, y), ([x], [y]), ({"a": x}, {"a": y}), ([x, Static(1)], [y, Static(1)])):
            assert recorder.arguments.flatten(one).form == recorder.arguments.flatten(other).form


def test_named_tuples_of_rows_are_looked_up_by_class_and_forms() -> None:
    with recording() as recorder:
        (w,) = inputs(recorder, X, shared=True)
        x, y, z = inputs(recorder, X, X, jnp.ones(3))
        for kind, rows in ((State, [x.row, z.row]), (Swapped, [z.row, x.row])):
            for _ in range(2):
                flat = recorder.arguments.flatten(kind(x, z), is_new=True)
                assert flat.rows == rows
            assert flat.form == recorder.arguments.flatten(kind(y, z)).form
            others = [kind(x, z), kind(z, x), kind(x, x), kind(x, w)]
            assert len({recorder.arguments.flatten(other, is_new=True).form for other in others}) == 4
        assert {kind for kind, *_ in recorder.tables.tuple_forms} == {State}
        assert recorder.arguments.flatten(State(w, w)).is_shared
        assert recorder.arguments.flatten(State(x, (y, z))).rows == [x.row, y.row, z.row]


def test_what_a_call_returned_is_looked_up() -> None:
    @jitbatch
    def pair(x: Any) -> Any:
        return lax.sin(x), lax.cos(x)

    with recording() as recorder:
        (x,) = inputs(recorder, X)
        first, second = pair(x), pair(x)
        known = recorder.arguments.known
        assert id(first) in known
        children = recorder.arguments.flatten([first, second])
        assert children.leaves == [*first, *second]
        assert children.rows == [value.row for value in children.leaves]
        recorder.release()
        assert not known


def test_a_function_in_a_key_is_not_kept() -> None:
    fun: Any = lambda: None  # noqa: E731
    key: Any = weakly(fun)
    assert key == weakly(fun)
    del fun
    assert key() is None
    assert weakly(len) is len


def test_a_call_is_described_by_structure_not_by_rows() -> None:
    with recording() as recorder:
        (w,) = inputs(recorder, X, shared=True)
        x, y = inputs(recorder, X, X)
        params = {"w": w}
        call, other = (
            recorder.arguments.take_apart(lax.add, (params, [a, 2.0]), {"b": b}) for a, b in ((x, y), (y, y))
        )
        assert call.signature == other.signature
        assert call.signature != recorder.arguments.take_apart(lax.add, (params, [x, 2.0]), {"c": y}).signature
        assert call.leaves == [w, x, 2.0, y]
        assert call.positions == [None, 0, 1, 2]
        assert call.is_shared == [True, False, False]


def test_a_body_that_reorders_what_it_is_given_is_refused() -> None:
    """The caller would see it in the plain loop, and does not here."""

    @jitbatch
    def first(w: Any, children: list[Any]) -> Any:
        children.reverse()
        return w * children[0]

    @jitbatch
    def sample(w: Any, xs: Any) -> Any:
        children = [lax.sin(x) for x in xs]
        return first(w, children) + children[0]

    with pytest.raises(MutationError, match=r"an argument of type list, at `\[0\]`, was changed in place"):
        sample.batch(2.0, [(1.0, 2.0)])


def test_shared_arguments_that_change_are_noticed() -> None:
    @jitbatch
    def cell(params: Any, x: Any) -> Any:
        return params["w"] * x

    with recording() as recorder:
        (w,) = inputs(recorder, X, shared=True)
        (x,) = inputs(recorder, X)
        params = {"w": w}
        cell(params, x)
        recorder.arguments.check_unchanged()
        params["w"] = lax.sin(w)
        with pytest.raises(MutationError, match=r"of type dict, at `\['w'\]`, was changed in place while sample 0"):
            recorder.arguments.check_unchanged()


def test_a_shared_argument_that_is_changed_in_a_subgraph_is_noticed() -> None:
    @jitbatch
    def cell(params: dict[str, Any], x: Any) -> Any:
        params["count"] = params["count"] + 1
        return params["w"] * x

    @jitbatch
    def fun(params: dict[str, Any], x: Any) -> Any:
        return cell(params, x)

    with pytest.raises(MutationError, match=r"type dict, at `\['count'\]`, was changed in place"):
        fun.batch({"w": X, "count": 0}, [X])


def test_what_cannot_be_an_argument_is_refused() -> None:
    @jitbatch
    def first(p: Any, queue: Any) -> Any:
        return p * queue[0]

    fun = jitbatch(lambda p, x: first(p, collections.deque(x)))
    with pytest.raises(ArgumentError, match=r"called on deque.* of type deque, while sample 0 .*what can be hashed"):
        fun.batch(jnp.float32(2), [[1.0, 2.0]])


def test_a_decorated_object_need_not_be_hashable() -> None:
    @dataclasses.dataclass
    class Scale:
        by: float

        def __call__(self, p: Any, x: Any) -> Any:
            return p * x * self.by

    double, triple = jitbatch(Scale(2.0)), jitbatch(Scale(3.0))

    @jitbatch
    def fun(p: Any, x: Any) -> Any:
        return double(p, x) + triple(p, x) + double(p, 2 * x)

    assert double.batch(jnp.float32(2), [1.0, 5.0]).tolist() == [4, 20]
    assert fun.batch(jnp.float32(2), [1.0, 5.0]).tolist() == [18, 90]
