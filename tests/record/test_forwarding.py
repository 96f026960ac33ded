"""Transformations of Flax in a sample and in a cell: they hand a module's variables through, and change no state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from sampled import every
from zoo import assert_same

from jitbatch import jitbatch
from jitbatch.record.forwarding import handed_through
from jitbatch.util.errors import MutationError

nnx = pytest.importorskip("flax.nnx")

SIZE = 4
FORMS = ("sample", "cell", "method")
EXECUTORS = ("dispatch", "fused", "per_sample")


class Net(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(SIZE, SIZE, rngs=rngs)
        self.rnn = nnx.RNN(nnx.LSTMCell(SIZE, SIZE, rngs=rngs))
        gru = [nnx.RNN(nnx.GRUCell(SIZE, SIZE, rngs=rngs)) for _ in range(2)]
        self.both = nnx.Bidirectional(*gru)
        make = nnx.vmap(lambda rngs: nnx.Linear(SIZE, SIZE, rngs=rngs), in_axes=0, out_axes=0)
        self.layers = nnx.split_rngs(splits=3)(make)(rngs)


def tanh(module: Any, x: Any) -> Array:
    return jnp.tanh(module(x))


def negative(module: Any, x: Any) -> Array:
    return -module(x)


def through_layers(net: Any, x: Any) -> Array:
    scan = nnx.scan(lambda x, layer: tanh(layer, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    return scan(x, net.layers)


USES: dict[str, Callable[[Any, Any], Array]] = {
    "jit": lambda net, x: nnx.jit(tanh)(net.linear, x),
    "remat": lambda net, x: nnx.remat(tanh)(net.linear, x),
    "cond": lambda net, x: nnx.cond(x.sum() > 0, tanh, negative, net.linear, x),
    "switch": lambda net, x: nnx.switch(jnp.int32(x.sum() > 0), [tanh, negative], net.linear, x),
    "vmap": lambda net, x: nnx.vmap(tanh, in_axes=(None, 0))(net.linear, x),
    "vmap over layers": lambda net, x: nnx.vmap(tanh, in_axes=(0, None))(net.layers, x).sum(0),
    "scan over layers": through_layers,
    "fori_loop": lambda net, x: nnx.fori_loop(0, 2, lambda i, s: (s[0], tanh(*s)), (net.linear, x))[1],
    "RNN": lambda net, x: net.rnn(x[None], rngs=nnx.Rngs(0))[0],
    "Bidirectional": lambda net, x: net.both(x[None], rngs=nnx.Rngs(0))[0],
}


class Methods(nnx.Module):
    def __init__(self, use: Callable[[Any, Any], Array]):
        self.net = Net()
        self.use = use

    @jitbatch
    def inner(self, x: Any) -> Array:
        return self.use(self.net, x)

    def __call__(self, x: Any) -> Array:
        return self.inner(x).sum(0) + 1


def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(length, SIZE)).astype(np.float32) for length in (2, 3, 2, 1, 3)]


def forms(use: Callable[[Any, Any], Array]) -> dict[str, tuple[Any, Callable[[Any, Any], Array]]]:
    cell = jitbatch(use)
    return {
        "sample": (Net(), lambda net, x: use(net, x).sum(0)),
        "cell": (Net(), lambda net, x: jnp.tanh(cell(net, x)).sum(0)),
        "method": (Methods(use), lambda methods, x: methods(x)),
    }


@pytest.mark.parametrize(("name", "form", "executor"), every(5, itertools.product(USES, FORMS, EXECUTORS), first=1))
def test_transformations(name: str, form: str, executor: str) -> None:
    module, fun = forms(USES[name])[form]
    xs = samples()
    decorate: Any = jitbatch(executor=executor)
    batched = decorate(fun)
    want = jnp.stack([fun(module, x) for x in xs])
    assert_same(batched.batch(module, xs), want, rtol=1e-4, atol=1e-5)
    plan = batched.plan(module, xs)
    gradient = nnx.jit(nnx.grad(lambda module, plan: jnp.sum(jnp.sin(batched.batch(module, plan)))))(module, plan)
    reference = nnx.grad(lambda module: sum(jnp.sum(jnp.sin(fun(module, x))) for x in xs))(module)
    assert_same(jax.tree.leaves(gradient), jax.tree.leaves(reference), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("executor", ["dispatch", "fused", "per_sample"])
def test_state_that_a_transformation_changes_is_refused(executor: str) -> None:
    class Counting(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(jnp.zeros(()))

    def step(module: Any, x: Any) -> Any:
        module.count[...] += 1
        return x * 2

    decorate: Any = jitbatch(executor=executor)
    with pytest.raises(MutationError, match="type Counting was changed in place while sample 0"):
        decorate(lambda module, x: nnx.jit(step)(module, x)).batch(Counting(), [1.0, 2.0])
    with pytest.raises(MutationError, match=r"call them with `rngs=nnx.Rngs\(0\)`"):
        decorate(lambda net, x: net.rnn(x[None])).batch(Net(), samples())


def test_what_operations_hand_through() -> None:
    def of(fun: Callable[..., Any], *args: Any) -> dict[int, int]:
        equation = jax.make_jaxpr(fun)(*args).eqns[-1]
        return handed_through(equation.primitive, equation.params)

    assert of(jax.jit(lambda x, y: (y, x + 1, x)), 1.0, 2.0) == {0: 1, 2: 0}
    assert of(jax.jit(lambda x: jax.jit(lambda x: (x, x))(x)), 1.0) == {0: 0, 1: 0}
    assert of(jax.checkpoint(lambda x, y: (y, x + 1)), 1.0, 2.0) == {0: 1}

    # JAX itself looks for outputs of loops and branches that are inputs, but not through jits inside of them.
    same = jax.jit(lambda x: (x, x + 1))
    assert of(lambda x: lax.cond(x > 0, same, lambda x: (same(x)[0], -x), x), 1.0) == {0: 1}
    assert of(lambda x: lax.cond(x > 0, same, lambda x: same(x)[::-1], x), 1.0) == {}
    assert of(lambda x, y: lax.scan(lambda c, _: ((same(c[0])[0], c[1] * y), y), (x, x), None, 3), 1.0, 2.0) == {0: 1}
    loop = lambda x, y: lax.while_loop(lambda c: c[1] < y, lambda c: (same(c[0])[0], c[1] + y), (x, x))  # noqa: E731
    assert of(loop, 1.0, 2.0) == {0: 2}
    assert of(lambda x: jax.lax.sort((x, x)), jnp.ones(3)) == {}
