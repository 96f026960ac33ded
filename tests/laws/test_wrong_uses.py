"""What a new user does wrong, and what the library says: what is done, the class of the error, and parts of its text.

Where the user's own code raises, the error is the user's own, with a note that names the sample, and its traceback ends
at the user's line.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import JitbatchError, Static, assert_max_compiles, jitbatch

X = np.float32([1.0, 2.0])


@jitbatch
def product(w: Any, x: Any) -> Any:
    return w * x


@jitbatch
def combined(w: Any, x: Any, y: Any) -> Any:
    return w * x + y


@jitbatch
def looked_up(params: Any, x: Any) -> Any:
    return params["w"] * x


@jitbatch
def makes_an_object(w: Any, x: Any) -> Any:
    return Thing()


each = jitbatch(lambda w, xs: [w * x for x in xs], out="ragged")


class Thing:
    pass


def one_by_one(w: Any, x: Any) -> Any:
    yield w * x


def until(w: Any, x: Any) -> Any:
    while x < 3:
        x = x + 1
    return w * x


NUMBER = ["a number, a traced", "`isinstance(t, int)`", "`isinstance(t, tuple)`", "jitbatch.Static(...)"]


@jitbatch
def switched(w: Any, x: Any, on: Any) -> Any:
    return w * x if on else x


@jitbatch
def sliced(w: Any, x: Any, count: Any) -> Any:
    return w * x[:count]


@jitbatch
def ranged(w: Any, x: Any, count: Any) -> Any:
    return w * sum(x[i] for i in range(count))


@jitbatch
def outer(w: Any, x: Any, count: Any) -> Any:
    return ranged(w, x, count)


def indexed(w: Any, t: Any) -> Any:
    return w * t if isinstance(t, int) else indexed(w, t[0]) + indexed(w, t[1])


def iterated(w: Any, t: Any) -> Any:
    return w * t if isinstance(t, int) else sum(iterated(w, part) for part in t)


def unpacked(w: Any, t: Any) -> Any:
    if isinstance(t, int):
        return w * t
    left, right = t
    return unpacked(w, left) + unpacked(w, right)


def asserted(w: Any, x: Any) -> Any:
    assert x > 0
    return w * x


def printed(w: Any, x: Any) -> Any:
    return w * x if f"{x:.2f}" else x


def assigned(w: Any, x: Any) -> Any:
    x[0] = 1.0
    return w * x


def on(fun: Callable[..., Any], sample: Any = 1.0, w: Any = 1.0) -> Callable[[], Any]:
    """A batch of one sample."""
    return lambda: jitbatch(fun).batch(w, [sample])


# What is done: the error, and what it says.
CALLS: dict[str, tuple[type[Exception], Callable[[], Any], list[str]]] = {
    # Arguments
    "the shared argument is left out": (
        TypeError,
        lambda: product.batch([1.0, 2.0]),
        ["missing a required argument: 'x'", "take the arguments"],
    ),
    "samples in a dict of lists": (TypeError, lambda: product.batch(1.0, {"a": [1.0]}), ["'x'", "a dict", "a list"]),
    "no list at all": (TypeError, lambda: product.batch(1.0, None), ["'x' is mapped", "NoneType", "a list of samples"]),
    "a function for samples": (TypeError, lambda: product.batch(1.0, product), ["'x' is mapped", "Batched"]),
    "arrays of different lengths": (
        TypeError,
        lambda: product.batch(1.0, {"a": np.ones(2), "b": np.ones(3)}),
        ["different lengths on axis 0", "x['a'] has 2, x['b'] has 3"],
    ),
    "an axis that is not there": (
        TypeError,
        lambda: jitbatch(lambda w, x: x, in_axes=(None, 2)).batch(1.0, X),
        ["'x' is mapped on axis 2", "shape (2,)"],
    ),
    "a negative axis of a list": (
        TypeError,
        lambda: jitbatch(lambda w, x: x, in_axes=(None, -1)).batch(1.0, [X]),
        ["'x' is a sequence of samples, so its axis is 0, not -1"],
    ),
    "in_axes of a float": (
        TypeError,
        lambda: jitbatch(lambda w, x: x, in_axes=0.5).batch(1.0, [1.0]),
        ["in_axes is an integer or a tuple", "not 0.5"],
    ),
    "in_axes of a dict": (
        TypeError,
        lambda: jitbatch(lambda w, x: x, in_axes={"x": 0}).batch(1.0, [1.0]),
        ["in_axes is an integer or a tuple", "not {'x': 0}"],
    ),
    # Samples
    "an object for a sample": (
        TypeError,
        lambda: product.batch(1.0, [1.0, Thing()]),
        ["sample 1: x[1] is", "of type Thing", "jitbatch.Static", "register_dataclass"],
    ),
    "an array of objects": (
        TypeError,
        lambda: product.batch(1.0, [np.array([1, "a"], object)]),
        ["sample 0: x[0]", "not an array or a number"],
    ),
    "texts for samples": (
        TypeError,
        lambda: product.batch(1.0, ["good", "bad"]),
        ["sample 0: x[0] is 'good'", "Static"],
    ),
    "a text deep in a sample": (
        TypeError,
        lambda: product.batch(1.0, [(1.0, {"word": [2.0, "bad"]})]),
        ["sample 0: x[0][1]['word'][1] is 'bad' of type str"],
    ),
    "an array in a Static": (TypeError, lambda: Static(jnp.ones(2)), ["hashable", "leave arrays as ordinary leaves"]),
    "a list in a Static": (TypeError, lambda: Static([1]), ["hashable", "got [1] of type list", "tuples"]),
    # Decorating
    "a class": (TypeError, lambda: jitbatch(Thing), ["decorates functions", "Thing"]),
    "an option in place of the function": (TypeError, lambda: jitbatch("fused"), ["decorates functions, got 'fused'"]),
    "a generator function": (TypeError, lambda: jitbatch(one_by_one), ["`one_by_one`", "a generator function"]),
    "loops": (TypeError, lambda: jitbatch(loops="never"), ["loops='never'", "'dynamic'", "'static'"]),
    "dedupe": (TypeError, lambda: jitbatch(dedupe="yes"), ["dedupe='yes' is not True or False"]),
    # Plans
    "like a number": (
        TypeError,
        lambda: product.plan(1.0, [1.0], like=3),
        ["like=3 is not a plan, the capacity of one"],
    ),
    "like a plan of another function": (
        ValueError,
        lambda: product.plan(1.0, [1.0], like=combined.plan(1.0, [1.0], [1.0])),
        ["made by `combined`", "not by `product`"],
    ),
    "shards that do not divide": (
        ValueError,
        lambda: product.plan(1.0, [1.0, 2.0, 3.0], shards=2),
        ["3 samples cannot be split into 2 shards"],
    ),
    "no shards": (ValueError, lambda: product.plan(1.0, [1.0], shards=0), ["1 samples cannot be split into 0 shards"]),
    "a plan of shards, run whole": (
        ValueError,
        lambda: product.batch(1.0, product.plan(1.0, [1.0, 2.0], shards=2)),
        ["the plan has 2 shards", "plan.shard(i)"],
    ),
    "a shard of a plan without": (
        ValueError,
        lambda: product.plan(1.0, [1.0]).shard(0),
        ["the plan has no shards", "shards=n"],
    ),
    "a shard too many": (
        ValueError,
        lambda: product.plan(1.0, [1.0, 2.0], shards=2).shard(5),
        ["shards 0 to 1, not 5"],
    ),
    "the capacity of steps": (
        ValueError,
        lambda: jitbatch(lambda w, x: w * x, executor="dispatch").plan(1.0, [1.0]).capacity,
        ["dispatch executor", "no capacity"],
    ),
    "a plan where parameters go": (
        TypeError,
        lambda: product.batch(product.plan(1.0, [1.0]), 1.0),
        ["in place of a shared argument of `product`", "the first mapped one"],
    ),
    "a plan with other dtypes": (
        ValueError,
        lambda: product.batch(1, product.plan(1.0, [1.0])),
        ["w was a Python float, is a Python int", "Plan again"],
    ),
    "a plan with other shapes of parameters": (
        ValueError,
        lambda: looked_up.batch({"w": X}, looked_up.plan({"w": X[:1]}, [1.0])),
        ["params['w'] was float32[1], is float32[2]"],
    ),
    "a plan with other parameters": (
        ValueError,
        lambda: looked_up.batch({"w": 1.0, "v": 1.0}, looked_up.plan({"w": 1.0}, [1.0])),
        ["their trees differ", "params['v'] is new"],
    ),
    "a pickled plan of another function": (
        ValueError,
        lambda: combined.batch(1.0, pickle.loads(pickle.dumps(product.plan(1.0, [1.0])))),
        ["made by `product`", "not by `combined`"],
    ),
    "planning inside jax.grad of a sample": (
        ValueError,
        lambda: jax.grad(lambda x: product.batch(1.0, product.plan(1.0, [x])).sum())(1.0),
        ["a plan's inputs are constants", "call .batch on the samples"],
    ),
    "planning what closes over a tracer": (
        ValueError,
        lambda: jax.grad(lambda s: jitbatch(lambda w, x: w * x * s).plan(1.0, [1.0]) and 0.0)(1.0),
        ["cannot be planned", "pass that value as a shared argument"],
    ),
    "differentiating a plan": (
        ValueError,
        lambda: jax.grad(lambda p: product.batch(1.0, p).sum(), allow_int=True)(product.plan(1.0, [1.0, 2.0])),
        ["a plan's inputs are constants"],
    ),
    # Results
    "an object is returned": (TypeError, on(lambda w, x: {"a": Thing()}), ["of type Thing at result['a']", "sample 0"]),
    "a set is returned": (TypeError, on(lambda w, x: {1.0}), ["{1.0} of type set at result", "sample 0"]),
    "a cell returns an object": (
        TypeError,
        on(lambda w, x: makes_an_object(w, x)),
        ["`makes_an_object`", "of type Thing at result", "undecorated function"],
    ),
    "a sum of nothing": (
        TypeError,
        lambda: jitbatch(lambda w, xs: sum(w * x for x in xs)).batch(jnp.float32(2), [[1.0, 2.0], []]),
        ["sample 1 has the result int32[], but sample 0 has float32[]", "one shape and dtype", "begin it with 0.0"],
    ),
    "ragged items of different shapes": (
        TypeError,
        lambda: each.batch(1.0, [(X,), (np.ones(3),)]),
        ["sample 1 has the item float32[3] at [0]", "float32[2]", 'out="list"'],
    ),
    "ragged without items": (TypeError, lambda: each.batch(1.0, [(), ()]), ["no sample of the batch has an item"]),
    "a ragged list inside jit": (
        TypeError,
        lambda: jax.jit(lambda p: each.batch(jnp.float32(1), p).to_list())(each.plan(jnp.float32(1), [(1.0, 2.0)])),
        ["not known inside jax.jit", "to_list outside"],
    ),
    # Control flow
    "while": (TypeError, on(until), ["bool() was asked of a traced bool[]", "sample 0 of `until`", "jitbatch.Static"]),
    "assert": (TypeError, on(asserted), ["bool() was asked", "test_wrong_uses.py"]),
    "a dictionary": (TypeError, on(lambda w, x: w * {1: 2.0}[x], 1), ["hash() was asked of a traced int32[]"]),
    "a format": (TypeError, on(printed), ["format() was asked of a traced float32[]", "sample 0 of `printed`"]),
    "numpy": (TypeError, on(lambda w, x: np.dot(w, x), X, X), ["numpy.asarray() was asked of a traced float32[2]"]),
    "a number that a cell looks at": (
        TypeError,
        on(lambda w, x: switched(w, x, True)),
        ["bool() was asked of a traced bool[]", "the Python bool True", "pass jitbatch.Static(True) at the call"],
    ),
    "a number that a cell slices by": (
        TypeError,
        on(lambda w, x: sliced(w, x, 1), X),
        ["a bound of a slice was asked of", "test_wrong_uses.py", "the Python int 1", "jitbatch.Static(1) at the call"],
    ),
    "a number that is passed on": (
        TypeError,
        on(lambda w, x: outer(w, x, 2), X),
        ["index() was asked of", "the Python int 2", "jitbatch.Static(2) at the call"],
    ),
    "a number of a sample that is sliced by": (
        TypeError,
        on(lambda w, x: w * x[0][: x[1], None], (X, 1)),
        ["a bound of a slice was asked of a traced int32[]", "Static where the sample is made"],
    ),
    "a number of the parameters": (
        TypeError,
        lambda: jitbatch(lambda p, x: p["w"] * x if p["n"] else x).batch({"w": 1.0, "n": True}, [1.0]),
        ["bool() was asked", "part of a shared argument: wrap it in Static there"],
    ),
    # Numbers that were taken for containers
    "indexing": (TypeError, on(indexed, ((1, 2), 3)), ["was indexed at", "sample 0 of `indexed`", *NUMBER]),
    "indexing, as JAX would have it": (IndexError, on(indexed, ((1, 2), 3)), ["was indexed at", *NUMBER]),
    "iterating": (TypeError, on(iterated, ((1, 2), 3)), ["was iterated over or unpacked at", "`iterated`", *NUMBER]),
    "unpacking": (TypeError, on(unpacked, ((1, 2), 3)), ["was iterated over or unpacked at", "`unpacked`", *NUMBER]),
    "slicing": (TypeError, on(lambda w, t: w * t[1:], 1), ["was indexed at", *NUMBER]),
    "several indices": (TypeError, on(lambda w, t: w * t[0, 1], 1), ["was indexed at", *NUMBER]),
    "the length": (TypeError, on(lambda w, t: w * len(t)), ["a traced float32[], was asked for its len()", *NUMBER]),
    "backwards": (TypeError, on(lambda w, t: w * sum(reversed(t))), ["was iterated over", *NUMBER]),
    # Reports
    "explaining nothing": (ValueError, lambda: product.explain(1.0, []), ["there are no samples to plan"]),
    "checking nothing": (ValueError, lambda: product.check(1.0, []), ["there are no samples to plan"]),
    "counting to a text": (TypeError, lambda: assert_max_compiles("x").__enter__(), ["a number of compilations"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_library_says_what_is_wrong(name: str) -> None:
    builtin, act, texts = CALLS[name]
    with pytest.raises(builtin) as caught:
        act()
    message = str(caught.value)
    if "Static" not in name:
        assert isinstance(caught.value, JitbatchError)
    for text in texts:
        assert text in message
    assert " at 0x" not in message


# In the user's code: the error, the text, and what the line has in it.
RAISED: dict[str, tuple[type[Exception], Callable[[], Any], str, str]] = {
    "a parameter that is not there": (KeyError, lambda: looked_up.batch({"v": 1.0}, [1.0]), "'w'", 'params["w"]'),
    "a sample that is None": (TypeError, lambda: product.batch(1.0, [None]), "NoneType", "w * x"),
    "a plan in a list": (TypeError, lambda: product.batch(1.0, [product.plan(1.0, [1.0])]), "Plan", "w * x"),
    "a Static for a number": (TypeError, lambda: product.batch(1.0, [Static(2)]), "Static", "w * x"),
    "assignment": (TypeError, on(assigned, X), "x.at[idx].set(y)", "x[0] = 1.0"),
    "shapes that do not fit": (TypeError, on(lambda w, x: w @ x, X, jnp.ones((3, 3))), "dot_general", "w @ x"),
    "a division by zero": (ZeroDivisionError, on(lambda w, x: w * x / (1 // 0)), "by zero", "1 // 0"),
}


@pytest.mark.parametrize("name", RAISED)
def test_an_error_in_the_users_code_ends_there_and_names_the_sample(name: str) -> None:
    kind, act, text, line = RAISED[name]
    with pytest.raises(kind) as caught:
        act()
    assert text in str(caught.value)
    assert any("jitbatch: raised while sample 0 of" in note for note in caught.value.__notes__)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == __file__
    assert line in (last.line or "")


@pytest.mark.parametrize(
    "name",
    ["while", "assert", "a dictionary", "a format", "indexing", "iterating", "unpacking", "slicing", "the length"],
)
def test_control_flow_ends_at_the_users_line(name: str) -> None:
    with pytest.raises(JitbatchError) as caught:
        CALLS[name][1]()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__


def test_all_frames_are_shown_on_request() -> None:
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with pytest.raises(TypeError) as caught:
            CALLS["while"][1]()
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert "values.py" in traceback.extract_tb(caught.value.__traceback__)[-1].filename


def test_a_static_is_used_by_its_value() -> None:
    with pytest.raises(TypeError) as caught:
        product.batch(1.0, [Static(2)])
    assert "jitbatch: what is wrapped in a Static is its `.value`" in caught.value.__notes__


def test_the_users_own_chain_of_errors_is_kept() -> None:
    def chained(w: Any, x: Any) -> Any:
        try:
            return {}["missing"]
        except KeyError:
            raise ValueError("mine")  # noqa: B904

    with pytest.raises(ValueError, match="mine") as caught:
        on(chained)()
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__
