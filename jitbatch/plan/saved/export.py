"""Serialization of plans in programs that `jax.export` exports.

JAX saves an exported program with the trees of its arguments and results. This module registers functions that save the
static parts of these trees as plain data, as in files of plans (see `plan/saved/plans`). An exported program accepts
only arguments whose tree equals the saved one. So it accepts the plans whose static part is for the same program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.export

from jitbatch.ir.tables import Interned
from jitbatch.plan.plan import Plan
from jitbatch.plan.ragged import Ragged
from jitbatch.plan.saved.plans import data_of, saved_static, static_of
from jitbatch.plan.saved.trees import Trees, structures
from jitbatch.plan.saved.values import NotData, decode_value, dumps, encode_value, loads
from jitbatch.util.errors import OutputError, PlanError
from jitbatch.util.packed import Layout, Packed
from jitbatch.util.static import Static


class ExportedOutlines(Interned[Any]):
    """The nestings of ragged results that were known at export.

    They equal every table of nestings that begins with them, such as that of the function that calls the program.
    """

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExportedOutlines):
            return self.entries == other.entries
        return isinstance(other, Interned) and self.entries == other.entries[: len(self)]

    def __hash__(self) -> int:
        return hash(ExportedOutlines)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise OutputError(
                "the result of a sample nests its items in a way that the exported program has not met. Return rows "
                "from it (`ragged.rows`, `.sum()`), or export it anew"
            )
        return self.entries[index]


def _save_outlines(static: tuple[Interned[Any]]) -> bytes:
    nestings = [tree.unflatten([0] * tree.num_leaves) for tree in static[0].entries]
    return dumps(Trees.of(nestings, "a result", None).to_data()).encode()


def _restore_outlines(data: bytes) -> tuple[Interned[Any]]:
    outlines = ExportedOutlines()
    for tree in structures(Trees.from_data(loads(data), ())):
        outlines.number(tree)
    return (outlines,)


def _save_layout(layout: Layout) -> bytes:
    return dumps(_nested(layout.treedef.unflatten(map(list, layout.shapes)))).encode()


def _nested(tables: Any) -> Any:
    """Converts a tree of table shapes to data. A shape is a dict with the key "", which no dict of tables has."""
    if isinstance(tables, dict):
        return {name: _nested(part) for name, part in tables.items()}
    if isinstance(tables, tuple):
        return [_nested(part) for part in tables]
    return None if tables is None else {"": tables}


def _restore_layout(data: bytes) -> Layout:
    def tables(about: Any) -> Any:
        if isinstance(about, dict):
            return _Shape(about[""]) if "" in about else {name: tables(part) for name, part in about.items()}
        return None if about is None else tuple(map(tables, about))

    shapes, treedef = jax.tree.flatten(tables(loads(data)))
    return Layout(treedef, tuple(tuple(shape.axes) for shape in shapes))


@dataclass(frozen=True)
class _Shape:
    """The shape of a table, as a leaf of a pytree."""

    axes: list[int]


def _save_static(static: Static[Any]) -> bytes:
    try:
        return dumps(encode_value(static.value, None)).encode()
    except NotData as error:
        raise PlanError(f"an exported program cannot hold {static!r}: {error} is not data") from None


def _register(node: type, save: Callable[[Any], bytes], restore: Callable[[bytes], Any]) -> None:
    jax.export.register_pytree_node_serialization(
        node, serialized_name=f"jitbatch.{node.__name__}", serialize_auxdata=save, deserialize_auxdata=restore
    )


_register(Plan, lambda static: data_of(saved_static(static)), static_of)
_register(Ragged, _save_outlines, _restore_outlines)
_register(Packed, _save_layout, _restore_layout)
_register(Static, _save_static, lambda data: Static(decode_value(loads(data), ())))
