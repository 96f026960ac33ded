"""A report: what happened to a batch, as data that prints itself."""

from dataclasses import dataclass, field
from typing import Any

from jitbatch.execute.memory import Memory
from jitbatch.inspect.page import page, table_html
from jitbatch.inspect.terminal import as_text
from jitbatch.util.caches import CacheInfo


@dataclass(frozen=True)
class PartReport:
    """A cell, or the part of one that runs before, in or after a loop.

    Attributes:
        name: `""` for a whole cell, else `"hoist"`, `"core"` or `"sink"`.
        distinct: how many nodes run, equal calls merged.
        steps: in how many steps, each of which runs some nodes of one type together; `least_steps` any schedule needs.
        launches: in how many vmapped calls: the fused executor runs a step in chunks of a few widths.
        mean_width, smallest_width: nodes a step, without padding.
        padding: the share of computed rows that is padding.
        equations: how many equations its jaxpr has.
        flops: estimated operations of one node.
        seconds: of all its steps together, estimated or measured.
        share: of the time of all cells.
        compile: seconds that it takes to compile, in every width that runs: measured, or estimated from its equations.
    """

    name: str
    distinct: int
    steps: int
    launches: int
    least_steps: int
    mean_width: float
    smallest_width: int
    padding: float
    equations: int
    flops: int
    seconds: float
    share: float
    compile: float


@dataclass(frozen=True)
class CellReport:
    """A cell type: what is batched together.

    Attributes:
        name, where: the user's function, and its file and line.
        shapes: the shapes of operands that are rows, and of outputs, as `"float32[4], int32[] -> float32[4]"`.
        calls: how often samples call it; None where the plan does not know.
        parts: the parts that it was split into; one for a whole cell.
        differs: in what it differs from other types of the same function, if there are any.
    """

    name: str
    where: str
    shapes: str
    calls: int | None
    parts: tuple[PartReport, ...]
    differs: str = ""

    @property
    def main(self) -> PartReport:
        """The part that runs in the loop, or the whole cell."""
        return next((part for part in self.parts if part.name in ("", "core")), self.parts[0])

    @property
    def distinct(self) -> int:
        return self.main.distinct

    @property
    def steps(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def share(self) -> float:
        return sum(part.share for part in self.parts)

    @property
    def compile(self) -> float:
        return sum(part.compile for part in self.parts)

    def equations(self, name: str) -> int:
        """How many equations are hoisted (`"hoist"`), in the `"core"`, or in the `"sink"`."""
        return sum(part.equations for part in self.parts if (part.name or "core") == name)


@dataclass(frozen=True)
class StepReport:
    """A vmapped execution: which part of which cell, when, on how many nodes, and how many rows with padding."""

    cell: int
    part: int
    column: int
    count: int
    width: int
    samples: int
    seconds: float


@dataclass(frozen=True)
class ColumnReport:
    """A position in time: a phase, and in a loop a round."""

    phase: int
    round: int | None


@dataclass(frozen=True)
class NodeReport:
    """A node of the sample that is drawn: which part of which cell, the step that runs it, and the nodes it reads."""

    cell: int
    part: int
    step: int
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Times:
    """Seconds: of planning this batch, of compiling its program and of running it; None where not measured.

    `new_structures` samples had to be recorded for the plan, whose shape had not been seen before.
    """

    analysis: float | None = None
    compile: float | None = None
    run: float | None = None
    new_structures: int | None = None


@dataclass(frozen=True)
class Advice:
    """Something that stayed small, why, and what to do: about the user's code at `where`."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(frozen=True)
class Report:
    """What happened to a batch: made by `f.explain(...)` and `plan.explain()`.

    It prints as a table, and a notebook shows it as one; `to_html` writes a page with drawings.

    Attributes:
        function, where: the batched function, and its file and line.
        samples, nodes, distinct: how many samples there are, what they call, and what is left of it when equal calls
            are merged.
        operations: how many operations one sample after the other would run.
        steps: how many steps run instead, each of some nodes of one type; `lower_bound` is the least that any schedule
            needs.
        launches: how many vmapped calls these take.
        rows, padded_rows: how many nodes run, and how many rows are computed for them.
        levels: the length of the longest path.
        cells: the cell types; those that take longest to compile first.
        columns, step_list: the launches in the order of execution.
        sample, sample_nodes: one sample's graph, equal calls merged.
        granularity, policy, executor, reason: what was chosen, and why.
        times: what planning took and, if asked for, compiling and running.
        measured: whether the time of cells was measured; estimated from operations and steps if not.
        memory: the predicted peak memory.
        caches: hits and misses of the function's caches.
        advice: what stayed small, why, and what to do.
    """

    function: str
    where: str
    samples: int
    nodes: int
    distinct: int
    operations: int | None
    steps: int
    launches: int
    lower_bound: int
    rows: int
    padded_rows: int
    levels: int
    cells: tuple[CellReport, ...]
    columns: tuple[ColumnReport, ...] = field(repr=False)
    step_list: tuple[StepReport, ...] = field(repr=False)
    sample: int
    sample_nodes: tuple[NodeReport, ...] = field(repr=False)
    granularity: str
    policy: str
    executor: str
    reason: str
    times: Times
    measured: bool
    memory: Memory | None
    caches: dict[str, CacheInfo]
    advice: tuple[Advice, ...]

    @property
    def padding(self) -> float:
        return 1 - self.rows / max(self.padded_rows, 1)

    @property
    def mean_width(self) -> float:
        return self.rows / max(self.steps, 1)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return table_html(self)

    def to_html(self, path: Any) -> None:
        """Write one page that needs nothing else: the batch as steps, one sample's graph, the timeline, the table.

        Args:
            path: where to write it.
        """
        # Names of files may hold bytes that are no text: Python has surrogates for them, which UTF-8 has not.
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page(self))
