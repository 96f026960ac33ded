"""What is the same program, and what is not: a table of pairs, run together and one after the other.

Pairs that differ must not be merged, by whatever cache or pass: results are those of the plain function, type and bits.
Pairs that are equal must be one recording, and their calls one type of node.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_bits

from jitbatch import Static, jitbatch

X = np.float32([1.0, 2.0])
W = np.float32([3.0, 0.5])


class Pair(NamedTuple):
    """Two samples, and a function that treats them alike or differently."""

    fun: Callable[[Any, Any], Any]
    one: Any
    other: Any


def scaled(w: Any, x: Any) -> Any:
    return jnp.asarray(x) * 2 + w[0]


def reciprocal(w: Any, x: Any) -> Any:
    return jnp.divide(w, x)


@jitbatch
def times(w: Any, x: Any, y: Any) -> Any:
    return w * x * y


def with_number(w: Any, sample: Any) -> Any:
    """The number is passed to a subgraph as a constant."""
    return times(w, sample[0], sample[1].value)


OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {"add": jnp.add, "mul": jnp.multiply}


def evaluated(w: Any, tree: Any) -> Any:
    """Trees of equal shape with operators that differ."""
    if not isinstance(tree, tuple):
        return w * tree
    operator, left, right = tree
    return OPERATORS[operator.value](evaluated(w, left), evaluated(w, right))


def branch(w: Any, sample: Any) -> Any:
    """Python looks at the type of a static value."""
    return sample[0] * w * {"int": 1.0, "float": 2.0, "bool": 3.0, "str": 4.0}[type(sample[1].value).__name__]


def signed(w: Any, sample: Any) -> Any:
    return sample[0] * np.float32(np.copysign(1.0, sample[1].value)) + w


def closing_over(array: Any) -> Callable[[Any, Any], Any]:
    @jitbatch
    def inner(w: Any, x: Any) -> Any:
        return w * x + array

    return inner


CLOSURES = {1: closing_over(np.float32(1)), 2: closing_over(np.float32(2)), 3: closing_over(np.float32(1))}


def closure(w: Any, sample: Any) -> Any:
    return CLOSURES[sample[1].value](w, sample[0])


def fresh_lambda(w: Any, sample: Any) -> Any:
    """A function of the same code is made anew, and closes over another array, in each sample."""
    plus = np.float32(sample[1].value)
    return jitbatch(lambda w, x: w * x + plus)(w, sample[0])


def rebound(w: Any, sample: Any) -> Any:
    """A name that functions of equal code close over is bound anew in a loop."""
    total = w * 0
    for number in sample[1].value:
        plus = np.float32(number)
        total = total + jitbatch(lambda w, x, plus=plus: w * x + plus)(w, sample[0])
    return total


class Collides:
    """All hashes are equal."""

    def __init__(self, number: int):
        self.number = number

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collides) and self.number == other.number


def collided(w: Any, sample: Any) -> Any:
    return sample[0] * w * sample[1].value.number


def with_static(value: Any) -> Any:
    return X, Static(value)


DIFFER = {
    "1 and 1.0": Pair(scaled, 1, 1.0),
    "1 and True": Pair(scaled, 1, True),
    "1.0 and a float32": Pair(scaled, 1.0, np.float32(1)),
    "an int32 and an int8": Pair(scaled, np.int32(1), np.int8(1)),
    "float32 and float16": Pair(scaled, X, X.astype(np.float16)),
    "weak and strong": Pair(lambda w, x: x * np.float16(2), jnp.float32(1), jnp.asarray(1.0)),
    "shapes": Pair(scaled, X, X[:1]),
    "Static 1 and 1.0": Pair(branch, with_static(1), with_static(1.0)),
    "Static 1 and True": Pair(branch, with_static(1), with_static(True)),
    "Static 0.0 and -0.0": Pair(signed, with_static(0.0), with_static(-0.0)),
    "Static nan and -nan": Pair(signed, with_static(float("nan")), with_static(-float("nan"))),
    "constants that are passed": Pair(with_number, with_static(1), with_static(1.0)),
    "operators in equal trees": Pair(
        evaluated, (Static("add"), (Static("mul"), X, W), W), (Static("mul"), (Static("add"), X, W), W)
    ),
    "closures over different arrays": Pair(closure, with_static(1), with_static(2)),
    "a fresh lambda over another array": Pair(fresh_lambda, with_static(1), with_static(2)),
    "a name that is bound anew": Pair(rebound, with_static((1, 2)), with_static((2, 2))),
    "static values with one hash": Pair(collided, with_static(Collides(1)), with_static(Collides(2))),
}

EQUAL = {
    "numbers": Pair(scaled, 1.0, 2.0),
    "0.0 and -0.0": Pair(reciprocal, 0.0, -0.0),
    "nan and 1.0": Pair(reciprocal, float("nan"), 1.0),
    "arrays of numpy and JAX": Pair(scaled, X, jnp.asarray(W)),
    "an int32 scalar of numpy and JAX": Pair(scaled, np.int32(1), jnp.int32(2)),
    "equal static values": Pair(branch, with_static(1), (W, Static(1))),
    "Static nan": Pair(signed, with_static(float("nan")), (W, Static(float("nan")))),
    "keys": Pair(lambda w, k: jax.random.normal(k, (2,)) * w, jax.random.key(0), jax.random.key(1)),
}

ONE_TYPE = {
    "closures over equal arrays": Pair(closure, with_static(1), with_static(3)),
    "a fresh lambda over an equal array": Pair(fresh_lambda, with_static(1), with_static(1.0)),
    "numbers that are passed": Pair(with_number, with_static(1.0), with_static(2.0)),
}
"""Different recordings with equal subgraphs."""


def check(pair: Pair) -> Any:
    """Run both in a batch, and each alone before and after; compare with the plain function. The function."""
    fun = jitbatch(pair.fun, out="list")
    samples = [pair.one, pair.other]
    want = [jnp.asarray(pair.fun(W, sample)) for sample in samples]
    for given in ([0], [0, 1], [1, 0], [1]):
        assert_bits(fun.batch(W, [samples[i] for i in given]), [want[i] for i in given])
    return fun


@pytest.mark.parametrize("name", DIFFER)
def test_what_differs_is_not_merged(name: str) -> None:
    assert check(DIFFER[name]).cache_info()["structures"].misses == 2


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_equal_is_recorded_once(name: str) -> None:
    fun = check(EQUAL[name])
    assert fun.cache_info()["structures"].misses == 1
    assert fun.plan(W, [EQUAL[name].one, EQUAL[name].other]).summary.types == 1


@pytest.mark.parametrize("name", ONE_TYPE)
def test_equal_subgraphs_are_one_type(name: str) -> None:
    pair = ONE_TYPE[name]
    assert check(pair).plan(W, [pair.one, pair.other]).summary.types == 1


def test_a_number_is_read_with_the_types_of_the_setting() -> None:
    fun = jitbatch(scaled)
    for x64 in (False, True, False):
        with jax.enable_x64(x64):
            assert_bits(fun.batch(W, [1.0])[0], scaled(W, 1.0))
            assert_bits(fun.batch(jnp.asarray(W, float), [1.0])[0], scaled(jnp.asarray(W, float), 1.0))


def test_the_precision_of_products_is_respected() -> None:
    fun = jitbatch(lambda w, x: w @ x)
    w, x = jnp.ones((2, 2)), jnp.ones((2, 2))
    texts = []
    for precision in ("highest", "default", "highest"):
        with jax.default_matmul_precision(precision):
            texts.append(str(jax.make_jaxpr(lambda w: fun.batch(w, [x]))(w)))
    assert texts[0] == texts[2] != texts[1]


def test_ids_of_dead_objects() -> None:
    """Shared values that are no arrays and cannot be hashed are told apart by identity. Their memory is used again."""

    class Scale:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, by: float):
            self.by = by

    @jax.tree_util.register_pytree_node_class
    class Holder:
        def __init__(self, scale: Any):
            self.scale = scale

        def tree_flatten(self) -> Any:
            return (self.scale,), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    fun = jitbatch(lambda holder, x: x * np.float32(holder.scale.by))
    for by in range(3):
        assert_bits(fun.batch(Holder(Scale(by)), [X])[0], jnp.asarray(X * np.float32(by)))
        gc.collect()


def test_ids_of_dead_functions() -> None:
    """Functions of equal code over different arrays, each made where the last one was."""
    for by in range(3):
        fun = jitbatch(closing_over(np.float32(by)).__wrapped__)
        assert_bits(fun.batch(W, [X])[0], jnp.asarray(W * X + np.float32(by)))
        del fun
        gc.collect()
