"""Arc-standard transitions: dependency trees as sequences of actions, and back.

A parser has a stack and a buffer of words. It shifts the buffer's first word onto the stack, or makes the stack's
second word depend on the first (left) or the first on the second (right), until the buffer is empty and one word, the
root, is on the stack.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jitbatch import Static
from jitbatch.data.conllu import Parsed
from jitbatch.data.vocabulary import Vocabulary

SHIFT, LEFT, RIGHT = range(3)


class Transitions(NamedTuple):
    """Words, their tags, and the actions of a parser.

    Attributes:
        words, tags: numbers, one for each word.
        moves: SHIFT, LEFT or RIGHT for each action. They determine the computation, so they are static.
        actions: the number of each action, its relation included: see `action_number`.
    """

    words: np.ndarray
    tags: np.ndarray
    moves: Static[tuple[int, ...]]
    actions: np.ndarray


class OracleData(NamedTuple):
    """Samples for a parser, and how many sentences were left out because they are not projective."""

    samples: list[Transitions]
    skipped: int


def action_number(move: int, relation: int) -> int:
    """Actions are numbered: 0 is to shift; left and right have one number for each relation.

    >>> [action_number(SHIFT, 0), action_number(LEFT, 0), action_number(RIGHT, 0), action_number(LEFT, 1)]
    [0, 1, 2, 3]
    """
    return 0 if move == SHIFT else 2 * relation + move


def move_and_relation(action: int) -> tuple[int, int]:
    """The move and the relation of an action; to shift has relation 0."""
    return (SHIFT, 0) if action == 0 else (1 + (action - 1) % 2, (action - 1) // 2)


def number_of_actions(relations: int) -> int:
    return 1 + 2 * relations


def legal_actions(stack: int, buffer: int, actions: int) -> np.ndarray:
    """The possible actions with `stack` words on the stack and `buffer` words in the buffer."""
    return np.array([buffer > 0, *[stack > 1] * (actions - 1)])


def oracle(heads: Sequence[int]) -> list[int] | None:
    """The moves that make a tree, or None if the tree is not projective. A word is reduced as soon as it can be.

    >>> oracle([2, 0, 2])  # SHIFT, SHIFT, LEFT, SHIFT, RIGHT
    [0, 0, 1, 0, 2]
    >>> oracle([3, 0, 2, 1]) is None
    True
    """
    waiting = np.bincount(heads, minlength=len(heads) + 1)  # how many dependents of each word are not yet reduced
    stack: list[int] = []
    moves: list[int] = []
    shifted = 0
    while len(moves) < 2 * len(heads) - 1:
        second, first = stack[-2:] if len(stack) > 1 else (0, 0)
        if second and heads[second - 1] == first and not waiting[second]:
            moves.append(LEFT)
            stack.pop(-2)
            waiting[first] -= 1
        elif second and heads[first - 1] == second and not waiting[first]:
            moves.append(RIGHT)
            stack.pop()
            waiting[second] -= 1
        elif shifted < len(heads):
            moves.append(SHIFT)
            shifted += 1
            stack.append(shifted)
        else:
            return None
    return moves


def tree_of(actions: Sequence[int], words: int) -> tuple[list[int], list[int]]:
    """The heads and relations of this number of words after a sequence of actions. Relations are numbers."""
    heads, relations = [0] * words, [0] * words
    stack: list[int] = []
    shifted = 0
    for action in actions:
        move, relation = move_and_relation(action)
        if move == SHIFT:
            shifted += 1
            stack.append(shifted)
        else:
            dependent = stack.pop(-2 if move == LEFT else -1)
            heads[dependent - 1], relations[dependent - 1] = stack[-1], relation
    return heads, relations


def transitions(sentences: Iterable[Parsed], words: Vocabulary, tags: Vocabulary, relations: Vocabulary) -> OracleData:
    """Sentences as words and oracle actions. Those whose trees are not projective are left out and counted.

    >>> from jitbatch.data import Parsed, Vocabulary
    >>> sentence = Parsed(["It", "works"], ["PRON", "VERB"], [2, 0], ["nsubj", "root"])
    >>> transitions([sentence], Vocabulary(), Vocabulary(), Vocabulary()).samples[0].actions.tolist()
    [0, 0, 3]
    """
    samples: list[Transitions] = []
    skipped = 0
    for sentence in sentences:
        moves = oracle(sentence.heads)
        if moves is None:
            skipped += 1
            continue
        relation_ids = [relations[name] for name in sentence.relations]
        samples.append(
            Transitions(
                np.array([words[word] for word in sentence.words], np.int32),
                np.array([tags[tag] for tag in sentence.tags], np.int32),
                Static(tuple(moves)),
                np.array(_labelled(moves, relation_ids), np.int32),
            )
        )
    return OracleData(samples, skipped)


def _labelled(moves: Iterable[int], relations: Sequence[int]) -> list[int]:
    """The numbers of actions, from moves and the relation of each word."""
    actions: list[int] = []
    stack: list[int] = []
    shifted = 0
    for move in moves:
        if move == SHIFT:
            stack.append(shifted)
            shifted += 1
            actions.append(SHIFT)
        else:
            dependent = stack.pop(-2 if move == LEFT else -1)
            actions.append(action_number(move, relations[dependent]))
    return actions
