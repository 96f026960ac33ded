"""Phases: groups of types that run one after the other.

The phases are the strongly connected components of the graph of types. Types that read each other, or themselves, form
a loop, which runs round by round. Every other type is a phase of its own, and runs in one step over all its nodes: an
embedding before the loops, a loss after them.
"""

from collections.abc import Iterable, Sequence


def find_phases(types: int, edges: Iterable[tuple[int, int]]) -> list[tuple[tuple[int, ...], bool]]:
    """The types of each phase, and whether the phase is a loop. Every phase reads only itself and earlier phases.

    Args:
        types: the number of types.
        edges: `(read, reader)` pairs of types.
    """
    readers: list[set[int]] = [set() for _ in range(types)]
    for read, reader in edges:
        readers[read].add(reader)
    # Tarjan's algorithm, without recursion. It finds the components of readers first.
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
    """The types of a loop in an order in which most types read earlier ones. The loop then needs fewer rounds.

    Among the remaining types, a type without readers goes to the back, and a type that reads no other goes to the
    front. If there are none, the type with the largest difference between its readers and the types that it reads goes
    to the front (the heuristic of Eades, Lin and Smyth for feedback arcs).
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
