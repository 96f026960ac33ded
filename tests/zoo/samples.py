"""What a sample may be: dicts, named tuples, dataclasses, `Static`, Python numbers, NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jitbatch import Static, jitbatch
from zoo.draw import normal, vector_trees, weights
from zoo.recurrent import rnn_cell, rnn_params, run_rnn
from zoo.trees import add_node
from zoo.workloads import HIDDEN, INPUT, Params, Tree, workload


def linked_lists(rng: np.random.Generator, n: int) -> list[Params]:
    samples = []
    for i in range(n):
        node: Params = {"x": normal(rng, INPUT)}
        for step in range(i % 4):
            node = {"x": normal(rng, INPUT), "next": node}
            if step % 2:
                node["skip"] = normal(rng, HIDDEN)
        samples.append(node)
    return samples


@workload(rnn_params, linked_lists, float_inputs=True)
@jitbatch
def dict_samples(params: Params, node: Params) -> Array:
    """Dicts, whose keys say what to do."""
    h = dict_samples(params, node["next"]) if "next" in node else params["h0"]
    return rnn_cell(params, node["x"], h + node["skip"] if "skip" in node else h)


class Branch(NamedTuple):
    left: Any
    right: Any
    gain: Array


class Tip(NamedTuple):
    x: Array


def named_tuple_trees(rng: np.random.Generator, n: int) -> list[Branch | Tip]:
    def build(tree: Tree) -> Branch | Tip:
        if isinstance(tree, tuple):
            return Branch(*map(build, tree), gain=normal(rng))
        return Tip(tree)

    return [build(tree) for tree in vector_trees(rng, n)]


@workload(weights(add=(INPUT, INPUT)), named_tuple_trees, float_inputs=True)
@jitbatch
def named_tuple_samples(params: Params, tree: Branch | Tip) -> Array:
    """Two kinds of NamedTuple, told apart by their type."""
    if isinstance(tree, Tip):
        return tree.x
    left, right = named_tuple_samples(params, tree.left), named_tuple_samples(params, tree.right)
    return tree.gain * add_node(params, left, right)


@jax.tree_util.register_dataclass
@dataclass
class Item:
    """A registered dataclass: `kind` is part of its structure."""

    x: Array
    parts: list[Item]
    kind: str = field(metadata={"static": True})


def items(rng: np.random.Generator, n: int) -> list[Item]:
    def item(depth: int) -> Item:
        parts = [item(depth - 1) for _ in range(rng.integers(3) if depth else 0)]
        return Item(normal(rng, INPUT), parts, str(rng.choice(["plain", "twisted"])))

    return [item(1 + i % 2) for i in range(n)]


@jitbatch
def twist(params: Params, x: Array) -> Array:
    return jnp.sin(x @ params["add"])


@workload(weights(add=(INPUT, INPUT)), items, float_inputs=True)
@jitbatch
def dataclass_samples(params: Params, item: Item) -> Array:
    total = twist(params, item.x) if item.kind == "twisted" else item.x
    for part in item.parts:
        total = add_node(params, total, dataclass_samples(params, part))
    return total


@jitbatch
def op_add(params: Params, x: Array, y: Array) -> Array:
    return x + params["bias"] * y


@jitbatch
def op_mul(params: Params, x: Array, y: Array) -> Array:
    return x * y


@jitbatch
def op_sin(params: Params, x: Array) -> Array:
    return jnp.sin(x)


OPERATORS: dict[str, Any] = {"add": op_add, "mul": op_mul, "sin": op_sin, "neg": lambda params, x: -x}


def expressions(rng: np.random.Generator, n: int) -> list[Any]:
    def expression(depth: int) -> Any:
        if depth == 0:
            return normal(rng)
        name = str(rng.choice(list(OPERATORS)))
        arity = 2 if name in ("add", "mul") else 1
        return [Static(name), *(expression(depth - 1) for _ in range(arity))]

    return [expression(i % 4) for i in range(n)]


@workload(weights(bias=()), expressions, float_inputs=True, size=5)
@jitbatch
def static_operators(params: Params, tree: Any) -> Array:
    """Expressions over numbers, whose operators are `Static`."""
    if not isinstance(tree, list):
        return tree
    name, *operands = tree
    return OPERATORS[name.value](params, *(static_operators(params, operand) for operand in operands))


def number_samples(rng: np.random.Generator, n: int) -> list[Params]:
    return [
        {
            "scale": float(rng.normal()),
            "count": int(rng.integers(5)),
            "flag": bool(i % 2),
            "extra": [float(rng.normal()) for _ in range(i % 3)],
        }
        for i in range(n)
    ]


@jitbatch
def number_cell(params: Params, scale: Any, count: Any) -> Array:
    return jnp.tanh(params["b"] * scale + count)


@workload(rnn_params, number_samples, float_inputs=True, low_precision=True)
@jitbatch
def python_numbers(params: Params, sample: Params) -> dict[str, Array]:
    """Python floats, ints and bools as leaves: weakly typed, as in `jit`."""
    h = number_cell(params, sample["scale"], sample["count"])
    for number in sample["extra"]:
        h = number_cell(params, number, 1) + h
    brain = params["h0"].astype(jnp.bfloat16) * sample["scale"]
    return {"h": jnp.where(sample["flag"], h, -h), "brain": brain, "count": jnp.asarray(sample["count"]) + 1}


@workload(
    rnn_params,
    lambda rng, n: [
        {"xs": rng.normal(size=(1 + i % 3, INPUT)), "picks": rng.integers(HIDDEN, size=2)} for i in range(n)
    ],
    float_inputs=True,
)
@jitbatch
def numpy_leaves(params: Params, sample: Params) -> Array:
    """NumPy arrays of 64 bits as leaves: JAX takes them for 32."""
    h = run_rnn(params, params["h0"], sample["xs"])[-1]
    return h[jnp.asarray(sample["picks"])]
