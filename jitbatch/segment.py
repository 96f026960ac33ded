"""Attention, softmax and means over lists of any length.

A softmax over the words of a sentence, the children of a node or the neighbours of an atom has a varying number of
terms. Written with `jnp.stack` and `jax.nn.softmax`, every length is a cell type of its own. The functions of this
module take lists (tuples, or arrays with a leading axis) of any length, and return the result of the corresponding
function of the stacked list. While a sample is recorded, they become reductions of any number of terms (see
`ir/cell.ReductionCell`) and cells of one term. So lists of all lengths batch together, without padding.

They are ordinary JAX functions: they run in the plain function, and under `jax.jit`, `jax.grad` and `jax.vmap`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.ir.cell import accumulator
from jitbatch.record.elements import record_each
from jitbatch.record.recorder import Recorder
from jitbatch.util.caches import memoised
from jitbatch.util.compat import current_trace
from jitbatch.util.errors import SegmentError
from jitbatch.util.sites import users_line

__all__ = ["attend", "attend_scores", "logsumexp", "max", "mean", "softmax", "sum", "weighted_sum"]


def softmax(xs: Iterable[Any]) -> list[Any]:
    """Softmax over a list: `list(jax.nn.softmax(jnp.stack(xs), axis=0))`.

    >>> from jitbatch import segment
    >>> [round(float(weight), 2) for weight in segment.softmax([0.0, 0.0, 1.0])]
    [0.21, 0.21, 0.58]

    Args:
        xs: a non-empty list of arrays of one shape.

    Returns:
        A list of weights, one for each element of `xs`.
    """
    terms = _alike(xs, "softmax")
    largest = _largest(terms)
    exponentials = _each(lambda x: jnp.exp(x - largest), terms)
    total = _total(exponentials)
    return _each(lambda exponential: exponential / total, exponentials)


def logsumexp(xs: Iterable[Any]) -> Any:
    """Log-sum-exp over a list: `jax.nn.logsumexp(jnp.stack(xs), axis=0)`.

    Args:
        xs: a non-empty list of arrays of one shape.
    """
    terms = _alike(xs, "logsumexp")
    largest = _largest(terms)
    exponentials = _each(lambda x: jnp.exp(x - _finite(largest)), terms)
    return jnp.log(_total(exponentials)) + _finite(largest)


def attend(query: Any, keys: Iterable[Any], values: Iterable[Any], *, scale: Any = None) -> Any:
    """Dot-product attention of one query over any number of keys.

    The result is the sum of the values, weighted by the softmax of the scaled dot products of the query and the keys.

    >>> import jax.numpy as jnp
    >>> from jitbatch import segment
    >>> keys = [jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])]
    >>> segment.attend(jnp.array([99.0, 0.0]), keys, values=keys).round(2)
    Array([1., 0.], dtype=float32)

    Args:
        query: an array [..., d]. Leading axes are heads; the heads are independent.
        keys: a non-empty list of arrays of the query's shape.
        values: a list of pytrees of arrays, one for each key. The leading axes of each array are the heads.
        scale: the factor of the dot products, by default 1 / sqrt(d).
    """
    keys = _alike(keys, "attend")
    factor = 1 / math.sqrt(jnp.shape(query)[-1]) if scale is None else scale
    return attend_scores(_each(lambda key: jnp.sum(query * key, axis=-1) * factor, keys), values)


def attend_scores(scores: Iterable[Any], values: Iterable[Any]) -> Any:
    """Sum of values, weighted by the softmax of their scores: `weighted_sum(softmax(scores), values)`.

    Args:
        scores: a non-empty list of arrays of one shape.
        values: a list of pytrees of arrays, one for each score. The axes of a score are the leading axes of each array.
    """
    terms = _alike(scores, "attend")
    columns, tree = _columns(values, terms, "attend")
    largest = _largest(terms)
    dtype = _exponential_dtype(terms[0].dtype)

    def weigh(score: Any, *leaves: Any) -> list[Any]:
        exponential = jnp.exp(score - largest).astype(accumulator(dtype))
        return [*(_leading(exponential, leaf) * leaf for leaf in leaves), exponential]

    *sums, total = map(_total, zip(*_each(weigh, terms, *columns), strict=True))
    means = [weighted / _leading(total, weighted) for weighted in sums]
    dtypes = [jnp.promote_types(dtype, column[0].dtype) for column in columns]
    return tree.unflatten([mean.astype(wanted) for mean, wanted in zip(means, dtypes, strict=True)])


def weighted_sum(weights: Iterable[Any], xs: Iterable[Any]) -> Any:
    """Weighted sum of a list: the sum of `weight * x` over both lists.

    Args:
        weights: a non-empty list of arrays of one shape.
        xs: a list of pytrees of arrays, one for each weight. The axes of a weight are the leading axes of each array.
    """
    factors = _alike(weights, "weighted_sum")
    columns, tree = _columns(xs, factors, "weighted_sum")

    def weigh(weight: Any, *leaves: Any) -> list[Any]:
        return [_leading(weight, leaf) * leaf for leaf in leaves]

    return tree.unflatten(map(_total, zip(*_each(weigh, factors, *columns), strict=True)))


def sum(xs: Iterable[Any]) -> Any:
    """Sum of a list of pytrees. For each leaf, this is `jnp.stack(xs).sum(axis=0)`."""
    return _leafwise(xs, "sum", lambda stack: stack.sum(axis=0))


def mean(xs: Iterable[Any]) -> Any:
    """Mean of a list of pytrees. For each leaf, `jnp.stack(xs).mean(axis=0)`, which adds short floats in float32."""
    return _leafwise(xs, "mean", lambda stack: stack.mean(axis=0))


def max(xs: Iterable[Any]) -> Any:
    """Maximum of a list of pytrees. For each leaf, this is `jnp.stack(xs).max(axis=0)`; ties share the gradient."""
    return _leafwise(xs, "max", lambda stack: stack.max(axis=0))


def _leafwise(xs: Iterable[Any], name: str, reduce: Callable[[Any], Any]) -> Any:
    columns, tree = _columns(xs, None, name)
    return tree.unflatten([reduce(jnp.stack(column)) for column in columns])


def _largest(terms: Sequence[Any]) -> Any:
    """The maximum of the terms, without a gradient. Subtracting it keeps exponentials small and changes no result."""
    return lax.stop_gradient(jnp.stack(terms).max(axis=0))


def _finite(largest: Any) -> Any:
    """The maximum, or zero where it is infinite: infinity minus infinity would be NaN."""
    return jnp.where(jnp.isfinite(largest), largest, 0)


def _total(terms: Sequence[Any]) -> Any:
    return jnp.stack(terms).sum(axis=0)


def _each(fun: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
    """Maps a function over lists of equal length. While a sample is recorded, each call is a cell."""
    trace, elements = current_trace(), list(zip(*lists, strict=True))
    return record_each(trace, fun, elements) if type(trace) is Recorder else [fun(*element) for element in elements]


def _leading(weight: Any, leaf: Any) -> Any:
    """Appends axes of length one to a weight, so that it broadcasts over the trailing axes of `leaf`."""
    if weight.shape != leaf.shape[: weight.ndim]:
        raise SegmentError(
            f"a weight of shape {list(weight.shape)} and a value of shape {list(leaf.shape)} do not fit together at "
            f"{users_line()}: the axes of a weight (heads) are the leading axes of its value. Reshape one of them"
        )
    return weight.reshape(*weight.shape, *[1] * (leaf.ndim - weight.ndim)) if weight.ndim else weight


def _columns(xs: Iterable[Any], others: Sequence[Any] | None, name: str) -> tuple[list[list[Any]], Any]:
    """Flattens a list of pytrees of one structure.

    Args:
        xs: the pytrees.
        others: a list that must have the length of `xs`, or None.
        name: the public function, for error messages.

    Returns:
        For each leaf of the structure, the list of that leaf's arrays; and the structure.
    """
    items = list(xs)
    _check_any(items, name)
    if others is not None and len(items) != len(others):
        raise SegmentError(
            f"segment.{name} was given lists of {len(others)} and {len(items)} elements at {users_line()}: give it "
            "lists of one length"
        )
    flat = [jax.tree.flatten(item) for item in items]
    tree = flat[0][1]
    if any(other != tree for _, other in flat):
        differing = next(other for _, other in flat if other != tree)
        raise SegmentError(
            f"segment.{name} was given elements of different structures at {users_line()}, {tree} and {differing}: "
            "give all of them one structure"
        )
    return [_alike(column, name) for column in zip(*(leaves for leaves, _ in flat), strict=True)], tree


def _alike(xs: Iterable[Any], name: str) -> list[Any]:
    """Returns the arrays of a list, converted to the dtype of their stack."""
    terms = [x if hasattr(x, "dtype") else jnp.asarray(x) for x in xs]
    _check_any(terms, name)
    avals = list(dict.fromkeys(map(jax.typeof, terms)))
    if len(avals) == 1:
        return terms
    shapes = list(dict.fromkeys(aval.shape for aval in avals))
    if len(shapes) > 1:
        raise SegmentError(
            f"segment.{name} was given arrays of shapes {list(shapes[0])} and {list(shapes[1])} at {users_line()}: the "
            "elements of a list have one shape. Pad them, or pass arrays of several shapes as the leaves of a pytree"
        )
    dtype = jnp.result_type(*terms)
    return [lax.convert_element_type(x, dtype) for x in terms]


def _check_any(items: Sequence[Any], name: str) -> None:
    if not items:
        raise SegmentError(
            f"segment.{name} was given an empty list at {users_line()}. Say what stands for no elements, for example a "
            f"learned vector: `segment.{name}(...) if items else params['none']`"
        )


@memoised(64)
def _exponential_dtype(dtype: Any) -> Any:
    return jax.eval_shape(jnp.exp, jax.ShapeDtypeStruct((), dtype)).dtype
