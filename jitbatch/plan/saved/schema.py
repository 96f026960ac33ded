"""Dataclasses as JSON, by their type hints: every field is there, has its type, and no size is absurd."""

import functools
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

from jitbatch.ir.tables import Kind
from jitbatch.plan.saved.trees import Trees
from jitbatch.plan.saved.values import damaged

MAX_SIZE = 2**26
"""How large a number in a file may be: sizes are of rows, rounds and the like, and decide what is allocated."""

LEAST = -64
"""The least number: an axis that is counted from the end."""

MAX_DEPTH = 8
"""How deep names are nested at most."""


class KindName(NamedTuple):
    """The name of a kind of node: the digest of its cell, and the names of what it is bound to, `()` for a row."""

    cell: str
    binding: tuple[Any, ...]

    @property
    def rows(self) -> int:
        return self.binding.count(())


def to_data(value: Any) -> Any:
    """A value of dataclasses, tuples, mappings, numbers and texts as JSON."""
    if isinstance(value, Trees):
        return value.to_data()
    if is_dataclass(value):
        return {field.name: to_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return list(map(to_data, value))
    if isinstance(value, Mapping):
        return [[to_data(key), to_data(content)] for key, content in value.items()]
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def from_data(hint: Any, data: Any, where: str = "it") -> Any:
    """The value of a type that was encoded; an error that says where it is something else."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, Hashable):
        return _name(data, where)
    if origin in (typing.Union, types.UnionType):
        return from_data(_alternative(arguments, data, where), data, where)
    if hint is types.NoneType:
        return None
    if hint is Trees:
        return Trees.from_data(data)
    if hint is Kind:
        return from_data(KindName, data, where)
    if hint is int:
        if type(data) is not int or not LEAST <= data <= MAX_SIZE:
            damaged(f"{where} is {str(data)[:40]}, not a number up to {MAX_SIZE}")
        return data
    if hint in (bool, str):
        return data if type(data) is hint else damaged(f"{where} is not a {hint.__name__}")
    if origin is Mapping:
        pairs = from_data(tuple[tuple[Any, arguments[1]], ...], data, where)
        return dict(pairs)
    if is_dataclass(hint):
        return _dataclass(hint, data, where)
    named = typing.get_type_hints(hint) if hasattr(hint, "_fields") else {}
    return hint(*_items(tuple(named.values()), data, where)) if named else tuple(_items(arguments, data, where))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    names = [field.name for field in fields(kind)]
    if not isinstance(data, dict) or data.keys() != set(names):
        damaged(f"{where} has other fields than {', '.join(names)}")
    hints = _hints(kind)
    return kind(**{name: from_data(hints[name], data[name], f"{where}.{name}") for name in names})


def _items(hints: tuple[Any, ...], data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        damaged(f"{where} is not a list")
    if len(hints) == 2 and hints[1] is ...:
        hints = (hints[0],) * len(data)
    if len(hints) != len(data):
        damaged(f"{where} has {len(data)} items, not {len(hints)}")
    return [from_data(hint, one, f"{where}[{i}]") for i, (hint, one) in enumerate(zip(hints, data, strict=True))]


def _alternative(hints: tuple[Any, ...], data: Any, where: str) -> Any:
    """The type among several that data look like: None, a dataclass with these fields, or anything else."""
    for hint in hints:
        if hint is types.NoneType:
            matches = data is None
        elif hint is Trees:
            matches = isinstance(data, dict)
        elif is_dataclass(hint) and isinstance(data, dict):
            matches = data.keys() == {field.name for field in fields(hint)}
        else:
            matches = not is_dataclass(hint) and data is not None
        if matches:
            return hint
    return damaged(f"{where} is of no type that it can have")


def _name(data: Any, where: str, depth: int = 0) -> Any:
    """A name that is the same in every process: numbers and texts, in tuples."""
    if isinstance(data, list) and depth < MAX_DEPTH:
        return tuple(_name(one, where, depth + 1) for one in data)
    if type(data) not in (int, str):
        damaged(f"{where} is no name")
    return data


def with_names(value: Any, names: Any) -> Any:
    """A kind, or phases, with names in place of kinds."""
    return replaced(value, Kind, lambda kind: KindName(*names.of_kind(kind)))


def replaced(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Nested dataclasses and tuples, with every instance of a class changed."""
    if isinstance(value, kind):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{own.name: replaced(getattr(value, own.name), kind, change) for own in fields(value)})
    return tuple(replaced(part, kind, change) for part in value) if isinstance(value, tuple) else value
