"""How costs grow: planning and running against nodes, depth, minibatch size, cell types and fan-out, one at a time.

    python bench/growth.py [--full | --quick] [--axes NAME ...]

Trees are made for the purpose, with the same number of nodes where that is not what grows. A slope of 1 in the report
means that twice the size takes twice the time.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from command import alone, results_of
from results import Job, Row
from timing import interleaved

from jitbatch import clear_caches, jitbatch
from jitbatch.data import Dependency
from jitbatch.data.trees import dependency_tree

HIDDEN = 64


def params_of(types: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), types + 1)
    weights = [0.1 * jax.random.normal(key, (HIDDEN, HIDDEN)) for key in keys[1:]]
    return {"embed": jax.random.normal(keys[0], (1000, HIDDEN)), "weights": weights}


@jitbatch
def node(weight: jax.Array, word: jax.Array, children: list[jax.Array]) -> jax.Array:
    return jnp.tanh(word + sum(children, jnp.zeros(HIDDEN)) @ weight)


@jitbatch
def model(params: dict[str, Any], tree: Dependency) -> jax.Array:
    """Each level of a tree has the weights of its type."""

    def encode(tree: Dependency, depth: int) -> jax.Array:
        weight = params["weights"][depth % len(params["weights"])]
        return node(weight, params["embed"][tree.token], [encode(child, depth + 1) for child in tree.children])

    return encode(tree, 0).sum()


def tree_of(rng: np.random.Generator, nodes: int, fan_out: int) -> Dependency:
    """A tree whose nodes have so many children, but for the last."""
    tokens = [int(rng.integers(1000)) for _ in range(nodes)]
    return dependency_tree(tokens, [0, *(1 + number // fan_out for number in range(nodes - 1))])


class Shape(NamedTuple):
    """What a minibatch is like."""

    batch: int = 16
    nodes: int = 63
    fan_out: int = 2
    types: int = 1


AXES: dict[str, Callable[[int], Shape]] = {
    "nodes in a sample": lambda n: Shape(nodes=n),
    "depth": lambda n: Shape(batch=max(1024 // n, 1), nodes=n, fan_out=1),
    "samples in a minibatch": lambda n: Shape(batch=n),
    "cell types": lambda n: Shape(types=n, nodes=64, fan_out=1),
    "children of a node": lambda n: Shape(fan_out=n),
}


def values_of(axis: str, full: bool, quick: bool) -> list[int]:
    most = {"depth": 256, "cell types": 32, "children of a node": 32}.get(axis, 512 if full else 128)
    least = 1 if axis in ("cell types", "children of a node", "samples in a minibatch") else 8
    if quick:
        return [least, 2 * least]
    step = 1 if full else 2
    return [least << power for power in range(0, (most // least).bit_length(), step)]


def measure(shape: Shape, rounds: int) -> Row:
    rng = np.random.default_rng(0)
    params = params_of(shape.types)
    samples = [tree_of(rng, shape.nodes, shape.fan_out) for _ in range(shape.batch)]
    clear_caches()
    start = time.perf_counter()
    plan = model.plan(params, samples)
    cold = time.perf_counter() - start

    def loss(params: Any, plan: Any) -> jax.Array:
        return model.batch(params, plan).sum()

    contestants = {
        "warm": partial(model.plan, params, samples),
        "inference": partial(jax.jit(loss), params, plan),
        "training": partial(jax.jit(jax.grad(loss)), params, plan),
    }
    timings = {name: timing._asdict() for name, timing in interleaved(contestants, rounds).items()}
    return {"shape": shape._asdict(), "steps": plan.summary.steps, "nodes": plan.summary.nodes, "cold": cold, **timings}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--axes", nargs="+", choices=AXES, metavar="NAME", help=", ".join(AXES))


def jobs(options: argparse.Namespace, _: ExitStack) -> list[Job]:
    rounds = options.rounds or (2 if options.quick else 7)
    results = results_of(options, "growth", {"rounds": rounds, "hidden": HIDDEN})
    return [
        Job(results, {"axis": axis, "value": value}, partial(measure, AXES[axis](value), rounds), rank=4)
        for axis in options.axes or AXES
        for value in values_of(axis, options.full, options.quick)
    ]


if __name__ == "__main__":
    alone(__doc__, jobs, add_options)
