"""The static part of a plan: what a program is compiled for."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jitbatch.batch.types import Types
from jitbatch.execute.executor import ArenaShape, Program
from jitbatch.execute.memory import StaticMemory, predict_static_memory
from jitbatch.ir.tables import Tables
from jitbatch.plan.capacity import Capacity, capacity_of
from jitbatch.record.arguments import Arguments
from jitbatch.util.errors import PlanError


@dataclass(frozen=True, eq=False, repr=False)
class PlanStatic:
    """What a program is compiled for: everything in a plan but its integer tables and input rows.

    Attributes:
        tables: what the numbers below refer to.
        owner, shared_key, call: the function, the description of its shared arguments, and how it is called.
        arenas, program: what is run.
        out, out_trees, out_arenas: the kind of output, the trees of results, and the arenas of their leaves.
        executor, reason: the name of the executor, and why it was chosen if another was asked for.
        types: the types of the batch, if it was analysed.
        out_classes: the value classes of what is stacked: of a result, or of an item.
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

    @cached_property
    def capacity(self) -> Capacity:
        """The capacity of plans with this static part and without items."""
        sizes = self.program.sizes
        if sizes is None or self.types is None:
            raise PlanError(f"a plan for the {self.executor} executor has the sizes of its batch, no capacity")
        names = {origin: kind.cell.name for origin, kind in zip(self.types.origins, self.types.kinds, strict=True)}
        return capacity_of(sizes, [names[origin] for origin in sizes.nodes], 0, self.tables)

    @cached_property
    def memory(self) -> StaticMemory:
        return predict_static_memory(self)

    def __repr__(self) -> str:  # read where JAX says that two plans are not for one program
        sizes = str(self.capacity) if self.program.sizes is not None else f"{len(self.arenas)} arenas"
        return f"<{self.executor} program of {self.owner!r}: {sizes}>"

    def _identity(self) -> tuple[Any, ...]:
        return (self.owner, self.shared_key, self.arenas, self.program, self.out, self.out_trees, self.out_arenas)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PlanStatic):
            return NotImplemented  # that of a plan in a file knows how it compares with this (see `plan/saved/plans`)
        return self.tables is other.tables and self._identity() == other._identity()

    @cached_property
    def _hash(self) -> int:
        return hash((id(self.tables), self._identity()))

    def __hash__(self) -> int:
        return self._hash


class Summary(NamedTuple):
    """What planning did, in numbers.

    Attributes:
        samples, nodes: how many there are.
        distinct: nodes that are computed; the others are equal to one of them.
        levels: the length of the longest path.
        types: kinds of nodes that are batched together.
        steps: how often some nodes of one type run together.
        bound: how many steps any order needs at least (see `ir/ranks`), 0 if that was not looked for.
        launches: how many vmapped calls that takes; the fused executor runs a step in chunks of a few widths.
        rows, padded_rows: what the calls compute, without and with padding.
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
    """The one object among equals, so that comparing two is comparing identities."""
    return static.tables.statics.get_or_make(static, lambda: static)
