"""The memory of a fused program's phases (see `execute/memory`)."""

from collections.abc import Sequence
from typing import Any

from jitbatch.execute.fused.shapes import LoopShape
from jitbatch.execute.memory import Need, ProgramMemory, nbytes, of_calls, work_of
from jitbatch.execute.weight_uses import cut_cell


def memory_of_phases(phases: Sequence[Any], arena_sizes: Sequence[int], classes: Sequence[Any]) -> ProgramMemory:
    needs = tuple(
        _of_loop(phase, classes) if isinstance(phase, LoopShape) else of_calls(phase.block.kind, phase.block.capacity)
        for phase in phases
    )
    return ProgramMemory(needs, sum(size * _versions(arena, phases) for arena, size in enumerate(arena_sizes)))


def _versions(arena: int, phases: Sequence[Any]) -> int:
    """Returns the number of copies of an arena for the backward pass: one, plus one per loop with a later write."""
    writes = [
        {arena_id for arena_ids in phase.writes for arena_id in arena_ids}
        if isinstance(phase, LoopShape)
        else set(phase.writes)
        for phase in phases
    ]
    again = [any(arena in later for later in writes[phase_id + 1 :]) for phase_id in range(len(phases))]
    return 1 + sum(a for a, phase in zip(again, phases, strict=True) if isinstance(phase, LoopShape))


def _of_loop(shape: LoopShape, classes: Sequence[Any]) -> Need:
    """Returns the need of a loop. Its cotangent rows are freed before the gradients of shared operands are computed."""
    saved = edges = tapped = work = contracted = 0
    for block in shape.blocks:
        cut = cut_cell(block.kind.cell, block.kind.vmapped)
        rows = block.capacity + 2 * shape.margin
        # The cotangents of a weight use's outputs replace the saved outputs.
        taps = [aval for aval, saved_id in zip(cut.tap_avals, cut.saved_ids, strict=True) if saved_id is None]
        taps = sum(map(nbytes, taps)) + sum(nbytes(var.aval) for var in cut.stored_rows)
        saved += rows * sum(map(nbytes, cut.saved_avals))
        tapped += rows * taps
        work = max(work, block.widths[-1] * work_of(block.kind))
        contracted += rows * sum(nbytes(var.aval) for var in dict.fromkeys(v for j in cut.tapped for v in j.rows))
    for value_class, rows, pairs in zip(classes, shape.edge_rows, shape.pair_rows, strict=True):
        edges += (rows + pairs) * nbytes(value_class)
    return Need(forward=work, saved=saved, backward=tapped + max(edges + work, contracted))
