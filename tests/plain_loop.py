"""The reference of the models' tests: a decorated method called sample by sample, without jitbatch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def assert_batches_like_loop(model: nnx.Module, method: str, samples: list[Any], rtol: float = 1e-5) -> None:
    """Values and gradients of `.batch` on samples, and of a plan in a compiled step, are those of the plain loop."""
    graphdef, params = nnx.split(model)

    def loop(params: Any, samples: list[Any]) -> jax.Array:
        bound = getattr(nnx.merge(graphdef, params), method)
        return jnp.stack([bound(sample) for sample in samples])

    def batch(params: Any, samples: Any) -> jax.Array:
        return getattr(nnx.merge(graphdef, params), method).batch(samples)

    # Weights, because the gradient of a plain sum would not notice samples in a wrong order.
    weights = jnp.arange(1.0, len(samples) + 1) / len(samples)

    def value_and_grad(run: Any) -> Any:
        def weighted(params: Any, samples: Any) -> Any:
            values = run(params, samples)
            return weights @ values, values

        return jax.value_and_grad(weighted, has_aux=True)

    # Compiled as a whole, because one by one the operations take longer to compile.
    (_, values), grads = jax.jit(lambda params: value_and_grad(loop)(params, samples))(params)
    on_samples = jax.jit(lambda params: value_and_grad(batch)(params, samples))
    plan = getattr(model, method).plan(samples)
    for got in (on_samples(params), jax.jit(value_and_grad(batch))(params, plan)):
        np.testing.assert_allclose(got[0][1], values, rtol=rtol, atol=rtol)
        expected = jax.tree.leaves_with_path(grads)
        for (path, want), have in zip(expected, jax.tree.leaves(got[1]), strict=True):
            scale = float(jnp.abs(want).max())
            assert scale > 0, f"nothing depends on {jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(have, want, rtol=0, atol=10 * rtol * scale, err_msg=jax.tree_util.keystr(path))


def assert_predicts_like_loop(model: nnx.Module, method: str, *inputs: list[Any]) -> None:
    """Predictions of `.batch` on samples and of a plan in `nnx.jit` are those of the plain loop."""
    bound = getattr(model, method)
    expected = [bound(*one) for one in zip(*inputs, strict=True)]
    planned = nnx.jit(lambda model, plan: getattr(model, method).batch(plan))
    for got in (bound.batch(*inputs), planned(model, bound.plan(*inputs))):
        rows = got.to_list() if hasattr(got, "to_list") else list(got)
        for one, want in zip(rows, expected, strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, want)
