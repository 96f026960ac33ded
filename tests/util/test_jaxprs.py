"""Outside of `jax.shard_map` nothing varies: values and recorded jaxprs are what they were. `test_shards` is inside."""

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.util import jaxprs


def test_nothing_varies_on_one_device() -> None:
    assert jaxprs.axes_of({"a": jnp.ones(2), "b": 3.0}) == frozenset()
    assert jax.jit(lambda x: x * len(jaxprs.axes_of(x)))(jnp.ones(2)).tolist() == [0, 0]


def test_a_cast_over_no_axes_is_the_same_object() -> None:
    values = {"a": jnp.ones(2)}
    assert jaxprs.cast(values, frozenset()) is values


def test_a_recorded_jaxpr_computes_what_it_did() -> None:
    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.nn.relu(jax.lax.cond(y > 0, jnp.sin, jnp.cos, x)) @ jnp.arange(3.0)

    jaxpr = jax.make_jaxpr(fun)(jnp.ones(3), 1.0)
    for y in (1.0, -1.0):
        (made,) = jaxprs.run(jaxpr, [jnp.arange(3.0), y])
        np.testing.assert_allclose(made, fun(jnp.arange(3.0), jnp.float32(y)), rtol=1e-6)


def test_an_equation_computes_what_it_did() -> None:
    (equation,) = jax.make_jaxpr(lambda x: jnp.sin(x))(1.0).eqns
    (made,) = jaxprs.evaluate(equation, [2.0])
    np.testing.assert_allclose(made, np.sin(2.0), rtol=1e-6)
