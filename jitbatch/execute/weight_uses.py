"""Cells cut at their weight uses: the backward pass of a loop leaves out the gradients of shared operands.

Inside a loop over rounds, a gradient of the weights would touch every weight in every step. So a cell is cut where
shared operands meet rows. The pieces that read both are its *weight uses* (`WeightUse` in the code); for example,
`left @ W + right @ U + b` is one weight use. The forward pass saves the outputs of weight uses with contractions, so
that no matmul runs twice. The backward pass computes the cotangents of the row operands and of the outputs of weight
uses, one row per node. After the loop, one large contraction over all nodes computes the gradients of the shared
operands from these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jitbatch.execute.padding import CONTRACTIONS, SUMS, may_be_singular, real
from jitbatch.ir.cell import Cell
from jitbatch.record.fold import inline
from jitbatch.util import compat, jaxprs
from jitbatch.util.caches import Cache
from jitbatch.util.compat import is_float


@dataclass(frozen=True, eq=False)
class WeightUse:
    """A weight use: a part of a cell that reads rows and shared values.

    Attributes:
        rows, shared: the variables that it reads.
        outputs: its output variables.
        equations: its equations in order.
        is_saved: whether the forward pass saves its outputs.
    """

    rows: tuple[Any, ...]
    shared: tuple[Any, ...]
    outputs: tuple[Any, ...]
    equations: tuple[Any, ...]
    is_saved: bool

    def __call__(self, rows: Sequence[Any], shared: Sequence[Any], is_real: Any = None) -> list[Any]:
        """Returns the outputs for one row.

        Args:
            rows, shared: the values of the variables that it reads.
            is_real: False if the row is padding (see `execute/padding`); None if derivatives need no mask.
        """
        if not self.equations:
            return list(shared)
        env = dict(zip((*self.rows, *self.shared), (*rows, *shared), strict=True))
        for equation in self.equations:
            _evaluate(equation, env, self.shared, is_real)
        return [env[var] for var in self.outputs]


class CutCell:
    """A cell cut at its weight uses.

    Args:
        cell: the cell.
        is_row: for each operand, whether it is a row; the others are shared.

    Attributes:
        row_vars: the variables of the row operands.
        shared_vars: the shared variables that the loop reads: shared operands, and values computed from these alone.
            `prologue` computes them once.
        program: the equations and weight uses, in the order of execution.
        out_atoms: the variables and literals of the outputs.
        weight_uses: the weight uses in the order of execution.
        saved_avals: the avals of the values that the forward pass saves.
        tapped: the weight uses whose output cotangents the backward pass stores.
        tap_avals: the avals of the float outputs of these weight uses.
        saved_ids: for each of these outputs, the index of the saved value that its cotangent replaces, or None.
        stored_rows: the rows that these weight uses read and that are not operands of the cell.
    """

    def __init__(self, cell: Cell, is_row: Sequence[bool]):
        jaxpr = cell.jaxpr.jaxpr
        self.row_vars = [var for var, row in zip(jaxpr.invars, is_row, strict=True) if row]
        self._shared_operands = [var for var, row in zip(jaxpr.invars, is_row, strict=True) if not row]
        equations: list[Any] = []
        self.out_atoms = inline(cell.jaxpr, jaxpr.invars, equations, open_jits=True)
        depends_on_rows = set(self.row_vars)
        shared_equations, row_equations = [], []
        for equation in equations:
            if equation.effects or any(_is_var(v) and v in depends_on_rows for v in equation.invars):
                depends_on_rows.update(equation.outvars)
                row_equations.append(equation)
            else:
                shared_equations.append(equation)
        self._shared_equations = shared_equations
        read = [v for eqn in row_equations for v in eqn.invars if _is_var(v) and v not in depends_on_rows]
        read += [v for v in self.out_atoms if _is_var(v) and v not in depends_on_rows]
        self.shared_vars = list(dict.fromkeys(read))
        self.program = _join(row_equations, set(self.shared_vars), self.row_vars, self.out_atoms)
        self.out_atoms = [self._passed_on(a) if _is_var(a) and a in self.shared_vars else a for a in self.out_atoms]
        self.weight_uses = [item for item in self.program if isinstance(item, WeightUse)]
        saved = [v for use in self.weight_uses if use.is_saved for v in use.outputs]
        self.saved_avals = [v.aval for v in saved]
        # A constant, such as the 1 of `x + 1`, has no gradient, and its weight use needs no tap. But a saved weight use
        # always needs one: the cotangents of its rows pass through it.
        varying = set(self._shared_operands)
        for equation in shared_equations:
            if any(_is_var(v) and v in varying for v in equation.invars):
                varying.update(equation.outvars)
        has_gradient = {v for v in self.shared_vars if v in varying and is_float(v.aval)}
        self.tapped = [use for use in self.weight_uses if use.is_saved or not has_gradient.isdisjoint(use.shared)]
        taps = [v for use in self.tapped for v in use.outputs if is_float(v.aval)]
        self.tap_avals = [v.aval for v in taps]
        # The backward pass stores the rows that weight uses read and that are not operands of the cell.
        read = dict.fromkeys(v for use in self.tapped for v in use.rows)
        self.stored_rows = [v for v in read if v not in self.row_vars]
        behind = self._saved_behind(self.stored_rows)
        self.saved_ids = [saved.index(v) if v in saved and v not in behind else None for v in taps]

    def _saved_behind(self, some: Sequence[Any]) -> set[Any]:
        """Returns the saved values that some variables depend on.

        Cotangents do not replace these saved values. XLA cannot know that they are read before they are overwritten,
        and would copy all of them in every chunk.
        """
        behind: dict[Any, set[Any]] = {}
        for item in self.program:
            is_use = isinstance(item, WeightUse)
            reads, makes = (item.rows, item.outputs) if is_use else (filter(_is_var, item.invars), item.outvars)
            found = set().union(*(behind.get(v, ()) for v in reads))
            behind.update((v, {v} if is_use and item.is_saved else found) for v in makes)
        return set().union(*(behind.get(v, ()) for v in some))

    def _passed_on(self, var: Any) -> Any:
        """Returns a variable for an output that depends only on shared operands: a weight use without equations."""
        copy = compat.Var(var.aval)
        self.program.append(WeightUse(rows=(), shared=(var,), outputs=(copy,), equations=(), is_saved=False))
        return copy

    def prologue(self, shared: Sequence[Any]) -> list[Any]:
        """Computes the shared values that the loop reads from the cell's shared operands."""
        env = dict(zip(self._shared_operands, shared, strict=True))
        for equation in self._shared_equations:
            _evaluate(equation, env)
        return [env[var] for var in self.shared_vars]

    def forward(
        self, rows: Sequence[Any], shared: Sequence[Any], is_real: Any = None
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        """Runs the cell on one row.

        Args:
            rows: the row operands.
            shared: the outputs of `prologue`.
            is_real: False if the row is padding; None if derivatives need no mask.

        Returns:
            The outputs, and the values that are saved for the backward pass.
        """
        if is_real is not None:
            rows = [real(row, is_real) for row in rows]
        env = dict(zip((*self.row_vars, *self.shared_vars), (*rows, *shared), strict=True))
        saved = []
        for item in self.program:
            if isinstance(item, WeightUse):
                outputs = item([env[v] for v in item.rows], [env[v] for v in item.shared], is_real)
                if is_real is not None:
                    outputs = [real(value, is_real) for value in outputs]
                env.update(zip(item.outputs, outputs, strict=True))
                saved += outputs if item.is_saved else []
            else:
                _evaluate(item, env)
        return [_read(atom, env) for atom in self.out_atoms], saved

    def tapped_forward(
        self, rows: Sequence[Any], taps: Sequence[Any], saved: Sequence[Any], shared: Sequence[Any], width: int
    ) -> tuple[list[Any], list[Any]]:
        """Runs the cell on `width` nodes, for differentiation with respect to rows and taps.

        A tap is a zero that is added to an output of a weight use. Its cotangent is the cotangent of this output. Each
        equation and weight use is vmapped separately, so that the custom derivative of taps gets whole arrays.

        Args:
            rows: the row operands.
            taps: a zero for each float output of the tapped weight uses.
            saved: the outputs of saved weight uses; they are not computed again.
            shared: the outputs of `prologue`.
            width: the number of nodes.

        Returns:
            The float outputs, and the values of `stored_rows`.
        """
        env = dict(zip((*self.row_vars, *self.shared_vars), (*rows, *shared), strict=True))
        remaining_taps, remaining_saved = iter(taps), iter(saved)
        for item in self.program:
            if not isinstance(item, WeightUse):
                self._evaluate_rows(item, env, width)
                continue
            own_rows = [env[v] for v in item.rows]
            own_shared = [env[v] for v in item.shared]
            run = jax.vmap(item, in_axes=(0, None), axis_size=width)
            values = [next(remaining_saved) for _ in item.outputs] if item.is_saved else run(own_rows, own_shared)
            if item in self.tapped:
                floats = [is_float(v.aval) for v in item.outputs]
                own_taps = [next(remaining_taps) for flow in floats if flow]
                own_values = [value for value, flow in zip(values, floats, strict=True) if flow]
                tapped = iter(_tap(item, run, own_rows, own_shared, own_values, own_taps))
                values = [next(tapped) if flow else value for value, flow in zip(values, floats, strict=True)]
            env.update(zip(item.outputs, values, strict=True))
        outputs = [self._rows_of(atom, env, width) for atom in self.out_atoms if is_float(atom.aval)]
        return outputs, [env[v] for v in self.stored_rows]

    def _evaluate_rows(self, equation: Any, env: dict[Any, Any], width: int) -> None:
        axes = tuple(0 if _is_var(a) and a not in self.shared_vars else None for a in equation.invars)
        run = jax.vmap(lambda *inputs: jaxprs.evaluate(equation, inputs), in_axes=axes, axis_size=width)
        env.update(zip(equation.outvars, run(*(_read(a, env) for a in equation.invars)), strict=True))

    def _rows_of(self, atom: Any, env: dict[Any, Any], width: int) -> Any:
        if _is_var(atom):
            return env[atom]
        return jnp.broadcast_to(jnp.asarray(atom.val, atom.aval.dtype), (width, *atom.aval.shape))


def _tap(use: WeightUse, run: Any, rows: list[Any], shared: list[Any], values: list[Any], taps: list[Any]) -> list[Any]:
    """Returns `values`, the float outputs of a weight use, with a custom derivative.

    The derivative with respect to the rows is that of the weight use. The derivative with respect to the taps is the
    identity.
    """
    flows = [is_float(var.aval) for var in use.rows]

    def tapped(values: list[Any], taps: list[Any], rows: list[Any], shared: list[Any]) -> list[Any]:
        return values

    def forward(values: list[Any], taps: list[Any], rows: list[Any], shared: list[Any]) -> tuple[list[Any], Any]:
        return values, (rows, shared)

    def backward(residuals: Any, cotangents: list[Any]) -> tuple[list[Any], list[Any], list[Any], None]:
        rows, shared = residuals

        def floats(float_rows: list[Any]) -> list[Any]:
            floats_of_rows = iter(float_rows)
            results = run(
                [next(floats_of_rows) if flow else row for flow, row in zip(flows, rows, strict=True)], shared
            )
            return [value for value, var in zip(results, use.outputs, strict=True) if is_float(var.aval)]

        _, pull = jax.vjp(floats, [row for flow, row in zip(flows, rows, strict=True) if flow])
        d_rows = iter(pull(cotangents)[0])
        # The cotangents of `values` are zeros, not None: with None, jax 0.10 fails to transpose a scan that computed
        # them. There is no stop_gradient, because a second derivative needs the derivative of `values`.
        nothing = [jnp.zeros_like(cotangent) for cotangent in cotangents]
        return nothing, cotangents, [next(d_rows) if flow else None for flow in flows], None

    tap = jax.custom_vjp(tapped)
    tap.defvjp(forward, backward)
    return tap(values, taps, rows, shared)


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, compat.Literal)


def _read(atom: Any, env: dict[Any, Any]) -> Any:
    return env[atom] if _is_var(atom) else atom.val


def _evaluate(equation: Any, env: dict[Any, Any], shared: Sequence[Any] = (), is_real: Any = None) -> None:
    """Evaluates an equation and writes its outputs to `env`.

    Args:
        equation: the equation.
        env: the values of variables.
        shared: shared variables. If the equation may be singular in them, padding gets no derivative with respect to
            them.
        is_real: False if the row is padding; None if derivatives need no mask.
    """
    inputs = [_read(atom, env) for atom in equation.invars]
    if is_real is not None:
        read = [atom for atom in equation.invars if _is_var(atom) and atom in shared]
        if read and may_be_singular(equation, read):
            inputs = [real(v, is_real) if a in read else v for v, a in zip(inputs, equation.invars, strict=True)]
    env.update(zip(equation.outvars, jaxprs.evaluate(equation, inputs), strict=True))


def _join(equations: Sequence[Any], shared: set[Any], rows: Sequence[Any], out_atoms: Sequence[Any]) -> list[Any]:
    """Returns the equations in order, with those that read shared floats grouped into weight uses.

    A sum of weight uses becomes one weight use with them, since all terms of a sum have equal cotangents. The sum may
    also add shared values and row operands of the cell.
    """
    uses: dict[Any, int] = {}
    for atom in (*(a for eqn in equations for a in eqn.invars), *out_atoms):
        if _is_var(atom):
            uses[atom] = uses.get(atom, 0) + 1
    open_uses: dict[Any, list[Any]] = {}  # by the single output of a weight use, if one equation reads it
    members: dict[int, list[Any]] = {}  # by the position of a weight use's last equation
    absorbed: set[int] = set()
    position_of: dict[Any, int] = {}
    for position, equation in enumerate(equations):
        reads_shared = any(_is_var(a) and a in shared and is_float(a.aval) for a in equation.invars)
        group: list[Any] = []
        if equation.primitive in SUMS:
            terms = [a for a in equation.invars if _is_var(a)]
            weight_uses = [a for a in terms if a in open_uses and a.aval.shape == equation.outvars[0].aval.shape]
            others = (*shared, *rows)
            if (
                weight_uses
                and all(a in open_uses or a in others for a in terms)
                and len(set(weight_uses)) == len(weight_uses)
            ):
                for use in weight_uses:
                    group += open_uses.pop(use)
                    absorbed.add(position_of[use])
                reads_shared = True
        if reads_shared and any(is_float(v.aval) for v in equation.outvars):
            group.append(equation)
            members[position] = group
            if len(equation.outvars) == 1 and uses.get(equation.outvars[0]) == 1:
                open_uses[equation.outvars[0]] = group
                position_of[equation.outvars[0]] = position
    program: list[Any] = []
    for position, equation in enumerate(equations):
        if position in absorbed:
            continue
        program.append(_make_use(members[position], shared) if position in members else equation)
    return program


def _make_use(equations: Sequence[Any], shared: set[Any]) -> WeightUse:
    computed = {var for eqn in equations for var in eqn.outvars}
    read = dict.fromkeys(a for eqn in equations for a in eqn.invars if _is_var(a) and a not in computed)
    return WeightUse(
        rows=tuple(v for v in read if v not in shared),
        shared=tuple(v for v in read if v in shared),
        outputs=tuple(equations[-1].outvars),
        equations=tuple(equations),
        is_saved=any(eqn.primitive in CONTRACTIONS for eqn in equations),
    )


_cut_cells = Cache(2048, first=1024)


def cut_cell(cell: Cell, is_row: tuple[bool, ...]) -> CutCell:
    return _cut_cells.get_or_make((cell, is_row), lambda: CutCell(cell, is_row))
