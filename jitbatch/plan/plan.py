"""`Plan`: the analysis of a batch, as a pytree that runs any number of times."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.execute.predicted_memory import Memory, predict_memory
from jitbatch.execute.sizes import Sizes
from jitbatch.ir.graph import Graph
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.differentiable import pack, unpack
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
    tables and the input rows of the batch. Input rows are constants, except for the inputs in `f.plan(...,
    differentiable=...)`. The rest is static. `jax.export` can save a program that takes a plan. The program then runs
    all plans of the function with the same sizes; `f.plan(..., like=plan)` makes such plans.

    `plan.save(path)` writes a plan to a file, and `Plan.load(path)` is safe for files from other people. Plans can also
    be pickled, but a pickle can run any code when it is loaded: never unpickle a plan from a source that you do not
    trust.

    Attributes:
        rows: for each arena, its input rows, padded to the size in its `ArenaShape`.
        tables: the integer tables of the program, such as operand rows and trip counts, packed into one int32 array.
        out_rows: the rows of the outputs. For `out="stack"`, int32 [samples] for each output; for `out="list"`, int32
            [outputs] for each sample; for `out="ragged"`, int32 [rows] for each leaf of an item; for `out="rows"`,
            which the library uses itself, int32 [rows] for each value class of `static.out_classes`.
        ragged: for `out="ragged"`, the `Ragged` result without its rows; otherwise None.
        counts: int32; the fields of the plan's `Summary`.
        static: the static part of the pytree.
        graphs: the graphs of the samples, for `explain`. They are not part of the pytree: `jax.tree.unflatten` returns
            a plan without graphs.
        row_samples: for each array of `inputs`, int32 [rows]: the sample that each row belongs to, and -1 for padding
            and for rows of inputs that are not differentiated.
    """

    rows: tuple[Any, ...]
    tables: Packed
    out_rows: tuple[Any, ...]
    ragged: Ragged | None
    counts: Any
    static: PlanStatic
    graphs: tuple[Graph, ...] = field(default=(), repr=False)
    row_samples: tuple[Any, ...] = ()

    def tree_flatten(self) -> tuple[tuple[Any, ...], PlanStatic]:
        return (self.rows, self.tables, self.out_rows, self.ragged, self.counts, self.row_samples), self.static

    @classmethod
    def tree_unflatten(cls, static: PlanStatic, children: Sequence[Any]) -> "Plan":
        *others, row_samples = children
        return cls(*others, static, row_samples=row_samples)  # type: ignore[misc]

    @property
    def sizes(self) -> Sizes:
        """The least sizes of a plan that is made `like` this one."""
        sizes = self.static.program.sizes or Sizes()
        if self.static.out == "rows":
            return replace(sizes, outputs=dict(zip(self.static.out_classes, map(len, self.out_rows), strict=True)))
        if self.ragged is None:
            return sizes
        item = self.static.out_trees[0], self.static.out_classes
        return replace(sizes, items=self.ragged.mask.shape[-1], item=item)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The inputs that are differentiated, as a pytree: an array of rows for each row shape.

        Differentiate a function of them, and give its gradient to `unpack`:

        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from jitbatch import jitbatch
        >>> energy = jitbatch(lambda k, positions: k * sum(jnp.sum(p**2) for p in positions))
        >>> plan = energy.plan(0.5, [np.ones((1, 2), "f"), np.full((2, 2), 3, "f")], differentiable="positions")
        >>> gradient = jax.grad(lambda inputs: energy.batch(0.5, plan.with_inputs(inputs)).sum())(plan.inputs)
        >>> [one.tolist() for one in plan.unpack(gradient)]
        [[[1.0, 1.0]], [[3.0, 3.0], [3.0, 3.0]]]
        """
        return tuple(self.rows[place] for place in self.static.differentiable_arenas)

    def with_inputs(self, inputs: Sequence[Any]) -> "Plan":
        """Returns the plan with other values of the inputs that are differentiated, such as tracers of `jax.grad`.

        Rows of padding, and rows of other inputs in these arrays, stay as they are: their gradient is zero.
        """
        places = self._differentiable_arenas()
        if len(inputs) != len(places):
            raise PlanError(f"the plan has {len(places)} arrays of differentiable inputs, not {len(inputs)}")
        rows = list(self.rows)
        for place, values, samples in zip(places, inputs, self.row_samples, strict=True):
            if jnp.shape(values) != jnp.shape(rows[place]):
                raise PlanError(f"inputs of shape {jnp.shape(values)} in place of {jnp.shape(rows[place])}")
            is_named = jnp.reshape(samples >= 0, (*samples.shape, *(1,) * (jnp.ndim(values) - samples.ndim)))
            rows[place] = jnp.where(is_named, values, rows[place])
        return replace(self, rows=tuple(rows))

    def unpack(self, inputs: Sequence[Any]) -> Any:
        """Returns values in the form of `plan.inputs`, such as a gradient, in the structure of the samples.

        Args:
            inputs: the arrays. They are read on the host, so this is for use outside of compiled functions.

        Returns:
            A list of samples with an array in place of each input that is differentiated, and None for all others;
            a tuple of such lists if the function maps several arguments. In samples that were padded, or for inputs
            that the function does not read, the arrays are zero.
        """
        graphs = self._graphs_of_inputs(inputs)
        if any(map(compat.is_tracer, inputs)):
            raise PlanError(
                "plan.unpack reads values on the host: call it outside of jax.jit, on what the step returns"
            )
        host = list(map(np.asarray, inputs))
        parts = [
            unpack(some, self.static.differentiable, self.static.call, self._by_class(host, shard))
            for shard, some in enumerate(graphs)
        ]
        if not isinstance(parts[0], tuple):
            return [one for part in parts for one in part]
        return tuple([one for part in of_argument for one in part] for of_argument in zip(*parts, strict=True))

    def pack(self, values: Any) -> tuple[Any, ...]:
        """Returns values in the structure of the samples in the form of `plan.inputs`: the inverse of `unpack`.

        Args:
            values: values in the form of `unpack`, such as forces to compare a gradient with. Padding is zero.
        """
        zeros = [np.zeros(rows.shape, rows.dtype) for rows in self.inputs]
        graphs = self._graphs_of_inputs(zeros)
        is_one = len(self.static.call.mapped) == 1
        begin = 0
        for shard, some in enumerate(graphs):
            own = slice(begin, begin + len(some)) if self.is_sharded else slice(None)
            given = values[own] if is_one else [part if part is None else part[own] for part in values]
            pack(some, self.static.differentiable, self.static.call, given, self._by_class(zeros, shard))
            begin += len(some)
        return tuple(zeros)

    def _by_class(self, inputs: Sequence[np.ndarray], shard: int) -> dict[int, np.ndarray]:
        """Returns the arrays of a shard, by value class."""
        classes = [self.static.arenas[place].value_class for place in self._differentiable_arenas()]
        return dict(zip(classes, [one[shard] if self.is_sharded else one for one in inputs], strict=True))

    def _differentiable_arenas(self) -> tuple[int, ...]:
        if not self.static.differentiable:
            raise PlanError(
                "the plan has no differentiable inputs: name them when it is made, f.plan(..., differentiable=...)"
            )
        return self.static.differentiable_arenas

    def _graphs_of_inputs(self, inputs: Sequence[Any]) -> list[tuple[Graph, ...]]:
        """Returns the graphs of each shard."""
        if [jnp.shape(one) for one in inputs] != [rows.shape for rows in self.inputs] or not self.graphs:
            raise PlanError(
                "plan.unpack and plan.pack need the plan that f.plan returned, not a copy of it that went through JAX, "
                "and arrays with the shapes of its plan.inputs"
            )
        size = len(self.graphs) // self.shards
        return [self.graphs[shard * size : (shard + 1) * size] for shard in range(self.shards)]

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

    def on_device(self) -> "Plan":
        """Returns the plan with its arrays on the default device."""
        return replace(jax.device_put(self), graphs=self.graphs)

    @property
    def shards(self) -> int:
        """The number of shards, 1 for a plan that is not sharded."""
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
        return predict_memory(self, self.static.memory)

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
        self._check_saves()
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
        self._check_saves()
        objects: list[Any] = []
        content = to_bytes(self, objects)
        return _restore, (content, tuple(objects))

    def _check_saves(self) -> None:
        if isinstance(self.static, PlanStatic) and self.static.differentiable:
            raise PlanError(
                "a plan with differentiable inputs is not saved. Save its capacity, and make it again: "
                "f.plan(..., like=capacity, differentiable=...)"
            )

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
