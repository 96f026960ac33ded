"""Tickets: samples in flight, from the view of their owner."""

from typing import Any

from jitbatch.record.decisions import encoded
from jitbatch.record.structure import Structure
from jitbatch.rollout.walks import Walker
from jitbatch.util.static import Static


class Ticket:
    """A sample in flight.

    Attributes:
        index: the number of earlier samples of the flight.
        structure: its structure.
        walker: its path.
        slot: its slot; None before its first sync and after its last.
        error: the exception that it raised, or None.
        leaves, tree, classes: its result, once it is done: the leaves as NumPy arrays, their tree and value classes.
        done: whether it has returned, raised an error, or was cancelled.
    """

    def __init__(self, index: int, structure: Structure, walker: Walker):
        self.index = index
        self.structure = structure
        self.walker = walker
        self.slot: int | None = None
        self.error: BaseException | None = None
        self.leaves: list[Any] = []
        self.classes: tuple[int, ...] = ()
        self.tree: Any = None
        self.done = False

    @property
    def result(self) -> Any:
        """The return value of the sample, with NumPy arrays as leaves. Raises the sample's exception."""
        if self.error is not None:
            raise self.error
        return self.tree.unflatten(self.leaves)

    @property
    def decisions(self) -> Static[Any]:
        """The answers so far (see `Decisions`)."""
        walker = self.walker
        asked = zip(walker.path, walker.answers, strict=False)
        return Static(tuple((segment.place, encoded(answer)) for segment, answer in asked))


class Times:
    """Seconds on the host, summed over syncs.

    Attributes:
        python: running and recording the code of samples, and looking up known segments.
        assemble: computing the rows and buffers for the program.
        call: writing inputs and calling the program.
        read: waiting for answers and reading them.
        syncs: the number of syncs.
        recorded: the number of recorded segments. All others were known.
    """

    def __init__(self) -> None:
        self.python = self.assemble = self.call = self.read = 0.0
        self.syncs = self.recorded = self.segments = 0

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {1e3 * getattr(self, name):.1f} ms" for name in ("python", "assemble", "call", "read")
        )
        return f"Times({self.syncs} syncs, {self.recorded} of {self.segments} segments recorded: {parts})"
