"""A plan: the analysis of a batch, ready to be run again and again."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jitbatch.execute.memory import Memory, predict_memory
from jitbatch.execute.sizes import Sizes
from jitbatch.ir.graph import Graph
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.ragged import Ragged
from jitbatch.plan.saved import file
from jitbatch.plan.saved.plans import from_bytes, to_bytes
from jitbatch.plan.static import PlanStatic, Summary
from jitbatch.util import compat, meshes
from jitbatch.util.errors import PlanError
from jitbatch.util.packed import Packed

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
    def sizes(self) -> Sizes:
        """What a plan made like this one has at least."""
        sizes = self.static.program.sizes or Sizes()
        if self.ragged is None:
            return sizes
        item = self.static.out_trees[0], self.static.out_classes
        return replace(sizes, items=self.ragged.mask.shape[-1], item=item)

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
