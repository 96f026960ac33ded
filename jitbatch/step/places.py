"""Places in the arguments of a step: they locate samples, and replace them by handles."""

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from jitbatch.util.errors import ArgumentError


class Place(NamedTuple):
    """A place in the arguments of a step: the name of an argument, and the key path inside this argument."""

    argument: str
    path: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.argument + jax.tree_util.keystr(self.path)

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Parses a place from Python text: `"trees"`, `"batch['trees']"`, `"batch.trees"`, `"batch[0]"`."""
        path: list[Any] = []
        try:
            node: Any = ast.parse(text.strip(), mode="eval").body
            while not isinstance(node, ast.Name):
                if isinstance(node, ast.Attribute):
                    path.append(GetAttrKey(node.attr))
                else:
                    key = ast.literal_eval(node.slice)
                    path.append(SequenceKey(key) if isinstance(key, int) else DictKey(key))
                node = node.value
        except (AttributeError, SyntaxError, ValueError):
            raise ArgumentError(
                f'{text!r} does not name an argument, or a part of one, as "trees" and "batch[\'trees\']" do'
            ) from None
        return cls(node.id, tuple(reversed(path)))

    def of(self, argument: Any) -> Any:
        """Returns the part of an argument at this place's path."""
        for key in self.path:
            try:
                if isinstance(key, GetAttrKey):
                    argument = getattr(argument, key.name)
                else:
                    argument = argument[key.idx if isinstance(key, SequenceKey) else key.key]
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                raise ArgumentError(f"there is nothing at {self}, which should hold samples: {error!r}") from None
        return argument


@dataclass(frozen=True)
class Parameters:
    """The parameters of a step.

    Attributes:
        positional: the names of the parameters that can be passed by position.
        further: the name of the `*args` parameter, or None.
        named: the names of the parameters that can be passed by name.
        takes_any_name: whether there is a `**kwargs` parameter.
    """

    positional: tuple[str, ...]
    further: str | None
    named: frozenset[str]
    takes_any_name: bool

    @classmethod
    def of(cls, fun: Callable[..., Any]) -> "Parameters":
        parameters = inspect.signature(fun).parameters.values()
        kinds = {kind: [p.name for p in parameters if p.kind is kind] for kind in {p.kind for p in parameters}}
        only, either = (
            kinds.get(inspect.Parameter.POSITIONAL_ONLY, []),
            kinds.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, []),
        )
        return cls(
            positional=(*only, *either),
            further=next(iter(kinds.get(inspect.Parameter.VAR_POSITIONAL, [])), None),
            named=frozenset((*either, *kinds.get(inspect.Parameter.KEYWORD_ONLY, []))),
            takes_any_name=inspect.Parameter.VAR_KEYWORD in kinds,
        )

    def check(self, place: Place, step: str) -> None:
        """Raises `ArgumentError` if the step has no parameter with the name in `place`."""
        further = () if self.further is None else (self.further,)
        names: list[str] = list(dict.fromkeys((*self.positional, *further, *sorted(self.named))))
        if place.argument not in names and not self.takes_any_name:
            raise ArgumentError(f"{step} has no argument {place.argument!r}: it takes {', '.join(names)}")

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> "Bound":
        count = len(self.positional)
        arguments = dict(zip(self.positional, args, strict=False))
        if self.further is not None and len(args) > count:
            arguments[self.further] = tuple(args[count:])
        return Bound(self, tuple(args), {**arguments, **kwargs})


class Bound(NamedTuple):
    """The arguments of a call of a step.

    Attributes:
        parameters: the parameters of the step.
        args: the positional arguments.
        arguments: all arguments, by name.
    """

    parameters: Parameters
    args: tuple[Any, ...]
    arguments: dict[str, Any]

    def at(self, place: Place) -> Any:
        return place.of(self.arguments[place.argument])

    def replaced(self, place: Place, value: Any) -> "Bound":
        """Returns the call with `value` at a place."""
        argument = self.arguments[place.argument]
        if place.path:
            target = place.of(argument)
            replaced = jax.tree.map(
                lambda part: value if part is target else part, argument, is_leaf=lambda part: part is target
            )
        else:
            replaced = value
        return self._replace(arguments={**self.arguments, place.argument: replaced})

    def call(self, fun: Callable[..., Any]) -> Any:
        """Calls a function with these arguments; positional arguments stay positional."""
        positional = self.parameters.positional[: len(self.args)]
        args = [self.arguments[name] for name in positional]
        further = self.parameters.further
        if len(self.args) > len(positional) and further is not None:
            args += self.arguments[further]
        elif len(self.args) > len(positional):
            args += self.args[len(positional) :]  # too many arguments: `fun` raises the error
        taken = {*positional, further} if len(self.args) > len(positional) else {*positional}
        return fun(*args, **{name: value for name, value in self.arguments.items() if name not in taken})


def find(argument: Any, leaves: Sequence[int], structure: Any) -> tuple[Any, ...] | None:
    """Searches an argument for the part with the given leaves.

    Args:
        argument: the pytree to search.
        leaves: the `id` of each leaf of the part.
        structure: the tree structure of the part.

    Returns:
        The key path of the part, or None if the argument has no such part.
    """
    path: tuple[Any, ...] = ()
    while True:
        held = list(map(id, jax.tree.leaves(argument)))
        if held == leaves and jax.tree.structure(argument) == structure:
            return path
        if leaves[0] not in held:
            return None
        parts = jax.tree_util.tree_flatten_with_path(argument, is_leaf=lambda part, whole=argument: part is not whole)[
            0
        ]
        way, argument = next((way, part) for way, part in parts if leaves[0] in map(id, jax.tree.leaves(part)))
        if not way or isinstance(way[0], FlattenedIndexKey):
            return None
        path += way


def paths_to(argument: Any, part: Any) -> list[tuple[Any, ...]]:
    """Returns the key paths at which an argument has this very object."""
    found = jax.tree_util.tree_flatten_with_path(argument, is_leaf=lambda other: other is part)[0]
    return [path for path, other in found if other is part]
