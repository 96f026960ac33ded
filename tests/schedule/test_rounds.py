"""Phases: strongly connected components in an order of reading, and the rounds of a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitbatch.batch.components import find_phases
from jitbatch.batch.problem import Problem
from jitbatch.schedule.policies import POLICIES
from jitbatch.schedule.rounds import rounds_of


def components(types: int, edges: Any) -> set[tuple[tuple[int, ...], bool]]:
    """The oracle: types that reach each other, and whether they reach themselves."""
    reaches = np.zeros((types, types), bool)
    for read, reader in edges:
        reaches[read, reader] = True
    for middle in range(types):
        reaches |= reaches[:, [middle]] & reaches[[middle], :]
    mutual = reaches & reaches.T
    return {
        (tuple(sorted({t, *np.flatnonzero(mutual[t]).tolist()})), bool(reaches[t, t])) for t in range(types)
    }  # fmt: skip


def check(types: int, edges: Any) -> list[tuple[tuple[int, ...], bool]]:
    phases = find_phases(types, edges)
    assert len(phases) == len(set(phases))
    assert {(tuple(sorted(members)), is_loop) for members, is_loop in phases} == components(types, edges)
    number = {t: position for position, (members, _) in enumerate(phases) for t in members}
    assert all(number[read] <= number[reader] for read, reader in edges)
    return phases


@pytest.mark.parametrize(
    ("types", "edges", "want"),
    [
        (0, [], []),
        (1, [], [((0,), False)]),
        (1, [(0, 0)], [((0,), True)]),
        (2, [(1, 0)], [((1,), False), ((0,), False)]),
        (2, [(0, 1), (1, 0)], [((0, 1), True)]),
        # an embedding, two cells that read each other, a loss
        (4, [(3, 1), (1, 2), (2, 1), (2, 0)], [((3,), False), ((1, 2), True), ((0,), False)]),
        # two loops, one after the other
        (3, [(2, 2), (2, 0), (0, 1), (1, 0)], [((2,), True), ((0, 1), True)]),
        # a cycle with a chord
        (4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], [((0, 1, 2, 3), True)]),
    ],
)
def test_components_of_hand_made_graphs(types: int, edges: Any, want: Any) -> None:
    assert check(types, edges) == want


@st.composite
def type_graphs(draw: Any) -> tuple[int, list[tuple[int, int]]]:
    types = draw(st.integers(1, 9))
    number = st.integers(0, types - 1)
    return types, draw(st.lists(st.tuples(number, number), max_size=2 * types))


@settings(deadline=None, max_examples=200)
@given(type_graphs(), st.randoms(use_true_random=False))
def test_components_of_any_graph(graph: tuple[int, list[tuple[int, int]]], random: Any) -> None:
    types, edges = graph
    phases = check(types, edges)
    shuffled = random.sample(edges, len(edges))
    assert find_phases(types, shuffled + edges) == phases
    assert find_phases(types, set(edges)) == phases


def test_a_long_chain_of_types_needs_no_recursion() -> None:
    edges = [(t, t + 1) for t in range(4999)]
    assert find_phases(5000, edges) == [((t,), False) for t in range(5000)]
    assert find_phases(5000, [*edges, (4999, 0)]) == [(tuple(range(5000)), True)]


# --- Rounds


@st.composite
def problems(draw: Any) -> tuple[Problem, np.ndarray, list[int]]:
    """A batch in which nodes read earlier nodes, and the types of a part of it."""
    nodes, types = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    kinds = [draw(st.integers(0, types - 1)) for _ in range(nodes)]
    reads = [draw(st.lists(st.integers(0, node - 1), max_size=3)) if node else [] for node in range(nodes)]
    level: list[int] = []
    for own in reads:
        level.append(1 + max((level[other] for other in own), default=-1))
    reader = [node for node, own in enumerate(reads) for _ in own]
    problem = Problem(*(np.array(a, np.int64) for a in (kinds, level, reader, [o for own in reads for o in own])))
    inside = sorted(draw(st.sets(st.integers(0, types - 1), min_size=1)))
    members = np.array([node for node in draw(st.permutations(range(nodes))) if kinds[node] in inside], np.int64)
    return problem, members, inside


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=100)
@given(problems())
def test_rounds(policy: str, drawn: tuple[Problem, np.ndarray, list[int]]) -> None:
    """A node runs after what it reads in the loop: in an earlier round, or in the same and of an earlier type."""
    problem, members, types = drawn
    rounds = rounds_of(problem, members, types, POLICIES[policy])
    assert rounds.shape == members.shape
    when = {int(node): (int(r), types.index(int(problem.type[node]))) for node, r in zip(members, rounds, strict=True)}
    for reader, read in zip(problem.reader.tolist(), problem.read.tolist(), strict=True):
        if reader in when and read in when:
            assert when[read] < when[reader]
    if len(rounds):
        assert sorted(set(rounds.tolist())) == list(range(rounds.max() + 1))


def test_rounds_of_a_chain_and_of_types_that_alternate() -> None:
    def rounds(kinds: list[int], types: list[int]) -> list[int]:
        nodes = np.arange(len(kinds))
        problem = Problem(np.array(kinds), nodes, nodes[1:], nodes[:-1])
        return rounds_of(problem, nodes, types, POLICIES["depth"]).tolist()

    assert rounds([0, 0, 0], [0]) == [0, 1, 2]
    assert rounds([0, 1, 0, 1], [0, 1]) == [0, 0, 1, 1]
    assert rounds([0, 1, 0, 1], [1, 0]) == [0, 1, 1, 2]


def test_a_loop_of_types_that_the_batch_lacks() -> None:
    none = np.zeros(0, np.int64)
    problem = Problem(np.array([0, 0]), np.array([0, 0]), none, none)
    for types in ((1,), (1, 2)):
        assert rounds_of(problem, none, types, POLICIES["auto"]).tolist() == []
    assert rounds_of(problem, np.array([0, 1]), (0, 3), POLICIES["auto"]).tolist() == [0, 0]
