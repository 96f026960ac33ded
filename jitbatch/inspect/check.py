"""Comparison of a batch with the plain loop, on the user's own data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.util import compat
from jitbatch.util.errors import CheckError

TOLERANCES = {2: 5e-2, 4: 1e-4, 8: 1e-9}
"""The allowed relative difference, by the size of a float in bytes. A result is only as exact as the shortest float in
its computation."""


@dataclass(frozen=True)
class Difference:
    """The worst difference among values or gradients.

    Attributes:
        relative: the absolute difference divided by the largest absolute value in the array of the plain loop. For
            integers, booleans and keys, 1 if any element differs.
        absolute: the absolute difference.
        where: the sample and the place in its result, or the parameter.
        allowed: the tolerance for this array.
    """

    relative: float = 0.0
    absolute: float = 0.0
    where: str = "nowhere"
    allowed: float = 0.0

    @property
    def is_allowed(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.relative <= self.allowed

    def __str__(self) -> str:
        if not self.relative:
            return "equal"
        return f"differ by at most {self.relative:.1e} ({self.absolute:.1e} absolute) at {self.where}"


@dataclass(frozen=True)
class Check:
    """The result of `f.check(...)`: the worst differences from the plain loop. All are within tolerance.

    Attributes:
        function: the name of the function.
        samples: the number of samples.
        values: the worst difference among the outputs.
        gradients: the worst difference among the gradients with respect to the shared arguments.
        computed_in: the shortest float in the computation if it decided the tolerance, else "".
    """

    function: str
    samples: int
    values: Difference
    gradients: Difference
    computed_in: str = ""

    def __str__(self) -> str:
        return (
            f"{self.function} on {self.samples} samples agrees with the plain loop: values {self.values}; "
            f"gradients {self.gradients}{_told(self.computed_in)}"
        )


def _told(computed_in: str) -> str:
    if not computed_in:
        return ""
    return f" (computed in {computed_in}, so that {TOLERANCES[_real_bytes(computed_in)]:.0e} is allowed)"


def check(
    function: str, batched: Callable[[Sequence[Any]], list[Any]], loop: Callable[[Sequence[Any] | None], list[Any]],
    shared_leaves: Sequence[Any], names: Sequence[str], tolerance: float | None, shortest: Any = None,
) -> Check:  # fmt: skip
    """Compares the values and gradients of two functions from the leaves of the shared arguments to a list of results.

    Args:
        function: the name of the checked function.
        batched, loop: the functions to compare. `loop(None)` uses the shared arguments as the user passed them.
        shared_leaves, names: the leaves of the shared arguments, and their names.
        tolerance: the allowed relative difference; None derives it from the dtype of each array and from `shortest`.
        shortest: the dtype of the shortest float in the computation, or None.

    Raises:
        CheckError: a difference is larger than allowed.
    """
    floats = [leaf_id for leaf_id, leaf in enumerate(shared_leaves) if compat.is_float(jnp.asarray(leaf))]

    def with_gradients(run: Callable[[Sequence[Any]], list[Any]]) -> tuple[list[Any], list[Any]]:
        def total(values: list[Any]) -> tuple[Any, list[Any]]:
            leaves = list(shared_leaves)
            for leaf_id, value in zip(floats, values, strict=True):
                leaves[leaf_id] = value
            results = run(leaves)
            return _projection(results), results

        gradients, results = jax.grad(total, has_aux=True)([jnp.asarray(shared_leaves[leaf_id]) for leaf_id in floats])
        return results, gradients

    got, got_gradients = with_gradients(batched)
    wanted = loop(None)  # the original arguments: arrays in place of Python numbers may change the result
    _, wanted_gradients = with_gradients(loop)
    compare = partial(_difference, tolerance=tolerance, shortest=shortest)
    values = _worst_value(got, wanted, compare)
    places = [names[leaf_id] for leaf_id in floats]
    gradients = _worst(zip(places, got_gradients, wanted_gradients, strict=True), compare)
    computed_in = _decisive(shortest, [*jax.tree.leaves(wanted), *wanted_gradients]) if tolerance is None else ""
    result = Check(function, len(wanted), values, gradients, computed_in)
    for what, worst in (("values", values), ("gradients", gradients)):
        if not worst.is_allowed:
            raise CheckError(
                f"{function} differs from the plain loop: its {what} {worst}, {worst.allowed:.1e} is allowed"
                f"{_told(computed_in)}. If they agree in float64, rounding is the reason: give a tolerance. If not, it "
                "is a bug of jitbatch"
            )
    return result


def shortest_float(jaxprs: Iterable[Any]) -> Any:
    """Returns the dtype of the shortest float in these jaxprs, or None if they have no floats."""
    pending = list(jaxprs)
    found: set[Any] = set()
    while pending:
        for equation in pending.pop().eqns:
            avals = [var.aval for var in (*equation.invars, *equation.outvars)]
            found.update(aval.dtype for aval in avals if compat.is_float(aval))
            pending += compat.jaxprs_in_params(equation.params)
    return min(found, key=_real_bytes, default=None)


def _decisive(shortest: Any, leaves: Sequence[Any]) -> str:
    """Returns the name of the dtype `shortest` if it is shorter than the dtype of some of these leaves, else ""."""
    floats = [array.dtype for array in map(jnp.asarray, leaves) if compat.is_float(array)]
    is_shorter = shortest is not None and any(_real_bytes(shortest) < _real_bytes(dtype) for dtype in floats)
    return str(shortest) if is_shorter else ""


def _projection(results: list[Any]) -> Any:
    """Returns a weighted sum of all floats in the results, each with a different weight."""
    total: Any = jnp.float32(0)
    for leaf_id, leaf in enumerate(jax.tree.leaves(results)):
        leaf = jnp.asarray(leaf)
        if compat.is_float(leaf):
            weights = np.cos(1 + leaf_id + np.arange(leaf.size)).reshape(leaf.shape)
            total = total + jnp.sum(leaf.astype(jnp.result_type(leaf, jnp.float32)) * weights.astype(np.float32))
    return total


def _worst_value(got: list[Any], wanted: list[Any], compare: Callable[..., Difference]) -> Difference:
    pairs = []
    for sample, (got_result, wanted_result) in enumerate(zip(got, wanted, strict=True)):
        if jax.tree.structure(got_result) != jax.tree.structure(wanted_result):
            return Difference(1.0, 1.0, f"sample {sample}, whose results have different trees")
        paths, leaves = jax.tree_util.tree_flatten_with_path(wanted_result)[0], jax.tree.leaves(got_result)
        for (path, theirs), mine in zip(paths, leaves, strict=True):
            pairs.append((f"sample {sample}, result{jax.tree_util.keystr(path)}", mine, theirs))
    return _worst(pairs, compare)


def _worst(pairs: Any, compare: Callable[..., Difference]) -> Difference:
    """Returns the difference with the largest ratio to its allowed difference."""
    found = [compare(*pair) for pair in pairs]
    return max(found, key=lambda difference: difference.relative / (difference.allowed or 1e-30), default=Difference())


def _difference(where: str, mine: Any, theirs: Any, *, tolerance: float | None, shortest: Any) -> Difference:
    mine, theirs = jnp.asarray(mine), jnp.asarray(theirs)
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return Difference(
            1.0, 1.0, f"{where}, {mine.dtype}{list(mine.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        )
    if compat.is_prng_key(mine.dtype):
        mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
    if not jnp.issubdtype(mine.dtype, jnp.inexact):
        differs = float(np.any(np.asarray(mine) != np.asarray(theirs)))
        return Difference(differs, differs, where)
    computed = mine.dtype if shortest is None else min(mine.dtype, shortest, key=_real_bytes)
    allowed = TOLERANCES[_real_bytes(computed)] if tolerance is None else tolerance
    wide = np.complex128 if jnp.issubdtype(mine.dtype, jnp.complexfloating) else np.float64
    a, b = (np.asarray(x).astype(wide) for x in (mine, theirs))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Difference(0.0, 0.0, where, allowed)
    gap = np.where(same, 0, np.abs(a - b))
    absolute = float("inf") if np.isnan(gap).any() else float(gap.max())
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return Difference(absolute / max(scale, float(np.finfo(np.float32).tiny)), absolute, _at(where, gap), allowed)


def _at(where: str, gap: np.ndarray) -> str:
    if gap.ndim == 0:
        return where
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(gap), np.inf, gap))), gap.shape)
    return f"{where}[{', '.join(str(int(i)) for i in worst)}]"


def _real_bytes(dtype: Any) -> int:
    size = jnp.dtype(dtype).itemsize
    return max(size // 2 if jnp.issubdtype(dtype, jnp.complexfloating) else size, 2)
