"""Samples in the compiled core: it takes the samples of a batch apart, and finds their graphs by their encodings.

An encoding is a string of bytes. Samples with equal encodings have equal structure keys (see `record/structure`), which
take much longer to make. The core reads numbers, NumPy arrays, JAX arrays in the memory of the CPU, `Static` objects,
and tuples, named tuples, lists and dicts of strings that hold them. Other samples are flattened in Python.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jitbatch.core import choice
from jitbatch.ir.graph import Graph
from jitbatch.record.arguments import Part
from jitbatch.record.structure import MOST_PARTS, Structure, describe_leaf, is_named_tuple
from jitbatch.util import compat
from jitbatch.util.budget import Budget, BudgetCache, Parts
from jitbatch.util.static import Static, interned

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch, ReadSamples


def graph_part(graph: Graph) -> tuple[Any, int]:
    """A graph, and its approximate size in bytes with its objects, arrays and structure."""
    numbers = len(graph.kind) + len(graph.operands) + len(graph.value_class) + len(graph.inputs)
    constants = sum([getattr(array, "nbytes", 0) for array in graph.constants])
    return graph, 4500 + 25 * numbers + 100 * len(graph.leaf_shapes) + constants


class KnownStructure(NamedTuple):
    """A graph, by the encoding of its samples.

    Attributes:
        encoding: the encoding.
        graph: the graph.
        named: the objects whose addresses are in the encoding.
        leaf_count: the number of leaves of a sample.
        takes: for each value class with input rows its id, its format, and the indices of its leaves (see
            `core/native.pyi`).
        constants: the memory of each constant of the graph.
    """

    encoding: bytes
    graph: Graph
    named: tuple[Any, ...]
    leaf_count: int
    takes: list[tuple[int, Any, list[int]]]
    constants: list[bytes]


def _parts(known: KnownStructure) -> Parts:
    """A cached structure and its graph, with their approximate sizes in bytes."""
    return [(known, 1200 + 24 * known.leaf_count + 3 * len(known.encoding)), graph_part(known.graph)]


class KnownStructures(BudgetCache):
    """The graphs of samples, by encoding."""

    def __init__(self, maxsize: int, first: int, budget: Budget):
        super().__init__(maxsize, first, budget, _parts)
        self._core = None if choice.native is None else choice.native.KnownStructures()
        self._outputs: dict[Any, int] = {}

    def read(self, mapped: Sequence[Part]) -> "ReadSamples | None":
        """Take the samples of mapped arguments apart in the core. None if it does not read all of them."""
        if not self.maxsize or choice.name() != "native" or any(part.axis for part in mapped):
            return None
        return choice.native.read_samples([part.value for part in mapped])  # type: ignore[union-attr]

    def find(self, read: "ReadSamples") -> "KnownBatch | None":
        """Samples with known structures in the core. None if one is new, or has a number that the core cannot
        convert."""
        return self._core.find(read)  # type: ignore[union-attr]

    def remember(self, structure: Structure, graph: Graph) -> KnownStructure | None:
        """Store the graph of a sample. None if the core cannot read samples of this structure.

        The encoding is that of the key and the leaves, and not of the sample, which may have changed.
        """
        encoded = choice.native.encode_sample(  # type: ignore[union-attr]
            structure.key[0].unflatten(structure.leaves), structure.leaves
        )
        if encoded is None or tuple(map(describe_leaf, structure.arrays)) != structure.key[3]:
            return None
        encoding, named = encoded
        known = _known(encoding, named, graph, len(structure.leaves))
        return None if known is None else self.put(known.encoding, known)

    def drop(self) -> bool:
        """Drop the least recently used structure. The core records whether one was used, but not when."""
        with self._lock:
            for _ in range(len(self._entries)):
                key = next(iter(self._entries))
                if not self._core.take_used(key):  # type: ignore[union-attr]
                    break
                self._entries.move_to_end(key)
            return super().drop()

    def clear(self) -> None:
        with self._lock:
            super().clear()
            self._outputs.clear()

    def _added(self, entry: KnownStructure) -> None:
        super()._added(entry)
        graph = entry.graph
        output = self._outputs.setdefault((graph.out_tree, graph.out_classes), len(self._outputs))
        self._core.put(  # type: ignore[union-attr]
            encoding=entry.encoding, graph=graph, nodes=graph.node_count, results=len(graph.outputs), output=output,
            leaves=entry.leaf_count, takes=entry.takes, constants=entry.constants,
        )  # fmt: skip

    def _removed(self, entry: KnownStructure) -> None:
        self._core.discard(entry.encoding)  # type: ignore[union-attr]
        super()._removed(entry)


def _known(encoding: bytes, named: tuple[Any, ...], graph: Graph, leaf_count: int) -> KnownStructure | None:
    """A structure for the core. None if the core cannot read the input rows of the graph."""
    formats = graph.tables.class_formats()
    places = range(leaf_count + len(graph.constants))
    constants = [b""] * len(graph.constants)
    takes = []
    for class_id, dtype, take in graph.input_rows.takes:
        taken = list(take(places))
        if not formats[class_id][0]:
            return None  # not plain numbers
        for place in taken:
            if place >= leaf_count:
                constant = graph.constants[place - leaf_count]
                if not isinstance(constant, np.ndarray | np.generic):
                    return None
                constants[place - leaf_count] = np.ascontiguousarray(constant, dtype).tobytes()
        takes.append((class_id, formats[class_id], taken))
    return KnownStructure(encoding, graph, named, leaf_count, takes, constants)


def _is_jax_array(part: Any) -> bool:
    """Whether an object is a JAX array of numbers, not a tracer or a key."""
    return isinstance(part, jax.Array) and not compat.is_tracer(part) and hasattr(part, "weak_type")


if choice.native is not None:
    choice.native.bind_samples(Static, np.ndarray, np.generic, interned, is_named_tuple, _is_jax_array, MOST_PARTS)
