"""Mistakes that can be told from their consequences: what the library says of them."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jitbatch import jitbatch
from jitbatch.util.errors import ArgumentError, MutationError, PlanError

PARAMS = {"embed": jax.random.normal(jax.random.key(0), (10, 4)), "left": jnp.eye(4), "right": jnp.eye(4) / 2}
TREES = [((1, 2), 3), (4, 5)]


@jitbatch
def leaf(params: Any, word: Any) -> Any:
    return jnp.tanh(params["embed"][word])


@jitbatch
def compose(params: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(left @ params["left"] + right @ params["right"])


@jitbatch
def encode(params: Any, tree: Any) -> Any:
    return compose(params, *(encode(params, t) for t in tree)) if isinstance(tree, tuple) else leaf(params, tree)


# --- A single tree in place of samples


@pytest.mark.parametrize("tree", [(1, (2, 3)), ((1, 2), 3), ((1, 2), 3, 4)])
@pytest.mark.parametrize("use", [encode.batch, encode.plan, encode.explain])
def test_a_tuple_that_looks_like_one_tree(tree: Any, use: Any) -> None:
    with pytest.warns(
        UserWarning, match=rf"'tree' is a tuple .* {len(tree)} samples: .*give a list of it, `\[tree\]`"
    ) as told:
        use(PARAMS, tree)
    assert {one.filename for one in told} == {__file__}


@pytest.mark.parametrize(
    "samples",
    [
        [1, (2, 3)],
        (1, 2),
        ((1, 2), (3, 4)),
        (jnp.int32(1), 2),
        tuple([1, (2, 3)] * 5),  # too many for a node of a tree
    ],
)
def test_samples_without_a_warning(samples: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = encode.batch(PARAMS, samples)
    np.testing.assert_allclose(got, [encode(PARAMS, tree) for tree in samples], rtol=1e-6)


# --- Arguments in the wrong order


@pytest.mark.parametrize("use", [encode.batch, encode.plan, encode.check])
def test_samples_in_place_of_parameters(use: Any) -> None:
    told = r"the argument 'params', which all samples share, is a list of 2 items. .* arguments are \(params, tree\)"
    with pytest.raises(ArgumentError, match=rf"different lengths on axis 0: .*; {told}"):
        use(TREES, PARAMS)
    with pytest.raises(TypeError) as caught:
        use(TREES, [PARAMS])
    assert any("the arguments are (params, tree)" in note for note in caught.value.__notes__)


def test_a_list_of_weights_is_no_mistake() -> None:
    with pytest.raises(ArgumentError, match="'x' is mapped") as caught:
        jitbatch(lambda weights, x: weights[0] * x).batch([jnp.ones(2)], 3.0)
    assert "which all samples share" in str(caught.value)  # a number is no samples, so the list may be
    with pytest.raises(TypeError) as raised:
        jitbatch(lambda weights, x: weights["w"] * x).batch([jnp.ones(2)], [1.0])
    assert not any("wrong place" in note for note in raised.value.__notes__)


# --- Plans inside of transformations


def test_planning_traced_samples() -> None:
    step = jax.jit(lambda params, trees: encode.batch(params, encode.plan(params, trees)))
    with pytest.raises(PlanError, match="Plan outside of the transformation, and pass it the plan in place"):
        step(PARAMS, TREES)
    with pytest.raises(PlanError, match="Plan outside of the transformation"):
        jax.vmap(lambda x: encode.plan(PARAMS, [x]))(jnp.arange(3))
    scaled = jitbatch(lambda w, x: w * x)
    with pytest.raises(PlanError, match=r"To differentiate with respect to samples, call .batch"):
        jax.grad(lambda x: scaled.batch(1.0, scaled.plan(1.0, [x]))[0])(2.0)


# --- Floats as indices


@pytest.mark.parametrize("word", [2.0, np.float32(2)])
def test_a_float_in_place_of_a_word(word: Any) -> None:
    with pytest.raises(TypeError, match="Indexer must have integer") as caught:
        encode.batch(PARAMS, [(1, 2), ((3, word), 4)])
    (told,) = (note for note in caught.value.__notes__ if "an index" in note)
    assert told == f"jitbatch: tree[1][0][1] is the float {word!r}; an index, such as that of a word, is an integer"


# --- State


class Inner(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)


class Model(nnx.Module):
    def __init__(self) -> None:
        self.layers = nnx.List([Inner(nnx.Rngs(0)), Inner(nnx.Rngs(1))])

    @jitbatch
    def dropped(self, x: Any) -> Any:
        return self.layers[1].drop(x)

    @jitbatch
    def normed(self, x: Any) -> Any:
        return self.layers[0].norm(x)

    @jitbatch
    def keyed(self, x: Any, key: Any) -> Any:
        return self.layers[1].drop(x, rngs=key)


X = np.ones(4, np.float32)


def test_a_change_of_state_names_the_submodule() -> None:
    model = Model()
    with pytest.raises(MutationError, match=r"the Dropout at `layers.1.drop` in the shared .* Model .*rngs=key"):
        model.dropped.batch([X])
    with pytest.raises(MutationError, match=r"the BatchNorm at `layers.0.norm` in the shared .* Model .*use LayerNorm"):
        model.normed.batch([X])
    with pytest.raises(MutationError, match=r"^the Dropout was changed in place .*rngs=key"):
        jitbatch(lambda w, x: model.layers[0].drop(w * x)).batch(1.0, [X])
    model.eval()
    np.testing.assert_allclose(model.dropped.batch([X]), [X])


def test_dropout_with_a_key_of_each_sample() -> None:
    model, keys = Model(), jax.random.split(jax.random.key(0), 3)
    expected = [model.keyed(X, key) for key in keys]
    np.testing.assert_allclose(model.keyed.batch([X] * 3, keys), expected)
    assert len({tuple(np.asarray(one).tolist()) for one in expected}) > 1


def test_a_change_of_a_parameter_names_its_path() -> None:
    def sets(params: Any, x: Any) -> Any:
        params["a"]["b"] = params["a"]["b"] * 2
        return params["a"]["b"] * x

    with pytest.raises(MutationError, match=r"the shared argument of type dict, at `\['a'\]\['b'\]`, was changed"):
        jitbatch(sets).batch({"a": {"b": jnp.ones(2)}}, [1.0])


# --- Libraries of layers


class Layers(nnx.Module):
    def __init__(self) -> None:
        self.first = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    @jitbatch(out="list")
    def run(self, x: Any) -> Any:
        return nnx.relu(self.first(x))


def test_advice_points_at_the_line_that_calls_a_layer() -> None:
    report = Layers().run.explain([X, np.ones((2, 4), np.float32)])
    line = Layers.run.__wrapped__.__code__.co_firstlineno + 2
    places = {cell.where for cell in report.cells} | {advice.where for advice in report.advice if advice.where}
    assert places == {f"{__file__}:{line}"}
