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


def reads_of(nodes: int, reader: np.ndarray, read: np.ndarray) -> list[list[int]]:
    """The nodes that each node reads, given the edges between them."""
    reads: list[list[int]] = [[] for _ in range(nodes)]
    for node, other in zip(reader.tolist(), read.tolist(), strict=True):
        reads[node].append(other)
    return reads


def find_layers(kind: np.ndarray, stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int [nodes]; the layer of each node.

    Args:
        kind: int [nodes]; types.
        stage: int [nodes]; a node reads only nodes of earlier stages.
        reader, read: int [edges]; node `reader[e]` reads node `read[e]`.
    """
    kinds, reads = kind.tolist(), reads_of(len(kind), reader, read)
    # For each node and type, how many nodes of that type lie on a path up to this node, itself included.
    below: list[dict[int, int]] = [{} for _ in kinds]
    for node in np.argsort(stage, kind="stable").tolist():
        own = below[node]
        for other in reads[node]:
            for t, count in below[other].items():
                if count > own.get(t, 0):
                    own[t] = count
        own[kinds[node]] = own.get(kinds[node], 0) + 1
    return np.array([counts[t] - 1 for counts, t in zip(below, kinds, strict=True)], np.int64)


def longest_paths(stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int [nodes]; how many edges the longest path to each node has. The arguments are those of `find_layers`."""
    reads = reads_of(len(stage), reader, read)
    length = [0] * len(stage)
    for node in np.argsort(stage, kind="stable").tolist():
        length[node] = max((length[other] + 1 for other in reads[node]), default=0)
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
