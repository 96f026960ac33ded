"""ListOps expressions: their values, their notation, and sets of them."""

import numpy as np
import pytest

from jitbatch.data import ListOps, make_listops
from jitbatch.data.listops import SYMBOLS, evaluate, random_expression, to_string, tokens

MIN, MAX, MED, SUM_MOD = range(10, 14)


@pytest.mark.parametrize(
    ("expression", "notation", "value"),
    [
        (7, "7", 7),
        ((MIN, 3, 1, 2), "[MIN 3 1 2]", 1),
        ((MAX, 3, 9), "[MAX 3 9]", 9),
        ((MED, 9, 1, 2), "[MED 9 1 2]", 2),
        ((MED, 1, 2), "[MED 1 2]", 1),
        ((SUM_MOD, 9, 9, 5), "[SUM_MOD 9 9 5]", 3),
        ((MAX, (MIN, 4, 5), (SUM_MOD, 8, (MED, 1, 1)), 2), "[MAX [MIN 4 5] [SUM_MOD 8 [MED 1 1]] 2]", 9),
    ],
)
def test_values_and_notation(expression, notation, value):
    assert to_string(expression) == notation
    assert evaluate(expression) == value
    assert [SYMBOLS[token] for token in tokens(expression)] == notation.replace("[", "").replace("]", "").split()


def depth(expression):
    return 1 + max(map(depth, expression[1:])) if isinstance(expression, tuple) else 0


def arities(expression):
    if isinstance(expression, tuple):
        yield len(expression) - 1
        for argument in expression[1:]:
            yield from arities(argument)


def test_random_expressions_keep_to_depth_and_number_of_arguments():
    rng = np.random.default_rng(0)
    made = [random_expression(rng, 3, arguments=(1, 5)) for _ in range(300)]
    assert {depth(one) for one in made} == {1, 2, 3}
    assert {n for one in made for n in arities(one)} == {1, 2, 3, 4, 5}
    assert all(depth(random_expression(rng, 3, nested=0.0)) == 1 for _ in range(20))


def test_sets_are_distinct_labelled_and_reproducible():
    sets = make_listops(3, [50, 20, 30])
    assert [len(one) for one in sets] == [50, 20, 30]
    everything = [sample for one in sets for sample in one]
    assert len({sample.expression for sample in everything}) == 100
    assert all(evaluate(expression) == value for expression, value in everything)
    assert isinstance(everything[0], ListOps)
    assert make_listops(3, [50, 20, 30]) == sets
    assert make_listops(4, [50, 20, 30]) != sets


def test_sets_are_equally_hard():
    train, test = make_listops(0, [1000, 1000])
    lengths = [np.mean([len(list(tokens(one.expression))) for one in data]) for data in (train, test)]
    assert abs(lengths[0] - lengths[1]) < 1


def test_too_many_expressions_are_refused():
    with pytest.raises(
        ValueError, match="1,000 different expressions were asked for, but 100,000 random ones had only"
    ):
        make_listops(0, [1000], depth=1, arguments=(1, 1))
