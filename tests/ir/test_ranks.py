"""Ranks: the rank of a node among those of its type, and orders of ranks, on graphs by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jitbatch.ir.ranks import find_needs, find_ranks, longest_paths, order_ranks

# Types 0 and 1. Two chains, 0 -> 0 -> 1 and 1 -> 0: each node reads the one before it.
KIND = np.array([0, 0, 1, 1, 0])
STAGE = np.array([0, 1, 2, 0, 1])
READER = np.array([1, 2, 4])
READ = np.array([0, 1, 3])


def test_a_layer_counts_the_nodes_of_the_same_type_below() -> None:
    assert find_ranks(KIND, STAGE, READER, READ).tolist() == [0, 1, 0, 0, 0]


def test_nodes_of_other_types_between_do_not_count() -> None:
    kind = np.array([0, 1, 1, 0])
    nodes = np.arange(4)
    assert find_ranks(kind, nodes, nodes[1:], nodes[:-1]).tolist() == [0, 0, 1, 1]


def test_the_longest_path_decides() -> None:
    # Node 3 reads node 0 at once, and through two others.
    reader, read = np.array([1, 2, 3, 3]), np.array([0, 1, 0, 2])
    assert find_ranks(np.zeros(4, int), np.arange(4), reader, read).tolist() == [0, 1, 2, 3]
    assert longest_paths(np.arange(4), reader, read).tolist() == [0, 1, 2, 3]


def test_a_need_is_the_highest_layer_of_another_type() -> None:
    # Node 3 of type 1 reads all three nodes of a chain of type 0.
    kind, rank = np.array([0, 0, 0, 1]), np.array([0, 1, 2, 0])
    reader, read = np.array([1, 2, 3, 3, 3]), np.array([0, 1, 0, 2, 1])
    assert find_needs(kind, rank, reader, read) == {(1, 0): {0: 3}}


def test_an_order_runs_each_layer_after_its_needs() -> None:
    rank = find_ranks(KIND, STAGE, READER, READ)
    needs = find_needs(KIND, rank, READER, READ)
    # Layer 0 of type 1 reads rank 1 of type 0, and rank 0 of type 0 reads rank 0 of type 1: no order.
    assert order_ranks([2, 1], needs, range(2)) is None
    first_chain = find_needs(KIND[:3], rank[:3], READER[:2], READ[:2])
    assert order_ranks([2, 1], first_chain, range(2)) == [0, 0, 1]


@pytest.mark.parametrize(("order", "steps"), [((0, 1), [0, 1, 0, 1]), ((1, 0), [1, 0, 1, 0])])
def test_types_take_turns_in_the_order_that_is_given(order: tuple[int, ...], steps: list[int]) -> None:
    assert order_ranks([2, 2], {}, order) == steps


def test_nothing_has_an_order() -> None:
    none = np.zeros(0, int)
    assert find_ranks(none, none, none, none).tolist() == []
    assert order_ranks([], {}, ()) == []
