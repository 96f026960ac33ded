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
from zoo import INPUT, Params, assert_same, normal, projected, rnn_params, stack, tree_params

from jitbatch import jitbatch

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
    assert plan.summary.nodes == 64 * 4
    assert plan.summary.distinct == 3 + 64


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


def test_more_rows_than_the_widest_chunk() -> None:
    xs = list(normal(np.random.default_rng(0), 300, 2, INPUT))
    batched = jitbatch(chain.__wrapped__, dedupe=False)
    plan = check(batched, rnn_params(jax.random.key(0)), xs, mapped_chain(xs))
    assert plan.summary.distinct == 600


# --- The optimised program

PROGRAM = """
import test_loop
print(test_loop.tree_program())
"""


@jitbatch
def tree_leaf(params: Params, x: Array) -> tuple[Array, Array]:
    return jnp.tanh(x @ params["embed"][:INPUT]), x @ params["embed"][:INPUT]


@jitbatch
def tree_node(params: Params, left: Any, right: Any) -> tuple[Array, Array]:
    gates = jnp.concatenate([left[0], right[0]]) @ params["compose"] + params["bias"]
    i, o, f_left, f_right, u = jnp.split(gates, 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f_left) * left[1] + jax.nn.sigmoid(f_right) * right[1]
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@jitbatch
def tree_lstm(params: Params, tree: Any) -> Array:
    def visit(tree: Any) -> Any:
        return tree_node(params, *map(visit, tree)) if isinstance(tree, tuple) else tree_leaf(params, tree)

    return visit(tree)[0] @ params["out"]


def tree_program() -> str:
    """The optimised HLO of a train step of a Tree-LSTM with 64 trees of 16 leaves."""
    rng = np.random.default_rng(0)

    def tree(depth: int) -> Any:
        return (tree(depth - 1), tree(depth - 1)) if depth else rng.normal(size=INPUT).astype(np.float32)

    params = tree_params(jax.random.key(0))
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


def test_no_arena_is_copied_inside_a_loop() -> None:
    here = Path(__file__).parent
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    env["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent)])
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    bodies, lines = loop_lines(done.stdout)
    assert len(bodies) >= 4  # rounds and chunks, forward and backward
    assert any("dynamic-update-slice" in line for line in lines)
    assert not large_copies(lines)
