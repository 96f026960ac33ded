"""Decisions: saved as data, and refused where they do not fit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch
from jitbatch import Decisions
from jitbatch import jitbatch as decorated
from jitbatch.record.decisions import decoded, encoded
from jitbatch.util.errors import ArgumentError, DecisionError


@decorated
async def halve(one: Any, x: Any) -> Any:
    while await jitbatch.value(x > one):
        x = x / 2
    return x


SAMPLES = [3.0, 0.5, 10.0]


def test_decisions_are_saved_as_data() -> None:
    found = halve.rollout(1.0, SAMPLES).decisions
    assert Decisions.from_json(found.to_json()) == found
    assert found.answers == [[True, True, False], [False], [True, True, True, True, False]]
    assert found.take([2, 0]) == found[2:] + found[:1]
    assert repr(found) == "Decisions(3 samples, 9 answers)"
    for text in ("{}", "[]", "nonsense", '{"jitbatch decisions": 1, "samples": [[[3, true]]]}'):
        with pytest.raises(DecisionError, match=r"this text is not what Decisions\.to_json writes"):
            Decisions.from_json(text)


def test_all_answers_survive_encoding() -> None:
    answers = [True, -3, 0.1, float("inf"), 2j, np.arange(4, dtype=np.int8).reshape(2, 2), np.zeros((0, 3), np.float32)]
    assert hash(encoded(answers)) == hash(encoded(answers))
    for answer, found in zip(answers, decoded(encoded(answers)), strict=True):
        assert type(found) is type(answer)
        np.testing.assert_array_equal(found, answer)
    (key,) = decoded(encoded([jax.random.key(3)]))
    assert key == jax.random.key(3)
    (short,) = decoded(encoded([np.asarray(jnp.ones(2, jnp.bfloat16))]))
    assert short.dtype == jnp.bfloat16


def test_own_answers_are_decisions() -> None:
    own = Decisions.from_answers([[np.bool_(True), jnp.asarray(False)], [], [True, True, True, False]])
    assert own.answers == [[True, False], [], [True, True, True, False]]
    assert Decisions.from_json(own.to_json()) == own
    xs = [3.0, 10.0]
    for function in (halve, decorated(halve.__wrapped__.asynchronous)):  # type: ignore[attr-defined]
        function.rollout(1.0, SAMPLES)
        some = Decisions.from_answers([[True, False], [True, True, True, False]])
        np.testing.assert_array_equal(function.batch(1.0, xs, decisions=some), [1.5, 1.25])
    with pytest.raises(DecisionError, match=r"sample 0 of .* after the 1 that its decisions have: there are"):
        halve.plan(1.0, [3.0], decisions=Decisions.from_answers([[True]]))
    with pytest.raises(DecisionError, match=r"an answer is a number or an array with a value, not 'up'"):
        Decisions.from_answers([["up"]])


def test_own_answers_to_trees_and_for_arrays() -> None:
    @decorated
    async def chosen(one: Any, x: Any) -> Any:
        signs, best = await jitbatch.value((x > 0, x.argmax()))
        return one * x[best] * (1 + int(signs.sum()))

    xs = [np.array([1.0, 2.0], np.float32), np.array([5.0, -2.0], np.float32)]
    own = Decisions.from_answers([[[np.array([True, True]), 1]], [[np.array([True, False]), np.int32(0)]]])
    assert [answer[0][1] for answer in own.answers] == [1, 0]
    np.testing.assert_array_equal(chosen.batch(1.0, xs, decisions=own), chosen.batch(1.0, xs))


def test_what_is_no_decisions() -> None:
    found = halve.rollout(1.0, SAMPLES).decisions
    with pytest.raises(DecisionError, match=r"are of type list: pass `run.decisions` .*Decisions.from_answers"):
        halve.plan(1.0, SAMPLES, decisions=found.answers)
    with pytest.raises(DecisionError, match=r"Roll out first, and pass the decisions"):
        halve.plan(1.0, SAMPLES, decisions=None)


def test_too_few_and_too_many() -> None:
    found = halve.rollout(1.0, SAMPLES).decisions
    many = Decisions([jitbatch.Static(found[0].value + found[1].value)])
    with pytest.raises(DecisionError, match=r"sample 1 of .*halve.* asked 3 times, but its decisions have 4 answers"):
        halve.plan(1.0, [3.0, 0.5], decisions=found[:1] + many)
    few = Decisions([jitbatch.Static(found[0].value[:1])])
    message = r"sample 0 of .* asks for a value at .*decisions.py:\d+ after the 1 that its decisions have: there are"
    with pytest.raises(DecisionError, match=message):
        halve.plan(1.0, [3.0], decisions=few)
    with pytest.raises(ArgumentError, match="x has 3, decisions has 2"):
        halve.plan(1.0, SAMPLES, decisions=found[:2])


def test_asked_elsewhere() -> None:
    @decorated
    async def other(one: Any, x: Any) -> Any:
        return x if await jitbatch.value(x > one) else one

    found = other.rollout(1.0, [3.0]).decisions
    message = r"decision 0 of sample 0 of .*halve.* was asked for elsewhere than at .*decisions.py:\d+: the function"
    with pytest.raises(DecisionError, match=message):
        halve.plan(1.0, [3.0], decisions=found)


def test_a_function_with_an_argument_of_that_name() -> None:
    async def taken(one: Any, decisions: Any) -> Any:
        return one

    with pytest.raises(ArgumentError, match="has an argument of the name `decisions`"):
        decorated(taken)


def test_saved_plans(tmp_path: Any) -> None:
    found = halve.rollout(1.0, SAMPLES).decisions
    plan = halve.plan(1.0, SAMPLES, decisions=found)
    plan.save(tmp_path / "plan.zip")
    afresh = jitbatch.Plan.load(tmp_path / "plan.zip")
    np.testing.assert_array_equal(halve.batch(1.0, afresh), halve.batch(1.0, SAMPLES))


def test_a_method() -> None:
    model = Halver(jnp.float32(1.0))
    rolled = model.halve.rollout(SAMPLES)
    np.testing.assert_array_equal(rolled.outputs, halve.batch(1.0, SAMPLES))
    np.testing.assert_array_equal(model.halve.batch(SAMPLES, decisions=rolled.decisions), rolled.outputs)
    assert jitbatch.run(model.halve(3.0)) == 0.75


@jax.tree_util.register_pytree_node_class
class Halver:
    def __init__(self, least: Any):
        self.least = least

    def tree_flatten(self) -> Any:
        return (self.least,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> "Halver":
        return cls(*children)

    @decorated
    async def halve(self, x: Any) -> Any:
        while await jitbatch.value(x > self.least):
            x = x / 2
        return x
