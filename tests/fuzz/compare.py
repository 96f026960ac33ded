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
from jitbatch.util.passes import without

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


def cotangents(out: Any, kind: str, first: Any = 0) -> Any:
    """The cotangents of results, the same for the same results in another form; samples are numbered from `first`."""
    if kind == "ragged":
        leaves, treedef = jax.tree.flatten(out.rows)
        found = [direction(out.sample, out.position * len(leaves) + j, leaf) for j, leaf in enumerate(leaves)]
        return treedef.unflatten([jnp.where(out.mask.reshape(-1, *[1] * (g.ndim - 1)), g, 0) for g in found])
    if kind == "stack":
        leaves, treedef = jax.tree.flatten(out)
        return treedef.unflatten([direction(np.arange(leaf.shape[0]), j, leaf) for j, leaf in enumerate(leaves)])
    return [
        treedef.unflatten([direction(first + i, j, leaf) for j, leaf in enumerate(leaves)])
        for i, (leaves, treedef) in enumerate(map(jax.tree.flatten, out))
    ]


def pull_back(run: Callable[..., Any], kind: str, *arguments: Any, first: Any = 0) -> tuple[Any, Any]:
    """The results of `run(*arguments)`, and what their cotangents are for the float leaves of the arguments."""
    split = [split_floats(argument) for argument in arguments]

    def floats(*leaves: list[Any]) -> tuple[Any, Any]:
        out = run(*(rebuild(own) for own, (_, rebuild) in zip(leaves, split, strict=True)))
        return split_floats(out.rows if kind == "ragged" else out)[0], out

    _, back, out = jax.vjp(floats, *(leaves for leaves, _ in split), has_aux=True)
    return out, back(split_floats(cotangents(out, kind, first))[0])


class PlainLoop:
    """Values and gradients one sample after the other, compiled once for each structure of a sample."""

    def __init__(self, main: Any, params: Any):
        self.params = params

        def of_params(params: Any, sample: Sample, number: Any) -> Any:
            return pull_back(lambda p: [main(p, *sample)], "list", params, first=number)

        def of_both(params: Any, sample: Sample, number: Any) -> Any:
            return pull_back(lambda p, s: [main(p, *s)], "list", params, sample, first=number)

        self._of_params, self._of_both = jax.jit(of_params), jax.jit(of_both)

    def __call__(self, samples: list[Sample], inputs: bool, params: Any = None, compiled: bool = True) -> Any:
        """The results of all samples; and the gradients of the parameters and, for `inputs`, of the samples."""
        params = self.params if params is None else params
        run: Any = self._of_both if inputs else self._of_params
        run = run if compiled else run.__wrapped__
        results, gradients = zip(*(run(params, one, float(i)) for i, one in enumerate(samples)), strict=True)
        weights = [sum(map(np.asarray, each)) for each in zip(*(own[0] for own in gradients), strict=True)]
        return [one for (one,) in results], (
            weights,
            *([g for own in gradients for g in own[1]] for _ in range(inputs)),
        )


class Batched:
    """The same by jitbatch; called again it uses what is compiled."""

    def __init__(self, main: Any, params: Any, how: Configuration):
        self.function = jitbatch(main, **how.options)
        self.params, self.how = params, how
        self.plan: Any = None
        self._run_plan = jax.jit(self._of_plan) if how.jit else self._of_plan

    def _columns(self, samples: list[Sample]) -> list[Any]:
        columns = [list(column) for column in zip(*samples, strict=True)]
        return [columns[0], *(jnp.stack(column) if self.how.stacked else column for column in columns[1:])]

    def _of_plan(self, params: Any, plan: Any) -> Any:
        return pull_back(lambda p: self.function.batch(p, plan), self.how.out, params)

    def __call__(self, samples: list[Sample]) -> Any:
        how = self.how
        if how.by == "plan":
            self.plan = self.function.plan(self.params, *self._columns(samples), like=self._like(samples))
            out, gradients = self._run_plan(self.params, self.plan)
        else:

            def of_params(params: Any) -> Any:
                return pull_back(lambda p: self.function.batch(p, *self._columns(samples)), how.out, params)

            def of_both(params: Any, samples: list[Sample]) -> Any:
                run = lambda p, s: self.function.batch(p, *self._columns(s))  # noqa: E731
                return pull_back(run, how.out, params, samples)

            run, arguments = (of_both, (self.params, samples)) if how.inputs else (of_params, (self.params,))
            out, gradients = (jax.jit(run) if how.jit else run)(*arguments)
        return listed(out, how.out, len(samples)), gradients

    def _like(self, samples: list[Sample]) -> Any:
        """The plan that the next one is like: the last one; at first one of other samples, if at all."""
        if self.plan is not None or not self.how.like:
            return self.plan
        other = self.function.plan(
            self.params, *self._columns(samples[:1] if self.how.like == "first" else samples * 2)
        )
        if self.how.like == "capacity":
            return other.capacity
        return pickle.loads(pickle.dumps(other)) if self.how.like == "pickled" else other


def listed(out: Any, kind: str, count: int) -> list[Any]:
    """The results of the samples, one by one."""
    if isinstance(out, Ragged):
        return out.to_list()
    if kind == "list":
        return out
    on_host = jax.tree.map(np.asarray, out)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], on_host) for i in range(count)]


def differences(got: Any, want: Any, tolerance: float) -> list[str]:
    """What differs, each in a line."""
    if jax.tree.structure(got) != jax.tree.structure(want):
        return [f"structure: {jax.tree.structure(got)}, not {jax.tree.structure(want)}"]
    found = []
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        where = ("value", "gradient")[path[0].idx] + jax.tree_util.keystr(path[1:])
        a, b = np.asarray(a), np.asarray(b)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            found.append(f"{where}: {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
        elif jnp.issubdtype(a.dtype, jnp.floating):
            scale = 1 + np.max(np.abs(b), initial=0, where=np.isfinite(b))
            if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
                found.append(f"{where}: {a.tolist()}, not {b.tolist()}")
        elif not np.array_equal(a, b):
            found.append(f"{where}: {a.tolist()}, not {b.tolist()}")
    return found


def is_stable(plain: PlainLoop, samples: list[Sample], want: Any, inputs: bool, tolerance: float) -> bool:
    """Whether the plain loop, as it is and not compiled, hardly changes with its parameters: not so where a comparison
    or a maximum is decided by the last bits."""
    nearby = jax.tree.map(lambda leaf: leaf * (1 + 1e-13) if leaf.dtype == jnp.float64 else leaf, plain.params)
    return not differences(plain(samples, inputs, nearby, compiled=False), want, tolerance)


def check(plain: PlainLoop, main: Any, samples: list[Sample], how: Configuration, tolerance: float = 1e-9) -> bool:
    """Raise `Mismatch` where a batch differs from the plain loop.

    Returns:
        False if they differ, but nothing can be said because the plain loop is not stable.
    """
    with without(*how.without):
        batched = Batched(main, plain.params, how)
        for each in (samples, samples[::-1])[: 1 + how.turned]:
            got, want = batched(each), plain(each, how.inputs)
            found = differences(got, want, tolerance)
            if found:  # XLA may compute a value twice, with other last bits, and a maximum compare one with the other
                want = plain(each, how.inputs, compiled=False)
                found = differences(got, want, tolerance)
            if found and not is_stable(plain, each, want, how.inputs, tolerance):
                return False
            if found:
                raise Mismatch("\n".join([repr(how), *found]))
    return True
