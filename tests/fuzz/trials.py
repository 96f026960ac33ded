"""Trying one program."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import jax

from fuzz.choices import Choices
from fuzz.compare import PlainLoop, check
from fuzz.configurations import Configuration
from fuzz.programs import Program


@dataclass(frozen=True)
class Failure:
    """A program that does not run as the plain loop does."""

    program: Program
    configuration: Configuration
    error: Exception

    def __str__(self) -> str:
        message = f"{type(self.error).__name__}: {self.error}"
        commented = "".join(f"# {line}\n" for line in message.splitlines())
        return self.program.script(self.configuration) + commented


def choices_of(seed: int, number: int) -> Choices:
    """The choices of a program among those of a seed."""
    return Choices(source=random.Random(f"{seed}/{number}"))


class InvalidProgram(Exception):
    """The plain loop cannot run it: an error of the fuzzer."""


def try_program(program: Program) -> tuple[Failure | None, int]:
    """The first failure of a program, and how many configurations could not be judged."""
    unstable = 0
    with jax.enable_x64(True):
        names = program.load()
        main, params, samples = (names[name] for name in ("main", "params", "samples"))
        plain = PlainLoop(main, params)
        for configuration in program.configurations:
            try:
                _run_plain(plain, samples, configuration.inputs)
                unstable += not check(plain, main, samples, configuration, program.tolerance)
            except Exception as error:
                return Failure(program, configuration, error), unstable
    return None, unstable


def _run_plain(plain: PlainLoop, samples: Any, inputs: bool) -> None:
    try:
        plain(samples, inputs)
    except Exception as error:
        raise InvalidProgram(f"{type(error).__name__}: {error}") from error
