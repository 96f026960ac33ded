"""Assembling a sync of samples in flight: rows for values, and buffers that list chunks of nodes of one type."""

from collections.abc import Sequence

import numpy as np


class Nodes:
    """The nodes of a sample between two syncs.

    Args:
        steps: int32 [nodes]; for each node its round times the number of types, plus its type.
        reads: int32 [nodes, operands]; the values that it reads. -1 stands for the row of zeros, -1 - k for the pinned
            row at index k.
        makes: int32 [nodes, outputs]; the values that it makes, -1 where an output has no value.
    """

    def __init__(self, steps: np.ndarray, reads: np.ndarray, makes: np.ndarray):
        self.steps, self.reads, self.makes = steps.tolist(), reads.tolist(), makes.tolist()


class Assembler:
    """Lists the nodes of a sync for a program.

    Args:
        operands: for each type, the number of rows that a node reads.
        writes: for each type, the value classes of its outputs.
        widths: for each type, the widths of its chunks, the largest first.
        size: the length of a buffer.
    """

    def __init__(
        self, operands: Sequence[int], writes: Sequence[Sequence[int]], widths: Sequence[Sequence[int]], size: int
    ):
        self._operands, self._writes, self._widths, self._size = operands, writes, widths, size
        self._heads = [sum(map(len, widths[:place])) for place in range(len(widths) + 1)]

    def rows_needed(self, samples: Sequence[Nodes]) -> dict[int, int]:
        """How many rows the nodes of all samples write, by value class."""
        needed: dict[int, int] = {}
        for nodes in samples:
            for step in nodes.steps:
                for class_id in self._writes[step % len(self._writes)]:
                    needed[class_id] = needed.get(class_id, 0) + 1
        return needed

    def buffers(
        self, samples: Sequence[Nodes], slots: np.ndarray, rows: np.ndarray, classes: np.ndarray, pinned: np.ndarray,
        free: np.ndarray,
    ) -> list[np.ndarray]:  # fmt: skip
        """The buffers that run the nodes of all samples.

        A buffer has its number of rounds first. A round is the number of chunks of each type and width, and then the
        chunks in that order: the rows of the operands, operand after operand, and the first row of each output. The
        outputs of a chunk lie one after the other, in the order in which chunks run. So a chunk writes contiguous rows,
        and what it writes beyond its nodes is free, or is written again.

        Args:
            samples: the nodes of each sample.
            slots: int32 [samples]; the slot of each sample.
            rows: int32 [slots, values]; the row of each value, which is filled in.
            classes: int32 [slots, values]; its value class, which is filled in, too.
            pinned: int32 [1 + pinned rows]; the rows of zeros and of the pinned rows.
            free: int32 [classes]; the first free row of each value class, which is moved on.
        """
        types = len(self._widths)
        steps: dict[int, list[tuple[int, Nodes, int]]] = {}
        for slot, nodes in zip(slots.tolist(), samples, strict=True):
            for node, step in enumerate(nodes.steps):
                steps.setdefault(step, []).append((slot, nodes, node))
        buffers: list[np.ndarray] = []
        head, at, rounds, here = 0, self._size, 0, -1
        for step in sorted(steps):
            in_round, type_id = divmod(step, types)
            begin, entries = 0, steps[step]
            for place, count in enumerate(chunk_counts(len(entries), self._widths[type_id])):
                width = self._widths[type_id][place]
                for _ in range(count):
                    chunk = entries[begin : begin + width]
                    begin += width
                    starts = self._make(type_id, chunk, rows, classes, free)
                    is_new = in_round != here
                    length = self._operands[type_id] * width + len(starts)
                    if at + length + is_new * self._heads[-1] > self._size:
                        buffers.append(np.zeros(self._size, np.int32))
                        at, rounds, is_new = 1, 0, True
                    if is_new:
                        head, here, rounds = at, in_round, rounds + 1
                        buffers[-1][0] = rounds
                        at += self._heads[-1]
                    buffers[-1][head + self._heads[type_id] + place] += 1
                    for operand in range(self._operands[type_id]):
                        values = [(slot, nodes.reads[node][operand]) for slot, nodes, node in chunk]
                        read = [int(rows[slot, value] if value >= 0 else pinned[-1 - value]) for slot, value in values]
                        buffers[-1][at : at + width] = read + read[-1:] * (width - len(read))
                        at += width
                    buffers[-1][at : at + len(starts)] = starts
                    at += len(starts)
        return buffers

    def _make(
        self, type_id: int, chunk: Sequence[tuple[int, Nodes, int]], rows: np.ndarray, classes: np.ndarray,
        free: np.ndarray,
    ) -> list[int]:  # fmt: skip
        """Give rows to the outputs of a chunk; where those of each output begin."""
        starts = []
        for output, class_id in enumerate(self._writes[type_id]):
            starts.append(int(free[class_id]))
            free[class_id] += len(chunk)
            for row, (slot, nodes, node) in enumerate(chunk, starts[-1]):
                value = nodes.makes[node][output]
                if value >= 0:
                    rows[slot, value], classes[slot, value] = row, class_id
        return starts


def chunk_counts(count: int, widths: Sequence[int]) -> list[int]:
    """How many chunks of each width run so many nodes. At most a quarter of a wide chunk is padding.

    >>> chunk_counts(40, (64, 16, 4)), chunk_counts(60, (64, 16, 4)), chunk_counts(1, (64, 16, 4))
    ([0, 2, 2], [1, 0, 0], [0, 0, 1])
    """
    counts = []
    for place, width in enumerate(widths):
        chunks, rest = divmod(count, width)
        chunks += rest > 0 and (place == len(widths) - 1 or 4 * rest > 3 * width)
        counts.append(chunks)
        count = max(count - chunks * width, 0)
    return counts
