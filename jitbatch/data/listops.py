"""ListOps (Nangia and Bowman, 2018): nested operators over digits, and their values. Made on the fly from a seed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(np.median(values)),
    "SUM_MOD": lambda values: sum(values) % 10,
}
SYMBOLS = [*"0123456789", *OPERATORS]
"""A token is a position in this list, so a digit is its own token."""

Expression: TypeAlias = Any  # int | tuple[int, *Expressions]
"""A digit, or a tuple of an operator's token and its arguments."""


class ListOps(NamedTuple):
    """An expression and its value.

    Attributes:
        expression: a nested expression.
        value: its value, a digit.
    """

    expression: Expression
    value: int


def random_expression(
    rng: np.random.Generator, depth: int, arguments: tuple[int, int] = (2, 4), nested: float = 0.4
) -> Expression:
    """An operator over random arguments.

    Args:
        rng: where randomness comes from.
        depth: how deep operators are nested at most; 1 is an operator over digits.
        arguments: the least and the largest number of arguments of an operator.
        nested: how likely an argument is an operator, where depth allows it.

    >>> to_string(random_expression(np.random.default_rng(1), depth=2))
    '[MAX 5 [MAX 9 2 3 8] 2]'
    """
    least, most = arguments
    chosen = [
        random_expression(rng, depth - 1, arguments, nested)
        if depth > 1 and rng.random() < nested
        else int(rng.integers(10))
        for _ in range(rng.integers(least, most + 1))
    ]
    return int(rng.integers(10, len(SYMBOLS))), *chosen


def evaluate(expression: Expression) -> int:
    """The value of an expression.

    >>> evaluate((11, 2, (13, 7, 9), 4))  # [MAX 2 [SUM_MOD 7 9] 4]
    6
    """
    if isinstance(expression, int):
        return expression
    operator, *arguments = expression
    return OPERATORS[SYMBOLS[operator]]([evaluate(argument) for argument in arguments])


def to_string(expression: Expression) -> str:
    """The usual notation.

    >>> to_string((11, 2, (13, 7, 9), 4))
    '[MAX 2 [SUM_MOD 7 9] 4]'
    """
    if isinstance(expression, int):
        return SYMBOLS[expression]
    operator, *arguments = expression
    return f"[{' '.join([SYMBOLS[operator], *map(to_string, arguments)])}]"


def tokens(expression: Expression) -> Iterator[int]:
    """All tokens of an expression, from left to right.

    >>> list(tokens((11, 2, (13, 7, 9), 4)))
    [11, 2, 13, 7, 9, 4]
    """
    if isinstance(expression, int):
        yield expression
    else:
        for part in expression:
            yield from tokens(part)


def make_listops(
    seed: int, sizes: Sequence[int], depth: int = 2, arguments: tuple[int, int] = (2, 4), nested: float = 0.4
) -> list[list[ListOps]]:
    """Sets of different expressions, none of them in two sets.

    Args:
        seed: equal seeds make equal sets.
        sizes: how many expressions each set has, for example of training, development and test.
        depth, arguments, nested: as for `random_expression`. The depth of each expression is drawn from 1 to `depth`.

    Raises:
        ValueError: there are not enough different expressions, or they are too rare to be found.

    >>> train, test = make_listops(0, [2, 1])
    >>> [f"{to_string(one.expression)} = {one.value}" for one in train]
    ['[SUM_MOD [MIN 0 0] 6 9] = 5', '[MED 5 6 0] = 5']
    """
    rng = np.random.default_rng(seed)
    wanted = sum(sizes)
    distinct: dict[Expression, int] = {}
    for _ in range(100 * wanted):
        if len(distinct) == wanted:
            break
        expression = random_expression(rng, int(rng.integers(1, depth + 1)), arguments, nested)
        distinct[expression] = evaluate(expression)
    else:
        raise ValueError(
            f"{wanted:,} different expressions were asked for, but {100 * wanted:,} random ones had only "
            f"{len(distinct):,}: allow a larger depth or more arguments, or ask for fewer"
        )
    samples = [ListOps(expression, value) for expression, value in distinct.items()]
    # Short expressions are found early: without shuffling, the later sets would be harder.
    orders = np.split(rng.permutation(wanted), np.cumsum(sizes)[:-1])
    return [[samples[i] for i in order] for order in orders]
