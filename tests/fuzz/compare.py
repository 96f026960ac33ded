"""Running a program in a configuration, and comparing with the plain loop."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuzz.configurations import Configuration
from jitbatch import Ragged, jitbatch
from jitbatch._passes import without

Sample = tuple[Any, ...]


class Mismatch(AssertionError):
    """A batch differs from the plain loop."""


def split_floats(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The float leaves of a pytree, and a function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(tree)
    is_float = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def rebuild(floats: Sequence[Any]) -> Any:
        remaining = iter(floats)
        return treedef.unflatten([next(remaining) if one else leaf for leaf, one in zip(leaves, is_float, strict=True)])

    return [leaf for leaf, one in zip(leaves, is_float, strict=True) if one], rebuild


def direction(sample: Any, position: Any, leaf: Any) -> Any:
    """The cotangent of a leaf of a sample's result; for a leaf of rows, `sample` and `position` are arrays."""
    size = math.prod(jnp.shape(leaf)[np.ndim(sample) :])
    numpy = np if isinstance(sample, int | np.ndarray) else jnp
    factor = numpy.cos(1.3 * sample + 0.7 * position)[..., None]
    return (factor * np.cos(np.arange(size))).reshape(jnp.shape(leaf)).astype(jnp.result_type(leaf))


def cotangents(out: Any, kind: str) -> Any:
    """The cotangents of results; those of the same results in another form are the same."""
    if kind == "ragged":
        leaves, treedef = jax.tree.flatten(out.rows)
        factor = [direction(out.sample, out.position * len(leaves) + j, leaf) for j, leaf in enumerate(leaves)]
        masked = [jnp.where(out.mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0) for leaf in factor]
        return treedef.unflatten(masked)
    if kind == "stack":
        leaves, treedef = jax.tree.flatten(out)
        return treedef.unflatten([direction(np.arange(leaf.shape[0]), j, leaf) for j, leaf in enumerate(leaves)])
    each = [jax.tree.flatten(one) for one in out]
    return [
        treedef.unflatten([direction(i, j, leaf) for j, leaf in enumerate(leaves)])
        for i, (leaves, treedef) in enumerate(each)
    ]


def listed(out: Any, kind: str, count: int) -> list[Any]:
    """The results of the samples, one by one."""
    if isinstance(out, Ragged):
        return out.to_list()
    if kind == "list":
        return out
    on_host = jax.tree.map(np.asarray, out)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], on_host) for i in range(count)]


def evaluate(run: Callable[[Any, list[Sample]], Any], params: Any, samples: list[Sample], how: Configuration) -> Any:
    """The results of all samples, and gradients: what all results together propagate back."""
    weights, with_weights = split_floats(params)
    inputs, with_inputs = split_floats(samples)

    def both(*differentiated: list[Any]) -> tuple[Any, Any]:
        def floats(weights: list[Any], inputs: Any = None) -> tuple[Any, Any]:
            out = run(with_weights(weights), samples if inputs is None else with_inputs(inputs))
            return split_floats(out.rows if how.out == "ragged" else out)[0], out

        _, pull, out = jax.vjp(floats, *differentiated, has_aux=True)
        return out, pull(split_floats(cotangents(out, how.out))[0])

    differentiated = (weights, inputs) if how.inputs else (weights,)
    out, gradients = (jax.jit(both) if how.jit else both)(*differentiated)
    return listed(out, how.out, len(samples)), gradients


def plain_loop(main: Any, params: Any, samples: list[Sample], inputs: bool) -> Any:
    how = Configuration(out="list", inputs=inputs)
    return evaluate(lambda p, each: [main(p, *sample) for sample in each], params, samples, how)


def batched(main: Any, params: Any, samples: list[Sample], how: Configuration) -> Any:
    """The same by jitbatch."""
    function = jitbatch(main, **how.options)

    def columns(each: list[Sample]) -> list[list[Any]]:
        return [list(column) for column in zip(*each, strict=True)]

    if how.by == "samples":
        return evaluate(lambda p, each: function.batch(p, *columns(each)), params, samples, how)
    like = None
    if how.like:
        other = function.plan(params, *columns(samples[:1] if how.like == "first" else samples * 2))
        like = other.capacity if how.like == "capacity" else other
        like = pickle.loads(pickle.dumps(like)) if how.like == "pickled" else like
    plan = function.plan(params, *columns(samples), like=like)
    return evaluate(lambda p, _: function.batch(p, plan), params, samples, how)


def differences(got: Any, want: Any, tolerance: float) -> list[str]:
    """What differs, each in a line."""
    if jax.tree.structure(got) != jax.tree.structure(want):
        return [f"structure: {jax.tree.structure(got)}, not {jax.tree.structure(want)}"]
    found = []
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        where = ("value", "gradient")[path[0].idx] + jax.tree_util.keystr(path[1:])
        a, b = jnp.asarray(a), jnp.asarray(b)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            found.append(f"{where}: {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
        elif jnp.issubdtype(a.dtype, jnp.floating):
            scale = 1 + np.max(np.abs(b), initial=0, where=np.isfinite(b))
            if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
                found.append(f"{where}: {a.tolist()}, not {b.tolist()}")
        elif not np.array_equal(a, b):
            found.append(f"{where}: {a.tolist()}, not {b.tolist()}")
    return found


def is_stable(main: Any, params: Any, samples: list[Sample], want: Any, inputs: bool, tolerance: float) -> bool:
    """Whether the plain loop itself hardly changes with its parameters: not so where a comparison or a maximum is
    decided by the last bits."""
    nearby = jax.tree.map(lambda leaf: leaf * (1 + 1e-13) if leaf.dtype == jnp.float64 else leaf, params)
    return not differences(plain_loop(main, nearby, samples, inputs), want, tolerance)


def check(
    main: Any, params: Any, samples: list[Sample], how: Configuration, tolerance: float = 1e-9, want: Any = None
) -> bool:
    """Raise `Mismatch` where a batch differs from the plain loop.

    Args:
        want: the plain loop's results if they are known.

    Returns:
        False if they differ, but nothing can be said because the plain loop is not stable.
    """
    want = plain_loop(main, params, samples, how.inputs) if want is None else want
    with without(*how.without):
        got = batched(main, params, samples, how)
    found = differences(got, want, tolerance)
    if not found:
        return True
    if not is_stable(main, params, samples, want, how.inputs, tolerance):
        return False
    raise Mismatch("\n".join([repr(how), *found]))
