"""Batching equals the plain loop, values and gradients, for every workload, granularity and policy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import attention_models  # noqa: F401  its workloads are among those of the zoo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from sampled import every
from zoo import (
    HIDDEN,
    INPUT,
    WORKLOADS,
    Params,
    TreeNet,
    Workload,
    assert_bits,
    assert_same,
    counted_compilations,
    gradients,
    named,
    normal,
    projected,
    rnn_cell,
    rnn_params,
    sequences,
    stack,
    token_trees,
    tree_params,
)

from jitbatch import Static, clear_caches, jitbatch

GRANULARITIES = ("op", "subgraph", "graph", "auto")
POLICIES = ("depth", "agenda", "auto")
GRID = ("binary_tree", "bare_tree_lstm", "dag")
GRADIENTS = {"rtol": 1e-4, "atol": 1e-5}
DIAGONAL = (("op", "depth", "dispatch"), ("subgraph", "agenda", "fused"), ("graph", "depth", "dispatch"))


def cases() -> Iterator[Any]:
    """The full grid of options on one workload; each granularity, policy and executor on all others. Of the grid, only
    `auto` policies and executors run, and op and graph on every twelfth workload, in turn, unless slow tests are asked
    for."""
    grid = [(granularity, policy, "dispatch") for granularity in GRANULARITIES for policy in POLICIES]
    grid += [("auto", policy, "fused") for policy in POLICIES]
    for number, workload in enumerate(WORKLOADS):
        for options in grid if workload.name == GRID[0] else DIAGONAL:
            often = options[0] == "subgraph" or number % 12 == 6 * (options[0] == "op")
            if workload.name == GRID[0]:
                often = options[1] == "auto" or options[2] == "fused"
            marks = () if often else pytest.mark.slow
            yield pytest.param(workload, *options, id="-".join((workload.name, *options)), marks=marks)


@functools.cache
def drawn(workload: Workload) -> tuple[Any, list[Any]]:
    return workload.draw()


@functools.cache
def reference(workload: Workload) -> Any:
    """The plain loop's values."""
    return workload.loop(*drawn(workload))


@functools.cache
def reference_gradients(workload: Workload) -> Any:
    """The plain loop's gradients."""
    params, samples = drawn(workload)
    return gradients(workload.loop, params, samples, workload.float_inputs)[1]


def check(workload: Workload, values: Any = None, grads: Any = None) -> None:
    """Compare with the plain loop."""
    low = workload.low_precision
    if values is not None:
        assert_same(values, reference(workload), **({"rtol": 3e-2, "atol": 3e-2} if low else {}))
    if grads is not None:
        assert_same(grads, reference_gradients(workload), **({"rtol": 5e-2, "atol": 5e-2} if low else GRADIENTS))


@pytest.mark.parametrize("workload", every(6, WORKLOADS, first=2, name=attrgetter("name")))
def test_values(workload: Workload) -> None:
    check(workload, values=workload.batched.batch(*drawn(workload)))


@pytest.mark.parametrize("name", GRID)
def test_gradients(name: str) -> None:
    workload = named(name)
    check(workload, grads=gradients(workload.batched.batch, *drawn(workload), workload.float_inputs)[1])


@pytest.mark.parametrize(("workload", "granularity", "policy", "executor"), list(cases()))
def test_values_and_gradients_in_one_program(workload: Workload, granularity: Any, policy: Any, executor: Any) -> None:
    run = jitbatch(workload.fun, granularity=granularity, policy=policy, executor=executor).batch
    check(workload, *gradients(run, *drawn(workload), workload.float_inputs, transform=jax.jit))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_plain_call_is_the_plain_function(workload: Workload) -> None:
    params, samples = drawn(workload)
    assert_same(stack([workload.batched(params, sample) for sample in samples]), reference(workload))


# --- Plans


PLANNED = ("binary_tree", "rnn", "dag", "ints_and_bools", "dropout_keys", "shared_values", "equinox_module")


@pytest.mark.parametrize("name", PLANNED)
def test_plan_then_batch(name: str) -> None:
    workload = named(name)
    params, samples = drawn(workload)
    batched = jitbatch(workload.fun)
    plan = batched.plan(params, samples)
    assert_same(batched.batch(params, plan), reference(workload))
    assert_same(batched.batch(params, plan), batched.batch(params, samples))


def test_plan_needs_only_shapes_of_shared_arguments() -> None:
    workload = named("binary_tree")
    params, samples = drawn(workload)
    plan = workload.batched.plan(jax.eval_shape(lambda: params), samples)
    assert_same(workload.batched.batch(params, plan), reference(workload))


def test_plan_serves_other_parameters_and_gradients() -> None:
    workload = named("binary_tree")
    params, samples = drawn(workload)
    plan = workload.batched.plan(params, samples)
    other = tree_params(jax.random.key(7))
    assert_same(workload.batched.batch(other, plan), workload.loop(other, samples))
    got = jax.grad(lambda p: projected(workload.batched.batch(p, plan)))(other)
    want = jax.grad(lambda p: projected(workload.loop(p, samples)))(other)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_plan_inside_jit() -> None:
    workload = named("binary_tree")
    params, samples = drawn(workload)
    plan = workload.batched.plan(params, samples)
    assert_same(jax.jit(lambda p: workload.batched.batch(p, plan))(params), reference(workload))


def test_plan_as_an_argument_of_jit() -> None:
    workload = named("binary_tree")
    params, samples = drawn(workload)
    plan = workload.batched.plan(params, samples)
    assert_same(jax.jit(lambda p, plan: workload.batched.batch(p, plan))(params, plan), reference(workload))


def test_plan_stands_in_the_place_of_all_mapped_arguments() -> None:
    def fun(params: Params, xs: Array, scale: Array) -> Array:
        return scale * rnn_cell(params, xs[-1], params["h0"])

    params = rnn_params(jax.random.key(0))
    xss = sequences(np.random.default_rng(0), 3)
    scales = jnp.arange(1.0, 4.0)
    batched = jitbatch(fun)
    plan = batched.plan(params, xss, scales)
    want = stack([fun(params, *item) for item in zip(xss, scales, strict=True)])
    assert_same(batched.batch(params, plan), want)


def test_plan_gives_the_kind_of_output_of_its_function() -> None:
    params, samples = drawn(named("rnn"))
    batched = jitbatch(lambda params, xs: xs * params["h0"][0], out="list")
    got = batched.batch(params, batched.plan(params, samples))
    assert_same(got, [xs * params["h0"][0] for xs in samples])


# --- Transformations


SMALL = named("rnn")


def small() -> tuple[Params, list[Array]]:
    return SMALL.make_params(jax.random.key(3)), SMALL.make_samples(np.random.default_rng(3), 3)


def initial_state_only(params: Params) -> Callable[[Array], Params]:
    return lambda h0: {**params, "h0": h0}


def test_jit_over_shared_arguments() -> None:
    params, samples = small()
    assert_same(jax.jit(lambda p: SMALL.batched.batch(p, samples))(params), SMALL.loop(params, samples))


def test_jit_over_samples() -> None:
    params, samples = small()
    assert_same(jax.jit(SMALL.batched.batch)(params, samples), SMALL.loop(params, samples))


def test_value_and_grad_inside_jit() -> None:
    params, samples = small()

    def value_and_grad(run: Any) -> Any:
        return jax.value_and_grad(lambda p, s: projected(run(p, s)), argnums=(0, 1))

    got = jax.jit(value_and_grad(SMALL.batched.batch))(params, samples)
    assert_same(got, value_and_grad(SMALL.loop)(params, samples), rtol=1e-4, atol=1e-5)


def test_vmap_over_stacked_parameters() -> None:
    _, samples = small()
    many = [SMALL.make_params(jax.random.key(seed)) for seed in range(3)]
    got = jax.vmap(lambda p: SMALL.batched.batch(p, samples))(stack(many))
    assert_same(got, stack([SMALL.loop(params, samples) for params in many]))


def test_jvp() -> None:
    params, samples = small()
    tangent = SMALL.make_params(jax.random.key(4))
    got = jax.jvp(lambda p: SMALL.batched.batch(p, samples), (params,), (tangent,))
    want = jax.jvp(lambda p: SMALL.loop(p, samples), (params,), (tangent,))
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_jvp_over_samples() -> None:
    params, samples = small()
    tangent = SMALL.make_samples(np.random.default_rng(4), 3)
    got = jax.jvp(lambda s: SMALL.batched.batch(params, s), (samples,), (tangent,))
    want = jax.jvp(lambda s: SMALL.loop(params, s), (samples,), (tangent,))
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_jacfwd() -> None:
    params, samples = small()
    put = initial_state_only(params)
    got = jax.jacfwd(lambda h0: SMALL.batched.batch(put(h0), samples))(params["h0"])
    want = jax.jacfwd(lambda h0: SMALL.loop(put(h0), samples))(params["h0"])
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_hessian() -> None:
    params, samples = small()
    put = initial_state_only(params)
    got = jax.hessian(lambda h0: projected(SMALL.batched.batch(put(h0), samples)))(params["h0"])
    want = jax.hessian(lambda h0: projected(SMALL.loop(put(h0), samples)))(params["h0"])
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_checkpoint() -> None:
    params, samples = small()
    got = jax.grad(jax.checkpoint(lambda p: projected(SMALL.batched.batch(p, samples))))(params)
    want = jax.grad(lambda p: projected(SMALL.loop(p, samples)))(params)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_batch_inside_a_plain_loss_with_optimisation_steps() -> None:
    params, samples = small()

    def descend(run: Any, params: Params) -> Params:
        for _ in range(3):
            slope = jax.grad(lambda p: jnp.sum(jnp.square(run(p, samples) - 0.1)))(params)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)
        return params

    assert_same(descend(SMALL.batched.batch, params), descend(SMALL.loop, params), rtol=1e-4, atol=1e-5)


# --- Options


@pytest.mark.parametrize("name", every(3, ["binary_tree", "one_sample_repeated", "dag", "dropout_keys"]))
def test_dedupe_changes_no_result(name: str) -> None:
    workload = named(name)
    params, samples = drawn(workload)
    samples = samples + samples[:2]
    with_dedupe, without = (jitbatch(workload.fun, dedupe=dedupe) for dedupe in (True, False))
    want = workload.loop(params, samples)
    assert_same(with_dedupe.batch(params, samples), want)
    assert_same(without.batch(params, samples), want)
    got = gradients(without.batch, params, samples, workload.float_inputs)
    assert_same(got, gradients(with_dedupe.batch, params, samples, workload.float_inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", ["auto", "fused", "dispatch"])
def test_executors(executor: Any) -> None:
    workload = named("binary_tree")
    got = jitbatch(workload.fun, executor=executor).batch(*drawn(workload))
    assert_same(got, reference(workload))


def all_states(params: Params, xs: Array) -> tuple[Array, Array]:
    """An output whose shape differs from sample to sample, and one whose shape does not."""
    states = [params["h0"]]
    for x in xs:
        states.append(rnn_cell(params, x, states[-1]))
    return jnp.stack(states), states[-1]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_list_output(granularity: Any) -> None:
    params, samples = small()
    got = jitbatch(all_states, out="list", granularity=granularity).batch(params, samples)
    assert isinstance(got, list)
    assert_same(got, [all_states(params, xs) for xs in samples])


def test_list_output_of_different_structures() -> None:
    def fun(params: Params, node: Any) -> Any:
        return {name: fun(params, child) for name, child in node.items()} if isinstance(node, dict) else node + 1.0

    samples = [{"a": 1.0, "b": {}}, 2.0, {"c": {"d": jnp.arange(3.0)}}]
    got = jitbatch(fun, out="list").batch({}, samples)
    assert_same(got, [fun({}, sample) for sample in samples])


def test_list_output_is_differentiable() -> None:
    params, samples = small()
    batched = jitbatch(all_states, out="list")
    got = jax.grad(lambda p: projected(batched.batch(p, samples)))(params)
    want = jax.grad(lambda p: projected([all_states(p, xs) for xs in samples]))(params)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


def test_the_decorator_with_and_without_options() -> None:
    params, samples = small()

    @jitbatch(granularity="subgraph", policy="depth")
    def last_state(params: Params, xs: Array) -> Array:
        """The last state."""
        return all_states(params, xs)[1]

    assert last_state.__name__ == "last_state"
    assert last_state.__doc__ == "The last state."
    assert list(inspect.signature(last_state).parameters) == ["params", "xs"]
    assert inspect.isfunction(last_state.__wrapped__)
    assert_same(last_state.batch(params, samples), SMALL.loop(params, samples))
    last_state.cache_info()


# --- Which arguments are mapped


def weighted(x: Array, params: Params, tree: Any) -> Array:
    """Arguments in an unusual order, the shared one in the middle."""
    total = sum(tree[1:], tree[0]) if isinstance(tree, list) else tree
    return jnp.tanh(x @ params["x"]) * total


WEIGHTED_TREES = [1.5, [2.0, 0.5], [0.25, 0.5, 1.0]]


def test_shared_argument_in_another_place() -> None:
    params = rnn_params(jax.random.key(0))
    xs = list(normal(np.random.default_rng(0), 3, INPUT))
    got = jitbatch(weighted, in_axes=(0, None, 0)).batch(xs, params, WEIGHTED_TREES)
    assert_same(got, stack([weighted(x, params, tree) for x, tree in zip(xs, WEIGHTED_TREES, strict=True)]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_array_mapped_along_an_axis(axis: int) -> None:
    params = rnn_params(jax.random.key(0))
    xs = normal(np.random.default_rng(0), 3, INPUT)
    array = jnp.moveaxis(xs, 0, axis)
    batched = jitbatch(weighted, in_axes=(axis, None, 0))
    want = stack([weighted(x, params, tree) for x, tree in zip(xs, WEIGHTED_TREES, strict=True)])
    assert_same(batched.batch(array, params, WEIGHTED_TREES), want)
    assert_same(batched.batch(np.asarray(array), params, WEIGHTED_TREES), want)
    got = jax.grad(lambda a: projected(batched.batch(a, params, WEIGHTED_TREES)))(array)
    slope = jax.grad(
        lambda xs: projected(stack([weighted(xs[i], params, tree) for i, tree in enumerate(WEIGHTED_TREES)]))
    )(xs)
    assert_same(got, jnp.moveaxis(slope, 0, axis), rtol=1e-4, atol=1e-5)


def test_mapped_array_of_higher_rank_along_its_middle_axis() -> None:
    params = rnn_params(jax.random.key(0))
    array = normal(np.random.default_rng(0), 4, 3, INPUT)
    got = jitbatch(SMALL.fun, in_axes=(None, 1)).batch(params, array)
    assert_same(got, SMALL.loop(params, [array[:, i] for i in range(3)]))


def test_default_in_axes_share_the_first_argument_only() -> None:
    def fun(params: Params, x: Array, tree: Any, gain: Any) -> Array:
        return gain * weighted(x, params, tree)

    params = rnn_params(jax.random.key(0))
    xs = normal(np.random.default_rng(0), 3, INPUT)
    gains = (1.0, 2.0, 3.0)
    want = stack([fun(params, *item) for item in zip(xs, WEIGHTED_TREES, gains, strict=True)])
    assert_same(jitbatch(fun).batch(params, xs, WEIGHTED_TREES, gains), want)


def test_two_shared_arguments() -> None:
    def fun(params: Params, xs: Array, h: Array) -> Array:
        return rnn_cell(params, xs[-1], h)

    params, samples = small()
    h = jnp.ones(HIDDEN)
    got = jitbatch(fun, in_axes=(None, 0, None)).batch(params, samples, h)
    assert_same(got, stack([fun(params, xs, h) for xs in samples]))


def test_no_shared_argument() -> None:
    def fun(tree: Any, x: Array) -> Array:
        return sum(tree[1:], tree[0]) * x if isinstance(tree, list) else tree - x

    xs = jnp.arange(3.0)
    want = stack([fun(tree, x) for tree, x in zip(WEIGHTED_TREES, xs, strict=True)])
    assert_same(jitbatch(fun, in_axes=0).batch(WEIGHTED_TREES, xs), want)
    assert_same(jitbatch(fun, in_axes=(0, 0)).batch(WEIGHTED_TREES, xs), want)


def test_samples_in_a_tuple() -> None:
    params, samples = small()
    assert_same(SMALL.batched.batch(params, tuple(samples)), SMALL.loop(params, samples))


def test_keyword_arguments() -> None:
    workload = named("binary_tree")
    params, samples = drawn(workload)
    assert_same(workload.batched.batch(params, tree=samples), reference(workload))
    assert_same(workload.batched.batch(tree=samples, params=params), reference(workload))
    assert_same(workload.batched.batch(params, workload.batched.plan(params, tree=samples)), reference(workload))


def test_keyword_only_arguments_and_defaults() -> None:
    def fun(params: Params, xs: Array, *, gain: Any = 2.0, bias: Any = None) -> Array:
        h = gain * rnn_cell(params, xs[-1], params["h0"])
        return h if bias is None else h + bias

    params, samples = small()
    gains = [0.5, 1.0, 1.5]
    biases = jnp.arange(3.0)
    batched = jitbatch(fun)
    assert_same(batched.batch(params, samples), stack([fun(params, xs) for xs in samples]))
    want = stack([fun(params, xs, gain=gain) for xs, gain in zip(samples, gains, strict=True)])
    assert_same(batched.batch(params, samples, gain=gains), want)
    items = zip(samples, gains, biases, strict=True)
    want = stack([fun(params, xs, gain=gain, bias=bias) for xs, gain, bias in items])
    assert_same(batched.batch(params, samples, bias=biases, gain=gains), want)


def test_keyword_arguments_of_subgraphs() -> None:
    @jitbatch
    def cell(params: Params, x: Array, *, h: Array, gain: Any = 2.0) -> Array:
        return gain * jnp.tanh(x @ params["x"] + h)

    def fun(params: Params, xs: Array) -> Array:
        h = cell(params, h=params["h0"], x=xs[0])
        for x in xs[1:]:
            h = cell(params, x, h=h, gain=0.5)
        return h

    params, samples = small()
    assert_same(jitbatch(fun).batch(params, samples), stack([fun(params, xs) for xs in samples]))


def test_bound_methods() -> None:
    model = TreeNet(nnx.Rngs(0))
    trees = token_trees(np.random.default_rng(0), 4)
    want = stack([model.nnx_methods(tree) for tree in trees])
    assert_same(model.nnx_methods.batch(trees), want)
    assert_same(model.nnx_methods.batch(tree=trees), want)
    assert_same(model.nnx_methods.batch(model.nnx_methods.plan(trees)), want)
    assert_same(TreeNet.nnx_methods.batch(model, trees), want)


def test_bound_methods_under_grad() -> None:
    model = TreeNet(nnx.Rngs(0))
    trees = token_trees(np.random.default_rng(0), 3)
    got = jax.grad(lambda m: projected(m.nnx_methods.batch(trees)))(model)
    want = jax.grad(lambda m: projected(stack([m.nnx_methods(tree) for tree in trees])))(model)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), rtol=1e-4, atol=1e-5)


def test_bound_methods_see_a_change_of_parameters() -> None:
    model = TreeNet(nnx.Rngs(0))
    trees = token_trees(np.random.default_rng(0), 3)
    before = model.nnx_methods.batch(trees)
    assert model.out.bias is not None
    model.out.bias[...] = model.out.bias[...] + 1.0
    assert_same(model.nnx_methods.batch(trees), before + 1.0)


# --- Tracers in closures


def test_parameters_in_a_closure_under_grad() -> None:
    workload = named("binary_tree")
    params, samples = drawn(workload)

    def loss(params: Params) -> Array:
        return projected(jitbatch(lambda _, tree: workload.fun(params, tree)).batch(None, samples))

    want = jax.grad(lambda p: projected(workload.loop(p, samples)))(params)
    assert_same(jax.grad(loss)(params), want, rtol=1e-4, atol=1e-5)
    assert_same(jax.jit(jax.grad(loss))(params), want, rtol=1e-4, atol=1e-5)


def test_a_subgraph_that_closes_over_a_tracer() -> None:
    params, samples = small()

    def final(params: Params) -> Any:
        @jitbatch
        def cell(x: Array, h: Array) -> Array:
            return jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])

        @jitbatch(in_axes=0)
        def run(xs: Array) -> Array:
            return functools.reduce(lambda h, x: cell(x, h), xs, params["h0"])

        return run

    got = jax.grad(lambda p: projected(final(p).batch(samples)))(params)
    want = jax.grad(lambda p: projected(SMALL.loop(p, samples)))(params)
    assert_same(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decorate", [jitbatch, lambda fun: fun], ids=["subgraph", "bare"])
def test_a_closed_over_tracer_is_not_kept(decorate: Any) -> None:
    held: dict[str, Any] = {}
    cell = decorate(lambda _, x: jnp.tanh(x * held["w"]))
    batched = jitbatch(lambda _, xs: functools.reduce(lambda h, x: h + cell(None, x), xs, jnp.zeros(INPUT)))
    _, samples = small()

    def loss(w: Array, run: Callable[[Any], Any]) -> Array:
        held["w"] = w
        return projected(run(samples))

    def loop(samples: list[Array]) -> Array:
        return stack([batched(None, xs) for xs in samples])

    for scale in (1.0, -2.0):
        w = scale * jnp.arange(1.0, 1.0 + INPUT)
        got = jax.grad(loss)(w, lambda samples: batched.batch(None, samples))
        assert_same(got, jax.grad(loss)(w, loop), rtol=1e-4, atol=1e-5)
    held["w"] = jnp.ones(INPUT)
    assert_same(batched.batch(None, samples), loop(samples))


def test_plan_refuses_a_closed_over_tracer() -> None:
    params, samples = small()

    def loss(params: Params) -> Array:
        jitbatch(lambda _, xs: SMALL.fun(params, xs)).plan(None, samples)
        return jnp.zeros(())

    with pytest.raises(Exception, match=r"(?i)clos(e|ing|ure)"):
        jax.grad(loss)(params)


# --- Kinds of output


def kinds_of_output(params: Params, sample: Any) -> dict[str, Any]:
    xs, key, flag = sample
    return {
        "none": None,
        "scalar": xs.sum() * params["b"][0],
        "int": jnp.argmax(xs[0]),
        "bool": jnp.all(xs > -1.0),
        "flag": flag,
        "key": key,
        "subkeys": jax.random.split(key, 2),
        "nested": [(xs[0], {}), ()],
        "cell": rnn_cell(params, xs[0], params["h0"]),
    }


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_kinds_of_output(granularity: Any) -> None:
    params, xss = small()
    samples = [(xs, jax.random.key(i), jnp.bool_(i % 2)) for i, xs in enumerate(xss)]
    want = [kinds_of_output(params, sample) for sample in samples]
    assert_same(jitbatch(kinds_of_output, granularity=granularity).batch(params, samples), stack(want))
    assert_same(jitbatch(kinds_of_output, granularity=granularity, out="list").batch(params, samples), want)


def test_none_as_the_whole_output() -> None:
    params, samples = small()
    assert jitbatch(lambda params, xs: None).batch(params, samples) is None
    assert jitbatch(lambda params, xs: None, out="list").batch(params, samples) == [None] * 3


def test_python_numbers_as_outputs() -> None:
    def fun(params: Params, xs: Array) -> dict[str, Any]:
        return {"length": len(xs), "long": len(xs) > 2, "half": len(xs) / 2}

    params, samples = small()
    assert_same(jitbatch(fun).batch(params, samples), stack([fun(params, xs) for xs in samples]))


def test_static_values_decide_without_being_inputs() -> None:
    def fun(params: Params, sample: tuple[Static, Array]) -> Array:
        times, x = sample
        return functools.reduce(lambda h, _: rnn_cell(params, x, h), range(times.value), params["h0"])

    params = rnn_params(jax.random.key(0))
    xs = normal(np.random.default_rng(0), 4, INPUT)
    samples = [(Static(times), x) for times, x in zip((2, 0, 1, 2), xs, strict=True)]
    assert_same(jitbatch(fun).batch(params, samples), stack([fun(params, sample) for sample in samples]))


def test_static_values_of_different_types_are_different() -> None:
    def fun(params: Params, sample: tuple[Static, Array]) -> Array:
        constant, x = sample
        return x / params["scale"] if isinstance(constant.value, bool) else x * constant.value

    params = {"scale": jnp.float32(3.0)}
    samples = [(Static(value), jnp.float32(2.0)) for value in (1, True, 1.0, 0.0, -0.0)]
    got = jitbatch(fun).batch(params, samples)
    assert_bits(got, stack([fun(params, sample) for sample in samples]))


@pytest.mark.parametrize("name", ["binary_tree", "bare_tree_lstm", "rnn", "no_subgraph", "shared_only"])
def test_one_sample(name: str) -> None:
    workload = named(name)
    params, samples = drawn(workload)
    assert_same(workload.batched.batch(params, samples[-1:]), workload.loop(params, samples[-1:]))


def test_zero_samples() -> None:
    params, samples = small()
    batched = jitbatch(kinds_of_output)
    with pytest.raises(Exception, match=r"(?i)zero samples|no samples|empty"):
        batched.batch(params, [])
    known = [(xs, jax.random.key(0), jnp.bool_(True)) for xs in samples]
    full = batched.batch(params, known)
    empty = batched.batch(params, [])
    assert_same(empty, jax.tree.map(lambda leaf: leaf[:0], full))


# --- The plain call, anywhere


def test_plain_call_inside_transformations() -> None:
    params, samples = small()
    xs = samples[-1]
    plain, batched = SMALL.fun, SMALL.batched
    assert_same(jax.jit(batched)(params, xs), plain(params, xs))
    pair = jnp.stack([xs, -xs])
    assert_same(jax.vmap(batched, in_axes=(None, 0))(params, pair), stack([plain(params, x) for x in pair]))
    got = jax.grad(lambda p: projected(batched(p, xs)))(params)
    assert_same(got, jax.grad(lambda p: projected(plain(p, xs)))(params), rtol=1e-4, atol=1e-5)
    got = jax.lax.map(lambda x: batched(params, x), pair)
    assert_same(got, stack([plain(params, x) for x in pair]))


def test_plain_call_of_a_subgraph() -> None:
    params, samples = small()
    h = rnn_cell.__wrapped__(params, samples[0][0], params["h0"])
    assert_same(rnn_cell(params, samples[0][0], params["h0"]), h)
    assert_same(jax.jit(rnn_cell)(params, samples[0][0], params["h0"]), h)


def test_a_subgraph_can_be_batched_by_itself() -> None:
    params, samples = small()
    xs = [sample[0] for sample in samples]
    hs = normal(np.random.default_rng(0), 3, HIDDEN)
    want = stack([rnn_cell(params, x, h) for x, h in zip(xs, hs, strict=True)])
    assert_same(rnn_cell.batch(params, xs, hs), want)


# --- The second call


def counted(fun: Callable[..., Any]) -> tuple[Callable[..., Any], list[None]]:
    """The function, and a list that grows whenever its body runs."""
    runs: list[None] = []

    @functools.wraps(fun)
    def body(*args: Any, **kwargs: Any) -> Any:
        runs.append(None)
        return fun(*args, **kwargs)

    return body, runs


WARM = ("binary_tree", "bare_tree_lstm", "dag", "rnn", "static_operators", "dropout_keys", "nnx_methods")


def test_the_compilation_counter_counts() -> None:
    with counted_compilations() as compilations:
        jax.jit(lambda x: x + 1)(jnp.zeros(3)).block_until_ready()
    assert compilations


@pytest.mark.parametrize("granularity", ["op", "auto"])
@pytest.mark.parametrize("name", WARM)
def test_second_call_records_and_compiles_nothing(name: str, granularity: Any) -> None:
    workload = named(name)
    params, samples = drawn(workload)
    fun, runs = counted(workload.fun)
    batched = jitbatch(fun, granularity=granularity)
    first = jax.block_until_ready(batched.batch(params, samples))
    assert runs
    runs.clear()
    with counted_compilations() as compilations:
        second = jax.block_until_ready(batched.batch(params, samples))
    assert not runs
    assert not compilations
    assert_same(second, first, rtol=0, atol=0)


def test_second_gradient_records_and_compiles_nothing() -> None:
    params, samples = drawn(SMALL)
    fun, runs = counted(SMALL.fun)
    batched = jitbatch(fun)
    slope = jax.grad(lambda p: jnp.sum(batched.batch(p, samples)))
    jax.block_until_ready(slope(params))
    runs.clear()
    with counted_compilations() as compilations:
        jax.block_until_ready(slope(params))
    assert not runs
    assert not compilations


def test_new_values_of_known_structures_record_and_compile_nothing() -> None:
    params, samples = drawn(SMALL)
    other = SMALL.make_samples(np.random.default_rng(9), SMALL.size)
    other_params = rnn_params(jax.random.key(9))
    want = SMALL.loop(other_params, other)
    fun, runs = counted(SMALL.fun)
    batched = jitbatch(fun)
    jax.block_until_ready(batched.batch(params, samples))
    runs.clear()
    with counted_compilations() as compilations:
        got = jax.block_until_ready(batched.batch(other_params, other))
    assert not runs
    assert not compilations
    assert_same(got, want)


def test_a_structure_is_recorded_once() -> None:
    params, _ = drawn(SMALL)
    rng = np.random.default_rng(0)
    fun, runs = counted(SMALL.fun)
    batched = jitbatch(fun)
    batched.batch(params, [normal(rng, length, INPUT) for length in (2, 3, 2, 3, 2)])
    assert len(runs) == 2
    batched.batch(params, [normal(rng, length, INPUT) for length in (3, 4)])
    assert len(runs) == 3


def test_a_leaf_subgraph_is_traced_once_per_signature() -> None:
    params, samples = drawn(SMALL)
    body, runs = counted(rnn_cell.__wrapped__)
    cell = jitbatch(body)

    def fun(params: Params, xs: Array) -> Array:
        return functools.reduce(lambda h, x: cell(params, x, h), xs, jnp.zeros(HIDDEN))

    batched = jitbatch(fun)
    batched.batch(params, samples)
    assert len(runs) == 1


def test_cleared_caches_change_no_result() -> None:
    params, samples = small()
    before = SMALL.batched.batch(params, samples)
    clear_caches()
    assert_bits(SMALL.batched.batch(params, samples), before)
