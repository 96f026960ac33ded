"""The nodes of a batch as a scheduling policy sees them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitbatch.core.reference.batch import Batch
from jitbatch.ir.ranks import find_layers
from jitbatch.util.errors import VerifyError

MAX_TABLE = 1 << 25
"""Nodes times types beyond which layers are not looked for."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The nodes of a batch as a policy sees them.

    Attributes:
        type: int32 [nodes]; types are numbered in canonical order.
        level: int32 [nodes]; a node's level is above those of the nodes it reads.
        reader, read: int32 [edges]; node `reader[e]` reads a value of node `read[e]`.
    """

    type: np.ndarray
    level: np.ndarray
    reader: np.ndarray
    read: np.ndarray

    @cached_property
    def layer(self) -> np.ndarray | None:
        """int [nodes]; the layer of each node (see `ir/ranks`), or None if finding them would take too much memory."""
        if len(self.type) * int(self.type.max(initial=0)) > MAX_TABLE:
            return None
        return find_layers(self.type, self.level, self.reader, self.read)

    @property
    def bound(self) -> int:
        """How many steps there are at least; 0 if that would take too much memory to find out."""
        if self.layer is None:
            return 0
        counts = np.zeros(int(self.type.max(initial=-1)) + 1, np.int64)
        np.maximum.at(counts, self.type, self.layer + 1)
        return int(counts.sum())

    def verify(self, step: np.ndarray) -> None:
        """Check that `step` is a schedule of this problem."""
        if len(step) != len(self.type):
            raise VerifyError("schedule: every node has a step")
        if not np.all(step[self.reader] > step[self.read]):
            raise VerifyError("schedule: a node runs after the nodes it reads")
        if len(step) and not np.array_equal(np.unique(step), np.arange(step.max() + 1)):
            raise VerifyError("schedule: no step is empty")
        pairs = np.unique(np.stack([step, self.type], axis=1), axis=0)
        if len(pairs) != len(np.unique(step)):
            raise VerifyError("schedule: the nodes of a step have one type")


def problem_of(batch: Batch) -> Problem:
    """The distinct nodes of a batch, renumbered."""
    return Problem(batch.type[batch.nodes], batch.level[batch.nodes], *batch.edges())
