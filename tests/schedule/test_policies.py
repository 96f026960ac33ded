"""Schedules: known step counts by hand, and laws that every policy keeps on random graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import assert_same, gradients, named

from jitbatch import jitbatch
from jitbatch.batch.problem import Problem
from jitbatch.schedule.policies import POLICIES, Policy, agenda, depth, frontier, ranks, register
from jitbatch.util.errors import ArgumentError, VerifyError

laws = settings(max_examples=100, deadline=None, derandomize=True, database=None)
every_policy = pytest.mark.parametrize("policy", POLICIES)


def problem(types: Sequence[int], reads: Sequence[Sequence[int]]) -> Problem:
    """Nodes of these types, each with the earlier nodes that it reads."""
    levels: list[int] = []
    for read in reads:
        levels.append(max((levels[other] + 1 for other in read), default=0))
    edges = [(node, other) for node, read in enumerate(reads) for other in read]
    reader, read_from = np.array(edges, int).reshape(-1, 2).T
    return Problem(np.array(types, int), np.array(levels, int), reader, read_from)


def steps(schedule: np.ndarray) -> int:
    return int(schedule.max(initial=-1)) + 1


def chain(types: Sequence[int], first: int = 0) -> tuple[list[int], list[list[int]]]:
    return list(types), [[first + i - 1] if i else [] for i in range(len(types))]


def chains(*all_types: Sequence[int]) -> Problem:
    types: list[int] = []
    reads: list[list[int]] = []
    for one in all_types:
        own_types, own_reads = chain(one, len(types))
        types += own_types
        reads += own_reads
    return problem(types, reads)


# name: problem, steps by depth, steps by agenda
KNOWN: dict[str, tuple[Problem, int, int]] = {
    "nothing": (problem([], []), 0, 0),
    "one node": (problem([0], [[]]), 1, 1),
    "independent nodes of one type": (problem([0] * 5, [[]] * 5), 1, 1),
    "independent nodes of three types": (problem([0, 1, 2, 0], [[]] * 4), 3, 3),
    "chains of one type": (chains([0, 0, 0], [0, 0]), 3, 3),
    "a balanced tree": (problem([0, 0, 0, 0, 1, 1, 1], [[], [], [], [], [0, 1], [2, 3], [4, 5]]), 3, 3),
    # The outputs (type 1) of chains of different lengths wait for each other by agenda, not by depth.
    "outputs at different levels": (chains([0, 1], [0, 0, 1], [0, 0, 0, 1]), 6, 4),
    # By depth, both chains alternate out of phase and share nothing; by agenda one waits a step.
    "alternating out of phase": (chains([0, 1, 0, 1], [1, 0, 1, 0]), 8, 5),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_step_counts(name: str) -> None:
    known, by_depth, by_agenda = KNOWN[name]
    for assign in (*(policy.assign for policy in POLICIES.values()), frontier):
        known.verify(assign(known))
    assert steps(depth(known)) == by_depth
    assert steps(agenda(known)) == by_agenda
    assert steps(ranks(known)) == min(by_depth, by_agenda)


# What depth and agenda need more steps for: problem, steps by depth, by agenda, by layers, at least
BEYOND: dict[str, tuple[Problem, int, int, int, int]] = {
    "one waits for another of its type": (chains([0], [2, 0, 2]), 4, 4, 3, 3),
    "one side is ahead": (chains([2, 0, 1, 2], [0, 1]), 6, 6, 4, 4),
    "three sides": (chains([2, 0, 0, 2], [2, 1, 2], [0, 0, 1, 2]), 8, 8, 5, 5),
    # Here no order of layers exists: the bound is not reached, but there is less to do than by the others.
    "types in a circle": (chains([0, 2, 1], [1, 0]), 5, 5, 4, 3),
    "types in a larger circle": (chains([2, 1, 0], [0, 0, 2, 1]), 7, 7, 5, 4),
}


@pytest.mark.parametrize("name", BEYOND)
def test_steps_of_layers(name: str) -> None:
    known, by_depth, by_agenda, by_layers, bound = BEYOND[name]
    got = steps(depth(known)), steps(agenda(known)), steps(ranks(known)), known.bound
    assert got == (by_depth, by_agenda, by_layers, bound)


def fewest(known: Problem) -> int:
    """The fewest steps of all schedules, by search."""
    size = len(known.type)
    needs = [{int(r) for r in known.read[known.reader == node]} for node in range(size)]

    @cache
    def left(done: frozenset[int]) -> int:
        ready = [n for n in range(size) if n not in done and needs[n] <= done]
        if not ready:
            return 0
        kinds = {int(known.type[n]) for n in ready}
        return 1 + min(left(done | {n for n in ready if known.type[n] == kind}) for kind in kinds)

    return left(frozenset())


def test_depth_runs_level_by_level() -> None:
    known = chains([0, 1, 0], [1, 1])
    assert depth(known).tolist() == [0, 2, 3, 1, 2]


def test_agenda_takes_the_lowest_average_level_first() -> None:
    # Type 0 waits at levels 0 and 2 (average 1), type 1 at level 0: type 1 first, though its number is higher.
    known = problem([0, 2, 0, 1], [[], [0], [1], []])
    assert agenda(known)[3] == 0


def test_ties_are_broken_by_the_numbers_of_types() -> None:
    known = problem([2, 0, 1], [[], [], []])
    for policy in POLICIES.values():
        assert policy.assign(known).tolist() == [2, 0, 1]


def test_a_node_that_reads_another_twice_is_ready_in_time() -> None:
    known = problem([0, 1], [[], [0, 0]])
    for policy in POLICIES.values():
        assert policy.assign(known).tolist() == [0, 1]


@st.composite
def problems(draw: Any) -> Problem:
    size = draw(st.integers(0, 14))
    types = [draw(st.integers(0, 3)) for _ in range(size)]
    reads = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(size)]
    return problem(types, reads)


@every_policy
@laws
@given(problems())
def test_every_policy_gives_a_schedule(policy: str, known: Problem) -> None:
    schedule = POLICIES[policy].assign(known)
    known.verify(schedule)
    assert len(np.unique(known.type)) <= steps(schedule) <= len(known.type)


@laws
@given(problems())
def test_layers_need_no_more_steps_than_others_and_no_fewer_than_the_bound(known: Problem) -> None:
    by_layers = steps(ranks(known))
    assert known.bound <= fewest(known) <= by_layers <= min(steps(depth(known)), steps(agenda(known)))
    known.verify(frontier(known))


@every_policy
@laws
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(policy: str, known: Problem, random: Any) -> None:
    size = len(known.type)
    order = list(range(size))
    random.shuffle(order)
    place = np.argsort(np.array(order, int))
    edges = list(range(len(known.reader)))
    random.shuffle(edges)
    shuffled = Problem(
        known.type[order] if size else known.type,
        known.level[order] if size else known.level,
        place[known.reader[edges]] if edges else known.reader,
        place[known.read[edges]] if edges else known.read,
    )
    schedule = POLICIES[policy].assign(known)
    assert POLICIES[policy].assign(shuffled).tolist() == [int(schedule[node]) for node in order]


@every_policy
@laws
@given(problems())
def test_a_repeated_problem_needs_no_more_steps(policy: str, known: Problem) -> None:
    size = len(known.type)
    doubled = Problem(
        np.tile(known.type, 2),
        np.tile(known.level, 2),
        np.concatenate([known.reader, known.reader + size]),
        np.concatenate([known.read, known.read + size]),
    )
    once, twice = POLICIES[policy].assign(known), POLICIES[policy].assign(doubled)
    assert twice.tolist() == [*once.tolist(), *once.tolist()]


@pytest.mark.parametrize(
    ("law", "schedule"),
    [
        ("every node has a step", [0, 1]),
        ("a node runs after the nodes it reads", [0, 0, 1]),
        ("a node runs after the nodes it reads", [1, 0, 2]),
        ("no step is empty", [0, 1, 3]),
        ("no step is empty", [-1, 0, 1]),
        ("the nodes of a step have one type", [0, 1, 1]),
    ],
)
def test_a_broken_schedule_is_noticed(law: str, schedule: list[int]) -> None:
    known = problem([0, 0, 1], [[], [0], [0]])
    known.verify(np.array([0, 1, 2]))
    with pytest.raises(VerifyError, match=f"schedule: {law}"):
        known.verify(np.array(schedule))


@pytest.fixture
def one_by_one() -> Iterator[Policy]:
    """A policy that runs one node a step, level by level: registered here, and gone after the test."""

    def assign(problem: Problem) -> np.ndarray:
        step = np.empty(len(problem.type), np.int32)
        step[np.lexsort((problem.type, problem.level))] = np.arange(len(step))
        return step

    yield register(Policy("one by one", assign))
    del POLICIES["one by one"]


@pytest.mark.parametrize("executor", ["fused", "dispatch"])
def test_a_policy_is_added_by_registering_it(one_by_one: Policy, executor: str) -> None:
    workload = named("binary_tree")
    params, samples = workload.draw()
    batched = jitbatch(workload.fun, policy=one_by_one.name, executor=executor, granularity="subgraph")
    got = gradients(batched.batch, params, samples, transform=jax.jit)
    assert_same(got, gradients(workload.loop, params, samples), rtol=1e-4, atol=1e-5)


def test_a_registered_policy_decides_the_steps(one_by_one: Policy) -> None:
    workload = named("binary_tree")
    params, samples = workload.draw()
    options: Any = {"executor": "dispatch", "granularity": "subgraph", "dedupe": False}
    plan = jitbatch(workload.fun, policy=one_by_one.name, **options).plan(params, samples)
    by_depth = jitbatch(workload.fun, policy="depth", **options).plan(params, samples)
    report = plan.explain()
    assert report.steps == report.nodes > by_depth.explain().steps
    assert report.policy.startswith(one_by_one.name)


def test_a_policy_that_is_not_registered_is_refused() -> None:
    with pytest.raises(ArgumentError, match="policy='one by one' is not one of 'auto', 'depth', 'agenda', 'layers'"):
        jitbatch(lambda params, x: x, policy="one by one")
