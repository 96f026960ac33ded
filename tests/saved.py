"""What `test_saved` pickles: functions with shared arguments and samples of every kind. Run in a process of its own, it
runs the plans that another has pickled, and writes what it got."""

from __future__ import annotations

import functools
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from zoo import HIDDEN, INPUT, Params, assert_bits, named, normal, rnn_params

from jitbatch import Plan, Static, jitbatch


@dataclass(frozen=True)
class Case:
    """A decorated function with its arguments: shared ones, mapped ones, and shared ones after these."""

    fun: Any
    shared: tuple[Any, ...]
    mapped: tuple[Any, ...]
    further: tuple[Any, ...] = ()

    def plan(self, **kwargs: Any) -> Plan:
        return self.fun.plan(*self.shared, *self.mapped, *self.further, **kwargs)

    def attached(self, plan: Plan) -> Plan:
        """What runs in place of a restored plan."""
        seen: list[Plan] = []
        with mock.patch("jitbatch.methods.batched.execute", lambda plan, _: seen.append(plan)):
            self.fun.batch(*self.shared, plan, *self.further)
        return seen[0]

    def run(self, plan: Plan) -> Any:
        """The result as plain data."""
        result = self.fun.batch(*self.shared, plan, *self.further)
        return jax.tree.map(data_of, result.to_list() if hasattr(result, "to_list") else result)


def data_of(leaf: Any) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


# --- Functions


@jitbatch
def step(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])


def chain(params: Params, xs: Any) -> Array:
    return functools.reduce(lambda h, x: step(params, x, h), xs, params["h0"])


@jitbatch(out="ragged")
def ragged(params: Params, tree: Any) -> Any:
    return [ragged(params, t) for t in tree] if isinstance(tree, list) else {"score": jnp.tanh(params["b"] * tree)}


@jitbatch(out="list")
def lists(params: Params, xs: Array) -> Any:
    return {"last": chain(params, xs), "all": xs}


@jitbatch
def keyed(params: Params, sample: Params) -> Any:
    h, key = params["h0"], sample["key"]
    for x in sample["xs"]:
        key, own = jax.random.split(key)
        h = step(params, x, h) + jax.random.bits(own, dtype=jnp.uint8)
    return h, key


class Weights(NamedTuple):
    x: Array
    h: Array


@jitbatch
def of_named_tuple(weights: Weights, xs: Array) -> Array:
    return functools.reduce(lambda h, x: jnp.sin(h @ weights.h + x @ weights.x), xs, jnp.ones(HIDDEN))


@jax.tree_util.register_dataclass
@dataclass
class Model:
    params: Params
    scale: Array

    @jitbatch
    def cell(self, x: Array, h: Array) -> Array:
        return self.scale * jnp.tanh(x @ self.params["x"] + h @ self.params["h"])

    @jitbatch
    def run(self, xs: Array) -> Array:
        return functools.reduce(lambda h, x: self.cell(x, h), xs, self.params["h0"])


@jitbatch
def several(params: Params, xs: Array, tree: Any, scale: Any) -> Any:
    return chain(params, xs) * scale, sum(jax.tree.leaves(tree))


@jitbatch(in_axes=({"x": None, "h": None}, 1, None))
def with_axes(params: Params, row: Array, rest: Params) -> Array:
    return step({**params, **rest}, row, rest["h0"])


@jitbatch
def constants(params: Params, xs: Array) -> Array:
    """Its constants are passed to cells, and so are rows."""
    h = params["h0"]
    for place, x in enumerate(xs):
        h = step(params, x, step(params, np.float32([place, 1.0, -place]), h))
    return h


CLOSED_OVER = np.linspace(0.0, 1.0, 128 * HIDDEN, dtype=np.float32).reshape(128, HIDDEN)


@jitbatch
def closes_over(params: Params, words: Any) -> Array:
    return functools.reduce(
        lambda h, word: jnp.tanh(h @ params["h"] + jnp.asarray(CLOSED_OVER)[word]), words, params["h0"]
    )


# --- Cases


def of_zoo(name: str, **options: Any) -> Case:
    entry = named(name)
    params, samples = entry.draw(4)
    return Case(jitbatch(entry.fun, **options), (params,), (samples,))


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    params = rnn_params(jax.random.key(0))
    rows = [normal(rng, length, INPUT) for length in (3, 1, 4)]
    nnx = named("nnx_methods")
    model, trees = nnx.draw(4)
    fixed = {"x": params["x"], "h": params["h"]}
    rest = {"b": params["b"], "h0": params["h0"]}
    keys = [jax.random.key(7), jax.random.key(8, impl="threefry2x32"), jax.random.key(9)]
    rbg = [jax.random.key(place, impl="rbg") for place in range(3)]
    return {
        "fused": of_zoo("binary_tree"),
        "static loops": of_zoo("binary_tree", loops="static"),
        "dispatch": of_zoo("binary_tree", executor="dispatch"),
        "single operations": of_zoo("dag", granularity="op"),
        "whole samples": of_zoo("dag", granularity="graph"),
        "without dedupe": of_zoo("single_leaf", dedupe=False),
        "sums": of_zoo("child_sum_edges"),
        "static": of_zoo("static_operators"),
        "named tuples": of_zoo("named_tuple_samples"),
        "dataclasses": of_zoo("dataclass_samples"),
        "numbers": of_zoo("python_numbers"),
        "short floats": of_zoo("mixed_dtypes"),
        "custom derivatives": of_zoo("custom_vjp_inside"),
        "lookalikes": of_zoo("lookalike_cells"),
        "shared values": of_zoo("shared_values"),
        "equinox": of_zoo("equinox_module"),
        "ragged": Case(ragged, (params,), ([[1.0, [2.0, 3.0]], [], [[4.0]]],)),
        "ragged dispatch": Case(
            jitbatch(ragged.__wrapped__, out="ragged", executor="dispatch"), (params,), ([[1.0, 2.0], []],)
        ),
        "list": Case(lists, (params,), (rows,)),
        "keys": Case(keyed, (params,), ([{"key": key, "xs": xs} for key, xs in zip(keys, rows, strict=True)],)),
        "other keys": Case(keyed, (params,), ([{"key": key, "xs": xs} for key, xs in zip(rbg, rows, strict=True)],)),
        "named tuple of parameters": Case(of_named_tuple, (Weights(params["x"], params["h"]),), (rows,)),
        "method of a dataclass": Case(Model.run, (Model(params, jnp.float32(0.5)),), (rows,)),
        "bound method": Case(Model(params, jnp.float32(0.5)).run, (), (rows,)),
        "method of an nnx module": Case(model.nnx_methods, (), (trees,)),
        "several arguments": Case(
            several, (params,), (rows, [(1.0, 2.0), (3.0,), (4.0, [5.0])], np.float32([1, 2, 3]))
        ),
        "axes": Case(with_axes, (fixed,), (normal(rng, INPUT, 4),), (rest,)),
        "constants": Case(constants, (params,), (rows,)),
        "closed over": Case(closes_over, (params,), ([(1, 2), (3,), (100, 5, 6)],)),
        "static in a dict": Case(
            jitbatch(lambda p, s: s["x"] * p if s["op"].value == "mul" else s["x"] + p),
            (jnp.float32(2),),
            ([{"op": Static("mul"), "x": 3.0}, {"op": Static("add"), "x": 4.0}],),
        ),
    }


def main(directory: Path) -> None:
    saved = pickle.loads((directory / "plans").read_bytes())
    known = cases()
    results = {}
    for name, pickled in saved.items():
        case = known[name]
        try:
            plan = pickle.loads(pickled)
            result = case.run(plan)
            assert_bits(case.run(Plan.load(directory / f"{name}.plan")), result)
            like = case.plan(like=plan)
            results[name] = "ok", result, pickle.dumps(plan), like.summary, case.attached(plan).static is like.static
        except Exception as error:  # told by the test of this case
            results[name] = "failed", repr(error)
    (directory / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
