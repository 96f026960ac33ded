"""Errors say what happened, where in the user's sample, and what to do."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jitbatch import JitbatchError, Static, jitbatch
from jitbatch.util import errors

X = np.float32([1.0, 2.0])


@jitbatch
def product(w: Any, x: Any) -> Any:
    return w * x


@jitbatch
def combined(w: Any, x: Any, y: Any) -> Any:
    return w * x + y


@jitbatch
def labelled(w: Any, x: Any) -> Any:
    return {"value": w * x, "label": ["positive"]}


def on_value(use: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: jitbatch(lambda w, x: w * use(x)).batch(1.0, [1, 2])


def signed(w: Any, x: Any) -> Any:
    if x > 0:  # the line that the error names
        return w * x
    return x


def nested(depth: int) -> Any:
    sample: Any = 1.0
    for _ in range(depth):
        sample = (sample,)
    return sample


def linen_method() -> Any:
    class Net(nn.Module):
        @jitbatch
        def score(self, x: Any) -> Any:
            return x

    return Net().score.batch([X])


def linen_call() -> Any:
    class Net(nn.Module):
        @jitbatch
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(2)(x)

    return Net().init(jax.random.key(0), X)


ERRORS: dict[str, tuple[type[Exception], Callable[[], Any], list[str]]] = {
    # Arguments
    "ragged zips": (
        TypeError,
        lambda: combined.batch(1.0, [1.0, 2.0], [1.0]),
        ["one item for each sample", "x has 2", "y has 1"],
    ),
    "ragged arrays": (
        TypeError,
        lambda: combined.batch(1.0, np.zeros((3, 2)), [X]),
        ["one item for each sample", "x has 3", "y has 1"],
    ),
    "an argument is missing": (
        TypeError,
        lambda: combined.batch(1.0, [1.0]),
        ["missing a required argument: 'y'", "(w: 'Any', x: 'Any', y: 'Any')"],
    ),
    "an unknown keyword": (TypeError, lambda: product.batch(1.0, [1.0], z=[1.0]), ["unexpected keyword argument 'z'"]),
    "a generator": (TypeError, lambda: product.batch(1.0, (x for x in [1.0])), ["'x' is a generator", "a list"]),
    "a map": (TypeError, lambda: product.batch(1.0, map(float, [1])), ["'x' is a map", "a list"]),
    "a set": (TypeError, lambda: product.batch(1.0, {1.0}), ["'x' is mapped (in_axes 0) but is a set", "list"]),
    "a number": (TypeError, lambda: product.batch(1.0, 2.0), ["'x' is mapped", "is a float", "in_axes None"]),
    "text": (TypeError, lambda: product.batch(1.0, "text"), ["'x' is mapped", "is a str"]),
    "an array without axes": (TypeError, lambda: product.batch(1.0, jnp.ones(())), ["mapped on axis 0", "shape ()"]),
    "nothing is mapped": (
        TypeError,
        lambda: jitbatch(lambda w, x: w * x, in_axes=(None, None)).batch(1.0, 1.0),
        ["no argument is mapped", "in_axes"],
    ),
    "in_axes too short": (
        TypeError,
        lambda: jitbatch(lambda a, b, c: a, in_axes=(None, 0)).batch(1.0, [1.0], [2.0]),
        ["in_axes=(None, 0) has 2 entries", "3 positional arguments: a, b, c"],
    ),
    "in_axes too long": (
        TypeError,
        lambda: jitbatch(lambda a, b: a * b, in_axes=(None, 0, 0)).batch(1.0, [1.0]),
        ["in_axes=(None, 0, 0) has 3 entries"],
    ),
    "in_axes of text": (
        TypeError,
        lambda: jitbatch(lambda a, b: a, in_axes=(None, "x")).batch(1.0, [1.0]),
        ["in_axes for 'b'", "integers and None", "'x'"],
    ),
    "in_axes of another tree": (
        TypeError,
        lambda: jitbatch(lambda a, b: a, in_axes=(None, (0, 0))).batch(1.0, ([1.0],)),
        ["in_axes (0, 0) does not fit the argument 'b'"],
    ),
    "a sequence along axis 1": (
        TypeError,
        lambda: jitbatch(lambda a, b: a, in_axes=(None, 1)).batch(1.0, [X]),
        ["'b' is a sequence of samples, so its axis is 0, not 1"],
    ),
    "no samples": (
        TypeError,
        lambda: jitbatch(lambda w, x: x).batch(1.0, []),
        ["given no samples", 'out="list"'],
    ),
    "no samples to plan": (ValueError, lambda: product.plan(1.0, []), ["no samples"]),
    # Options
    "granularity": (TypeError, lambda: jitbatch(granularity="cell"), ["granularity='cell'", "'subgraph'", "'graph'"]),
    "policy": (TypeError, lambda: jitbatch(policy="fast"), ["policy='fast'", "'depth'", "'agenda'"]),
    "executor": (TypeError, lambda: jitbatch(executor="gpu"), ["executor='gpu'", "'dispatch'"]),
    "out": (TypeError, lambda: jitbatch(out="tuple"), ["out='tuple'", "'stack'", "'list'"]),
    "decorated twice": (TypeError, lambda: jitbatch(product), ["decorated already", "__wrapped__", "product"]),
    "decorated twice with options": (TypeError, lambda: jitbatch(out="list")(product), ["decorated already"]),
    "not a function": (TypeError, lambda: jitbatch(3), ["decorates functions, got 3"]),  # type: ignore[call-overload]
    # Samples
    "a string leaf": (
        TypeError,
        lambda: product.batch(1.0, [{"x": [1.0]}, {"x": [1.0, "max"]}]),
        ["sample 1: x[1]['x'][1] is 'max' of type str", "jitbatch.Static"],
    ),
    "a function leaf": (TypeError, lambda: product.batch(1.0, [print]), ["sample 0: x[0] is", "jitbatch.Static"]),
    "an array of text": (TypeError, lambda: product.batch(1.0, [np.array(["a"])]), ["sample 0: x[0]", "Static"]),
    "nested too deeply": (
        TypeError,
        lambda: product.batch(1.0, [1.0, nested(2 * sys.getrecursionlimit())]),
        ["sample 1 is nested too deeply", "setrecursionlimit"],
    ),
    # Control flow
    "bool": (TypeError, on_value(lambda x: 1 if x else 2), ["bool() was asked", "int32[]", "sample 0", "test_errors"]),
    "comparison": (TypeError, on_value(lambda x: max(x, 0)), ["bool() was asked", "bool[]", "sample 0"]),
    "int": (TypeError, on_value(int), ["int() was asked", "sample 0"]),
    "float": (TypeError, on_value(float), ["float() was asked", "sample 0"]),
    "index": (TypeError, on_value(lambda x: [1, 2][x]), ["index() was asked", "sample 0"]),
    "range": (TypeError, on_value(lambda x: len(range(x))), ["index() was asked", "sample 0"]),
    "numpy": (TypeError, on_value(np.asarray), ["numpy.asarray() was asked", "sample 0"]),
    "a ufunc of numpy": (TypeError, on_value(np.sin), ["numpy.asarray() was asked", "sample 0"]),
    "item": (TypeError, on_value(lambda x: x.item()), ["item() was asked", "sample 0"]),
    "tolist": (TypeError, on_value(lambda x: x.tolist()), ["tolist() was asked", "sample 0"]),
    "complex": (TypeError, on_value(complex), ["complex() was asked", "sample 0"]),
    # Outputs
    "a subgraph returns text": (
        TypeError,
        lambda: jitbatch(lambda w, x: labelled(w, x)["value"]).batch(1.0, [1.0]),
        ["`labelled` (", "'positive' of type str at result['label'][0]", "while sample 0", "undecorated function"],
    ),
    "the function returns text": (
        TypeError,
        lambda: labelled.batch(1.0, [1.0]),
        ["'positive' of type str at result['label'][0]", "sample 0 of `labelled`"],
    ),
    "the function returns a function": (
        TypeError,
        lambda: jitbatch(lambda w, x: (x, print)).batch(1.0, [1.0]),
        ["at result[1]", "sample 0"],
    ),
    "shapes do not stack": (
        TypeError,
        lambda: jitbatch(lambda w, x: {"y": w * x}).batch(1.0, [np.zeros(2), np.zeros(2), np.zeros(3), np.zeros(4)]),
        ["sample 2 has the result {y: float32[3]}", "sample 0 has {y: float32[2]}", 'out="list"'],
    ),
    "dtypes do not stack": (
        TypeError,
        lambda: product.batch(1, [1.0, 2.0, 3]),
        ["sample 2 has the result int32[]", "sample 0 has float32[]"],
    ),
    "trees do not stack": (
        TypeError,
        lambda: jitbatch(lambda w, x: x).batch(1.0, [1.0, (1.0,)]),
        ["sample 1 has the result (float32[],)", "sample 0 has float32[]"],
    ),
    # Plans
    "a plan of another function": (
        ValueError,
        lambda: combined.batch(1.0, product.plan(1.0, [1.0])),
        ["made by `product`", "not by `combined`"],
    ),
    "a plan with other shapes": (
        ValueError,
        lambda: product.batch(X, product.plan(1.0, [1.0])),
        ["shared arguments differ", "w was a Python float", "is float32[2]", "Plan again"],
    ),
    "a plan with another tree": (
        ValueError,
        lambda: product.batch({"w": 1.0}, product.plan(1.0, [1.0])),
        ["shared arguments differ", "trees differ"],
    ),
    "a plan and samples": (
        TypeError,
        lambda: combined.batch(1.0, combined.plan(1.0, [1.0], [1.0]), [1.0]),
        ["plan"],
    ),
    # Modules
    "a Linen method": (JitbatchError, linen_method, ["Linen module Net", "score", "model.apply(variables"]),
    "a Linen call": (JitbatchError, linen_call, ["Linen module Net", "__call__", "model.apply(variables"]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    builtin, act, texts = ERRORS[name]
    with pytest.raises(JitbatchError) as caught:
        act()
    message = str(caught.value)
    assert isinstance(caught.value, builtin)
    for text in texts:
        assert text in message
    assert "0x" not in message.replace(repr(print), "")


def test_every_error_is_also_what_a_caller_would_catch() -> None:
    for _, error in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(error, JitbatchError)
        assert error.__doc__
        if error is not JitbatchError:
            assert issubclass(error, TypeError | ValueError | RuntimeError | AssertionError)


def test_control_flow_names_the_line_and_the_way_out() -> None:
    lines, first = inspect.getsourcelines(signed)
    line = first + next(i for i, text in enumerate(lines) if "if x > 0" in text)
    with pytest.raises(JitbatchError) as caught:
        jitbatch(signed).batch(1.0, [(1.0)])
    message = str(caught.value)
    assert f"{__file__}:{line}" in message
    for text in ("sample 0 of `signed`", "jitbatch.Static(...)", "jnp.where", "lax.cond"):
        assert text in message


def test_control_flow_in_a_later_sample_names_that_sample() -> None:
    def fun(w: Any, x: Any) -> Any:
        return signed(w, x[0]) if isinstance(x, tuple) else w * x

    with pytest.raises(JitbatchError, match="sample 2 of"):
        jitbatch(fun).batch(1.0, [1.0, 2.0, (3.0,)])


def test_control_flow_in_a_subgraph_names_the_sample() -> None:
    cell = jitbatch(signed)
    with pytest.raises(JitbatchError, match=r"sample 0 of .*Static"):
        jitbatch(lambda w, x: cell(w, x)).batch(1.0, [1.0])


def test_unhashable_static_values() -> None:
    with pytest.raises(TypeError, match=r"jitbatch.Static needs a hashable value, got .* of type ndarray"):
        Static(X)


def test_static_values_with_another_static_value_need_another_plan() -> None:
    fun = jitbatch(lambda w, x: w[1] * x * w[0].value)
    plan = fun.plan((Static(2), 1.0), [1.0])
    assert fun.batch((Static(2), 3.0), plan).tolist() == [6.0]
    with pytest.raises(JitbatchError, match="shared arguments differ"):
        fun.batch((Static(3), 1.0), plan)


# --- A user's exception


@pytest.mark.parametrize("granularity", ["op", "subgraph", "graph"])
def test_an_exception_in_a_sample_is_noted(granularity: str) -> None:
    def fail(w: Any, x: Any) -> Any:
        if isinstance(x, tuple):
            raise KeyError("my own")
        return w * x

    with pytest.raises(KeyError, match="my own") as caught:
        jitbatch(fail, granularity=granularity).batch(1.0, [1.0, 2.0, (3.0,)])
    (note,) = [note for note in caught.value.__notes__ if "jitbatch" in note]
    assert re.search(r"sample 2 of `.*fail` \(.*test_errors.py:\d+\)", note)


def test_an_exception_in_a_subgraph_is_noted_once() -> None:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        raise ZeroDivisionError("in a cell")

    with pytest.raises(ZeroDivisionError, match="in a cell") as caught:
        jitbatch(lambda w, x: cell(w, x)).batch(1.0, [1.0])
    assert len([note for note in caught.value.__notes__ if "sample 0" in note]) == 1


def test_an_error_of_jax_in_a_sample_is_noted() -> None:
    with pytest.raises(TypeError, match="dot_general") as caught:
        jitbatch(lambda w, x: jnp.dot(w, x)).batch(jnp.ones(3), [X])
    assert any("sample 0" in note for note in caught.value.__notes__)


def test_recursion_in_the_users_function_is_noted() -> None:
    def forever(w: Any, x: Any) -> Any:
        return forever(w, x)

    with pytest.raises(RecursionError) as caught:
        jitbatch(forever).batch(1.0, [1.0])
    assert any("sample 0" in note for note in caught.value.__notes__)


# --- Modules whose state changes


class Noisy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)

    def drop(self, x: Any) -> Any:
        return self.dropout(self.linear(x))

    def normalise(self, x: Any) -> Any:
        return self.norm(self.linear(x))


CHANGES = {"dropout": Noisy.drop, "batch norm": Noisy.normalise}
TOLD = {"dropout": "the Dropout at `dropout`", "batch norm": "the BatchNorm at `norm`"}


@pytest.mark.parametrize("inside", ["the function", "a subgraph", "a subgraph of a subgraph"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_module_whose_state_changes_is_refused(change: str, inside: str) -> None:
    fun: Any = CHANGES[change]
    if inside != "the function":
        cell = jitbatch(fun)
        fun = lambda model, x: cell(model, x)  # noqa: E731
    if inside == "a subgraph of a subgraph":
        outer = jitbatch(fun)
        fun = lambda model, x: outer(model, x)  # noqa: E731
    model = Noisy(nnx.Rngs(0))
    with pytest.raises(errors.MutationError, match=rf"{TOLD[change]} in the shared .* Noisy was changed"):
        jitbatch(fun).batch(model, [np.ones((1, 2), np.float32)])


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_module_is_welcome_in_evaluation_mode(change: str) -> None:
    model = Noisy(nnx.Rngs(0))
    model.eval()
    x = np.ones((1, 2), np.float32)
    np.testing.assert_allclose(jitbatch(CHANGES[change]).batch(model, [x]), [CHANGES[change](model, x)], rtol=1e-6)


def test_an_attribute_that_is_set_is_refused() -> None:
    def fun(params: dict[str, Any], x: Any) -> Any:
        params["calls"] = params["calls"] + 1
        return x

    params = {"calls": 0}
    with pytest.raises(errors.MutationError, match=r"type dict, at `\['calls'\]`, was changed in place while sample 0"):
        jitbatch(fun).batch(params, [1.0])
    assert params == {"calls": 0}


def test_an_item_that_is_removed_is_refused() -> None:
    with pytest.raises(errors.MutationError, match="type dict was changed in place while sample 0"):
        jitbatch(lambda params, x: x * params.pop("w")).batch({"w": 1.0}, [1.0])


class Label(enum.IntEnum):
    LEFT = 1


def test_subclasses_of_numbers() -> None:
    """As in `jax.jit`, they are not numbers; among shared arguments they are static."""
    fun = jitbatch(lambda w, x: w["scale"] * x)
    with pytest.raises(errors.SampleError, match=r"sample 1: x\[1\] is <Label.LEFT: 1> of type Label.*Static"):
        fun.batch({"scale": 2.0}, [1, Label.LEFT])
    assert fun.batch({"scale": 2.0, "side": Label.LEFT}, [1.0, 2.0]).tolist() == [2.0, 4.0]


def test_a_module_that_is_closed_over_and_changes() -> None:
    noisy = Noisy(nnx.Rngs(0))
    fun = jitbatch(lambda x: noisy.drop(x), in_axes=0)
    with pytest.raises(errors.MutationError, match="the Dropout was changed in place while sample 0"):
        fun.batch([jnp.ones(2)])
