"""A slice of the fuzzer's programs, and the fuzzer's own parts."""

from __future__ import annotations

import random

import pytest
from fuzz import files
from fuzz.choices import Choices
from fuzz.programs import make_program
from fuzz.trials import choices_of, try_program

SEED = 1
PROGRAMS = 100
PART = 10
OFTEN = 30
"""How many of the programs run without slow tests."""


@pytest.mark.parametrize(
    "start",
    [pytest.param(n, marks=() if n < OFTEN else pytest.mark.slow) for n in range(0, PROGRAMS, PART)],
)
def test_random_programs_run_as_the_plain_loop_does(start: int) -> None:
    for number in range(start, start + PART):
        failure, _ = try_program(make_program(choices_of(SEED, number)))
        assert failure is None, f"program {number}:\n{failure}"


def test_choices_that_are_given_again_make_the_same_program() -> None:
    choices = Choices(source=random.Random(3))
    program = make_program(choices)
    assert make_program(Choices(choices.taken)) == program


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_and_made_up_files(count: int) -> None:
    outcomes = files.run(count, SEED)
    assert sum(outcomes.values()) == count
    assert {"file: refused", "text: refused", "made up: refused", "made-up text: refused"} <= outcomes.keys()
    assert not {"file: another plan", "pickle: another plan"} & outcomes.keys()
