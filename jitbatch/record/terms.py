"""Which operations make one term of a sum: they belong to one turn of the loop over its terms."""

from typing import Any

from jitbatch.record.values import NODE, Op, Value, root
from jitbatch.util.sites import Site, loop_depth


def mark_turns(total: Op, last: Op) -> None:
    """Mark what makes one term only, so that it is not grouped with what all terms have in common.

    With one term there is nothing to compare with: what lies in the loops that the term is made in is its own.
    """
    if all(type(term) is Value and term.source is NODE for term in total.inputs):
        return
    assert last.site is not None
    activation = _activation(last.site)
    owner: dict[int, int] = {}
    common: set[int] = set()
    depths: list[int] = []
    reached: dict[int, Op] = {}
    for number, term in enumerate(total.inputs):
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
            if depth is None and op.site is not last.site:  # not a conversion that is part of the reduction
                depth = loop_depth(op.site)
            if id(op) in owner:
                common.add(id(op))
            owner[id(op)] = number
            reached[id(op)] = op
            pending += op.inputs
        depths.append(0 if depth is None else depth)
    for key, op in reached.items():
        in_common = op.site is not None and op.site is not last.site and loop_depth(op.site) < depths[0]
        if len(total.inputs) == 1 and in_common:
            continue
        if key not in common:
            op.turn = (id(total), owner[key])


def _activation(site: Site) -> Any:
    return site.chain[-1][0] if site.chain else None
