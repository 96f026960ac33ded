"""Phases: the types of a batch in the order in which they can run as a whole.

Types that read each other, or themselves, form a loop: they run level by level. Every other type runs in one step, over
all its nodes: before the loops what reads only inputs (an embedding), after them what nothing in a loop reads (a loss).
These are the strongly connected components of the graph of types.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from jitbatch._layers import by_stage, longest_paths, order_layers
from jitbatch._schedule import Policy, Problem, steps_of_layers


def find_phases(types: int, edges: Iterable[tuple[int, int]]) -> list[tuple[tuple[int, ...], bool]]:
    """The types of each phase, and whether it is a loop, in an order in which every phase reads only earlier ones.

    Args:
        types: how many types there are.
        edges: `(read, reader)` pairs of types.
    """
    readers: list[set[int]] = [set() for _ in range(types)]
    for read, reader in edges:
        readers[read].add(reader)
    # Tarjan's algorithm, without recursion: components come out readers first.
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    components: list[list[int]] = []
    for root in range(types):
        if root in index:
            continue
        work = [(root, iter(sorted(readers[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(readers[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    components.append(_downstream(component, readers))
    return [(tuple(c), len(c) > 1 or c[0] in readers[c[0]]) for c in reversed(components)]


def _downstream(types: Sequence[int], readers: Sequence[set[int]]) -> list[int]:
    """The types of a loop in an order in which most of what one makes is read further on: fewer rounds are needed.

    What reads nothing that is left goes to the front, what nothing reads to the back; in a circle, whatever is read by
    more than it reads goes to the front (the heuristic of Eades, Lin and Smyth for feedback arcs).
    """
    left = set(types)
    reads: dict[int, set[int]] = {t: set() for t in types}
    for t in types:
        for reader in readers[t] & left - {t}:
            reads[reader].add(t)
    outward = {t: len(readers[t] & left - {t}) for t in types}
    inward = {t: len(reads[t]) for t in types}
    front: list[int] = []
    back: list[int] = []
    ends = sorted(t for t in types if not outward[t])
    while left:
        if ends:
            chosen = ends.pop()
            back.append(chosen)
        else:
            chosen = max(left, key=lambda t: (not inward[t], outward[t] - inward[t], -t))
            front.append(chosen)
        left.remove(chosen)
        for t in reads[chosen] & left:
            outward[t] -= 1
            if not outward[t]:
                ends.append(t)
        for t in readers[chosen] & left:
            inward[t] -= 1
    return front + back[::-1]


def rounds_of_layers(layers: Sequence[int], needs: np.ndarray) -> np.ndarray | None:
    """The rounds of a loop if its steps are layers (see `_layers`): int [types, layers], or None if they cannot be.

    Args:
        layers: how many layers each type of the loop has; types run in this order in a round.
        needs: int [4, needs]; which layers need which.
    """
    most = max(layers, default=0)
    if len(layers) == 1:
        return np.arange(most)[None]
    order = order_layers(layers, needs, range(len(layers)))
    if order is None:
        return None
    steps = steps_of_layers(order, len(layers), most)
    return _rounds(np.array(order, np.int64))[steps] if order else steps


def rounds_of(
    problem: Problem, members: np.ndarray, types: Sequence[int], policy: Policy, verify: bool = False
) -> np.ndarray:
    """The round of each node of a loop: in a round, each type runs at most once, in the order of `types`.

    Args:
        problem: the whole batch.
        members: the nodes of the loop.
        types: the types of the loop.
    """
    local = np.full(len(problem.type), -1)
    local[members] = np.arange(len(members))
    inside = (local[problem.reader] >= 0) & (local[problem.read] >= 0)
    reader, read = local[problem.reader[inside]], local[problem.read[inside]]
    place = np.full(max(int(problem.type.max(initial=0)), *types) + 1, -1)
    place[list(types)] = np.arange(len(types))
    level = longest_paths(len(members), by_stage(problem.level[members], reader, read))
    part = Problem(place[problem.type[members]], level, reader, read)
    step = policy(part)
    if verify:
        part.verify(step)
    first = np.unique(step, return_index=True)[1]
    return _rounds(part.type[first])[step]


def _rounds(kinds: np.ndarray) -> np.ndarray:
    """The round of each step, given the steps' types: a new one begins where the next type is not a later one."""
    return np.cumsum(np.append(False, kinds[1:] <= kinds[:-1])) if len(kinds) else np.zeros(0, np.int64)
