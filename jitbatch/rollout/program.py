"""The program of a sync: one compiled call. A buffer of integers lists its steps.

The buffer starts with the number of rounds. Each round has the number of chunks of each type and width, and then the
chunks in that order. A chunk has the rows of its operands, operand after operand, and the first row of each output. All
arenas have fixed sizes and are updated in place. So the same program runs whatever the samples decide.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.core.choice import make_assembler
from jitbatch.execute.segments import gather
from jitbatch.ir.cell import accumulator
from jitbatch.rollout.lowered import StepType, Types

WIDTHS = (256, 64, 16, 4)
"""The widths of chunks. There are few, because each width is compiled for each type. Width 1 is avoided, because XLA
multiplies a single row in another way."""

BUFFER = 1 << 15
"""The least length of a buffer. Further chunks go into the next buffer."""


class Program:
    """The compiled program for some types and a number of samples in flight.

    Attributes:
        types: the types.
        widths: for each type the widths of its chunks, the largest first.
        heads: for each type, the index of its first number of chunks in a round.
        assembler: lists the nodes of a sync in buffers.
    """

    def __init__(self, types: Types, room: int):
        self.types = types
        usual = tuple(width for width in WIDTHS if width <= max(room, WIDTHS[-1]))
        # Padding would repeat the effects.
        self.widths = [(1,) if step_type.kind.cell.has_effects else usual for step_type in types.types]
        self.heads = [sum(map(len, self.widths[:place])) for place in range(len(self.widths) + 1)]
        size = max(BUFFER, 2 * (1 + self.heads[-1] + usual[0] * types.operands + types.outputs))
        self.assembler = make_assembler(list(map(len, types.reads)), types.writes, self.widths, size)

    @cached_property
    def call(self) -> Any:
        """The compiled program: a function of the arenas by value class, a buffer, and the shared values by id. It
        returns the arenas."""

        def jitbatch_sync(arenas: dict[int, Any], buffer: Any, shared: Mapping[int, Any]) -> dict[int, Any]:
            def one_round(_: Any, state: Any) -> Any:
                at, arenas = state
                counts = lax.dynamic_slice(buffer, (at,), (self.heads[-1],))
                at = at + self.heads[-1]
                for place, widths in enumerate(self.widths):
                    for head, width in enumerate(widths, self.heads[place]):
                        at, arenas = self._chunks(place, width, counts[head], at, arenas, buffer, shared)
                return at, arenas

            return lax.fori_loop(0, buffer[0], one_round, (jnp.int32(1), arenas))[1]

        return jax.jit(jitbatch_sync, donate_argnums=0)

    def _chunks(
        self, place: int, width: int, count: Any, at: Any, arenas: dict[int, Any], buffer: Any,
        shared: Mapping[int, Any],
    ) -> tuple[Any, dict[int, Any]]:  # fmt: skip
        """Run the chunks of one type and width."""
        step_type, reads, writes = self.types.types[place], self.types.reads[place], self.types.writes[place]
        length = len(reads) * width + len(writes)

        def chunk(_: Any, state: Any) -> Any:
            at, written = state
            piece = lax.dynamic_slice(buffer, (at,), (length,))
            every = {**arenas, **written}
            rows = [
                gather(every[c], piece[slot * width : (slot + 1) * width]) for slot, c in enumerate(reads)
            ]  # fmt: skip
            made = _results(step_type, width, rows, shared)
            written = dict(written)
            for c, start, value in zip(writes, piece[len(reads) * width :], made, strict=True):
                written[c] = lax.dynamic_update_slice_in_dim(written[c], value, start, 0)
            return at + length, written

        at, written = lax.fori_loop(0, count, chunk, (at, {c: arenas[c] for c in writes}))
        return at, {**arenas, **written}


def _results(step_type: StepType, width: int, rows: list[Any], shared: Mapping[int, Any]) -> Any:
    kind = step_type.kind
    with kind.cell.scope():
        if kind.operation is not None:
            return [_reduced(kind.operation, rows)]
        remaining, bound = iter(rows), iter(kind.shared_ids)
        operands = [next(remaining) if is_row else shared[next(bound)] for is_row in kind.vmapped]
        axes = [0 if is_row else None for is_row in kind.vmapped]
        return jax.vmap(kind.cell, in_axes=axes, axis_size=width)(*operands)


def _reduced(operation: str, terms: list[Any]) -> Any:
    """The reduction of terms, in order. Missing terms are replaced by rows of zeros."""
    if operation != "sum":
        combine = lax.max if operation == "max" else lax.min
        total = terms[0]
        for term in terms[1:]:
            total = combine(total, term)
        return total
    dtype = accumulator(terms[0].dtype)
    total = terms[0].astype(dtype)
    for term in terms[1:]:
        total = total + term.astype(dtype)
    return total.astype(terms[0].dtype)
