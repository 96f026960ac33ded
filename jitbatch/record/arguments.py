"""The arguments of `.batch`: shared parts, mapped parts, and the arguments of each sample."""

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jitbatch.util import compat, meshes
from jitbatch.util.errors import ArgumentError
from jitbatch.util.key_order import Orders, flatten, orders_above, with_orders
from jitbatch.util.sites import users_stacklevel

WIDEST = 8
"""A tuple with more items than this is not considered a tree node."""


class Part(NamedTuple):
    """A part of the arguments. It is shared or mapped as a whole."""

    name: str
    axis: int | None
    value: Any


class Arguments(NamedTuple):
    """The arguments of a call of `.batch`, split into parts.

    Attributes:
        parts: the parts of all arguments in order.
        layout: hashable; the way in which the parts make up the arguments.
        positional: the number of positional arguments.
        orders: for the call of a plan, the order of keys in its shared arguments (see `util/key_order`).
    """

    parts: list[Part]
    layout: tuple[tuple[str, Any, int], ...]
    positional: int
    orders: Orders = ()

    def emptied(self, orders: Orders) -> "Arguments":
        """This call without values: the parts, their axes, and the order of keys in shared arguments."""
        return self._replace(parts=[part._replace(value=None) for part in self.parts], orders=orders)

    @property
    def axes(self) -> tuple[int | None, ...]:
        return tuple([part.axis for part in self.parts])

    @property
    def shared(self) -> tuple[Any, ...]:
        return tuple([part.value for part in self.parts if part.axis is None])

    @property
    def mapped(self) -> list[Part]:
        return [part for part in self.parts if part.axis is not None]

    def rebuild(self, shared: Sequence[Any], sample: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call for one sample."""
        shared_parts, sample_parts = iter(shared), iter(sample)
        parts = iter([next(shared_parts if part.axis is None else sample_parts) for part in self.parts])
        built = [tree.unflatten([next(parts) for _ in range(count)]) for _, tree, count in self.layout]
        names = [name for name, _, _ in self.layout[self.positional :]]
        return built[: self.positional], dict(zip(names, built[self.positional :], strict=True))


def take_apart(
    signature: inspect.Signature, in_axes: Any, is_method: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Arguments:
    """Match arguments with `in_axes`, and split them into parts."""
    bound = _bind(signature, args, kwargs)
    names = _names(signature, len(bound.args))
    axes = _axes_of(in_axes, is_method, names)
    _check_length(in_axes, is_method, signature)
    parts: list[Part] = []
    layout = []
    named = [*zip(names, bound.args, axes, strict=True), *((k, v, 0) for k, v in bound.kwargs.items())]
    for name, value, axis in named:
        axis_leaves, treedef = jax.tree.flatten(axis, is_leaf=lambda a: a is None)
        for leaf in axis_leaves:
            if leaf is not None and not isinstance(leaf, int):
                raise ArgumentError(f"in_axes for {name!r} must be made of integers and None, got {leaf!r}")
        try:
            values = treedef.flatten_up_to(value)
        except ValueError as error:
            raise ArgumentError(f"in_axes {axis!r} does not fit the argument {name!r}: {error}") from None
        parts += [Part(name, leaf, value) for leaf, value in zip(axis_leaves, values, strict=True)]
        layout.append((name, with_orders(treedef, orders_above(value, values)), len(axis_leaves)))
    return Arguments(parts, tuple(layout), len(bound.args))


def each_call(
    signature: inspect.Signature, in_axes: Any, is_method: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls for a stream of minibatches. Each mapped argument is an iterable with one item for each minibatch."""
    bound = _bind(signature, args, kwargs)
    names = _names(signature, len(bound.args))
    axes = _axes_of(in_axes, is_method, names)
    mapped: dict[int | str, Iterable[Any]] = {}
    for place, (name, value, axis) in enumerate(zip(names, bound.args, axes, strict=True)):
        axis_leaves = jax.tree.leaves(axis, is_leaf=lambda a: a is None)
        if None not in axis_leaves:
            mapped[place] = value
        elif set(axis_leaves) != {None}:
            raise ArgumentError(f"argument {name!r} is partly mapped, so there is no iterable of minibatches of it")
    mapped.update(bound.kwargs)
    if not mapped:
        raise ArgumentError("no argument is mapped, so there are no minibatches")
    for place, value in mapped.items():
        if not isinstance(value, Iterable):
            name = place if isinstance(place, str) else names[place]
            raise ArgumentError(f"argument {name!r} is mapped: `.plans` takes an iterable of minibatches of it")

    def calls() -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        for values in zip(*mapped.values(), strict=True):
            given = dict(zip(mapped, values, strict=True))
            positional = tuple(given.get(place, value) for place, value in enumerate(bound.args))
            yield positional, {name: given[name] for name in bound.kwargs}

    return calls()


def shared_arguments(
    signature: inspect.Signature, in_axes: Any, is_method: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any],
) -> tuple[Any, ...]:  # fmt: skip
    """The shared parts of a call with a plan in place of its mapped arguments."""
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{error}; a plan stands in the place of the first mapped argument") from None
    names = _names(signature, len(bound.args))
    shared = []
    mapped = 0
    for name, value, axis in zip(names, bound.args, _axes_of(in_axes, is_method, names), strict=True):
        axis_leaves, treedef = jax.tree.flatten(axis, is_leaf=lambda a: a is None)
        if None not in axis_leaves:
            mapped += 1
        elif set(axis_leaves) != {None}:
            raise ArgumentError(f"argument {name!r} is partly mapped, so a plan cannot stand in its place")
        else:
            shared += treedef.flatten_up_to(value)
    if mapped + len(bound.kwargs) > 1:
        raise ArgumentError("a plan stands for all mapped arguments: leave the others out")
    return tuple(shared)


def are_shared(signature: inspect.Signature, in_axes: Any, is_method: bool) -> dict[str, bool]:
    """For each positional argument, by name, whether it is shared. Arguments without an entry in `in_axes` are left
    out."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]
    if isinstance(in_axes, tuple | list):
        names = names[: is_method + len(in_axes)]
    shared = {}
    for name, axis in zip(names, _axes_of(in_axes, is_method, names), strict=True):
        axis_leaves = jax.tree.leaves(axis, is_leaf=lambda a: a is None)
        if None in axis_leaves and set(axis_leaves) != {None}:
            raise ArgumentError(f"argument {name!r} is partly mapped: pass what is shared as an argument of its own")
        shared[name] = None in axis_leaves
    return shared


def _bind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{error}; `.batch`, `.plan` and `.plans` take the arguments {signature}") from None


def _names(signature: inspect.Signature, count: int) -> list[str]:
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count]


def _axes_of(in_axes: Any, is_method: bool, names: Sequence[str]) -> list[Any]:
    """The axis, or the tree of axes, of each positional argument."""
    count = len(names)
    if in_axes is None:
        return [None if i == 0 else 0 for i in range(count)]
    receiver = [None] if is_method else []
    if isinstance(in_axes, int):
        return (receiver + [in_axes] * count)[:count]
    if not isinstance(in_axes, tuple | list):
        raise ArgumentError(
            "in_axes is an integer or a tuple with an entry for each positional argument, as for jax.vmap, not "
            f"{in_axes!r}"
        )
    axes = receiver + list(in_axes)
    if len(axes) < count:
        raise ArgumentError(
            f"in_axes={in_axes!r} has {len(in_axes)} entries, but the call has {count - len(receiver)} positional "
            f"arguments: {', '.join(names[len(receiver) :])}"
        )
    return axes[:count]


def _check_length(in_axes: Any, is_method: bool, signature: inspect.Signature) -> None:
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds or not isinstance(in_axes, tuple | list):
        return
    positional = sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds) - is_method
    positional -= inspect.Parameter.VAR_KEYWORD in kinds
    if len(in_axes) > positional:
        raise ArgumentError(
            f"in_axes={in_axes!r} has {len(in_axes)} entries, but the function takes {positional} positional "
            f"arguments: {signature}"
        )


def samples_of(parts: Sequence[Part]) -> list[tuple[Any, ...]]:
    """The mapped arguments of each sample."""
    if not parts:
        raise ArgumentError(
            "no argument is mapped. By default the first argument is shared and the rest are mapped; "
            "give in_axes to say otherwise, as for jax.vmap"
        )
    columns = [(part.name, _items(part)) for part in parts]
    for part in parts:
        _warn_of_one_tree(part)
    if len({len(items) for _, items in columns}) > 1:
        told = ", ".join(f"{name} has {len(items)}" for name, items in columns)
        raise ArgumentError(f"mapped arguments must have one item for each sample, but {told}")
    return list(zip(*(items for _, items in columns), strict=True))


def _warn_of_one_tree(part: Part) -> None:
    """Warn about a tuple of numbers and tuples in place of samples, because it looks like one tree. It is no error: a
    tuple of samples is as good as a list of them, and two subtrees or two leaves look like two samples."""
    items = part.value
    if type(items) is not tuple or len(items) > WIDEST:
        return
    kinds = set(map(type, items))
    if tuple in kinds and not kinds.isdisjoint((int, float)):
        told = ", ".join(f"{item!r:.40}" for item in items)
        warnings.warn(
            f"jitbatch: argument {part.name!r} is a tuple of numbers and tuples, whose items are taken for "
            f"{len(items)} samples: {told}. If it is a single tree, give a list of it, `[tree]`; if not, "
            "give `list(samples)`",
            stacklevel=users_stacklevel(),
        )


def swapped(arguments: Arguments) -> str:
    """A hint for errors: the shared argument that may have been meant as samples, and the remedy. "" if there is
    none."""
    has_sequences = all(isinstance(part.value, Sequence) for part in arguments.mapped)
    for part in arguments.parts:
        if part.axis is not None or not isinstance(part.value, list | tuple) or not part.value:
            continue
        if not has_sequences or all(type(leaf) in (int, float, bool) for leaf in jax.tree.leaves(part.value)):
            names = ", ".join(other.name for other in arguments.parts)
            return (
                f"the argument {part.name!r}, which all samples share, is a {type(part.value).__name__} of "
                f"{len(part.value)} items. If these are the samples, they stand in the wrong place: the arguments are "
                f"({names})"
            )
    return ""


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _items(part: Part) -> Sequence[Any]:
    value, name = part.value, part.name
    if isinstance(value, np.ndarray | jax.Array):
        return _slices(value, part)
    if isinstance(value, str | bytes):
        pass
    elif isinstance(value, Sequence) and not _is_namedtuple(value):
        if part.axis != 0:
            raise ArgumentError(f"argument {name!r} is a sequence of samples, so its axis is 0, not {part.axis}")
        return value
    elif isinstance(value, Iterator):
        raise ArgumentError(f"argument {name!r} is a {type(value).__name__}; make it a list of samples")
    else:
        leaves, tree = flatten(value)
        if leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
            columns = [_slices(leaf, part) for leaf in leaves]
            if len({len(column) for column in columns}) > 1:
                paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]]
                told = ", ".join(f"{name}{path} has {len(column)}" for path, column in zip(paths, columns, strict=True))
                raise ArgumentError(f"arrays in argument {name!r} have different lengths on axis {part.axis}: {told}")
            return [tree.unflatten(row) for row in zip(*columns, strict=True)]
    raise ArgumentError(
        f"argument {name!r} is mapped (in_axes {part.axis}) but is a {type(value).__name__}: give a list of samples or "
        "an array with an axis of samples, or share it with in_axes None for this argument"
    )


def _slices(array: Any, part: Part) -> Sequence[Any]:
    axis = part.axis
    assert axis is not None
    if not -array.ndim <= axis < array.ndim:
        raise ArgumentError(
            f"argument {part.name!r} is mapped on axis {axis}, but it holds an array of shape {tuple(array.shape)}"
        )
    if compat.is_tracer(array) or compat.is_prng_key(array.dtype) or getattr(array, "weak_type", False):
        # NumPy has neither keys nor weak types.
        return meshes.run(lambda array: jax.numpy.unstack(array, axis=axis), array)
    return list(np.moveaxis(np.asarray(array), axis, 0))
