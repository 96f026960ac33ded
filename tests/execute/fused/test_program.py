"""The fused executor: one program for many batches, and whatever JAX can do with a program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from zoo import (
    HIDDEN,
    INPUT,
    Params,
    assert_same,
    counted_compilations,
    named,
    normal,
    projected,
    random_tree,
    rnn_params,
    stack,
    tree_params,
)

from jitbatch import Static, jitbatch

GRADIENTS = {"rtol": 1e-4, "atol": 1e-5}
TREE = named("binary_tree")


def tree(leaves: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return random_tree(rng, leaves, lambda: int(rng.integers(7)))


LARGE = [tree(9, 1), tree(1, 2), tree(5, 3)]
SMALL = [tree(2, 4), tree(3, 5), tree(1, 6)]
PARAMS = tree_params(jax.random.key(0))
TREES = jitbatch(TREE.fun)


@jax.jit
def tree_values_and_gradients(params: Params, plan: Any) -> Any:
    return values_and_gradients(TREES, params, plan)


def values_and_gradients(batched: Any, params: Any, plan: Any) -> Any:
    def loss(params: Any) -> Any:
        values = batched.batch(params, plan)
        return projected(values), values

    (_, values), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return values, grads


def loop(fun: Callable[..., Any], params: Any, samples: list[Any]) -> Any:
    def loss(params: Any) -> Any:
        values = stack([fun(params, sample) for sample in samples])
        return projected(values), values

    (_, values), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return values, grads


def check(batched: Any, params: Any, samples: list[Any], **tolerance: Any) -> Any:
    """A fused plan's values and gradients are the plain loop's; the plan."""
    plan = batched.plan(params, samples)
    assert plan.static.executor == "fused"
    got = jax.jit(functools.partial(values_and_gradients, batched))(params, plan)
    assert_same(got, loop(batched.__wrapped__, params, samples), **(tolerance or GRADIENTS))
    return plan


def loops(plan: Any) -> list[Any]:
    return [phase for phase in plan.static.program.phases if hasattr(phase, "rounds")]


# --- Sizes


def test_one_compilation_serves_a_plan_and_those_like_it() -> None:
    large = TREES.plan(PARAMS, LARGE)
    small = TREES.plan(PARAMS, SMALL, like=large)
    assert small.static == large.static
    assert hash(small.static) == hash(large.static)
    assert jax.tree.structure(small) == jax.tree.structure(large)
    assert TREES.plan(PARAMS, SMALL, like=None).static != large.static
    run = jax.jit(functools.partial(values_and_gradients, TREES))
    with counted_compilations() as compilations:
        jax.block_until_ready(run(PARAMS, large))
        assert len(compilations) == 1
        got = jax.block_until_ready(run(PARAMS, small))
        assert len(compilations) == 1
    assert_same(got, loop(TREE.fun, PARAMS, SMALL), **GRADIENTS)


def test_like_a_smaller_plan_is_large_enough() -> None:
    small = TREES.plan(PARAMS, SMALL)
    large = TREES.plan(PARAMS, LARGE, like=small)
    again = TREES.plan(PARAMS, SMALL, like=large)
    assert again.static == large.static
    for samples, plan in ((LARGE, large), (SMALL, again)):
        assert_same(tree_values_and_gradients(PARAMS, plan), loop(TREE.fun, PARAMS, samples), **GRADIENTS)


@jitbatch
def cell(w: Any, x: Any, h: Any) -> Any:
    return jnp.tanh(w * x + h)


@jitbatch
def chain(w: Any, sample: tuple[Any, Static]) -> Any:
    """A chain of cells, the last few of which read the one before them twice."""
    xs, twice = sample
    h = w
    for x in xs:
        h = cell(w, x, h)
    for _ in range(twice.value):
        h = cell(w, h, h)
    return h


def chains(length: int, twice: int) -> list[Any]:
    rng = np.random.default_rng(length)
    return [(normal(rng, length), Static(twice)) for _ in range(16)]


def test_room_for_rounds_and_pairs_seldom_grows() -> None:
    """Neither costs much where it is not used, and their numbers vary from batch to batch."""
    w = jnp.float32(0.5)
    plans = [check(chain, w, chains(*sizes)) for sizes in ((30, 1), (29, 2), (28, 3))]
    assert len({plan.static for plan in plans}) == 1
    (deep,), (deeper,) = loops(chain.plan(w, chains(63, 1))), loops(chain.plan(w, chains(64, 1)))
    assert (deep.rounds, deeper.rounds) == (64, 256)


@jitbatch
def first_step(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["x"] + h @ params["h"])


@jitbatch
def second_step(params: Params, h: Array, y: Array) -> Array:
    return jnp.sin(y @ params["h"] + h * params["b"])


@jitbatch
def two_loops(params: Params, xs: Array) -> Array:
    h = y = params["h0"]
    for x in xs:
        h = first_step(params, x, h)
    for _ in range(2):
        y = second_step(params, h, y)
    return y


def test_like_a_plan_of_two_loops() -> None:
    params = rnn_params(jax.random.key(0))
    rng = np.random.default_rng(0)
    samples = [normal(rng, length, INPUT) for length in (9, 5)]
    plan = check(two_loops, params, samples)
    assert len(loops(plan)) == 2
    assert two_loops.plan(params, samples, like=plan).static == plan.static


def test_sizes_are_kept_where_a_type_becomes_wider() -> None:
    """Alone, the first steps read a shared initial state; next to later steps, all read rows."""
    params = rnn_params(jax.random.key(0))
    rng = np.random.default_rng(0)
    batched = jitbatch(lambda params, xs: functools.reduce(lambda h, x: first_step(params, x, h), xs, params["h0"]))
    first_steps = [normal(rng, 1, INPUT) for _ in range(40)]
    many = batched.plan(params, first_steps)
    three_steps = [normal(rng, 3, INPUT)]
    few = batched.plan(params, three_steps, like=many)
    (core,) = [block for block in few.static.program.blocks if block.kind.cell.name.endswith("core")]
    assert core.capacity >= 40
    both = batched.plan(params, first_steps, like=few)  # now a round has many nodes, and chunks can be wide
    assert batched.plan(params, three_steps, like=both).static == both.static


@jitbatch
def plus(params: Params, x: Array, y: Array) -> Array:
    return x + params["b"] * y


@jitbatch
def logarithm(params: Params, x: Array, y: Array) -> Array:
    return jnp.log(params["b"] * x) + y


@jitbatch
def root(params: Params, x: Array, y: Array) -> Array:
    return y / jnp.sqrt(x * params["b"])


@jitbatch
def late(params: Params, x: Array, y: Array) -> Array:
    return jnp.cos(x @ params["h"]) - y


OPERATORS = {"+": plus, "l": logarithm, "r": root, "c": late}


@jitbatch
def expression(params: Params, sample: Params) -> Array:
    return functools.reduce(lambda h, name: OPERATORS[name[-1]](params, h, sample[name]), sample, params["h0"])


def expressions(*texts: str) -> list[Params]:
    rng = np.random.default_rng(3)
    return [{f"{i:02}{name}": 2.0 + jnp.abs(normal(rng, HIDDEN)) for i, name in enumerate(text)} for text in texts]


@pytest.mark.parametrize("lacking", ["+", "l", "r", "c"])
def test_a_type_that_a_batch_lacks_costs_nothing_wrong(lacking: str) -> None:
    params = jax.tree.map(jnp.abs, rnn_params(jax.random.key(0)))
    large = expression.plan(params, expressions("+lrc+lrc", "cr+", "lc+r++"))
    samples = expressions(*(text.replace(lacking, "") for text in ("+r+", "lc+", "rl")))
    plan = expression.plan(params, samples, like=large)
    assert plan.static == large.static
    got = expression_values_and_gradients(params, plan)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    assert_same(got, loop(expression.__wrapped__, params, samples), **GRADIENTS)


@jax.jit
def expression_values_and_gradients(params: Params, plan: Any) -> Any:
    return values_and_gradients(expression, params, plan)


@pytest.mark.parametrize("lacking", [jnp.log, jnp.sqrt])
def test_a_lacking_type_outside_loops(lacking: Any) -> None:
    cell = jitbatch(lambda w, x: lacking(w * x))
    other = jitbatch(lambda w, x: jnp.sin(w * x))
    batched = jitbatch(lambda w, sample: cell(w, sample["x"]) if "x" in sample else other(w, sample["y"]))
    w = jnp.float32(2.0)
    large = batched.plan(w, [{"x": 1.0}, {"y": 2.0}, {"x": 3.0}])
    samples = [{"y": 0.0}, {"y": 2.0}]  # the first row is what is read where there is no node
    got = values_and_gradients(batched, w, batched.plan(w, samples, like=large))
    assert_same(got, loop(batched.__wrapped__, w, samples), **GRADIENTS)


@jitbatch
def term(params: Params, x: Array) -> Array:
    return jnp.tanh(x @ params["x"] + params["b"])


@jitbatch
def total(params: Params, xs: list[Array]) -> Array:
    return sum(term(params, x) for x in xs) * params["h0"]


def test_room_for_terms_of_sums_adds_nothing() -> None:
    """Not to the first sum, whose number padding might have, nor to the last."""
    rng = np.random.default_rng(0)
    samples = [list(normal(rng, count, INPUT)) for count in (30, 7, 20)]
    plan = check(total, {**rnn_params(jax.random.key(0)), "h0": jnp.ones(HIDDEN)}, samples)
    (sums,) = [block for block in plan.static.program.blocks if block.kind.is_variadic]
    assert sums.terms > 57


def test_a_batch_of_leaves_runs_no_round() -> None:
    large = TREES.plan(PARAMS, LARGE)
    plan = TREES.plan(PARAMS, [1, 2, 3], like=large)
    assert plan.static == large.static
    got = tree_values_and_gradients(PARAMS, plan)
    assert_same(got, loop(TREE.fun, PARAMS, [1, 2, 3]), **GRADIENTS)


def test_a_new_type_compiles_once() -> None:
    """Shuffled epochs of two minibatches compile for the first plan with everything, and never again."""
    minibatches = [LARGE, SMALL, [1, 2, 3]]
    run = jax.jit(functools.partial(values_and_gradients, jitbatch(TREE.fun)))
    batched = run.__wrapped__.args[0]
    like = batched.plan(PARAMS, [4, 5, 6])
    with counted_compilations() as compilations:
        jax.block_until_ready(run(PARAMS, like))
        for _ in range(2):
            for samples in minibatches:
                like = batched.plan(PARAMS, samples, like=like)
                jax.block_until_ready(run(PARAMS, like))
    assert len(compilations) == 2


# --- Plans are pytrees


def test_a_plan_passes_through_jax() -> None:
    plan = TREES.plan(PARAMS, LARGE)
    want = tree_values_and_gradients(PARAMS, plan)
    assert_same(want, loop(TREE.fun, PARAMS, LARGE), **GRADIENTS)
    for same in (jax.jit(lambda plan: plan)(plan), jax.tree.map(jnp.asarray, plan), jax.device_put(plan)):
        assert same.static == plan.static
        assert_same(tree_values_and_gradients(PARAMS, same), want)


# --- Transformations


def test_forward_over_reverse() -> None:
    plan = TREES.plan(PARAMS, SMALL)
    tangent = tree_params(jax.random.key(1))

    def product(run: Callable[[Params], Any]) -> Any:
        return jax.jit(lambda p, t: jax.jvp(jax.grad(lambda p: projected(run(p)) ** 2), (p,), (t,)))(PARAMS, tangent)

    dispatch = jitbatch(TREE.fun, executor="dispatch")
    want = product(lambda p: dispatch.batch(p, SMALL))
    assert_same(product(lambda p: TREES.batch(p, plan)), want, rtol=1e-3, atol=1e-4)


def test_hessian() -> None:
    params = jax.tree.map(jnp.abs, rnn_params(jax.random.key(0)))
    samples = expressions("+l", "l+r", "r++lr")
    plan = expression.plan(params, samples)

    def hessian(run: Callable[[Params], Any]) -> Any:
        return jax.jit(jax.jacfwd(jax.grad(lambda b: projected(run({**params, "b": b})))))(params["b"])

    want = hessian(lambda p: stack([expression.__wrapped__(p, sample) for sample in samples]))
    assert_same(hessian(lambda p: expression.batch(p, plan)), want, rtol=1e-3, atol=1e-4)


def test_vmap_over_parameters() -> None:
    plan = TREES.plan(PARAMS, SMALL)
    several = [PARAMS, tree_params(jax.random.key(1))]
    got = jax.vmap(lambda p: values_and_gradients(TREES, p, plan))(stack(several))
    assert_same(got, stack([tree_values_and_gradients(p, plan) for p in several]), **GRADIENTS)


def test_checkpoint() -> None:
    plan = TREES.plan(PARAMS, SMALL)
    got = jax.jit(jax.grad(jax.checkpoint(lambda p: projected(TREES.batch(p, plan)))))(PARAMS)
    assert_same(got, loop(TREE.fun, PARAMS, SMALL)[1], **GRADIENTS)


FORWARD: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, p, t: jax.jvp(f, (p,), (t,)),
    "jvp of jit": lambda f, p, t: jax.jvp(jax.jit(f), (p,), (t,)),
    "jvp of checkpoint": lambda f, p, t: jax.jvp(jax.checkpoint(f), (p,), (t,)),
    "jit of jvp": lambda f, p, t: jax.jit(lambda p, t: jax.jvp(f, (p,), (t,)))(p, t),
    "jvp of vmap": lambda f, p, t: jax.jvp(jax.vmap(f), (stack([p, t]),), (stack([t, p]),)),
    "vmap of jvp": lambda f, p, t: jax.vmap(lambda t: jax.jvp(f, (p,), (t,)))(stack([t, p])),
    "linearize": lambda f, p, t: (lambda value, push: (value, push(t)))(*jax.linearize(f, p)),
    "jacfwd": lambda f, p, t: jax.jacfwd(lambda bias: f({**p, "bias": bias}))(p["bias"]),
    "jacfwd of jacfwd": lambda f, p, t: jax.jacfwd(jax.jacfwd(lambda out: f({**p, "out": out}).sum()))(p["out"]),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode(name: str) -> None:
    plan = TREES.plan(PARAMS, SMALL)
    tangent = tree_params(jax.random.key(1))
    got = FORWARD[name](lambda p: TREES.batch(p, plan), PARAMS, tangent)
    want = FORWARD[name](lambda p: stack([TREE.fun(p, sample) for sample in SMALL]), PARAMS, tangent)
    assert_same(got, want, **GRADIENTS)


def test_forward_mode_next_to_reverse_mode() -> None:
    """Other parameters than those of reverse mode are differentiated in forward mode."""
    plan = TREES.plan(PARAMS, SMALL)

    def product(run: Callable[[Params], Any]) -> Any:
        def gradient(out: Array) -> Any:
            return jax.grad(lambda bias: projected(run({**PARAMS, "bias": bias, "out": out})) ** 2)(PARAMS["bias"])

        return jax.jvp(gradient, (PARAMS["out"],), (jnp.ones_like(PARAMS["out"]),))

    want = product(lambda p: stack([TREE.fun(p, sample) for sample in SMALL]))
    assert_same(product(lambda p: TREES.batch(p, plan)), want, rtol=1e-3, atol=1e-4)


def squares(tree: Any) -> Any:
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(tree))


SECOND: dict[str, Callable[..., Any]] = {
    "reverse over forward": lambda f, p: jax.grad(lambda p: jax.jvp(f, (p,), (p,))[1])(p),
    "reverse over forward of jit": lambda f, p: jax.grad(lambda p: jax.jvp(jax.jit(f), (p,), (p,))[1])(p),
    "reverse over reverse": lambda f, p: jax.grad(lambda p: squares(jax.grad(f)(p)))(p),
}


@pytest.mark.parametrize("name", SECOND)
def test_reverse_mode_of_a_derivative(name: str) -> None:
    plan = TREES.plan(PARAMS, SMALL)
    got = jax.jit(lambda p: SECOND[name](lambda p: projected(TREES.batch(p, plan)), p))(PARAMS)
    want = SECOND[name](lambda p: projected(stack([TREE.fun(p, sample) for sample in SMALL])), PARAMS)
    assert_same(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_export_for_accelerators(platform: str) -> None:
    plan = TREES.plan(PARAMS, SMALL)

    @jax.jit
    def train_step(params: Params, plan: Any) -> Params:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, values_and_gradients(TREES, params, plan)[1])

    exported = jax.export.export(train_step, platforms=[platform])(PARAMS, plan)
    assert exported.platforms == (platform,)
    assert "while" in exported.mlir_module()


# --- Values


@jitbatch
def mixed_step(params: Params, state: Any, x: Array) -> Any:
    key, count, flag, h = state
    key, own = jax.random.split(key)
    noise = jax.random.normal(own, h.shape)
    h = jnp.where(flag, h @ params["h"], h * params["b"]) + x @ params["x"] + 0.1 * noise * count
    return key, count + 1, h.sum() > 0, h


@jitbatch
def mixed_values(params: Params, sample: Any) -> Any:
    state = (sample["key"], jnp.int32(0), sample["flag"], params["h0"])
    for x in sample["xs"]:
        state = mixed_step(params, state, x)
    return state


def test_keys_integers_and_bools_in_loops() -> None:
    rng = np.random.default_rng(0)
    samples = [{"key": jax.random.key(i), "flag": jnp.bool_(i % 2), "xs": normal(rng, 1 + i, INPUT)} for i in range(4)]
    assert loops(check(mixed_values, rnn_params(jax.random.key(0)), samples))


def test_bfloat16() -> None:
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), rnn_params(jax.random.key(0)))
    rng = np.random.default_rng(0)
    samples = [normal(rng, length, INPUT).astype(jnp.bfloat16) for length in (3, 1, 4)]
    check(two_loops, params, samples, rtol=5e-2, atol=5e-2)


def test_nan_stays_in_its_sample() -> None:
    params = rnn_params(jax.random.key(0))
    rng = np.random.default_rng(0)
    samples = [normal(rng, length, INPUT) for length in (3, 4, 1, 4)]
    samples[1] = samples[1].at[1].set(jnp.nan)
    got = two_loops.batch(params, two_loops.plan(params, samples))
    np.testing.assert_array_equal(np.isnan(got).any(1), [False, True, False, False])
    want = stack([two_loops.__wrapped__(params, xs) for xs in samples])
    assert_same(got[jnp.array([0, 2, 3])], want[jnp.array([0, 2, 3])])


def test_effects_are_dispatched(capsys: pytest.CaptureFixture[str]) -> None:
    @jitbatch
    def cell(w: Array, x: Array) -> Array:
        jax.debug.print("seen {}", x)
        return w * x

    batched = jitbatch(lambda w, xs: functools.reduce(lambda h, x: cell(w, h + x), xs, 0.0), executor="fused")
    plan = batched.plan(jnp.float32(2), [(1.0,), (2.0, 3.0)])
    assert plan.static.executor == "dispatch"
    assert repr(plan).endswith(" padding, dispatch: cells have effects)")
    np.testing.assert_allclose(batched.batch(jnp.float32(2), plan), [2.0, 14.0])
    jax.effects_barrier()
    assert capsys.readouterr().out.count("seen") == 3


def test_a_list_of_outputs() -> None:
    batched = jitbatch(lambda params, xs: [xs, two_loops(params, xs)], out="list")
    params = rnn_params(jax.random.key(0))
    rng = np.random.default_rng(0)
    samples = [normal(rng, length, INPUT) for length in (3, 1, 4)]
    plan = batched.plan(params, samples)
    assert plan.static.executor == "fused"
    assert_same(batched.batch(params, plan), [batched.__wrapped__(params, xs) for xs in samples])


def test_a_long_chain() -> None:
    params = {name: 0.5 * leaf for name, leaf in rnn_params(jax.random.key(0)).items()}
    xs = normal(np.random.default_rng(0), 300, INPUT)
    samples = [xs, xs[:7]]
    batched = jitbatch(lambda params, xs: functools.reduce(lambda h, x: first_step(params, x, h), xs, params["h0"]))
    plan = batched.plan(params, samples)
    (phase,) = loops(plan)
    assert phase.rounds >= 300

    def scanned(params: Params, xs: Array) -> Array:
        return jax.lax.scan(lambda h, x: (first_step(params, x, h), None), params["h0"], xs)[0]

    got = jax.jit(functools.partial(values_and_gradients, batched))(params, plan)
    assert_same(got, loop(scanned, params, samples), **GRADIENTS)


def test_permuting_samples_permutes_outputs_bit_for_bit() -> None:
    rows = np.asarray(TREES.batch(PARAMS, TREES.plan(PARAMS, LARGE)))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(LARGE))
        permuted = TREES.batch(PARAMS, TREES.plan(PARAMS, [LARGE[i] for i in order]))
        assert np.asarray(permuted).tobytes() == rows[order].tobytes()
