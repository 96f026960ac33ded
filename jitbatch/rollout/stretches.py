"""Stretches: what a sample does in one sync. Where its answers can be foreseen, that is more than one segment.

A sync costs far more than a few nodes. So a sample goes on beyond a question as if the likely answer had been given, as
a processor does at a branch, and all that it asks for is answered together. Segments after the first wrong guess do not
count: their rows are free again when the sample ends, and it goes on from the true answer. So results, decisions and
errors are those of samples that wait at each question.

Only segments that were walked before are foreseen, and only those whose cells may run in vain. Answers are foreseen
where they are one integer or truth value. A stretch that was right may be twice as long next time.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.core.choice import make_nodes
from jitbatch.record.decisions import answer_key
from jitbatch.rollout.lowered import Lowered, Types, joined, lowered
from jitbatch.rollout.segments import Segment

FIRST, MOST = 8, 64
"""How many segments of a sample run in one sync: at first and after a wrong guess, and at most."""

LEAST_CHANCE = 0.5
"""A stretch ends where it is less likely than this that the sample goes all of it."""


class Stretch:
    """Segments that a sample runs in one sync.

    Attributes:
        segments: the segments; each of them but the last ends in a question.
        guesses: the foreseen answers to these questions.
        asked, asked_classes: the values that are asked for or returned, of all segments, and their value classes.
        fed, classes, count: as in `Segment`, of all segments.
        is_stale: whether another stretch may suit better by now.
    """

    def __init__(self, segments: Sequence[Segment], guesses: Sequence[Any], has_limit: bool):
        self.segments = segments
        self.guesses = list(guesses)
        first = segments[0]
        self.asked, self.asked_classes, self.fed, self.classes = (
            first.asked,
            first.asked_classes,
            first.fed,
            first.classes,
        )
        if len(segments) > 1:
            self.asked = np.concatenate([one.asked for one in segments])
            self.asked_classes = np.concatenate([one.asked_classes for one in segments])
            self.fed = [fed for one in segments for fed in one.fed]
            self.classes = first.classes.union(*(one.classes for one in segments))
        self.count = segments[-1].count
        self.is_stale = False
        self._answers = [[guess] for guess in guesses]
        self._may_grow = not has_limit and not segments[-1].has_ended
        self._right = 0  # samples that went all of it and are not counted in the segments yet
        self._lowered: tuple[Lowered, Any] | None = None

    def lowered(self, types: Types) -> tuple[Lowered, Any]:
        """The nodes in terms of types, and as `Nodes` of the core. They are kept until the types change."""
        found = self._lowered
        if found is None or found[0].types is not types:
            all_nodes = joined([lowered(one, types) for one in self.segments])
            found = self._lowered = all_nodes, make_nodes(all_nodes.steps, all_nodes.reads, all_nodes.makes)
        return found

    def check(self, leaves: list[Any]) -> tuple[Sequence[Segment], list[list[Any]], list[Any]]:
        """Compare what was foreseen with the answers, given as one list of the leaves of all segments.

        Returns:
            The segments that the sample went, the answers before the last of them, and the leaves of the last.
        """
        known = len(self.guesses)
        if leaves[:known] == self.guesses:
            self._right += 1
            last = leaves[known:]
            self._note(known, last)
            return self.segments, self._answers, last
        wrong = next(place for place, guess in enumerate(self.guesses) if leaves[place] != guess)
        self.is_stale = True
        self._settle(len(self.guesses), self._right)
        self._right = 0
        self._settle(wrong, 1)
        self._note(wrong, [leaves[wrong]])
        return self.segments[: wrong + 1], self._answers[:wrong], [leaves[wrong]]

    def _settle(self, count: int, samples: int) -> None:
        """So many samples gave the foreseen answers to the first questions."""
        if samples:
            for segment, guess in zip(self.segments[:count], self.guesses, strict=False):
                segment.answered.note(guess, samples)

    def _note(self, place: int, leaves: Sequence[Any]) -> None:
        segment = self.segments[place]
        if segment.can_guess:
            segment.answered.note(leaves[0], 1)
            self.is_stale |= self._may_grow


def may_guess() -> bool:
    """Whether answers may be foreseen. Not while JAX raises for NaN: a value that no sample has may be one."""
    config: Any = jax.config
    return not (config.jax_debug_nans or config.jax_debug_infs)


def foreseen(first: Segment, limit: int, find: Callable[[Hashable], Segment | None]) -> tuple[list[Segment], list[Any]]:
    """The segments that a sample will probably go from this one on, at most `limit`, and the answers between them.

    Args:
        first: the segment.
        limit: see above.
        find: finds a known segment by its key.
    """
    segments, guesses, chance = [first], [], 1.0
    while len(segments) < limit and segments[-1].can_guess:
        likely = segments[-1].answered.likely()
        if likely is None:
            break
        chance *= likely[1]
        following = find(answer_key(segments[-1].serial, likely[:1]))
        if chance < LEAST_CHANCE or following is None or not following.may_run_in_vain:
            break
        segments.append(following)
        guesses.append(likely[0])
    return segments, guesses
