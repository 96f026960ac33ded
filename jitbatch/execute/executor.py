"""Executors: what runs a batch, and the form in which they hand over what they run.

To add an executor, write a program class with the methods of `Program`, a function that lowers a batch to it, and add
an `Executor` of it to `execute/registry`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jitbatch.batch.analysis import Analysis
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.execute.arenas import run_in_arenas
from jitbatch.execute.memory import ProgramMemory
from jitbatch.execute.sizes import Sizes
from jitbatch.execute.steps import Step
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.schedule.policies import Policy
from jitbatch.util.packed import Packed


@dataclass(frozen=True)
class ArenaShape:
    """The static part of an arena: its class, the shared values it begins with, how many input rows, and its size."""

    value_class: int
    shared: tuple[int, ...]
    inputs: int
    capacity: int


class Program(Protocol):
    """The static part of what an executor runs: hashable, and equal for batches that one compilation serves."""

    @property
    def shared(self) -> set[int]:
        """The ids of the shared values that cells are bound to."""
        ...

    @property
    def sizes(self) -> Sizes | None:
        """What the program has room for; None where it has the sizes of its batch."""
        ...

    def run(self, tables: Any, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        """The arenas with the rows of all nodes."""
        ...

    def steps(self, tables: Any) -> Iterator[Step]:
        """The steps in the order of execution; `tables` are on the host."""
        ...

    def memory(self, arena_sizes: Sequence[int], classes: Sequence[ValueClass]) -> ProgramMemory:
        """What running it needs besides the arenas, whose sizes in bytes and classes are given."""
        ...

    def describe(self, tables: Any) -> list[str]:
        """A line for each step or phase, for people."""
        ...

    def changes(self, before: Any, tables: Tables) -> Iterator[str]:
        """How its sizes differ from those of an earlier program of the same executor, for people."""
        ...


@dataclass(frozen=True, eq=False)
class Lowered:
    """A batch, ready to be run by a program.

    Attributes:
        program: the static part.
        tables: the dynamic part, a pytree of int32 arrays in one buffer.
        arenas: the arenas that the program uses.
        value_row: int [values]; the row of every value.
        steps, bound, launches: how many there are; see `Summary`.
        padded_rows: how many rows these compute, padding included.
    """

    program: Program
    tables: Packed
    arenas: tuple[ArenaShape, ...]
    value_row: np.ndarray
    steps: int
    bound: int
    launches: int
    padded_rows: int


@dataclass(frozen=True, eq=False)
class Refilled:
    """A batch for a program that is known: nothing static was made for it.

    Attributes:
        inputs: for each arena its input rows, padded.
        tables: as in `Lowered`.
        output_rows: int32; the rows of the results of all samples, one after the other.
        nodes, distinct, levels, steps, bound, launches, padded_rows: see `Summary`.
    """

    inputs: tuple[Any, ...]
    tables: Packed
    output_rows: np.ndarray
    nodes: int
    distinct: int
    levels: int
    steps: int
    bound: int
    launches: int
    padded_rows: int


@dataclass(frozen=True)
class SizeRequest:
    """The sizes that a program is to have.

    Attributes:
        least: at least these.
        headroom_for: room for other batches of so many samples, 0 for none (see `util/headroom`).
        static_loops: whether loops are to have static trip counts.
    """

    least: Sizes
    headroom_for: int = 0
    static_loops: bool = False


@dataclass(frozen=True)
class Executor:
    """A way to run a batch.

    Attributes:
        name: what users call it: `executor="fused"`.
        lower: from a batch, a policy and sizes to a program with its tables; None where samples are not recorded.
        run: from a plan and the leaves of the shared arguments to its outputs: the leaves of each result for
            `out="list"`, else the outputs themselves.
        refill: from the static part of a plan, the typed graphs and leaves of other samples, a policy, and whether
            equal calls are merged, to tables of the same program; None where the samples do not fit.
        splits_cells: whether cells in loops are split into what runs before, in and after them.
        has_room: whether a program serves other batches that fit its sizes.
        runs_effects: whether cells may have effects.
    """

    name: str
    lower: Callable[[Analysis, Policy, SizeRequest], Lowered] | None
    run: Callable[[Any, Sequence[Any]], Any] = run_in_arenas
    refill: Callable[[Any, Sequence[TypedGraph], Sequence[Inputs], Policy, bool], Refilled | None] | None = None
    splits_cells: bool = False
    has_room: bool = False
    runs_effects: bool = True
