"""Dataclasses as JSON, checked by their type hints: all fields are present, have their types, and are in range."""

import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

from jitbatch.ir.tables import Kind
from jitbatch.plan.saved.trees import Trees
from jitbatch.plan.saved.values import damaged
from jitbatch.util.caches import memoised

MAX_SIZE = 2**26
"""The largest number in a file. Sizes of rows, rounds and so on determine the allocated memory."""

LEAST = -64
"""The smallest number in a file. Negative numbers are axes counted from the end."""

MAX_DEPTH = 8
"""The largest nesting depth of names."""


class KindName(NamedTuple):
    """The name of a node kind: the digest of its cell, and for each operand the name of a shared value, or `()`."""

    cell: str
    binding: tuple[Any, ...]

    @property
    def rows(self) -> int:
        return self.binding.count(())


def to_data(value: Any) -> Any:
    """Converts nested dataclasses, tuples, mappings, numbers and texts to JSON data."""
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
    """Converts JSON data to a value of a type. The inverse of `to_data`.

    Args:
        hint: the type hint.
        data: the JSON data.
        where: the place of the data, for the error message.

    Raises:
        PlanError: the data has another type, or a number is out of range.
    """
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


@memoised(64)
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _dataclass(cls: Any, data: Any, where: str) -> Any:
    names = [field.name for field in fields(cls)]
    if not isinstance(data, dict) or data.keys() != set(names):
        damaged(f"{where} has other fields than {', '.join(names)}")
    hints = _hints(cls)
    return cls(**{name: from_data(hints[name], data[name], f"{where}.{name}") for name in names})


def _items(hints: tuple[Any, ...], data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        damaged(f"{where} is not a list")
    if len(hints) == 2 and hints[1] is ...:
        hints = (hints[0],) * len(data)
    if len(hints) != len(data):
        damaged(f"{where} has {len(data)} items, not {len(hints)}")
    return [from_data(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, data, strict=True))]


def _alternative(hints: tuple[Any, ...], data: Any, where: str) -> Any:
    """Returns the alternative of a union that fits the data: None, a dataclass with its fields, or another type."""
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
    """Converts data to a name: numbers and texts in nested tuples."""
    if isinstance(data, list) and depth < MAX_DEPTH:
        return tuple(_name(item, where, depth + 1) for item in data)
    if type(data) not in (int, str):
        damaged(f"{where} is no name")
    return data


def with_names(value: Any, names: Any) -> Any:
    """Replaces the kinds in a value, such as phases, by their names."""
    return replaced(value, Kind, lambda kind: KindName(*names.of_kind(kind)))


def replaced(value: Any, cls: type, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to every instance of the class `cls` in nested dataclasses and tuples."""
    if isinstance(value, cls):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: replaced(getattr(value, field.name), cls, change) for field in fields(value)}
        )
    return tuple(replaced(part, cls, change) for part in value) if isinstance(value, tuple) else value
