"""Ranks: a lower bound on the number of steps, and an order of nodes that reaches it. Names in code say "rank".

The rank of a node is the largest number of other nodes of its own type on a path to it. A step runs nodes of one type
that do not depend on each other. So a type with n ranks needs at least n steps in any order, and the sum over all types
is a lower bound on the number of steps. If an order exists in which each rank reads only earlier ranks, every rank can
be a step, and that order reaches the bound.

The ranks of a sample do not depend on its minibatch, so they are found once for each structure. In a minibatch, a rank
must come after every rank that it reads in any sample.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from jitbatch.core import choice


def find_ranks(type_ids: np.ndarray, stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int32 [nodes]; the rank of each node.

    Args:
        type_ids: int [nodes]; the type of each node.
        stage: int [nodes]; a number for each node, larger than those of the nodes that it reads.
        reader, read: int [edges]; node `reader[e]` reads node `read[e]`.
    """
    order = np.argsort(stage, kind="stable")
    return choice.find_ranks(*(np.asarray(array, np.int32) for array in (type_ids, order, reader, read)))


def longest_paths(stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int [nodes]; the number of edges on the longest path to each node. The arguments are those of `find_ranks`."""
    length = [0] * len(stage)
    for edge in np.argsort(stage[reader], kind="stable").tolist():
        length[reader[edge]] = max(length[reader[edge]], length[read[edge]] + 1)
    return np.array(length, np.int64)


Needs = dict[tuple[int, int], dict[int, int]]
"""For each type and rank, the number of ranks of each other type that must come before it."""


def find_needs(type_ids: np.ndarray, rank: np.ndarray, reader: np.ndarray, read: np.ndarray) -> Needs:
    """The needs of all ranks.

    Args:
        type_ids, rank: int [nodes]; the type and the rank of each node.
        reader, read: int [edges]; node `reader[e]` reads node `read[e]`.
    """
    types, ranks = type_ids.tolist(), rank.tolist()
    needs: Needs = {}
    for node, other in zip(reader.tolist(), read.tolist(), strict=True):
        if types[node] != types[other]:
            needed = needs.setdefault((types[node], ranks[node]), {})
            needed[types[other]] = max(needed.get(types[other], 0), ranks[other] + 1)
    return needs


def order_ranks(ranks: Sequence[int], needs: Needs, order: Iterable[int]) -> list[int] | None:
    """An order in which each step is a rank: the type of each step. None if there is no such order.

    Types take turns as in `order`, so that the steps form few rounds.

    Args:
        ranks: the number of ranks of each type.
        needs: the ranks that must come before each rank; for a batch, those of all samples together.
        order: the types in the order of their turns.
    """
    done = [0] * len(ranks)
    steps: list[int] = []
    order, left = list(order), sum(ranks)
    while left:
        progress = left
        for t in order:
            before = needs.get((t, done[t]), {})
            if done[t] < ranks[t] and all(done[other] >= count for other, count in before.items()):
                done[t] += 1
                left -= 1
                steps.append(t)
        if left == progress:
            return None
    return steps
