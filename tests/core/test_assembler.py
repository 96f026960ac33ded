"""Both cores assemble the same buffers, and the buffers have all nodes in an order in which they can run."""

from typing import Any

import numpy as np
import pytest
from core.cores import CORES

from jitbatch.core import choice
from jitbatch.core.reference.assembler import chunk_counts

OPERANDS, WRITES, WIDTHS = [2, 1, 0], [[0], [1, 0], [1]], [[16, 4], [16, 4], [1]]


def samples(random: Any, count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Nodes that read what earlier rounds of the sample made, zeros and pinned rows."""
    found = []
    for _ in range(count):
        nodes = random.integers(0, 9)
        steps = np.sort(random.integers(0, 6, nodes)).astype(np.int32)
        reads, makes, made = np.full((nodes, 2), -1, np.int32), np.full((nodes, 2), -1, np.int32), 0
        before = 0  # values of earlier steps
        for node, step in enumerate(steps):
            before = made if node and step > steps[node - 1] else before
            reads[node] = random.integers(-3, before, 2)
            for output in range(len(WRITES[step % 3])):
                if random.random() < 0.8:
                    makes[node, output] = made
                    made += 1
        found.append((steps, reads, makes))
    return found


def assembled(core: str, found: Any, size: int) -> tuple[Any, ...]:
    with choice.using(core):
        assembler = choice.make_assembler(OPERANDS, WRITES, WIDTHS, size)
        nodes = [choice.make_nodes(*one) for one in found]
    rows, classes = np.full((20, 32), -1, np.int32), np.full((20, 32), -1, np.int32)
    free = np.array([5, 9], np.int32)
    slots = np.arange(len(found), dtype=np.int32)[::-1].copy()
    buffers = assembler.buffers(nodes, slots, rows, classes, np.array([0, 3, 4], np.int32), free)
    return dict(assembler.rows_needed(nodes)), np.array(buffers), rows, classes, free


@pytest.mark.parametrize("size", [60, 2000])
def test_both_cores_make_the_same_buffers(size: int) -> None:
    random = np.random.default_rng(0)
    for count in (0, 1, 3, 20):
        found = samples(random, count)
        results = [assembled(core, found, size) for core in CORES]
        for one, other in zip(results[0], results[-1], strict=True):
            np.testing.assert_equal(one, other)
        needed, buffers, rows, classes, free = results[0]
        assert {0: free[0] - 5, 1: free[1] - 9} == {0: 0, 1: 0} | needed
        for class_id, first in ((0, 5), (1, 9)):
            own = np.sort(rows[classes == class_id])
            assert len(np.unique(own)) == len(own)
            assert np.all((own >= first) & (own < free[class_id]))
        assert all(buffer[0] > 0 for buffer in buffers)


def test_wide_and_narrow_chunks() -> None:
    widths = (64, 16, 4)
    for count in range(1, 300):
        room = sum(number * width for number, width in zip(chunk_counts(count, widths), widths, strict=True))
        assert count <= room < max(1.5 * count, count + 4)


@pytest.mark.skipif(choice.native is None, reason="needs the compiled core")
def test_the_compiled_core_refuses_what_would_write_elsewhere() -> None:
    native: Any = choice.native
    assembler = native.Assembler(OPERANDS, WRITES, WIDTHS, 100)
    steps, reads, makes = np.zeros(1, np.int32), np.full((1, 2), -1, np.int32), np.array([[3, -1]], np.int32)

    def buffers(nodes: Any, slot: int = 0, columns: int = 8, classes: int = 2) -> Any:
        tables = [np.zeros((2, columns), np.int32) for _ in range(2)]
        return assembler.buffers(
            [nodes], np.array([slot], np.int32), *tables, np.zeros(1, np.int32), np.zeros(classes, np.int32)
        )

    nodes = native.Nodes(steps, reads, makes)
    assert len(buffers(nodes)) == 1
    for wrong, message in (({"slot": 2}, "a slot"), ({"columns": 3}, "room"), ({"classes": 1}, "free rows")):
        with pytest.raises(ValueError, match=message):
            buffers(nodes, **wrong)
    with pytest.raises(ValueError, match="pinned rows have rows"):
        buffers(native.Nodes(steps, reads - 1, makes))
    with pytest.raises(ValueError, match="columns of their types"):
        buffers(native.Nodes(steps, reads[:, :1].copy(), makes))
    with pytest.raises(ValueError, match="a step is a small number"):
        native.Nodes(steps - 1, reads, makes)
    with pytest.raises(ValueError, match="makes values of its sample"):
        native.Nodes(steps, reads, makes - 9)
    with pytest.raises(ValueError, match="fits into a buffer"):
        native.Assembler(OPERANDS, WRITES, WIDTHS, 10)
