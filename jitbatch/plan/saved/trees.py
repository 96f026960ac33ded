"""Pytrees as JSON: samples without their data, and the trees of arguments and results.

A tree is a list of indices into a table of distinct nodes. The list has the tree's nodes in preorder, children from
left to right. So the depth of a tree is not limited by the depth of JSON. The contents of class instances are decoded
when a tree is opened, not when it is read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import jax

from jitbatch.plan.saved.values import (
    CHANGED,
    NotData,
    check_shape,
    class_name,
    damaged,
    decode_value,
    dtype_named,
    dumps,
    encode_value,
    find_class,
    has_name,
    is_named_tuple,
    make_instance,
)
from jitbatch.record.structure import is_named_tuple as is_plain_named_tuple
from jitbatch.util import compat
from jitbatch.util.array_leaves import NUMBERS
from jitbatch.util.errors import PlanError
from jitbatch.util.key_order import structure
from jitbatch.util.static import Static

_NUMBERS = {kind.__name__: kind for kind in NUMBERS}
_SEQUENCES: dict[str, Callable[..., Any]] = {"tuple": tuple, "list": list}


@dataclass(frozen=True, eq=False)
class Trees:
    """A sequence of trees as data.

    Attributes:
        nodes: the distinct nodes. A node is a list that begins with the name of its type.
        walks: for each tree, the indices of its nodes in preorder.
        objects: the values in the nodes that are not data; only a pickle has them.
    """

    nodes: tuple[Any, ...]
    walks: tuple[tuple[int, ...], ...]
    objects: tuple[Any, ...] = ()

    @staticmethod
    def of(trees: Iterable[Any], what: str, objects: list[Any] | None = None) -> "Trees":
        """Encodes trees whose leaves are numbers or instances of `jax.ShapeDtypeStruct`.

        Args:
            trees: the trees.
            what: the name of a tree, for the error message.
            objects: a list that receives the parts that are not data; None to raise `PlanError` for them.
        """
        nodes: dict[str, int] = {}
        described: list[Any] = []
        walks = []
        for tree in trees:
            walk: list[int] = []
            remaining: list[tuple[Any, Any]] = [(tree, None)]
            while remaining:
                part, path = remaining.pop()
                try:
                    node, children = _describe(part, objects)
                    text = dumps(node)
                except (NotData, RecursionError) as error:
                    raise _refusal(error, what, path) from None
                if text not in nodes:
                    nodes[text] = len(nodes)
                    described.append(node)
                walk.append(nodes[text])
                remaining += [(child, (path, key)) for key, child in reversed(children)]
            walks.append(tuple(walk))
        return Trees(tuple(described), tuple(walks), tuple(objects or ()))

    def to_data(self) -> dict[str, Any]:
        return {"nodes": list(self.nodes), "trees": [list(walk) for walk in self.walks]}

    @staticmethod
    def from_data(data: Any, objects: Sequence[Any] = ()) -> "Trees":
        """Decodes and checks trees. The contents of class instances are not decoded yet."""
        if not isinstance(data, dict) or data.keys() != {"nodes", "trees"}:
            damaged("trees are nodes and their order")
        if not isinstance(data["nodes"], list) or not isinstance(data["trees"], list):
            damaged("trees are lists of numbers")
        arity = list(map(_arity, data["nodes"]))
        for walk in data["trees"]:
            if not isinstance(walk, list) or not all(type(n) is int and 0 <= n < len(arity) for n in walk):
                damaged("a tree is a list of nodes")
            missing = 1
            for node_id in walk:
                missing = missing - 1 + arity[node_id] if missing > 0 else damaged("nodes behind the end of a tree")
            if missing != 0:
                damaged("a tree that does not end")
        return Trees(tuple(data["nodes"]), tuple(map(tuple, data["trees"])), tuple(objects))

    def leaf_counts(self) -> list[int]:
        """Returns the number of leaves of each tree."""
        is_leaf = [node[0] in _NUMBERS or node[0] == "array" for node in self.nodes]
        return [sum(is_leaf[node_id] for node_id in walk) for walk in self.walks]

    @property
    def is_plain(self) -> bool:
        """Whether the trees can be opened without calling functions of classes that are registered with JAX."""
        return all(node[0] != "node" for node in self.nodes)

    def open(self) -> tuple[Any, ...]:
        """Returns the trees.

        This calls the unflattening functions of classes that are registered with JAX. Do not call it while a file is
        read.
        """
        try:
            return self._open()
        except PlanError:
            raise
        except Exception as error:  # from a class registered with JAX
            raise PlanError(f"a saved tree cannot be put together again: {CHANGED}") from error

    def _open(self) -> tuple[Any, ...]:
        makers = [_maker(node, self.objects) for node in self.nodes]
        arity = list(map(_arity, self.nodes))
        opened = []
        for walk in self.walks:
            built: list[Any] = []
            for node_id in reversed(walk):
                children = [built.pop() for _ in range(arity[node_id])]
                built.append(makers[node_id](children))
            opened += built
        return tuple(opened)


def structures(trees: Trees) -> tuple[Any, ...]:
    opened = trees.open()
    try:
        return tuple(map(structure, opened))
    except ValueError as error:  # keys of a dict that cannot be compared
        raise PlanError(f"a saved tree cannot be taken apart again: {CHANGED}") from error


# Encoding


def _describe(part: Any, objects: list[Any] | None) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Returns the description of a node without its children, and the children, each with the text of its key."""
    cls = type(part)
    if cls in NUMBERS:
        return [cls.__name__], []
    if isinstance(part, jax.ShapeDtypeStruct):
        return ["array", list(part.shape), str(part.dtype), bool(part.weak_type)], []
    if part is None:
        return ["none"], []
    if cls is Static:
        return ["static", encode_value(part.value, objects)], []
    if cls in (tuple, list):
        return [cls.__name__, len(part)], [(f"[{i}]", child) for i, child in enumerate(part)]
    if cls is dict:
        return ["dict", *(encode_value(key, objects) for key in part)], [(f"[{k!r}]", v) for k, v in part.items()]
    if is_named_tuple(cls) and is_plain_named_tuple(cls, part):
        children = [(f".{name}", child) for name, child in zip(cls._fields, part, strict=True)]
        return ["named", _class(cls, part, objects), len(part)], children
    flat = compat.flatten_one_level(part)
    if flat is None:
        raise NotData(part)
    children, about = flat
    names = _field_names(part, children) if is_dataclass(part) else None
    if names is not None:
        others = [field.name for field in fields(part) if field.name in vars(part).keys() - {*names}]
        static = [[name, encode_value(getattr(part, name), objects)] for name in others]
        node = ["fields", _class(cls, part, objects), names, static]
        return node, [(f".{name}", child) for name, child in zip(names, children, strict=True)]
    node = ["node", _class(cls, part, objects), encode_value(about, objects), len(children)]
    return node, [(f"<{i}>", child) for i, child in enumerate(children)]


def _field_names(part: Any, children: list[Any]) -> list[str] | None:
    """Returns the names of the fields of a dataclass that are its children.

    Returns None unless a new instance with the same fields has the same tree structure. If it has, the auxiliary data
    that a library registers with JAX (as Equinox does for its modules) need not be saved.
    """
    with_paths = jax.tree_util.tree_flatten_with_path(part, is_leaf=lambda inner: inner is not part)[0]
    names = [path[0].name for path, _ in with_paths if hasattr(path[0], "name")]
    attributes = getattr(part, "__dict__", {})
    if len(names) != len(children) or not {*names} <= attributes.keys() <= {field.name for field in fields(part)}:
        return None
    return names if _one_level(part) == _one_level(make_instance(type(part), attributes)) else None


def _one_level(node: Any) -> Any:
    return jax.tree.structure(node, is_leaf=lambda inner: inner is not node)


def _class(cls: type, part: Any, objects: list[Any] | None) -> Any:
    if has_name(cls):
        return class_name(cls)
    if objects is None:
        raise NotData(part)
    return encode_value(cls, objects)


def _refusal(error: Exception, what: str, path: Any) -> PlanError:
    keys = []
    while path is not None:
        path, key = path
        keys.append(key)
    where = f"{what} at {''.join(reversed(keys))}" if keys else what
    if isinstance(error, RecursionError):
        return PlanError(f"{where} cannot be saved: it holds a value that is nested too deeply")
    value: Any = error.args[0]
    return PlanError(
        f"{where} cannot be saved: it holds {repr(value)[:100]} of type {type(value).__name__}, which is not data. "
        "Numbers, texts, containers of these, and instances of enumerations, named tuples, dataclasses and classes "
        "registered with JAX are, if their class is found in its module by its name. Wrap a name in Static instead, "
        "and look up what it stands for in the function; or pickle the plan, for files that nobody else can write"
    )


# Decoding


def _arity(node: Any) -> int:
    """Returns the number of children of a node. Raises `PlanError` for data that is not a node."""
    match node:
        case [str(name)] if name in _NUMBERS or name == "none":
            return 0
        case ["array", [*shape], name, bool()]:
            check_shape(shape)
            dtype_named(name)
            return 0
        case ["static", _]:
            return 0
        case ["fields", _, [*names], [*static]] if all(isinstance(field, list) and len(field) == 2 for field in static):
            return len(names)
        case ["tuple" | "list", int(count)] | ["named", _, int(count)] | ["node", _, _, int(count)] if count >= 0:
            return count
        case ["dict", *keys]:
            return len(keys)
    return damaged("a node of a tree")


def _maker(node: Any, objects: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Returns a function from the children of a node to the node."""
    match node:
        case ["array", shape, name, weak]:
            array = jax.ShapeDtypeStruct(tuple(shape), dtype_named(name), weak_type=weak)
            return lambda _: array
        case ["none"]:
            return lambda _: None
        case ["static", value]:
            static = Static(decode_value(value, objects))
            return lambda _: static
        case ["tuple" | "list" as name, _]:
            return _SEQUENCES[name]
        case ["dict", *encoded]:
            keys = [decode_value(key, objects) for key in encoded]
            return lambda children: dict(zip(keys, children, strict=True))
        case ["named", name, count]:
            cls: Any = _find(name, objects)
            if not is_named_tuple(cls) or len(cls._fields) != count:
                damaged(f"the fields of {class_name(cls)} are others")
            return lambda children: tuple.__new__(cls, children)
        case ["fields", name, names, static]:
            cls = _find(name, objects)
            known = {field: decode_value(value, objects) for field, value in static}
            if not is_dataclass(cls) or not {*names, *known} <= {field.name for field in fields(cls)}:
                damaged("an instance has other fields than its class")
            return lambda children: make_instance(cls, {**known, **dict(zip(names, children, strict=True))})
        case ["node", name, about, count]:
            return compat.unflatten_one_level(_find(name, objects), decode_value(about, objects), count)
    make = _NUMBERS[node[0]]
    return lambda _: make()


def _find(name: Any, objects: Sequence[Any]) -> type:
    return find_class(name) if isinstance(name, str) else decode_value(name, objects)
