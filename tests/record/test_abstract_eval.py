"""What is remembered of operations: the avals they make, and calls of functions with derivatives of their own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, stack

from jitbatch import jitbatch
from jitbatch.record.abstract_eval import AbstractEvaluation
from jitbatch.util import compat

X = np.float32([0.3, -0.2])
SAMPLES = [[X], [X, 2 * X], [X, -X, X]]


def counting(monkeypatch: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    asked = getattr(compat, name)

    def noting(*args: Any) -> Any:
        calls.append(args[0])
        return asked(*args)

    monkeypatch.setattr(compat, name, noting)
    return calls


def test_jax_is_asked_once(monkeypatch: Any) -> None:
    calls = counting(monkeypatch, "abstract_eval")
    fun = jitbatch(lambda p, xs: [jax.lax.sin(x) for x in xs], out="list")
    fun.plan(jnp.float32(2), SAMPLES[:1])
    first = len(calls)
    fun.plan(jnp.float32(2), SAMPLES[1:])
    assert 0 < first == len(calls)


def test_other_parameters_and_types_are_other_operations() -> None:
    abstract = AbstractEvaluation()
    x = jnp.ones((2, 3))
    reduce_sum = jax.make_jaxpr(lambda x: x.sum(0))(x).eqns[-1]
    for axes, shape in (((0,), (3,)), ((1,), (2,)), ((0, 1), ()), ((0,), (3,))):
        (aval,), _ = abstract.evaluate(reduce_sum.primitive, [x], {**reduce_sum.params, "axes": axes})
        assert aval.shape == shape
    (aval,), _ = abstract.evaluate(reduce_sum.primitive, [x.astype(jnp.int32)], reduce_sum.params)
    assert aval.dtype == jnp.int32


def scaled(factor: float) -> Any:
    """A function whose derivative is not its own, by the factor that it closes over."""

    @jax.custom_jvp
    def scale(x: Any) -> Any:
        return {"scaled": factor * x, "x": x}

    @scale.defjvp
    def scale_jvp(primals: Any, tangents: Any) -> Any:
        (x,), (dx,) = primals, tangents
        return scale(x), {"scaled": 10 * factor * dx, "x": dx}

    return scale


def with_custom_vjp(factor: float) -> Any:
    @jax.custom_vjp
    def scale(x: Any) -> Any:
        return factor * x

    scale.defvjp(lambda x: (factor * x, None), lambda _, ct: (7 * factor * ct,))
    return scale


def test_a_custom_call_is_traced_once(monkeypatch: Any) -> None:
    calls = counting(monkeypatch, "trace_custom_call")
    double = scaled(2.0)
    fun = jitbatch(lambda p, xs: sum(jax.nn.relu(p * x).sum() + double(x)["scaled"].sum() for x in xs))
    fun.plan(jnp.float32(2), SAMPLES)
    assert len(calls) == 2


@pytest.mark.parametrize("executor", ["dispatch", "fused"])
def test_functions_that_close_over_other_things_are_others(executor: str) -> None:
    def fun(p: Any, xs: Any) -> Any:
        one, two = scaled(2.0), scaled(3.0)
        rows = [one(p * x)["scaled"] * two(p * x)["x"] + with_custom_vjp(float(len(xs)))(p * x) for x in xs]
        return sum(rows)

    want = gradients(lambda p, samples: stack([fun(p, xs) for xs in samples]), jnp.float32(0.7), SAMPLES)
    assert_same(gradients(jitbatch(fun, executor=executor).batch, jnp.float32(0.7), SAMPLES), want)


def test_what_is_closed_over_may_belong_to_the_sample() -> None:
    def fun(p: Any, xs: Any) -> Any:
        @jax.custom_jvp
        def shifted(x: Any) -> Any:
            return x + p

        shifted.defjvp(lambda primals, tangents: (shifted(*primals), 3 * tangents[0]))
        return sum(shifted(x).sum() for x in xs)

    want = [fun(jnp.float32(0.7), xs) for xs in SAMPLES]
    assert_same(jitbatch(fun).batch(jnp.float32(0.7), SAMPLES), jnp.stack(want))


def test_settings_inside_a_sample_count() -> None:
    @jax.custom_jvp
    def product(x: Any) -> Any:
        return x @ x

    product.defjvp(lambda primals, tangents: (product(*primals), 2 * primals[0] @ tangents[0]))

    def fun(precision: str) -> Any:
        def sample(p: Any, x: Any) -> Any:
            with jax.default_matmul_precision(precision):
                high = product(p * x)
            return high, product(p * x)

        return sample

    batched = jitbatch(fun("float32"))
    text = str(jax.make_jaxpr(lambda p: batched.batch(p, [X, -X]))(jnp.float32(2)))
    assert "HIGHEST" in text
    assert_same(batched.batch(jnp.float32(2), [X])[0], jnp.stack([4 * X @ X]))
