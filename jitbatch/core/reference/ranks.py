"""Ranks: the rank of a node is the largest number of other nodes of its own type on a path to it."""

import numpy as np


def find_ranks(type_ids: np.ndarray, order: np.ndarray, reader: np.ndarray, read: np.ndarray) -> np.ndarray:
    """int32 [nodes]; the rank of each node.

    Args:
        type_ids: int32 [nodes].
        order: int32 [nodes]; the nodes in topological order: each after the nodes that it reads.
        reader, read: int32 [edges]; node `reader[e]` reads node `read[e]`.
    """
    types = type_ids.tolist()
    reads: list[list[int]] = [[] for _ in types]
    for node, other in zip(reader.tolist(), read.tolist(), strict=True):
        reads[node].append(other)
    # For each node and type, the largest number of nodes of that type on a path to this node, itself included.
    below: list[dict[int, int]] = [{} for _ in types]
    for node in order.tolist():
        highest = below[node]
        for other in reads[node]:
            for t, count in below[other].items():
                if count > highest.get(t, 0):
                    highest[t] = count
        highest[types[node]] = highest.get(types[node], 0) + 1
    return np.array([counts[t] - 1 for counts, t in zip(below, types, strict=True)], np.int32)
