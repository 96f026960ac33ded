"""Parts of arguments of composite calls: each is looked at once, however deep it lies, and changes are noticed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from jitbatch import Static, jitbatch
from jitbatch.record import composite_calls
from jitbatch.record.held_parts import HeldParts
from jitbatch.util.errors import MutationError

PARAMS = {"w": jnp.ones(2)}


class Pair(NamedTuple):
    left: Any
    right: Any


@jitbatch
def join(params: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(left * params["w"] + right)


@jitbatch
def encode(params: Any, tree: Any) -> Any:
    if not isinstance(tree, tuple | list):
        return join(params, tree, tree)
    return join(params, encode(params, tree[0]), encode(params, tree[1]))


def nested(depth: int, kind: Any) -> Any:
    tree: Any = 1.0
    for level in range(depth):
        tree = kind([tree, float(level)])
    return tree


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: Pair(*parts)], ids=["tuples", "lists", "named tuples"])
def test_a_tree_is_looked_at_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    hold, look = HeldParts.hold, composite_calls.tree_leaves

    def counted(self: Any, arg: Any) -> Any:
        found = hold(self, arg)
        seen.append(0 if found is None else len(found[0]))
        return found

    monkeypatch.setattr(HeldParts, "hold", counted)
    monkeypatch.setattr(composite_calls, "tree_leaves", lambda tree: seen.append(len(look(tree))) or look(tree))
    encode.plan(PARAMS, [nested(2, kind), nested(3, kind)], like=None)
    seen.clear()
    encode.plan(PARAMS, [nested(60, kind)], like=None)
    assert 59 <= sum(seen) <= 200, f"{sum(seen)}, and not half of the square of sixty"


def test_parts() -> None:
    held = HeldParts()
    inner = (None, Static(1))
    assert held.hold([inner, {"x": inner}]) == ([[inner, {"x": inner}], {"x": inner}, inner], False)
    assert held.hold(inner) == ([], True)
    assert held.hold((inner, [], 3)) is None, "a number is none of the recording's values"
    assert len(held.parts) == 3
    held.forget([inner])
    assert held.hold(Pair(inner, ())) == ([Pair(inner, ()), (), inner], True)
    held.release()
    shared: Any = ()
    for _ in range(200):
        shared = shared, shared
    assert len(held.hold(shared)[0]) == 201, "each part once, not once for every path to it"  # type: ignore[index]
    held.release()
    assert not held.parts


@pytest.mark.parametrize("inner", [False, True], ids=["its own argument", "a part of the argument of another"])
def test_a_list_that_a_body_changes_is_noticed(inner: bool) -> None:
    @jitbatch
    def visit(params: Any, tree: Any, depth: Any) -> Any:
        if inner and depth.value == 0:
            return visit(params, tree[0], Static(1))
        result = join(params, tree[0], tree[1])
        tree.append(result)
        return result

    def sample(params: Any, tree: Any) -> Any:
        return visit(params, tree, Static(0))

    trees = [[[1.0, 2.0], 3.0], [[4.0, 5.0], 6.0]] if inner else [[1.0, 2.0], [4.0, 5.0]]
    with pytest.raises(MutationError, match=r"an argument of type list.* was changed in place"):
        jitbatch(sample).plan(PARAMS, trees)
