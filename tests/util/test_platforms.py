"""The platform that a computation will run on."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jitbatch.util.platforms import platform_of


def test_a_leaf_that_is_bound_to_a_device_decides() -> None:
    device = jax.devices()[0]
    assert platform_of([np.ones(2), jax.device_put(jnp.ones(2), device)]) == device.platform
    abstract = jax.ShapeDtypeStruct((2,), jnp.float32, sharding=SingleDeviceSharding(device))
    assert platform_of([abstract]) == device.platform


def test_leaves_that_are_bound_to_no_device_are_those_of_the_default_one() -> None:
    assert platform_of([]) == platform_of([np.ones(2), jnp.ones(2)]) == jax.default_backend()
    with jax.default_device("gpu"):
        assert platform_of([np.ones(2)]) == "gpu"
    with jax.default_device("tpu"):
        assert platform_of([np.ones(2)]) == "tpu"
    with jax.default_device(jax.devices("cpu")[0]):
        assert platform_of([np.ones(2)]) == "cpu"


def test_a_traced_leaf_does_not_decide() -> None:
    seen = []
    jax.jit(lambda x: seen.append(platform_of([x])) or x)(jnp.ones(2))
    assert seen == [jax.default_backend()]
