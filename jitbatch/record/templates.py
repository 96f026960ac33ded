"""Templates: what a call of a decorated function puts into a recording, known from an earlier call.

Which nodes there are, which kinds they have and what they read depends on the forms of the arguments alone: on their
trees and avals, and on which of them are which shared values. So a call that was met with arguments of these forms is
one dictionary look-up; a few lists of integers grow, and what is returned is made.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jitbatch.ir.cell import Cell, ReductionCell
from jitbatch.ir.tables import ROW, SharedArray, SharedResult
from jitbatch.record.abstract_eval import Abstract
from jitbatch.record.call_arguments import code_of
from jitbatch.record.rows import Numbers, SharedRow, is_small
from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import ConstantRow, Op, Value
from jitbatch.util import compat
from jitbatch.util.caches import Cache, CacheInfo


class Argument(NamedTuple):
    """A leaf of the arguments of a call."""

    leaf: int


class Made(NamedTuple):
    """An output of an earlier step of a leaf, or of an earlier operation of a fragment."""

    step: int
    output: int


class MadeRow(NamedTuple):
    """A value that a node makes: the how-many-th of the template, and its aval."""

    place: int
    aval: Any
    aval_number: int


class MadeShared(NamedTuple):
    """A shared value that a call makes."""

    form: int
    aval: Any
    aval_number: int


class Step(NamedTuple):
    """A cell that a call of a decorated function runs.

    `inputs` are arguments, what earlier steps made, constants that are rows, and what the body closes over; `passed`
    says which of them the cell takes as arguments.
    """

    cell: Cell
    inputs: tuple[Any, ...]
    passed: tuple[bool, ...]
    out_avals: tuple[tuple[Any, int], ...]


class Leaf(NamedTuple):
    """A decorated function on arguments of one structure, when it calls no other decorated function.

    Attributes:
        steps: one cell that is its body; none when there is nothing to compute; several when it reduces a list of any
            length (see `record/list_arguments`).
        results: for each leaf of the result an `Argument`, a `Made`, or a value that is returned as it is.
        out_tree: the tree of the result.
    """

    steps: tuple[Step, ...]
    results: tuple[Any, ...]
    out_tree: Any

    @property
    def closes_over_tracer(self) -> bool:
        return any(
            compat.is_tracer(value) for values in (*(s.inputs for s in self.steps), self.results) for value in values
        )


ONCE = "once"
"""A call of a composite, a function that calls decorated ones, whose body has run."""

COMPOSITE = "composite"
"""The same of a body that runs each time, because it cannot be copied."""


MET_ENOUGH = 64
"""Calls on large arguments of new structures after which it is asked how many of these came again."""


class Composite:
    """A function that called decorated ones when it ran.

    Attributes:
        met: its calls on large arguments of structures of which nothing is kept.
        again: how many of these structures came again, and were kept then.
        calls_none: whether it called no other function on some large arguments.
    """

    __slots__ = ("again", "calls_none", "met")

    def __init__(self) -> None:
        self.met = self.again = 0
        self.calls_none = False

    @property
    def walks(self) -> bool:
        """Whether it is not worth the time to keep anything of large arguments, because these hardly ever come again,
        as subtrees near the root of a tree do not."""
        return self.met > MET_ENOUGH + 2 * self.again and not self.calls_none


class Known:
    """What is known of the decorated functions that a function calls.

    Attributes:
        signatures: for a function and arguments of one structure a `Leaf`.
        composites: for the code of a function that calls decorated ones a `Composite`.
        met: for such a function and the forms of its arguments `ONCE` or `COMPOSITE`.
        templates: for a function and the forms of its arguments a `Template`.
        abstract: what operations make that are called outside of them.
    """

    def __init__(self, maxsize: int):
        self.abstract = Abstract()
        self.signatures = Cache(maxsize)
        self.composites = Cache(maxsize)
        self.met = Cache(maxsize)
        self.templates = Cache(maxsize)

    def composite(self, fun: Callable[..., Any]) -> Composite | None:
        return self.composites.get(code_of(fun))

    def walks(self, fun: Callable[..., Any]) -> bool:
        """Whether a function is to run, and nothing to be kept, when it is called on large arguments of new forms."""
        composite = self.composite(fun)
        return composite is not None and composite.walks

    def info(self) -> CacheInfo:
        """Hits and misses of calls, where a miss is a call whose body ran; the size is that of the templates."""
        leaves, info = self.signatures.info(), self.templates.info()
        return info._replace(hits=info.hits + leaves.hits, misses=info.misses - leaves.hits)


class Copied(NamedTuple):
    """A bare operation of a fragment; its scope is counted from that of the call, its position from its first node."""

    op: Op
    inputs: tuple[Any, ...]
    scope: int
    at: int
    avals: tuple[tuple[Any, int], ...]


class Fragment(NamedTuple):
    """What is special about calls that have bare operations, or results that are not what their nodes make.

    Attributes:
        operations, scopes: bare operations, and how many scopes they are in.
        results: for each leaf of the result an `Argument`, `MadeRow`, `MadeShared`, `Made`, or a value.
        out_tree: the tree of the result.
    """

    operations: tuple[Copied, ...]
    scopes: int
    results: tuple[Any, ...]
    out_tree: Any


class Template(NamedTuple):
    """What calls on arguments of certain forms put into a recording.

    Attributes:
        kinds, counts: of each node, and how many rows it reads.
        operands: takes the numbers of these rows out of a list: the numbers of the leaves of the arguments (of those
            that do not hold shared values only), of what the nodes make, of what the bare operations make, and of
            further rows.
        makes: how many values the nodes make.
        reads_given: whether what is read are arguments only.
        further: constants and shared values that are rows, and rows that the body closes over.
        results: the leaves of the result, each what a `MadeRow` of its own holds.
        make: makes the result of a list of its leaves, if it is not one array.
        form: the form of the result, if it is made of nothing but tuples of rows.
        in_order: whether the result is all that the nodes make, in order.
        fragment: of calls with anything else, in place of what concerns the result.
    """

    kinds: Sequence[int]
    counts: Sequence[int]
    operands: Callable[[list[Any]], Sequence[int]]
    makes: int
    reads_given: bool
    further: tuple[ConstantRow | SharedRow | Value, ...]
    results: tuple[tuple[Any, ...], ...]
    make: Callable[[list[Any]], Any] | None
    form: int | None
    in_order: bool
    fragment: Fragment | None


def taking(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """What takes the items in some places out of a list."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return operator.itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def make_template(
    numbers: Numbers, given: int, kinds: Sequence[int], counts: Sequence[int], operands: Sequence[int], makes: int,
    further: Sequence[ConstantRow | SharedRow | Value], results: Sequence[Any], out_tree: Any,
    operations: Sequence[Copied] = (), scopes: int = 0,
) -> Template:  # fmt: skip
    are_rows = all(type(one) is MadeRow for one in results) and len(set(results)) == len(results) > 0
    make, form = out_tree.unflatten, None
    if are_rows and not operations:
        outline = out_tree.unflatten(list(results))
        if type(outline) is MadeRow:
            make = None
        elif type(outline) is dict:
            make = _dict_maker(outline, results) or make
        elif _is_immutable(outline):
            make = _tuple_maker(outline) or make
            form = numbers.tables.form("tree", out_tree, (), tuple(one.aval_number for one in results))
    in_order = are_rows and [one.place for one in results] == list(range(makes))
    return Template(
        list(kinds), list(counts), taking(operands), makes, max(operands, default=-1) < given, tuple(further),
        tuple(map(tuple, results)) if are_rows and not operations else (), make, form, in_order,
        None if are_rows and not operations else Fragment(tuple(operations), scopes, tuple(results), out_tree),
    )  # fmt: skip


def _tuple_maker(outline: Any) -> Callable[[list[Any]], Any] | None:
    """What makes a tuple, or a named one, of a list of arrays, in a fifth of the time that `unflatten` takes."""
    kind = type(outline)
    if kind.__bases__ not in ((object,), (tuple,)) or not all(type(part) is MadeRow for part in outline):
        return None
    if kind is not tuple and not is_named_tuple(kind, outline):
        return None
    return functools.partial(tuple.__new__, kind)


def _dict_maker(outline: dict[Any, Any], results: Sequence[MadeRow]) -> Callable[[list[Any]], Any] | None:
    """The same for a dict of arrays, which keeps its order of keys."""
    places = {result: place for place, result in enumerate(results)}
    found = [places.get(part) if type(part) is MadeRow else None for part in outline.values()]
    if None in found:
        return None
    keys, take = tuple(outline), taking(found)  # type: ignore[arg-type]
    return lambda values: dict(zip(keys, take(values), strict=True))


def _is_immutable(result: Any) -> bool:
    """Whether a result consists of tuples: what it holds cannot be replaced before it is passed on."""
    if type(result) is MadeRow:
        return True
    is_tuple = type(result) is tuple or (isinstance(result, tuple) and hasattr(result, "_fields"))
    return is_tuple and all(map(_is_immutable, result))


class _Row(NamedTuple):
    """Where the number of a row is found: the part of the list, and the place in it."""

    part: int
    place: int


def leaf_template(leaf: Leaf, leaves: Sequence[Any], positions: Sequence[int | None], numbers: Numbers) -> Template:
    """The template of calls of a leaf on arguments of the forms of these leaves, whose numbers are in these places."""
    tables = numbers.tables
    given = max((position + 1 for position in positions if position is not None), default=0)
    kinds: list[int] = []
    counts: list[int] = []
    operands: list[_Row] = []
    further: list[ConstantRow | SharedRow | Value] = []
    makes = 0
    made: list[list[Any]] = []

    def reference(value: Any) -> _Row | int:
        """A row, or the number of a shared value."""
        if type(value) is Made:
            return made[value.step][value.output]
        if type(value) is ConstantRow:
            return more(value)
        if type(value) is Argument:
            position, value = positions[value.leaf], leaves[value.leaf]
            if position is not None and numbers.row(value) is not None:
                return _Row(0, position)
        return numbers.shared(value) if numbers.row(value) is None else more(value)

    def more(row: ConstantRow | SharedRow | Value) -> _Row:
        further.append(row)
        return _Row(2, len(further) - 1)

    for cell, inputs, passed, out_avals in leaf.steps:
        references = [reference(value) for value in inputs]
        if not cell.has_effects and all(type(one) is int for one in references):
            shared = [
                tables.share(SharedResult(cell, tuple(references), output), aval)  # type: ignore[arg-type]
                for output, (aval, _) in enumerate(out_avals)
            ]
            made.append(list(shared))
            continue
        binding, reads = bind(cell, references, passed, numbers, more)
        kinds.append(tables.kind(cell, binding))
        counts.append(len(reads))
        operands += reads
        made.append([_Row(1, makes + output) for output in range(len(out_avals))])
        makes += len(out_avals)

    def result(value: Any) -> Any:
        if type(value) is not Made:
            return value
        aval, number = leaf.steps[value.step].out_avals[value.output]
        found = made[value.step][value.output]
        if type(found) is int:
            return MadeShared(tables.shared_form(number, found), aval, number)
        return MadeRow(found.place, aval, number)

    start = (0, given, given + makes)
    places = [start[row.part] + row.place for row in operands]
    results = [result(value) for value in leaf.results]
    return make_template(numbers, given, kinds, counts, places, makes, further, results, leaf.out_tree)


def bind(
    cell: Cell, references: Sequence[Any], passed: Sequence[bool], numbers: Numbers, more: Callable[[Any], Any]
) -> tuple[tuple[int, ...], list[Any]]:
    """Of a node the binding of its kind, and the rows that it reads.

    Args:
        references: of each operand the number of a shared value, or anything else for a row.
        passed: which operands are arguments of a call, as opposed to what it closes over.
        more: what makes a row of a constant or a shared value.
    """
    is_sum = isinstance(cell, ReductionCell)
    binding: list[int] = []
    reads: list[Any] = []
    for one, is_passed in zip(references, passed, strict=True):
        if type(one) is int:
            entry = numbers.tables.shared[one]
            if is_passed and isinstance(entry, SharedArray) and is_small(entry.value):
                one = more(ConstantRow(entry.value))
            elif is_sum:
                one = more(SharedRow(one))
            else:
                binding.append(one)
                continue
        binding.append(ROW)
        reads.append(one)
    return (ROW,) if is_sum else tuple(binding), reads


def further_row(row: ConstantRow | SharedRow | Value, numbers: Numbers) -> int:
    """The number of a further row of a template."""
    if type(row) is SharedRow:
        return numbers.shared_row(row.number)
    if type(row) is ConstantRow:
        return numbers.constant_row(row.array)
    found = numbers.row(row)
    assert found is not None
    return found
