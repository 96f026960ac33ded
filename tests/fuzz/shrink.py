"""Making a failing program smaller, by making the choices that it comes from fewer and smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from fuzz.choices import Choices
from fuzz.programs import make_program
from fuzz.trials import Failure, try_program


def shrink(taken: Sequence[int], failure: Failure, seconds: float = 100) -> Failure:
    """The smallest failure of the same kind that is found in some time.

    Args:
        taken: the choices of the failing program.
    """
    end = time.monotonic() + seconds
    best, found = list(taken), failure
    tried: set[str] = {failure.program.source + repr(failure.program.configurations)}

    def fails(choices: Sequence[int]) -> bool:
        nonlocal best, found
        replay = Choices(choices)
        program = make_program(replay)
        key = program.source + repr(program.configurations)
        if key in tried:
            return False
        tried.add(key)
        now, _ = try_program(program)
        if now is None or type(now.error) is not type(failure.error):
            return False
        if (len(replay.taken), replay.taken) >= (len(best), best):
            return False
        best, found = replay.taken, now
        return True

    while _pass(lambda: best, fails, end):
        pass
    return found


def _pass(best: Callable[[], list[int]], fails: Callable[[Sequence[int]], bool], end: float) -> bool:
    """Try every simplification once, from large to small; whether one of them was taken."""
    improved = False
    size = max(len(best()) // 2, 1)
    while size:
        place = 0
        while place < len(best()):
            if time.monotonic() > end:
                return False
            taken = any(fails(candidate) for candidate in _simpler(best(), place, size))
            improved |= taken
            place += 0 if taken else size
        size //= 2
    return improved


def _simpler(choices: list[int], place: int, size: int) -> Iterator[list[int]]:
    """Without some choices, with zeros instead, or with a smaller one."""
    before, here, after = choices[:place], choices[place : place + size], choices[place + size :]
    yield before + after
    if any(here):
        yield before + [0] * len(here) + after
    if size == 1 and here[0] > 1:
        yield [*before, here[0] // 2, *after]
        yield [*before, here[0] - 1, *after]
