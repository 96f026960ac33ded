"""The arguments of a batch, and its samples as graphs."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.record.arguments import Arguments, samples_of, swapped
from jitbatch.record.context import Context
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.record.structure import Structure
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError

if TYPE_CHECKING:
    from jitbatch.core.native import KnownBatch


class Call:
    """The arguments of a batch: shared arguments and samples."""

    def __init__(self, arguments: Arguments, shared: SharedArguments):
        self.arguments = arguments
        self.shared = shared
        self.mapped = arguments.mapped

    def with_mapped(self, values: Iterable[Any]) -> "Call":
        """Returns the call with these values of the mapped arguments."""
        remaining = iter(values)
        parts = [part if part.axis is None else part._replace(value=next(remaining)) for part in self.arguments.parts]
        return Call(self.arguments._replace(parts=parts), self.shared)

    @property
    def is_empty(self) -> bool:
        """Whether there are no samples. Plain lists are not looked into."""
        first = self.mapped[0].value if self.mapped else None
        return not (type(first) is list and first) and not self.samples

    @cached_property
    def samples(self) -> list[Any]:
        try:
            return samples_of(self.mapped)
        except ArgumentError as error:
            told = swapped(self.arguments)
            raise ArgumentError(f"{error}; {told}" if told else str(error)) from None


class Recorded:
    """The samples of a call in a context.

    Attributes:
        known: the samples in the core, after `record`. None if the core cannot use one of them.
        graphs: the graph of each sample, after `record`.
    """

    def __init__(self, call: Call, context: Context):
        self.call = call
        self.context = context
        self.known: KnownBatch | None = None
        self.graphs: Sequence[Graph] = ()
        self._read = context.structures.read(call.mapped)
        self._count = len(self.structures if self._read is None else self._read)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def structures(self) -> list[Structure]:
        """The flattened samples."""
        return self.context.take_apart(self.call.samples, [part.name for part in self.call.mapped])

    def record(self) -> Sequence[Graph]:
        """Record the samples."""
        context, call, read = self.context, self.call, self._read
        if read is None:
            self.graphs = context.graphs_of(self.structures, call.shared, call.arguments)
        else:
            self.graphs, self.known = context.graphs_read(
                read, lambda index: call.samples[index], call.shared, call.arguments
            )
        return self.graphs

    @property
    def nodes(self) -> int:
        """The number of nodes of all graphs."""
        return sum([len(graph.kind) for graph in self.graphs]) if self.known is None else self.known.nodes

    @property
    def tracers(self) -> Iterator[Any]:
        """The leaves that are tracers. The core reads no sample with a tracer."""
        structures = self.structures if self._read is None else ()
        arrays = itertools.chain.from_iterable([structure.arrays for structure in structures if structure.arrays])
        return filter(compat.is_tracer, arrays)

    @property
    def is_concrete_or_differentiated_once(self) -> bool:
        """Whether all leaves are concrete, or take part only in one reverse-mode differentiation."""
        shared = filter(compat.is_tracer, self.call.shared.leaves)
        return all(map(compat.is_in_reverse_mode_alone, itertools.chain(shared, self.tracers)))

    def some(self, chosen: Iterable[int]) -> "Recorded":
        """Returns the samples with these indices."""
        part = copy.copy(self)
        vars(part).pop("inputs", None)
        part.structures = [self.structures[i] for i in chosen]
        part.graphs = [self.graphs[i] for i in chosen]
        part.known = part._read = None
        part._count = len(part.graphs)
        return part

    @cached_property
    def inputs(self) -> Sequence[Inputs]:
        """The leaves of each sample that are rows of its graph."""
        return [
            graph.input_rows.taken(structure.leaves)
            for structure, graph in zip(self.structures, self.graphs, strict=True)
        ]
