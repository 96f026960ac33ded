"""The samples of a batch, for a program that exists."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jitbatch.batch.retype import typed
from jitbatch.batch.types import Types
from jitbatch.core.choice import is_compiled
from jitbatch.core.reference.typed_graph import TypedGraph
from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch


class BatchSamples(NamedTuple):
    """The samples of a batch: known to the compiled core, or flattened in Python.

    Attributes:
        graphs: the graph of each sample.
        flatten: returns the leaves of each sample that are rows.
        in_core: the samples in the compiled core, which has their leaves; None if they are flattened in Python.
    """

    graphs: Sequence[Graph]
    flatten: Callable[[], Sequence[Inputs]]
    in_core: "KnownBatch | None" = None

    def fit(self, types: Types, are_constants: bool) -> "BatchSamples | None":
        """Returns the samples for a program with these types.

        Args:
            types: the types of the program.
            are_constants: whether no leaf is differentiated. Otherwise the leaves are flattened in Python.

        Returns:
            The samples, or None if their graphs have further types. Samples in the core have typed graphs there.
        """
        in_core = self.in_core if are_constants and is_compiled(types.table) else None
        if in_core is not None and not in_core.lacks(types.table):
            return self
        untyped = [graph for graph in self.graphs if types not in graph.typed]
        if untyped and types.profile.union(untyped) != types.profile:
            return None
        if in_core is not None:
            in_core.put_typed(typed(self.graphs, types))
        return self._replace(in_core=in_core)

    def typed(self, types: Types) -> list[TypedGraph]:
        """Returns the graph of each sample, expressed in types."""
        return typed(self.graphs, types)

    @property
    def graphs_of_outputs(self) -> Sequence[Graph]:
        """Returns graphs that have all forms of outputs: the first one if the core knows that all have one form."""
        return self.graphs[:1] if self.in_core is not None and self.in_core.output >= 0 else self.graphs
