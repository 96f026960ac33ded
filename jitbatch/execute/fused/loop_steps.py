"""The chunks of a loop, read back from its tables (see `execute/steps`)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jitbatch.execute.fused.shapes import LoopShape
from jitbatch.execute.steps import Read, Step, Write, operand_reads
from jitbatch.util.csr import ranges


def steps_of_loop(phase: int, shape: LoopShape, table: Any) -> Iterator[Step]:
    """Yields the chunks of a loop in the order of execution."""
    ends, total = np.asarray(table["ends"]), np.asarray(table["total"])
    for turn in range(int(shape.round_count(table))):
        for block_id, block in enumerate(shape.blocks):
            begin = int(ends[turn, block_id, 0])
            end = int(ends[turn + 1, block_id, 0]) if turn + 1 < len(ends) else shape.margin + int(total[block_id])
            rows_of_width = np.diff(ends[turn, block_id])[::-1]
            for width, rows in reversed(list(zip(block.widths, rows_of_width.tolist(), strict=False))):
                for _ in range(rows // width):
                    count = min(width, max(end - begin, 0))
                    yield _chunk_step(phase, turn, shape, block_id, table["operands"][block_id], begin, count, width)
                    begin += count


def _chunk_step(
    phase: int, turn: int, shape: LoopShape, block_id: int, operands: Any, begin: int, count: int, width: int
) -> Step:  # fmt: skip
    block, nodes = shape.blocks[block_id], slice(begin, begin + count)
    if block.kind.is_variadic:
        first, arity = (np.asarray(operands[name])[nodes] for name in ("first", "count"))
        terms = np.asarray(operands["terms"])[ranges(first, arity)]
        reads = (Read(shape.reads[block_id][0], terms, np.repeat(np.arange(count), arity)),)
    else:
        reads = operand_reads(shape.reads[block_id], np.asarray(operands)[nodes].T)
    writes = [
        Write(arena, start + np.arange(begin, begin + count))
        for arena, start in zip(shape.writes[block_id], block.starts, strict=True)
    ]
    return Step(block.kind, phase, turn, count, width, tuple(writes), reads)
