"""Scheduling policies: the order in which nodes run, and the nodes that run together.

A policy assigns a step to each node of a `Problem`. The nodes of a step have one type and do not depend on each other.
A schedule does not depend on the order in which nodes, samples or types appear. Ties are broken by the type ids, which
are in the order of the cells' digests.

To add a policy, write a function from a `Problem` to the step of each node, and `register` a `Policy` with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.ir.ranks import find_needs, order_ranks
from jitbatch.util.csr import ranges

SEARCH = 0.4
"""The time to choose one step by a search, in units of the time to run a dispatched step (60 us and 150 us)."""


def always(steps: int, bound: int) -> bool:
    """Search if an order with fewer than `steps` steps may exist."""
    return steps > bound


def if_it_pays(steps: int, bound: int) -> bool:
    """Search if the steps above the lower bound take longer than two searches."""
    return steps - bound > 2 * steps * SEARCH


@dataclass(frozen=True)
class Policy:
    """A way to order the nodes of a batch.

    Attributes:
        name: the name for users, as in `policy="depth"`.
        assign: a function from a problem to int32 [nodes], the step of each node.
        by_ranks: whether each rank of a type is a step, wherever ranks have an order. Rounds then follow from the ranks
            of the structures, without a `Problem`.
        searches: a function from the number of steps of an order and a lower bound for any order. It returns whether
            `assign` shall search for a better order.
    """

    name: str
    assign: Callable[[Problem], np.ndarray]
    by_ranks: bool = False
    searches: Callable[[int, int], bool] = always


POLICIES: dict[str, Policy] = {}


def register(policy: Policy) -> Policy:
    """Register a policy for `jitbatch(policy=...)`. Returns the policy."""
    POLICIES[policy.name] = policy
    return policy


def depth(problem: Problem) -> np.ndarray:
    """One step for each level and type, as in TensorFlow Fold."""
    types = int(problem.type.max(initial=0)) + 1
    _, step = np.unique(problem.level.astype(np.int64) * types + problem.type, return_inverse=True)
    return step.astype(np.int32)


def agenda(problem: Problem) -> np.ndarray:
    """Each step runs all ready nodes of one type: the type whose waiting nodes have the lowest average level, as in
    DyNet."""
    return _Agenda(problem, None).run()


def frontier(problem: Problem) -> np.ndarray:
    """Each step runs all ready nodes of one type: the type with the smallest share of nodes that are not ready in its
    lowest rank, after ED-Batch. A step with all nodes of a type's lowest rank never adds a step to the best order."""
    return _Agenda(problem, problem.rank).run()


class _Agenda:
    """Chooses step after step. Each step runs all ready nodes of the most promising type."""

    def __init__(self, problem: Problem, rank: np.ndarray | None):
        nodes = len(problem.type)
        self.problem = problem
        self.types = types = int(problem.type.max(initial=-1)) + 1
        order = np.argsort(problem.read, kind="stable")
        self.readers = problem.reader[order]
        self.first_reader = np.searchsorted(problem.read[order], np.arange(nodes + 1))
        self.missing = np.bincount(problem.reader, minlength=nodes)
        self.waiting = np.bincount(problem.type, minlength=types)
        self.level_sum = np.bincount(problem.type, weights=problem.level, minlength=types)
        self.ready: list[list[np.ndarray]] = [[] for _ in range(types)]
        # Without ranks, all nodes of a type have rank 0.
        self.rank = np.zeros(nodes, np.int64) if rank is None else rank
        self.rank_count = 1 + int(self.rank.max(initial=0))
        self.unready = np.zeros((types, self.rank_count), np.int64)
        if rank is not None:
            np.add.at(self.unready, (problem.type, self.rank), 1)
        self.uses_ranks = rank is not None

    def put(self, nodes: np.ndarray) -> None:
        """Mark nodes as ready: all nodes that they read have a step."""
        of_type = self.problem.type[nodes]
        for type_id in np.unique(of_type).tolist():
            self.ready[type_id].append(nodes[of_type == type_id])
        if self.uses_ranks:
            np.subtract.at(self.unready, (of_type, self.rank[nodes]), 1)

    def promise(self, type_id: int) -> tuple[float, float, int]:
        """A sort key: the lowest type runs next. With ranks, the share of its lowest rank that is not ready; then the
        average level of its waiting nodes; then the type id."""
        late = 0.0
        if self.uses_ranks:
            nodes = np.concatenate(self.ready[type_id])
            late = float(self.unready[type_id, self.rank[nodes].min()])
            late /= late + len(nodes)
        return late, self.level_sum[type_id] / self.waiting[type_id], type_id

    def run(self) -> np.ndarray:
        """int32 [nodes]; the step of each node."""
        step = np.full(len(self.problem.type), -1, np.int32)
        self.put(np.flatnonzero(self.missing == 0))
        now = 0
        while any(self.ready):
            type_id = min((k for k in range(self.types) if self.ready[k]), key=self.promise)
            chosen = np.concatenate(self.ready[type_id])
            self.ready[type_id] = []
            step[chosen] = now
            now += 1
            self.waiting[type_id] -= len(chosen)
            self.level_sum[type_id] -= self.problem.level[chosen].sum()
            starts, ends = self.first_reader[chosen], self.first_reader[chosen + 1]
            touched, times = np.unique(self.readers[ranges(starts, ends - starts)], return_counts=True)
            self.missing[touched] -= times
            self.put(touched[self.missing[touched] == 0])
        return step


def ranks(problem: Problem) -> np.ndarray:
    """A step for each rank of each type, if ranks have an order: no order has fewer steps. Else the shortest schedule
    of the other policies."""
    found = _ranks_in_order(problem)
    return _fewest(problem, (depth, agenda, frontier)) if found is None else found


def ranks_or_depth(problem: Problem) -> np.ndarray:
    """A step for each rank of each type, if ranks have an order. Else steps by depth, unless a search for fewer steps
    pays."""
    found = _ranks_in_order(problem)
    if found is not None:
        return found
    by_depth = depth(problem)
    pays = if_it_pays(int(by_depth.max(initial=-1)) + 1, problem.bound)
    return _fewest(problem, (depth, agenda, frontier)) if pays else by_depth


def _fewest(problem: Problem, orders: Sequence[Callable[[Problem], np.ndarray]]) -> np.ndarray:
    """The schedule with the fewest steps among those of some policies."""
    return min((assign(problem) for assign in orders), key=lambda step: step.max(initial=-1))


def _ranks_in_order(problem: Problem) -> np.ndarray | None:
    """A step for each rank of each type; None if ranks are unknown or have no order."""
    rank = problem.rank
    if rank is not None:
        types = int(problem.type.max(initial=-1)) + 1
        counts = np.zeros(types, np.int64)
        np.maximum.at(counts, problem.type, rank + 1)
        needs = find_needs(problem.type, rank, problem.reader, problem.read)
        order = order_ranks(counts.tolist(), needs, range(types))
        if order is not None:
            return steps_of_ranks(order, types, int(counts.max(initial=0)))[problem.type, rank].astype(np.int32)
    return None


def steps_of_ranks(order: Sequence[int], types: int, most: int) -> np.ndarray:
    """int [types, ranks]; the step of each rank of each type.

    Args:
        order: the type of each step.
        types: the number of types.
        most: the largest number of ranks of a type.
    """
    steps = np.zeros((types, most), np.int64)
    done = [0] * types
    for step, type_id in enumerate(order):
        steps[type_id, done[type_id]] = step
        done[type_id] += 1
    return steps


register(Policy("auto", ranks_or_depth, by_ranks=True, searches=if_it_pays))
register(Policy("depth", depth))
register(Policy("agenda", agenda))
register(Policy("layers", ranks, by_ranks=True))
