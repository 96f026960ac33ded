"""Saving and loading of plans.

A saved plan holds its tables and input rows, and its static part with names in place of ids (see `plan/capacity`). The
file holds only data (see `plan/saved/file`). A pickle of a plan holds the bytes of this file. Loading runs no code from
the file: it verifies the checksum, and checks that sizes, tables and rows fit together. The first
`f.batch(shared, plan)` records the exemplars, checks that all names exist, and rebuilds the static part. The trees of
results come from the exemplars; only other trees are saved.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch._version import __version__
from jitbatch.batch.types import types_of
from jitbatch.execute.predicted_memory import StaticMemory
from jitbatch.execute.program import ArenaShape
from jitbatch.execute.sizes import Sizes
from jitbatch.ir.cell import array_key
from jitbatch.ir.graph import Graph
from jitbatch.ir.tables import Interned, Tables, ValueClass
from jitbatch.plan.capacity import Capacity, Names, capacity_of, check_arenas, find_name, saveable, sizes_of
from jitbatch.plan.ragged import Ragged
from jitbatch.plan.saved import file
from jitbatch.plan.saved.checks import PlanArrays, check_arrays, check_sizes
from jitbatch.plan.saved.content import Content, SavedArena
from jitbatch.plan.saved.dispatch import DISPATCH_FORMAT
from jitbatch.plan.saved.fused import FUSED_FORMAT
from jitbatch.plan.saved.schema import KindName, replaced
from jitbatch.plan.saved.trees import Trees, structures
from jitbatch.plan.saved.values import CHANGED, class_name, damaged
from jitbatch.plan.static import PlanStatic, interned
from jitbatch.record.arguments import Arguments, Part
from jitbatch.util import compat
from jitbatch.util.caches import Cache
from jitbatch.util.errors import PlanError
from jitbatch.util.key_order import sorted_tree
from jitbatch.util.packed import pack

FORMATS = {"fused": FUSED_FORMAT, "dispatch": DISPATCH_FORMAT}
"""The formats, by the names of executors. Plans of other executors cannot be saved."""

P = TypeVar("P")
"""A `Plan`. The class imports this module, so it is not named here."""


@dataclass(frozen=True, eq=False, repr=False)
class SavedStatic:
    """The static part of a loaded plan.

    Attributes:
        content: the saved content.
        text: the content as bytes. Saving the plan again writes these bytes.
        digest: the digest of `text`.
        objects: the values in samples that are not data; only a pickle has them.
    """

    content: Content
    text: bytes
    digest: str
    objects: tuple[Any, ...] = ()

    @property
    def function(self) -> str:
        return self.content.function

    @property
    def granularity(self) -> str:
        return self.content.granularity

    @property
    def executor(self) -> str:
        return self.content.executor

    @property
    def reason(self) -> str:
        return self.content.reason

    def __getattr__(self, name: str) -> Any:
        if name not in PlanStatic.__dataclass_fields__ and name != "out_classes":
            raise AttributeError(name)
        raise PlanError(
            "the plan was loaded or unpickled, and is known in full only to the function that made it: ask "
            f"`{self.function}.plan(shared, samples, like=plan)` instead"
        )

    def check(self, function: str, shared_key: Any) -> None:
        """Raises `PlanError` for another function, version or kind of shared arguments."""
        if self.function != function:
            raise PlanError(
                f"the plan was made by `{self.function}`, not by `{function}`: a plan is run by the function that "
                "made it"
            )
        if self.content.version != version():
            raise PlanError(f"the plan was made by {self.content.version}, but this is {version()}. Plan again")
        saved, described = self.content.shared, _described(shared_key)
        if saved != described:
            places = [i for i, (was, now) in enumerate(zip(saved, described, strict=False)) if was != now]
            told = f"there were {len(saved)} leaves, and are {len(described)}"
            if len(saved) == len(described):
                told = f"leaf {places[0]} was {saved[places[0]]}, is {described[places[0]]}"
            raise PlanError(
                f"the shared arguments differ in shape or dtype from those that the plan of `{function}` was made "
                f"with: {told}. Plan again with these"
            )

    @property
    def capacity(self) -> Capacity:
        if self.content.phases is None:
            raise PlanError(f"a plan for the {self.executor} executor has the sizes of its batch, no capacity")
        exemplars: Any = self.content.capacity.exemplars
        return replace(self.content.capacity, exemplars=replace(exemplars, objects=self.objects))

    @property
    def memory(self) -> StaticMemory:
        return self.content.memory

    def __repr__(self) -> str:
        sizes = str(self.capacity) if self.content.phases is not None else f"of {self.digest[:8]}"
        return f"<saved {self.executor} program of {self.function}: {sizes}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlanStatic):  # `jax.export` compares the plan of a call with the saved one
            other = saved_static(other)
        return isinstance(other, SavedStatic) and self.content.program == other.content.program

    def __hash__(self) -> int:
        return hash(self.content.program)


def version() -> str:
    """Returns the versions of jitbatch and JAX."""
    return f"jitbatch {__version__} with jax {jax.__version__}"


def name_of(owner: Any) -> str:
    """Returns the qualified name of a batched function."""
    return getattr(owner.__wrapped__, "__qualname__", type(owner.__wrapped__).__qualname__)


def _described(shared_key: Any) -> tuple[str, ...]:
    described = shared_key[2]
    return tuple(leaf.__name__ if isinstance(leaf, type) else str(leaf and ValueClass(*leaf[:2])) for leaf in described)


# Saving


def to_bytes(plan: Any, objects: list[Any] | None) -> bytes:
    """Returns a plan as the bytes of a file.

    Args:
        plan: the plan.
        objects: a list that receives the values that are not data; None to raise `PlanError` for them.
    """
    static: Any = plan.static
    if not isinstance(static, SavedStatic):
        text = _content_of(static, objects).to_bytes()
    else:
        text = data_of(static) if objects is None else static.text
        if objects is not None:
            objects += static.objects
    arrays: list[Any] = []

    def reference(leaf: Any) -> Any:
        if compat.is_tracer(leaf):
            raise PlanError("a plan that is being traced cannot be saved or pickled")
        arrays.append(leaf)
        return len(arrays) - 1

    about = jax.tree.map(reference, {"inputs": plan.rows, "out_rows": plan.out_rows, "counts": plan.counts})
    about["tables"], about["ragged"] = jax.tree.map(reference, plan.tables.unpack()), None
    if plan.ragged is not None:
        nestings = [_opened(tree) for tree in plan.ragged.outlines.entries]
        about["ragged"] = {name: reference(getattr(plan.ragged, name)) for name in _RAGGED}
        outlines = Trees.of(nestings, "a result", objects)
        if objects is None and not outlines.is_plain:
            raise PlanError(
                "a result holds an instance of a class with no array in it, and cannot be saved: leave it out"
            )
        about["ragged"]["outlines"] = outlines.to_data()
    return file.pack(about, text, arrays)


_RAGGED = ("sample", "position", "mask", "outline")


_saved_statics = Cache(256)


def saved_static(static: PlanStatic | SavedStatic) -> SavedStatic:
    """Returns the saved form of a static part. Values in samples that are not data are in its `objects`."""
    return static if isinstance(static, SavedStatic) else _saved_statics.get_or_make(static, lambda: _save(static))


def _save(static: PlanStatic) -> SavedStatic:
    objects: list[Any] = []
    content = _content_of(static, objects)
    text = content.to_bytes()
    return SavedStatic(content, text, file.digest(text), tuple(objects))


def data_of(static: SavedStatic) -> bytes:
    """Returns a static part as plain data. Raises `PlanError` if it has objects that are not data."""
    if static.objects:
        raise PlanError(
            "the plan was unpickled, and holds values that are not data: plan again, and save that, which names them"
        )
    return static.text


def _opened(tree: Any) -> Any:
    """Returns a pytree of this structure with zeros as leaves."""
    return tree.unflatten([0] * tree.num_leaves)


def _content_of(static: PlanStatic, objects: list[Any] | None) -> Content:
    if static.types is None:
        raise PlanError(
            "a plan for the per_sample executor holds compiled programs: save the samples, and plan them again"
        )
    program_format = FORMATS.get(static.executor)
    if program_format is None:
        raise PlanError(f"plans for the {static.executor} executor have no saved form")
    names, program, call = Names(static.tables), static.program, static.call
    sizes, capacity = program.sizes, None
    if sizes is None:
        sizes = Sizes(profile=static.types.profile, exemplars=static.types.exemplars)
        capacity = capacity_of(sizes, [], 0, static.tables)
    capacity = saveable(static.capacity if capacity is None else capacity, objects)
    known = _recorded_trees(sizes.exemplars, static.out)
    others = list(dict.fromkeys(tree for tree in static.out_trees if tree not in known))
    content = Content(
        function=name_of(static.owner),
        version=version(),
        granularity=static.tables.granularity,
        executor=static.executor,
        reason=static.reason,
        shared=_described(static.shared_key),
        parts=tuple((part.name, part.axis) for part in call.parts),
        layout=tuple((name, count) for name, _, count in call.layout),
        layout_trees=Trees.of([_opened(tree) for _, tree, _ in call.layout], "in_axes", objects),
        positional=call.positional,
        orders=Trees.of([dict.fromkeys(keys, 0) for keys in call.orders], "the shared arguments", objects),
        capacity=capacity,
        graphs=tuple(_graph_digest(graph, names) for graph in sizes.exemplars),
        is_split=static.types.is_split,
        arenas=tuple(_saved_arena(arena, names) for arena in static.arenas),
        **{
            **dict.fromkeys(saved_format.field for saved_format in FORMATS.values()),
            program_format.field: program_format.save(program, names),
        },
        out=static.out,
        out_trees=tuple((*known, *others).index(tree) for tree in static.out_trees),
        trees=Trees.of(map(_opened, others), "a result", objects),
        out_arenas=static.out_arenas,
        memory=static.memory,
    )
    return replace(content, program=_program_digest(content, static.out_trees))


def _program_digest(content: Content, out_trees: Sequence[Any]) -> str:
    """Returns a digest that is equal for plans of one program. Exemplars and cell names do not count."""
    none = Trees.of([], "", None)
    bare = replace(
        content, reason="", graphs=(), out_trees=(), trees=none,
        capacity=replace(content.capacity, exemplars=none, cells=()),
    )  # fmt: skip
    described = bare.to_bytes() + repr([_tree_name(tree) for tree in out_trees]).encode()
    return hashlib.sha256(described).hexdigest()


def _recorded_trees(exemplars: Sequence[Graph], out: str) -> list[Any]:
    """Returns the trees of the exemplars' results; for `out="ragged"`, of their items, or None without items."""
    if out == "ragged":
        return [graph.items.trees[0] if graph.items.trees else None for graph in exemplars]
    return [graph.out_tree for graph in exemplars]


def _graph_digest(graph: Graph, names: Names) -> str:
    """Returns a digest of a graph: its kinds, shared values, edges, constants and result tree."""
    kinds = [names.of_kind(graph.tables.kinds[kind_id]) for kind_id in graph.kind.tolist()]
    shared = [names.of_shared(shared_id) for shared_id in graph.shared_rows.tolist()]
    reads = [part.tolist() for part in (graph.inputs, graph.operand_start, graph.operands, graph.outputs)]
    constants = [array_key(constant) for constant in graph.constants]
    described = repr((kinds, shared, reads, constants, _tree_name(graph.out_tree)))
    return hashlib.sha256(described.encode()).hexdigest()


def _tree_name(tree: Any) -> list[Any]:
    """Describes a tree by the class names of its nodes and the keys of dicts, which are equal in every process."""
    nodes, remaining = [], [sorted_tree(tree)]
    while remaining:
        part = remaining.pop()
        cls, about = part.node_data() or (None, None)
        keys = [key for key in about if type(key) in (str, int)] if cls is dict and about else []
        nodes.append((cls and class_name(cls), keys, len(part.children())))
        remaining += part.children()
    return nodes


def _saved_arena(arena: ArenaShape, names: Names) -> SavedArena:
    shared = tuple(map(names.of_shared, arena.shared))
    return SavedArena(names.of_class(arena.value_class), shared, arena.inputs, arena.capacity)


# Loading


def from_bytes(content: bytes, objects: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Returns the fields of the plan in a file or a pickle.

    Args:
        content: the bytes of the file.
        objects: the values in a pickle that are not data; None for a file.
    """
    about, text, arrays = file.unpack(content)
    try:
        return _parts_of(about, text, arrays, objects)
    except PlanError:
        raise
    except Exception as error:  # a forged file may cause errors of any type
        damaged(f"{type(error).__name__}: {str(error)[:100]}")


def static_of(text: bytes) -> SavedStatic:
    """Returns the static part of a plan from its saved text."""
    digest = file.digest(text)
    return _statics.get_or_make(digest, lambda: SavedStatic(_checked(text), text, digest))


def _parts_of(about: Any, text: bytes, arrays: Sequence[Any], objects: tuple[Any, ...] | None) -> tuple[Any, ...]:
    static = static_of(text)
    static = replace(static, objects=objects) if objects else static
    if not isinstance(about, dict) or about.keys() != {"inputs", "tables", "out_rows", "counts", "ragged"}:
        damaged("the arrays of a plan")
    inputs, out_rows, counts, tables = (
        _arrays_of(about[name], arrays) for name in ("inputs", "out_rows", "counts", "tables")
    )
    ragged, leaves = None, []
    if about["ragged"] is not None:
        trees = Trees.from_data(about["ragged"].pop("outlines"), objects or ())
        if objects is None and not trees.is_plain:
            damaged("the nesting of a result has instances of classes")
        parts = {name: _arrays_of(about["ragged"][name], arrays) for name in _RAGGED}
        leaves = trees.leaf_counts()
        ragged = Ragged(None, **parts, outlines=_outlines_of(trees))
    arrays_of_plan = PlanArrays(inputs, out_rows, ragged, counts)
    checks = check_arrays(arrays_of_plan, static.content, leaves)
    FORMATS[static.executor].check_tables(static.content, tables, checks)
    packed = pack(tables, checks.shards)
    return inputs, packed, out_rows, ragged, counts, static


_statics = Cache(256)
"""The loaded static parts, by digest. Equal static parts are read and checked once."""

_outlines = Cache(256)
"""The nestings of ragged results. Equal nestings are one object, so that loaded plans share a program."""


def _checked(text: bytes) -> Content:
    content = Content.from_bytes(text)
    program_format = FORMATS.get(content.executor)
    if program_format is None or any(
        (getattr(content, saved_format.field) is not None) != (saved_format is program_format)
        for saved_format in FORMATS.values()
    ):
        damaged("a plan is for one executor")
    check_sizes(content)
    program_format.check_sizes(content)
    return content


def _arrays_of(about: Any, arrays: Sequence[Any]) -> Any:
    """Replaces the indices in nested dicts and lists by arrays; lists become tuples."""
    if isinstance(about, dict):
        return {name: _arrays_of(entry, arrays) for name, entry in about.items()}
    if isinstance(about, list):
        return tuple(_arrays_of(entry, arrays) for entry in about)
    return None if about is None else arrays[about if type(about) is int and about >= 0 else damaged("an array")]


def _outlines_of(trees: Trees) -> Interned[Any]:
    found = structures(trees)

    def make() -> Interned[Any]:
        table: Interned[Any] = Interned()
        for tree in found:
            table.number(tree)
        return table

    return _outlines.get_or_make(found, make)


# The first use

_calls = Cache(256)


def call_of(static: SavedStatic) -> Arguments:
    """Returns the layout of the arguments of a loaded plan. It is cached, since every run of the plan needs it."""

    def load() -> Arguments:
        content = static.content
        trees = structures(replace(content.layout_trees, objects=static.objects))
        layout = tuple((name, tree, count) for (name, count), tree in zip(content.layout, trees, strict=True))
        parts = [Part(name, axis, None) for name, axis in content.parts]
        orders = replace(content.orders, objects=static.objects).open()
        if not all(type(keys) is dict for keys in orders):
            damaged("the order of keys in the shared arguments")
        orders = tuple(map(tuple, orders))
        return Arguments(parts, layout, content.positional, orders)

    return _calls.get_or_make(static, load)


def attach(plan: P, owner: Any, shared_key: Any, tables: Tables, record: Callable[[Any], Graph]) -> P:
    """Returns a loaded plan with a `PlanStatic` for the tables of a function.

    Args:
        plan: the loaded plan.
        owner, shared_key: the function, and the key of its shared arguments.
        tables: the tables of the function.
        record: returns the graph of an exemplar; it records new structures.
    """
    attached: Any = plan
    saved = attached.static
    key = saved.digest, saved.objects
    static = tables.statics.get(key)
    if static is None:
        static = tables.statics.put(key, _attached(saved, owner, shared_key, tables, record))
    ragged = attached.ragged
    if ragged is not None:
        outline_ids = np.array([tables.outlines.number(tree) for tree in ragged.outlines.entries], np.int32)
        at = jnp.asarray(outline_ids) if compat.is_tracer(ragged.outline) else outline_ids
        ragged = replace(ragged, outline=at[ragged.outline], outlines=tables.outlines)
    return replace(attached, ragged=ragged, static=static)


def _attached(
    saved: SavedStatic, owner: Any, shared_key: Any, tables: Tables, record: Callable[[Any], Graph]
) -> PlanStatic:
    content = saved.content
    exemplars: Any = content.capacity.exemplars
    capacity = replace(content.capacity, exemplars=replace(exemplars, objects=saved.objects))
    sizes = sizes_of(capacity, tables, record)
    types = types_of(sizes.profile, sizes.exemplars, content.is_split, tuple(sizes.nodes))
    names = Names(tables)  # includes the kinds of the parts of split cells
    if content.graphs != tuple(_graph_digest(graph, names) for graph in sizes.exemplars):
        raise PlanError(f"what was saved does not fit: {CHANGED}")
    arenas = tuple(_arena(arena, names) for arena in content.arenas)
    check_arenas(arenas, tables)

    def with_kinds(value: Any) -> Any:
        return replaced(value, KindName, lambda name: tables.kinds[find_name(names.kinds, name)])

    program = FORMATS[content.executor].load(content, with_kinds, sizes, arenas, tables)
    trees = [*_recorded_trees(sizes.exemplars, content.out), *structures(replace(content.trees, objects=saved.objects))]
    return interned(
        PlanStatic(
            tables=tables,
            owner=owner,
            shared_key=shared_key,
            arenas=arenas,
            program=program,
            out=content.out,
            out_trees=tuple(trees[tree_id] for tree_id in content.out_trees),
            out_arenas=content.out_arenas,
            executor=content.executor,
            reason=content.reason,
            call=call_of(saved),
            types=types,
            out_classes=tuple(arenas[arena_id].value_class for arena_id in content.out_arenas[0]),
        )
    )


def _arena(arena: SavedArena, names: Names) -> ArenaShape:
    shared = tuple(find_name(names.shared, name) for name in arena.shared)
    return ArenaShape(names.class_number(arena.value_class), shared, arena.inputs, arena.capacity)
