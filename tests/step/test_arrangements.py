"""What a step learned from its traces: an arrangement for each kind of arguments, and the sizes of its uses."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitbatch import jitbatch
from jitbatch.step.arrangements import MAX_ARRANGEMENTS, Arrangements, kind_of
from jitbatch.step.capacity import SavedRoom, StepCapacity
from jitbatch.step.places import Bound, Parameters, Place
from jitbatch.step.samples import Use

PARAMETERS = Parameters(("scale", "trees", "graphs"), None, frozenset(), False)
TREES, GRAPHS = Place("trees"), Place("graphs")
CAPACITY = jitbatch(lambda scale, xs: scale * sum(xs)).plan(2.0, [(1.0, 2.0)]).capacity


def call(scale: Any, **samples: Any) -> Bound:
    return Bound(PARAMETERS, (), {"scale": scale, **samples})


def use(*places: Place) -> Use:
    function: Any = SimpleNamespace(__module__="module", __qualname__="total")
    arguments: Any = SimpleNamespace(mapped=[SimpleNamespace(value=place) for place in places])
    return Use(function, arguments, None)  # type: ignore[arg-type]


@pytest.fixture
def arrangements() -> Arrangements:
    def kind(call: Bound, places: Iterable[Place]) -> Any:
        without = {place.argument for place in places}
        return kind_of({name: value for name, value in call.arguments.items() if name not in without}, ())

    return Arrangements((), kind)


def test_nothing_is_known_before_the_first_trace(arrangements: Arrangements) -> None:
    assert arrangements.newest is None
    assert arrangements.of(call(1.0, trees=[1])) is arrangements.unknown
    assert not arrangements.holds(arrangements.unknown)


def test_each_kind_of_arguments_has_its_arrangement(arrangements: Arrangements) -> None:
    of_numbers = arrangements.learn({"trees": use(TREES)}, call(1.0, trees=[1]))
    of_arrays = arrangements.learn({"graphs": use(GRAPHS)}, call(np.ones(2), graphs=[1]))
    assert (of_numbers.places, of_arrays.places) == ((TREES,), (GRAPHS,))
    assert arrangements.of(call(5.0, trees=[(1, 2), 3])) is of_numbers  # another number, and other samples
    assert arrangements.of(call(np.zeros(2), graphs=[(4, 5)])) is of_arrays
    assert arrangements.of(call(np.zeros(3))) is of_arrays is arrangements.newest  # of a new kind: the newest
    assert arrangements.holds(of_numbers)


def test_a_new_trace_of_a_kind_replaces_its_arrangement(arrangements: Arrangements) -> None:
    first = arrangements.learn({1: use(TREES)}, call(1.0, trees=[1]))
    both = arrangements.learn({1: use(TREES), 2: use(TREES)}, call(2.0, trees=[(3, 4)]))
    assert both.uses[0] is first.uses[0]  # a use that is met again keeps its rooms
    assert not arrangements.holds(first)
    assert arrangements.of(call(3.0, trees=[5])) is both


def test_the_oldest_arrangement_is_forgotten(arrangements: Arrangements) -> None:
    oldest = arrangements.learn({1: use(TREES)}, call(1.0, trees=[1]))
    for size in range(MAX_ARRANGEMENTS):
        assert arrangements.holds(oldest)
        arrangements.learn({1: use(TREES)}, call(np.ones(size), trees=[1]))
    assert not arrangements.holds(oldest)


def test_uses_of_one_function_have_names_of_their_own(arrangements: Arrangements) -> None:
    learned = arrangements.learn({1: use(TREES), 2: use(TREES), 3: use(GRAPHS)}, call(1.0, trees=[1], graphs=[2]))
    assert [found.name for found in learned.uses] == [
        "module.total(trees)",
        "module.total(trees) #2",
        "module.total(graphs)",
    ]


def test_saved_sizes_belong_to_uses_by_name(arrangements: Arrangements) -> None:
    saved = StepCapacity(tuple(SavedRoom(f"module.total({name})", 4, 10, CAPACITY) for name in ("trees", "graphs")))
    assert arrangements.restore(saved)
    (found,) = arrangements.learn({1: use(TREES)}, call(1.0, trees=[1])).uses
    assert [room.nodes for room in found.saved[4]] == [10]
    assert [room.use for room in arrangements.capacity().rooms] == ["module.total(graphs)"]  # not met: still saved
    assert not arrangements.restore(StepCapacity())
    assert arrangements.capacity().rooms
    assert arrangements.rooms_info() == (0, 0, 0, 0)


def test_kinds_are_static_values_and_the_types_of_all_others() -> None:
    assert kind_of({"x": 1.0, "n": 2}, ("n",)) == kind_of({"x": 3.0, "n": 2}, ("n",))
    assert kind_of({"x": 1.0, "n": 2}, ("n",)) != kind_of({"x": 1.0, "n": 3}, ("n",))
    assert kind_of({"x": 1.0}, ()) != kind_of({"x": 1}, ())
    assert kind_of({"x": True}, ()) != kind_of({"x": False}, ())
    assert kind_of({"x": np.ones(2)}, ()) == kind_of({"x": np.zeros(2)}, ()) != kind_of({"x": np.ones(3)}, ())
    assert kind_of({"x": (np.ones(2), "a")}, ()) != kind_of({"x": (np.ones(2), "b")}, ())
