"""Walks: a cache of segments, by the structure of a sample and its answers so far.

The next segment of a sample depends only on the structure of the sample and on its answers. So it is recorded once. A
sample on a known path runs no Python. A sample that leaves the known paths is run again from its beginning, with its
answers so far, and is recorded from there.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from jitbatch.record.context import Context
from jitbatch.record.decisions import ANYWHERE, answer_key, decoded
from jitbatch.record.finalise import Recording
from jitbatch.record.structure import Structure
from jitbatch.rollout.live import Live
from jitbatch.rollout.segments import ZERO, Numbering, PinnedRows, Segment
from jitbatch.rollout.stretches import FIRST, MOST, Stretch, foreseen
from jitbatch.util import passes
from jitbatch.util.caches import Cache
from jitbatch.util.errors import QuestionError

MAX_SEGMENTS = 65536
"""The number of cached segments for each function and kind of shared arguments. One takes a few kB."""

MAX_STRETCHES = 16384
"""The number of cached stretches for each function and kind of shared arguments."""


class Walks:
    """The segments and stretches of a function in one context, and their pinned rows."""

    def __init__(self, context: Context):
        self.context = context
        self.pinned = PinnedRows()
        self._segments = Cache(MAX_SEGMENTS if passes.remembers() else 0)
        self._stretches = Cache(MAX_STRETCHES if passes.remembers() else 0)
        self._serials = itertools.count()

    def find(self, keys: Sequence[Hashable]) -> list[Segment | None]:
        """The known segments with these keys."""
        return self._segments.get_all(keys)

    def put(self, key: Hashable, segment: Segment) -> Segment:
        return self._segments.put(key, segment)

    def stretch(self, first: Segment, limit: int) -> Stretch:
        """The stretch of a sample for one sync: at most `limit` segments, starting with this one."""
        key = first.serial, limit
        found: Stretch | None = self._stretches.get(key)
        if found is not None and not found.is_stale:
            return found
        segments, guesses = foreseen(first, limit, self._segments.get)
        if found is not None and found.segments == segments and found.guesses == guesses:
            found.is_stale = False
            return found
        self._stretches.discard(key)
        return self._stretches.put(key, Stretch(segments, guesses, len(segments) == limit))

    def serial(self) -> int:
        return next(self._serials)

    def recording_of(self, structure: Structure, key: Hashable, decisions: Sequence[Any]) -> Recording | None:
        """The recording of a sample with decisions, joined from known segments. None if a segment is missing.

        Args:
            structure: the structure of the sample with its decisions.
            key: the structure of the sample alone.
            decisions: its decisions (see `record/decisions`).
        """
        path: list[Segment] = []
        found = self._segments.get(first_key(key))
        for place, answer in decisions:
            if found is None or place not in (found.place, ANYWHERE) or len(answer) != len(found.asked):
                return None
            path.append(found)
            found = self._segments.get(answer_key(found.serial, decoded(answer)))
        if found is None or not found.has_ended:
            return None
        path.append(found)
        return _joined(path, structure, self.pinned)


def _joined(path: Sequence[Segment], structure: Structure, pinned: PinnedRows) -> Recording:
    """The recording of a sample with this path."""
    given: list[tuple[int, int, int]] = []
    given_class: list[int] = []
    constants: list[Any] = []
    rows: dict[int, int] = {}

    def give(value: int, value_class: int, source: tuple[int, int, int]) -> None:
        given.append(source)
        given_class.append(value_class)
        rows[value] = -len(given)

    def row(value: int) -> int:
        if value < ZERO and value not in rows:
            value_class, shared_id, constant = pinned[ZERO - 1 - value]
            if shared_id is None:
                constants.append(constant)
            leaf = len(structure.leaves) + len(constants) - 1
            give(value, value_class, (leaf, 0, 0) if shared_id is None else (-1, shared_id, 0))
        return rows.get(value, value)

    for one in itertools.chain(*(segment.inputs for segment in path)):
        leaf = one.leaf
        if one.constant is not None:
            constants.append(one.constant)
            leaf = len(structure.leaves) + len(constants) - 1
        give(one.value, one.value_class, (leaf, one.depth, one.row))
    nodes = list(itertools.chain(*(segment.nodes for segment in path)))
    operands = [row(value) for node in nodes for value in node.reads]
    outputs = list(map(row, path[-1].asked.tolist()))
    return Recording(
        kinds=[node.kind_id for node in nodes],
        counts=[len(node.reads) for node in nodes],
        operands=operands,
        made=list(itertools.chain(*(node.makes for node in nodes))),
        outputs=outputs,
        numbered=(path[-1].count, 0),
        given=given,
        given_class=given_class,
        leaf_shapes=tuple(map(np.shape, (*structure.leaves, *constants))),
        constants=tuple(constants),
        out_tree=path[-1].tree,
        structure=structure.key,
    )


def first_key(key: Hashable) -> Hashable:
    """The key of the first segment of samples with this structure."""
    return None, key


class Walker:
    """The path of one sample.

    Attributes:
        key: the key of its next segment.
        answers: the answers so far, each as a list of leaves.
        path: the segments so far.
        limit: the largest number of segments for the next sync.
    """

    def __init__(self, walks: Walks, structure: Structure, begin: Callable[[], Live]):
        self.key = first_key(structure.key)
        self.answers: list[list[Any]] = []
        self.path: list[Segment] = []
        self.limit = FIRST
        self._walks = walks
        self._begin = begin
        self._live: Live | None = None
        self._numbering: Any = None

    def go(self, stretch: Stretch, leaves: list[Any]) -> list[Any] | None:
        """Move along a stretch as far as its predictions are correct, and store the answer to the last question.

        Args:
            stretch: the stretch.
            leaves: the answers to all of its questions, one after the other, or the result at the end.

        Returns:
            The leaves of the result, or None if the sample has not ended.
        """
        segments, answers, last = stretch.check(leaves)
        self.path.extend(segments)
        self.answers.extend(answers)
        self.limit = min(2 * self.limit, MOST) if len(segments) == len(stretch.segments) else FIRST
        if segments[-1].has_ended:
            return last
        self.answers.append(last)
        self.key = answer_key(segments[-1].serial, last)
        return None

    def record(self) -> Segment:
        """The next segment, recorded by running the sample's code. Other samples find it after it is `kept`."""
        found = self._walks.find([self.key])[0]
        if found is not None:  # another sample has recorded it meanwhile
            return found
        if self._live is None:
            self._live = self._begin()
            self._numbering = Numbering(self._live, self._walks.pinned)
        live = self._live
        while live.position < len(self.answers) - 1:  # it is on a known path
            at = live.position
            segment, known = self._segment(None if at < 0 else at), self.path[at + 1]
            if segment.place != known.place:
                there = f"asks at {segment.where}" if segment.where else "ends"
                raise QuestionError(
                    f"{live.recorder.sample} {there} where it asked at {known.where} before, with the same answers: "
                    "what a sample does may depend on its structure and its answers alone, not on Python's random "
                    "numbers or on other things that change"
                )
        return self._segment(len(self.answers) - 1 if self.answers else None)

    def kept(self, segment: Segment) -> Segment:
        """Stores the next segment, for all samples on this path. If another sample has stored one, returns that one."""
        return self._walks.put(self.key, segment)

    def _segment(self, answered: int | None) -> Segment:
        """Run the sample's code up to the next question, with the answer of this index."""
        assert self._live is not None
        answer = None
        if answered is not None:
            answer = self.path[answered].tree.unflatten(self.answers[answered])
        return Segment(self._walks.serial(), self._live.advance(answer), self._numbering)

    def close(self) -> None:
        """Cancel the waiting sample."""
        live, self._live = self._live, None
        if live is not None:
            live.close()
