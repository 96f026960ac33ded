"""A plan: the analysis of a batch, ready to be run again and again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import _dispatch, _fused
from jitbatch._analysis import analyse
from jitbatch._errors import OutputError
from jitbatch._graph import Graph, Tables
from jitbatch._inputs import pad_rows
from jitbatch._items import common_item
from jitbatch._lowering import ArenaShape, Program
from jitbatch._memory import Memory, predict_memory
from jitbatch._ragged import Ragged, ragged_outputs
from jitbatch._schedule import POLICIES
from jitbatch._types import types_of

if TYPE_CHECKING:
    from jitbatch._each import EachProgram


@dataclass(frozen=True, eq=False)
class PlanStatic:
    """What a program is compiled for: everything in a plan but its integer tables and input rows."""

    tables: Tables
    owner: Any
    shared_key: Any
    arenas: tuple[ArenaShape, ...]
    program: "Program | EachProgram"
    out: str
    out_trees: tuple[Any, ...]
    out_arenas: tuple[tuple[int, ...], ...]
    summary: "Summary"

    @property
    def out_classes(self) -> tuple[int, ...]:
        """The value classes of what is stacked: of a result, or of an item."""
        return tuple(self.arenas[place].value_class for place in self.out_arenas[0])

    def _identity(self) -> tuple[Any, ...]:
        return (self.owner, self.shared_key, self.arenas, self.program, self.out, self.out_trees, self.out_arenas)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, PlanStatic) and self.tables is other.tables and self._identity() == other._identity()

    @cached_property
    def _hash(self) -> int:
        return hash((id(self.tables), self._identity()))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Summary:
    """What planning did, in numbers; `reason` says why the executor is not the one that was asked for."""

    executor: str
    samples: int
    nodes: int
    distinct: int
    levels: int
    types: int
    steps: int
    rows: int
    padded_rows: int
    shards: int = 1
    reason: str = ""


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Plan:
    """The analysis of one batch: which calls run together, on which rows.

    Made by `f.plan(...)` and run by `f.batch(shared, plan)`. A plan is a pytree: its leaves are small integer tables
    and the batch's input rows, which are constants; the rest is static.

    Attributes:
        inputs: for each arena its input rows, padded to the size in its `ArenaShape`.
        tables: what the program reads: operand rows, trip counts and the like.
        out_rows: for each output of the stacked result int32 [samples], for `out="list"` for each sample
            int32 [outputs], for `out="ragged"` for each leaf of an item int32 [rows].
        ragged: for `out="ragged"` the result without its rows.
        static: the rest.
    """

    inputs: tuple[Any, ...]
    tables: Any
    out_rows: tuple[Any, ...]
    ragged: Ragged | None
    static: PlanStatic

    def tree_flatten(self) -> tuple[tuple[Any, ...], PlanStatic]:
        return (self.inputs, self.tables, self.out_rows, self.ragged), self.static

    @classmethod
    def tree_unflatten(cls, static: PlanStatic, children: Sequence[Any]) -> "Plan":
        return cls(*children, static)  # type: ignore[misc]

    @property
    def is_sharded(self) -> bool:
        """Whether the leaves have a leading axis of shards."""
        return any(np.ndim(rows) > 1 for rows in self.out_rows)

    def shard(self, index: Any) -> "Plan":
        """One shard of a plan that was made with `shards`; inside `jax.shard_map`, `plan.shard(0)` is the device's."""
        return jax.tree.map(lambda leaf: leaf[index], self)

    def __repr__(self) -> str:
        s = self.static.summary
        shards = f" in {s.shards} shards" if s.shards > 1 else ""
        executor = f"{s.executor}: {s.reason}" if s.reason else s.executor
        return (
            f"Plan({s.samples} samples{shards}: {s.nodes} nodes, {s.distinct} distinct, {s.levels} levels, "
            f"{s.types} types -> {s.steps} steps, mean width {s.rows / max(s.steps, 1):.1f}, "
            f"{100 * (1 - s.rows / max(s.padded_rows, 1)):.0f}% padding, {executor})"
        )

    @property
    def memory(self) -> Memory:
        """The predicted peak memory of running this plan.

        >>> import jax.numpy as jnp
        >>> from jitbatch import jitbatch
        >>> double = jitbatch(lambda scale, x: scale * x)
        >>> print(double.plan(2.0, [jnp.ones(1000), jnp.zeros(1000)]).memory)
        56.0 kB for inference, 96.0 kB for training
        """
        return predict_memory(self)

    def __str__(self) -> str:
        steps = [] if self.is_sharded else self.static.program.describe(self.tables)
        return "\n".join([repr(self), *steps])


@dataclass(frozen=True)
class Options:
    """How a batch is planned."""

    policy: str
    executor: str
    dedupe: bool
    out: str
    loops: str = "auto"

    @property
    def static_loops(self) -> bool:
        """Whether loops have static trip counts. On a GPU, one with a dynamic count waits for the host in each turn."""
        return self.loops == "static" or (self.loops == "auto" and jax.default_backend() == "gpu")


def make_plan(
    owner: Any, shared_key: Any, graphs: Sequence[Graph], leaves: Sequence[Sequence[Any]], options: Options,
    like: Plan | None = None, verify: bool = False,
) -> Plan:  # fmt: skip
    """Plan a batch of at least one sample.

    Args:
        owner: the function that the plan is for.
        shared_key: the description of its shared arguments.
        graphs: one for each sample.
        leaves: the array leaves of each sample.
        like: a plan whose sizes are the least that this one has.
    """
    tables = graphs[0].tables
    sizes = _fused.Sizes()
    if like is not None and isinstance(like.static.program, _fused.FusedProgram) and like.static.tables is tables:
        sizes = like.static.program.sizes
    else:
        like = None
    out_trees, out_classes = outputs_of(graphs, tables, options.out, like)
    policy = POLICIES[options.policy]
    profile = sizes.profile.union(graphs)
    reason = ""
    if options.executor != "dispatch" and any(tables.kinds[number].cell.has_effects for number in profile.kinds):
        reason = "cells have effects"
    is_dispatch = options.executor == "dispatch" or bool(reason)
    analysis = analyse(graphs, leaves, types_of(profile, tables, not is_dispatch), options.dedupe, sizes.shared)
    if is_dispatch:
        name, lowered = "dispatch", _dispatch.lower(analysis, policy, verify)
    else:
        name, lowered = "fused", _fused.lower(analysis, policy, sizes, options.static_loops, verify)

    arena_of = {arena.value_class: number for number, arena in enumerate(lowered.arenas)}
    rows = lowered.value_row[analysis.batch.outputs].astype(np.int32)
    ragged = None
    if options.out == "ragged":
        least = 0 if like is None or like.ragged is None else len(like.ragged.mask)
        out_rows, ragged = ragged_outputs(graphs, rows, len(out_classes[0]), least)
    elif options.out == "stack":
        out_rows = tuple(np.ascontiguousarray(one) for one in rows.reshape(len(graphs), -1).T)
    else:
        out_rows = tuple(np.split(rows, np.cumsum([len(graph.outputs) for graph in graphs])[:-1]))
    static = PlanStatic(
        tables=tables,
        owner=owner,
        shared_key=shared_key,
        arenas=lowered.arenas,
        program=lowered.program,
        out=options.out,
        out_trees=out_trees,
        out_arenas=tuple(tuple(arena_of[c] for c in one) for one in out_classes),
        summary=Summary(
            executor=name,
            samples=len(graphs),
            nodes=len(analysis.leader),
            distinct=len(analysis.nodes),
            levels=int(analysis.problem.level.max(initial=-1)) + 1,
            types=len(analysis.types.kinds),
            steps=lowered.steps,
            rows=len(analysis.nodes),
            padded_rows=lowered.padded_rows,
            reason=reason,
        ),
    )
    inputs = tuple(_input_rows(arena, analysis.packed.rows, tables) for arena in lowered.arenas)
    plan = Plan(inputs, lowered.tables, out_rows, ragged, static)
    if verify and name == "dispatch":
        _dispatch.verify_plan(plan)
    return plan


def _input_rows(arena: ArenaShape, rows: Mapping[int, Any], tables: Tables) -> Any:
    """The input rows of an arena, padded; padding alone where another plan's sizes have room for rows of this class."""
    value_class = tables.classes[arena.value_class]
    none = None
    if arena.inputs and arena.value_class not in rows:
        none = (jnp if value_class.is_key else np).zeros((0, *value_class.shape), value_class.dtype)
    return pad_rows(rows.get(arena.value_class, none), arena.inputs)


def outputs_of(
    graphs: Sequence[Any], tables: Tables, out: str, like: Plan | None
) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    """The result trees and the classes of their leaves: one for all samples, one for each, or those of an item. Of
    graphs, or of whatever else has an `out_tree`, `out_classes` and `items`."""
    if out == "list":
        return tuple(g.out_tree for g in graphs), [g.out_classes for g in graphs]
    if out == "ragged":
        item = common_item([graph.items for graph in graphs], tables.classes)
        if item is None and like is not None:
            item = like.static.out_trees[0], like.static.out_classes
        if item is None:
            raise OutputError(
                "no sample of the batch has an item, and so nothing tells what an item looks like. Leave such batches "
                "out, or plan them `like` a plan with items"
            )
        return (item[0],), [item[1]]
    first = graphs[0]
    for index, graph in enumerate(graphs):
        if graph is not first and (graph.out_tree, graph.out_classes) != (first.out_tree, first.out_classes):
            raise OutputError(
                f"sample {index} has the result {_describe_result(graph, tables)}, but sample 0 has "
                f'{_describe_result(first, tables)}: they cannot be stacked. Use out="list", or return equal shapes'
            )
    return (first.out_tree,), [first.out_classes]


def _describe_result(graph: Any, tables: Tables) -> str:
    return str(graph.out_tree.unflatten([str(tables.classes[c]) for c in graph.out_classes])).replace("'", "")
