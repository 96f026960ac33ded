"""Marks the operations that compute one term of a reduction: they belong to one turn of the loop over its terms."""

from collections.abc import Sequence
from typing import Any

from jitbatch.record.values import NODE, Op, Value, root
from jitbatch.util.sites import Site, loop_depth


def mark_turns(terms: Sequence[Any], last: Op) -> None:
    """Mark the operations that compute only one of the terms. Then they are not grouped with operations that all terms
    have in common. `last` is the operation that the reduction of the terms replaces.

    With only one term, no comparison is possible. Then two sorts of operations belong to the term: operations in the
    loops of the term, and operations on one element of a list (see `record/elements`).
    """
    if all(type(term) is Value and term.source is NODE for term in terms):
        return
    assert last.site is not None
    activation = _activation(last.site)
    owner: dict[int, int] = {}
    common: set[int] = set()
    depths: list[int] = []
    reached: dict[int, Op] = {}
    for number, term in enumerate(terms):
        if type(term) is Value and term.source is NODE:
            depths.append(0)
            continue
        pending, depth = [term], None
        while pending:
            origin = root(pending.pop())
            op = origin.source if type(origin) is Value else None
            if not isinstance(op, Op) or op.site is None or op.scope != last.scope:
                continue
            if _activation(op.site) is not activation or owner.get(id(op)) == number or id(op) in common:
                continue
            if depth is None and op.common is None and op.site is not last.site:  # no conversion precedes it
                depth = loop_depth(op.site)
            if id(op) in owner:
                common.add(id(op))
            owner[id(op)] = number
            reached[id(op)] = op
            skipped = op.common or ()
            pending += [value for place, value in enumerate(op.inputs) if place not in skipped]
        depths.append(0 if depth is None else depth)
    turns = [_turn(term) or (id(last), number) for number, term in enumerate(terms)]
    for key, op in reached.items():
        in_common = op.site is not None and op.site is not last.site and loop_depth(op.site) < depths[0]
        if len(terms) == 1 and in_common and op.common is None:
            continue
        if key not in common:
            op.turn = turns[owner[key]]


def _turn(term: Any) -> tuple[int, int] | None:
    """The turn of a term in a loop of `record/elements`. None for other terms."""
    origin = root(term)
    op = origin.source if type(origin) is Value else None
    return op.turn if isinstance(op, Op) and op.common is not None else None


def _activation(site: Site) -> Any:
    return site.chain[-1][0] if site.chain else None
