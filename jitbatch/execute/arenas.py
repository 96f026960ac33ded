"""Execution of a program in arenas: compute shared values, fill arenas, run the program, gather outputs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch.execute.program import Runnable
from jitbatch.execute.segments import gather
from jitbatch.ir.tables import SharedArray, SharedLeaf, SharedResult, Tables, ValueClass
from jitbatch.util import compat, jaxprs, meshes
from jitbatch.util.caches import Cache
from jitbatch.util.rounding import round_up

_shared_programs = Cache(512)


def run_in_arenas(plan: Runnable, shared_leaves: Sequence[Any]) -> Any:
    """Runs a plan and returns its outputs.

    For `out="list"` it returns the leaves of each result instead: a compiled program would sort the keys of dicts.
    """
    static = plan.static
    program, tables = static.program, static.tables
    # Under shard_map this sums gradients over devices here, not inside a loop that devices leave at different times.
    axes = jaxprs.axes_of(plan)
    shared_leaves = jaxprs.cast(list(shared_leaves), axes)
    needed = program.shared.union(*(arena.shared for arena in static.arenas))
    shared = shared_values(tables, tuple(sorted(needed)), shared_leaves)
    arenas = []
    for arena, inputs in zip(static.arenas, plan.rows, strict=True):
        rows = tuple(shared[shared_id] for shared_id in arena.shared)
        value_class = tables.classes[arena.value_class]
        filled = _fill_arena(rows, inputs, value_class=value_class, capacity=arena.capacity)
        arenas.append(jaxprs.cast(filled, axes))
    arenas = program.run(plan.tables.unpack(), arenas, shared)
    if static.out == "list":
        return _as_list(plan, arenas)
    if static.out == "rows":
        return [_take(arenas[a], rows) for a, rows in zip(static.out_arenas[0], plan.out_rows, strict=True)]
    stacked = static.out_trees[0].unflatten(
        [_take(arenas[a], rows) for a, rows in zip(static.out_arenas[0], plan.out_rows, strict=True)]
    )
    return stacked if plan.ragged is None else replace(plan.ragged, rows=stacked)


def _as_list(plan: Runnable, arenas: Sequence[Any]) -> list[list[Any]]:
    static = plan.static
    wanted: list[list[Any]] = [[] for _ in arenas]
    for places, rows in zip(static.out_arenas, map(_on_host, plan.out_rows), strict=True):
        for arena, row in zip(places, rows, strict=True):
            wanted[arena].append(row)
    taken = [iter(_take(arena, _index(rows))) if rows else iter(()) for arena, rows in zip(arenas, wanted, strict=True)]
    return [[next(taken[arena]) for arena in places] for places in static.out_arenas]


def _on_host(rows: Any) -> Any:
    return rows if compat.is_tracer(rows) else np.asarray(rows)


def _index(rows: list[Any]) -> Any:
    """Returns rows as an index array. Outside of a compiled program its size is rounded up, to limit compilations."""
    if any(map(compat.is_tracer, rows)):
        return jnp.stack(rows)
    return np.array(rows + rows[-1:] * (round_up(len(rows)) - len(rows)))


def shared_values(tables: Tables, shared_ids: tuple[int, ...], leaves: Sequence[Any]) -> dict[int, Any]:
    """Returns the shared values with these ids. One jitted program computes all derived values."""
    values: dict[int, Any] = {}
    computed = []
    for shared_id in shared_ids:
        entry = tables.shared[shared_id]
        if isinstance(entry, SharedResult):
            computed.append(shared_id)
        else:
            values[shared_id] = leaves[entry.index] if isinstance(entry, SharedLeaf) else meshes.cast(entry.value)
    if computed:
        if tables.holds_tracers:
            program, arrays = _shared_program(tables, computed)
        else:
            key = (tables, tuple(computed))
            program, arrays = _shared_programs.get_or_make(key, lambda: _shared_program(tables, computed))
        values.update(zip(computed, program(list(leaves), meshes.cast(arrays)), strict=True))
    return values


def _shared_program(tables: Tables, computed: Sequence[int]) -> tuple[Callable[..., Any], list[Any]]:
    # Operands have smaller ids than their results. Each value is visited once, although many paths may lead to it.
    reached, remaining = set(computed), list(computed)
    while remaining:
        entry = tables.shared[remaining.pop()]
        further = set(entry.operands) - reached if isinstance(entry, SharedResult) else set()
        reached |= further
        remaining += further
    entries = {shared_id: tables.shared[shared_id] for shared_id in sorted(reached)}
    arrays = {shared_id: entry.value for shared_id, entry in entries.items() if isinstance(entry, SharedArray)}

    def jitbatch_shared(leaves: list[Any], constants: list[Any]) -> list[Any]:
        values = dict(zip(arrays, constants, strict=True))
        done: dict[Any, Any] = {}
        for shared_id, entry in entries.items():
            if isinstance(entry, SharedLeaf):
                values[shared_id] = leaves[entry.index]
            elif isinstance(entry, SharedResult):
                call = (entry.cell, entry.operands)
                if call not in done:
                    done[call] = entry.cell(*[values[operand] for operand in entry.operands])
                values[shared_id] = done[call][entry.output]
        return [values[shared_id] for shared_id in computed]

    return jax.jit(jitbatch_shared), list(arrays.values())


@jax.jit
def _take(arena: Any, rows: Any) -> Any:
    return gather(arena, rows)


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
