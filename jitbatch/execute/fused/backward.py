"""The backward pass of a loop: the same kind of loop, with the transposed schedule.

A chunk gathers its operands again, reads the cotangents of its outputs, and writes the cotangents of its operands to
contiguous *cotangent rows*, one for each node and operand. A scatter to the producers would make XLA copy a whole arena
in every step. A producer with one reader gathers that reader's cotangent row. For a producer with several readers,
pairs of cotangent rows are summed into further rows until one is left. For values from before the loop, one scatter
after the loop sums the cotangent rows. Gradients of shared operands are contracted after the loop (see
`execute/fused/weight_gradients`).

Chunks are aligned to the *end* of a round's nodes. The surplus rows of a chunk lie before these nodes. They belong to
earlier rounds, which the backward pass runs later, and which overwrite them. The cotangents of a weight use's outputs
replace the outputs that the forward pass saved; there, a chunk keeps the rows of earlier rounds.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jitbatch.core.layout import PAIR_WIDTH
from jitbatch.execute.fused.shapes import LoopShape, RoundTable, part, put, while_before
from jitbatch.execute.fused.weight_gradients import contract
from jitbatch.execute.segments import gather, gather_each, scatter_sums
from jitbatch.util import jaxprs
from jitbatch.util.compat import is_float


class Carry(NamedTuple):
    """The state of the backward loop.

    Attributes:
        rows: for each arena, its cotangent rows followed by the pair sums; None if it has no cotangent rows.
        taps: for each type, the cotangents of the outputs of its weight uses.
        kept: for each type, the rows that its weight uses read and that are not operands of the cell.
    """

    rows: tuple[Any, ...]
    taps: tuple[Any, ...]
    kept: tuple[Any, ...]


class Backward:
    """The backward pass of one loop.

    Attributes:
        arenas, saved, shared, tables: the residuals of the forward pass.
        cotangents: the cotangents of the arenas after the loop.
        ends: the positions of chunks, from the end of each round to its beginning.
    """

    def __init__(self, shape: LoopShape, residuals: Any, cotangents: Any):
        self.shape = shape
        self.arenas, self.saved, self.shared, self.tables = residuals
        self.cotangents = cotangents
        self.axes = jaxprs.axes_of(self.tables)
        # The chunks have the same widths as in the forward pass.
        begins = self.tables["ends"][..., 0]
        after = jnp.append(begins[1:], shape.margin + self.tables["total"][None], axis=0)
        self.ends = (begins + after)[..., None] - self.tables["ends"]

    def run(self) -> tuple[Any, Any, Any]:
        """Returns the cotangents of the arenas, of the shared operands, and of the tables (all None)."""
        rounds = self.shape.round_count(self.tables)
        carry = lax.fori_loop(0, rounds, lambda i, carry: self._round(rounds - 1 - i, carry), self._first_carry())
        d_arenas = tuple(self._d_arena(arena, carry) for arena in range(len(self.arenas)))
        d_shared = []
        for block_id, block in enumerate(self.shape.blocks):
            with block.kind.cell.scope(), jax.named_scope("weights"):
                taps, kept = carry.taps[block_id], carry.kept[block_id]
                shared = self.shared[block_id]
                d_shared.append(contract(self.shape, block_id, self.arenas, shared, taps, kept, self.tables))
        return d_arenas, tuple(d_shared), jax.tree.map(lambda _: None, self.tables)

    def _first_carry(self) -> Carry:
        shape = self.shape
        rows = tuple(
            jnp.zeros((count + pairs, *arena.shape[1:]), arena.dtype) if count else None
            for arena, count, pairs in zip(self.arenas, shape.edge_rows, shape.pair_rows, strict=True)
        )
        taps = tuple(
            tuple(
                jnp.zeros((shape.room(block), *aval.shape), aval.dtype) if saved_id is None else saved[saved_id]
                for aval, saved_id in zip(block.cut.tap_avals, block.cut.saved_ids, strict=True)
            )
            for block, saved in zip(shape.blocks, self.saved, strict=True)
        )
        kept = tuple(
            tuple(jnp.zeros((shape.room(block), *v.aval.shape), v.aval.dtype) for v in block.cut.stored_rows)
            for block in shape.blocks
        )
        return jaxprs.cast(Carry(rows, taps, kept), self.axes)

    def _round(self, r: Any, carry: Carry) -> Carry:
        hoists = self.shape.target.hoists_trips
        firsts = RoundTable(self.tables["ends"], r, hoists)
        ends = RoundTable(self.ends, r, hoists)
        spans = [None if span is None else RoundTable(span, r, hoists) for span in self.tables["pair_span"]]
        for block_id in reversed(range(len(self.shape.blocks))):
            carry = carry._replace(rows=self._sum_pairs(carry.rows, spans, block_id))
            with self.shape.blocks[block_id].kind.cell.scope():
                run = functools.partial(self._chunk, block_id, firsts.at(block_id, 0))
                carry = self.shape.over_chunks(block_id, ends, run, carry, -1)
        return carry

    # Sums over the readers of a value

    @jax.named_scope("pair_sums")
    def _sum_pairs(self, rows: tuple[Any, ...], spans: list[RoundTable | None], block_id: int) -> tuple[Any, ...]:
        """Computes the pair sums that a type reads in a round, and returns the updated cotangent rows."""
        summed = list(rows)
        for arena, span in enumerate(spans):
            if span is None:
                continue
            first = span.at(block_id, 0)
            run = functools.partial(self._sum_chunk, arena)
            if self.shape.pair_trips is None:
                with jax.named_scope(f"pairs_{block_id}_{arena}"):
                    _, summed[arena] = while_before(span.later(block_id, 1), first, 1, run, summed[arena])
                continue
            # Recomputing a chunk gives the same rows. A chunk that runs too early is computed again later.
            last = jnp.maximum(span.at(block_id, 1), 1) - 1

            def once(k: Any, rows: Any, run: Any = run, first: Any = first, last: Any = last) -> Any:
                return run(jnp.minimum(first + k, last), rows)

            summed[arena] = lax.fori_loop(0, self.shape.pair_trips[arena], once, summed[arena])
        return tuple(summed)

    def _sum_chunk(self, arena: int, k: Any, rows: Any) -> Any:
        begin = self.tables["pair_start"][arena][k]
        left = part(self.tables["pair_left"][arena], begin, PAIR_WIDTH)
        right = part(self.tables["pair_right"][arena], begin, PAIR_WIDTH)
        return put(rows, gather(rows, left) + gather(rows, right), self.shape.edge_rows[arena] + begin)

    def _cotangents_of(
        self, rows: tuple[Any, ...], outputs: list[tuple[int, int]], start: Any, width: int
    ) -> list[Any]:
        """Returns the cotangents of the rows of a chunk, that nodes of the loop wrote.

        Args:
            rows: the cotangent rows of each arena.
            outputs: for each output, its arena and the first row of its block.
            start: the position of the chunk.
            width: its width.
        """
        total = [part(self.cotangents[arena], begin + start, width) for arena, begin in outputs]
        for arena, arena_rows in enumerate(rows):
            output_ids = [output_id for output_id, output in enumerate(outputs) if output[0] == arena]
            if arena_rows is None or not output_ids:
                continue
            edges = [
                part(self.tables["edge_of_row"][arena], outputs[output_id][1] + start, width)
                for output_id in output_ids
            ]
            # Without the barrier, XLA fuses the gather into later writes to the same array, and copies it.
            for output_id, terms in zip(
                output_ids, lax.optimization_barrier(gather_each(arena_rows, edges)), strict=True
            ):
                total[output_id] += terms
        return total

    # Chunks

    def _chunk(self, block_id: int, first: Any, width: int, end: Any, carry: Carry) -> Carry:
        """Runs the chunk of a type that ends at `end`. The nodes of its round begin at `first`."""
        start = end - width
        if self.shape.blocks[block_id].kind.is_variadic:
            return carry._replace(rows=self._reduction_chunk(block_id, width, start, carry.rows))
        block, cut = self.shape.blocks[block_id], self.shape.blocks[block_id].cut
        saved = [part(buffer, start, width) for buffer in self.saved[block_id]]
        for tap, saved_id in zip(carry.taps[block_id], cut.saved_ids, strict=True):
            if saved_id is not None:  # the tap replaces the saved value
                saved[saved_id] = part(tap, start, width)
        outputs = [
            (arena, begin)
            for arena, begin, atom in zip(self.shape.writes[block_id], block.starts, cut.out_atoms, strict=True)
            if is_float(atom.aval)
        ]
        d_outputs = self._cotangents_of(carry.rows, outputs, start, width)
        d_operands, d_taps, kept = self._pull(block_id, width, start, saved, d_outputs)

        rows, remaining = list(carry.rows), iter(d_operands)
        for arena, begin in zip(self.shape.reads[block_id], self.shape.edges[block_id], strict=True):
            if begin >= 0:
                rows[arena] = put(rows[arena], next(remaining), begin + start)
        is_own = jnp.arange(width) >= first - start
        taps = tuple(
            put(buffer, _where(is_own, value, 0 if saved_id is None else saved[saved_id]), start)
            for buffer, value, saved_id in zip(carry.taps[block_id], d_taps, cut.saved_ids, strict=True)
        )
        kept_rows = tuple(put(buffer, value, start) for buffer, value in zip(carry.kept[block_id], kept, strict=True))
        return Carry(tuple(rows), _replaced(carry.taps, block_id, taps), _replaced(carry.kept, block_id, kept_rows))

    def _reduction_chunk(self, block_id: int, width: int, start: Any, rows: tuple[Any, ...]) -> tuple[Any, ...]:
        """Writes the cotangents of a chunk of sums. All terms of a sum share one cotangent row."""
        (begin,), (arena,) = self.shape.edges[block_id], self.shape.writes[block_id]
        if begin < 0:
            return rows
        (d_sum,) = self._cotangents_of(rows, [(arena, self.shape.blocks[block_id].starts[0])], start, width)
        return _replaced(rows, arena, put(rows[arena], d_sum, begin + start))

    def _pull(
        self, block_id: int, width: int, start: Any, saved: list[Any], d_outputs: list[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns the cotangents of a chunk's operands and taps, and the rows that its weight uses read."""
        cut, shared = self.shape.blocks[block_id].cut, self.shared[block_id]
        operands = self.shape.operands(block_id, self.arenas, self.tables, start, width)
        flows = [begin >= 0 for begin in self.shape.edges[block_id]]
        zeros = jaxprs.cast([jnp.zeros((width, *aval.shape), aval.dtype) for aval in cut.tap_avals], self.axes)

        def float_outputs(float_rows: list[Any], zeros: list[Any]) -> tuple[list[Any], list[Any]]:
            remaining = iter(float_rows)
            rows = [next(remaining) if flow else row for flow, row in zip(flows, operands, strict=True)]
            return cut.tapped_forward(rows, zeros, saved, shared, width)

        float_rows = [row for flow, row in zip(flows, operands, strict=True) if flow]
        _, pull, kept = jax.vjp(float_outputs, float_rows, zeros, has_aux=True)
        d_operands, d_taps = pull(d_outputs)
        return d_operands, d_taps, kept

    # After the loop

    def _d_arena(self, arena: int, carry: Carry) -> Any:
        """Returns the cotangent of an arena before the loop; None if its dtype is not a float."""
        if not is_float(self.arenas[arena]):
            return None
        total, rows = self.cotangents[arena], carry.rows[arena]
        if rows is not None:
            total = scatter_sums(total, rows, self.tables["row_of_edge"][arena])
            if self.tables["row_of_term"][arena] is not None:
                row_of_sum, row_of_term = self.tables["row_of_term"][arena]
                total = scatter_sums(total, gather(rows, row_of_sum), row_of_term)
        for writes, block in zip(self.shape.writes, self.shape.blocks, strict=True):
            for written, begin in zip(writes, block.starts, strict=True):
                if written == arena:  # the loop overwrites these rows
                    total = put(total, jnp.zeros((self.shape.room(block), *total.shape[1:]), total.dtype), begin)
        return total


def run_backward(shape: LoopShape, args: tuple[Any, Any, Any], saved: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    """Runs the backward pass of a loop.

    Args:
        shape: the static part.
        args: the arguments of the forward pass, with the arenas that it returned.
        saved: what it saved.
        cotangents: of the arenas.
    """
    arenas, shared, tables = args
    return Backward(shape, (arenas, saved, shared, tables), cotangents).run()


def _where(is_row: Any, rows: Any, others: Any) -> Any:
    return jnp.where(is_row.reshape(-1, *[1] * (rows.ndim - 1)), rows, others)


def _replaced(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])
