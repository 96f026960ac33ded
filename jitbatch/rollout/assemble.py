"""From the segments of a sync to buffers for the program: rows for what nodes make, and chunks of nodes of one type."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from jitbatch.rollout.lowered import Lowered
from jitbatch.rollout.program import Program


class Nodes:
    """The nodes of all samples in a sync, in the order of execution.

    Attributes:
        slots: int [nodes]; the slot of the sample of each node.
        reads, makes: as in `Lowered`.
        steps: for each step its round, its type, and the range of its nodes.
    """

    def __init__(self, segments: Sequence[Lowered], slots: np.ndarray):
        step = np.concatenate([one.steps for one in segments])
        order = np.argsort(step, kind="stable")
        step = step[order]
        self.slots = np.repeat(slots, [len(one.steps) for one in segments])[order]
        self.reads = np.concatenate([one.reads for one in segments])[order]
        self.makes = np.concatenate([one.makes for one in segments])[order]
        bounds = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(step)] if len(step) else [0]
        types = len(segments[0].types.types)
        self.steps = [(*divmod(int(step[begin]), types), begin, end) for begin, end in itertools.pairwise(bounds)]


@lru_cache(maxsize=4096)
def chunk_widths(count: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """How many chunks of each width run so many nodes. At most a quarter of a wide chunk is padding.

    >>> chunk_widths(40, (64, 16, 4)), chunk_widths(60, (64, 16, 4)), chunk_widths(1, (64, 16, 4))
    ((0, 2, 2), (1, 0, 0), (0, 0, 1))
    """
    numbers = []
    for width in widths:
        number = count // width
        rest = count - number * width
        is_last = width == widths[-1]
        number += rest > 0 and (is_last or 4 * rest > 3 * width)
        numbers.append(number)
        count = max(count - number * width, 0)
    return tuple(numbers)


def buffers(
    nodes: Nodes, program: Program, take: Callable[[int, int], int], table: np.ndarray, classes: np.ndarray,
    pinned: np.ndarray,
) -> Iterator[np.ndarray]:  # fmt: skip
    """The buffers that run some nodes.

    Args:
        nodes: the nodes.
        program: the program that will run them.
        take: takes rows of a value class: from the class and how many to the first of them.
        table: int32 [slots, values]; the row of each value of each sample, which is filled in.
        classes: int16 [slots, values]; its value class, which is filled in, too.
        pinned: int32; the rows of pinned rows, the row of zeros before them.
    """
    made = np.empty_like(nodes.makes)
    chunks = list(_chunks(nodes, program, take, made))
    is_read = nodes.makes >= 0
    places = np.broadcast_to(nodes.slots[:, None], made.shape)[is_read], nodes.makes[is_read]
    table[places] = made[is_read]
    types = [type_id for _, type_id, begin, end in nodes.steps for _ in range(end - begin)]
    classes[places] = program.write_classes[types][is_read]
    # A value above -1 is one of the sample; all others are pinned rows, of which `ZERO` is the first.
    own = table[nodes.slots[:, None], nodes.reads]
    rows = np.where(nodes.reads >= 0, own, pinned[-1 - np.minimum(nodes.reads, -1)])
    buffer, head, at, here, rounds = np.empty(0, np.int32), 0, 0, -1, 0
    for in_round, type_id, place, width, begin, end, starts in chunks:
        operands = len(program.types.reads[type_id])
        length = operands * width + len(starts)
        is_new = in_round != here
        if len(buffer) < at + length + is_new * program.heads[-1]:
            if rounds:
                buffer[0] = rounds
                yield buffer
            buffer, at, rounds, is_new = np.zeros(program.size, np.int32), 1, 0, True
        if is_new:
            head, here, rounds = at, in_round, rounds + 1
            at += program.heads[-1]
        buffer[head + program.heads[type_id] + place] += 1
        piece = buffer[at : at + operands * width].reshape(operands, width)
        piece[:, : end - begin] = rows[begin:end, :operands].T
        piece[:, end - begin :] = piece[:, end - begin - 1 : end - begin]
        buffer[at + operands * width : at + length] = starts
        at += length
    if rounds:
        buffer[0] = rounds
        yield buffer


def _chunks(
    nodes: Nodes, program: Program, take: Callable[[int, int], int], made: np.ndarray
) -> Iterator[tuple[int, int, int, int, int, int, list[int]]]:
    """For each chunk its round, its type, which of its widths it has and that, its nodes, and where its outputs begin.

    A chunk writes as many rows as it is wide. So its outputs get rows in the order in which they are written: what is
    written too much is free, or is written again. `made` is filled in: the rows of the outputs of each node.
    """
    for in_round, type_id, begin, last in nodes.steps:
        widths, writes = program.widths[type_id], program.types.writes[type_id]
        for place, number in enumerate(chunk_widths(last - begin, widths)):
            width = widths[place]
            for _ in range(number):
                end = min(begin + width, last)
                starts = [take(value_class, end - begin) for value_class in writes]
                for output, start in enumerate(starts):
                    made[begin:end, output] = np.arange(start, start + end - begin)
                yield in_round, type_id, place, width, begin, end, starts
                begin = end
