"""Stretches: the segments of a sample in one sync. With predicted answers, a sample runs more than one segment.

A sync costs far more than a few nodes. So a sample continues after a question with the most likely answer, as a
processor does at a branch, and all of its questions are answered together. Segments after the first wrong prediction
are ignored: the sample continues from the true answer, and their rows are freed when the sample ends. So results,
decisions and errors equal those of samples that wait at each question.

Only known segments are run ahead, and only if all of their cells may run in vain. Only answers that are one integer or
truth value are predicted. After a correct stretch, the next one may be twice as long.
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
"""The largest number of segments of a sample in one sync: at first and after a wrong prediction, and in general."""

LEAST_CHANCE = 0.5
"""A stretch ends where the probability of its path falls below this."""


class Stretch:
    """Segments that a sample runs in one sync.

    Attributes:
        segments: the segments; each one except the last ends in a question.
        guesses: the predicted answers to these questions.
        asked, asked_classes: the values of the questions or of the result, for all segments, and their value classes.
        fed, classes, count: as in `Segment`, for all segments.
        is_stale: whether another stretch may be better by now.
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
        self._right = 0  # completed passes that are not yet counted in the segments
        self._lowered: tuple[Lowered, Any] | None = None

    def lowered(self, types: Types) -> tuple[Lowered, Any]:
        """The nodes expressed in types, and as `Nodes` of the core. They are cached until the types change."""
        found = self._lowered
        if found is None or found[0].types is not types:
            all_nodes = joined([lowered(one, types) for one in self.segments])
            found = self._lowered = all_nodes, make_nodes(all_nodes.steps, all_nodes.reads, all_nodes.makes)
        return found

    def check(self, leaves: list[Any]) -> tuple[Sequence[Segment], list[list[Any]], list[Any]]:
        """Compare the predictions with the answers. `leaves` is one list of the leaves for all segments.

        Returns:
            The segments that the sample really took, the answers before the last of them, and the leaves of the last.
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
        """Count the predicted answers to the first `count` questions for this number of samples."""
        if samples:
            for segment, guess in zip(self.segments[:count], self.guesses, strict=False):
                segment.answered.note(guess, samples)

    def _note(self, place: int, leaves: Sequence[Any]) -> None:
        segment = self.segments[place]
        if segment.can_guess:
            segment.answered.note(leaves[0], 1)
            self.is_stale |= self._may_grow


def may_guess() -> bool:
    """Whether answers may be predicted. JAX's check for NaN forbids it, because values that no sample has may be
    NaN."""
    config: Any = jax.config
    return not (config.jax_debug_nans or config.jax_debug_infs)


def foreseen(first: Segment, limit: int, find: Callable[[Hashable], Segment | None]) -> tuple[list[Segment], list[Any]]:
    """The most likely segments from this one on, at most `limit`, and the answers between them.

    Args:
        first: the segment.
        limit: the largest number of segments.
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
