"""The compiled core of planning. The classes of the same names in `jitbatch.core.reference` define the results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jitbatch.core.layout import ArenaLayout, PhaseLayout

version: int

def number(
    ends: tuple[np.ndarray, ...], kinds: Sequence[int], counts: Sequence[int], operands: Sequence[int],
    made: Sequence[int], outputs: Sequence[int], given: Sequence[tuple[int, int, int]], given_class: Sequence[int],
    leaf_shapes: Sequence[Sequence[int]], /,
) -> tuple[np.ndarray, list[int], list[tuple[int, int]], list[list[int]]]: ...  # fmt: skip
def find_ranks(type_ids: np.ndarray, order: np.ndarray, reader: np.ndarray, read: np.ndarray, /) -> np.ndarray: ...

class InputRows:
    @property
    def unread(self) -> list[int]: ...
    def put(self, class_id: int, rows: np.ndarray, /) -> None: ...
    def put_opaque(self, class_id: int, /) -> None: ...
    def count(self, class_id: int, /) -> int: ...
    def write(self, class_id: int, out: np.ndarray, /) -> None: ...

class TypedGraph:
    @property
    def node_count(self) -> int: ...
    @property
    def type_counts(self) -> dict[int, int]: ...
    @property
    def shared(self) -> list[int]: ...

def bind_samples(
    static_value: type, array: type, scalar: type, interned: Callable[[Any], Any],
    is_named_tuple: Callable[[type, Any], bool], is_jax_array: Callable[[Any], bool], most: int,
) -> None:  # fmt: skip
    """Say once how samples are read.

    Args:
        static_value, array, scalar: `Static`, and NumPy's classes of arrays and scalars.
        interned: returns the canonical object that is equal to a `Static` object.
        is_named_tuple: whether JAX flattens a class as a named tuple; called with one of its objects, too.
        is_jax_array: whether an object is an array of JAX, and no tracer.
        most: the largest number of parts of a sample.
    """

def read_samples(columns: Sequence[Any], /) -> ReadSamples | None:
    """Take samples apart. None if they cannot be read.

    Args:
        columns: for each part of the samples, a list with that part of each sample.
    """

def encode_sample(sample: tuple[Any, ...], leaves: list[Any], /) -> tuple[bytes, tuple[Any, ...]] | None:
    """The encoding of a sample, and the objects whose addresses are in it. None if the sample cannot be read, or has
    other leaves than these."""

class ReadSamples:
    """Samples that were taken apart. It holds the arrays in them."""
    def __len__(self) -> int: ...
    def encodings(self) -> list[bytes]: ...

class KnownStructures:
    """Structures by the encodings of samples; see `jitbatch.record.known_structures`."""
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def put(
        self, encoding: bytes, graph: Any, nodes: int, results: int, output: int, leaves: int,
        takes: Sequence[tuple[int, tuple[str, int, int], Sequence[int]]], constants: Sequence[bytes],
    ) -> bool:  # fmt: skip
        """Store a structure. False, if the encoding has one already.

        Args:
            encoding: of its samples. The caller keeps the objects alive whose addresses are in it.
            graph, nodes, results: its graph, and the numbers of nodes and of outputs. The caller keeps the graph alive.
            output: equal for graphs with results of one tree and of the same value classes.
            leaves: the number of leaves of a sample.
            takes: for each class of input rows its id, how its values lie in memory, and which leaves they are;
                numbers from `leaves` on are constants.
            constants: the memory of each constant.
        """

    def discard(self, encoding: bytes, /) -> None: ...
    def take_used(self, encoding: bytes, /) -> bool:
        """Whether a structure was found since the last call."""

    def find(self, read: ReadSamples, /) -> KnownBatch | None:
        """Samples as a batch. None, if a structure is not known, or if a number does not fit the class that it is a
        row of."""

class KnownBatch:
    """Samples of known structures, one after the other.

    Attributes:
        nodes, results: the number of nodes of all graphs, and of their outputs.
        output: the output that all samples have; -1 if they differ.
    """

    def __len__(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def results(self) -> int: ...
    @property
    def output(self) -> int: ...
    def graphs(self) -> tuple[Any, ...]: ...
    def lacks(self, table: Any, /) -> bool:
        """Whether some structure has no typed graph for these types. The batch keeps the existing ones, because other
        batches may replace them in the cache."""

    def put_typed(self, graphs: Sequence[Any], /) -> None: ...

class Layout:
    @property
    def size(self) -> int: ...

class Filled:
    @property
    def value_row(self) -> np.ndarray: ...
    @property
    def output_rows(self) -> np.ndarray: ...
    @property
    def steps(self) -> int: ...
    @property
    def launches(self) -> int: ...
    @property
    def padded_rows(self) -> int: ...

class Measured:
    @property
    def nodes(self) -> list[int]: ...
    @property
    def terms(self) -> list[int]: ...
    @property
    def longest(self) -> list[int]: ...
    @property
    def widest(self) -> list[int]: ...
    @property
    def rounds(self) -> list[int]: ...
    @property
    def pairs(self) -> list[dict[int, int]]: ...
    @property
    def pair_trips(self) -> list[dict[int, int]]: ...

class Schedule:
    @property
    def bound(self) -> int: ...
    @property
    def round(self) -> np.ndarray: ...
    def members(self, loop: int, /) -> np.ndarray: ...
    def least_steps(self, loop: int, /) -> int: ...
    def steps(self, loop: int, /) -> int: ...
    def by_ranks(self, loop: int, /) -> bool: ...
    def put(self, loop: int, rounds: np.ndarray, /) -> None: ...
    def measure(self, carries: Sequence[Sequence[int]], counts_trips: bool, /) -> Measured: ...
    def fill(self, layout: Layout, tables: np.ndarray) -> Filled | None: ...

class Batch:
    @property
    def type(self) -> np.ndarray: ...
    @property
    def level(self) -> np.ndarray: ...
    @property
    def rank(self) -> np.ndarray: ...
    @property
    def operand_start(self) -> np.ndarray: ...
    @property
    def operands(self) -> np.ndarray: ...
    @property
    def first_value(self) -> np.ndarray: ...
    @property
    def leader(self) -> np.ndarray: ...
    @property
    def nodes(self) -> np.ndarray: ...
    @property
    def outputs(self) -> np.ndarray: ...
    @property
    def value_row(self) -> np.ndarray: ...
    @property
    def given_class(self) -> np.ndarray: ...
    @property
    def producer(self) -> np.ndarray: ...
    @property
    def values(self) -> int: ...
    @property
    def node_count(self) -> int: ...
    @property
    def distinct_count(self) -> int: ...
    @property
    def levels(self) -> int: ...
    def edges(self) -> tuple[np.ndarray, np.ndarray]: ...
    def schedule(self) -> Schedule: ...

class Joined:
    """Known samples as one batch.

    Attributes:
        batch, schedule: the batch, and the rounds of its nodes.
    """

    @property
    def batch(self) -> Any: ...
    @property
    def schedule(self) -> Any: ...
    def by_ranks(self) -> bool:
        """Give the nodes of all loops the rounds of their ranks. Returns whether no order has fewer steps."""

    def fill(
        self, tables: np.ndarray, inputs: Sequence[np.ndarray | None], outputs: np.ndarray, counts: np.ndarray
    ) -> bool:  # fmt: skip
        """Write a plan. Returns False if the batch does not fit the layout.

        Args:
            tables: int32 [layout.size]; as `Schedule.fill`.
            inputs: for each arena, an array for its input rows; None if the batch has none for it.
            outputs: int32 [outputs]; the rows of all outputs, sample after sample.
            counts: int32 [10]; the fields of a `Summary`.
        """

class Refill:
    """Plans batches of known samples for one program.

    Args:
        layout: the layout of its tables.
        classes: the format of each value class.
        shared_class, shared_row, shared_count: as for `TypeTable.batch`.
    """

    def __init__(
        self, layout: Any, classes: Sequence[tuple[str, int, int]], shared_class: np.ndarray,
        shared_row: np.ndarray, shared_count: np.ndarray,
    ) -> None: ...  # fmt: skip
    def join(self, samples: KnownBatch, dedupe: bool, /) -> Joined: ...

class Nodes:
    def __init__(self, steps: np.ndarray, reads: np.ndarray, makes: np.ndarray, /) -> None: ...

class Assembler:
    def __init__(
        self, operands: Sequence[int], writes: Sequence[Sequence[int]], widths: Sequence[Sequence[int]], size: int, /
    ) -> None: ...  # fmt: skip
    def rows_needed(self, samples: Sequence[Nodes], /) -> dict[int, int]: ...
    def buffers(
        self, samples: Sequence[Nodes], slots: np.ndarray, rows: np.ndarray, classes: np.ndarray, pinned: np.ndarray,
        free: np.ndarray,
    ) -> list[np.ndarray]: ...  # fmt: skip

class TypeTable:
    def __init__(self, types: Sequence[Any], loops: Sequence[Sequence[int]], recipes: Mapping[int, Any]) -> None: ...
    def graph(
        self, kind: np.ndarray, operand_start: np.ndarray, operands: np.ndarray, shared_rows: np.ndarray,
        outputs: np.ndarray, of_input: np.ndarray, class_rows: np.ndarray, /,
    ) -> TypedGraph: ...  # fmt: skip
    def inputs(self, samples: Sequence[Any], classes: Sequence[tuple[str, int, int]], /) -> InputRows: ...
    def batch(
        self, graphs: Sequence[TypedGraph], inputs: InputRows, shared_class: np.ndarray, shared_row: np.ndarray,
        shared_count: np.ndarray, dedupe: bool, /,
    ) -> Batch: ...  # fmt: skip
    def layout(self, phases: Sequence[PhaseLayout], arenas: Sequence[ArenaLayout], size: int, /) -> Layout: ...

class Decorated:
    """The base class of decorated functions; see `jitbatch.record.decorated`."""
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Templates:
    """Templates of calls by the forms of their arguments; see `jitbatch.record.known_calls`."""
    def __len__(self) -> int: ...

class Calls:
    """The calls of one recording; see `jitbatch.record.compiled_calls`."""
    def __init__(
        self, recorder: Any, builder: Any, hidden: dict[Any, Any], exposed: list[Any], composites: set[Any],
        templates: Templates, sites: Any, /,
    ) -> None: ...  # fmt: skip
    @property
    def count(self) -> int: ...
    def share(self, argument: Any, form: int, /) -> None: ...
    def given_rows(self, given: Iterable[tuple[tuple[Any, int], Any]], before: int, /) -> list[Any]: ...
    def end_body(self, function: Any, first: int, result: Any, scope: int) -> bool: ...
    def release(self) -> None: ...

def bind_recorder(
    value: type,
    recorder: type,
    builder: type,
    operation: type,
    node: Any,
    trace_state: Any,
    is_named_tuple: Any,
    replay: Any,
    further_rows: Any,
    /,
) -> None: ...
