"""A plan: the analysis of a batch, ready to be run again and again."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.batch.analysis import analyse
from jitbatch.batch.inputs import pad_rows
from jitbatch.batch.types import known_types, types_of
from jitbatch.execute.executor import ArenaShape, SizeRequest
from jitbatch.execute.memory import Memory, predict_memory
from jitbatch.execute.registry import EXECUTORS
from jitbatch.execute.sizes import Sizes
from jitbatch.execute.verify import verify_analysis, verify_lowered, verify_steps
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.ir.items import common_item
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.ragged import Ragged, ragged_outputs
from jitbatch.plan.saved import file
from jitbatch.plan.saved.plans import from_bytes, to_bytes
from jitbatch.plan.static import PlanStatic, Summary, interned
from jitbatch.record.arguments import Arguments
from jitbatch.schedule.policies import POLICIES
from jitbatch.util import compat, meshes, passes
from jitbatch.util.errors import OutputError, PlanError
from jitbatch.util.key_order import sorted_tree
from jitbatch.util.packed import Packed, pack

if TYPE_CHECKING:
    from jitbatch.inspect.report import Report


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Plan:
    """The analysis of one batch: which calls run together, on which rows.

    Made by `f.plan(...)` and run by `f.batch(shared, plan)`. A plan is a pytree: its leaves are small integer tables
    and the batch's input rows, which are constants; the rest is static. Plans pickle, and `jax.export` saves programs
    that take them: such a program runs every plan of the function whose sizes are those of the plan it was exported
    with, `f.plan(..., like=plan)`.

    Attributes:
        inputs: for each arena its input rows, padded to the size in its `ArenaShape`.
        tables: what the program reads: operand rows, trip counts and the like, packed into one int32 array.
        out_rows: for each output of the stacked result int32 [samples], for `out="list"` for each sample
            int32 [outputs], for `out="ragged"` for each leaf of an item int32 [rows].
        ragged: for `out="ragged"` the result without its rows.
        counts: int32; the numbers of its `Summary`.
        static: the rest.
        graphs: the graphs of the samples, for `explain`. Not part of the pytree: a plan that was taken apart has none.
    """

    inputs: tuple[Any, ...]
    tables: Packed
    out_rows: tuple[Any, ...]
    ragged: Ragged | None
    counts: Any
    static: PlanStatic
    graphs: tuple[Graph, ...] = field(default=(), repr=False)

    def tree_flatten(self) -> tuple[tuple[Any, ...], PlanStatic]:
        return (self.inputs, self.tables, self.out_rows, self.ragged, self.counts), self.static

    @classmethod
    def tree_unflatten(cls, static: PlanStatic, children: Sequence[Any]) -> "Plan":
        return cls(*children, static)  # type: ignore[misc]

    @property
    def like(self) -> "Like":
        """What a plan like this one is to have at least."""
        program = self.static.program
        sizes = program.sizes or Sizes()
        if self.ragged is None:
            return Like(sizes)
        return Like(sizes, self.ragged.mask.shape[-1], (self.static.out_trees[0], self.static.out_classes))

    @property
    def is_sharded(self) -> bool:
        """Whether the leaves have a leading axis of shards."""
        return np.ndim(self.counts) > 1

    def shard(self, index: Any) -> "Plan":
        """One shard of a plan that was made with `shards`; inside `jax.shard_map`, `plan.shard(0)` is the device's."""
        if not self.is_sharded:
            raise PlanError("the plan has no shards: make it with f.plan(..., shards=n), or run it as it is")
        if isinstance(index, int) and not -self.shards <= index < self.shards:
            raise PlanError(f"the plan has shards 0 to {self.shards - 1}, not {index}")
        return meshes.run(lambda plan: jax.tree.map(lambda leaf: leaf[index], plan), self)

    @property
    def shards(self) -> int:
        return np.shape(self.counts)[0] if self.is_sharded else 1

    @property
    def summary(self) -> Summary:
        """What planning did, in numbers; of all shards together."""
        counts = np.asarray(self.counts).reshape(-1, len(Summary._fields))
        total, most = Summary(*counts.sum(axis=0).tolist()), Summary(*counts.max(axis=0).tolist())
        return total._replace(levels=most.levels, types=most.types)

    def __repr__(self) -> str:
        reason = f": {self.static.reason}" if self.static.reason else ""
        executor = f"{self.static.executor}{reason}"
        if compat.is_tracer(self.counts):
            return f"Plan(traced, {executor})"
        s = self.summary
        bound = f" (at least {s.bound})" if s.bound else ""
        shards = f" in {self.shards} shards" if self.is_sharded else ""
        return (
            f"Plan({s.samples} samples{shards}: {s.nodes} nodes, {s.distinct} distinct, {s.levels} levels, "
            f"{s.types} types -> {s.steps} steps{bound}, width {s.rows / max(s.steps, 1):.1f}, "
            f"{100 * (1 - s.rows / max(s.padded_rows, 1)):.0f}% padding, {executor})"
        )

    @property
    def capacity(self) -> Capacity:
        """What the plan has room for, to be saved and given back as `f.plan(..., like=capacity)`."""
        items = 0 if self.ragged is None else self.ragged.mask.shape[-1]
        return replace(self.static.capacity, items=items)

    @property
    def memory(self) -> Memory:
        """The predicted peak memory of running this plan.

        >>> import jax.numpy as jnp
        >>> from jitbatch import jitbatch
        >>> double = jitbatch(lambda scale, x: scale * x)
        >>> print(double.plan(2.0, [jnp.ones(1000), jnp.zeros(1000)]).memory)
        56.1 kB for inference, 96.1 kB for training
        """
        return predict_memory(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file that is data alone, to be read by `Plan.load`; as a whole or not at all. Raises
        `PlanError` where it holds something that is not data.

        >>> import tempfile
        >>> from jitbatch import Plan, jitbatch
        >>> double = jitbatch(lambda scale, x: scale * x)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     double.plan(2.0, [1.0, 2.0, 3.0]).save(directory + "/plan.zip")
        ...     plan = Plan.load(directory + "/plan.zip")
        >>> double.batch(2.0, plan).tolist()
        [2.0, 4.0, 6.0]
        """
        file.write(path, to_bytes(self, None))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Plan":
        """The plan of a file that `save` has written. The file may be a stranger's: nothing of it is run or imported,
        and sizes are checked before anything is allocated. Raises `PlanError` for any other file, also if it differs
        in one bit. The function that runs the plan first records the samples that it is for."""
        return _restore(file.read(path), None)

    def __reduce__(self) -> tuple[Any, ...]:
        objects: list[Any] = []
        content = to_bytes(self, objects)
        return _restore, (content, tuple(objects))

    def explain(self) -> "Report":
        """What was batched with what, what stayed small, and why; see `Batched.explain`.

        >>> from jitbatch import jitbatch
        >>> double = jitbatch(lambda scale, x: scale * x)
        >>> double.plan(2.0, [1.0, 2.0, 3.0]).explain().steps
        1
        """
        if not isinstance(self.static, PlanStatic):
            raise PlanError("an unpickled plan does not know its function: use f.explain(params, plan)")
        return self.static.owner.explain_plan(self)

    def __str__(self) -> str:
        is_known = isinstance(self.static, PlanStatic) and not self.is_sharded
        steps = self.static.program.describe(self.tables.unpack()) if is_known else []
        return "\n".join([repr(self), *steps])


def _restore(content: bytes, objects: tuple[Any, ...] | None) -> Plan:
    """The plan of a file, or of a pickle, which has values that are not data as well."""
    return Plan(*from_bytes(content, objects))


class Like(NamedTuple):
    """What a plan is to have at least: sizes, items of ragged outputs, and if none has any, the shape of an item. And
    the number of samples that it is to have headroom for, 0 for none (see `util/headroom`)."""

    sizes: Sizes
    items: int = 0
    item: tuple[Any, tuple[int, ...]] | None = None
    headroom_for: int = 0


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
    owner: Any, shared_key: Any, call: Arguments, graphs: Sequence[Graph], inputs: Sequence[Inputs],
    options: Options, like: Like | None = None, reason: str = "",
) -> Plan:  # fmt: skip
    """Plan a batch of at least one sample.

    Args:
        owner: the function that the plan is for.
        shared_key: the description of its shared arguments.
        call: how it is called.
        graphs: one for each sample.
        inputs: the leaves of each sample that are rows.
        like: the least that the plan is to have.
        reason: why these graphs and options were chosen.
    """
    tables = graphs[0].tables
    like = like or Like(Sizes())
    sizes = like.sizes
    out_trees, out_classes = outputs_of(graphs, tables, options.out, like.item)
    policy = POLICIES[options.policy]
    executor = EXECUTORS[options.executor]
    split = executor.splits_cells
    known = known_types(sizes.profile, tables, split, tuple(sizes.nodes)) if executor.has_room else None
    if known is not None and all(known in graph.typed for graph in graphs):
        profile = sizes.profile  # which has everything, as was found out before
    else:
        profile = sizes.profile.union(graphs)
    if not executor.runs_effects and any(tables.kinds[kind_id].cell.has_effects for kind_id in profile.kinds):
        executor, reason = EXECUTORS["dispatch"], "cells have effects"
    types = types_of(profile, [*sizes.exemplars, *graphs], executor.splits_cells, tuple(sizes.nodes))
    analysis = analyse(graphs, inputs, types, options.dedupe, sizes.shared)
    if passes.verifies():
        verify_analysis(analysis)
    assert executor.lower is not None
    lowered = executor.lower(analysis, policy, SizeRequest(sizes, like.headroom_for, options.static_loops))
    if passes.verifies():
        verify_lowered(analysis, lowered)
    arena_of = {arena.value_class: number for number, arena in enumerate(lowered.arenas)}
    rows = lowered.value_row[analysis.batch.outputs].astype(np.int32)
    ragged = None
    if options.out == "ragged":
        out_rows, ragged = ragged_outputs(graphs, rows, len(out_classes[0]), like.items, like.headroom_for)
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
        executor=executor.name,
        reason=reason,
        call=call,
        types=types,
        out_classes=out_classes[0] if out_classes else (),
    )
    counts = Summary(
        samples=len(graphs),
        nodes=len(analysis.leader),
        distinct=len(analysis.nodes),
        levels=int(analysis.batch.level.max(initial=-1)) + 1,
        types=len(analysis.types.kinds),
        steps=lowered.steps,
        bound=lowered.bound,
        launches=lowered.launches,
        rows=len(analysis.nodes),
        padded_rows=lowered.padded_rows,
    )
    rows_of = tuple(_input_rows(arena, analysis.packed.rows, tables) for arena in lowered.arenas)
    plan = Plan(
        rows_of, pack(lowered.tables), out_rows, ragged, np.array(counts, np.int32), interned(static), tuple(graphs)
    )
    if passes.verifies():
        verify_steps(plan)
    return plan


def _input_rows(arena: ArenaShape, rows: Mapping[int, Any], tables: Tables) -> Any:
    """The input rows of an arena, padded; padding alone where another plan's sizes have room for rows of this class."""
    value_class = tables.classes[arena.value_class]
    none = None
    if arena.inputs and arena.value_class not in rows:
        none = (jnp if value_class.is_key else np).zeros((0, *value_class.shape), value_class.dtype)
    return pad_rows(rows.get(arena.value_class, none), arena.inputs)


def outputs_of(
    graphs: Sequence[Any], tables: Tables, out: str, known: tuple[Any, tuple[int, ...]] | None
) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    """The result trees and the classes of their leaves: one for all samples, one for each, or those of an item. Of
    graphs, or of whatever else has an `out_tree`, `out_classes` and `items`. Only a list of results keeps the order of
    keys in dicts: what is stacked has them sorted, as `jax.vmap` returns them."""
    if out == "list":
        return tuple(g.out_tree for g in graphs), [g.out_classes for g in graphs]
    if out == "ragged":
        item = common_item([graph.items for graph in graphs], tables.classes) or known
        if item is None:
            raise OutputError(
                "no sample of the batch has an item, and so nothing tells what an item looks like. Leave such batches "
                "out, or plan them `like` a plan with items"
            )
        return (item[0],), [item[1]]
    trees, classes = [sorted_tree(graph.out_tree) for graph in graphs], [graph.out_classes for graph in graphs]
    if trees.count(trees[0]) < len(trees) or classes.count(classes[0]) < len(classes):
        differs = [one != (trees[0], classes[0]) for one in zip(trees, classes, strict=True)]
        index = differs.index(True)
        raise OutputError(
            f"sample {index} has the result {_result_of(graphs[index], tables)}, but sample 0 has "
            f"{_result_of(graphs[0], tables)}: they cannot be stacked. Return results of one shape and dtype for "
            'every sample (a sum of nothing is Python\'s integer 0: begin it with 0.0 or zeros), or use out="list"'
        )
    return (trees[0],), [classes[0]]


def _result_of(graph: Any, tables: Tables) -> str:
    return describe_result(graph.out_tree, [tables.classes[c] for c in graph.out_classes])


def describe_result(tree: Any, classes: Sequence[ValueClass]) -> str:
    """A result's tree, with the shapes and dtypes of its leaves."""
    return str(tree.unflatten(map(str, classes))).replace("'", "")
