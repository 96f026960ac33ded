"""What training is made of, on batched models: each compared with gradients of a plain loop over samples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from plain_loop import assert_same_gradients

from jitbatch import jitbatch


class Sample(NamedTuple):
    tree: Any
    target: float
    key: jax.Array


class Net(nnx.Module):
    """A recursive network; its last layer may have dropout, with the key of the sample."""

    def __init__(self, rate: float = 0.0, dtype: Any = jnp.float32):
        rngs = nnx.Rngs(0)
        self.rate = rate
        self.embed = nnx.Embed(6, 4, dtype=dtype, rngs=rngs)
        self.pair = nnx.Linear(8, 4, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(4, 1, dtype=dtype, rngs=rngs)

    @jitbatch
    def leaf(self, token):
        return self.embed(jnp.asarray(token))

    @jitbatch
    def compose(self, left, right):
        return jnp.tanh(self.pair(jnp.concatenate([left, right])))

    def encode(self, tree):
        return self.compose(*map(self.encode, tree)) if isinstance(tree, tuple) else self.leaf(tree)

    @jitbatch
    def loss(self, sample):
        h = self.encode(sample.tree)
        if self.rate:
            h = jnp.where(jax.random.bernoulli(sample.key, 1 - self.rate, h.shape), h / (1 - self.rate), 0)
        return (self.out(h)[0].astype(jnp.float32) - sample.target) ** 2


TREES = [((1, 2), 3), (4, ((1, 2), (3, 0))), (5, 5), (0, (1, (2, 3))), ((1, 2), (4, 5)), (2, 4)]
SAMPLES = [Sample(tree, i / 3, jax.random.key(i)) for i, tree in enumerate(TREES)]
MINIBATCHES = [SAMPLES[:3], SAMPLES[3:4], SAMPLES[4:]]  # of different sizes


def loop_gradients(model, samples, weights=None):
    """The weighted sum of the gradients of each sample's loss; by default their mean."""
    weights = [1 / len(samples)] * len(samples) if weights is None else weights
    grads = [jax.grad(lambda m, s: m.loss(s))(model, sample) for sample in samples]
    return jax.tree.map(lambda *each: sum(w * g for w, g in zip(weights, each, strict=True)), *grads)


@jax.jit
def batch_gradients(model, plan, weights):
    return jax.grad(lambda m: weights @ m.loss.batch(plan))(model)


def mean(n):
    return jnp.full(n, 1 / n)


def test_weighted_minibatches_of_different_sizes():
    model, plan = Net(), None
    for samples in MINIBATCHES:
        weights = jnp.arange(1.0, len(samples) + 1)
        plan = model.loss.plan(samples, like=plan)
        assert_same_gradients(batch_gradients(model, plan, weights), loop_gradients(model, samples, weights))


def train(optimizer, gradients_of):
    """Parameters after a step on each minibatch."""
    model = Net()
    state = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    for samples in MINIBATCHES:
        state.update(model, gradients_of(model, samples))
    return nnx.state(model, nnx.Param)


def planned_gradients(model, samples):
    return batch_gradients(model, model.loss.plan(samples), mean(len(samples)))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.MultiSteps(optax.sgd(0.1, momentum=0.9), every_k_schedule=3),
        optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.cosine_decay_schedule(0.1, 3))),
    ],
    ids=["accumulation", "chain"],
)
def test_optimizers(optimizer):
    before = nnx.state(Net(), nnx.Param)
    after, expected = train(optimizer, planned_gradients), train(optimizer, loop_gradients)
    for start, got, want in zip(*map(jax.tree.leaves, (before, after, expected)), strict=True):
        assert not np.allclose(start, want)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_gradients_of_parts_add_up_to_those_of_a_minibatch():
    """Accumulation by hand: one program for all parts, also for a smaller one, filled up at weight zero."""
    model, plan = Net(), None
    parts = [SAMPLES[:2], SAMPLES[2:4], [SAMPLES[4]] * 2]
    weights = np.array([[1, 1], [1, 1], [1, 0]], np.float32) / 5
    for part in parts:
        plan = model.loss.plan(part, like=plan)
    plans = [model.loss.plan(part, like=plan) for part in parts]
    gradients = jax.jit(lambda *args: jax.grad(lambda m, p, w: w @ m.loss.batch(p))(*args))
    total = jax.tree.map(lambda *each: sum(each), *map(gradients, [model] * 3, plans, weights))
    assert_same_gradients(total, loop_gradients(model, SAMPLES[:5]))
    assert gradients._cache_size() == 1


def test_an_update_in_a_compiled_step():
    @nnx.jit
    def step(model, optimizer, plan):
        loss, grads = nnx.value_and_grad(lambda m: m.loss.batch(plan).mean())(model)
        optimizer.update(model, grads)
        return loss

    model = Net()
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model), nnx.state(loop_gradients(model, SAMPLES)))
    loss = np.mean([model.loss(sample) for sample in SAMPLES])
    got = step(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), model.loss.plan(SAMPLES))
    np.testing.assert_allclose(got, loss, rtol=1e-5)
    for have, want in zip(jax.tree.leaves(nnx.state(model)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)


def test_dropout_with_a_key_for_each_sample():
    model = Net(rate=0.5)
    got = batch_gradients(model, model.loss.plan(SAMPLES), mean(len(SAMPLES)))
    assert_same_gradients(got, loop_gradients(model, SAMPLES))
    others = [sample._replace(key=jax.random.key(100 + i)) for i, sample in enumerate(SAMPLES)]
    other = batch_gradients(model, model.loss.plan(others), mean(len(SAMPLES)))
    assert not np.allclose(got.out.kernel[...], other.out.kernel[...], rtol=1e-2)


class FlaxDropout(Net):
    """Dropout after every composition, by Flax's module; each node splits the key that it gets."""

    def __init__(self):
        super().__init__()
        self.dropout = nnx.Dropout(0.5, deterministic=False)

    @jitbatch
    def compose_and_drop(self, left, right, key):
        return self.dropout(jnp.tanh(self.pair(jnp.concatenate([left, right]))), rngs=key)

    def encode_with(self, tree, key):
        if not isinstance(tree, tuple):
            return self.leaf(tree)
        here, *below = jax.random.split(key, 3)
        return self.compose_and_drop(*map(self.encode_with, tree, below), here)

    @jitbatch
    def loss(self, sample):
        return (self.out(self.encode_with(sample.tree, sample.key))[0] - sample.target) ** 2


def test_dropout_of_flax_with_a_key_for_each_node():
    model = FlaxDropout()
    got = batch_gradients(model, model.loss.plan(SAMPLES), mean(len(SAMPLES)))
    assert_same_gradients(got, loop_gradients(model, SAMPLES))
    twice = [SAMPLES[0], SAMPLES[0]._replace(key=jax.random.key(9))]
    first, second = model.loss.batch(twice)
    assert first != second


def test_bfloat16_with_float32_parameters():
    model = Net(dtype=jnp.bfloat16)
    got = batch_gradients(model, model.loss.plan(SAMPLES), mean(len(SAMPLES)))
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype("float32")}
    # A bfloat16 has 8 bits: sums in another order differ by a few of 2^-8.
    assert_same_gradients(got, loop_gradients(model, SAMPLES), 5e-2)


def test_checkpoint_around_the_model():
    @jax.jit
    def gradients(model, plan):
        return jax.grad(jax.checkpoint(lambda m: m.loss.batch(plan).mean()))(model)

    model = Net()
    assert_same_gradients(gradients(model, model.loss.plan(SAMPLES)), loop_gradients(model, SAMPLES))


class Remembered(Net):
    """Each composition is computed again in the backward pass."""

    def encode(self, tree):
        return jax.checkpoint(self.compose)(*map(self.encode, tree)) if isinstance(tree, tuple) else self.leaf(tree)


class RememberedWhole(Net):
    """The whole recursion is."""

    @jitbatch
    def loss(self, sample):
        h = jax.checkpoint(self.encode)(sample.tree)
        return (self.out(h)[0] - sample.target) ** 2


@pytest.mark.parametrize(("kind", "types"), [(Remembered, 3), (RememberedWhole, 5)])
def test_checkpoint_inside_of_a_sample(kind, types):
    """Around a cell it is batched as the cell is; around a recursion it is one program for each shape of a sample."""
    model = kind()
    plan = model.loss.plan(SAMPLES)
    assert plan.summary.types == types
    assert_same_gradients(batch_gradients(model, plan, mean(len(SAMPLES))), loop_gradients(model, SAMPLES))
