"""Scheduling: which nodes run together, and in which order.

A policy is one function from a `Problem` to the step of each node. Nodes of a step have one type and do not depend on
each other. Nothing here depends on the order in which nodes, samples or types appear: ties are broken by the numbers
of the types, which are in the order of their digests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitbatch._arrays import ranges
from jitbatch._errors import VerifyError
from jitbatch._known import known_costs
from jitbatch._layers import find_layers, find_needs, order_layers

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
        """int [nodes]; the layer of each node (see `_layers`), or None if finding them would take too much memory."""
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


Policy = Callable[[Problem], np.ndarray]


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


def layers(problem: Problem) -> np.ndarray:
    """Layers as steps, if there is an order of layers: as few steps as can be. If not, whichever of the other policies
    needs the fewest."""
    found = _layers_in_order(problem)
    return _fewest(problem, (depth, agenda, frontier)) if found is None else found


def by_cost(problem: Problem) -> np.ndarray:
    """The same, but where layers have no order, the policies that look at the nodes which are ready are tried only if
    the steps that they could save take longer than they do."""
    found = _layers_in_order(problem)
    if found is not None:
        return found
    by_depth = depth(problem)
    looks = looks_further(by_cost, int(by_depth.max(initial=-1)) + 1, problem.bound)
    return _fewest(problem, (depth, agenda, frontier)) if looks else by_depth


def looks_further(policy: Policy, steps: int, bound: int) -> bool:
    """Whether a policy looks for fewer steps than these, where no order needs fewer than `bound`."""
    if steps <= bound or policy is not by_cost:
        return steps > bound
    costs = known_costs()
    return (steps - bound) * costs.step > 2 * steps * costs.search


def _fewest(problem: Problem, policies: Sequence[Policy]) -> np.ndarray:
    return min((policy(problem) for policy in policies), key=lambda step: step.max(initial=-1))


def _layers_in_order(problem: Problem) -> np.ndarray | None:
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


POLICIES: dict[str, Policy] = {"auto": by_cost, "depth": depth, "agenda": agenda, "layers": layers}

LAYERED = (by_cost, layers)
"""Policies whose steps are layers wherever layers have an order."""
