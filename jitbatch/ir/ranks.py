"""Layers: how many steps a type needs at least, and an order that needs no more.

The layer of a node is how many nodes of its own type lie on a path below it, at most. A type with n layers needs at
least n steps whatever the order is, since a step runs nodes of one type; so the number of layers of all types is a
lower bound on the number of steps. And if the layers can be put in an order in which each reads only earlier ones, that
order reaches the bound: layers are steps.

All this depends on what a sample computes and not on its minibatch, so it is found once a structure. In a minibatch, a
layer has to come after whatever it reads in some sample.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from jitbatch.core import choice


def find_layers(kind: np.ndarray, stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int32 [nodes]; the layer of each node.

    Args:
        kind: int [nodes]; types.
        stage: int [nodes]; a node reads only nodes of earlier stages.
        reader, read: int [edges]; node `reader[e]` reads node `read[e]`.
    """
    order = np.argsort(stage, kind="stable")
    return choice.find_ranks(*(np.asarray(array, np.int32) for array in (kind, order, reader, read)))


def longest_paths(stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int [nodes]; how many edges the longest path to each node has. The arguments are those of `find_layers`."""
    length = [0] * len(stage)
    for edge in np.argsort(stage[reader], kind="stable").tolist():
        length[reader[edge]] = max(length[reader[edge]], length[read[edge]] + 1)
    return np.array(length, np.int64)


Needs = dict[tuple[int, int], dict[int, int]]
"""For a type and a layer of it, how many layers of each other type have to come before."""


def find_needs(kind: np.ndarray, layer: np.ndarray, reader: np.ndarray, read: np.ndarray) -> Needs:
    kinds, layers = kind.tolist(), layer.tolist()
    needs: Needs = {}
    for node, other in zip(reader.tolist(), read.tolist(), strict=True):
        if kinds[node] != kinds[other]:
            own = needs.setdefault((kinds[node], layers[node]), {})
            own[kinds[other]] = max(own.get(kinds[other], 0), layers[other] + 1)
    return needs


def order_layers(layers: Sequence[int], needs: Needs, order: Iterable[int]) -> list[int] | None:
    """The types of the steps of an order in which each step is a layer, or None if there is no such order.

    Types take turns as in `order`, so that few turns are needed.

    Args:
        layers: how many layers each type has.
        needs: which layers need which. Of a batch: those of all samples.
    """
    done = [0] * len(layers)
    steps: list[int] = []
    order, left = list(order), sum(layers)
    while left:
        progress = left
        for t in order:
            before = needs.get((t, done[t]), {})
            if done[t] < layers[t] and all(done[other] >= count for other, count in before.items()):
                done[t] += 1
                left -= 1
                steps.append(t)
        if left == progress:
            return None
    return steps
