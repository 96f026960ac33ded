"""The per-sample executor: one jitted call per sample, for batches whose samples have nothing in common.

The function is traced once for each structure of samples. Samples are not recorded or analysed. A plan holds the leaves
of the samples and the program of each sample.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from jitbatch.execute.executor import Executor
from jitbatch.execute.memory import ProgramMemory
from jitbatch.execute.program import Runnable
from jitbatch.execute.steps import Step
from jitbatch.ir.cell import closed_jaxpr_key
from jitbatch.ir.describe import largest
from jitbatch.ir.items import Items, split_items
from jitbatch.ir.tables import Tables, ValueClass
from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.forwarding import origin
from jitbatch.record.noted_call import array_leaves, call_noted
from jitbatch.record.rows import ClosesOverTracer
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.record.structure import Structure, aval_of
from jitbatch.record.values import check_result
from jitbatch.util import compat, jaxprs, meshes
from jitbatch.util.errors import PlanError, mutation_error
from jitbatch.util.key_order import flatten
from jitbatch.util.sites import describe_function


@dataclass(frozen=True, eq=False)
class SampleProgram:
    """The program of samples of one structure.

    Attributes:
        run: from the leaves of the shared arguments and of a sample to the leaves of its result.
        tables: the tables of the value class ids.
        out_tree, out_classes: the tree of the result, and the value classes of its leaves.
        jaxpr: the jaxpr of `run`.
    """

    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    tables: Tables
    out_tree: Any
    out_classes: tuple[int, ...]
    jaxpr: Any

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal for equal programs."""
        return closed_jaxpr_key(self.jaxpr)

    @cached_property
    def items(self) -> Items:
        return split_items(self.out_tree, self.out_classes)


@dataclass(frozen=True)
class PerSampleProgram:
    """The programs of a batch.

    Attributes:
        samples: the program of each sample.
        out_classes: the value classes of the leaves of a stacked result, or of an item.
    """

    samples: tuple[SampleProgram, ...]
    out_classes: tuple[int, ...]

    @property
    def shared(self) -> set[int]:
        return set()

    @property
    def sizes(self) -> None:
        return None

    def run(self, tables: Any, arenas: list[Any], shared: dict[int, Any]) -> list[Any]:
        return arenas

    def steps(self, tables: Any) -> Iterator[Step]:
        return iter(())

    def memory(self, arena_sizes: Sequence[int], classes: Sequence[ValueClass]) -> ProgramMemory:
        raise PlanError("a plan for the per_sample executor is compiled sample by sample: nothing predicts its memory")

    def describe(self, tables: Any) -> list[str]:
        counts = Counter(self.samples)
        return largest(
            [
                (count, f"  structure {structure_id}: {count} samples")
                for structure_id, count in enumerate(counts.values())
            ]
        )

    def changes(self, before: "PerSampleProgram", tables: Tables) -> Iterator[str]:
        return iter(())


def sample_program(
    context: Context, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments
) -> SampleProgram:
    """Returns the program of a sample. A new structure is traced."""
    found = context.programs.get(structure.key)
    if found is None:
        found = _trace(context, structure, index, shared, arguments)
        found = context.programs.put(structure.key, _met_before(found, context, structure) or found)
    return found


def _met_before(program: SampleProgram, context: Context, structure: Structure) -> SampleProgram | None:
    """Returns an equal program of shared arguments with another order of keys, or None."""
    for other in {context.first, *context.first.others} - {context}:
        found = other.programs.get(structure.key) if structure.key in other.programs else None
        if found is not None and found.out_tree == program.out_tree and found.key == program.key:
            return found
    return None


def _trace(
    context: Context, structure: Structure, index: int, shared: SharedArguments, arguments: Arguments
) -> SampleProgram:
    name = f"sample {index} of {describe_function(context.fun)}"
    out_tree = None

    def of_leaves(shared_leaves: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        nonlocal out_tree
        objects = shared.rebuild(shared_leaves)
        args, kwargs = arguments.rebuild(objects, structure.key[0].unflatten(leaves))
        result = call_noted(context.fun, args, kwargs, objects, name)
        check_result(result, name)
        results, out_tree = flatten(result)
        held = [
            array_leaves(part, len(before)) for part, before in zip(objects, shared.split(shared_leaves), strict=True)
        ]
        return results, held

    # Mesh axes of the leaves are left out, so that the program runs with any of them.
    jaxpr, (results, held) = jax.make_jaxpr(of_leaves, return_shape=True)(
        list(map(aval_of, shared.leaves)), list(map(aval_of, structure.leaves))
    )
    if any(map(compat.is_tracer, jaxpr.consts)) and not context.may_close_over_tracers:
        raise ClosesOverTracer
    _check_held(jaxpr.jaxpr, len(results), held, shared, name)
    jaxpr = compat.with_outputs(jaxpr, len(results))

    @jax.jit
    def jitbatch_sample(consts: Sequence[Any], shared_leaves: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        return jaxprs.run(compat.ClosedJaxpr(jaxpr.jaxpr, consts), [*shared_leaves, *leaves])

    def run(shared_leaves: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        return jitbatch_sample(meshes.cast(jaxpr.consts), shared_leaves, leaves)

    classes = tuple(context.tables.class_of(aval) for aval in jaxpr.out_avals)
    return SampleProgram(run, context.tables, out_tree, classes, jaxpr)


def _check_held(jaxpr: Any, results: int, held: Sequence[Sequence[Any]], shared: SharedArguments, name: str) -> None:
    """Raises an error if the function has replaced array leaves of the shared arguments.

    Args:
        jaxpr: the traced function. It returns the results, then the final leaves of the shared arguments.
        results: the number of results.
        held: the final leaves of each shared argument.
        shared: the shared arguments.
        name: the sample, for the error message.
    """
    remaining = iter([None if isinstance(a, compat.Literal) else origin(jaxpr, a) for a in jaxpr.outvars[results:]])
    after = [list(itertools.islice(remaining, len(leaves))) for leaves in held]
    for kind, leaves_after, before in zip(shared.part_types, after, shared.split(jaxpr.invars), strict=True):
        if leaves_after != list(before):
            raise mutation_error(f"the shared argument of type {kind.__name__}", name)


def run_each(plan: Runnable, shared_leaves: Sequence[Any]) -> Any:
    """Runs a plan and returns its outputs; for `out="list"`, the leaves of each result."""
    static = plan.static
    program: Any = static.program
    outputs = [sample.run(shared_leaves, leaves) for sample, leaves in zip(program.samples, plan.rows, strict=True)]
    if static.out == "list":
        return outputs
    if plan.ragged is None:
        return static.out_trees[0].unflatten(_stack(outputs))
    size = static.out_trees[0].num_leaves
    leaves = [leaf for result in outputs for leaf in result]
    if leaves:
        columns = _stack([leaves[i : i + size] for i in range(0, len(leaves), size)])
    else:  # no items: all rows are padding
        classes = map(static.tables.classes.__getitem__, program.out_classes)
        columns = [jnp.zeros((1, *value_class.shape), value_class.dtype) for value_class in classes]
    taken = [column[rows] for column, rows in zip(columns, plan.out_rows, strict=True)]
    return replace(plan.ragged, rows=static.out_trees[0].unflatten(taken))


@jax.jit
def _stack(outputs: list[list[Any]]) -> list[Any]:
    return [jnp.stack(column) for column in zip(*outputs, strict=True)]


PER_SAMPLE = Executor("per_sample", None, run_each)
