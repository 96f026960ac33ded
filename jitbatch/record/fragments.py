"""Fragments: what a decorated function recorded that calls other decorated functions, to be recorded again at once.

A tree that is encoded by a decorated function calls it for its subtrees. A subtree of a structure that was met before,
in whatever sample, need not be walked again: its nodes and operations are copied (see `record/templates`), with other
values in place of its arguments.
"""

from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple

from jitbatch.record.rows import BARE, Numbers, SharedRow
from jitbatch.record.templates import Argument, Copied, Made, MadeRow, MadeShared, Template, further_row, make_template
from jitbatch.record.values import NODE, ConstantRow, Op, Value, within_body
from jitbatch.util import compat
from jitbatch.util.array_leaves import is_array
from jitbatch.util.key_order import flatten
from jitbatch.util.sites import Site

MAX_OPERATIONS = 64
"""Larger fragments are not kept: they are rarely met again, and what they call is kept itself."""


class Frame(NamedTuple):
    """What is needed of a frame that has ended; frames hold on to whatever their functions used."""

    f_code: CodeType
    f_lineno: int


class Recorded(NamedTuple):
    """What was recorded while a body ran: nodes, their operands and bare operations; how many nodes and made values
    there were before; its first scope and how many there are."""

    kinds: Sequence[int]
    counts: Sequence[int]
    operands: Sequence[int]
    ops: Sequence[Op]
    nodes: int
    made: int
    scope: int
    scopes: int


def may_be_kept(operations: int) -> bool:
    """Whether a fragment of so many nodes and bare operations is small enough."""
    return operations <= MAX_OPERATIONS


def make_fragment(
    body: Recorded, numbers: Numbers, aliases: Sequence[Any], positions: Sequence[int | None], result: Any
) -> Template | None:
    """The template of a call, or None if it cannot be recorded again without running its body.

    Args:
        body: what was recorded.
        aliases: the leaves of the arguments, as the body saw them.
        positions: the places of their numbers.
        result: what the call returned.
    """
    if not may_be_kept(len(body.kinds) + len(body.ops)):
        return None
    leaves, out_tree = flatten(result)
    argument = {id(alias): i for i, alias in enumerate(aliases) if type(alias) is Value}
    makes = numbers.made - body.made
    given = max((position + 1 for position in positions if position is not None), default=0)
    outputs = [value for op in body.ops for value in op.outputs]
    place_of: dict[Any, Any] = {
        value.row: given + makes + i for i, value in enumerate(outputs) if value.row is not None
    }
    for alias, position in zip(aliases, positions, strict=True):
        if type(alias) is Value and alias.row is not None:
            place_of[alias.row] = position
    further: list[ConstantRow | SharedRow] = []
    frames: dict[int, Frame] = {}
    places: dict[int, Any] = {key: Argument(i) for key, i in argument.items()}

    def row_place(row: int) -> int | None:
        while row not in place_of and row in numbers.same:
            row = numbers.same[row]
        if row in place_of:
            return place_of[row]
        if body.made <= row < BARE:
            return given + row - body.made
        if row >= 0:
            return None
        leaf, number, _ = numbers.given[-1 - row]
        constant = leaf - (len(numbers.leaf_avals) - len(numbers.constants))
        if leaf >= 0 > constant:
            return None
        further.append(SharedRow(number) if leaf < 0 else ConstantRow(numbers.constants[constant]))
        place_of[row] = given + makes + len(outputs) + len(further) - 1
        return place_of[row]

    def place(value: Any) -> Any:
        value = within_body(value, argument)
        if type(value) is Value and isinstance(value.source, ConstantRow):
            return value.source
        if type(value) is Value and value.source is NODE:
            if value.row is None:
                return MadeShared(value.form, value.aval, value.aval_number)  # type: ignore[arg-type]
            if value.row >= body.made:
                return MadeRow(value.row - body.made, value.aval, value.aval_number)
        return places.get(id(value), value)

    operands: list[Any] = [row_place(row) for row in body.operands]
    copied = []
    for number, op in enumerate(body.ops):
        kept = Op((), 0, 0, _without_frames(op.site, frames))
        kept.primitive, kept.params, kept.effects, kept.index = op.primitive, op.params, op.effects, op.index
        kept.turn, kept.common = op.turn, op.common
        avals = tuple((value.aval, value.aval_number) for value in op.outputs)
        inputs = tuple(map(place, op.inputs))
        copied.append(Copied(kept, inputs, op.scope - body.scope, op.at - body.nodes, avals))
        for output, value in enumerate(op.outputs):
            places[id(value)] = Made(number, output)
    results = list(map(place, leaves))
    foreign = [value for one in (*(c.inputs for c in copied), results) for value in one if _is_foreign(value)]
    if None in operands or foreign or not all(map(is_array, leaves)):
        return None
    return make_template(
        numbers, given, body.kinds, body.counts, operands, makes, further, results, out_tree, copied, body.scopes
    )  # fmt: skip


def copy_fragment(recorder: Any, template: Template, rows: list[Any], first: int, arguments: list[Any]) -> Any:
    """Record what a template says that has bare operations, or results that are not what its nodes make; `first` is the
    number of the first value that its nodes make. Returns what the call returns."""
    numbers, nodes = recorder.numbers, len(recorder.kinds)
    fragment = template.fragment
    assert fragment is not None
    made: list[list[Value]] = []
    found: dict[int, Value] = {}

    def find(place: Any) -> Any:
        kind = type(place)
        if kind is Argument:
            return arguments[place.leaf]
        if kind is Made:
            return made[place.step][place.output]
        if kind is MadeRow:
            if place.place not in found:
                value = Value(recorder, place.aval, place.aval_number, NODE, first + place.place, place.aval_number)
                found[place.place] = value
            return found[place.place]
        if kind is MadeShared:
            return Value(recorder, place.aval, place.aval_number, NODE, None, place.form)
        return recorder.value(place.aval, place) if kind is ConstantRow else place

    first_scope = recorder.scopes + 1
    recorder.scopes += fragment.scopes
    for known, inputs, scope, at, avals in fragment.operations:
        op = Op([find(value) for value in inputs], first_scope + scope, nodes + at, known.site)
        op.primitive, op.params, op.effects, op.index = known.primitive, known.params, known.effects, known.index
        op.turn, op.common = known.turn, known.common
        op.outputs = [Value(recorder, aval, number, op) for aval, number in avals]
        numbers.place(op)
        made.append(op.outputs)
        recorder.ops.append(op)
    rows += range(first, first + template.makes)
    rows += [value.row for outputs in made for value in outputs]
    rows += [further_row(row, numbers) for row in template.further]
    recorder.kinds += template.kinds
    recorder.counts += template.counts
    recorder.operands += template.operands(rows)
    return fragment.out_tree.unflatten([find(value) for value in fragment.results])


_PLACES = (Argument, Made, MadeRow, MadeShared, ConstantRow)


def _is_foreign(value: Any) -> bool:
    """Whether a value belongs to this one recording: what is closed over instead of passed."""
    return not isinstance(value, _PLACES) and compat.is_tracer(value)


def _without_frames(site: Site | None, frames: dict[int, Frame]) -> Site | None:
    if site is None:
        return None
    chain = []
    for frame, instruction in site.chain:
        kept = frames.get(id(frame))
        if kept is None:
            kept = frames[id(frame)] = Frame(frame.f_code, frame.f_lineno)
        chain.append((kept, instruction))
    return Site(tuple(chain), site.ordinal)  # type: ignore[arg-type]
