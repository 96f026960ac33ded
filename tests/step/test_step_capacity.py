"""What a step has room for is saved and given back: another process has the same programs."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_bits

import jitbatch as jb
from jitbatch import StepCapacity, jitbatch
from jitbatch.util.errors import ArgumentError, PlanError

W = jnp.linspace(-0.5, 0.5, 9).reshape(3, 3)


@jitbatch
def chain(w: Any, xs: Any) -> Any:
    y = jnp.zeros(3)
    for x in xs:
        y = jnp.tanh(x @ w + y)
    return y


def chains(*lengths: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(length, 3)).astype(np.float32) for length in lengths]


def new_step() -> Any:
    return jb.jit(lambda w, xs: chain.batch(w, xs))


def test_a_step_that_is_given_a_capacity_has_the_sizes_and_bits_of_the_first() -> None:
    step = new_step()
    for lengths in ((2, 3), (9, 8), (40, 60), (5, 5, 5)):
        step(W, chains(*lengths))
    saved = step.capacity.to_json()
    again = new_step()
    again.capacity = StepCapacity.from_json(saved)
    assert again.capacity == step.capacity
    for lengths in ((5, 4), (50, 50), (1, 2, 3)):
        assert_bits(again(W, chains(*lengths)), step(W, chains(*lengths)))
    assert again.capacity == step.capacity
    assert "2 samples: room for" in str(step.capacity)


def test_a_capacity_is_given_before_the_first_call() -> None:
    step = new_step()
    step(W, chains(2, 3))
    with pytest.raises(ArgumentError, match="has been called: set its capacity before that"):
        step.capacity = StepCapacity()


def test_the_capacity_of_a_function_is_not_that_of_a_step() -> None:
    step = new_step()
    for capacity in (chain.capacity(W, chains(2, 3), batch_size=2), "room", None):
        with pytest.raises(ArgumentError, match=rf"not an object of type {type(capacity).__name__}.*is for its plans"):
            step.capacity = capacity
    step(W, chains(2, 3))


def test_a_text_that_was_changed_is_refused() -> None:
    step = new_step()
    step(W, chains(2, 3))
    text = step.capacity.to_json()
    assert StepCapacity.from_json(text) == step.capacity
    about = json.loads(text)
    about["rooms"][0][2] += 1
    for wrong in (json.dumps(about), text[:-2], "[]", "3", "{}", "[" * 100_000, text.replace("2", "3", 1), b"\xff"):
        with pytest.raises(PlanError):
            StepCapacity.from_json(wrong)
    for position in range(0, len(text), max(len(text) // 50, 1)):
        changed = bytearray(text.encode())
        changed[position] ^= 1
        with pytest.raises(PlanError):
            StepCapacity.from_json(bytes(changed))


def test_no_room() -> None:
    assert str(StepCapacity()) == "no room"
    assert StepCapacity.from_json(StepCapacity().to_json()) == StepCapacity()
