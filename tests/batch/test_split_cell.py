"""Cells split by data flow: the parts together are the cell, and only what is worth it leaves the loop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import check_jaxpr, primitives

from jitbatch.batch.split_cell import Made, Operand, Part, Slot, Split, _cheapest_border, split_cell
from jitbatch.execute.weight_uses import is_float
from jitbatch.ir.cell import Cell, intern_cell
from jitbatch.util import compat

H = 4
SLOTS = {"s": Slot.SHARED, "e": Slot.EARLY, "l": Slot.LATE}
KEY = "key"
INT = "int"


def draw(shape: Any, seed: int) -> Any:
    if shape == KEY:
        return jax.random.key(seed)
    if shape == INT:
        return jnp.int32(seed % 3)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def cell_of(fun: Callable[..., Any], args: Sequence[Any]) -> Cell:
    return intern_cell(jax.make_jaxpr(fun)(*args), "cell", "here:1")


def split(fun: Callable[..., Any], slots: str, inner: str, *shapes: Any) -> Split | None:
    """`fun` split; for each operand s, e or l, for each output i (read in the loop) or o. What it makes is checked."""
    args = [draw(shape, seed) for seed, shape in enumerate(shapes)]
    cell = cell_of(fun, args)
    kinds = tuple(SLOTS[slot] for slot in slots)
    made = split_cell(cell, kinds, tuple(letter == "i" for letter in inner))
    if made is not None:
        verify(made, kinds, tuple(letter == "i" for letter in inner))
        assert_same_function(cell, made, args)
    return made


def run(made: Split, args: Sequence[Any]) -> list[Any]:
    """The outputs of the cell, part by part."""
    results: list[Sequence[Any]] = []
    for part in made.parts:
        given = [args[s.slot] if isinstance(s, Operand) else results[s.part][s.output] for s in part.operands]
        results.append(part.cell(*given))
    return [results[place.part][place.output] for place in made.outputs]


def verify(made: Split, slots: Sequence[Slot], inner_outputs: Sequence[bool]) -> None:
    hoists = len(made.hoists)
    assert made.parts == (*made.hoists, made.core, *([made.sink] if made.sink else []))
    assert made.hoists or made.sink
    for number, part in enumerate(made.parts):
        check_jaxpr(part.cell.jaxpr.jaxpr)
        assert len(part.operands) == len(part.cell.in_avals) == len(set(part.operands))
        for source, aval in zip(part.operands, part.cell.in_avals, strict=True):
            if isinstance(source, Made):
                made_aval = made.parts[source.part].cell.out_avals[source.output]
                assert number >= hoists
                assert source.part < max(hoists, number)
                assert (made_aval.shape, made_aval.dtype) == (aval.shape, aval.dtype)
    early = [early_operands(part, slots) for part in made.hoists]
    assert all(early)
    assert len(set(early)) == len(early)
    assert all(slots[s.slot] != Slot.LATE for part in made.hoists for s in part.operands if isinstance(s, Operand))
    assert all(place.part <= hoists for place, inner in zip(made.outputs, inner_outputs, strict=True) if inner)
    read = {s for part in made.parts for s in part.operands} | set(made.outputs)
    for number, part in enumerate(made.parts):
        assert all(Made(number, output) in read for output in range(len(part.cell.out_avals)))


def early_operands(part: Part, slots: Sequence[Slot]) -> tuple[int, ...]:
    return tuple(s.slot for s in part.operands if isinstance(s, Operand) and slots[s.slot] == Slot.EARLY)


def assert_same_function(cell: Cell, made: Split, args: Sequence[Any]) -> None:
    """Values and gradients."""

    def floats(outputs: Sequence[Any]) -> list[Any]:
        return [jnp.asarray(out) for out in outputs if is_float(jnp.asarray(out))]

    def total(function: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        def weighted(float_args: Sequence[Any]) -> Any:
            given = iter(float_args)
            outputs = floats(function([next(given) if is_float(arg) else arg for arg in args]))
            weights = [np.random.default_rng(i).normal(size=out.shape) for i, out in enumerate(outputs)]
            return sum((jnp.sum(out * w) for out, w in zip(outputs, weights, strict=True)), start=jnp.zeros(()))

        return weighted

    def raw(value: Any) -> np.ndarray:
        is_key = compat.is_prng_key(jnp.asarray(value).dtype)
        return np.asarray(jax.random.key_data(value) if is_key else value)

    for got, want in zip(run(made, args), cell(*args), strict=True):
        assert jnp.asarray(got).dtype == jnp.asarray(want).dtype
        np.testing.assert_allclose(raw(got), raw(want), rtol=1e-6, atol=1e-6)
    float_args = [arg for arg in args if is_float(arg)]
    got = jax.grad(total(lambda given: run(made, given)))(float_args)
    for one, other in zip(got, jax.grad(total(lambda given: cell(*given)))(float_args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def found(made: Split | None) -> Split:
    assert made is not None
    return made


def names(part: Part) -> list[str]:
    return [equation.primitive.name for equation in part.cell.jaxpr.jaxpr.eqns]


def shapes(part: Part) -> list[tuple[int, ...]]:
    return [aval.shape for aval in part.cell.out_avals]


def lstm(w: Any, u: Any, b: Any, x: Any, h: Any, c: Any) -> Any:
    i, f, o, g = jnp.split(x @ w + h @ u + b, 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


LSTM = [(H, 4 * H), (H, 4 * H), (4 * H,), (H,), (H,), (H,)]


def test_lstm_hoists_the_projection_of_its_input() -> None:
    made = found(split(lstm, "sssell", "ii", *LSTM))
    (hoist,) = made.hoists
    assert hoist.operands == (Operand(0), Operand(3))
    assert names(hoist) == ["dot_general"]
    assert shapes(hoist) == [(4 * H,)]
    assert names(made.core).count("dot_general") == 1
    assert made.core.operands == (Operand(1), Operand(2), Operand(4), Operand(5), Made(0, 0))
    assert made.sink is None
    assert made.outputs == (Made(1, 0), Made(1, 1))
    assert (hoist.cell.where, hoist.cell.name, made.core.cell.name) == ("here:1", "cell.hoist", "cell.core")


def test_what_the_loop_waits_for_stays_in_it() -> None:
    assert split(lstm, "ssslll", "ii", *LSTM) is None
    assert split(lambda w, h: jnp.tanh(h @ w), "sl", "i", (H, H), (H,)) is None


def test_child_sum_node_hoists_the_projections_of_its_word_into_one_part() -> None:
    def node(wi: Any, wf: Any, u: Any, v: Any, x: Any, left: Any, right: Any, cl: Any, cr: Any) -> Any:
        gate = jnp.tanh(x @ wi + (left + right) @ u)
        word = x @ wf
        c = gate + jax.nn.sigmoid(word + left @ v) * cl + jax.nn.sigmoid(word + right @ v) * cr
        return jnp.tanh(c), c

    made = found(split(node, "sssse" + "llll", "ii", *[(H, H)] * 4, *[(H,)] * 5))
    (hoist,) = made.hoists
    assert names(hoist) == ["dot_general", "dot_general"]
    assert shapes(hoist) == [(H,), (H,)]
    assert names(made.core).count("dot_general") == 3


@pytest.mark.parametrize("how", ["index", "take", "indices"])
def test_a_token_is_looked_up_and_projected_before_the_loop(how: str) -> None:
    def node(table: Any, w: Any, u: Any, token: Any, h: Any) -> Any:
        looks = {
            "index": lambda: table[token],
            "take": lambda: jnp.take(table, token, axis=0),
            "indices": lambda: table[jnp.arange(2) + token].sum(0),
        }
        return jnp.tanh(looks[how]() @ w + h @ u)

    made = found(split(node, "sssel", "i", (5, 3), (3, H), (H, H), INT, (H,)))
    (hoist,) = made.hoists
    assert hoist.operands == (Operand(0), Operand(1), Operand(3))
    assert shapes(hoist) == [(H,)]
    assert names(hoist)[-1] == "dot_general"
    assert made.core.operands == (Operand(2), Operand(4), Made(0, 0))


def test_a_lookup_alone_is_hoisted_only_from_a_shared_table() -> None:
    def node(table: Any, token: Any, h: Any) -> Any:
        return table[token] * h

    assert len(found(split(node, "sel", "i", (5, H), INT, (H,))).hoists) == 1
    assert split(node, "eel", "i", (5, H), INT, (H,)) is None


def test_a_readout_is_sunk() -> None:
    def node(u: Any, v: Any, h: Any) -> Any:
        h = jnp.tanh(h @ u)
        return h, jax.nn.softmax(h @ v)

    made = found(split(node, "ssl", "io", (H, H), (H, 9), (H,)))
    assert made.sink is not None
    assert names(made.core) == ["dot_general", "tanh"]
    assert shapes(made.core) == [(H,)]
    assert made.sink.operands == (Operand(1), Made(0, 0))
    assert made.outputs == (Made(0, 0), Made(1, 0))


def test_a_loss_of_each_node_is_sunk_and_reads_its_label_again() -> None:
    def node(u: Any, v: Any, label: Any, h: Any) -> Any:
        h = jnp.tanh(h @ u)
        return h, -jax.nn.log_softmax(h @ v)[label]

    made = found(split(node, "ssel", "io", (H, H), (H, 9), INT, (H,)))
    assert made.sink is not None
    assert not made.hoists
    assert made.sink.operands == (Operand(1), Operand(2), Made(0, 0))
    assert shapes(made.sink) == [()]


def test_a_sink_reads_as_few_bytes_as_possible() -> None:
    def node(u: Any, h: Any) -> Any:
        gates = h @ u
        return jnp.tanh(gates).sum(), jnp.exp(gates[:H] * gates[H : 2 * H])

    made = found(split(node, "sl", "io", (H, 4 * H), (H,)))
    assert made.sink is not None
    assert shapes(made.core) == [(), (H,)]  # the product, not all gates
    assert names(made.sink) == ["exp"]


def test_cheap_equations_are_sunk_where_nothing_more_is_stored() -> None:
    def smaller(u: Any, h: Any) -> Any:
        h = h @ u
        return h, h * 2

    def larger(u: Any, h: Any) -> Any:
        gates = h @ u
        return jnp.tanh(gates).sum(), gates[:H] + gates[H : 2 * H]

    def grown(u: Any, h: Any) -> Any:
        gates = h @ u
        return jnp.tanh(gates).sum(), jnp.concatenate([gates, gates])

    for node, sunk in ((smaller, "mul"), (grown, "concatenate")):
        made = found(split(node, "sl", "io", (H, H), (H,)))
        assert made.sink is not None
        assert names(made.sink) == [sunk]
    assert split(larger, "sl", "io", (H, 2 * H), (H,)) is None


def test_late_operands_are_read_again_by_the_sink() -> None:
    made = found(split(lambda u, h: (h, jnp.exp(h) @ u), "sl", "io", (H, H), (H,)))
    assert made.sink is not None
    assert made.sink.operands == (Operand(0), Operand(1))
    assert len(made.core.cell.out_avals) == 1


def test_what_is_cheap_and_grows_is_not_hoisted() -> None:
    assert split(lambda x, h: jnp.broadcast_to(x, H) * h, "el", "i", (), (H,)) is None
    assert (
        split(lambda x, y, h: (jnp.broadcast_to(x, H) + jnp.where(y > 0, y, 1)) * h, "eel", "i", (), (), (H,)) is None
    )
    assert split(lambda x, h: x.astype(jnp.float16).astype(jnp.float32).reshape(H) + h, "el", "i", (2, 2), (H,)) is None


def test_a_hoist_ends_where_its_result_is_smallest() -> None:
    def grows(x: Any, h: Any) -> Any:
        return jnp.broadcast_to(jnp.exp(x), H) * h

    def shrinks(w: Any, x: Any, h: Any) -> Any:
        return -(-(x @ w)).sum() * h

    made = found(split(grows, "el", "i", (), (H,)))
    assert (names(made.hoists[0]), shapes(made.hoists[0])) == (["exp"], [()])
    made = found(split(shrinks, "sel", "i", (H, H), (H,), (H,)))
    assert (names(made.hoists[0]), shapes(made.hoists[0])) == (["dot_general", "neg", "reduce_sum"], [()])


def test_cheap_equations_join_no_further_operands_to_a_hoist() -> None:
    made = found(split(lambda w, x, mask, h: (x @ w) * mask + h, "seel", "i", (H, H), (H,), (H,), (H,)))
    assert made.hoists[0].operands == (Operand(0), Operand(1))


def test_of_equal_borders_the_first_is_taken() -> None:
    def node(a: Any, b: Any, y: Any, h: Any) -> Any:
        p, q, x = jnp.exp(a), jnp.exp(b), -y  # stored are p and q; p and x would be as many bytes
        return q * x, h * x, h * -((p + x) * 2)

    made = found(split(node, "eeel", "iii", *[(H,)] * 4))
    assert [names(hoist) for hoist in made.hoists] == [["exp"], ["exp"]]


def test_sums_of_hoisted_rows_are_one_row() -> None:
    def node(w: Any, v: Any, x: Any, y: Any, h: Any) -> Any:
        return x @ w + y @ v + h

    (hoist,) = found(split(node, "sseel", "i", (H, H), (H, H), (H,), (H,), (H,))).hoists
    assert shapes(hoist) == [(H,)]


def test_independent_pieces_are_hoisted_apart() -> None:
    def node(w: Any, table: Any, x: Any, token: Any, h: Any) -> Any:
        return (h + x @ w) * table[token] + jnp.exp(x) * h

    made = found(split(node, "sseel", "i", (H, H), (5, H), (H,), INT, (H,)))
    assert [hoist.operands for hoist in made.hoists] == [(Operand(0), Operand(2)), (Operand(1), Operand(3))]
    assert shapes(made.hoists[0]) == [(H,), (H,)]  # two pieces that read the same operands are one


def test_pieces_that_read_more_are_hoisted_apart() -> None:
    def node(w: Any, x: Any, y: Any, h: Any) -> Any:
        return (h + x @ w) * jnp.exp(x * y)

    made = found(split(node, "seel", "i", (H, H), (H,), (H,), (H,)))
    assert [hoist.operands for hoist in made.hoists] == [(Operand(0), Operand(1)), (Operand(1), Operand(2))]


def test_outputs_may_come_from_a_hoist() -> None:
    made = found(split(lambda w, x, h: (x @ w + 1, h + 1, x @ w * h), "sel", "iii", (H, H), (H,), (H,)))
    assert made.outputs[0].part == 0
    assert "dot_general" not in names(made.core)
    alone = found(split(lambda w, x: jnp.tanh(x @ w) * 2, "se", "i", (H, H), (H,)))
    assert alone.outputs == (Made(0, 0),)
    assert alone.core.operands == ()


def test_outputs_that_are_operands_or_literals() -> None:
    def node(w: Any, x: Any, h: Any) -> Any:
        return jnp.tanh(h @ w), x, h, w, 2.0, jnp.sin(w)

    assert split(node, "sel", "iiiiii", (H, H), (H,), (H,)) is None
    made = found(split(node, "sel", "iooooo", (H, H), (H,), (H,)))
    assert [place.part for place in made.outputs] == [0, 1, 1, 1, 1, 1]
    made = found(split(node, "sel", "ioiiio", (H, H), (H,), (H,)))
    assert [place.part for place in made.outputs] == [0, 1, 0, 0, 0, 1]


def test_a_value_that_is_read_inside_and_outside_is_made_once() -> None:
    def node(w: Any, h: Any) -> Any:
        h = jnp.tanh(h @ w)
        return h, h, w, w, jnp.exp(h)

    made = found(split(node, "sl", "ioioo", (H, H), (H,)))
    assert made.outputs == (Made(0, 0), Made(0, 0), Made(0, 1), Made(0, 1), Made(1, 0))
    assert made.sink is not None
    assert made.sink.operands == (Made(0, 0),)


def test_parts_compute_what_depends_on_shared_operands_by_themselves() -> None:
    def node(w: Any, u: Any, x: Any, h: Any) -> Any:
        both = jnp.sin(w @ u)
        h = jnp.tanh(x @ both + h @ both)
        return h, h @ both, both

    made = found(split(node, "ssel", "ioi", (H, H), (H, H), (H,), (H,)))
    for part in made.parts:
        assert [Operand(0), Operand(1)] == list(part.operands[:2])
        assert names(part).count("sin") == 1
    assert split(lambda w, x, h: jnp.sin(w) * x * h, "sel", "i", (H,), (H,), (H,)) is None


def test_typed_keys_are_rows() -> None:
    def node(key: Any, h: Any) -> Any:
        one, other = jax.random.split(key)
        return h * jax.random.bernoulli(one, 0.5, (H,)), other

    made = found(split(node, "el", "io", KEY, (H,)))
    assert len(made.hoists) == 1
    assert made.outputs[1].part == 0
    late = found(split(lambda key, h: (h * 2, jax.random.fold_in(key, 1), key), "ll", "ioi", KEY, (H,)))
    assert late.sink is not None
    assert late.outputs[2] == Made(0, 1)


def test_loops_are_moved_whole() -> None:
    def node(w: Any, x: Any, h: Any) -> Any:
        summed = lax.scan(lambda carry, row: (carry * 2 + row, None), jnp.zeros(H), x)[0]
        ends = lax.fori_loop(0, 3, lambda i, carry: carry + 1, h)
        return h + summed * w, lax.cond(h[0] > 0, lambda v: v + 1, lambda v: v, ends)

    made = found(split(node, "sel", "io", (H,), (3, H), (H,)))
    assert "scan" in names(made.hoists[0])
    assert made.sink is not None
    assert {"scan", "cond"} <= set(names(made.sink))


@jax.custom_vjp
def scaled(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w


scaled.defvjp(lambda x, w: (scaled(x, w), (x, w)), lambda kept, g: (2 * g * kept[1], 3 * g * kept[0]))


def test_custom_derivatives_stay_whole_and_cost_what_they_contain() -> None:
    made = found(split(lambda w, x, h: (scaled(x, w) * h, scaled(h, w)), "sel", "io", (H,), (H,), (H,)))
    assert names(made.hoists[0]) == ["custom_vjp_call"]
    assert made.sink is not None
    assert names(made.sink) == ["custom_vjp_call"]
    assert split(lambda x, h: jax.nn.relu(x) * h, "el", "i", (H,), (H,)) is None
    assert split(lambda x, h: jax.checkpoint(jnp.abs)(x) * h, "el", "i", (H,), (H,)) is None
    take = jax.checkpoint(lambda table, token: jnp.take(table * 2, token, axis=0))
    assert split(lambda t, i, h: take(t, i) * h, "eel", "i", (5, H), INT, (H,)) is None
    assert found(split(lambda t, i, h: take(t, i) * h, "sel", "i", (5, H), INT, (H,))).hoists


def test_jits_are_opened() -> None:
    step = jax.jit(lambda w, x, h: jax.jit(lambda y: y @ w)(x) + h @ w)
    made = found(split(lambda w, x, h: jnp.tanh(step(w, x, h)), "sel", "i", (H, H), (H,), (H,)))
    assert names(made.hoists[0]) == ["dot_general"]


def test_cells_with_effects_stay_whole() -> None:
    def node(w: Any, x: Any, h: Any) -> Any:
        jax.debug.print("{}", h)
        return x @ w + h

    assert split(node, "sel", "i", (H, H), (H,), (H,)) is None


def test_dead_code_is_in_no_part() -> None:
    def node(w: Any, x: Any, h: Any) -> Any:
        jnp.exp(x @ w)
        return h + 1

    assert split(node, "sel", "i", (H, H), (H,), (H,)) is None


def test_splits_are_remembered() -> None:
    args = [draw(shape, 0) for shape in LSTM]
    slots = tuple(SLOTS[slot] for slot in "sssell")
    made = split_cell(cell_of(lstm, args), slots, (True, True))
    assert split_cell(cell_of(lambda *given: lstm(*given), args), slots, (True, True)) is made
    assert split_cell(cell_of(lstm, args), slots, (True, False)) is not made


def test_cheap_primitives_exist() -> None:
    public = {p.name for name, p in vars(primitives).items() if name.endswith("_p")}
    assert public >= compat.CALLS | compat.LOOKUPS
    assert compat.CHEAP - public <= {"split", "random_wrap", "random_unwrap", "optimization_barrier"}
    assert not compat.CHEAP & (compat.CALLS | compat.LOOKUPS)


# One equation: what it does and which earlier values of a list it reads.
UNARY: list[Callable[..., Any]] = [
    jnp.tanh, jnp.negative, lambda v, w: v @ w, lambda v, w: v * w[0], lambda v, w: jnp.broadcast_to(v.sum(), H),
    lambda v, w: jnp.concatenate([v[2:], v[:2]]), lambda v, w: v[:1].repeat(H), lambda v, w: jax.nn.relu(v),
    lambda v, w: scaled(v, w[1]), lambda v, w: w[jnp.argmax(v)], lambda v, w: jnp.tanh(w) @ v,
    lambda v, w: lax.scan(lambda c, r: (c + r * v, c.sum()), v, w)[0], lambda v, w: w[2], lambda v, w: jnp.ones(H),
]  # fmt: skip
BINARY: list[Callable[..., Any]] = [jnp.add, jnp.multiply, lambda a, b: jnp.where(a > 0, b, a[0]), jnp.dot]


def random_cell(program: Sequence[tuple[int, int, int]], outputs: Sequence[int]) -> Callable[..., Any]:
    def fun(w: Any, *rows: Any) -> Any:
        values = list(rows)
        for operation, one, other in program:
            a, b = values[one % len(values)], values[other % len(values)]
            if operation < 2:
                values.append(UNARY[operation](a))
            elif operation < len(UNARY):
                values.append(UNARY[operation](a, w))
            else:
                values.append(jnp.broadcast_to(BINARY[operation - len(UNARY)](a, b), H) / 2)
        return [values[output % len(values)] for output in outputs]

    return fun


numbers = st.integers(0, 30)
operations = st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), numbers, numbers)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(operations, min_size=4, max_size=14),
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from("io")), min_size=2, max_size=4),
    st.text("sel", max_size=2),
)
def test_parts_together_are_the_cell(program: Any, outputs: Any, more: str) -> None:
    fun = random_cell(program, [-1 - output for output, _ in outputs])
    split(fun, "seel" + more, "".join(letter for _, letter in outputs), (H, H), *[(H,)] * (3 + len(more)))


def variables(atoms: Sequence[Any]) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, compat.Literal)}


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 2), numbers, numbers), min_size=1, max_size=9), st.data())
def test_no_other_border_is_cheaper(program: Any, data: Any) -> None:
    def fun(x: Any) -> Any:
        values = [x]
        for operation, one, other in program:
            a, b = values[one % len(values)], values[other % len(values)]
            grown, same, shrunk = lambda a=a, b=b: lax.concatenate([a, b], 0), lambda a=a: -a, lambda a=a: a[:1]
            values.append((grown, same, shrunk)[operation]())
        return values[1:]

    jaxpr = jax.make_jaxpr(fun)(jnp.ones(H)).jaxpr
    equations = jaxpr.eqns
    everything = range(len(equations))
    made = [set(equation.outvars) for equation in equations]
    read = [variables(equation.invars) for equation in equations]

    def closed(chosen: set[int]) -> bool:
        return all(j in chosen for i in chosen for j in everything if made[j] & read[i])

    def crossing(chosen: set[int]) -> int:
        later = set().union(outputs, *(read[i] for i in everything if i not in chosen))
        return sum(v.aval.size * 4 for i in chosen for v in made[i] & later if v not in free)

    outputs, free = ({v for v in jaxpr.outvars if v != jaxpr.invars[0] and data.draw(st.booleans())} for _ in range(2))
    first = data.draw(st.sets(st.sampled_from(everything), min_size=1, max_size=3))
    before = set(first)
    while not closed(before):
        before |= {j for i in before for j in everything if made[j] & read[i]}
    after = {i for i in everything if i not in before and data.draw(st.booleans())}
    sets = [{i for i in everything if mask >> i & 1} for mask in range(1 << len(equations))]
    allowed = [one for one in sets if before <= one and not one & after and closed(one)]
    got = _cheapest_border(equations, first, after, list(outputs), list(free))
    assert got in allowed
    assert crossing(got) == min(map(crossing, allowed))
    assert all(got <= one for one in allowed if crossing(one) == crossing(got))


PARTS = """
import jax, jax.numpy as jnp
from jitbatch.ir.cell import intern_cell
from jitbatch.batch.split_cell import Slot, split_cell
def node(w, v, x, y, z, h):
    a, b, c = x @ w, jnp.exp(y), jnp.sin(z * y)
    h = jnp.tanh(a + h) * b + c
    return h, h @ v, jnp.exp(h), a
args = [jnp.ones((3, 3))] * 2 + [jnp.ones(3)] * 4
slots = (Slot.SHARED,) * 2 + (Slot.EARLY,) * 3 + (Slot.LATE,)
made = split_cell(intern_cell(jax.make_jaxpr(node)(*args), "cell", ""), slots, (True, False, False, False))
print([(part.cell.digest, part.operands) for part in made.parts], made.outputs)
"""


def test_splits_are_the_same_in_every_process() -> None:
    def printed(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([sys.executable, "-c", PARTS], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed("1") == printed("2")
