"""Rounds: a loop runs round by round, and in a round each of its types runs at most once."""

from collections.abc import Sequence

import numpy as np

from jitbatch.batch.problem import Problem
from jitbatch.ir.ranks import by_stage, longest_paths, order_layers
from jitbatch.schedule.policies import Policy, steps_of_layers
from jitbatch.util import passes


def rounds_of_layers(layers: Sequence[int], needs: np.ndarray) -> np.ndarray | None:
    """The rounds of a loop if its steps are layers (see `ir/ranks`): int [types, layers], or None if they cannot be.

    Args:
        layers: how many layers each type of the loop has; types run in this order in a round.
        needs: int [4, needs]; which layers need which.
    """
    most = max(layers, default=0)
    if len(layers) == 1:
        return np.arange(most)[None]
    order = order_layers(layers, needs, range(len(layers)))
    if order is None:
        return None
    steps = steps_of_layers(order, len(layers), most)
    return _rounds(np.array(order, np.int64))[steps] if order else steps


def rounds_of(problem: Problem, members: np.ndarray, types: Sequence[int], policy: Policy) -> np.ndarray:
    """The round of each node of a loop: in a round, each type runs at most once, in the order of `types`.

    Args:
        problem: the whole batch.
        members: the nodes of the loop.
        types: the types of the loop.
    """
    local = np.full(len(problem.type), -1)
    local[members] = np.arange(len(members))
    inside = (local[problem.reader] >= 0) & (local[problem.read] >= 0)
    reader, read = local[problem.reader[inside]], local[problem.read[inside]]
    place = np.full(max(int(problem.type.max(initial=0)), *types) + 1, -1)
    place[list(types)] = np.arange(len(types))
    level = longest_paths(len(members), by_stage(problem.level[members], reader, read))
    part = Problem(place[problem.type[members]], level, reader, read)
    step = policy.assign(part)
    if passes.verifies():
        part.verify(step)
    first = np.unique(step, return_index=True)[1]
    return _rounds(part.type[first])[step]


def _rounds(kinds: np.ndarray) -> np.ndarray:
    """The round of each step, given the steps' types: a new one begins where the next type is not a later one."""
    return np.cumsum(np.append(False, kinds[1:] <= kinds[:-1])) if len(kinds) else np.zeros(0, np.int64)
