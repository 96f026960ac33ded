"""Running a program in a configuration, and comparing with the plain loop."""

from __future__ import annotations

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


def weight(sample: Any, position: Any, size: int) -> Any:
    """How much the elements of a leaf of a sample's result count."""
    direction = np.cos(np.arange(size))
    return jnp.cos(1.3 * sample + 0.7 * position)[..., None] * direction


def loss_of(out: Any, kind: str) -> Any:
    """A scalar that depends on every float of the results; the same for the same results in another form."""
    if kind == "ragged":
        leaves = jax.tree.leaves(out.rows)
        parts = [(leaf, out.sample, out.position * len(leaves) + j, out.mask) for j, leaf in enumerate(leaves)]
    elif kind == "stack":
        parts = [(leaf, jnp.arange(leaf.shape[0]), j, True) for j, leaf in enumerate(jax.tree.leaves(out))]
    else:
        flat = [(i, j, leaf) for i, one in enumerate(out) for j, leaf in enumerate(jax.tree.leaves(one))]
        parts = [(jnp.asarray(leaf)[None], jnp.array([i]), j, True) for i, j, leaf in flat]
    total = jnp.zeros(())
    for leaf, sample, position, mask in parts:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            rows = leaf.reshape(leaf.shape[0], -1).astype(jnp.float64)
            each = (rows * weight(sample, position, rows.shape[1])).sum(axis=1)
            total += jnp.where(mask, each, 0).sum()
    return total


def listed(out: Any, kind: str, count: int) -> list[Any]:
    """The results of the samples, one by one."""
    if isinstance(out, Ragged):
        return out.to_list()
    return [jax.tree.map(lambda leaf, i=i: leaf[i], out) for i in range(count)] if kind == "stack" else out


def evaluate(run: Callable[[Any, list[Sample]], Any], params: Any, samples: list[Sample], how: Configuration) -> Any:
    """The results of all samples, and the gradients of their loss."""
    weights, with_weights = split_floats(params)
    inputs, with_inputs = split_floats(samples)

    def loss(weights: list[Any], inputs: list[Any]) -> tuple[Any, Any]:
        out = run(with_weights(weights), with_inputs(inputs) if how.inputs else samples)
        return loss_of(out, how.out), out

    both = jax.value_and_grad(loss, argnums=(0, 1) if how.inputs else 0, has_aux=True)
    (_, out), gradients = (jax.jit(both) if how.jit else both)(weights, inputs)
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
