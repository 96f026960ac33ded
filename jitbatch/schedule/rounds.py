"""Rounds: a loop runs round by round. In a round, each of its types runs at most once."""

from collections.abc import Callable, Sequence

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.batch.types import Types
from jitbatch.core.reference.schedule import Schedule
from jitbatch.schedule.policies import Policy
from jitbatch.util import passes
from jitbatch.util.errors import VerifyError


def find_rounds(schedule: Schedule, types: Types, policy: Policy, problem: Callable[[], Problem]) -> None:
    """Find the round of each node that runs in a loop.

    Args:
        schedule: the nodes. Their rounds are set.
        types: the types of the nodes.
        policy: the policy that orders the nodes.
        problem: makes the `Problem` of the nodes. That takes longer than rounds by ranks, so it is called only if
            needed.
    """
    loops = [members for members, is_loop in types.phases if is_loop]
    for loop, members in enumerate(loops):
        by_ranks = policy.by_ranks and schedule.by_ranks(loop)
        # Variadic nodes of one term count for ranks although they do not run. So ranks may need too many steps.
        if not by_ranks or policy.searches(schedule.steps(loop), schedule.least_steps(loop)):
            nodes = schedule.members(loop)
            others = rounds_of(problem(), nodes, members, policy)
            if not by_ranks or _steps(others, problem().type[nodes]) < schedule.steps(loop):
                schedule.put(loop, others.astype(np.int32))
        if passes.verifies():
            _verify_rounds(schedule, members, problem())


def _steps(rounds: np.ndarray, types: np.ndarray) -> int:
    """The number of steps of nodes with these rounds and types: one for each round and each type in it."""
    return len(set(zip(rounds.tolist(), types.tolist(), strict=True)))


def _verify_rounds(schedule: Schedule, members: Sequence[int], problem: Problem) -> None:
    """Check that each node of a loop runs after the nodes of the loop that it reads. And check that the lower bound on
    steps from structures equals that from nodes."""
    if problem.rank is not None and problem.bound != schedule.bound:
        raise VerifyError("rounds: the lower bound is that of the nodes")
    position_of = {t: position for position, t in enumerate(members)}
    when = [(now, position_of.get(t)) for now, t in zip(schedule.round, problem.type.tolist(), strict=True)]
    for reader, read in zip(problem.reader.tolist(), problem.read.tolist(), strict=True):
        if None not in (when[reader][1], when[read][1]) and when[reader] <= when[read]:
            raise VerifyError("rounds: a node of a loop runs after what it reads")


def rounds_of(problem: Problem, members: np.ndarray, types: Sequence[int], policy: Policy) -> np.ndarray:
    """The round of each node of a loop. In a round, each type runs at most once, in the order of `types`.

    Args:
        problem: all nodes of the batch.
        members: the nodes of the loop.
        types: the types of the loop.
        policy: the policy that orders the nodes.
    """
    part = _inside(problem, members.tolist(), types)
    step = policy.assign(part)
    if passes.verifies():
        part.verify(step)
    type_of_step = dict(zip(step.tolist(), part.type.tolist(), strict=True))
    round_of_step: dict[int, int] = {}
    now, last = -1, len(types)
    for step_id in sorted(type_of_step):
        now += type_of_step[step_id] <= last  # a new round begins unless the next type is later in the order of types
        last = type_of_step[step_id]
        round_of_step[step_id] = now
    return np.array([round_of_step[step_id] for step_id in step.tolist()], np.int64)


def _inside(problem: Problem, members: list[int], types: Sequence[int]) -> Problem:
    """The nodes of a loop as a problem of their own. Its type ids are indices into `types`."""
    local = {node: position for position, node in enumerate(members)}
    position_of = {t: position for position, t in enumerate(types)}
    edges = zip(problem.reader.tolist(), problem.read.tolist(), strict=True)
    inner = [(local[reader], local[read]) for reader, read in edges if reader in local and read in local]
    levels = problem.level.tolist()
    level = [0] * len(members)
    for reader, read in sorted(inner, key=lambda edge: levels[members[edge[0]]]):
        level[reader] = max(level[reader], level[read] + 1)
    reads = np.array(inner, np.int64).reshape(-1, 2)
    kinds = [position_of[problem.type[node]] for node in members]
    return Problem(np.array(kinds, np.int64), np.array(level, np.int64), reads[:, 0], reads[:, 1])
