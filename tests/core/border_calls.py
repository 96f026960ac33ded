"""Random calls of the compiled core: right arguments of its entry points, with one of them changed.

`python -m core.border_calls SEED COUNT`, in the folder of the tests, makes some of them. Any change raises or returns,
and spoils no later call. An array of the same values that lies elsewhere gives the same result or an error. It is a
process of its own because a crash would end the tests.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from core.test_merging import graph, ints, make_table

from jitbatch.core import choice
from jitbatch.core.layout import ArenaLayout, BlockLayout, PhaseLayout

NUMBERS = (-1, 0, 1, 2, 77, 2**31 - 1, -(2**31), 2**31, 2**63, 10**30, 1.5, "text", None, True)


def entry_points() -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    """Functions of the core, each with right arguments. What they give is comparable after `content`."""
    core: Any = choice.native
    table = make_table("native")
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    samples, formats = [[(0, [rows])], [(0, [rows[:2] + 1])]], [("f", 4, 8)]
    inputs = table.inputs(samples, formats)
    graphs = [graph(table, 3, [[0], [1, 2], [3, 4]]), graph(table, 2, [[0, 1], [2, 2]])]
    start, reads = ints(0, 1, 3), ints(0, 0, 1)
    of_input, class_rows = np.array([[0, 0], [0, 1]], np.int32), np.array([[0], [2]], np.int32)
    part = [(0, [(0, 0, 0)])]
    block = BlockLayout(0, 4, 0, 0, (0,), (), (0,), (), (), (), (0,))
    single = core.TypeTable([(1, 0, False, True)], [], {0: ([(0, [])], [(0, 0)])})
    empty = np.zeros((2, 0), np.int32)
    node = single.graph(ints(0), ints(0, 0), ints(), ints(), ints(0), empty, empty)
    layout = single.layout([PhaseLayout((block,), 0, None)], [ArenaLayout(0, 0, 0, 4)], 1)
    no_inputs = single.inputs([[]], [])

    looped = core.TypeTable([(1, 1, False, True)], [[0]], {0: (part, [(0, 0)])})
    chain = ints(0, 0), ints(0, 1, 2), ints(0, 1), ints(), ints(2), np.zeros((2, 1), np.int32), ints(0, 1)[:, None]
    chain_inputs = looped.inputs([[(0, [rows[:1]])]], formats)

    def schedule() -> Any:
        return single.batch([node], no_inputs, ints(), ints(), ints(), True).schedule()

    def in_loop() -> Any:
        return looped.batch([looped.graph(*chain)], chain_inputs, ints(), ints(), ints(0), True).schedule()

    yield core.TypeTable, [[(1, 1, False, True)], [[0]], {0: (part, [(0, 0)])}]
    yield table.graph, [ints(1, 2), start, reads, ints(), ints(2, 3), of_input, class_rows]
    yield table.inputs, [samples, formats]
    yield table.batch, [graphs, inputs, ints(), ints(), ints(0), True]
    yield core.find_ranks, [ints(0, 0, 1), ints(0, 1, 2), ints(1, 2), ints(0, 1)]
    yield inputs.count, [0]
    yield inputs.write, [0, np.zeros((5, 2), np.float32)]
    yield table.inputs(samples, formats).put, [0, rows]
    yield single.layout, [[PhaseLayout((block,), 0, None)], [ArenaLayout(0, 0, 0, 4)], 1]
    yield (lambda *args: schedule().fill(*args)), [layout, np.zeros(1, np.int32)]
    yield (lambda *args: in_loop().measure(*args)), [[[0]], True]
    yield (lambda *args: in_loop().by_ranks(*args)), [0]
    yield (lambda *args: in_loop().put(*args)), [0, ints(0, 1)]


def content(found: Any) -> Any:
    """What can be compared of a result: its public arrays and numbers."""
    if isinstance(found, np.ndarray):
        return found.tolist()
    names = [name for name in dir(type(found)) if not name.startswith("_")] if not isinstance(found, int) else []
    values = {name: getattr(found, name) for name in names}
    return {name: np.asarray(value).tolist() for name, value in values.items() if isinstance(value, int | np.ndarray)}


def same_values(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """An array of the same values that lies elsewhere."""
    strided = np.repeat(array, 2, axis=0)[::2]
    if rng.random() < 0.5:
        strided.flags.writeable = False
    return strided


def changed(thing: Any, rng: random.Random) -> Any:
    """Another object in the place of an argument or of a part of one."""
    if isinstance(thing, list | tuple | dict) and len(thing) and rng.random() < 0.8:
        keys = list(thing) if isinstance(thing, dict) else list(range(len(thing)))
        chosen = rng.choice(keys)
        if isinstance(thing, dict):
            return {**thing, chosen: changed(thing[chosen], rng)}
        items = list(thing)
        items[chosen] = changed(items[chosen], rng)
        if not hasattr(thing, "_fields") and rng.random() < 0.3:
            items = rng.choice([items[1:], items * 2, items[:-1]])
        return type(thing)(*items) if hasattr(thing, "_fields") else type(thing)(items)
    if isinstance(thing, np.ndarray):
        return changed_array(thing, rng)
    return rng.choice(NUMBERS)


def changed_array(array: np.ndarray, rng: random.Random) -> Any:
    how = rng.randrange(6)
    if how == 0:
        return rng.choice([None, "text", 3, [], array.tolist()])
    if how == 1:
        return array.astype(rng.choice(["f8", "i8", "u1", "O", "U3", "c16", ">i4"]))
    if how == 2:
        return rng.choice([array[:-1], array[..., None], array.ravel(), np.concatenate([array, array])])
    if how == 3:
        return np.array(7, array.dtype)
    other = array.copy()
    if other.size:
        other.flat[rng.randrange(other.size)] = rng.choice((-1, 1, 5, 99, 2**31 - 1, -(2**31)))
    return other


def main(seed: int, count: int) -> None:
    rng = random.Random(seed)
    raised = 0
    for _ in range(count):
        for fun, right in entry_points():
            name = getattr(fun, "__name__", repr(fun))
            wrong = list(right)
            slot = rng.randrange(len(right))
            wrong[slot] = changed(right[slot], rng)
            print(f"{name}: argument {slot} is {wrong[slot]!r}", flush=True)  # what a crash was about
            try:
                content(fun(*wrong))
            except Exception:
                raised += 1
        for (fun, right), (other, again) in zip(entry_points(), entry_points(), strict=True):
            moved = [same_values(part, rng) if isinstance(part, np.ndarray) else part for part in again]
            wanted = content(fun(*right))
            try:
                found = content(other(*moved))
            except (ValueError, TypeError):  # some arrays must be contiguous or writable
                found = content(other(*again))
            assert found == wanted, fun
    print(f"all done, {raised} raised")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
