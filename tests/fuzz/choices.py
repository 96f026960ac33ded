"""The choices that a program is made of: drawn at random, or given again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """A sequence of numbers from which a program is made.

    What is given is taken in turn, then what `source` draws; without a source, zeros. The first of several
    possibilities is the simplest one by convention, so fewer and smaller numbers are a simpler program.

    Attributes:
        taken: every number that was taken.
    """

    def __init__(self, given: Sequence[int] = (), source: random.Random | None = None):
        self.taken: list[int] = []
        self._given = given
        self._source = source

    def below(self, bound: int) -> int:
        """A number from 0 up to `bound`."""
        place = len(self.taken)
        if place < len(self._given):
            number = self._given[place] % bound
        else:
            number = self._source.randrange(bound) if self._source else 0
        self.taken.append(number)
        return number

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def often(self, percent: int) -> bool:
        """True so often; False is the simpler one."""
        return self.below(100) >= 100 - percent
