"""The split of a cell into parts that run before, inside and after a loop.

A loop runs a cell on a few nodes at a time. Before and after the loop, all nodes of a batch run at once: matmuls are
wide, equal rows are computed once, and JAX differentiates the code itself. So a cell is split by data flow:

- *hoists* depend on early rows and shared operands alone: an embedding and its projection;
- the *core* computes the values that other nodes of the loop read;
- the *sink* computes outputs that no node of the loop reads: a readout, a loss.

Moving an equation across a border costs memory. A value that one part computes and another reads is stored, one row
for each node, and gathered again. So an equation is moved for its own sake only if it is costly: a contraction, a
transcendental function, control flow, a look-up in a shared table, or any primitive that is not known to be cheap. A
call is costly if an equation of its body is. Jits are opened; custom derivatives stay whole.

The border among the cheap equations is a minimum cut: the fewest bytes cross it. A broadcast stays behind the border, a
reduction moves in front of it. Of equal borders the first is taken. So hoists are small: XLA fuses cheap equations with
their readers, and a hoist that reads fewer operands has fewer distinct rows. Sinks are large, because no node of the
loop waits for them. Operands of the cell are never stored, because every part can gather them. Outputs that are stored
anyway cross a border at no cost.

A value that depends on shared operands alone is never a row: each part that reads it computes it, once for all nodes.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from jitbatch.ir.cell import Cell, Identity, intern_cell
from jitbatch.record.fold import inline
from jitbatch.util import compat, passes
from jitbatch.util.caches import Cache


class Slot(IntEnum):
    """When an operand is known. The outputs of an equation are known when the last of its operands is."""

    SHARED = 0
    """A shared value, equal for all nodes."""
    EARLY = 1
    """A row that is known before the loop."""
    LATE = 2
    """A row that the loop computes."""


@dataclass(frozen=True)
class Operand:
    """An operand of the cell that was split."""

    slot: int


@dataclass(frozen=True)
class Made:
    """An output of a part: `split.parts[part]`."""

    part: int
    output: int


@dataclass(frozen=True)
class Part:
    """A cell, and the source of each of its operands."""

    cell: Cell
    operands: tuple[Operand | Made, ...]


@dataclass(frozen=True)
class Split:
    """The parts of a cell. The core reads operands of the cell and outputs of hoists; the sink also reads the core.

    Attributes:
        hoists: the parts before the loop. Each has its own set of early operands, and its calls are merged where
            these are equal. A hoist reads no other part.
        core: the part in the loop. It has no outputs if the hoists compute everything that the loop reads.
        sink: the part after the loop; None if hoists and core compute all outputs.
        outputs: for each output of the cell, the part that computes it. Each value is computed by one part only.
    """

    hoists: tuple[Part, ...]
    core: Part
    sink: Part | None
    outputs: tuple[Made, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts in the order of execution."""
        return (*self.hoists, self.core) if self.sink is None else (*self.hoists, self.core, self.sink)


_splits = Cache(2048, first=1024)


def split_cell(cell: Cell, slots: tuple[Slot, ...], inner_outputs: tuple[bool, ...]) -> Split | None:
    """Split a cell. Returns None if the cell stays whole: it has effects, or no equation is worth moving.

    Args:
        cell: the cell.
        slots: for each operand, when it is known.
        inner_outputs: for each output, whether a node of the loop reads it.
    """
    if not passes.runs("hoist"):
        slots = tuple(Slot.LATE if slot == Slot.EARLY else slot for slot in slots)
    if not passes.runs("sink"):
        inner_outputs = (True,) * len(inner_outputs)
    # In a tuple, because None means a missing entry to the cache.
    return _splits.get_or_make((cell, slots, inner_outputs), lambda: (_split(cell, slots, inner_outputs),))[0]


def _split(cell: Cell, slots: tuple[Slot, ...], inner_outputs: tuple[bool, ...]) -> Split | None:
    if cell.has_effects:
        return None
    equations: list[Any] = []
    operands = cell.jaxpr.jaxpr.invars
    outputs = inline(cell.jaxpr, operands, equations, open_jits=True)
    inner = [atom for atom, is_inner in zip(outputs, inner_outputs, strict=True) if is_inner]
    known = dict(zip(operands, slots, strict=True))
    for equation in equations:
        slot = max((known[var] for var in _variables(equation.invars)), default=Slot.SHARED)
        known.update(dict.fromkeys(equation.outvars, slot))
    shared, early = ({var for var, slot in known.items() if slot == own} for own in (Slot.SHARED, Slot.EARLY))

    def costly(equations: Sequence[Any]) -> set[int]:
        return {position for position, equation in enumerate(equations) if _costs(equation, shared)}

    rows = [equations[i] for i in _needed(equations, outputs, shared)]
    late = {i for i, equation in enumerate(rows) if equation.outvars[0] not in early}
    before = _cheapest_border(rows, costly(rows) - late, late, outputs, free=outputs)
    rest = [equation for i, equation in enumerate(rows) if i not in before]
    awaited = set(_needed(rest, inner, shared))
    during = _cheapest_border(rest, awaited, costly(rest) - awaited, outputs, free=inner)

    parts: list[Part] = []
    sources: dict[Any, Operand | Made] = {var: Operand(slot) for slot, var in enumerate(operands)}
    places: dict[Identity, Made] = {}

    def add_part(suffix: str, made: Sequence[Any]) -> None:
        own = [equations[i] for i in _needed(equations, made, sources)]
        read = _variables_read(own, made)
        given = {var: source for var, source in sources.items() if var in read}
        name = f"{cell.name}.{suffix}"
        jaxpr = compat.make_jaxpr(list(given), made, own, name)
        parts.append(Part(intern_cell(jaxpr, name, cell.where), tuple(given.values())))
        for output, atom in enumerate(made):
            place = places[Identity(atom)] = Made(len(parts) - 1, output)
            if _is_variable(atom) and atom not in shared:
                sources.setdefault(atom, place)

    def distinct(atoms: Sequence[Any]) -> list[Any]:
        return [key.thing for key in dict.fromkeys(map(Identity, atoms)) if key not in places]

    stored = _variables_read(rest, outputs)
    for piece in _pieces([rows[i] for i in sorted(before)], early):
        add_part("hoist", [var for equation in piece for var in equation.outvars if var in stored])
    hoists = len(parts)
    stored = _variables_read([equation for i, equation in enumerate(rest) if i not in during], outputs)
    kept = [var for i in sorted(during) for var in rest[i].outvars if var in stored]
    add_part("core", distinct([*inner, *kept]))
    left = distinct(outputs)
    if left:
        add_part("sink", left)
    if len(parts) == 1:
        return None
    return Split(
        hoists=tuple(parts[:hoists]),
        core=parts[hoists],
        sink=parts[-1] if left else None,
        outputs=tuple(places[Identity(atom)] for atom in outputs),
    )


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, compat.Literal)


def _variables(atoms: Iterable[Any]) -> Iterable[Any]:
    return filter(_is_variable, atoms)


def _variables_read(equations: Sequence[Any], outputs: Sequence[Any]) -> set[Any]:
    return {var for atoms in (outputs, *(equation.invars for equation in equations)) for var in _variables(atoms)}


def _needed(equations: Sequence[Any], outputs: Sequence[Any], given: Container[Any]) -> list[int]:
    """The positions of the equations that compute `outputs` from the variables in `given`."""
    wanted = {var for var in _variables(outputs) if var not in given}
    found = []
    for position in reversed(range(len(equations))):
        if not wanted.isdisjoint(equations[position].outvars):
            found.append(position)
            wanted.update(var for var in _variables(equations[position].invars) if var not in given)
    return found[::-1]


def _within(atoms: Iterable[Any], variables: Container[Any]) -> bool:
    return all(var in variables for var in _variables(atoms))


def _costs(equation: Any, shared: Container[Any]) -> bool:
    """Whether an equation is costly enough to move out of a loop."""
    primitive = equation.primitive.name
    if primitive in compat.LOOKUPS:
        return _within(equation.invars[:1], shared)
    if primitive not in compat.CALLS:
        return primitive not in compat.CHEAP
    for body in compat.jaxprs_in_params(equation.params):
        inside = {var for var, atom in zip(body.invars, equation.invars, strict=True) if _within([atom], shared)}
        for called in body.eqns:
            if _costs(called, inside):
                return True
            if _within(called.invars, inside):
                inside.update(called.outvars)
    return False


def _cheapest_border(
    equations: Sequence[Any], before: set[int], after: set[int], outputs: Sequence[Any], free: Sequence[Any]
) -> set[int]:
    """The positions of the equations before the border that the fewest bytes cross; of equal borders, the first.

    The border is a minimum cut (found with the algorithm of Edmonds and Karp). The graph of the cut has equations and
    variables as nodes. The capacity of an edge from an equation to its output is the size of the variable in bytes. The
    edges from a variable to its readers have no limit, and neither have the edges from a reader back to the equation
    that computes the variable.

    Args:
        equations: in order.
        before, after: positions that must be on that side. No equation in `before` depends on one in `after`.
        outputs: variables that are read after the border, whichever side computes them.
        free: variables that cross the border at no cost.
    """
    room: dict[Any, dict[Any, int]] = defaultdict(lambda: defaultdict(int))  # nodes: positions and variables
    free_vars = set(_variables(free))
    sizes = {var: var.aval.size * var.aval.dtype.itemsize for equation in equations for var in equation.outvars}
    endless = sum(sizes.values()) + 1
    end = len(equations)
    maker: dict[Any, int] = {}
    for position, equation in enumerate(equations):
        for var in equation.outvars:
            maker[var] = position
            room[position][var] = 0 if var in free_vars else sizes[var]
        for var in _variables(equation.invars):
            if var in maker:
                room[var][position] = room[position][maker[var]] = endless
    for var in _variables(outputs):
        room[var][end] = endless
    ends = {*after, end}
    while True:
        reached: dict[Any, Any] = dict.fromkeys(sorted(before))
        queue = list(reached)
        for node in queue:
            for other, left in room[node].items():
                if left and other not in reached:
                    reached[other] = node
                    queue.append(other)
        node = next((node for node in queue if node in ends), None)
        if node is None:
            return {node for node in queue if isinstance(node, int)}
        path = []
        while reached[node] is not None:
            path.append((reached[node], node))
            node = reached[node]
        flow = min(room[start][end] for start, end in path)
        for start, end in path:
            room[start][end] -= flow
            room[end][start] += flow


def _pieces(equations: Sequence[Any], early: Container[Any]) -> list[list[Any]]:
    """Split hoisted equations into separate hoists. Equations stay together if they are connected by variables that
    they compute, or if they depend on equal sets of early operands."""
    made: set[Any] = set()
    pieces: list[tuple[set[Any], list[Any]]] = []  # early variables and equations
    for equation in equations:
        read = {var for var in _variables(equation.invars) if var in early}
        joined = [piece for piece in pieces if not piece[0].isdisjoint(read & made)]
        apart = [piece for piece in pieces if piece[0].isdisjoint(read & made)]
        touched = read.union(equation.outvars, *(variables for variables, _ in joined))
        pieces = [*apart, (touched, [*(own for _, members in joined for own in members), equation])]
        made.update(equation.outvars)
    by_operands: dict[frozenset[Any], list[Any]] = {}
    for variables, members in pieces:
        by_operands.setdefault(frozenset(variables - made), []).extend(members)
    return list(by_operands.values())
