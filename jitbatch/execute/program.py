"""Programs, and what runs them: the parts of a plan that executors read.

`plan/plan.Plan` is a `Runnable`. The stages before it know a plan only by this interface.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jitbatch.batch.types import Types
from jitbatch.execute.memory import ProgramMemory
from jitbatch.execute.sizes import Sizes
from jitbatch.execute.steps import Step
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.util.packed import Packed


@dataclass(frozen=True)
class ArenaShape:
    """The static part of an arena.

    Attributes:
        value_class: the id of its value class.
        shared: the ids of the shared values in its first rows.
        inputs: the number of input rows, padding included. They follow the shared values.
        capacity: the number of all rows.
    """

    value_class: int
    shared: tuple[int, ...]
    inputs: int
    capacity: int


class Program(Protocol):
    """The static part of a lowered batch. Programs are hashable; equal programs share one compilation."""

    @property
    def shared(self) -> set[int]:
        """The ids of the shared values that cells are bound to."""
        ...

    @property
    def sizes(self) -> Sizes | None:
        """The sizes of the program; None if it runs only batches of exactly its own sizes."""
        ...

    def run(self, tables: Any, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        """Runs all steps and returns the arenas with the rows of all nodes.

        Args:
            tables: the dynamic part of the program.
            arenas: the arenas with shared values and input rows.
            shared: the shared values that cells are bound to, by id.
        """
        ...

    def steps(self, tables: Any) -> Iterator[Step]:
        """Yields the steps in the order of execution. `tables` are on the host."""
        ...

    def memory(self, arena_sizes: Sequence[int], classes: Sequence[ValueClass]) -> ProgramMemory:
        """Predicts the memory of a run besides the arenas. The arguments are the arenas' sizes in bytes and classes."""
        ...

    def describe(self, tables: Any) -> list[str]:
        """Returns a line of text for each step or phase."""
        ...

    def changes(self, before: Any, tables: Tables) -> Iterator[str]:
        """Yields descriptions of the differences from the sizes of an earlier program of the same executor."""
        ...


class RunnableStatic(Protocol):
    """The static part of what an executor runs; see `plan/static.PlanStatic`."""

    @property
    def tables(self) -> Tables: ...
    @property
    def arenas(self) -> tuple[ArenaShape, ...]: ...
    @property
    def program(self) -> Program: ...
    @property
    def out(self) -> str: ...
    @property
    def out_trees(self) -> tuple[Any, ...]: ...
    @property
    def out_arenas(self) -> tuple[tuple[int, ...], ...]: ...


class RefillableStatic(RunnableStatic, Protocol):
    """The static part of a plan whose program can run other batches."""

    @property
    def types(self) -> Types | None: ...
    @property
    def differentiable_classes(self) -> tuple[int, ...]: ...


class Runnable(Protocol):
    """What an executor runs; see `plan/plan.Plan`."""

    @property
    def rows(self) -> tuple[Any, ...]: ...
    @property
    def tables(self) -> Packed: ...
    @property
    def out_rows(self) -> tuple[Any, ...]: ...
    @property
    def ragged(self) -> Any: ...
    @property
    def static(self) -> RunnableStatic: ...
    @property
    def graphs(self) -> tuple[Graph, ...]: ...
