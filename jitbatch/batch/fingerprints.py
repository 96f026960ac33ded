"""Shapes: what a node and all that it depends on look like, apart from the sample's inputs.

Two nodes compute the same if they have the same shape and if the same inputs go into them. Shapes depend on a sample's
structure alone, so that they are found once a structure; and the inputs of a sample are put in an order in which those
of a node lie side by side, as the words of a phrase do. A digest of what a node computes is then that of its shape and
of a stretch of inputs, found for all nodes of a batch at once and without following what they read.

Digests only propose: whatever they are, calls are compared before they are merged (see `batch/dedupe`). Where the
inputs of a node do not lie side by side, those in between count as well, and equal nodes may be missed here.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jitbatch.ir.ranks import Stage

_ODD = -0x61C8864680B583EB  # as a 64-bit word, an odd number with bits all over
_BASE = 0x5851F42D4C957F2D


class Shapes(NamedTuple):
    """Of some graphs together.

    Attributes:
        digest: int [nodes]; equal for nodes of the same shape.
        first, end: int [nodes]; the stretch of inputs that go into each node, by their positions.
        position: int [inputs]; the place of each input in the order of inputs.
    """

    digest: np.ndarray
    first: np.ndarray
    end: np.ndarray
    position: np.ndarray


class Operands(NamedTuple):
    """Operands of all nodes, node after node.

    Attributes:
        place: int; a word for the place of each (see `place_of`).
        node, output: int; the node that makes it and as which output, -1 for inputs and shared values.
        given: int; the input that it is, -1 for others.
        shared: int; the shared value that it is, -1 for others.
    """

    place: np.ndarray
    node: np.ndarray
    output: np.ndarray
    given: np.ndarray
    shared: np.ndarray


def find_shapes(
    kind: np.ndarray, arity: np.ndarray, operands: Operands, inputs: int, stages: Sequence[Stage]
) -> Shapes:
    """The shapes of all nodes of some graphs, and an order of their inputs.

    Args:
        kind, arity: int [nodes]; their types, and how many operands they have.
        operands: these operands.
        inputs: how many inputs there are.
        stages: the nodes that read others (see `by_stage`); their edges are the operands that nodes make.
    """
    place, read, output, given, shared = operands
    reader = np.repeat(np.arange(len(kind)), arity)
    direct = given >= 0
    into, of = reader[direct], given[direct]

    # An input is placed behind what else goes into the first node that reads it.
    last = np.full(len(kind), -1)
    np.maximum.at(last, into, of)
    for stage in stages:
        last[stage.nodes] = np.maximum.reduceat(last[stage.read], stage.begin)
    anchor = np.arange(inputs)
    has_more = last[into] >= 0
    anchor[of[has_more][::-1]] = last[into[has_more]][::-1]  # the last entry counts
    position = np.empty(inputs, np.int64)
    position[np.lexsort((np.arange(inputs), anchor))] = np.arange(inputs)

    first, end = np.full(len(kind), inputs), np.zeros(len(kind), np.int64)
    np.minimum.at(first, into, position[of])
    np.maximum.at(end, into, position[of] + 1)
    for stage in stages:
        first[stage.nodes] = np.minimum(first[stage.nodes], np.minimum.reduceat(first[stage.read], stage.begin))
        end[stage.nodes] = np.maximum(end[stage.nodes], np.maximum.reduceat(end[stage.read], stage.begin))

    what = ~shared
    what[direct] = position[of] - first[into]
    inner = read >= 0
    outer = ~inner
    digest = mixed(kind)
    np.add.at(digest, reader[outer], mixed(place[outer] + what[outer]))
    # Where in the stretch of a node that of another lies which it reads.
    offset = np.where(end[read] > 0, first[read] - first[reader], 0)
    place = (place + output + offset * _BASE)[inner]
    for stage in stages:
        what = np.add.reduceat(mixed(place[stage.edges] + digest[stage.read]), stage.begin)
        digest[stage.nodes] = mixed(digest[stage.nodes] + what)
    return Shapes(digest, np.minimum(first, end), end, position)


def digests(shapes: Shapes, input_key: np.ndarray) -> np.ndarray:
    """int [nodes]; equal for nodes of the same shape over inputs of the same keys."""
    keys = np.empty_like(input_key)
    keys[shapes.position] = input_key
    powers, inverse = _powers(1 << len(keys).bit_length())
    total = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(mixed(keys) * powers[: len(keys)], out=total[1:])
    return mixed(shapes.digest + (total[shapes.end] - total[shapes.first]) * inverse[shapes.first])


@lru_cache(maxsize=4)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first powers of a number, and of its inverse, as 64-bit words."""
    inverse = pow(_BASE, -1, 1 << 64)
    both = np.ones((2, count), np.int64)
    both[0, 1:] = _BASE
    both[1, 1:] = inverse - (1 << 64 if inverse >> 63 else 0)
    np.cumprod(both, axis=1, out=both)
    return both[0], both[1]


def place_of(kind: np.ndarray, column: np.ndarray) -> np.ndarray:
    """A word for each place of an operand of each kind of node."""
    return mixed((column << 20) + kind)


def mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> 31)) * _ODD
    return words ^ (words >> 29)
