"""Scheduling: which nodes run together, and in which order.

A policy is one function from a `Problem` to the step of each node. Nodes of a step have one type and do not depend on
each other. Nothing here depends on the order in which nodes, samples or types appear: ties are broken by the numbers
of the types, which are in the order of their digests.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jitbatch._errors import VerifyError


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


Policy = Callable[[Problem], np.ndarray]


def depth(problem: Problem) -> np.ndarray:
    """One step for each type of each level, as TensorFlow Fold does."""
    types = int(problem.type.max(initial=0)) + 1
    _, step = np.unique(problem.level.astype(np.int64) * types + problem.type, return_inverse=True)
    return step.astype(np.int32)


def agenda(problem: Problem) -> np.ndarray:
    """All nodes that are ready of the type whose waiting nodes have the lowest average level, as DyNet does."""
    nodes = len(problem.type)
    types = int(problem.type.max(initial=-1)) + 1
    order = np.argsort(problem.read, kind="stable")
    readers = problem.reader[order]
    first_reader = np.searchsorted(problem.read[order], np.arange(nodes + 1))
    missing = np.bincount(problem.reader, minlength=nodes)
    waiting = np.bincount(problem.type, minlength=types)
    level_sum = np.bincount(problem.type, weights=problem.level, minlength=types)
    ready: list[list[np.ndarray]] = [[] for _ in range(types)]

    def put(ready_nodes: np.ndarray) -> None:
        of_type = problem.type[ready_nodes]
        for kind in np.unique(of_type):
            ready[kind].append(ready_nodes[of_type == kind])

    step = np.full(nodes, -1, np.int32)
    put(np.flatnonzero(missing == 0))
    now = 0
    while any(ready):
        kind = min((k for k in range(types) if ready[k]), key=lambda k: (level_sum[k] / waiting[k], k))
        chosen = np.concatenate(ready[kind])
        ready[kind] = []
        step[chosen] = now
        now += 1
        waiting[kind] -= len(chosen)
        level_sum[kind] -= problem.level[chosen].sum()
        starts, ends = first_reader[chosen], first_reader[chosen + 1]
        lengths = ends - starts
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        touched, times = np.unique(readers[np.repeat(starts, lengths) + offsets], return_counts=True)
        missing[touched] -= times
        put(touched[missing[touched] == 0])
    return step


def fewest_steps(problem: Problem) -> np.ndarray:
    """Whichever of the policies needs fewer steps; depth when they need as many."""
    return min((policy(problem) for policy in (depth, agenda)), key=lambda step: step.max(initial=-1))


POLICIES: dict[str, Policy] = {"auto": fewest_steps, "depth": depth, "agenda": agenda}
