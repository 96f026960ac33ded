"""Loops and their derivative: values with many readers, and no copy of an arena inside a loop."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from sampled import every
from zoo import (
    INPUT,
    Params,
    assert_bits,
    assert_same,
    counted_compilations,
    gradients,
    named,
    normal,
    projected,
    rnn_params,
    stack,
    tree_params,
)

from jitbatch import Static, jitbatch

GRADIENTS = {"rtol": 1e-4, "atol": 1e-5}


def check(batched: Any, params: Any, samples: list[Any], reference: Any = None) -> Any:
    """Values and gradients of `executor="fused"` are those of a reference, by default the plain loop; the plan."""
    reference = reference or (lambda params: stack([batched.__wrapped__(params, sample) for sample in samples]))

    def both(params: Any, run: Any) -> Any:
        def loss(params: Any) -> Any:
            values = run(params)
            return projected(values), values

        return jax.value_and_grad(loss, has_aux=True)(params)

    plan = batched.plan(params, samples)
    assert plan.static.executor == "fused"
    got = jax.jit(lambda params, plan: both(params, lambda p: batched.batch(p, plan)))(params, plan)
    assert_same(got, jax.jit(both, static_argnums=1)(params, reference), **GRADIENTS)
    return plan


# --- Readers


@jitbatch
def step(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])


@jitbatch
def merge(params: Params, left: Array, right: Array) -> Array:
    return jnp.sin(left * params["b"] + right)


@jitbatch(executor="fused")
def fan(params: Params, xs: Array) -> Array:
    """A value of a loop that every later node of it reads."""
    first = step(params, xs[0], params["h0"])
    total = first
    for x in xs[1:]:
        total = merge(params, total, step(params, x, first))
    return total


def scanned_fan(params: Params, xs: Array) -> Array:
    first = step(params, xs[0], params["h0"])
    return lax.scan(lambda total, x: (merge(params, total, step(params, x, first)), None), first, xs[1:])[0]


@pytest.mark.parametrize("readers", [1, 2, 3, 7, 100])
def test_a_value_with_many_readers(readers: int) -> None:
    rng = np.random.default_rng(readers)
    samples = [normal(rng, readers, INPUT), normal(rng, 1 + readers // 2, INPUT)]
    check(fan, rnn_params(jax.random.key(0)), samples, lambda p: stack([scanned_fan(p, xs) for xs in samples]))


@jitbatch
def chain(params: Params, xs: Array) -> Array:
    return functools.reduce(lambda h, x: step(params, x, h), xs, params["h0"])


def mapped_chain(xs: Any) -> Any:
    return lambda params: jax.vmap(chain.__wrapped__, in_axes=(None, 0))(params, jnp.stack(xs))


@jitbatch
def square(params: Params, h: Array, same: Array) -> Array:
    return jnp.tanh(h * (same @ params["h"]))


def test_a_node_that_reads_a_value_twice() -> None:
    @jitbatch
    def squares(params: Params, xs: Array) -> Array:
        h = params["h0"]
        for _ in range(len(xs)):
            h = square(params, h, h)
        return h

    check(squares, rnn_params(jax.random.key(0)), [jnp.ones((length, 1)) for length in (1, 4, 2)])


def test_a_subtree_that_samples_share() -> None:
    """Merged by dedupe, its root is read by 64 samples."""

    rng = np.random.default_rng(0)
    stem = normal(rng, 3, INPUT)
    samples = [jnp.concatenate([stem, normal(rng, 1, INPUT)]) for _ in range(64)]
    plan = check(chain, rnn_params(jax.random.key(0)), samples, mapped_chain(samples))
    assert plan.summary.nodes == 64 * 4 * 2  # the products with inputs are hoisted
    assert plan.summary.distinct == (3 + 64) * 2


def test_outputs_inside_the_loop_have_cotangents_of_their_own() -> None:
    @jitbatch
    def states(params: Params, xs: Array) -> list[Array]:
        h = params["h0"]
        hs = [h := step(params, x, h) for x in xs]
        return [hs[0], hs[1], hs[-1]]

    rng = np.random.default_rng(0)
    check(states, rnn_params(jax.random.key(0)), [normal(rng, length, INPUT) for length in (2, 4, 3)])


@jitbatch
def constant_step(params: Params, x: Array, h: Array) -> tuple[Array, Array]:
    return jnp.tanh(x @ params["x"] + h @ params["h"]), jnp.sin(params["b"])


def test_a_cell_that_returns_what_only_shared_operands_make() -> None:
    @jitbatch
    def run(params: Params, xs: Array) -> Array:
        h = y = params["h0"]
        for x in xs:
            h, y = constant_step(params, x, h + y)
        return h * y

    rng = np.random.default_rng(0)
    check(run, rnn_params(jax.random.key(0)), [normal(rng, length, INPUT) for length in (2, 3)])


@jitbatch
def twice(params: Params, h: Array) -> Array:
    product = jnp.tanh(h @ params["h"]) @ params["h"]
    return jnp.sin(product + params["b"]) * product * params["b"]


def test_a_weight_that_a_node_reads_twice() -> None:
    """Its gradient is the sum of those at all weight uses that read it; the output of one of these is read twice."""

    def run(params: Params, xs: Array) -> Array:
        return functools.reduce(lambda h, _: twice(params, h), range(len(xs)), params["h0"] + xs[0, 0])

    rng = np.random.default_rng(0)
    check(jitbatch(run), rnn_params(jax.random.key(0)), [normal(rng, length, INPUT) for length in (3, 1, 2)])


@jitbatch
def quotient(params: Params, h: Array) -> Array:
    return jnp.tanh(h + params["b"] / (1.0 + jnp.exp(h)))


def test_rows_without_a_node_are_not_divided_by() -> None:
    """What a node divides a weight by is zero where there is no node: the gradient there is to be zero, not NaN."""

    def run(params: Params, xs: Array) -> Array:
        return functools.reduce(lambda h, _: quotient(params, h), range(len(xs)), params["h0"] + xs[0, 0])

    rng = np.random.default_rng(0)
    check(jitbatch(run), rnn_params(jax.random.key(0)), [normal(rng, length, INPUT) for length in (3, 1, 2)])


def test_more_rows_than_the_widest_chunk() -> None:
    xs = list(normal(np.random.default_rng(0), 300, 2, INPUT))
    batched = jitbatch(chain.__wrapped__, dedupe=False)
    plan = check(batched, rnn_params(jax.random.key(0)), xs, mapped_chain(xs))
    assert plan.summary.distinct == 600 * 2


# --- Terms of sums


@jitbatch
def term(params: Params, x: Array) -> Array:
    return jnp.tanh(x @ params["x"])


@jitbatch
def after_sums(params: Params, x: Array, total: Array, other: Array) -> Array:
    return jnp.sin(total @ params["h"] + other * params["b"] + x)


def sums_in_a_loop(terms_of: str) -> Any:
    """A function with two sums in each turn of a loop, whose terms are made before the loop, by it, or by both."""

    def fun(params: Params, xs: Array) -> Array:
        before = [term(params, x) for x in xs]
        made = [params["h0"]]
        for turn, x in enumerate(before):
            total, other = {
                "before": (before[: turn + 1], made[-1:]),
                "inside": (made[-2:], [made[turn // 2], made[-1]]),
                "both": ([*before[turn:], *made], [made[-1], before[0], before[turn]]),
                "one term twice": ([x, x, made[-1]], [made[-1], before[0], made[-1]]),
            }[terms_of]
            made.append(after_sums(params, x, sum(total), sum(other)))
        return made[-1]

    return fun


@pytest.mark.parametrize("terms_of", ["before", "inside", "both", "one term twice"])
def test_cotangents_of_the_terms_of_sums(terms_of: str) -> None:
    """A sum has one edge row for all its terms: each of them takes it, once for every sum that reads the term."""
    rng = np.random.default_rng(0)
    samples = [normal(rng, length, INPUT) for length in (3, 1, 2)]
    fun = sums_in_a_loop(terms_of)
    for loops in ("dynamic", "static"):
        plan = check(jitbatch(fun, loops=loops), rnn_params(jax.random.key(0)), samples)
        (loop,) = [phase for phase in plan.static.program.phases if hasattr(phase, "rounds")]
        assert any(block.kind.is_variadic for block in loop.blocks)


# --- Static trip counts


def primitives(jaxpr: Any) -> set[str]:
    """The names of all primitives in a jaxpr and those it calls."""
    found = set()
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(value, "eqns"):  # of a jaxpr, closed or not
                found |= primitives(value)
    return found


def counted(batched: Any, params: Any, samples: list[Any], like: Any = None) -> tuple[Any, Any, Any]:
    """A plan, and its values and gradients as a function of parameters and a plan, jitted and as a jaxpr."""
    plan = batched.plan(params, samples, like=like)
    run = jax.jit(lambda params, plan: gradients(lambda p, _: batched.batch(p, plan), params, []))
    return plan, run, jax.make_jaxpr(run)(params, plan)


def test_a_static_loop_and_a_dynamic_one_are_told_apart() -> None:
    entry = named("binary_tree")
    params, samples = entry.draw(3)
    loops = {"static": {"scan"}, "dynamic": {"scan", "while"}}
    for name, want in loops.items():
        jaxpr = counted(jitbatch(entry.fun, loops=name), params, samples)[2]
        assert primitives(jaxpr) & {"scan", "while"} <= want
        assert ("while" in primitives(jaxpr)) == (name == "dynamic")
    assert jitbatch(entry.fun).plan(params, samples).static.program.phases[1].pair_trips is None


@pytest.mark.parametrize("name", ["binary_tree", "child_sum_edges", "dag", "alternating_kinds"])
def test_static_trip_counts(name: str) -> None:
    """Trees, sums of any number of terms, values with many readers, two types in a loop: in a program of their own, and
    in one that has room for more rounds, wider rounds, longer sums and more readers."""
    entry = named(name)
    params, large = entry.draw(7)
    small = (3 * entry.draw(3, seed=1)[1])[: len(large)]
    batched = jitbatch(entry.fun, loops="static")
    plan, run, jaxpr = counted(batched, params, large)
    assert "while" not in primitives(jaxpr)
    (loop,) = [phase for phase in plan.static.program.phases if hasattr(phase, "rounds")]
    assert loop.is_static
    like = batched.plan(params, small, like=plan)
    assert like.static is plan.static
    with counted_compilations() as compilations:
        got, padded = jax.block_until_ready((run(params, plan), run(params, like)))
    assert len(compilations) == 1
    assert_same(got, gradients(entry.loop, params, large), **GRADIENTS)
    assert_same(padded, gradients(entry.loop, params, small), **GRADIENTS)


@pytest.mark.parametrize("lengths", [(1,), (5, 2)])
def test_static_trip_counts_with_more_room_than_rounds(lengths: tuple[int, ...]) -> None:
    """The rounds of a batch are rounded up, and the rest of them must change nothing: not the gradients either."""
    rng = np.random.default_rng(0)
    params = rnn_params(jax.random.key(0))
    batched = jitbatch(chain.__wrapped__, loops="static")
    samples = [normal(rng, length, INPUT) for length in lengths]
    like = batched.plan(params, [normal(rng, length, INPUT) for length in (11, 4, 4)])
    plan, run, _ = counted(batched, params, samples, like)
    assert plan.static.program.phases[-1].rounds > max(lengths)
    want = gradients(lambda p, samples: stack([chain(p, xs) for xs in samples]), params, samples)
    assert_same(run(params, plan), want, **GRADIENTS)


def test_static_trip_counts_with_more_room_than_terms() -> None:
    params = rnn_params(jax.random.key(0))
    batched = jitbatch(sums_in_a_loop("inside"), loops="static")
    rng = np.random.default_rng(0)
    like = batched.plan(params, [normal(rng, length, INPUT) for length in (3, 2)])
    plan = batched.plan(params, [normal(rng, 1, INPUT) for _ in range(2)], like=like)
    assert plan.static is like.static


@jitbatch
def fragile(params: Params, x: Array, h: Array) -> Array:
    return jnp.log(h @ params["h"]) / jnp.sqrt(x @ params["x"]) + params["b"] / jnp.sqrt(h)


@pytest.mark.parametrize("loops", ["static", "dynamic"])
def test_a_type_of_a_loop_that_a_batch_lacks(loops: Any) -> None:
    """With static trip counts its chunks run all the same, on rows that are not there. In either case these must not
    leave a NaN in what is used, nor in gradients."""

    def fun(params: Params, sample: Params) -> Array:
        h = params["h0"]
        for x, name in zip(sample["xs"], sample["names"].value, strict=True):
            h = (fragile if name == "f" else merge)(params, x @ params["x"] if name == "m" else x, h)
        return h

    def draw(*names: str) -> list[Params]:
        rng = np.random.default_rng(0)
        return [{"xs": 1.0 + jnp.abs(normal(rng, len(name), INPUT)), "names": Static(name)} for name in names]

    batched = jitbatch(fun, loops=loops)
    params = jax.tree.map(lambda leaf: jnp.abs(leaf) + 1.0, rnn_params(jax.random.key(0)))
    samples = draw("mm", "m")
    like = batched.plan(params, draw("ffm", "mmf", "mff"))
    plan, run, _ = counted(batched, params, samples, like)
    assert plan.static is like.static
    assert_same(
        run(params, plan), gradients(lambda p, s: stack([fun(p, one) for one in s]), params, samples), **GRADIENTS
    )


def test_static_trip_counts_permute() -> None:
    entry = named("child_sum_edges")
    params, samples = entry.draw(5)
    batched = jitbatch(entry.fun, loops="static")
    plan = batched.plan(params, samples)
    order = np.random.default_rng(0).permutation(len(samples))
    permuted = batched.plan(params, [samples[i] for i in order])
    assert permuted.static is plan.static
    run = jax.jit(batched.batch)
    assert_bits(run(params, permuted), run(params, plan)[order])


# --- The optimised program

PROGRAM = """
import sys
import test_loop
print(test_loop.tree_program(sys.argv[1] == "scaled"))
"""


@jitbatch
def tree_leaf(params: Params, x: Array) -> tuple[Array, Array]:
    return jnp.tanh(x @ params["embed"][:INPUT]), x @ params["embed"][:INPUT]


@jitbatch
def tree_node(params: Params, left: Any, right: Any) -> tuple[Array, Array]:
    gates = jnp.concatenate([left[0], right[0]]) @ params["compose"]
    if "scale" in params:  # what is scaled is what the product made, which is saved
        gates = gates * params["scale"]
    gates = gates + params["bias"]
    i, o, f_left, f_right, u = jnp.split(gates, 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f_left) * left[1] + jax.nn.sigmoid(f_right) * right[1]
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@jitbatch
def tree_lstm(params: Params, tree: Any) -> Array:
    def visit(tree: Any) -> Any:
        return tree_node(params, *map(visit, tree)) if isinstance(tree, tuple) else tree_leaf(params, tree)

    return visit(tree)[0] @ params["out"]


def tree_program(scaled: bool) -> str:
    """The optimised HLO of a train step of a Tree-LSTM with 64 trees of 16 leaves."""
    rng = np.random.default_rng(0)

    def tree(depth: int) -> Any:
        return (tree(depth - 1), tree(depth - 1)) if depth else rng.normal(size=INPUT).astype(np.float32)

    params = tree_params(jax.random.key(0))
    if scaled:
        params["scale"] = jnp.ones_like(params["bias"])
    plan = tree_lstm.plan(params, [tree(4) for _ in range(64)])
    assert max(arena.capacity for arena in plan.static.arenas) >= 2000
    step = jax.jit(jax.value_and_grad(lambda params, plan: projected(tree_lstm.batch(params, plan))))
    return step.lower(params, plan).compile().as_text()


HEADER = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations|called_computations)=\{?([^,}]*(?:, %[^,}]*)*)"
)


def loop_lines(text: str) -> tuple[set[str], list[str]]:
    """The bodies of while loops, and the instructions in them and in what they call."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if header := HEADER.match(line):
            lines = computations[header[1]] = []
        elif line.startswith("  "):
            lines.append(line.strip())
    bodies = set(re.findall(r" while\(.*body=%?([\w.-]+)", text))
    inside: set[str] = set()
    waiting = list(bodies)
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            for line in computations[name]:
                for called in CALLED.findall(line):
                    waiting += re.findall(r"[\w.-]+", called)
    return bodies, [line for name in sorted(inside) for line in computations[name]]


def large_copies(lines: list[str], rows: int = 1000) -> list[str]:
    made = [re.search(r"= \(?(\w+)\[(\d+)[^ ]* .*?\bcopy(?:-start)?\(", line) for line in lines]
    return [line for line, copy in zip(lines, made, strict=True) if copy and int(copy[2]) >= rows]


def test_copies_are_seen() -> None:
    def body(i: Any, carry: Any) -> Any:
        rows, other = carry
        return rows.at[i].set(other[i] + rows[0]), rows + 1.0  # the old rows are read after the update

    def run(rows: Any) -> Any:
        return jax.lax.fori_loop(0, 7, body, (rows, rows))

    bodies, lines = loop_lines(jax.jit(run).lower(jnp.zeros((2000, 3))).compile().as_text())
    assert bodies
    assert large_copies(["%copy.1 = f32[2000,3]{1,0} copy(%p)"])
    assert not large_copies(["%copy.1 = f32[20,3]{1,0} copy(%p)", "%x = f32[2000,3]{1,0} add(%copy, %p)"])
    assert large_copies(lines)


@pytest.mark.parametrize("cell", every(2, ["scaled", "plain"]))
def test_no_arena_is_copied_inside_a_loop(cell: str) -> None:
    here, tests = Path(__file__).parent, Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    env["PYTHONPATH"] = os.pathsep.join([str(here), str(tests), str(tests.parent)])
    done = subprocess.run([sys.executable, "-c", PROGRAM, cell], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    bodies, lines = loop_lines(done.stdout)
    assert len(bodies) >= 4  # rounds and chunks, forward and backward
    assert any("dynamic-update-slice" in line for line in lines)
    assert not large_copies(lines)
