"""Layers: how many steps a type needs at least, and an order that needs no more.

The layer of a node is how many nodes of its own type lie on a path below it, at most. A type with n layers needs at
least n steps whatever the order is, since a step runs nodes of one type; so the number of layers of all types is a
lower bound on the number of steps. And if the layers can be put in an order in which each reads only earlier ones, that
order reaches the bound: layers are steps.

All this depends on what a sample computes and not on its minibatch, so it is found once a structure. In a minibatch, a
layer has to come after whatever it reads in some sample.
"""

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Stage(NamedTuple):
    """Nodes of one stage that read others.

    Attributes:
        nodes: int [nodes]; ascending.
        begin: int [nodes]; where the edges of each begin in what follows.
        edges: int [edges]; which edges go into these nodes, node after node.
        read: int [edges]; the nodes that they come from.
    """

    nodes: np.ndarray
    begin: np.ndarray
    edges: np.ndarray
    read: np.ndarray


def find_layers(
    kind: np.ndarray, stage: np.ndarray, reader: np.ndarray, read: np.ndarray, counted: np.ndarray | None = None
) -> np.ndarray:
    """int [nodes]; the layer of each node.

    Args:
        kind: int [nodes]; types.
        stage: int [nodes]; a node reads only nodes of earlier stages.
        reader, read: int [edges]; node `reader[e]` reads node `read[e]`.
        counted: bool [nodes]; the nodes that count, by default all of them.
    """
    types = int(kind.max(initial=-1)) + 1
    own = np.ones(len(kind), np.int32) if counted is None else counted.astype(np.int32)
    # For each node and type, how many nodes of that type lie on a path up to this node, itself included.
    below = np.zeros((len(kind), types), np.int32)
    below[np.arange(len(kind)), kind] = own
    for nodes, begin, edges, below_read in by_stage(stage, reader, read):
        counts = below[below_read]
        counts[np.arange(len(edges)), kind[reader[edges]]] += own[reader[edges]]
        below[nodes] = np.maximum(below[nodes], np.maximum.reduceat(counts, begin))
    return below[np.arange(len(kind)), kind] - 1


def longest_paths(nodes: int, stages: Iterable[Stage]) -> np.ndarray:
    """int [nodes]; how many edges the longest path to each node has."""
    length = np.zeros(nodes, np.int64)
    for stage in stages:
        length[stage.nodes] = np.maximum.reduceat(length[stage.read], stage.begin) + 1
    return length


def by_stage(stage: np.ndarray, reader: np.ndarray, read: np.ndarray) -> list[Stage]:
    """The stages of a graph, ascending; its arguments are those of `find_layers`."""
    if not len(reader):
        return []
    order = np.lexsort((reader, stage[reader]))
    reader, read, at = reader[order], read[order], stage[reader[order]]
    is_first = np.ones(len(order), bool)  # of the edges into a node
    is_first[1:] = reader[1:] != reader[:-1]
    cuts = np.flatnonzero(np.diff(at, prepend=at[0] - 1))
    stages = []
    for begin, end in itertools.pairwise([*cuts.tolist(), len(order)]):
        first = np.flatnonzero(is_first[begin:end])
        stages.append(Stage(reader[begin:end][first], first, order[begin:end], read[begin:end]))
    return stages


def find_needs(kind: np.ndarray, layer: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int [4, needs]; a type, a layer of it, another type, and the highest layer of that which it reads."""
    other = kind[reader] != kind[read]
    reader, read = reader[other], read[other]
    needs = np.stack([kind[reader], layer[reader], kind[read], layer[read]])
    needs = needs[:, np.lexsort(needs[::-1])]
    is_highest = np.ones(needs.shape[1], bool)
    is_highest[:-1] = np.any(needs[:3, 1:] != needs[:3, :-1], axis=0)
    return needs[:, is_highest]


def order_layers(layers: Sequence[int], needs: np.ndarray, order: Sequence[int]) -> list[int] | None:
    """The types of the steps of an order in which each step is a layer, or None if there is no such order.

    Types take turns as in `order`, so that few turns are needed.

    Args:
        layers: how many layers each type has.
        needs: int [4, needs]; see `find_needs`. Of a batch: those of all samples.
    """
    types, most = len(layers), max(layers, default=0)
    # For each type and layer, how many layers of each other type have to come before.
    table = np.zeros((types * most, types), np.int64)
    np.maximum.at(table, (needs[0] * most + needs[1], needs[2]), needs[3] + 1)
    before = table.tolist()
    done = [0] * types
    steps: list[int] = []
    left = sum(layers)
    while left:
        progress = left
        for t in order:
            if done[t] < layers[t] and all(map(operator.ge, done, before[t * most + done[t]])):
                done[t] += 1
                left -= 1
                steps.append(t)
        if left == progress:
            return None
    return steps
