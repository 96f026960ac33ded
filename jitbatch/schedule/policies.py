"""Scheduling policies: which nodes run together, and in which order.

A policy assigns a step to each node of a `Problem`. The nodes of a step have one type and do not depend on each other.
Nothing here depends on the order in which nodes, samples or types appear: ties are broken by the type ids, which are in
the order of the cells' digests.

To add a policy, write a function from a `Problem` to the step of each node, and give `register` a `Policy` of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.ir.ranks import find_needs, order_layers
from jitbatch.util.csr import ranges

SEARCH = 0.4
"""Choosing a step among the nodes that are ready takes this part of the time of a dispatched step (60 and 150 us)."""


def always(steps: int, bound: int) -> bool:
    """Search wherever fewer steps than these may exist."""
    return steps > bound


def if_it_pays(steps: int, bound: int) -> bool:
    """Search where the steps above the lower bound take longer than two searches."""
    return steps - bound > 2 * steps * SEARCH


@dataclass(frozen=True)
class Policy:
    """A way to order the nodes of a batch.

    Attributes:
        name: what users call it: `policy="depth"`.
        assign: from a problem to int32 [nodes], the step of each node.
        by_ranks: whether its steps are ranks wherever ranks have an order. Executors that know the ranks of nodes from
            their structures then need not look at the nodes.
        searches: given the steps of an order and a lower bound on the steps of any order, whether `assign` is to look
            for a better one.
    """

    name: str
    assign: Callable[[Problem], np.ndarray]
    by_ranks: bool = False
    searches: Callable[[int, int], bool] = always


POLICIES: dict[str, Policy] = {}


def register(policy: Policy) -> Policy:
    """Make a policy known to `jitbatch(policy=...)`."""
    POLICIES[policy.name] = policy
    return policy


def depth(problem: Problem) -> np.ndarray:
    """One step for each type of each level, as TensorFlow Fold does."""
    types = int(problem.type.max(initial=0)) + 1
    _, step = np.unique(problem.level.astype(np.int64) * types + problem.type, return_inverse=True)
    return step.astype(np.int32)


def agenda(problem: Problem) -> np.ndarray:
    """All nodes that are ready of the type whose waiting nodes have the lowest average level, as DyNet does."""
    return _Agenda(problem, None).run()


def frontier(problem: Problem) -> np.ndarray:
    """All nodes that are ready of the type with the smallest part of its lowest layer not ready, after ED-Batch: a step
    with all nodes of a type that have none of that type below them is never a step too many."""
    return _Agenda(problem, problem.layer).run()


class _Agenda:
    """Steps one by one, each of all nodes that are ready of the most promising type."""

    def __init__(self, problem: Problem, layer: np.ndarray | None):
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
        # Without layers, all nodes of a type are in one.
        self.layer = np.zeros(nodes, np.int64) if layer is None else layer
        self.layers = 1 + int(self.layer.max(initial=0))
        self.unready = np.zeros((types, self.layers), np.int64)
        if layer is not None:
            np.add.at(self.unready, (problem.type, self.layer), 1)
        self.uses_layers = layer is not None

    def put(self, nodes: np.ndarray) -> None:
        of_type = self.problem.type[nodes]
        for kind in np.unique(of_type).tolist():
            self.ready[kind].append(nodes[of_type == kind])
        if self.uses_layers:
            np.subtract.at(self.unready, (of_type, self.layer[nodes]), 1)

    def promise(self, kind: int) -> tuple[float, float, int]:
        """A type runs next if this is lowest: which part of its lowest layer is not ready, and the average level."""
        late = 0.0
        if self.uses_layers:
            nodes = np.concatenate(self.ready[kind])
            late = float(self.unready[kind, self.layer[nodes].min()])
            late /= late + len(nodes)
        return late, self.level_sum[kind] / self.waiting[kind], kind

    def run(self) -> np.ndarray:
        step = np.full(len(self.problem.type), -1, np.int32)
        self.put(np.flatnonzero(self.missing == 0))
        now = 0
        while any(self.ready):
            kind = min((k for k in range(self.types) if self.ready[k]), key=self.promise)
            chosen = np.concatenate(self.ready[kind])
            self.ready[kind] = []
            step[chosen] = now
            now += 1
            self.waiting[kind] -= len(chosen)
            self.level_sum[kind] -= self.problem.level[chosen].sum()
            starts, ends = self.first_reader[chosen], self.first_reader[chosen + 1]
            touched, times = np.unique(self.readers[ranges(starts, ends - starts)], return_counts=True)
            self.missing[touched] -= times
            self.put(touched[self.missing[touched] == 0])
        return step


def ranks(problem: Problem) -> np.ndarray:
    """Ranks as steps, if ranks have an order: no order has fewer steps. Else the best of the other policies."""
    found = _ranks_in_order(problem)
    return _fewest(problem, (depth, agenda, frontier)) if found is None else found


def ranks_or_depth(problem: Problem) -> np.ndarray:
    """Ranks as steps, if ranks have an order. Else steps by depth, unless a search for fewer steps pays."""
    found = _ranks_in_order(problem)
    if found is not None:
        return found
    by_depth = depth(problem)
    pays = if_it_pays(int(by_depth.max(initial=-1)) + 1, problem.bound)
    return _fewest(problem, (depth, agenda, frontier)) if pays else by_depth


def _fewest(problem: Problem, orders: Sequence[Callable[[Problem], np.ndarray]]) -> np.ndarray:
    return min((assign(problem) for assign in orders), key=lambda step: step.max(initial=-1))


def _ranks_in_order(problem: Problem) -> np.ndarray | None:
    """Layers as steps, if there is an order of layers."""
    layer = problem.layer
    if layer is not None:
        types = int(problem.type.max(initial=-1)) + 1
        counts = np.zeros(types, np.int64)
        np.maximum.at(counts, problem.type, layer + 1)
        needs = find_needs(problem.type, layer, problem.reader, problem.read)
        order = order_layers(counts.tolist(), needs, range(types))
        if order is not None:
            return steps_of_layers(order, types, int(counts.max(initial=0)))[problem.type, layer].astype(np.int32)
    return None


def steps_of_layers(order: Sequence[int], types: int, most: int) -> np.ndarray:
    """int [types, layers]; the step of each layer, given the types of all steps."""
    steps = np.zeros((types, most), np.int64)
    done = [0] * types
    for step, kind in enumerate(order):
        steps[kind, done[kind]] = step
        done[kind] += 1
    return steps


register(Policy("auto", ranks_or_depth, by_ranks=True, searches=if_it_pays))
register(Policy("depth", depth))
register(Policy("agenda", agenda))
register(Policy("layers", ranks, by_ranks=True))
