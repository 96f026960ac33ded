"""The order of keys in dicts: functions see it as the plain loop sees it, wherever a dict comes from."""

from __future__ import annotations

import collections
import pickle
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core import FrozenDict

from jitbatch import Static, assert_max_compiles, clear_caches, jitbatch
from jitbatch.plan.saved.trees import Trees, structures
from jitbatch.util.errors import PlanError
from jitbatch.util.key_order import (
    OrderedTree,
    TooManyParts,
    flatten,
    flatten_in_order,
    orders_of,
    sorted_tree,
    structure,
)

X = jnp.float32([0.5, -1.0])
Z, A, M = jnp.float32([2.0, 3.0]), jnp.float32([-1.0, 0.5]), jnp.float32([0.25, 1.5])
LAYERS = {"z": Z, "a": A, "m": M}


def apply(layers: Any, x: Any) -> Any:
    """Depends on the order of layers."""
    for layer in layers.values():
        x = jnp.tanh(layer * x + 1)
    return x


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Data:
    layers: Any
    scale: Any


@jax.tree_util.register_pytree_node_class
class Copying:
    """Takes itself apart into a dict that is made for it, and remembers what it was made of."""

    def __init__(self, layers: Any):
        self.items = tuple(layers.items())

    def values(self) -> Any:
        return [value for _, value in self.items]

    def tree_flatten(self) -> Any:
        return (dict(self.items),), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Copying:
        return cls(children[0])


class Module(eqx.Module):
    layers: dict[str, Any]


class Held(nnx.Module):
    def __init__(self, layers: Any):
        self.layers = nnx.data({name: nnx.Param(value) for name, value in layers.items()})


HOLDERS = {
    "dict": (lambda d: d, lambda h: h),
    "integers": (lambda d: dict(zip((3, 1, 2), d.values(), strict=True)), lambda h: h),
    "nested": (lambda d: {"y": {"b": {"c": 1.0, **d}}, "x": 1.0}, lambda h: {**h["y"]["b"], "o": h["x"]}),
    "in a list": (lambda d: [1.0, d], lambda h: h[1]),
    "of dicts": (lambda d: {"q": d, "b": {"y": 1.0, "x": 2.0}}, lambda h: {**h["b"], **h["q"]}),
    "named tuple": (lambda d: Pair(d, dict(reversed(d.items()))), lambda h: {**h.first, "last": h.second["m"]}),
    "dataclass": (lambda d: Data(d, 1.0), lambda h: h.layers),
    "copying": (Copying, lambda h: h),
    "OrderedDict": (collections.OrderedDict, lambda h: h),
    "defaultdict": (lambda d: collections.defaultdict(float, d), lambda h: h),
    "FrozenDict": (FrozenDict, lambda h: h),
    "FrozenDict of dicts": (lambda d: FrozenDict({"y": d, "b": {"d": 1.0, "c": 2.0}}), lambda h: {**h["b"], **h["y"]}),
    "Equinox": (Module, lambda h: h.layers),
    "nnx.State": (nnx.State, lambda h: h),
    "nnx.Dict": (lambda d: nnx.Dict({k: nnx.Param(v) for k, v in d.items()}), lambda h: h),
    "nnx.Dict with a function": (
        lambda d: nnx.Dict(
            {name: jnp.tanh if name == "b" else nnx.Param(d.get(name)) for name in ("a", "b", "m", "z")}
        ),
        lambda h: {name: 2.0 if callable(value) and name == "b" else value for name, value in h.items()},
    ),
    "nnx.Module": (Held, lambda h: h.layers),
}
every_holder = pytest.mark.parametrize(("hold", "get"), HOLDERS.values(), ids=HOLDERS)


def holders(turn: int) -> Any:
    """All holders; half of them, those of this turn, unless slow tests are asked for. A role of dicts has a turn."""
    cases = [
        pytest.param(hold, get, id=name, marks=() if at % 2 == turn else pytest.mark.slow)
        for at, (name, (hold, get)) in enumerate(HOLDERS.items())
    ]
    return pytest.mark.parametrize(("hold", "get"), cases)


options = pytest.mark.parametrize(
    "options",
    [{"executor": e} for e in ("fused", "dispatch", "per_sample")] + [{"granularity": g} for g in ("op", "graph")],
    ids=str,
)


def assert_like_loop(f: Any, params: Any, samples: Any) -> None:
    """On samples and on a plan, the results are those of the plain function, called with the very objects."""
    expected = [f.__wrapped__(params, sample) for sample in samples]
    for got in (f.batch(params, samples), f.batch(params, f.plan(params, samples))):
        np.testing.assert_allclose(got, jnp.stack(expected), rtol=1e-6)
    f.check(params, samples)


@holders(0)
def test_of_parameters(hold: Any, get: Any) -> None:
    params = hold(LAYERS)
    assert_like_loop(jitbatch(lambda params, x: apply(get(params), x)), params, [X, 2 * X])


@holders(1)
def test_of_samples(hold: Any, get: Any) -> None:
    samples = [(hold(LAYERS), X), (hold({"a": A, "m": M, "z": Z}), X), (hold({"m": M, "z": Z, "a": A}), X)]
    assert_like_loop(jitbatch(lambda scale, sample: scale * apply(get(sample[0]), sample[1])), 2.0, samples)


@holders(0)
def test_of_arguments_of_decorated_functions(hold: Any, get: Any) -> None:
    cell = jitbatch(lambda held, x: apply(get(held), x))

    @jitbatch
    def f(params: Any, xs: Any) -> Any:
        others = {name: 2 * params[name] for name in ("m", "a", "z")}
        return sum(cell(hold(params), x) + cell(hold(others), x) + cell(hold({"z": x, "a": x, "m": A}), x) for x in xs)

    assert_like_loop(f, LAYERS, [(X,), (X, 2 * X), (X, 2 * X)])


@holders(1)
def test_of_results_of_decorated_functions(hold: Any, get: Any) -> None:
    cell = jitbatch(lambda params, x: hold({"z": params["z"] * x, "a": params["a"] + x, "m": params["m"]}))
    f = jitbatch(lambda params, xs: sum(apply(get(cell(params, x)), x) for x in xs))
    assert_like_loop(f, LAYERS, [(X,), (X, 2 * X), (X, 2 * X)])


@options
def test_in_every_way_to_run(options: Any) -> None:
    cell = jitbatch(lambda layers, state: {"z": apply(layers, state["z"]), "a": apply(state, X)})

    def f(layers: Any, sample: Any) -> Any:
        state = {"z": X, "a": 2 * X}
        for part in sample.values():
            state = cell(layers, {"z": state["z"] + part, "a": state["a"]})
        return apply(state, X)

    samples = [{"y": 1.0, "x": X}, {"x": X, "y": 1.0}, {"b": X}, {"y": 3.0, "x": 2 * X}]
    assert_like_loop(jitbatch(f, **options), LAYERS, samples)


def test_of_trees_of_dicts_in_decorated_recursions() -> None:
    @jitbatch
    def encode(params: Any, node: Any) -> Any:
        parts = [encode(params, part) if isinstance(part, dict) else params["embed"][part] for part in node.values()]
        return jnp.tanh(sum(0.5**place * part for place, part in enumerate(parts)))

    params = {"embed": jnp.float32([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]])}
    small, other = {"word": 1, "tag": 2}, {"tag": 2, "word": 1}
    large = {"right": small, "left": {"right": other, "left": {"right": small, "left": other}}}
    larger = {"left": large, "right": {"right": large, "left": dict(reversed(large.items()))}, "at": 0}
    assert_like_loop(encode, params, [small, other, large, larger, {"right": larger, "left": larger}, larger])


def test_gradients_are_those_of_the_loop() -> None:
    f = jitbatch(lambda layers, x: apply(layers, x).sum())
    samples = [X, 3 * X]
    assert f.check(LAYERS, samples).gradients.is_allowed

    # JAX sorts what is differentiated, for the loop as for a batch.
    got = jax.grad(lambda layers: f.batch(layers, samples).sum())(LAYERS)
    want = jax.grad(lambda layers: sum(f(layers, x) for x in samples))(LAYERS)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), got, want)


def test_check_fails_for_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jitbatch(lambda layers, x: apply(layers, x))
    monkeypatch.setattr(OrderedTree, "unflatten", lambda self, leaves: self.treedef.unflatten(leaves))
    with pytest.raises(AssertionError, match="differs from the plain loop"):
        f.check(LAYERS, [X])


def test_check_calls_the_function_with_the_very_objects() -> None:
    seen = []

    def f(params: Any, sample: Any) -> Any:
        seen.append((params, sample))
        return params["w"] * sample["x"]

    params, sample = {"w": 2.0, "a": 1}, {"x": 3.0, "b": None}
    jitbatch(f).check(params, [sample])
    assert any(one is params and other is sample for one, other in seen)


def test_of_arguments_that_are_mapped_as_arrays() -> None:
    f = jitbatch(lambda scale, layers: scale * apply(layers, X))
    columns = {name: jnp.stack([value, 2 * value]) for name, value in LAYERS.items()}
    expected = [f(2.0, {name: value[i] for name, value in columns.items()}) for i in range(2)]
    np.testing.assert_allclose(f.batch(2.0, columns), jnp.stack(expected), rtol=1e-6)


def test_of_arguments_that_are_partly_mapped() -> None:
    f = jitbatch(lambda layers: apply(layers, X), in_axes=({"z": None, "a": 0, "m": None},))
    rows = [A, 2 * A]
    expected = jnp.stack([f({**LAYERS, "a": a}) for a in rows])
    np.testing.assert_allclose(f.batch({**LAYERS, "a": rows}), expected, rtol=1e-6)
    nested = jitbatch(lambda args: apply(args["y"], args["x"]["v"]), in_axes=({"x": 0, "y": None},))
    samples = [{"w": 1.0, "v": X}, {"v": 2 * X, "w": 1.0}]
    expected = jnp.stack([nested({"y": LAYERS, "x": x}) for x in samples])
    np.testing.assert_allclose(nested.batch({"y": LAYERS, "x": samples}), expected, rtol=1e-6)


def test_a_plan_serves_parameters_in_any_order() -> None:
    f = jitbatch(lambda layers, x: apply(layers, x))
    plan, expected = f.plan(LAYERS, [X, 2 * X]), jnp.stack([f(LAYERS, X), f(LAYERS, 2 * X)])
    run = jax.jit(f.batch)
    run(LAYERS, plan)
    f.batch(LAYERS, plan)
    with assert_max_compiles(0):
        for layers in (jax.tree.map(lambda w: w, LAYERS), dict(reversed(LAYERS.items()))):
            np.testing.assert_allclose(f.batch(layers, plan), expected, rtol=1e-6)
            np.testing.assert_allclose(run(layers, plan), expected, rtol=1e-6)


@pytest.mark.parametrize("executor", ["fused", "dispatch", "per_sample"])
def test_parameters_that_jax_sorts_in_the_first_step_do_not_compile_again(executor: str) -> None:
    cell = jitbatch(lambda params, h, x: jnp.tanh(params["w"] * h + params["b"]["y"] * x + params["b"]["x"]))
    f = jitbatch(lambda params, xs: sum(cell(params, M, x) for x in xs), executor=executor)
    minibatches = [[(X,), (X, A)], [(A,), (A, X)]]
    params = {"w": Z, "b": {"y": A, "x": M}}
    runs = []

    @jax.jit
    def step(params: Any, plan: Any) -> Any:
        runs.append(None)
        gradients = jax.grad(lambda params: f.batch(params, plan).sum())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    plan = None
    for minibatch in minibatches * 2:
        expected = jax.tree.map(
            lambda p, g: p - 0.1 * g,
            params,
            jax.grad(lambda p: sum(f(p, xs).sum() for xs in minibatch))(params),  # noqa: B023
        )
        plan = f.plan(params, minibatch, like=plan)
        params = step(params, plan)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), params, expected)
    assert len(runs) == 1
    assert f.cache_info()["structures" if executor != "per_sample" else "programs"].misses == 4


def test_a_plan_like_one_for_another_order_serves_as_well() -> None:
    f = jitbatch(lambda params, xs: sum(params["w"] * x + params["b"] for x in xs))
    params = {"w": Z, "b": A}
    large = f.plan(params, [(X,) * 5, (X,) * 4])
    small = f.plan(jax.tree.map(lambda leaf: leaf, params), [(X,), (X,)], like=large)
    assert small.capacity == large.capacity


def test_an_unpickled_plan_keeps_the_order_that_it_was_made_with() -> None:
    f = jitbatch(lambda layers, sample: apply(layers, apply(sample, X)))
    samples = [{"y": X, "x": A}, {"x": X, "y": A}]
    expected = jnp.stack([f(LAYERS, sample) for sample in samples])
    restored = pickle.loads(pickle.dumps(f.plan(LAYERS, samples)))
    for layers in (dict(sorted(LAYERS.items())), LAYERS):
        np.testing.assert_allclose(f.batch(layers, restored), expected, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(f.batch)(layers, restored), expected, rtol=1e-6)


def test_an_unpickled_plan_with_partly_mapped_arguments() -> None:
    f = jitbatch(lambda layers, x: apply(layers, x), in_axes=({"z": None, "a": None, "m": None}, 0))
    restored = pickle.loads(pickle.dumps(f.plan(LAYERS, [X])))
    np.testing.assert_allclose(f.batch(LAYERS, restored), [f(LAYERS, X)], rtol=1e-6)


def test_samples_in_different_orders_share_their_cells() -> None:
    cell = jitbatch(lambda params, sample: jnp.tanh(params * sample["y"] + sample["x"]))
    f = jitbatch(lambda params, sample: cell(params, sample))
    plan = f.plan(Z, [{"y": X, "x": A}, {"x": X, "y": A}])
    assert f.cache_info()["structures"].misses == 2
    assert plan.summary.types == 1


@pytest.mark.parametrize("executor", ["fused", "dispatch", "per_sample"])
def test_of_results(executor: str) -> None:
    """Lists keep it; what is stacked is sorted, as `jax.vmap` returns it, so that results of any order can be."""

    def f(scale: Any, sample: Any) -> Any:
        return {name: scale * value for name, value in sample.items()}

    samples = [{"y": X, "x": A}, {"x": X, "y": A}]
    as_list = jitbatch(f, executor=executor, out="list").batch(2.0, samples)
    assert [list(one) for one in as_list] == [["y", "x"], ["x", "y"]]
    for got, sample in zip(as_list, samples, strict=True):
        jax.tree.map(np.testing.assert_array_equal, got, f(2.0, sample))
    stacked = jitbatch(f, executor=executor)
    got = stacked.batch(2.0, samples)
    assert list(got) == ["x", "y"]
    np.testing.assert_array_equal(got["y"], jnp.stack([2 * X, 2 * A]))
    jax.tree.map(
        np.testing.assert_array_equal, got, jax.tree.map(lambda *a: jnp.stack(a), *[f(2.0, s) for s in samples])
    )


def test_restored_plans_with_lists_of_results() -> None:
    f = jitbatch(lambda scale, sample: {"y": scale * sample, "x": scale}, out="list")
    restored = pickle.loads(pickle.dumps(f.plan(2.0, [X])))
    assert list(f.batch(2.0, restored)[0]) == ["y", "x"]


def test_large_arguments_that_are_walked_keep_it() -> None:
    leaf = jitbatch(lambda params, x: params["w"] * x)

    @jitbatch
    def encode(params: Any, tree: Any) -> Any:
        parts = [encode(params, part) if isinstance(part, dict) else leaf(params, part) for part in tree.values()]
        return jnp.tanh(parts[0] - 0.5 * parts[1])

    def tree(depth: int, flip: int) -> Any:
        parts = {"b": X + flip if depth == 0 else tree(depth - 1, flip // 2), "a": X * depth}
        return dict(reversed(parts.items())) if flip % 2 else parts

    samples = [tree(12, flip) for flip in range(80)]
    assert_like_loop(encode, {"w": Z}, samples)


# The trees themselves


def test_sorted_dicts_have_treedefs_as_jax_has_them() -> None:
    for tree in ({"a": 1, "b": {"c": 2, "d": 3}}, (1, {"x": 2}), [1, (2, 3)]):
        assert flatten(tree) == jax.tree.flatten(tree)
    assert orders_of({"b": {"y": 1, "x": 2}, "a": 3}, jax.tree.structure({"b": {"y": 1, "x": 2}, "a": 3})) == (
        ("b", "a"), ("y", "x"),
    )  # fmt: skip


@every_holder
def test_trees_are_put_together_as_they_were(hold: Any, get: Any) -> None:
    held = hold(LAYERS)
    leaves, tree, statics = flatten_in_order(held)
    assert statics == ()
    made = tree.unflatten(leaves)
    assert list(map(id, get(made).values())) == list(map(id, get(held).values())) or isinstance(held, nnx.Pytree)
    assert structure(made) == tree
    assert sorted_tree(tree) == jax.tree.structure(made) == jax.tree.structure(held)
    assert tree.num_leaves == len(leaves)


def test_leaves_that_are_trees_themselves_are_left_alone() -> None:
    tree = OrderedTree(jax.tree.structure({"b": 0, "a": 0}), (("b", "a"),))
    made = tree.unflatten([{"d": 1, "c": 2}, {"y": 1, "x": {"q": 1, "p": 2}}])
    assert str(made) == "{'b': {'y': 1, 'x': {'q': 1, 'p': 2}}, 'a': {'d': 1, 'c': 2}}"


def test_trees_without_mappings_are_told_from_others() -> None:
    """The number of a treedef's kinds of nodes is the same for equal ones, and no other."""
    trees = [(1, 2), [1, 2], {"a": 1, "b": 2}, Pair(1, 2), (1, {"a": 1}), (1, {"a": 1, "b": 2}), (1, [2]), Static(1)]
    kinds = [hash(jax.tree.structure(tree)) for tree in trees]
    assert len(set(kinds)) == len(trees)
    assert hash(jax.tree.structure({"z": 1, "y": 2})) == kinds[2]
    assert hash(jax.tree.structure(Static(2))) == kinds[-1]


def test_saved_trees_whose_keys_cannot_be_sorted_are_refused() -> None:
    trees = Trees.from_data({"nodes": [["dict", "a", None], ["int"]], "trees": [[0, 1, 1]]})
    with pytest.raises(PlanError, match="a saved tree cannot be taken apart again"):
        structures(trees)


@pytest.mark.parametrize("keys", [0, {"z": 0, "a": 0}, {"z": 0, "a": 0, "other": 0}], ids=str)
def test_saved_orders_that_are_none_of_the_parameters_are_refused(keys: Any) -> None:
    f = jitbatch(lambda layers, x: apply(layers, x))
    restored = pickle.loads(pickle.dumps(f.plan(LAYERS, [X])))
    saved: Any = restored.static
    content = replace(saved.content, orders=Trees.of([keys], "an order"))
    saved.__dict__["content"] = content
    clear_caches()  # how the function is called is remembered by the digest of a plan
    with pytest.raises(PlanError):
        f.batch(LAYERS, restored)


def test_trees_that_are_put_together_again_have_their_own_leaves_and_keys() -> None:
    """Also trees that are equal but for the classes of their keys, and trees of a class of nodes in the middle."""
    for tree in (
        {"z": [1, (2, None)], "a": {"y": 3, "b": ({"d": 4, "c": 5},)}, "k": {}},
        {True: {"b": 1, "a": 2}, False: 3},
        {1: {"b": 1, "a": 2}, 0: 3},
        [Layer({"z": 1, "a": 2}), {"y": 1, "x": 2}],
    ):
        leaves, treedef = flatten(tree)
        assert isinstance(treedef, OrderedTree)
        for more in (0, 10, 20):
            made = treedef.unflatten(leaf + more for leaf in leaves)
            wanted = jax.tree.map(lambda leaf, more=more: leaf + more, tree)
            assert jax.tree.structure(made) == jax.tree.structure(wanted)
            assert jax.tree.leaves(made) == jax.tree.leaves(wanted)
            assert repr(flatten(made)[1].orders) == repr(treedef.orders)  # True is not 1


def test_named_tuples_are_counted_as_tuples() -> None:
    tree: Any = 0
    for _ in range(8):
        tree = Layer((tree, tree))
    assert len(flatten_in_order(tree, 1024)[0]) == 256
    with pytest.raises(TooManyParts):
        flatten_in_order(tree, 512)


class Layer(NamedTuple):
    weights: Any
