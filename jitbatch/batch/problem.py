"""The scheduling problem: the nodes of a batch as the input of a policy."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitbatch.core.reference.batch import Batch
from jitbatch.ir.ranks import find_ranks
from jitbatch.util.errors import VerifyError

MAX_TABLE = 1 << 25
"""The largest product of nodes and types for which ranks are computed."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The nodes of a batch as the input of a policy.

    Attributes:
        type: int32 [nodes]; the type id of each node. Type ids are in canonical order.
        level: int32 [nodes]; the level of each node, higher than those of the nodes that it reads.
        reader, read: int32 [edges]; node `reader[e]` reads a value of node `read[e]`.
    """

    type: np.ndarray
    level: np.ndarray
    reader: np.ndarray
    read: np.ndarray

    @cached_property
    def rank(self) -> np.ndarray | None:
        """int [nodes]; the rank of each node (see `ir/ranks`), or None if ranks would take too much memory."""
        if len(self.type) * int(self.type.max(initial=0)) > MAX_TABLE:
            return None
        return find_ranks(self.type, self.level, self.reader, self.read)

    @property
    def bound(self) -> int:
        """A lower bound on the number of steps: the number of ranks of all types; 0 without ranks."""
        if self.rank is None:
            return 0
        counts = np.zeros(int(self.type.max(initial=-1)) + 1, np.int64)
        np.maximum.at(counts, self.type, self.rank + 1)
        return int(counts.sum())

    def verify(self, step: np.ndarray) -> None:
        """Check that `step`, the step of each node, is a valid schedule of this problem."""
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
    """The problem of the distinct nodes of a batch, renumbered."""
    return Problem(batch.type[batch.nodes], batch.level[batch.nodes], *batch.edges())
