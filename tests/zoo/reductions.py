"""Reductions over any number of terms: messages, running totals, sums of every dtype."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jitbatch import Static, jitbatch
from zoo.children import pool_params
from zoo.draw import normal
from zoo.workloads import HIDDEN, Params, workload


@jitbatch
def message(params: Params, sender: Array, receiver: Array) -> Array:
    return jax.nn.sigmoid(sender @ params["w"] + receiver) * sender


@workload(
    pool_params,
    lambda rng, n: [{"x": normal(rng, 3 + i, HIDDEN), "skip": Static(i + 1)} for i in range(n)],
    float_inputs=True,
    size=3,
)
@jitbatch
def message_passing(params: Params, graph: Params) -> Array:
    """Every node reads all earlier nodes but some: most are read many times."""
    states: list[Array] = []
    for i, x in enumerate(graph["x"]):
        senders = [h for j, h in enumerate(states) if (i - j) % (graph["skip"].value + 1)]
        states.append(jnp.tanh(x + sum(message(params, h, x) for h in senders)))
    return jnp.stack(states).mean(0) + params["b"]


@workload(pool_params, lambda rng, n: [normal(rng, 1 + 2 * i, HIDDEN) for i in range(n)], float_inputs=True, size=3)
@jitbatch
def running_totals(params: Params, xs: Array) -> dict[str, Array]:
    """Totals that are read on the way, sums of these, and the same values added twice."""
    total, seen = jnp.zeros(HIDDEN), []
    for x in xs:
        total = total + x @ params["w"]
        seen.append(jnp.tanh(total))
    nested = sum(sum(jnp.sin(x * y) for y in seen) for x in xs)
    return {
        "total": total,
        "seen": sum(seen) + sum(seen[::-1]),
        "nested": nested,
        "shared": sum([params["b"]] * len(xs)),
    }


@workload(
    pool_params,
    lambda rng, n: [normal(rng, 1 + 2 * i, HIDDEN) for i in range(n)],
    float_inputs=True,
    low_precision=True,
    size=3,
)
@jitbatch
def sums_of_every_dtype(params: Params, xs: Array) -> dict[str, Any]:
    """Integers, bools, short floats and scalars, by themselves and mixed."""
    short = [(x @ params["w"]).astype(jnp.bfloat16) for x in xs]
    return {
        "int": sum((3 * x).astype(jnp.int32) for x in xs),
        "int8": jnp.stack([(30 * x).astype(jnp.int8) for x in xs]).sum(0),
        "bool": jnp.stack([x > 0 for x in xs]).sum(0),
        "or": functools.reduce(operator.add, [x > 1 for x in xs]),
        "largest": jnp.stack([(3 * x).astype(jnp.int32) for x in xs]).max(0),
        "bfloat16": sum(short),
        "mean": jnp.stack(short).mean(0),
        "mixed": sum([*short, xs[0]]),
        "scalars": sum(x @ params["b"] for x in xs),
        "numbers": sum([0.5] * len(xs)) * params["b"],
    }
