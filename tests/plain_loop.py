"""The reference of the models' tests: a decorated method called sample by sample, without jitbatch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jitbatch import Ragged

# Both are compiled as a whole, but a minibatch of samples is a program of its own.
through_samples_and_plan = pytest.mark.parametrize("through", [pytest.param("samples", marks=pytest.mark.slow), "plan"])


def assert_batches_like_loop(
    model: nnx.Module, method: str, samples: list[Any], through: str, rtol: float = 1e-5
) -> None:
    """Values and gradients of a minibatch, in one compiled step, are those of the plain loop."""
    graphdef, params = nnx.split(model)
    bound = getattr(model, method)
    # Weights, because the gradient of a plain sum would not notice samples in a wrong order.
    weights = jnp.arange(1.0, len(samples) + 1) / len(samples)

    def value_and_grad(run: Any) -> Any:
        def weighted(params: Any, samples: Any) -> Any:
            values = run(getattr(nnx.merge(graphdef, params), method), samples)
            return weights @ values, values

        return jax.value_and_grad(weighted, has_aux=True)

    over_loop = value_and_grad(lambda bound, samples: jnp.stack([bound(sample) for sample in samples]))
    over_batch = value_and_grad(lambda bound, samples: bound.batch(samples))
    (_, values), grads = jax.jit(lambda params: over_loop(params, samples))(params)
    if through == "plan":
        got = jax.jit(over_batch)(params, bound.plan(samples))
    else:
        got = jax.jit(lambda params: over_batch(params, samples))(params)
    np.testing.assert_allclose(got[0][1], values, rtol=rtol, atol=rtol)
    assert_same_gradients(got[1], grads, 10 * rtol)


def assert_same_gradients(got: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Equal up to a part of the largest entry of each array, and no array has nothing but zeros."""
    for (path, want), have in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(got), strict=True):
        name = jax.tree_util.keystr(path)
        scale = float(jnp.abs(want).max())
        assert scale > 0, f"nothing depends on {name}"
        np.testing.assert_allclose(have, want, rtol=0, atol=tolerance * scale, err_msg=name)


def assert_predicts_like_loop(model: nnx.Module, method: str, *inputs: list[Any]) -> None:
    """Predictions of `.batch` on samples and of a plan in `nnx.jit` are those of the plain loop."""
    bound = getattr(model, method)
    expected = nnx.jit(lambda model: [getattr(model, method)(*one) for one in zip(*inputs, strict=True)])(model)
    planned = nnx.jit(lambda model, plan: getattr(model, method).batch(plan))
    for got in (bound.batch(*inputs), planned(model, bound.plan(*inputs))):
        rows = got.to_list() if isinstance(got, Ragged) else list(got)
        for one, want in zip(rows, expected, strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, want)
