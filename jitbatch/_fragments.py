"""Fragments: what a decorated function recorded that calls other decorated functions, to be recorded again at once.

A tree that is encoded by a decorated function calls it for its subtrees. A subtree of a structure that was met before,
in whatever sample, need not be walked again: its operations are copied, with other values in place of its arguments.
"""

from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple

import jax

from jitbatch import _compat
from jitbatch._sites import Site
from jitbatch._values import ConstantRow, Op, Value, is_array, within_body

MAX_OPERATIONS = 64
"""Larger fragments are not kept: they are rarely met again, and what they call is kept itself."""


class Argument(NamedTuple):
    """A leaf of the arguments of a call."""

    leaf: int


class Made(NamedTuple):
    """An output of an earlier step, or of an earlier operation of a fragment."""

    step: int
    output: int


class Frame(NamedTuple):
    """What is needed of a frame that has ended; frames hold on to whatever their functions used."""

    f_code: CodeType
    f_lineno: int


class Copied(NamedTuple):
    """An operation of a fragment; its scope is counted from that of the call."""

    op: Op
    inputs: tuple[Any, ...]
    scope: int
    avals: tuple[tuple[Any, int], ...]


class Fragment(NamedTuple):
    """The operations of a call, how many scopes they are in, and the leaves and the tree of its result."""

    operations: tuple[Copied, ...]
    scopes: int
    results: tuple[Any, ...]
    out_tree: Any


def make_fragment(ops: Sequence[Op], scope: int, scopes: int, aliases: Sequence[Any], result: Any) -> Fragment | None:
    """The fragment of a call, or None if it cannot be recorded again without running its body.

    Args:
        ops: what was recorded.
        scope, scopes: the first scope and how many there are.
        aliases: the leaves of the arguments.
        result: what the call returned.
    """
    if len(ops) > MAX_OPERATIONS:
        return None
    leaves, out_tree = jax.tree.flatten(result)
    argument = {id(alias): i for i, alias in enumerate(aliases) if type(alias) is Value}
    places: dict[int, Any] = {key: Argument(i) for key, i in argument.items()}
    frames: dict[int, Frame] = {}

    def place(value: Any) -> Any:
        value = within_body(value, argument)
        if type(value) is Value and isinstance(value.source, ConstantRow):
            return value.source
        return places.get(id(value), value)

    copied = []
    for number, op in enumerate(ops):
        kept = Op((), 0, _without_frames(op.site, frames))
        kept.primitive, kept.params, kept.effects = op.primitive, op.params, op.effects
        kept.cell, kept.passed, kept.index = op.cell, op.passed, op.index
        avals = tuple((value.aval, value.aval_number) for value in op.outputs)
        copied.append(Copied(kept, tuple(map(place, op.inputs)), op.scope - scope, avals))
        for output, value in enumerate(op.outputs):
            places[id(value)] = Made(number, output)
    results = tuple(map(place, leaves))
    foreign = [value for one in (*(c.inputs for c in copied), results) for value in one if _is_foreign(value)]
    if foreign or not all(map(is_array, leaves)):
        return None
    return Fragment(tuple(copied), scopes, results, out_tree)


def _is_foreign(value: Any) -> bool:
    """Whether a value belongs to this one recording: what is closed over instead of passed."""
    return not isinstance(value, Argument | Made | ConstantRow) and _compat.is_tracer(value)


def _without_frames(site: Site | None, frames: dict[int, Frame]) -> Site | None:
    if site is None:
        return None
    chain = []
    for frame, instruction in site.chain:
        kept = frames.get(id(frame))
        if kept is None:
            kept = frames[id(frame)] = Frame(frame.f_code, frame.f_lineno)
        chain.append((kept, instruction))
    return Site(tuple(chain), site.ordinal)  # type: ignore[arg-type]
