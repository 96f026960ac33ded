"""The arguments of a batch, and its samples as graphs."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from jitbatch.ir.graph import Graph
from jitbatch.ir.input_rows import Inputs
from jitbatch.record.arguments import Arguments, samples_of, swapped
from jitbatch.record.context import Context
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.record.structure import Structure
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError


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
        known: the samples in the core, if all of them are known there; otherwise None.
        graphs: the graph of each sample, after `record`.
    """

    def __init__(self, call: Call, context: Context):
        self.call = call
        self.context = context
        self.known = context.samples.find(call.mapped)
        self.graphs: Sequence[Graph] = ()
        if self.known is None:
            self.structures = context.take_apart(call.samples, [part.name for part in call.mapped])

    def __len__(self) -> int:
        return len(self.structures) if self.known is None else len(self.known)

    @cached_property
    def structures(self) -> list[Structure]:
        """The flattened samples."""
        assert self.known is not None
        return self.known.structures()

    def record(self, keeps: bool = True) -> Sequence[Graph]:
        """Record the samples. `keeps` says whether to cache them."""
        if self.known is None:
            self.graphs = self.context.graphs_of(self.structures, self.call.shared, self.call.arguments, keeps)
        else:
            self.graphs = self.known.graphs()
            self.context.graphs.count(len(self.known))
        return self.graphs

    @property
    def nodes(self) -> int:
        """The number of nodes of all graphs."""
        return sum([len(graph.kind) for graph in self.graphs]) if self.known is None else self.known.nodes

    @property
    def arrays(self) -> Iterator[Any]:
        """The array leaves of all samples."""
        return itertools.chain.from_iterable([structure.arrays for structure in self.structures if structure.arrays])

    @property
    def is_concrete_or_differentiated_once(self) -> bool:
        """Whether all leaves are concrete, or take part only in one reverse-mode differentiation."""
        leaves = self.call.shared.leaves if self.known else itertools.chain(self.call.shared.leaves, self.arrays)
        return all(map(compat.is_in_reverse_mode_alone, filter(compat.is_tracer, leaves)))

    def some(self, chosen: Iterable[int]) -> "Recorded":
        """Returns the samples with these indices."""
        part = copy.copy(self)
        vars(part).pop("inputs", None)
        part.structures = [self.structures[i] for i in chosen]
        part.graphs = [self.graphs[i] for i in chosen]
        part.known = None
        return part

    @cached_property
    def inputs(self) -> Sequence[Inputs]:
        """The leaves of each sample that are rows of its graph."""
        return [structure.inputs_of(graph) for structure, graph in zip(self.structures, self.graphs, strict=True)]
