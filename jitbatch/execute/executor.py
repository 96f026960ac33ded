"""The interface of executors, and the result of lowering.

To add an executor, write a program class with the methods of `Program` (see `execute/program`), write a function that
lowers a batch to it, and add an `Executor` to `execute/registry`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jitbatch.batch.analysis import Analysis
from jitbatch.execute.arenas import run_in_arenas
from jitbatch.execute.batch_samples import BatchSamples
from jitbatch.execute.program import ArenaShape, Program, RefillableStatic, Runnable
from jitbatch.execute.sizes import Sizes
from jitbatch.schedule.policies import Policy
from jitbatch.util.packed import Packed


@dataclass(frozen=True, eq=False)
class Lowered:
    """A batch lowered to a program and its tables.

    Attributes:
        program: the static part.
        tables: the dynamic part, a pytree of int32 arrays in one buffer.
        arenas: the shapes of the arenas.
        value_row: int [values]; the row of every value.
        steps, bound, launches, padded_rows: see `Summary`.
    """

    program: Program
    tables: Packed
    arenas: tuple[ArenaShape, ...]
    value_row: np.ndarray
    steps: int
    bound: int
    launches: int
    padded_rows: int


class Refilled(NamedTuple):
    """A batch for an existing program: only the dynamic part is new.

    Attributes:
        inputs: for each arena, its padded input rows.
        tables: as in `Lowered`.
        output_rows: int32; the rows of all outputs, sample after sample.
        counts: int32 [10]; the fields of a `Summary`.
    """

    inputs: tuple[Any, ...]
    tables: Packed
    output_rows: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class SizeRequest:
    """The requested sizes of a program.

    Attributes:
        least: the least sizes.
        headroom_for: add headroom for other batches of this many samples; 0 for none (see `util/headroom`).
        platform: the platform that the program is made for, as in `Device.platform`.
        static_loops: whether loops have static trip counts; None for the default of the platform.
    """

    least: Sizes
    headroom_for: int = 0
    platform: str = "cpu"
    static_loops: bool | None = None


@dataclass(frozen=True)
class Executor:
    """A way to run a batch.

    Attributes:
        name: the value of the user's option `executor`, such as `"fused"`.
        lower: from a batch, a policy and sizes to a program with its tables. None if samples are not recorded.
        run: from a plan and the leaves of the shared arguments to its outputs. For `out="list"` it returns the leaves
            of each result.
        refill: from the static part of a plan, other samples of its types, a policy, and whether equal calls are
            merged, to tables of the same program. It returns None if the samples do not fit. None if programs are not
            reused.
        splits_cells: whether cells in loops are split into parts that run before, in and after the loop.
        has_room: whether a program runs other batches that fit its sizes.
        runs_effects: whether cells may have effects.
    """

    name: str
    lower: Callable[[Analysis, Policy, SizeRequest], Lowered] | None
    run: Callable[[Runnable, Sequence[Any]], Any] = run_in_arenas
    refill: Callable[[RefillableStatic, BatchSamples, Policy, bool], Refilled | None] | None = None
    splits_cells: bool = False
    has_room: bool = False
    runs_effects: bool = True

    @property
    def records_samples(self) -> bool:
        """Whether samples are recorded as graphs, which are lowered together."""
        return self.lower is not None
