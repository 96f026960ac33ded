"""`Plan`: the analysis of a batch, as a pytree that runs any number of times."""

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
    """The analysis of one batch: the calls that run together, and the rows that they read and write.

    `f.plan(...)` makes a plan, and `f.batch(shared, plan)` runs it. A plan is a pytree. Its leaves are small integer
    tables and the input rows of the batch; the input rows are constants. The rest is static. Plans can be pickled.
    `jax.export` can save a program that takes a plan; the program then runs all plans of the function with the same
    sizes, as `f.plan(..., like=plan)` makes them.

    Attributes:
        inputs: for each arena, its input rows, padded to the size in its `ArenaShape`.
        tables: the integer tables of the program, such as operand rows and trip counts, packed into one int32 array.
        out_rows: the rows of the outputs. For `out="stack"`, int32 [samples] for each output; for `out="list"`,
            int32 [outputs] for each sample; for `out="ragged"`, int32 [rows] for each leaf of an item.
        ragged: for `out="ragged"`, the `Ragged` result without its rows; otherwise None.
        counts: int32; the fields of the plan's `Summary`.
        static: the static part of the pytree.
        graphs: the graphs of the samples, for `explain`. They are not part of the pytree: `jax.tree.unflatten` returns
            a plan without graphs.
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
        """The least sizes of a plan that is made `like` this one."""
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
        """Returns one shard of a plan with `shards`. Inside `jax.shard_map`, `plan.shard(0)` is the device's shard."""
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
        """The numbers of nodes, steps, rows and so on, for all shards together."""
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
        """The sizes of the plan. Save them, and pass them to a later `f.plan(..., like=capacity)`."""
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
        """Writes the plan to a file of plain data, for `Plan.load`. The file is written completely or not at all.

        Args:
            path: the path of the file.

        Raises:
            PlanError: the plan holds an object that is not data.

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
        """Reads a plan from a file that `save` wrote.

        Loading is safe for files from untrusted sources: it runs and imports nothing from the file, and checks sizes
        before it allocates memory. The function that runs the plan first records the plan's exemplars.

        Args:
            path: the path of the file.

        Raises:
            PlanError: `save` did not write this file, or the file has changed since.
        """
        return _restore(file.read(path), None)

    def __reduce__(self) -> tuple[Any, ...]:
        objects: list[Any] = []
        content = to_bytes(self, objects)
        return _restore, (content, tuple(objects))

    def explain(self) -> "Report":
        """Reports which calls run together, which batches stay small, and why; see `Batched.explain`.

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
    """Returns the plan of a file or a pickle. `objects` are a pickle's values that are not data; None for a file."""
    return Plan(*from_bytes(content, objects))
