"""Advice: why calls were not batched together, on which line, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import Report, Static, jitbatch

PARAMS = {"w": jnp.ones((4, 4)), "v": jnp.ones((4, 4))}
X = np.arange(4, dtype=np.float32)


def line(fun: Any, text: str) -> str:
    """The file and line of a text in a function."""
    fun = getattr(fun, "__wrapped__", fun)
    lines, first = inspect.getsourcelines(fun)
    return f"{inspect.getsourcefile(fun)}:{first + next(at for at, one in enumerate(lines) if text in one)}"


@jitbatch
def pooled(w: Any, xs: Any) -> Any:
    rows = jnp.take(xs, jnp.arange(2), axis=0)  # the take
    return w["w"] @ rows.sum(0)


@jitbatch
def projected(w: Any, x: Any) -> Any:
    return jnp.tanh(w["w"] @ x)  # the product


@jitbatch
def softmaxed(w: Any, xs: Any) -> Any:
    stacked = jnp.stack([w["w"] @ x for x in xs])
    return (jax.nn.softmax(stacked, axis=0) * stacked).sum(axis=0)  # the softmax


@jitbatch
def concatenated(w: Any, xs: Any) -> Any:
    return jnp.stack([w["w"] @ x for x in xs]).reshape(-1)[:4]  # the stack


def scaled(factor: Any) -> Any:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        return jnp.sin(w["w"] @ x) * factor  # the factor

    return cell


@jitbatch
def branching(w: Any, mode: Static[str], x: Any) -> Any:
    x = w["w"] @ x
    return jnp.sin(x) if mode.value == "sin" else jnp.cos(x)  # the branch


@jitbatch
def looping(w: Any, count: Static[int], x: Any) -> Any:
    for _ in range(count.value):
        x = w["w"] @ x
    return x


@jitbatch
def layer(weight: Any, x: Any) -> Any:
    return jnp.tanh(weight @ x)


@jitbatch
def picked(w: Any, which: Static[int], x: Any) -> Any:
    return (w["w"] @ x)[which.value]  # the index


@jitbatch
def reduced(w: Any, axis: Static[int], x: Any) -> Any:
    return jnp.max(w["w"] * x, axis=axis.value)  # the reduction


@jitbatch
def dropped(w: Any, key: Any, x: Any) -> Any:
    return w["w"] @ jnp.where(jax.random.bernoulli(key, shape=(4,)), x, 0)


def multiplied(factor: Any) -> Any:
    @jitbatch
    def cell(w: Any, x: Any) -> Any:
        return jnp.multiply(jnp.sin(w["w"] @ x), factor)  # the factor

    return cell


FACTORS = {factor: multiplied(factor) for factor in (0.5, 0.75)}
ARRAYS = {n: scaled(np.arange(n, n + 4, dtype=np.float32)) for n in (1, 2)}

ADVICE: dict[str, tuple[Callable[[], Report], Any, str, list[str]]] = {
    "shapes": (
        lambda: pooled.explain(PARAMS, [np.ones((17, 4)), np.ones((9, 4))]),
        pooled,
        "# the take",
        ["`take` has shapes [17, 4] and [9, 4]", "Index rows one by one", "pad"],
    ),
    "a softmax of a stack": (
        lambda: softmaxed.explain(PARAMS, [[X], [X] * 3, [X] * 7]),
        softmaxed,
        "# the softmax",
        ["a softmax of a stack has 1, 3 and 7 values", "`jitbatch.segment`"],
    ),
    "a stack": (
        lambda: concatenated.explain(PARAMS, [[X], [X] * 3]),
        concatenated,
        "# the stack",
        ["a stack has 1 and 3 values", "`jitbatch.segment`"],
    ),
    "dtypes": (
        lambda: jitbatch(lambda w, x: projected(w, x)).explain(PARAMS, [X, X.astype(np.int32)]),
        projected,
        "# the product",
        ["several dtypes", "float32 and int32", "jnp.asarray"],
    ),
    "a number closed over": (
        lambda: jitbatch(lambda w, s: FACTORS[s[0].value](w, s[1])).explain(
            PARAMS, [(Static(0.5), X), (Static(0.75), X)]
        ),
        FACTORS[0.5],
        "# the factor",
        ["a Python number in `mul", "is 0.5 and 0.75", "use an operator, or pass it as an argument"],
    ),
    "an array closed over": (
        lambda: jitbatch(lambda w, s: ARRAYS[s[0].value](w, s[1])).explain(PARAMS, [(Static(1), X), (Static(2), X)]),
        ARRAYS[1],
        "# the factor",
        ["constant array", "differs from call to call", "pass it as an argument"],
    ),
    "control flow": (
        lambda: jitbatch(lambda w, s: branching(w, *s)).explain(PARAMS, [(Static("sin"), X), (Static("cos"), X)]),
        branching,
        "# the branch",
        ["runs `sin` and `cos`", "control flow", "Static"],
    ),
    "a loop": (
        lambda: jitbatch(lambda w, s: looping(w, *s)).explain(PARAMS, [(Static(1), X), (Static(3), X)]),
        looping,
        "@jitbatch",
        ["runs 1 and 3 operations", "decorate what the loop repeats"],
    ),
    "parameters": (
        lambda: jitbatch(lambda w, x: layer(w["w"], layer(w["v"], x))).explain(PARAMS, [X, 2 * X]),
        layer,
        "@jitbatch",
        ["used with 2 sets of parameters (w['v'] and w['w'])", "as for layers of a network"],
    ),
    "an index": (
        lambda: jitbatch(lambda w, s: picked(w, *s)).explain(PARAMS, [(Static(1), X), (Static(3), X)]),
        picked,
        "# the index",
        ["an index into a computed array is 1 and 3", "argument"],
    ),
    "an option": (
        lambda: jitbatch(lambda w, s: reduced(w, *s)).explain(PARAMS, [(Static(0), X), (Static(1), X)]),
        reduced,
        "# the reduction",
        ["a maximum gets different options. Options of an operation", "use one value where you can"],
    ),
    "a Python number here, an array there": (
        lambda: jitbatch(lambda w, x: projected_scalar(w, x)).explain(PARAMS, [1.0, np.float32(2)]),
        None,
        "",
        ["a Python number and an array", "jnp.asarray"],
    ),
    "keys": (
        lambda: jitbatch(lambda w, s: dropped(w, *s)).explain(
            PARAMS, [(key, X) for key in jax.random.split(jax.random.key(0), 8)]
        ),
        dropped,
        "@jitbatch",
        ["random key of its own in each of 8 calls", "dedupe"],
    ),
    "a chain": (
        lambda: jitbatch(chain).explain(PARAMS, [np.ones((n, 4)) for n in (30, 2, 1, 1)]),
        projected,
        "@jitbatch",
        ["wait for each other in a chain of 30", "larger minibatch"],
    ),
}


NOTES = ("parameters", "keys")
"""What is told as a note, because it is right as it is."""


@jitbatch
def projected_scalar(w: Any, x: Any) -> Any:
    return x * w["w"][0]


def chain(w: Any, xs: Any) -> Any:
    h = xs[0]
    for x in xs:
        h = projected(w, h + x)
    return h


@pytest.mark.parametrize("name", ADVICE)
def test_advice_tells_the_reason_and_the_line(name: str) -> None:
    explain, fun, text, words = ADVICE[name]
    report = explain()
    told = report.notes if name in NOTES else report.advice
    found = [one for one in told if all(word in one.text for word in words)]
    assert found, "\n".join(map(str, told))
    has_saving = any(word in found[0].saves for word in ("save", "less time", "share steps"))
    assert has_saving == (name not in NOTES), found[0].saves
    if fun is not None:
        assert found[0].where == line(fun, text)
        assert str(found[0]) in " ".join(str(report).replace("\n  ", " ").split())


def sentences(count: int, hidden: int = 8) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(int(length), hidden)).astype(np.float32) for length in rng.integers(5, 25, size=count)]


WEIGHTS = {"w": jnp.eye(8), "u": jnp.eye(8), "out": jnp.ones(8), "layers": [jnp.eye(8), 2 * jnp.eye(8)]}


def rnn(w: Any, xs: Any) -> Any:
    h = jnp.zeros(8)
    for x in xs:
        h = jnp.tanh(h @ w["w"] + x @ w["u"])
    return h @ w["out"]


def short_rnn(w: Any, xs: Any) -> Any:
    return rnn(w, xs[:3])


def lstm(w: Any, xs: Any) -> Any:
    h = c = jnp.zeros(8)
    for x in xs:
        z = h @ w["w"] + x @ w["u"]
        c = jax.nn.sigmoid(z) * c + jnp.tanh(z)
        h = jnp.tanh(c)
    return h @ w["out"]


@jitbatch
def recurrent(weight: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ weight + x)


def two_layers(w: Any, xs: Any) -> Any:
    h = [jnp.zeros(8), jnp.zeros(8)]
    for x in xs:
        for at, weight in enumerate(w["layers"]):
            h[at] = x = recurrent(weight, h[at], x)
    return h[1] @ w["out"]


@pytest.mark.parametrize("fun", [rnn, short_rnn, lstm, two_layers])
def test_what_is_batched_well_needs_no_advice(fun: Any) -> None:
    report = jitbatch(fun).explain(WEIGHTS, sentences(64))
    assert report.advice == (), "\n".join(map(str, report.advice))
    assert report.verdict.headline == "It batched."
    assert "\nadvice: nothing to do\n" in str(report)


def test_trees_of_decorated_functions_need_no_advice() -> None:
    workload = zoo.named("binary_tree")
    report = workload.batched.explain(*workload.draw(64))
    assert (report.advice, report.notes) == ((), ())


def test_layers_are_a_note_below_the_table() -> None:
    report = jitbatch(two_layers).explain(WEIGHTS, sentences(64))
    (note,) = report.notes
    assert note.text.startswith("`recurrent` is used with 2 sets of parameters (w['layers'][0] and w['layers'][1])")
    text = str(report)
    assert text.index("cell ") < text.index("notes (nothing to do)") < text.index("recurrent` is used with 2 sets")


def relations(count: int, hidden: int) -> Report:
    def related(w: Any, s: Any) -> Any:
        x, relation = s
        return jnp.tanh(x @ w[relation.value])

    weights = [jnp.eye(hidden) * n for n in range(count)]
    samples = [(np.full(hidden, n, np.float32), Static(n % count)) for n in range(5 * count)]
    return jitbatch(related).explain(weights, samples)


def test_many_small_sets_of_weights_are_stacked_and_few_or_large_ones_are_not() -> None:
    (advice,) = relations(12, 8).advice
    assert "12 types where one would do" in advice.text
    assert "Stack the weights" in advice.text
    assert advice.saves == "It would save up to 11 of 12 steps"
    assert relations(12, 256).advice == (), "a copy of the weights for each call takes longer than 11 launches"
    assert relations(2, 8).advice == ()
    assert "12 sets of parameters" in relations(12, 256).notes[0].text


def powers(w: Any, xs: Any) -> Any:
    h = jnp.zeros(8)
    for n, x in enumerate(xs):
        h = recurrent(w["w"], h, x)
        h = h + jnp.power(jnp.abs(h) + 1.0, 2 + n)  # the power
    return h @ w["out"]


def test_a_type_for_each_number_is_not_praised_and_is_told_in_the_users_words() -> None:
    lengths = [40, 40, 30, 24, 36, 18] * 4
    samples = [np.full((length, 8), 1 + n, np.float32) for n, length in enumerate(lengths)]
    report = jitbatch(powers).explain(WEIGHTS, samples)
    assert report.verdict.headline == "It batched, but in too many types."
    assert report.verdict.grade == "partly"
    (advice,) = report.advice
    assert advice.where == line(powers, "# the power")
    assert "44 types where 2 would do: the exponent of a power is 2, 3, 4, 5, ... (40 in all)" in advice.text
    assert "Pass it as an argument of a decorated function" in advice.text
    assert "of compilation" in advice.saves
    assert "integer_pow" not in str(report)
    assert " y=" not in str(report)


def test_the_remedy_for_a_type_for_each_number_helps() -> None:
    @jitbatch
    def power(params: Any, x: Any, n: Any) -> Any:
        return jnp.power(x, n)

    def passed(w: Any, xs: Any) -> Any:
        h = jnp.zeros(8)
        for n, x in enumerate(xs):
            h = recurrent(w["w"], h, x)
            h = h + power(w, jnp.abs(h) + 1.0, 2 + n)
        return h @ w["out"]

    report = jitbatch(passed).explain(WEIGHTS, sentences(24))
    assert (report.advice, report.verdict.grade) == ((), "yes")


def test_one_line_gets_one_remedy_and_the_largest_saving_comes_first() -> None:
    def mixed(w: Any, xs: Any) -> Any:
        return pooled(w, xs) + softmaxed(w, list(xs))

    samples = [np.full((n, 4), n, np.float32 if n % 3 else np.int32) for n in range(3, 12)]  # shapes and dtypes differ
    report = jitbatch(mixed).explain(PARAMS, samples)
    places = [advice.where for advice in report.advice]
    assert len(places) == len(set(places)) == 2
    gains = [advice.gain for advice in report.advice]
    assert gains == sorted(gains, reverse=True)
    assert all(advice.saves for advice in report.advice)


@pytest.mark.parametrize("count", [1, 8])
def test_a_batch_that_hardly_batched_is_told_what_to_do(count: int) -> None:
    def different(w: Any, s: Any) -> Any:
        fun = (jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.abs, jnp.sign, jnp.floor, jnp.ceil)[s[0].value]
        return fun(w["w"] @ s[1])

    report = jitbatch(different).explain(PARAMS, [(Static(n), X) for n in range(count)])
    assert (report.verdict.grade == "yes") == (not report.advice) == (count == 1)


def test_the_parts_of_a_call_on_a_list_are_not_taken_for_variants_of_it() -> None:
    @jitbatch
    def node(params: Any, x: Any, children: list[Any]) -> Any:
        gates = sum(jnp.tanh(x + child @ params["v"]) * child for child in children)
        return jnp.tanh(x @ params["w"] + sum(children) @ params["w"] + gates)

    def encode(params: Any, tree: Any) -> Any:
        x, children = tree
        return node(params, x, [encode(params, child) for child in children]) if children else x * 2

    def tree(*children: int) -> Any:
        return X, [(X, [(X, [])] * child) for child in children]

    report = jitbatch(encode).explain(PARAMS, [tree(1, 2), tree(3, 2, 2), tree(2), tree(2, 3, 4, 5)])
    assert len([cell for cell in report.cells if cell.name.startswith("node")]) > 1  # it is opened
    assert not [advice for advice in report.advice if advice.types]


def test_many_shapes_are_one_advice() -> None:
    report = pooled.explain(PARAMS, [np.ones((n, 4)) for n in range(3, 12)])
    (advice,) = [advice for advice in report.advice if "shapes" in advice.text]
    assert "9 types where one would do" in advice.text
    assert "(9 in all)" in advice.text


def test_pieces_of_one_line_are_no_types_of_one_function() -> None:
    def averaged(w: Any, xs: Any) -> Any:
        return jnp.stack([w["w"][x] for x in xs]).mean(axis=0) @ w["v"]

    report = jitbatch(averaged).explain(PARAMS, [[1, 2, 3], [0, 2], [1, 1, 1, 3]])
    assert len([cell for cell in report.cells if cell.function == "averaged"]) == 2, "what is looked up, and the rest"
    assert report.advice == ()
