"""A cache of samples, by identity. A known sample is not flattened again while its lists and dicts have the same items.

It maps samples to their `Structure`s. The compiled core has the same samples with their input rows, and finds all
samples of a batch in one call. If the core does not have all of them, each sample is looked up here or flattened.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jitbatch.core import choice
from jitbatch.record.arguments import Part
from jitbatch.record.structure import Structure, containers_of, identity
from jitbatch.util.budget import Budget, BudgetCache, Parts

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch
    from jitbatch.ir.graph import Graph


def graph_part(graph: "Graph") -> tuple[Any, int]:
    """A graph, and its approximate size in bytes with its objects, arrays and structure."""
    numbers = len(graph.kind) + len(graph.operands) + len(graph.value_class) + len(graph.inputs)
    constants = sum([getattr(array, "nbytes", 0) for array in graph.constants])
    return graph, 4500 + 25 * numbers + 100 * len(graph.leaf_shapes) + constants


def _parts(structure: Structure) -> Parts:
    """A cached sample and its graph, with their approximate sizes in bytes."""
    assert structure.recorded is not None
    arrays = sum([array.nbytes for array in structure.arrays])
    items = sum([16 + len(items) for _, items in structure.containers])
    own = structure, 1900 + 24 * len(structure.leaves) + 2 * arrays + 16 * items
    return [own, graph_part(structure.recorded[0])]


class KnownSamples(BudgetCache):
    """The structures of samples, by `identity`, each with its graph and its input rows."""

    def __init__(self, maxsize: int, first: int, budget: Budget):
        super().__init__(maxsize, first, budget, _parts)
        self._core = None if choice.native is None else choice.native.KnownSamples()
        self._outputs: dict[Any, int] = {}

    def find(self, mapped: Sequence[Part]) -> "KnownBatch | None":
        """The samples of mapped arguments in the core. None if the core does not have all of them."""
        if self._core is None or choice.name() != "native" or any(part.axis for part in mapped):
            return None
        return self._core.find([part.value for part in mapped])

    def remember(self, structure: Structure, graph: "Graph") -> None:
        """Store a sample with its graph, if the sample can be cached."""
        containers = containers_of(structure.sample)
        if containers is not None:
            structure.containers = containers
            structure.key = graph.structure  # an equal key, which is one object for all samples
            structure.recorded = graph, graph.input_rows.packed(structure.leaves)
            self.discard(identity(structure.sample))
            self.put(identity(structure.sample), structure, structure.mark)

    def drop(self) -> bool:
        """Drop the least recently used sample. The core records whether a sample was used, but not when."""
        with self._lock:
            if self._core is not None:
                for _ in range(len(self._entries)):
                    key, (_, structure, _) = next(iter(self._entries.items()))
                    if not self._core.take_used(structure.sample):
                        break
                    self._entries.move_to_end(key)
            return super().drop()

    def clear(self) -> None:
        with self._lock:
            super().clear()
            self._outputs.clear()

    def _added(self, entry: Any) -> None:
        super()._added(entry)
        if self._core is None:
            return
        graph, inputs = entry.recorded
        output = self._outputs.setdefault((graph.out_tree, graph.out_classes), len(self._outputs))
        self._core.put(
            structure=entry, sample=entry.sample, graph=graph, nodes=graph.node_count, results=len(graph.outputs),
            output=output, containers=entry.containers, arrays=entry.arrays, inputs=inputs,
            formats=graph.tables.class_formats(),
        )  # fmt: skip

    def _removed(self, entry: Any) -> None:
        super()._removed(entry)
        if self._core is not None:
            self._core.discard(entry.sample)
