"""The operands of a node: the shared values in its kind's binding, and the rows that it reads."""

from collections.abc import Callable, Sequence
from typing import Any

from jitbatch.ir.cell import Cell, ReductionCell
from jitbatch.ir.tables import ROW, SharedArray, Tables
from jitbatch.record.graph_builder import SharedRow
from jitbatch.record.rows import Rows, is_small
from jitbatch.record.values import ConstantRow, Value


def bind(
    cell: Cell, references: Sequence[Any], is_passed: Sequence[bool], tables: Tables, as_row: Callable[[Any], Any]
) -> tuple[tuple[int, ...], list[Any]]:
    """The binding of a node's kind, and the rows that the node reads.

    Args:
        cell: the cell of the node.
        references: for each operand a shared id; for a row, any object that is not an integer.
        is_passed: for each operand, whether it is an argument of a call. The others are closed over.
        tables: the tables of the recording.
        as_row: returns the row for a `ConstantRow` or a `SharedRow`.
    """
    is_sum = isinstance(cell, ReductionCell)
    binding: list[int] = []
    reads: list[Any] = []
    for reference, passed in zip(references, is_passed, strict=True):
        if type(reference) is int:
            entry = tables.shared[reference]
            if passed and isinstance(entry, SharedArray) and is_small(entry.value):
                reference = as_row(ConstantRow(entry.value))
            elif is_sum:
                reference = as_row(SharedRow(reference))
            else:
                binding.append(reference)
                continue
        binding.append(ROW)
        reads.append(reference)
    return (ROW,) if is_sum else tuple(binding), reads


def row_of(operand: ConstantRow | SharedRow | Value, rows: Rows) -> int:
    """The row id of an operand that is not an argument: a constant, a shared value, or a closed-over row."""
    if type(operand) is SharedRow:
        return rows.builder.shared_row(operand.shared_id)
    if type(operand) is ConstantRow:
        return rows.builder.constant_row(operand.array)
    row = rows.row(operand)
    assert row is not None
    return row
