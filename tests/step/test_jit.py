"""`jitbatch.jit`: a step that is called with samples gives what the plain loop gives, and is compiled once."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from zoo import WORKLOADS, Workload, assert_same, is_float, projected, stack

import jitbatch as jb
from jitbatch import Static, jitbatch
from jitbatch.plan import plannable
from jitbatch.util.errors import ArgumentError, PlanError

W = {"w": jnp.linspace(-0.5, 0.7, 12).reshape(3, 4)[:, :3], "embed": jnp.linspace(-1, 1, 30).reshape(10, 3)}
TREES = [((1, 2), 3), (4, (5, (6, 7))), 8]
OTHERS = [9, (1, (2, 3)), ((4, 5), 6)]
LABELS = np.array([1.0, -1.0, 0.5], np.float32)


@jitbatch
def node(params: Any, left: Any, right: Any) -> Any:
    return jnp.tanh((left + 2 * right) @ params["w"])


@jitbatch
def encode(params: Any, tree: Any) -> Any:
    if isinstance(tree, tuple):
        return node(params, *(encode(params, child) for child in tree))
    return params["embed"][tree]


@jitbatch
def score(params: Any, tree: Any) -> Any:
    return encode(params, tree).sum()


def loss_of(scores: Any, labels: Any) -> Any:
    return ((scores - labels) ** 2).mean()


def loop_loss(params: Any, trees: Any, labels: Any) -> Any:
    return loss_of(jnp.stack([score(params, tree) for tree in trees]), labels)


def update(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def step_body(params: Any, trees: Any, labels: Any) -> Any:
    value, gradients = jax.value_and_grad(lambda p: loss_of(score.batch(p, trees), labels))(params)
    return update(params, gradients), value


def plain_step(params: Any, trees: Any, labels: Any) -> Any:
    value, gradients = jax.value_and_grad(loop_loss)(params, trees, labels)
    return update(params, gradients), value


def check_step(step: Callable[..., Any], *extra: Any) -> None:
    """Three steps as by the plain loop."""
    params = expected = W
    for trees in (TREES, OTHERS, TREES[::-1]):
        params, value = step(params, trees, LABELS, *extra)
        expected, want = plain_step(expected, trees, LABELS)
        assert_same((params, value), (expected, want))


def traces(step: Any) -> int:
    return step.cache_info()["programs"].misses


# --- The loop that a person writes


def test_steps_are_those_of_the_plain_loop_and_compile_once() -> None:
    step = jb.jit(step_body)
    check_step(step)
    assert traces(step) == 1
    assert step.cache_info()["programs"].hits == 2
    assert step.cache_info()["rooms"].misses == 1


def test_the_body_is_not_changed_by_other_ways_to_write_it() -> None:
    def passed_on(params: Any, trees: Any, labels: Any) -> Any:
        def loss(params: Any, trees: Any, labels: Any) -> Any:
            return loss_of(score.batch(params, trees), labels)

        value, gradients = jax.value_and_grad(jax.checkpoint(loss))(params, trees, labels)
        return update(params, gradients), value

    @partial(jb.jit, samples="trees")
    def by_name(params: Any, trees: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: loss_of(score.batch(p, tree=trees), labels))(params)
        return update(params, gradients), value

    named = jb.jit(passed_on, samples="trees")
    check_step(named)
    assert traces(named) == 1
    with pytest.raises(ArgumentError, match=r"such as `jax.checkpoint`.*jitbatch.jit\(samples=\"trees\"\)"):
        jb.jit(passed_on)(W, TREES, LABELS)
    check_step(by_name)
    check_step(lambda params, trees, labels: by_name(params, labels=labels, trees=trees))


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(workload, id=workload.name, marks=() if number % 6 == 1 else pytest.mark.slow)
        for number, workload in enumerate(WORKLOADS)
    ],
)
def test_every_model_of_the_zoo(workload: Workload) -> None:
    params, samples = workload.draw()
    floats = [leaf for leaf in jax.tree.leaves(params) if is_float(leaf)]
    tree = jax.tree.structure(params)

    def with_floats(floats: Any) -> Any:
        remaining = iter(floats)
        return tree.unflatten([next(remaining) if is_float(leaf) else leaf for leaf in jax.tree.leaves(params)])

    def values_and_gradients(run: Any) -> Any:
        def loss(floats: Any, samples: Any) -> Any:
            values = run(with_floats(floats), samples)
            return projected(values), values

        return lambda floats, samples: jax.value_and_grad(loss, has_aux=True)(floats, samples)

    want = values_and_gradients(lambda p, s: stack([workload.fun(p, one) for one in s]))(floats, samples)
    got = jb.jit(values_and_gradients(workload.batched.batch), samples="samples")(floats, samples)
    low = workload.low_precision
    assert_same(got[0][1], want[0][1], **({"rtol": 3e-2, "atol": 3e-2} if low else {}))
    assert_same(got[1], want[1], **({"rtol": 5e-2, "atol": 5e-2} if low else {"rtol": 1e-4, "atol": 1e-5}))


# --- Where samples are


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Minibatch:
    trees: Any
    labels: Any


def test_samples_in_containers_are_found_and_can_be_named() -> None:
    def in_dict(params: Any, batch: Any) -> Any:
        return step_body(params, batch["trees"], batch["labels"])

    def in_dataclass(params: Any, batch: Any) -> Any:
        return step_body(params, batch.trees, batch.labels)

    def in_tuple(params: Any, batch: Any) -> Any:
        return step_body(params, batch[0], batch[1])

    def further(params: Any, *batch: Any) -> Any:
        return step_body(params, *batch)

    def with_batch(step: Any, make: Any) -> Any:
        return lambda params, trees, labels: step(params, make(trees, labels))

    for options in ({}, {"samples": "batch['trees']"}):
        check_step(with_batch(jb.jit(in_dict, **options), lambda trees, labels: {"trees": trees, "labels": labels}))
    for options in ({}, {"samples": ["batch.trees"]}):
        check_step(with_batch(jb.jit(in_dataclass, **options), Minibatch))
    for options in ({}, {"samples": "batch[0]"}):
        check_step(with_batch(jb.jit(in_tuple, **options), lambda trees, labels: (trees, labels)))
        check_step(jb.jit(further, **options))


def test_a_list_of_labels_that_is_no_sample_stays_a_list() -> None:
    @jb.jit
    def step(params: Any, trees: Any, labels: Any) -> Any:
        assert isinstance(labels, list)
        return step_body(params, trees, jnp.stack(labels))

    check_step(lambda params, trees, labels: step(params, trees, labels.tolist()))


@jitbatch
def sample_loss(params: Any, tree: Any, label: Any) -> Any:
    return (score(params, tree) - label) ** 2


@pytest.mark.parametrize("convert", [list, jnp.asarray, np.asarray])
def test_several_mapped_arguments_are_all_samples(convert: Any) -> None:
    @jb.jit
    def step(params: Any, trees: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: sample_loss.batch(p, trees, labels).mean())(params)
        return update(params, gradients), value

    check_step(lambda params, trees, labels: step(params, trees, convert(labels)))
    assert traces(step) == 1


@pytest.mark.parametrize("convert", [list, lambda keys: keys])
def test_a_key_for_each_sample(convert: Any) -> None:
    noisy = jitbatch(lambda params, tree, key: score(params, tree) + jax.random.normal(key))
    keys = jax.random.split(jax.random.key(0), len(TREES))
    step = jb.jit(lambda params, trees, keys: noisy.batch(params, trees, keys))
    want = jnp.stack([noisy(W, tree, key) for tree, key in zip(TREES, keys, strict=True)])
    assert_same(step(W, TREES, convert(keys)), want)


def test_samples_of_static_objects_alone_are_found() -> None:
    """The edges of a graph, say, which only Python sees: they have no leaves, so they are found by identity."""

    @jitbatch
    def energy(params: Any, edges: Any, x: Any) -> Any:
        return sum((x[i.value] * x[j.value] * params["w"][0, 0] for i, j in edges), jnp.float32(0))

    graphs: list[Any] = [[(Static(0), Static(1))], [(Static(1), Static(2)), (Static(0), Static(2))]]
    features = [np.float32([1, 2, 3]), np.float32([4, 5, 6])]
    wanted = [float(energy(W, edges, x)) for edges, x in zip(graphs, features, strict=True)]

    @jb.jit
    def step(params: Any, edges: Any, features: Any) -> Any:
        return energy.batch(params, edges, features)

    @jb.jit
    def nested(params: Any, batch: Any) -> Any:
        return energy.batch(params, batch["edges"], batch["x"])

    for _ in range(2):
        np.testing.assert_allclose(step(W, graphs, features), wanted, rtol=1e-6)
        np.testing.assert_allclose(nested(W, {"edges": graphs, "x": features}), wanted, rtol=1e-6)
        graphs, features, wanted = graphs[::-1], features[::-1], wanted[::-1]


def test_several_functions_and_several_arguments() -> None:
    @jb.jit
    def step(params: Any, left: Any, right: Any) -> Any:
        return score.batch(params, left) + encode.batch(params, right).sum(-1) - score.batch(params, right), len(left)

    values, count = step(W, TREES, OTHERS)
    want = jnp.stack([score(W, tree) for tree in TREES])
    assert_same(values, want)
    assert count == 3
    step(W, OTHERS, TREES)
    assert traces(step) == 1
    assert len(step.explain(W, TREES, OTHERS)) == 3


def test_a_step_without_samples_is_a_jitted_function() -> None:
    step = jb.jit(lambda x, y: x * y, static_argnums=1)
    assert [float(step(3.0, 2)), float(step(4.0, 2)), float(step(4.0, 3))] == [6.0, 8.0, 12.0]
    assert traces(step) == 2
    with pytest.raises(ArgumentError, match=r"gives no samples to `.batch`: there is nothing to explain"):
        step.explain(3.0, 2)


def test_plans_can_be_given_instead() -> None:
    step = jb.jit(step_body)
    assert_same(step(W, score.plan(W, TREES), LABELS), plain_step(W, TREES, LABELS))


def test_samples_that_are_closed_over_are_constants() -> None:
    step = jb.jit(lambda params, trees: score.batch(params, OTHERS) + score.batch(params, trees))
    want = jnp.stack([score(W, a) + score(W, b) for a, b in zip(OTHERS, TREES, strict=True)])
    assert_same(step(W, TREES), want)


def test_a_step_in_a_step() -> None:
    inner = jb.jit(step_body)
    outer = jb.jit(lambda params, trees, labels: inner(params, trees, labels))
    with pytest.raises(PlanError, match="the samples hold values of an outer JAX transformation"):
        outer(W, TREES, LABELS)
    outer = jb.jit(lambda params, factor: jax.tree.map(lambda p: factor * p, inner(params, TREES, LABELS)))
    assert_same(outer(W, 1.0), plain_step(W, TREES, LABELS))


# --- Shared arguments, as `.batch` sees them


def test_parameters_that_are_cast_inside() -> None:
    @jb.jit
    def step(params: Any, trees: Any) -> Any:
        return score.batch(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), trees)

    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), W)
    want = jnp.stack([score(half, tree) for tree in TREES])
    assert_same(step(W, TREES), want, rtol=3e-2, atol=3e-2)


def test_parameters_of_another_kind_are_traced_again_and_remembered() -> None:
    step = jb.jit(lambda params, trees: score.batch(params, trees))
    double = {"w": W["w"].astype(jnp.bfloat16), "embed": W["embed"].astype(jnp.bfloat16)}
    for _ in range(3):
        assert step(W, TREES).dtype == jnp.float32
        assert step(double, OTHERS).dtype == jnp.bfloat16
    assert traces(step) == 2


def test_static_arguments_decide_what_is_batched() -> None:
    @partial(jb.jit, static_argnames="train")
    def step(params: Any, trees: Any, train: bool) -> Any:
        return score.batch(params, trees) if train else encode.batch(params, trees)

    for trees in (TREES, OTHERS):
        assert_same(step(W, trees, train=True), jnp.stack([score(W, tree) for tree in trees]))
        assert_same(step(W, trees, False), jnp.stack([encode(W, tree) for tree in trees]))
    assert traces(step) == 2


def test_shapes_of_samples() -> None:
    """Static values, arrays, sharing of structures; samples of an array are its rows."""

    @jitbatch
    def typed(params: Any, sample: Any) -> Any:
        scale = {"double": 2.0, "half": 0.5}[sample["name"].value]
        return scale * sum(x @ params["w"] for x in sample["xs"]).sum()

    samples = [
        {"name": Static(name), "xs": np.full((n, 3), n, np.float32)}
        for n, name in [(1, "half"), (4, "double"), (2, "half")]
    ]
    step = jb.jit(lambda params, samples: typed.batch(params, samples))
    assert_same(step(W, samples), jnp.stack([typed(W, sample) for sample in samples]))
    product = jitbatch(lambda p, x: x @ p["w"])
    rows = jb.jit(lambda params, xs: product.batch(params, xs))
    xs = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_same(rows(W, xs), xs @ W["w"])


# --- Options of jax.jit


def test_donation_keeps_its_positions_and_spares_samples() -> None:
    step = jb.jit(step_body, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.array, W)
    step(params, TREES, LABELS)  # the first trace is given up: nothing is donated by it
    assert params["w"].is_deleted()
    assert not LABELS.flags.owndata or LABELS.sum() == 0.5
    named = jb.jit(step_body, donate_argnames=("params", "trees"))
    assert_same(named(jax.tree.map(jnp.array, W), TREES, LABELS), plain_step(W, TREES, LABELS))
    within = jb.jit(lambda params, batch: score.batch(params, batch["trees"]), donate_argnums=1)
    with pytest.raises(ArgumentError, match=r"'batch' of .* is donated, but holds samples, at batch\['trees'\]"):
        within(W, {"trees": TREES})


def test_lower_trace_and_eval_shape() -> None:
    step = jb.jit(step_body)
    compiled = step.lower(W, TREES, LABELS).compile()
    assert compiled.cost_analysis() is not None
    assert "while" in str(step.trace(W, TREES, LABELS).jaxpr)
    assert jax.tree.map(lambda a: a.shape, step.eval_shape(W, TREES, LABELS)[1]) == ()


def test_methods() -> None:
    class Trainer:
        @partial(jb.jit, static_argnums=0, samples="trees")
        def step(self, params: Any, trees: Any, labels: Any) -> Any:
            return step_body(params, trees, labels)

    check_step(Trainer().step)
    assert Trainer.step.__name__ == "step"


def test_ragged_outputs() -> None:
    words = jitbatch(lambda params, tokens: [params["embed"][token].sum() for token in tokens], out="ragged")
    step = jb.jit(lambda params, sentences: words.batch(params, sentences).sum())
    sentences = [[1, 2], [3], [4, 5, 6]]
    assert_same(step(W, sentences), jnp.stack([W["embed"][np.array(s)].sum() for s in sentences]))
    more = [[1, 2, 3], [3], [4, 5, 6]]
    assert_same(step(W, more), jnp.stack([W["embed"][np.array(s)].sum() for s in more]))
    assert traces(step) == 1


# --- Flax and Equinox


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(10, 3, rngs=rngs)
        self.linear = nnx.Linear(6, 3, rngs=rngs)

    @jitbatch
    def join(self, left: Any, right: Any) -> Any:
        return jnp.tanh(self.linear(jnp.concatenate([left, right])))

    def encode(self, tree: Any) -> Any:
        return self.join(*map(self.encode, tree)) if isinstance(tree, tuple) else self.embed(jnp.asarray(tree))

    @jitbatch
    def __call__(self, tree: Any) -> Any:
        return self.encode(tree).sum()


def plain_nnx_step(model: Net, optimizer: nnx.Optimizer, trees: Any, labels: Any) -> Any:
    def loss(model: Net) -> Any:
        return loss_of(jnp.stack([Net.__call__.__wrapped__(model, tree) for tree in trees]), labels)

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


@pytest.mark.parametrize("options", [{}, {"samples": "trees"}])
def test_modules_and_optimizers_of_flax(options: Any) -> None:
    @partial(jb.jit, jit=nnx.jit, **options)
    def step(model: Net, optimizer: nnx.Optimizer, trees: Any, labels: Any) -> Any:
        def loss(model: Net, trees: Any, labels: Any) -> Any:
            return loss_of(model.__call__.batch(trees), labels)

        value, gradients = nnx.value_and_grad(loss)(model, trees, labels)
        optimizer.update(model, gradients)
        return value

    pairs = []
    for run in (step, plain_nnx_step):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        values = [run(model, optimizer, trees, LABELS) for trees in (TREES, OTHERS, TREES)]
        pairs.append((values, jax.tree.leaves(nnx.state(model))))
    assert_same(pairs[0], pairs[1], rtol=1e-4, atol=1e-5)
    assert traces(step) == 1


def test_a_module_of_flax_that_is_merged_inside() -> None:
    model = Net(nnx.Rngs(0))
    graph, state = nnx.split(model)
    step = jb.jit(lambda state, trees: nnx.merge(graph, state).__call__.batch(trees))
    assert_same(step(state, TREES), jnp.stack([model(tree) for tree in TREES]))
    step(state, OTHERS)
    assert traces(step) == 1


class DroppingNet(Net):
    def __init__(self, rngs: nnx.Rngs):
        super().__init__(rngs)
        self.dropout = nnx.Dropout(0.5)

    @jitbatch
    def dropping(self, left: Any, right: Any, key: Any) -> Any:
        return self.dropout(jnp.tanh(self.linear(jnp.concatenate([left, right]))), rngs=key)

    @jitbatch
    def score(self, tree: Any, key: Any) -> Any:
        keys = jb.Keys(key)

        def encode(tree: Any) -> Any:
            if isinstance(tree, tuple):
                return self.dropping(*map(encode, tree), keys())
            return self.embed(jnp.asarray(tree))

        return encode(tree).sum()


def test_dropout_with_a_key_of_each_sample_and_node() -> None:
    model = DroppingNet(nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(1), len(TREES))

    @partial(jb.jit, jit=nnx.jit)
    def step(model: DroppingNet, trees: Any, keys: Any) -> Any:
        return nnx.value_and_grad(lambda m: m.score.batch(trees, keys).sum())(model)

    def loop(model: DroppingNet) -> Any:
        return sum(model.score(tree, key) for tree, key in zip(TREES, keys, strict=True))

    value, gradients = step(model, TREES, keys)
    want, want_gradients = nnx.value_and_grad(loop)(model)
    assert_same(value, want)
    assert_same(jax.tree.leaves(gradients), jax.tree.leaves(want_gradients), rtol=1e-4, atol=1e-5)
    assert float(step(model, TREES, jax.random.split(jax.random.key(2), len(TREES)))[0]) != float(value)


class EqxNet(eqx.Module):
    params: Any

    @jitbatch
    def __call__(self, tree: Any) -> Any:
        return score(self.params, tree)


def test_modules_of_equinox() -> None:
    model = EqxNet(W)

    @partial(jb.jit, jit=eqx.filter_jit, samples="trees")
    def step(model: EqxNet, trees: Any) -> Any:
        return eqx.filter_grad(lambda m: m.__call__.batch(trees).sum())(model)

    want = jax.grad(lambda p: sum(score(p, tree) for tree in TREES))(W)
    assert_same(step(model, TREES).params, want)
    step(model, OTHERS)
    assert traces(step) == 1


# --- Padding


def test_a_smaller_minibatch_is_filled_up_and_weighed_by_the_mask() -> None:
    @partial(jb.jit, pad=4, samples="trees", rows="labels")
    def step(params: Any, trees: Any, labels: Any) -> Any:
        assert len(trees) == len(labels) == 4

        def loss(p: Any) -> Any:
            return ((score.batch(p, trees) - labels) ** 2 * trees.mask).sum() / trees.mask.sum()

        value, gradients = jax.value_and_grad(loss)(params)
        return update(params, gradients), value

    for count in (3, 1, 2):
        got = step(W, TREES[:count], LABELS[:count])
        assert_same(got, plain_step(W, TREES[:count], LABELS[:count]))
    labels = np.array([*LABELS, 2.0], np.float32)
    assert_same(step(W, [*TREES, OTHERS[1]], labels), plain_step(W, [*TREES, OTHERS[1]], labels))
    assert traces(step) == 1


def test_without_padding_nothing_is_masked() -> None:
    step = jb.jit(lambda params, trees: (score.batch(params, trees), trees.mask), samples="trees")
    assert step(W, TREES)[1].tolist() == [True, True, True]


# --- Sizes


def test_room_grows_with_headroom_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    step = jb.jit(lambda params, trees: score.batch(params, trees))
    rng = np.random.default_rng(0)

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return int(rng.integers(10))
        left = int(rng.integers(1, leaves))
        return tree(left), tree(leaves - left)

    for _ in range(30):
        trees = [tree(int(rng.integers(1, 20))) for _ in range(16)]
        step(W, trees)
    assert traces(step) <= 2
    before = traces(step)
    with caplog.at_level(logging.INFO, logger="jitbatch"):
        step(W, [tree(200) for _ in range(16)])
    assert traces(step) == before + 1
    assert "room for calls of node grew from" in caplog.text
    step(W, [tree(10) for _ in range(16)])  # not as large as the one before
    assert traces(step) == before + 1
    assert step.cache_info()["rooms"].currsize == 2
    step(W, [tree(10) for _ in range(8)])
    assert traces(step) == before + 2  # another number of samples


def test_only_what_is_compiled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    own = jitbatch(score.__wrapped__)
    step = jb.jit(lambda params, trees: own.batch(params, trees))
    with caplog.at_level(logging.INFO, logger="jitbatch"):
        step(W, TREES)  # traced once to find the samples, then compiled
    assert len(caplog.records) == 1
    assert "the first plan of" in caplog.text


# --- Planning ahead


@pytest.mark.parametrize("ahead", [0, 2])
def test_prefetch(ahead: int) -> None:
    step = jb.jit(step_body)
    minibatches = [(TREES, LABELS), (OTHERS, LABELS), (TREES[::-1], LABELS)] * 2
    params = expected = W
    with step.prefetch(minibatches, ahead=ahead) as planned:
        for (trees, labels), (plain, _) in zip(planned, minibatches, strict=True):
            params, _ = step(params, trees, labels)
            expected, _ = plain_step(expected, plain, LABELS)
    assert_same(params, expected)
    assert traces(step) == 1
    trees, labels = next(step.prefetch(minibatches, ahead=ahead))
    assert isinstance(trees, jb.Samples)
    assert labels is LABELS
    assert "3 samples, the argument trees of" in repr(trees)


def test_items_of_prefetch() -> None:
    step = jb.jit(lambda params, trees, train=True: score.batch(params, trees))
    step(W, TREES)
    assert isinstance(next(step.prefetch([{"trees": OTHERS}]))["trees"], jb.Samples)
    assert isinstance(next(step.prefetch([OTHERS])), jb.Samples)
    with pytest.raises(
        ArgumentError, match=r"gives train to .*, but the samples are trees. Items are tuples of its last"
    ):
        next(step.prefetch([(True,)]))

    def failing() -> Any:
        yield OTHERS
        raise KeyError("no more data")

    items = step.prefetch(failing(), ahead=1)
    next(items)
    with pytest.raises(KeyError, match="no more data"):
        next(items)


def test_threads_share_a_step() -> None:
    step = jb.jit(step_body)
    want = [plain_step(W, trees, LABELS) for trees in (TREES, OTHERS)]
    failures: list[BaseException] = []

    def work(which: int) -> None:
        try:
            for _ in range(5):
                assert_same(step(W, (TREES, OTHERS)[which], LABELS), want[which])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_after_clearing_caches_sizes_are_kept() -> None:
    step = jb.jit(step_body)
    check_step(step)
    jb.clear_caches()
    check_step(step)


# --- What cannot be done


@pytest.mark.parametrize(
    "body",
    [
        lambda params, trees: trees[0],
        lambda params, trees: list(trees),
        lambda params, trees: jnp.asarray(trees),
        lambda params, trees: np.asarray(trees),
        lambda params, trees: trees * 2,
        lambda params, trees: trees == 2,
    ],
)
def test_the_body_cannot_look_at_samples(body: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"the argument trees of .* holds samples. In the body of the step they can"
    ):
        jb.jit(body, samples="trees")(W, TREES)


def test_a_mask_of_samples_that_are_not_named() -> None:
    with pytest.raises(AttributeError) as error:
        jb.jit(lambda params, trees: score.batch(params, trees) * trees.mask)(W, TREES)
    assert error.value.__notes__[:1] == [
        'jitbatch: samples have a mask if they are named, as by jitbatch.jit(samples="trees")'
    ]


def test_samples_have_no_attributes() -> None:
    with pytest.raises(AttributeError, match=r"holds samples, which have no attribute 'append'"):
        jb.jit(lambda params, trees: trees.append(1), samples="trees")(W, TREES)


def test_a_leaf_that_is_read_elsewhere_is_refused() -> None:
    step = jb.jit(lambda params, trees: score.batch(params, trees) + trees[2])
    with pytest.raises(ArgumentError, match=r"the argument trees of .* holds samples"):
        step(W, TREES)


def test_a_part_of_an_argument_is_refused() -> None:
    step = jb.jit(lambda params, trees: score.batch(params, trees[:2]))
    with pytest.raises(ArgumentError, match=r"`.batch` is given a part of an argument of .*samples=\"...\""):
        step(W, TREES)
    step = jb.jit(lambda params, left, right: score.batch(params, left + right))
    with pytest.raises(ArgumentError, match=r"or parts of several"):
        step(W, TREES, OTHERS)


def test_a_mapped_argument_that_is_computed_inside_is_refused() -> None:
    step = jb.jit(lambda params, trees, labels: sample_loss.batch(params, trees, labels + 1))
    with pytest.raises(ArgumentError, match=r"and as 'label' something that is no argument of it"):
        step(W, TREES, LABELS)


def test_samples_that_are_changed_inside_are_refused() -> None:
    def body(params: Any, batch: Any) -> Any:
        return score.batch(params, jax.tree.map(lambda leaf: leaf[:1] if leaf.ndim else leaf, batch)["trees"])

    with pytest.raises(ArgumentError, match=r"batch\['trees'\] of .* was changed in the body of the step"):
        jb.jit(body, samples="batch['trees']")(W, {"trees": TREES})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": "tree"}, "has no argument 'tree': it takes params, trees, labels"),
        ({"samples": "trees +"}, "does not name an argument"),
        ({"rows": "label"}, "has no argument 'label'"),
        ({"pad": 0}, "pad=0 is not a positive number"),
        ({"pad": 4}, r"pad=4 fills samples up: name them, jitbatch.jit\(samples="),
        ({"samples": "trees['x']"}, r"there is nothing at trees\['x'\]"),
    ],
)
def test_wrong_options(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        jb.jit(step_body, **options)(W, TREES, LABELS)
    with pytest.raises(ArgumentError, match=r"jitbatch\.jit compiles functions, got 3"):
        jb.jit(3)  # type: ignore[call-overload]


def test_errors_of_the_body_are_its_own() -> None:
    @jb.jit
    def step(params: Any, trees: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        step(W, TREES)
    with pytest.raises(TypeError):
        jb.jit(step_body)(W, TREES)  # type: ignore[call-arg]


def test_a_body_that_changes_from_trace_to_trace() -> None:
    functions = [jitbatch(lambda p, t, i=i: i * score(p, t)) for i in range(8)]
    remaining = iter(functions)
    step = jb.jit(lambda params, trees: next(remaining).batch(params, trees))
    with pytest.raises(ArgumentError, match="each time it is traced"):
        step(W, TREES)


def test_plans_are_for_the_platform_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """For that of committed parameters, or of the mesh, and not for the default of JAX."""
    found: list[str] = []
    make = plannable.make_plan

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(args[4].platform)
        return make(*args, **kwargs)

    total = jitbatch(lambda w, xs: sum(jnp.tanh(x * w) for x in xs))
    weight = jax.device_put(jnp.float32(2), jax.devices()[0])
    monkeypatch.setattr(plannable, "make_plan", noted)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    for mesh in (None, jax.make_mesh((1,), ("data",))):
        jb.jit(lambda w, xs: total.batch(w, xs).sum(), mesh=mesh, samples="xs")(weight, [[1.0], [2.0, 3.0]])
    assert set(found) == {"cpu"}
