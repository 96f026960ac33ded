"""The dispatch executor: one jitted, vmapped call a step.

A step gathers its operands from the arenas, runs its cell on all rows at once, and writes the results back to
contiguous rows. Everything is plain JAX, so it works eagerly and under jit, grad, vmap, jvp, jacfwd, hessian and
checkpoint. Padding rows repeat a real row: their results are overwritten or never read, so their cotangents are zero,
and the derivatives they are multiplied with are those of a real row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch import _compat
from jitbatch._caches import Cache
from jitbatch._canonical import Cell
from jitbatch._graph import ROW, SharedArray, SharedLeaf, SharedResult, Tables, ValueClass
from jitbatch._plan import Plan

_kernels = Cache(2048)
_shared_programs = Cache(512)


def run(plan: Plan, shared_leaves: Sequence[Any]) -> Any:
    """The outputs of a planned batch."""
    static = plan.static
    tables = static.tables
    needed = {number for arena in static.arenas for number in arena.shared}
    needed.update(bound for step in static.steps for bound in step.kind.binding if bound != ROW)
    shared = shared_values(tables, tuple(sorted(needed)), shared_leaves)

    arenas: dict[int, Any] = {}
    for arena, inputs in zip(static.arenas, plan.inputs, strict=True):
        value_class = tables.classes[arena.value_class]
        rows = tuple(shared[number] for number in arena.shared)
        arenas[arena.value_class] = _new_arena(value_class, arena.capacity, rows, inputs)
    owned = not any(_compat.is_tracer(a) for a in (*arenas.values(), *shared.values()))

    for step, operands, starts in zip(static.steps, plan.operands, plan.starts, strict=True):
        kernel = step_kernel(step.kind.cell, tuple(bound == ROW for bound in step.kind.binding), owned)
        read_classes = [tables.class_of(aval) for aval in kernel.reads]
        write_classes = [tables.class_of(aval) for aval in kernel.writes]
        bound = tuple(shared[number] for number in step.kind.binding if number != ROW)
        written = tuple(arenas[c] for c in write_classes)
        results = kernel(written, tuple(arenas[c] for c in read_classes), operands, starts, bound)
        arenas.update(zip(write_classes, results, strict=True))

    final = [arenas[arena.value_class] for arena in static.arenas]
    if static.out == "stack":
        return static.out_trees[0].unflatten(
            [_take(final[a], rows) for a, rows in zip(static.out_arenas[0], plan.out_rows, strict=True)]
        )
    return _as_list(plan, final)


def _as_list(plan: Plan, arenas: Sequence[Any]) -> list[Any]:
    static = plan.static
    wanted: list[list[Any]] = [[] for _ in arenas]
    for places, rows in zip(static.out_arenas, plan.out_rows, strict=True):
        for arena, row in zip(places, rows, strict=True):
            wanted[arena].append(row)
    taken = [
        iter(_take(arena, jnp.stack(rows))) if rows else iter(()) for arena, rows in zip(arenas, wanted, strict=True)
    ]
    return [
        tree.unflatten([next(taken[arena]) for arena in places])
        for tree, places in zip(static.out_trees, static.out_arenas, strict=True)
    ]


def shared_values(tables: Tables, numbers: tuple[int, ...], leaves: Sequence[Any]) -> dict[int, Any]:
    """The shared values with these numbers; those that are computed, in one jitted program."""
    values: dict[int, Any] = {}
    computed = []
    for number in numbers:
        entry = tables.shared[number]
        if isinstance(entry, SharedResult):
            computed.append(number)
        else:
            values[number] = leaves[entry.index] if isinstance(entry, SharedLeaf) else entry.value
    if computed:
        key = (tables, tuple(computed))
        program, arrays = _shared_programs.get_or_make(key, lambda: _shared_program(tables, computed))
        values.update(zip(computed, program(list(leaves), arrays), strict=True))
    return values


def _shared_program(tables: Tables, computed: Sequence[int]) -> tuple[Callable[..., Any], list[Any]]:
    arrays: dict[int, Any] = {}

    def collect(number: int) -> None:
        entry = tables.shared[number]
        if isinstance(entry, SharedArray):
            arrays[number] = entry.value
        elif isinstance(entry, SharedResult):
            for operand in entry.operands:
                collect(operand)

    for number in computed:
        collect(number)
    places = {number: place for place, number in enumerate(arrays)}

    def jitbatch_shared(leaves: list[Any], constants: list[Any]) -> list[Any]:
        done: dict[Any, Any] = {}

        def value(number: int) -> Any:
            entry = tables.shared[number]
            if isinstance(entry, SharedLeaf):
                return leaves[entry.index]
            if isinstance(entry, SharedArray):
                return constants[places[number]]
            call = (entry.cell, entry.operands)
            if call not in done:
                done[call] = entry.cell(*map(value, entry.operands))
            return done[call][entry.output]

        return [value(number) for number in computed]

    return jax.jit(jitbatch_shared), list(arrays.values())


class StepKernel:
    """A cell over the rows of a step, compiled for each combination of sizes.

    Attributes:
        reads, writes: the avals whose arenas it reads and writes, each once.
    """

    def __init__(self, cell: Cell, is_row: tuple[bool, ...], owned: bool):
        row_avals = [aval for aval, row in zip(cell.in_avals, is_row, strict=True) if row]
        in_classes = [_class(aval) for aval in row_avals]
        out_classes = [_class(aval) for aval in cell.out_avals]
        self.writes = list({_class(aval): aval for aval in cell.out_avals}.values())
        self.reads = list({c: a for c, a in zip(in_classes, row_avals, strict=True) if c not in out_classes}.values())
        write_place = {_class(aval): place for place, aval in enumerate(self.writes)}
        read_place = {_class(aval): place for place, aval in enumerate(self.reads)}

        def kernel(
            written: tuple[Any, ...], read: tuple[Any, ...], operands: Any, starts: Any, bound: tuple[Any, ...]
        ) -> Any:
            def arena(value_class: ValueClass) -> Any:
                place = write_place.get(value_class)
                return written[place] if place is not None else read[read_place[value_class]]

            rows = iter([_gather(arena(c), index) for c, index in zip(in_classes, operands, strict=True)])
            shared = iter(bound)
            arguments = [next(rows) if row else next(shared) for row in is_row]
            mapped = jax.vmap(cell, in_axes=tuple(0 if row else None for row in is_row), axis_size=operands.shape[1])
            results = list(written)
            for value_class, start, value in zip(out_classes, starts, mapped(*arguments), strict=True):
                place = write_place[value_class]
                at = (start, *([0] * len(value_class.shape)))
                results[place] = lax.dynamic_update_slice(results[place], value, at)
            return tuple(results)

        kernel.__name__ = kernel.__qualname__ = "jitbatch_" + "".join(c if c.isalnum() else "_" for c in cell.name)
        # In an eager run the arenas are ours alone and are updated in place.
        self._call = jax.jit(kernel, donate_argnums=(0,) if owned else ())

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def step_kernel(cell: Cell, is_row: tuple[bool, ...], owned: bool) -> StepKernel:
    return _kernels.get_or_make((cell, is_row, owned), lambda: StepKernel(cell, is_row, owned))


def _class(aval: Any) -> ValueClass:
    return ValueClass(tuple(aval.shape), aval.dtype)


def _gather(arena: Any, rows: Any) -> Any:
    return arena.at[rows].get(mode="promise_in_bounds")


@jax.jit
def _take(arena: Any, rows: Any) -> Any:
    return _gather(arena, rows)


def _new_arena(value_class: ValueClass, capacity: int, shared: tuple[Any, ...], inputs: Any) -> Any:
    return _fill_arena(shared, inputs, value_class=value_class, capacity=capacity)


@jax.jit(static_argnames=("value_class", "capacity"))
def _fill_arena(shared: tuple[Any, ...], inputs: Any, *, value_class: ValueClass, capacity: int) -> Any:
    arena = jnp.zeros((capacity, *value_class.shape), value_class.dtype)
    rest = [0] * len(value_class.shape)
    if shared:
        rows = jnp.stack([jnp.asarray(value, value_class.dtype) for value in shared])
        arena = lax.dynamic_update_slice(arena, rows, (0, *rest))
    if inputs is not None:
        arena = lax.dynamic_update_slice(arena, inputs, (len(shared), *rest))
    return arena
