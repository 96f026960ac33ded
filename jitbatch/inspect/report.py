"""`Report`: how a batch is executed, as data that prints as a table."""

import linecache
from dataclasses import dataclass, field
from typing import Any

from jitbatch.execute.predicted_memory import Memory
from jitbatch.inspect.page import page, table_html
from jitbatch.inspect.terminal import as_text
from jitbatch.inspect.verdict import Verdict, judge
from jitbatch.util.caches import CacheInfo
from jitbatch.util.readable import readable_place


@dataclass(frozen=True)
class PartReport:
    """A cell, or the part of a cell that runs before, in or after a loop.

    Attributes:
        name: `""` for a whole cell, else `"hoist"`, `"core"` or `"sink"`.
        distinct: the number of nodes that run, after equal calls are merged.
        steps: the number of steps. A step runs nodes of one type together.
        launches: the number of vmapped calls. The fused executor runs a step in chunks of a few widths.
        least_steps: the least number of steps of any schedule.
        mean_width, smallest_width: the mean and the smallest number of nodes in a step, without padding.
        padding: the fraction of computed rows that is padding.
        equations: the number of equations in its jaxpr.
        flops: the estimated operations of one node.
        seconds: the time of all its steps together, estimated or measured.
        share: its fraction of the time of all cells.
        compile: the seconds to compile it in all its widths, measured or estimated from its equations.
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
    """A cell type: calls of one cell type run together.

    Attributes:
        name, where: the user's function, and its file and line.
        shapes: the shapes of operands that are rows, and of outputs, as `"float32[4], int32[] -> float32[4]"`.
        calls: the number of calls in the samples; None if the plan has no graphs.
        parts: the parts of the cell; one for a whole cell.
        differs: the difference from other types of the same function; "" if there is no other type.
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
    def function(self) -> str:
        """The name without the number that tells the types of one function apart."""
        return self.name.partition(" #")[0]

    @property
    def distinct(self) -> int:
        """The number of nodes of the main part, after equal calls are merged."""
        return self.main.distinct

    @property
    def steps(self) -> int:
        """The number of steps of all parts."""
        return sum(part.steps for part in self.parts)

    @property
    def share(self) -> float:
        """The fraction of the time of all cells, for all parts."""
        return sum(part.share for part in self.parts)

    @property
    def compile(self) -> float:
        """The seconds to compile all parts, measured or estimated."""
        return sum(part.compile for part in self.parts)

    def equations(self, name: str) -> int:
        """Returns the number of equations in the part `"hoist"`, `"core"` or `"sink"`."""
        return sum(part.equations for part in self.parts if (part.name or "core") == name)


@dataclass(frozen=True)
class StepReport:
    """A launch: a vmapped call, which is a step or a chunk of one.

    Attributes:
        cell, part: the indices of the cell in `Report.cells`, and of the part in `CellReport.parts`.
        step: the number of the step that it belongs to.
        column: the index of its position in time, in `Report.columns`.
        count: the number of nodes.
        width: the number of rows, padding included.
        samples: the number of samples that have a node in its step.
        seconds: the time, estimated or measured.
    """

    cell: int
    part: int
    step: int
    column: int
    count: int
    width: int
    samples: int
    seconds: float


@dataclass(frozen=True)
class ColumnReport:
    """A position in time.

    Attributes:
        phase: the index of a phase: a type that runs once, or a loop.
        round: the index of a round of the loop; None outside of loops.
    """

    phase: int
    round: int | None


@dataclass(frozen=True)
class NodeReport:
    """A node of the sample in the drawing.

    Attributes:
        cell, part: the indices of its cell and part, as in `StepReport`.
        step: the number of its step, as in `StepReport`.
        reads: the indices of the nodes that it reads, in `Report.sample_nodes`.
    """

    cell: int
    part: int
    step: int
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Times:
    """Measured times in seconds; None where not measured.

    Attributes:
        analysis: the time to plan the batch.
        compile: the time to compile its program.
        run: the time to run its program.
        new_structures: the number of samples with a new structure, which were recorded for this plan.
    """

    analysis: float | None = None
    compile: float | None = None
    run: float | None = None
    new_structures: int | None = None


@dataclass(frozen=True)
class Advice:
    """Advice about the user's code: a batch that stays small, the reason, a remedy and what it saves; or a note.

    Attributes:
        where: the file and line that it is about; "" if it is about the whole batch.
        text: the reason and the remedy.
        saves: what it would save, as text; "" for a note.
        gain: the predicted fraction of time that it would save, of running the batch or of compiling it.
        types: the number of types that it is about; 0 if it is not about types.
    """

    where: str
    text: str
    saves: str = ""
    gain: float = 0.0
    types: int = 0

    @property
    def code(self) -> str:
        """The user's own line, "" if its file cannot be read. The line of a decorated function is its `def`."""
        file, _, line_number = self.where.rpartition(":")
        lines = linecache.getlines(file)[int(line_number) - 1 :] if line_number.isdecimal() else []
        return next((line.strip() for line in lines if not line.lstrip().startswith("@")), "")

    def __str__(self) -> str:
        text = f"{self.text}. {self.saves}" if self.saves else self.text
        return f"{readable_place(self.where)}: {text}" if self.where else text


@dataclass(frozen=True)
class Report:
    """How a batch is executed: the result of `f.explain(...)` and `plan.explain()`.

    A report prints as a table, also in a notebook. `to_html` writes a page with drawings.

    Attributes:
        function, where: the batched function, and its file and line.
        samples: the number of samples.
        nodes: the number of nodes in their graphs: a call is a node, or as many as its cell has parts.
        distinct: the number of nodes after equal calls are merged.
        operations: the number of operations that the plain loop runs; None if unknown.
        steps: the number of steps of the batch. A step runs nodes of one type together.
        launches: the number of vmapped calls of these steps.
        lower_bound: the least number of steps of any schedule.
        rows, padded_rows: the number of computed rows, without and with padding.
        levels: the length of the longest path in the graphs.
        cells: the cell types, in descending order of compile time.
        columns, step_list: the positions in time, and the vmapped calls in the order of execution.
        sample, sample_nodes: the index of one sample, and its graph after equal calls are merged.
        granularity, policy, executor, reason: the choices for this batch, and their reason.
        times: the measured time of planning and, with `measure=True`, of compiling and running.
        measured: whether the times of cells are measured; otherwise they are estimated from operations and steps.
        memory: the predicted peak memory.
        caches: the hits and misses of the function's caches.
        advice: what to change, and what it would save; the largest saving first.
        notes: what is right as it is, and good to know.
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
    notes: tuple[Advice, ...] = ()

    @property
    def padding(self) -> float:
        """The fraction of computed rows that is padding."""
        return 1 - self.rows / max(self.padded_rows, 1)

    @property
    def mean_width(self) -> float:
        """The mean number of nodes in a step, without padding."""
        return self.rows / max(self.steps, 1)

    @property
    def calls(self) -> int:
        """The number of calls in the samples. A call of a split cell is several nodes."""
        calls = [cell.calls for cell in self.cells]
        return self.nodes if None in calls else sum(count or 0 for count in calls)

    @property
    def verdict(self) -> Verdict:
        """The answer in short: whether the samples were batched, with the numbers that say so."""
        return judge(self)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return table_html(self)

    def to_html(self, path: Any = None) -> str:
        """Returns a self-contained HTML page, and writes it to a file if a path is given.

        The page has the verdict and the advice, drawings of the batch and of one sample, a timeline and the table.

        Args:
            path: the path of the file; None for no file.
        """
        text = page(self)
        if path is not None:
            # A file name may hold bytes that are not text. Python represents them as surrogates, which UTF-8 cannot
            # encode.
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        return text
