"""The static part of a plan: the key of its compiled program."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jitbatch.batch.types import Types
from jitbatch.execute.predicted_memory import StaticMemory, predict_static_memory
from jitbatch.execute.program import ArenaShape, Program
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Tables
from jitbatch.plan.capacity import Capacity, capacity_of
from jitbatch.plan.differentiable import samples_of_rows
from jitbatch.record.arguments import Arguments
from jitbatch.util.errors import PlanError


class PlannedCall(NamedTuple):
    """The function of a plan, the key of its shared arguments, and the layout of its arguments."""

    owner: Any
    shared_key: Any
    call: Arguments


@dataclass(frozen=True, eq=False, repr=False)
class PlanStatic:
    """The static part of a plan: all of it except its integer tables and input rows.

    Attributes:
        tables: the tables for the ids below.
        owner, shared_key, call: the function, the key of its shared arguments, and the layout of its arguments.
        arenas, program: the shapes of the arenas, and the program of the executor.
        out, out_trees, out_arenas: the form of the outputs, the trees of results, and the arenas of their leaves.
        executor, reason: the name of the executor, and the reason for the choice, or "".
        types: the types of the batch; None for the per-sample executor.
        out_classes: the value classes of the leaves of a stacked result, or of an item.
        differentiable, differentiable_classes: the names of the inputs that are differentiated, and the value classes
            with such inputs.
    """

    tables: Tables
    owner: Any
    shared_key: Any
    arenas: tuple[ArenaShape, ...]
    program: Program
    out: str
    out_trees: tuple[Any, ...]
    out_arenas: tuple[tuple[int, ...], ...]
    executor: str
    reason: str
    call: Arguments
    types: Types | None
    out_classes: tuple[int, ...]
    differentiable: tuple[str, ...] = ()
    differentiable_classes: tuple[int, ...] = ()

    @cached_property
    def capacity(self) -> Capacity:
        """The capacity of plans with this static part, with `items` 0."""
        sizes = self.program.sizes
        if sizes is None or self.types is None:
            raise PlanError(f"a plan for the {self.executor} executor has the sizes of its batch, no capacity")
        names = {origin: kind.cell.name for origin, kind in zip(self.types.origins, self.types.kinds, strict=True)}
        return capacity_of(sizes, [names[origin] for origin in sizes.nodes], 0, self.tables)

    @cached_property
    def memory(self) -> StaticMemory:
        return predict_static_memory(self)

    def __repr__(self) -> str:  # JAX shows it in errors about plans of different programs
        sizes = str(self.capacity) if self.program.sizes is not None else f"{len(self.arenas)} arenas"
        return f"<{self.executor} program of {self.owner!r}: {sizes}>"

    @cached_property
    def differentiable_arenas(self) -> tuple[int, ...]:
        """The arenas with inputs that are differentiated."""
        return tuple(i for i, arena in enumerate(self.arenas) if arena.value_class in self.differentiable_classes)

    def row_samples(self, graphs: Sequence[Graph], rows: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the `row_samples` of a plan with these graphs and rows."""
        if not self.differentiable:
            return ()
        sizes = {self.arenas[arena].value_class: len(rows[arena]) for arena in self.differentiable_arenas}
        return tuple(samples_of_rows(graphs, self.differentiable, self.call, sizes).values())

    def _identity(self) -> tuple[Any, ...]:
        inputs = self.differentiable, self.differentiable_classes
        return (
            self.owner, self.shared_key, self.arenas, self.program, self.out, self.out_trees, self.out_arenas, inputs,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PlanStatic):
            return NotImplemented  # `SavedStatic` compares itself with this class (see `plan/saved/plans`)
        return self.tables is other.tables and self._identity() == other._identity()

    @cached_property
    def _hash(self) -> int:
        return hash((id(self.tables), self._identity()))

    def __hash__(self) -> int:
        return self._hash


class Summary(NamedTuple):
    """The numbers of a plan.

    Attributes:
        samples, nodes: the numbers of samples and of nodes.
        distinct: the number of computed nodes. Every other node is equal to one of them.
        levels: the length of the longest path.
        types: the number of cell types.
        steps: the number of steps. A step runs nodes of one type together.
        bound: the least number of steps of any schedule (see `ir/ranks`), 0 if it was not computed.
        launches: the number of vmapped calls. The fused executor runs a step in chunks of a few widths.
        rows, padded_rows: the number of computed rows, without and with padding.
    """

    samples: int
    nodes: int
    distinct: int
    levels: int
    types: int
    steps: int
    bound: int
    launches: int
    rows: int
    padded_rows: int


def interned(static: PlanStatic) -> PlanStatic:
    """Returns the canonical object among equal static parts, so that they compare by identity."""
    return static.tables.statics.get_or_make(static, lambda: static)
