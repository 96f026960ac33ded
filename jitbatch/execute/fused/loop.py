"""A loop over rounds, and its derivative: the transposed schedule run by the same kind of loop.

Backwards, a chunk gathers its operands again, takes the cotangents of what its nodes made, and writes the cotangents of
what they read to contiguous rows, one row for each *edge*: scattering them to the producers would make XLA copy a whole
arena in every step. A producer gathers the one edge row of its consumer; where it has several, pairs of edge rows are
summed into further rows until one is left, which costs one row for each further consumer. What was made before the loop
has its edge rows summed after it, by one scatter. Gradients of shared operands are contracted after the loop, over all
nodes at once (see `execute/weight_uses`).

Backwards, chunks are aligned to the *end* of what a round has to do: what a chunk writes too much lies before it, where
earlier rounds, which come later, write again. The cotangents of joints' outputs take the place of the outputs that the
forward pass has saved; there, a chunk leaves the rows of earlier rounds as they are.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitbatch.batch.activity import without_flow
from jitbatch.core.layout import PAIR_WIDTH
from jitbatch.execute.fused.derivative import with_rule
from jitbatch.execute.segments import chunk_reduce, gather, scatter_sums
from jitbatch.execute.steps import Read, Step, Write, operand_reads
from jitbatch.execute.weight_uses import cut_cell
from jitbatch.ir.tables import Kind
from jitbatch.util import jaxprs
from jitbatch.util.compat import is_float
from jitbatch.util.csr import ranges


@dataclass(frozen=True)
class Block:
    """All nodes of a type.

    Attributes:
        kind: what they compute.
        capacity: room for how many.
        starts: where the block of each output begins in its arena.
        flows: through which row operands a derivative can pass.
        widths: of a loop, the widths that chunks can have.
        terms: of sums, room for how many terms.
        longest: of sums in a loop with static trip counts, room for how many terms a sum.
    """

    kind: Kind
    capacity: int
    starts: tuple[int, ...]
    flows: tuple[bool, ...]
    widths: tuple[int, ...] = ()
    terms: int = 0
    longest: int = 0


@dataclass(frozen=True)
class LoopShape:
    """The static part of a loop.

    Attributes:
        blocks: its types.
        margin: how many rows lie before and behind the nodes in each block.
        rounds: room for how many rounds.
        reads, writes: for each type, the arena of each row operand, and of each output.
        edges: for each type, for each row operand where its edge rows begin, or -1 if it has no derivative.
        edge_rows: for each arena, how many edge rows there are without the sums of pairs; 0 for none.
        pair_rows: for each arena, room for how many sums of pairs.
        pair_trips: for each arena, how many chunks of sums of pairs there are at once, where trip counts are static;
            None where they are dynamic.
    """

    blocks: tuple[Block, ...]
    margin: int
    rounds: int
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, ...], ...]
    edge_rows: tuple[int, ...]
    pair_rows: tuple[int, ...]
    pair_trips: tuple[int, ...] | None = None

    @property
    def is_static(self) -> bool:
        """Whether the loop has static trip counts: every type runs in every round of the room for rounds, in one chunk
        that has the width of the widest round. What a chunk computes too much is overwritten or never read."""
        return self.pair_trips is not None

    def round_count(self, tables: dict[str, Any]) -> Any:
        return self.rounds if self.is_static else tables["rounds"]

    def over_chunks(self, number: int, ends: Any, r: Any, chunk: Callable[..., Any], carry: Any, sign: int = 1) -> Any:
        """Run `chunk(width, position, carry)` for the chunks of a type in a round, the widest first. The position of a
        chunk is where the one before it has ended; they ascend, or descend where the sign is negative.

        Args:
            ends: int [rounds, types, 1 + widths]; where the first chunk begins, and where those of each width end.
        """
        position = ends[r, number, 0]
        for place, width in reversed(list(enumerate(self.blocks[number].widths))):
            run = functools.partial(chunk, width)
            if self.is_static:
                carry = run(position, carry)
            else:
                end = (r, number, ends.shape[-1] - 1 - place)
                position, carry = _while_before(ends, end, position, sign * width, run, carry)
        return carry


def _while_before(
    ends: Any, end: tuple[Any, ...], position: Any, by: int, run: Callable[..., Any], carry: Any
) -> tuple[Any, Any]:
    """Run `run(position, carry)` for a position and those that follow it, as long as they have not come to `ends[end]`.
    This is looked up in the condition: made before the loop, every number is one more thing for XLA to start."""
    sign = 1 if by > 0 else -1
    return lax.while_loop(
        lambda state: sign * state[0] < sign * ends[end],
        lambda state: (state[0] + by, run(*state)),
        (position, carry),
    )


def put(arena: Any, rows: Any, start: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(arena, rows, start, 0)


def part(array: Any, start: Any, length: int) -> Any:
    return lax.dynamic_slice_in_dim(array, start, length)


def _where(is_row: Any, rows: Any, others: Any) -> Any:
    return jnp.where(is_row.reshape(-1, *[1] * (rows.ndim - 1)), rows, others)


def _run(shape: LoopShape, arenas: tuple[Any, ...], shared: tuple[Any, ...], tables: dict[str, Any]) -> tuple[Any, ...]:
    """The arenas with the rows that the loop makes.

    Args:
        shape: the static part.
        arenas: all arenas; what earlier phases made is in them.
        shared: for each type, what its cell reads of shared values (`CutCell.prologue`).
        tables: the dynamic part.
    """
    return _forward(shape, arenas, shared, tables, save=False)[0]


def _cut(block: Block) -> Any:
    return cut_cell(block.kind.cell, block.kind.vmapped)


def _operands(shape: LoopShape, number: int, arenas: Any, tables: dict[str, Any], start: Any, width: int) -> list[Any]:
    index = part(tables["operands"][number], start, width)
    read = zip(shape.reads[number], shape.blocks[number].flows, strict=True)
    return [without_flow(gather(arenas[arena], index[:, slot]), flows) for slot, (arena, flows) in enumerate(read)]


def _forward(shape: LoopShape, arenas: Any, shared: Any, tables: dict[str, Any], save: bool) -> tuple[Any, Any]:
    room = [2 * shape.margin + block.capacity for block in shape.blocks]
    saved = tuple(
        tuple(jnp.zeros((rows, *aval.shape), aval.dtype) for aval in _cut(block).saved_avals) if save else ()
        for block, rows in zip(shape.blocks, room, strict=True)
    )

    def chunk(number: int, width: int, start: Any, carry: Any) -> Any:
        arenas, saved = list(carry[0]), list(carry[1])
        block = shape.blocks[number]
        operation = block.kind.operation
        if operation is not None:
            (read,), (write,) = shape.reads[number], shape.writes[number]
            table = tables["operands"][number]
            first_term, count = part(table["first"], start, width), part(table["count"], start, width)
            longest = block.longest if shape.is_static else jnp.max(count)
            terms = without_flow(arenas[read], *block.flows)
            value = chunk_reduce(operation, terms, table["terms"], first_term, count, longest)
            arenas[write] = put(arenas[write], value, block.starts[0] + start)
            return tuple(arenas), tuple(saved)
        rows = _operands(shape, number, arenas, tables, start, width)
        axes = (0, None)
        outputs, kept = jax.vmap(_cut(block).forward, in_axes=axes, axis_size=width)(rows, shared[number])
        for arena, begin, value in zip(shape.writes[number], block.starts, outputs, strict=True):
            arenas[arena] = put(arenas[arena], value, begin + start)
        if save:
            saved[number] = tuple(put(a, value, start) for a, value in zip(saved[number], kept, strict=True))
        return tuple(arenas), tuple(saved)

    def round_body(r: Any, carry: Any) -> Any:
        for number in range(len(shape.blocks)):
            with shape.blocks[number].kind.cell.scope():
                carry = shape.over_chunks(number, tables["ends"], r, functools.partial(chunk, number), carry)
        return carry

    saved = jaxprs.cast(saved, jaxprs.axes_of(tables))
    arenas, saved = lax.fori_loop(0, shape.round_count(tables), round_body, (tuple(arenas), saved))
    # Behind the nodes lies what the last chunks have written too much.
    return arenas, tuple(
        tuple(put(a, jnp.zeros_like(a[: shape.margin]), shape.margin + tables["total"][number]) for a in own)
        for number, own in enumerate(saved)
    )


def _forward_saving(shape: LoopShape, arenas: Any, shared: Any, tables: dict[str, Any]) -> tuple[Any, Any]:
    arenas, saved = _forward(shape, arenas, shared, tables, save=True)
    return arenas, (arenas, saved, shared, tables)


def _tangents(shape: LoopShape, residuals: Any, *tangents: Any) -> Any:
    # What the loop makes is in the arenas already; made again from these, it is the same.
    arenas, _, shared, tables = residuals
    return jax.jvp(functools.partial(_run, shape), (arenas, shared, tables), tangents)[1]


def _backward(shape: LoopShape, residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    arenas, saved, shared, tables = residuals
    cuts = [_cut(block) for block in shape.blocks]
    axes = jaxprs.axes_of(tables)
    margin = shape.margin
    # Chunks of the same widths, from the end of each round to its beginning.
    begins = tables["ends"][..., 0]
    after = jnp.append(begins[1:], margin + tables["total"][None], axis=0)
    ends = (begins + after)[..., None] - tables["ends"]
    edges = tuple(
        jnp.zeros((rows + pairs, *arena.shape[1:]), arena.dtype) if rows else None
        for arena, rows, pairs in zip(arenas, shape.edge_rows, shape.pair_rows, strict=True)
    )
    taps = tuple(
        tuple(
            jnp.zeros((2 * margin + block.capacity, *aval.shape), aval.dtype) if place is None else own[place]
            for aval, place in zip(cut.tap_avals, cut.saved_place, strict=True)
        )
        for block, cut, own in zip(shape.blocks, cuts, saved, strict=True)
    )
    kept_rows = tuple(
        tuple(jnp.zeros((2 * margin + block.capacity, *v.aval.shape), v.aval.dtype) for v in cut.stored_joint_rows)
        for block, cut in zip(shape.blocks, cuts, strict=True)
    )

    def sum_pairs(arena: int, k: Any, edge: Any) -> Any:
        begin = tables["pair_start"][arena][k]
        left = part(tables["pair_left"][arena], begin, PAIR_WIDTH)
        right = part(tables["pair_right"][arena], begin, PAIR_WIDTH)
        return put(edge, gather(edge, left) + gather(edge, right), shape.edge_rows[arena] + begin)

    @jax.named_scope("pair_sums")
    def sum_all_pairs(edges: Any, r: Any, number: int) -> Any:
        edges = list(edges)
        for arena, spans in enumerate(tables["pair_span"]):
            if spans is None:
                continue
            first, end = spans[r, number, 0], (r, number, 1)
            run = functools.partial(sum_pairs, arena)
            if shape.pair_trips is None:
                _, edges[arena] = _while_before(spans, end, first, 1, run, edges[arena])
                continue
            # A chunk that is computed once more gives the same; one that is too early is computed again.
            last = jnp.maximum(spans[end], 1) - 1

            def once(k: Any, edge: Any, run: Any = run, first: Any = first, last: Any = last) -> Any:
                return run(jnp.minimum(first + k, last), edge)

            edges[arena] = lax.fori_loop(0, shape.pair_trips[arena], once, edges[arena])
        return tuple(edges)

    def d_row(edges: Sequence[Any], arena: int, start: Any, width: int) -> Any:
        """The cotangents of rows that nodes of the loop have made."""
        outer = part(cotangents[arena], start, width)
        if edges[arena] is None:
            return outer
        return outer + gather(edges[arena], part(tables["edge_of_row"][arena], start, width))

    def chunk(number: int, first: Any, width: int, end: Any, carry: Any) -> Any:
        edges, taps, kept_rows = list(carry[0]), list(carry[1]), list(carry[2])
        block, cut = shape.blocks[number], cuts[number]
        start = end - width
        if block.kind.is_variadic:
            ((begin,), (arena,)) = shape.edges[number], shape.writes[number]
            if begin >= 0:
                edges[arena] = put(edges[arena], d_row(edges, arena, block.starts[0] + start, width), begin + start)
            return tuple(edges), tuple(taps), tuple(kept_rows)
        rows = _operands(shape, number, arenas, tables, start, width)
        own_saved = [part(a, start, width) for a in saved[number]]
        for tap, place in zip(taps[number], cut.saved_place, strict=True):
            if place is not None:
                own_saved[place] = part(tap, start, width)
        flows = [begin >= 0 for begin in shape.edges[number]]
        zeros = jaxprs.cast([jnp.zeros((width, *aval.shape), aval.dtype) for aval in cut.tap_avals], axes)

        def float_outputs(float_rows: list[Any], zeros: list[Any]) -> tuple[list[Any], list[Any]]:
            remaining = iter(float_rows)
            all_rows = [next(remaining) if flow else row for flow, row in zip(flows, rows, strict=True)]
            return cut.tapped_forward(all_rows, zeros, own_saved, shared[number], width)

        float_rows = [row for flow, row in zip(flows, rows, strict=True) if flow]
        _, pull, joint_rows = jax.vjp(float_outputs, float_rows, zeros, has_aux=True)
        d_outputs = []
        for arena, begin, atom in zip(shape.writes[number], block.starts, cut.out_atoms, strict=True):
            if is_float(atom.aval):
                d_outputs.append(d_row(edges, arena, begin + start, width))
        d_rows, d_taps = pull(d_outputs)
        remaining = iter(d_rows)
        for flow, arena, begin in zip(flows, shape.reads[number], shape.edges[number], strict=True):
            if flow:
                edges[arena] = put(edges[arena], next(remaining), begin + start)
        is_own = jnp.arange(width) >= first - start
        taps[number] = tuple(
            put(a, _where(is_own, value, 0 if place is None else own_saved[place]), start)
            for a, value, place in zip(taps[number], d_taps, cut.saved_place, strict=True)
        )
        kept_rows[number] = tuple(put(a, value, start) for a, value in zip(kept_rows[number], joint_rows, strict=True))
        return tuple(edges), tuple(taps), tuple(kept_rows)

    def round_body(i: Any, carry: Any) -> Any:
        r = shape.round_count(tables) - 1 - i
        for number in reversed(range(len(shape.blocks))):
            carry = (sum_all_pairs(carry[0], r, number), *carry[1:])
            with shape.blocks[number].kind.cell.scope():
                run = functools.partial(chunk, number, tables["ends"][r, number, 0])
                carry = shape.over_chunks(number, ends, r, run, carry, -1)
        return carry

    carry = jaxprs.cast((edges, taps, kept_rows), axes)
    edges, taps, kept_rows = lax.fori_loop(0, shape.round_count(tables), round_body, carry)

    d_arenas: list[Any] = []
    for arena, cotangent in enumerate(cotangents):
        if not is_float(arenas[arena]):
            d_arenas.append(None)
            continue
        total = cotangent
        if edges[arena] is not None:
            total = scatter_sums(total, edges[arena], tables["row_of_edge"][arena])
            if tables["row_of_term"][arena] is not None:
                edge_of_term, row_of_term = tables["row_of_term"][arena]
                total = scatter_sums(total, gather(edges[arena], edge_of_term), row_of_term)
        for number, block in enumerate(shape.blocks):
            for place, begin in zip(shape.writes[number], block.starts, strict=True):
                if place == arena:  # these rows are overwritten by the loop
                    total = put(total, jnp.zeros((2 * margin + block.capacity, *total.shape[1:]), total.dtype), begin)
        d_arenas.append(total)

    d_shared = []
    for number, block in enumerate(shape.blocks):
        with block.kind.cell.scope(), jax.named_scope("weights"):
            d_shared.append(_contract(shape, number, arenas, shared[number], taps[number], kept_rows[number], tables))
    return tuple(d_arenas), tuple(d_shared), jax.tree.map(lambda _: None, tables)


def _contract(
    shape: LoopShape, number: int, arenas: Any, shared: Any, taps: Any, kept_rows: Any, tables: Any
) -> list[Any]:
    """The gradients of a type's shared operands, from the cotangents at its joints, over all its nodes at once."""
    block, cut = shape.blocks[number], _cut(shape.blocks[number])
    if block.kind.is_variadic:
        return []
    total = tables["total"][number]
    index = tables["operands"][number]
    # Rows without a node repeat one that has a node, and their cotangents are zero.
    places = jnp.arange(len(index))
    inside = jnp.clip(places, shape.margin, shape.margin + jnp.maximum(total - 1, 0))
    is_real = (places >= shape.margin) & (places < shape.margin + total)
    env = dict(zip(cut.stored_joint_rows, (gather(a, inside) for a in kept_rows), strict=True))
    remaining = iter(taps)
    gradients: list[Any] = [None] * len(cut.shared_vars)
    place = {var: i for i, var in enumerate(cut.shared_vars)}
    for joint in cut.tapped:
        rows = []
        for var in joint.rows:
            if var not in env:
                slot = cut.row_vars.index(var)
                env[var] = gather(arenas[shape.reads[number][slot]], index[:, slot])
            rows.append(env[var])
        outs = [i for i, var in enumerate(joint.outputs) if is_float(var.aval)]
        cotangents = [next(remaining) for _ in outs]
        wanted = [var for var in joint.shared if is_float(var.aval)]

        def outputs(
            values: list[Any], joint: Any = joint, rows: Any = rows, wanted: Any = wanted, outs: Any = outs
        ) -> list[Any]:
            given = dict(zip(wanted, values, strict=True))
            own = [given.get(var, shared[place[var]]) for var in joint.shared]
            made = jax.vmap(joint, in_axes=(0, None, 0), axis_size=len(index))(rows, own, is_real)
            return [made[i] for i in outs]

        _, pull = jax.vjp(outputs, [shared[place[var]] for var in wanted])
        for var, gradient in zip(wanted, pull(cotangents)[0], strict=True):
            gradient = jnp.where(total > 0, gradient, 0)
            before = gradients[place[var]]
            gradients[place[var]] = gradient if before is None else before + gradient
    return [
        jnp.zeros_like(value) if gradient is None and is_float(var.aval) else gradient
        for gradient, value, var in zip(gradients, shared, cut.shared_vars, strict=True)
    ]


run_loop = with_rule(_run, _forward_saving, _tangents, _backward)
"""`_run`, to be differentiated in either mode."""


def steps_of_loop(phase: int, shape: LoopShape, table: Any) -> Iterator[Step]:
    """The chunks of a loop in the order of execution."""
    ends, total = np.asarray(table["ends"]), np.asarray(table["total"])
    for turn in range(int(shape.round_count(table))):
        for place, block in enumerate(shape.blocks):
            begin = int(ends[turn, place, 0])
            end = int(ends[turn + 1, place, 0]) if turn + 1 < len(ends) else shape.margin + int(total[place])
            rows_of_width = np.diff(ends[turn, place])[::-1]
            for width, rows in reversed(list(zip(block.widths, rows_of_width.tolist(), strict=False))):
                for _ in range(rows // width):
                    count = min(width, max(end - begin, 0))
                    yield _chunk_step(phase, turn, shape, place, table["operands"][place], begin, count, width)
                    begin += count


def _chunk_step(
    phase: int, turn: int, shape: LoopShape, place: int, operands: Any, begin: int, count: int, width: int
) -> Step:  # fmt: skip
    block, nodes = shape.blocks[place], slice(begin, begin + count)
    if block.kind.is_variadic:
        first, arity = (np.asarray(operands[name])[nodes] for name in ("first", "count"))
        terms = np.asarray(operands["terms"])[ranges(first, arity)]
        reads = (Read(shape.reads[place][0], terms, np.repeat(np.arange(count), arity)),)
    else:
        reads = operand_reads(shape.reads[place], np.asarray(operands)[nodes].T)
    writes = [
        Write(arena, start + np.arange(begin, begin + count))
        for arena, start in zip(shape.writes[place], block.starts, strict=True)
    ]
    return Step(block.kind, phase, turn, count, width, tuple(writes), reads)
