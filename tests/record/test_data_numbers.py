"""Numbers of asynchronous samples are data: other answers have the same cells."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch
from jitbatch import jitbatch as decorated

PARAMS = {
    "table": jnp.asarray(np.random.default_rng(0).normal(size=(50, 4)), jnp.float32),
    "w": jnp.eye(4) * 0.5,
}


@decorated
def embed(params: Any, word: Any) -> Any:
    return params["table"][word]


@decorated
def scaled(params: Any, pair: Any) -> Any:
    return params["w"][0] * pair["factor"] + pair["offset"]


@decorated
def cell(params: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ params["w"] + x)


NAMES = dict(enumerate(range(3, 53)))
USES: dict[str, Callable[[Any, Any, int], Any]] = {
    "an argument": lambda p, h, word: embed(p, word),
    "an argument by name": lambda p, h, word: embed(p, word=word),
    "in an argument": lambda p, h, word: scaled(p, {"factor": word, "offset": np.full(4, word / 3, np.float32)}),
    "derived": lambda p, h, word: embed(p, NAMES[word] - 3),
    "an index of shared values": lambda p, h, word: p["table"][word],
    "an index of a row": lambda p, h, word: h[word % 4],
    "two indices": lambda p, h, word: p["table"][word, word % 4],
    "indices": lambda p, h, word: p["table"][np.array([word, 2])].sum(0),
    "an array": lambda p, h, word: p["table"][jnp.asarray(word)],
    "of a jnp function": lambda p, h, word: jnp.take(p["table"], word, axis=0),
    "of a lax function": lambda p, h, word: jax.lax.dynamic_index_in_dim(p["table"], word, keepdims=False),
    "one hot": lambda p, h, word: jax.nn.one_hot(word % 4, 4),
    "a factor of a row": lambda p, h, word: h * (word / 50),
    "a factor of shared values": lambda p, h, word: p["w"][0] * (0.02 * word),
    "compared": lambda p, h, word: jnp.where(h * 50 > word, 1.0, h),
    "none": lambda p, h, word: h * 2 + h[0],
}


def using(use: Callable[[Any, Any, int], Any]) -> Any:
    @decorated
    async def follow(params: Any, sample: Any) -> Any:
        h, words = sample
        for word in words.value:
            word = await jitbatch.value((h[0] * 0).astype(int) + word)
            assert type(word) is int
            h = cell(params, h, use(params, h, word))
        return h

    return follow


def samples(seed: int) -> Any:
    random = np.random.default_rng(seed)
    words = [jitbatch.Static(tuple(random.integers(1, 50, 3).tolist())) for _ in range(3)]
    return [(random.normal(size=4).astype(np.float32), some) for some in words]


@pytest.mark.parametrize("name", USES)
def test_other_answers_need_no_other_cells(name: str) -> None:
    follow = using(USES[name])
    tables = follow.flight(PARAMS, [], room=4).tables
    kinds, shared = set(), set()
    for seed in range(3):
        some = samples(seed)
        found = follow.rollout(PARAMS, some)
        wanted = jnp.stack([jitbatch.run(follow(PARAMS, sample)) for sample in some])
        np.testing.assert_allclose(found.outputs, wanted, rtol=1e-5, atol=1e-6)
        kinds.add(len(tables.kinds))
        shared.add(len(tables.shared))
    assert len(kinds) == len(shared) == 1


@pytest.mark.parametrize("name", ["an argument", "an index of shared values", "a factor of a row", "indices"])
def test_gradients_of_realised_plans_are_those_of_the_loop(name: str) -> None:
    follow, some = using(USES[name]), samples(7)
    decisions = follow.rollout(PARAMS, some).decisions
    wanted = jax.grad(lambda p: sum(jitbatch.run(follow(p, sample)).sum() for sample in some))(PARAMS)

    def total(params: Any, function: Any) -> Any:
        return function.batch(params, some, decisions=decisions).sum()

    for function in (follow, using(USES[name])):  # as recorded on the way, and recorded anew
        found = jax.grad(total)(PARAMS, function)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, wanted)


@pytest.mark.parametrize("name", ["an argument", "in an argument", "a factor of a row"])
def test_constants_beyond_the_pinned_rows_are_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitbatch.rollout.segments.MAX_PINNED", 1)
    follow = using(USES[name])
    for seed in range(2):
        some = samples(seed)
        found = follow.rollout(PARAMS, some)
        wanted = jnp.stack([jitbatch.run(follow(PARAMS, sample)) for sample in some])
        np.testing.assert_allclose(found.outputs, wanted, rtol=1e-5, atol=1e-6)
        again = follow.batch(PARAMS, some, decisions=found.decisions)
        np.testing.assert_allclose(again, wanted, rtol=1e-5, atol=1e-6)


def test_a_mask_is_no_data_because_the_shape_depends_on_it() -> None:
    @decorated
    async def masked(params: Any, x: Any) -> Any:
        mask = await jitbatch.value(x > 0)
        return x[mask].sum() * params

    xs = [np.array([1.0, -2.0, 3.0], np.float32), np.array([-1.0, -2.0, 5.0], np.float32)]
    np.testing.assert_allclose(masked.batch(2.0, xs), [8.0, 10.0])


def test_fixed_numbers_of_operators_are_constants() -> None:
    @decorated
    async def halved(params: Any, x: Any) -> Any:
        await jitbatch.value(x[0])
        return (x * 2 + 1)[0] * params

    flight = halved.flight(3.0, [], room=4)
    np.testing.assert_allclose(halved.batch(3.0, [np.ones(2, np.float32)] * 2), [9.0, 9.0])
    assert [kind.rows for kind in flight.tables.kinds.entries] == [1]


def test_matrices_of_a_stack_of_layers_stay_shared() -> None:
    @decorated
    def layer(w: Any, h: Any) -> Any:
        return jnp.tanh(h @ w)

    @decorated
    async def layers(params: Any, h: Any) -> Any:
        for at in range(3):
            h = layer(params[at], h)
            await jitbatch.value(h[0])
        return h

    weights = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4)), jnp.float32)
    flight = layers.flight(weights, [], room=4)
    some = [np.ones(4, np.float32), np.zeros(4, np.float32)]
    wanted = jnp.stack([jitbatch.run(layers(weights, h)) for h in some])
    np.testing.assert_allclose(layers.batch(weights, some), wanted, rtol=1e-5)
    kinds = [kind for kind in flight.tables.kinds.entries if "layer" in kind.cell.name.split(".")[-1]]
    assert {kind.rows for kind in kinds} == {1}
