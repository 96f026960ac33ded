"""The static part of a saved plan: sizes as numbers, and names in place of ids of a function's tables."""

from dataclasses import dataclass
from typing import Any

from jitbatch.execute.fused.program import SingleShape
from jitbatch.execute.fused.shapes import LoopShape
from jitbatch.execute.predicted_memory import StaticMemory
from jitbatch.plan.capacity import Capacity, check_capacity
from jitbatch.plan.saved.schema import KindName, from_data, to_data
from jitbatch.plan.saved.trees import Trees
from jitbatch.plan.saved.values import damaged, dumps, loads


@dataclass(frozen=True)
class SavedArena:
    """An `ArenaShape` with names of its value class and shared values."""

    value_class: Any
    shared: tuple[Any, ...]
    inputs: int
    capacity: int


@dataclass(frozen=True)
class SavedStep:
    """A `StepShape` with the name of its kind.

    Attributes:
        kind, width, flows: as in `StepShape`.
        outputs: the number of outputs.
        is_sum: whether it is a reduction.
    """

    kind: KindName
    width: int
    flows: tuple[bool, ...]
    outputs: int
    is_sum: bool


@dataclass(frozen=True)
class Content:
    """The saved form of a `PlanStatic`. Kinds in phases are names.

    Attributes:
        function: the name of the function that made the plan.
        version: the versions of jitbatch and JAX.
        granularity: the granularity of its graphs.
        executor, reason, out, out_arenas: as in `PlanStatic`.
        shared: descriptions of the leaves of the shared arguments.
        parts: the name and the axis of each part of the arguments.
        layout: the name and the number of parts of each argument.
        layout_trees: the tree of each argument.
        positional: the number of positional arguments.
        orders: a dict with the keys of each mapping in the shared arguments, in their order (see `util/key_order`).
        capacity: the exemplars and the sizes.
        graphs: for each exemplar, a digest of its graph.
        is_split: as in `Types`.
        arenas: the arenas.
        phases, steps: the program of the fused or of the dispatch executor; the other is None.
        out_trees: the trees of results, as indices into the exemplars' trees followed by `trees`.
        trees: the trees of results that no exemplar has.
        memory: the predicted memory (see `execute/predicted_memory`).
        program: a digest of the program. Plans of one program have equal digests, whatever their exemplars.
    """

    function: str
    version: str
    granularity: str
    executor: str
    reason: str
    shared: tuple[str, ...]
    parts: tuple[tuple[str, int | None], ...]
    layout: tuple[tuple[str, int], ...]
    layout_trees: Trees
    positional: int
    orders: Trees
    capacity: Capacity
    graphs: tuple[str, ...]
    is_split: bool
    arenas: tuple[SavedArena, ...]
    phases: tuple[SingleShape | LoopShape, ...] | None
    steps: tuple[SavedStep, ...] | None
    out: str
    out_trees: tuple[int, ...]
    trees: Trees
    out_arenas: tuple[tuple[int, ...], ...]
    memory: StaticMemory
    program: str = ""

    def to_bytes(self) -> bytes:
        return dumps(to_data(self)).encode()

    @staticmethod
    def from_bytes(text: bytes) -> "Content":
        content: Content = from_data(Content, loads(text), "static")
        check_capacity(content.capacity)
        exemplars: Any = content.capacity.exemplars
        if content.out not in ("stack", "list", "ragged") or len(content.graphs) != len(exemplars.walks):
            damaged("the kind of results, and the graphs of samples")
        shape = [content.layout_trees.leaf_counts(), [count for _, count in content.layout]]
        if shape[0] != shape[1] or sum(shape[1]) != len(content.parts) or content.positional > len(content.layout):
            damaged("the arguments")
        known = len(content.graphs) + len(content.trees.walks)
        if not all(0 <= tree_id < known for tree_id in content.out_trees):
            damaged("the trees of results")
        return content
