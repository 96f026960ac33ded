"""Plans that are pickled: data, and names for everything that is not.

A pickled plan holds its tables and input rows, and its static part in terms of names (see `_capacity`). Unpickling runs
nothing; the first `f.batch(shared, plan)` records the exemplars, checks that everything that has a name is there, and
puts the static part together again.
"""

import copyreg
import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import _compat
from jitbatch._arguments import Arguments, Part
from jitbatch._caches import Cache
from jitbatch._canonical import array_key, key_bits
from jitbatch._capacity import CHANGED, Capacity, Names, capacity_of, find_name, sizes_of
from jitbatch._dispatch import DispatchProgram, StepShape
from jitbatch._errors import PlanError
from jitbatch._fused import FusedProgram, SingleShape
from jitbatch._graph import Graph
from jitbatch._loop import Block, LoopShape
from jitbatch._lowering import ArenaShape
from jitbatch._memory import StaticMemory
from jitbatch._plan import Plan, PlanStatic, interned
from jitbatch._ragged import Ragged
from jitbatch._sizes import Sizes
from jitbatch._tables import Interned, Kind, Tables, ValueClass
from jitbatch._types import types_of
from jitbatch._version import __version__

_SHAPES: dict[str, Any] = {
    one.__name__: one for one in (Block, DispatchProgram, FusedProgram, LoopShape, SingleShape, StepShape)
}


@dataclass(frozen=True, eq=False, repr=False)
class SavedStatic:
    """The static part of a plan that was unpickled.

    Attributes:
        function: the name of the function that made the plan.
        version: of what made it.
        granularity: of the graphs it was made of.
        executor, reason: as in `PlanStatic`.
        shared: descriptions of the leaves of the shared arguments.
        digest: of the program: equal for plans that are for one program.
        data: the pickled rest.
    """

    function: str
    version: str
    granularity: str
    executor: str
    reason: str
    shared: tuple[str, ...]
    digest: str
    data: bytes

    def __getattr__(self, name: str) -> Any:
        if name not in PlanStatic.__dataclass_fields__ and name != "out_classes":
            raise AttributeError(name)
        raise PlanError(
            "the plan was unpickled, and is known in full only to the function that made it: ask "
            f"`{self.function}.plan(shared, samples, like=plan)` instead"
        )

    def check(self, function: str, shared_key: Any) -> None:
        """Refuse another function, version or kind of shared arguments."""
        if self.function != function:
            raise PlanError(
                f"the plan was made by `{self.function}`, not by `{function}`: a plan is run by the function that "
                "made it"
            )
        if self.version != version():
            raise PlanError(f"the plan was made by {self.version}, but this is {version()}. Plan again")
        given = _described(shared_key)
        if self.shared != given:
            places = [i for i, (was, now) in enumerate(zip(self.shared, given, strict=False)) if was != now]
            told = f"there were {len(self.shared)} leaves, and are {len(given)}"
            if len(self.shared) == len(given):
                told = f"leaf {places[0]} was {self.shared[places[0]]}, is {given[places[0]]}"
            raise PlanError(
                f"the shared arguments differ in shape or dtype from those that the plan of `{function}` was made "
                f"with: {told}. Plan again with these"
            )

    @property
    def capacity(self) -> Capacity:
        if self.executor != "fused":
            raise PlanError(f"a plan for the {self.executor} executor has the sizes of its batch, no capacity")
        return pickle.loads(self.data)["capacity"]

    @property
    def memory(self) -> StaticMemory:
        return pickle.loads(self.data)["memory"]

    def __repr__(self) -> str:
        sizes = str(self.capacity) if self.executor == "fused" else f"of {self.digest[:8]}"
        return f"<saved {self.executor} program of {self.function}: {sizes}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlanStatic):  # as where `jax.export` compares the plan of a call with the one it has saved
            other = saved_static(other)
        return isinstance(other, SavedStatic) and (self.function, self.digest) == (other.function, other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True)
class _Keys:
    """Typed PRNG keys as data."""

    impl: str
    bits: np.ndarray


def version() -> str:
    """What plans are made by."""
    return f"jitbatch {__version__} with jax {jax.__version__}"


def name_of(owner: Any) -> str:
    """The name of a batched function."""
    return getattr(owner.__wrapped__, "__qualname__", type(owner.__wrapped__).__qualname__)


def _described(shared_key: Any) -> tuple[str, ...]:
    described = shared_key[2]
    return tuple(one.__name__ if isinstance(one, type) else str(one and ValueClass(*one[:2])) for one in described)


# Saving


def _reduce(plan: Plan) -> tuple[Any, ...]:
    saved = saved_static(plan.static)
    leaves = jax.tree.map(_as_data, (plan.inputs, plan.tables, plan.out_rows, plan.counts))
    ragged = None
    if plan.ragged is not None:
        parts = (plan.ragged.sample, plan.ragged.position, plan.ragged.mask, plan.ragged.outline)
        nestings = [tree.unflatten(range(tree.num_leaves)) for tree in plan.ragged.outlines.entries]
        ragged = (*map(_as_data, parts), nestings)
    return _restore, (leaves, ragged, saved)


def _as_data(leaf: Any) -> Any:
    if _compat.is_tracer(leaf):
        raise PlanError("a plan that is being traced cannot be pickled")
    if _compat.is_prng_key(leaf.dtype):
        return _Keys(str(jax.random.key_impl(leaf)), key_bits(leaf))
    return np.asarray(leaf)


_saved_statics = Cache(256)


def saved_static(static: PlanStatic | SavedStatic) -> SavedStatic:
    """The static part of a plan as it is saved."""
    if isinstance(static, SavedStatic):
        return static
    return _saved_statics.get_or_make(static, lambda: _save(static))


def _save(static: PlanStatic) -> SavedStatic:
    if static.types is None:
        raise PlanError("a plan for the loop executor holds compiled programs: pickle the samples, and plan them again")
    names, program = Names(static.tables), static.program
    sizes = Sizes(profile=static.types.profile, exemplars=static.types.exemplars)
    capacity = capacity_of(sizes, (), 0, static.tables)
    if isinstance(program, FusedProgram):
        sizes, capacity = program.sizes, static.capacity
    data = {
        "parts": [(part.name, part.axis) for part in static.call.parts],
        "layout": [(name, tree.unflatten(range(count)), count) for name, tree, count in static.call.layout],
        "positional": static.call.positional,
        "capacity": capacity,
        "memory": static.memory,
        "graphs": [_graph_digest(graph, names) for graph in sizes.exemplars],
        "is_split": static.types.is_split,
        "arenas": _encode(static.arenas, names),
        "program": _encode(program, names),
        "out": static.out,
        "out_trees": [tree.unflatten(range(tree.num_leaves)) for tree in static.out_trees],
        "out_arenas": static.out_arenas,
    }
    # Other exemplars would do as well, and a cell has the name of the first function that it was met in.
    digest = _digest({**data, "capacity": replace(capacity, exemplars=(), cells=()), "graphs": ()})
    pickled = pickle.dumps(data, protocol=5)
    shared = _described(static.shared_key)
    return SavedStatic(
        name_of(static.owner), version(), static.tables.granularity, static.executor, static.reason, shared, digest,
        pickled,
    )  # fmt: skip


def _digest(data: Any) -> str:
    """A digest of data that is the same for equal data: pickled without a memo, so that it does not matter which of its
    parts are one object."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.fast = True
    pickler.dump(data)
    return hashlib.sha256(file.getvalue()).hexdigest()


def _graph_digest(graph: Graph, names: Names) -> str:
    """What tells whether a sample still computes the same, of the same cells."""
    kinds = [names.of_kind(graph.tables.kinds[number]) for number in graph.kind.tolist()]
    shared = [names.of_shared(number) for number in graph.shared_rows.tolist()]
    reads = [part.tolist() for part in (graph.inputs, graph.operand_start, graph.operands, graph.outputs)]
    constants = [array_key(constant) for constant in graph.constants]
    return hashlib.sha256(repr((kinds, shared, reads, constants)).encode()).hexdigest()


def _encode(value: Any, names: Names) -> Any:
    if isinstance(value, Kind):
        return "kind", names.of_kind(value)
    if isinstance(value, ValueClass):
        return "class", names.of_class(names.tables.classes.number(value))
    if isinstance(value, ArenaShape):
        shared = tuple(map(names.of_shared, value.shared))
        return "arena", (names.of_class(value.value_class), shared, value.inputs, value.capacity)
    if isinstance(value, Sizes):
        return "sizes", None
    if is_dataclass(value):
        return type(value).__name__, {f.name: _encode(getattr(value, f.name), names) for f in fields(value)}
    return ("tuple", [_encode(one, names) for one in value]) if isinstance(value, tuple) else ("plain", value)


# Restoring


def _restore(leaves: Any, ragged: Any, static: SavedStatic) -> Plan:
    inputs, tables, out_rows, counts = jax.tree.map(_from_data, leaves, is_leaf=lambda leaf: isinstance(leaf, _Keys))
    if ragged is not None:
        sample, position, mask, outline, nestings = ragged
        trees = tuple(map(jax.tree.structure, nestings))
        ragged = Ragged(None, sample, position, mask, outline, _outlines.get_or_make(trees, lambda: _interned(trees)))
    return Plan(inputs, tables, out_rows, ragged, counts, static)  # type: ignore[arg-type]


_outlines = Cache(256)
"""Nestings of ragged results: one object for equal ones, so that restored plans are for one program."""


def _interned(entries: Sequence[Any]) -> Interned[Any]:
    table: Interned[Any] = Interned()
    for entry in entries:
        table.number(entry)
    return table


def _from_data(leaf: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(leaf.bits), impl=leaf.impl) if isinstance(leaf, _Keys) else leaf


_calls = Cache(256)


def call_of(static: SavedStatic) -> Arguments:
    """How the function was called for a plan; asked whenever the plan is run."""

    def load() -> Arguments:
        data = pickle.loads(static.data)
        layout = tuple((name, jax.tree.structure(tree), count) for name, tree, count in data["layout"])
        return Arguments([Part(name, axis, None) for name, axis in data["parts"]], layout, data["positional"])

    return _calls.get_or_make(static, load)


def attach(plan: Plan, owner: Any, shared_key: Any, tables: Tables, record: Callable[[Any], Graph]) -> Plan:
    """A restored plan in terms of the tables of a function, whose exemplars `record` records if they are new."""
    saved: Any = plan.static
    static = tables.statics.get(saved)
    if static is None:
        static = tables.statics.put(saved, _attached(saved, owner, shared_key, tables, record))
    ragged = plan.ragged
    if ragged is not None:
        numbers = np.array([tables.outlines.number(tree) for tree in ragged.outlines.entries], np.int32)
        at = jnp.asarray(numbers) if _compat.is_tracer(ragged.outline) else numbers
        ragged = replace(ragged, outline=at[ragged.outline], outlines=tables.outlines)
    return replace(plan, ragged=ragged, static=static)


def _attached(
    saved: SavedStatic, owner: Any, shared_key: Any, tables: Tables, record: Callable[[Any], Graph]
) -> PlanStatic:
    data = pickle.loads(saved.data)
    sizes = sizes_of(data["capacity"], tables, record)
    types = types_of(sizes.profile, sizes.exemplars, data["is_split"], tuple(sizes.nodes))
    names = Names(tables)
    if data["graphs"] != [_graph_digest(graph, names) for graph in sizes.exemplars]:
        raise PlanError(f"what was saved does not fit: {CHANGED}")
    return interned(
        PlanStatic(
            tables=tables,
            owner=owner,
            shared_key=shared_key,
            arenas=_decode(data["arenas"], names, sizes),
            program=_decode(data["program"], names, sizes),
            out=data["out"],
            out_trees=tuple(map(jax.tree.structure, data["out_trees"])),
            out_arenas=data["out_arenas"],
            executor=saved.executor,
            reason=saved.reason,
            call=call_of(saved),
            types=types,
        )
    )


def _decode(encoded: Any, names: Names, sizes: Sizes) -> Any:
    kind, content = encoded
    if kind == "kind":
        return names.tables.kinds[find_name(names.kinds, content)]
    if kind == "class":
        return names.tables.classes[names.class_number(content)]
    if kind == "arena":
        value_class, shared, inputs, capacity = content
        numbers = tuple(find_name(names.shared, name) for name in shared)
        return ArenaShape(names.class_number(value_class), numbers, inputs, capacity)
    if kind == "sizes":
        return sizes
    if kind == "tuple":
        return tuple(_decode(one, names, sizes) for one in content)
    if kind == "plain":
        return content
    return _SHAPES[kind](**{name: _decode(one, names, sizes) for name, one in content.items()})


copyreg.pickle(Plan, _reduce)
