"""Arguments of bodies: aliases for their leaves, and no change in place."""

from __future__ import annotations

from typing import Any

import pytest
from jax import lax
from test_recorder import X, inputs, recording

from jitbatch.record.body_arguments import aliased, check_holds
from jitbatch.util.errors import MutationError


def called_with(with_shared: bool, same: bool = False) -> tuple[Any, list[Any], Any]:
    """A call on `{"w": w}`, `{"w": v}` and `[x, x]`, its leaves, and what its body is called with."""
    with recording() as recorder:
        w, v = inputs(recorder, X, X, shared=True)
        (x,) = inputs(recorder, X)
        call = recorder.arguments.take_apart(lax.add, ({"w": w}, {"w": w if same else v}, [x, x]), {})
        return recorder, call.leaves, aliased(call, recorder.alias, with_shared)


def test_each_leaf_has_an_alias() -> None:
    recorder, leaves, body = called_with(with_shared=True)
    assert body.for_all
    seen = [leaf for of_argument in body.leaves_of for leaf in of_argument]
    assert body.arguments == [{"w": seen[0]}, {"w": seen[1]}, seen[2:]]
    assert [alias.source for alias in seen] == leaves
    assert seen[2] is not seen[3]
    assert body.aliases == [alias.row for alias in seen]
    assert [recorder.builder.origin(alias.row) for alias in seen[2:]] == [leaves[2].row] * 2


def test_shared_values_need_none_unless_one_is_given_twice() -> None:
    _, leaves, body = called_with(with_shared=False)
    assert not body.for_all
    assert body.arguments[0]["w"] is leaves[0]
    _, leaves, body = called_with(with_shared=False, same=True)
    assert body.for_all
    assert body.arguments[0]["w"] is not body.arguments[1]["w"]


def test_a_body_must_not_change_what_it_is_called_with() -> None:
    _, leaves, body = called_with(with_shared=True)
    body.check_unchanged("sample 0")
    body.arguments[2].append(leaves[2])
    with pytest.raises(MutationError, match="an argument of type list was changed in place while sample 0"):
        body.check_unchanged("sample 0")


def test_what_is_no_array_may_be_equal() -> None:
    check_holds(["text", 1], ["text", 1], "sample 0")
    with pytest.raises(MutationError, match="an argument of type list"):
        check_holds([X, 1], [X + 1, 1], "sample 0")
