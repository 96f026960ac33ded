"""Grouping of bare operations into cells.

Recording order is topological. Each bare operation is first moved to the place where it is needed. A *run* is then a
stretch of consecutive bare operations. A *group* is a connected part of a run, so groups never form a cycle. The
operations of one term of a sum form a separate group. A run ends

- at a call of a subgraph, and at the beginning and end of a decorated function (its `scope`),
- at a change of the innermost activation of a recursive function: a tree node is one group, with its helper functions,
- at a place in the code that a path of dependencies reaches again: the next turn of a loop is the next group.
"""

from collections.abc import Hashable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jitbatch.util import passes
from jitbatch.util.sites import Site, is_comprehension


class Item(NamedTuple):
    """An operation to be grouped with others, or a node, which is a separate group.

    Attributes:
        content: the operation or the node.
        reads: keys of its inputs.
        makes: keys of its outputs.
        has_effects: whether it is needed even if nothing reads its outputs.
        site: its place in the user's code; None for a separate group.
        scope: the decorated call that it belongs to.
        turn: the turn of a loop over the terms of a sum that it belongs to, or None.
    """

    content: Any
    reads: Sequence[Hashable]
    makes: Sequence[Hashable]
    has_effects: bool
    site: Site | None
    scope: int = 0
    turn: Any = None


def group_items(items: Sequence[Item]) -> list[list[Item]]:
    """Divide items into groups. Items and groups are in the order of execution."""
    made_by = {key: place for place, item in enumerate(items) for key in item.makes}
    group_ids = group_operations(
        [item.site for item in items],
        [item.scope for item in items],
        [[made_by[key] for key in item.reads if key in made_by] for item in items],
        [item.turn for item in items],
    )
    groups: list[list[Item]] = [[] for _ in range(max(group_ids, default=-1) + 1)]
    for item, group_id in zip(items, group_ids, strict=True):
        groups[group_id].append(item)
    return groups


def needed_groups(groups: Sequence[list[Item]], results: Iterable[Hashable]) -> tuple[list[list[Item]], set[Hashable]]:
    """The groups that results or effects need, and the keys of all values that are read outside of their group."""
    group_of = {key: group_id for group_id, group in enumerate(groups) for item in group for key in item.makes}
    is_read = set(results)
    needed = []
    for group_id in reversed(range(len(groups))):
        group = groups[group_id]
        if any(item.has_effects or not is_read.isdisjoint(item.makes) for item in group):
            for item in group:
                is_read.update([key for key in item.reads if group_of.get(key) != group_id])
            needed.append(group)
    return needed[::-1], is_read


def group_operations(
    sites: Sequence[Site | None], scopes: Sequence[int], reads: Sequence[Sequence[int]], turns: Sequence[Any]
) -> list[int]:
    """The group id of each operation; ids are in topological order.

    Args:
        sites: the place of each operation in the user's code; None for a call of a subgraph, which is a separate group.
        scopes: the decorated call that each operation belongs to.
        reads: the earlier operations that each operation reads.
        turns: the turn of a loop over the terms of a sum that each operation belongs to, or None.
    """
    if not passes.runs("group"):
        return list(range(len(sites)))
    order = _lazy_order([site is None for site in sites], reads)
    place = {op: position for position, op in enumerate(order)}
    sites = [sites[op] for op in order]
    scopes = [scopes[op] for op in order]
    turns = [turns[op] for op in order]
    reads = [[place[other] for other in reads[op]] for op in order]

    runs = _runs(sites, scopes, reads, _mutually_recursive(sites))
    parent = list(range(len(sites)))

    def find(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    stages = _stages(runs, reads, turns)
    for op, earlier in enumerate(reads):
        for other in earlier:
            if runs[op] == runs[other] and stages[op] == stages[other]:
                a, b = find(op), find(other)
                parent[max(a, b)] = min(a, b)
    firsts = [find(op) for op in range(len(sites))]
    in_order = sorted(set(firsts), key=lambda first: (runs[first], stages[first], first))
    group_ids = {first: group_id for group_id, first in enumerate(in_order)}
    return [group_ids[firsts[place[op]]] for op in range(len(sites))]


def _lazy_order(is_call: Sequence[bool], reads: Sequence[Sequence[int]]) -> list[int]:
    """An order in which each bare operation comes just before the first call that needs it, directly or indirectly;
    operations that no call needs come last. So an operation that precedes a call, but is used only after it, joins the
    group of its readers."""
    order: list[int] = []
    done = [False] * len(reads)
    for call in (op for op in range(len(is_call)) if is_call[op]):
        needed = []
        pending = [call]
        while pending:
            op = pending.pop()
            if not done[op]:
                done[op] = True
                needed.append(op)
                pending += reads[op]
        order += sorted(needed)
    return order + [op for op, emitted in enumerate(done) if not emitted]


def _stages(runs: Sequence[int], reads: Sequence[Sequence[int]], turns: Sequence[Any]) -> list[int]:
    """For each operation, the number of changes of turn within its run on the paths to it. So dependencies between
    groups of different turns go only upwards. The operations of a turn come after the operations that all turns have in
    common."""
    stages: list[int] = []
    for op, earlier in enumerate(reads):
        before = (stages[other] + (turns[op] != turns[other]) for other in earlier if runs[other] == runs[op])
        stages.append(max(0 if turns[op] is None else 1, *before, 0))
    return stages


def _mutually_recursive(sites: Sequence[Site | None]) -> set[CodeType]:
    """The functions with several activations at once, even if they do not call themselves by name."""
    found: set[CodeType] = set()
    for site in sites:
        if site is not None and len(site.chain) > 1:
            codes = [frame.f_code for frame, _ in site.chain if not is_comprehension(frame.f_code)]
            if len(set(codes)) < len(codes):
                found.update(code for code in codes if codes.count(code) > 1)
    return found


def _activation(site: Site, recursive: set[CodeType]) -> tuple[FrameType | None, tuple[Any, ...]]:
    """The frame that a site belongs to, and the place of the site within the work of that frame."""
    place: list[Any] = [site.ordinal]
    for frame, instruction in site.chain:
        place.append((frame.f_code, instruction))
        if frame.f_code in recursive:
            return frame, tuple(place)
    outermost = site.chain[-1][0] if site.chain else None
    return outermost, tuple(place)


def _runs(
    sites: Sequence[Site | None], scopes: Sequence[int], reads: Sequence[Sequence[int]], recursive: set[CodeType]
) -> list[int]:
    runs: list[int] = []
    passed: list[int] = []  # as a bit set, the places on the paths to each operation within its run
    bits: dict[Any, int] = {}
    run, before = -1, None
    for op, site in enumerate(sites):
        if site is None:
            run, before = run + 1, None
            runs.append(run)
            passed.append(0)
            continue
        frame, place = _activation(site, recursive)
        bit = 1 << bits.setdefault(place, len(bits))
        here = (scopes[op], id(frame))
        path = 0
        if here == before:
            for other in reads[op]:
                if runs[other] == run:
                    path |= passed[other]
        if here != before or path & bit:
            run, path = run + 1, 0
        before = here
        runs.append(run)
        passed.append(path | bit)
    return runs
