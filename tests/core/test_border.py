"""What comes into the core from Python is checked: it raises, and never crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.cores import CORES
from core.test_merging import batch_of, graph, ints, make_table

from jitbatch.core.choice import make_type_table, using
from jitbatch.core.layout import ArenaLayout, BlockLayout, PhaseLayout

pytestmark = pytest.mark.skipif("native" not in CORES, reason="there is no compiled core")
WRONG = (ValueError, TypeError, IndexError, BufferError)


def table() -> Any:
    return make_table("native")


def test_recipes_of_types_that_do_not_exist() -> None:
    with using("native"):
        for recipe in (
            ([(3, [])], []),
            ([(0, [(2, 0, 0)])], []),
            ([(0, [])], [(1, 0)]),
            ([(0, [])], [(0, 5)]),
            ([(1, [(7, 0, 0)])], []),
            ([(1, [(0, -4, 0)])], []),
        ):
            with pytest.raises(ValueError, match=r"part|type|operand|recipe"):
                make_type_table([(1, 0, False, True), (1, 1, False, True)], [], {0: recipe})
        with pytest.raises(ValueError, match="loop"):
            make_type_table([(1, 0, False, True)], [[1]], {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": ints(9)},
        {"kind": ints(-1)},
        {"operand_start": ints(0)},
        {"operand_start": ints(0, 100)},
        {"operand_start": ints(5, 1)},
        {"operands": ints(-1)},
        {"operands": ints(77)},
        {"shared_rows": ints(-3)},
        {"outputs": ints(50)},
        {"outputs": ints(-1)},
        {"of_input": np.array([[4], [0]], np.int32)},
        {"of_input": np.array([[0], [3]], np.int32)},
        {"of_input": np.zeros((3, 1), np.int32)},
        {"class_rows": np.array([[0], [-1]], np.int32)},
        {"kind": np.zeros((1, 1), np.int32)},
        {"kind": "text"},
        {"kind": None},
        {"operands": np.array([None])},
    ],
    ids=str,
)
def test_graphs_that_are_none(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "kind": ints(1),
        "operand_start": ints(0, 1),
        "operands": ints(0),
        "shared_rows": ints(),
        "outputs": ints(1),
        "of_input": np.zeros((2, 1), np.int32),
        "class_rows": np.array([[0], [1]], np.int32),
    }
    assert table().graph(*right.values()).node_count == 1
    with pytest.raises(WRONG):
        table().graph(*{**right, **wrong}.values())


def test_readonly_and_strided_arrays_are_read() -> None:
    kind, operands = np.zeros(4, np.int32), np.zeros((2, 2), np.int32)
    kind[::2] = 1
    kind.flags.writeable = False
    starts, counts = np.arange(3, dtype=np.int64), np.ones((2, 1)) * [[0], [1]]
    graph = table().graph(kind[::2], starts, operands[:, 0], ints(), ints(1), np.zeros((2, 1)), counts)
    assert graph.node_count == 2


@pytest.mark.parametrize(
    "samples", [[None], [[None]], [[(0,)]], [[("x", [])]], [[(5, [])]], [[(-1, [])]], None, [[(0, None)]]], ids=str
)
def test_inputs_that_are_none(samples: Any) -> None:
    with pytest.raises((*WRONG, RuntimeError)):
        table().inputs(samples, [("f", 4, 4)])


def test_arrays_that_the_core_does_not_read_are_left_to_python() -> None:
    wide = np.zeros((4, 4), np.float32)
    for leaf in (
        1.0,
        np.float32(1),
        np.zeros(3, int),
        wide[:, 0],
        np.zeros(3, ">f4"),
        "text",
        None,
        np.zeros(3, "M8[s]"),
    ):
        inputs = table().inputs([[(0, [np.zeros(1, np.float32), leaf])]], [("f", 4, 4)])
        assert inputs.unread == [0], leaf
        with pytest.raises(ValueError, match="were not put"):
            table_batch(inputs)


def test_arrays_of_twice_the_bytes_are_read_as_numpy_converts_them() -> None:
    for narrow, wide in (("f4", "f8"), ("i4", "i8"), ("u4", "u8"), ("c8", "c16")):
        dtype = np.dtype(narrow)
        values = np.array([3, 0, 7], wide) / (3 if dtype.kind in "fc" else 1)
        inputs = table().inputs([[(0, [values.astype(wide)])]], [(dtype.kind, dtype.itemsize, dtype.itemsize)])
        assert inputs.unread == []


def table_batch(inputs: Any) -> Any:
    own = table()
    return own.batch([graph(own, 2, [[0], [1]])], inputs, ints(), ints(), ints(0), True)


def test_samples_with_other_rows_than_their_graphs_read() -> None:
    for rows in (1, 3):
        with pytest.raises(ValueError, match="as many rows"):
            table_batch(table().inputs([[(0, [np.zeros(rows, np.float32)])]], [("f", 4, 4)]))
    with pytest.raises(ValueError, match="whole rows"):
        table_batch(table().inputs([[(0, [np.zeros(3, np.float32)])]], [("f", 4, 8)]))


def test_graphs_of_other_types() -> None:
    inputs = table().inputs([[(0, [np.zeros(2, np.float32)])]], [("f", 4, 4)])
    with pytest.raises(ValueError, match="types of the batch"):
        table().batch([graph(table(), 2, [])], inputs, ints(), ints(), ints(0), True)
    with pytest.raises(WRONG):
        table().batch([None], inputs, ints(), ints(), ints(0), True)


def test_rows_are_written_where_there_is_room() -> None:
    _, inputs = batch_of(table(), [(ints(1, 2, 3), [])])
    for out in (np.zeros(2, np.int32), b"12345678", "text"):
        with pytest.raises(WRONG):
            inputs.write(0, out)
    readonly = np.zeros(3, np.int32)
    readonly.flags.writeable = False
    with pytest.raises(WRONG):
        inputs.write(0, readonly)
    with pytest.raises(WRONG):
        inputs.write(7, np.zeros(3, np.int32))


def block(**changes: Any) -> BlockLayout:
    right = BlockLayout(0, 4, 0, 0, (0,), (), (0,), (), (), (), (0,))
    return right._replace(**changes)


def test_layouts_that_lie_outside() -> None:
    with using("native"):
        own = make_type_table([(1, 0, False, True)], [], {0: ([(0, [])], [(0, 0)])})
    arenas = [ArenaLayout(0, 0, 0, 4)]
    assert own.layout([PhaseLayout((block(),), 0, None)], arenas, 1).size == 1
    for wrong in ({"starts": (1,)}, {"starts": (-1,)}, {"capacity": 5}, {"writes": (1,)}, {"type": 1}, {"tables": ()}):
        with pytest.raises(ValueError, match=r"block|arena|type|size"):
            own.layout([PhaseLayout((block(**wrong),), 0, None)], arenas, 1)
    for total, size in ((1, 1), (-1, 1), (0, 0)):
        with pytest.raises(ValueError, match="table"):
            own.layout([PhaseLayout((block(),), total, None)], arenas, size)
    with pytest.raises(ValueError, match="in some phase"):
        own.layout([], arenas, 1)
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        own.layout([None], arenas, 1)


def test_tables_of_another_size_or_dtype() -> None:
    with using("native"):
        own = make_type_table([(1, 0, False, True)], [], {0: ([(0, [])], [(0, 0)])})
    layout = own.layout([PhaseLayout((block(),), 0, None)], [ArenaLayout(0, 0, 0, 4)], 1)
    empty = np.zeros((2, 0), np.int32)
    made = own.graph(ints(0), ints(0, 0), ints(), ints(), ints(0), empty, empty)
    schedule = own.batch([made], own.inputs([[]], []), ints(), ints(), ints(), True).schedule()
    assert schedule.fill(layout, np.zeros(1, np.int32)).steps == 1
    for tables in (np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros((1, 1), np.int32), None):
        with pytest.raises(WRONG):
            schedule.fill(layout, tables)
    readonly = np.zeros(1, np.int32)
    readonly.flags.writeable = False
    with pytest.raises(WRONG):
        schedule.fill(layout, readonly)
    for loop in (-1, 0):
        with pytest.raises(ValueError, match="loop"):
            schedule.by_ranks(loop)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_random_wrong_arguments_raise_or_return(seed: int) -> None:
    """In a process of its own, which would crash alone."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-X", "faulthandler", "-m", "core.border_calls", str(seed), "150"]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=False, timeout=600)
    assert "all done" in done.stdout, (done.stdout[-2000:], done.stderr[-2000:])
    assert done.returncode == 0
