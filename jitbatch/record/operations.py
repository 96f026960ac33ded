"""Recording of bare operations: a JAX trace that stores each operation on values of a sample.

JAX sends every operation to the current trace, including operations on concrete arrays. The trace stores it as an `Op`
and returns abstract `Value`s. The operators of `Value` bypass JAX's operators, which are slower.
"""

import itertools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import jax
import numpy as np
from jax.extend.core import primitives

from jitbatch.ir.tables import Tables
from jitbatch.record.abstract_eval import AbstractEvaluation
from jitbatch.record.data_numbers import DataNumbers, is_data
from jitbatch.record.forwarding import handed_through
from jitbatch.record.graph_builder import GraphBuilder
from jitbatch.record.group_cells import GroupCells
from jitbatch.record.key_splits import split_of
from jitbatch.record.known_numbers import KnownNumbers
from jitbatch.record.leaks import Leaks
from jitbatch.record.recording_errors import control_flow_error, number_error
from jitbatch.record.rows import Rows
from jitbatch.record.running_totals import continue_total, is_total
from jitbatch.record.values import ADD, ConstantRow, Op, SharedSource, Value, getitem, given_rows, new, within
from jitbatch.util import compat
from jitbatch.util.array_leaves import is_array, plain_aval
from jitbatch.util.errors import ControlFlowError, NumberError, OutputError
from jitbatch.util.sites import Site, SiteRecorder, combines_computed, has_computed_index


class OperationRecorder(compat.Trace):
    """A trace that records bare operations.

    Attributes:
        tables: the tables that the graph refers to.
        builder: the graph so far.
        ops: the bare operations so far, in the order of execution.
        gathered: the bare operations after the search for sums (see `record/reductions`).
        rows: decides whether a value is a row or shared.
        cells: makes cells of bare operations.
        leaks: the values that may not be used any more.
        sites: finds the place of an operation in the user's code.
        sample: the name of the recorded sample, for errors.
        scope: the id of the running decorated call, 0 for the sample's function.
        data_numbers: makes rows of numbers, in asynchronous samples; None in others.
    """

    scope: int
    data_numbers: "DataNumbers | None" = None

    def __init__(
        self, tables: Tables, abstract: AbstractEvaluation, granularity: str, sites: tuple[CodeType, CodeType],
        sample: str, may_close_over_tracers: bool,
    ):  # fmt: skip
        super().__init__()
        self.tables = tables
        self.builder = GraphBuilder(tables)
        self.cells = GroupCells(granularity)
        self.rows = Rows(self.builder, self.cells, may_close_over_tracers)
        self.sample = sample
        self.leaks = Leaks(self, sample, self._where)
        self.ops: list[Op] = []
        self.gathered: list[Op] = []
        self.scope = 0
        self._abstract = abstract
        self._opens_jits = granularity == "op"
        self.sites = SiteRecorder(*sites)
        self._numbers = KnownNumbers()
        self._arrays: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # NumPy arrays by `id`, with their latest copies

    def release(self) -> None:
        """Drop all references. Values and operations form reference cycles, and would wait for the garbage
        collector."""
        for op in {*self.ops, *self.gathered}:
            vars(op).clear()
        self.ops, self.gathered = [], []
        self.rows.elements.clear()
        self._numbers.clear()
        self._arrays.clear()
        self.leaks.release()
        self.sites.forget()

    # Values and operations

    def inputs(self, avals: Sequence[tuple[Any, int]]) -> list[Value]:
        """Values for the leaves of the sample. `avals` holds the aval of each leaf and its id."""
        builder = self.builder
        sources = [(leaf, 0, 0) for leaf in range(len(avals))]
        builder.leaf_avals = [aval for aval, _ in avals]
        builder.given = list(sources)
        builder.given_class = [self.tables.aval_class(aval_id) for _, aval_id in avals]
        return given_rows(self, zip(avals, sources, strict=True))

    def shared_inputs(self, avals: Sequence[tuple[Any, int]]) -> list[Value]:
        """Values for the leaves of the shared arguments. `avals` holds the aval of each leaf and its id."""
        form = self.tables.leaf_form
        return [
            Value(self, aval, aval_id, SharedSource(leaf), None, form(aval_id, leaf))
            for leaf, (aval, aval_id) in enumerate(avals)
        ]

    def value(self, aval: Any, source: Any) -> Value:
        return Value(self, aval, self.tables.avals.number(aval), source)

    def as_value(self, leaf: Any) -> Any:
        """A `Value` for a number or array. Other objects, and values, are returned unchanged."""
        is_other = type(leaf) is not Value and is_array(leaf)
        return self.value(plain_aval(leaf), self._snapshot(leaf)) if is_other else leaf

    def _snapshot(self, value: Any) -> Any:
        """An array that will not change: a copy of a NumPy array, since user code may write to the original."""
        if not isinstance(value, np.ndarray):
            return value
        _, last = self._arrays.get(id(value), (None, None))
        if last is None or last.dtype != value.dtype or last.shape != value.shape or last.tobytes() != value.tobytes():
            last = value.copy()
            self._arrays[id(value)] = value, last
        return last

    def _operation(self, inputs: Sequence[Any]) -> Op:
        self.leaks.check(inputs)
        inputs = [value if type(value) is Value else self._snapshot(value) for value in inputs]
        return Op(inputs, self.scope, len(self.builder.kinds), self.sites.here(1))

    def _append(self, op: Op, outputs: list[Value]) -> list[Value]:
        """Append an operation with these outputs to the recording."""
        op.outputs = outputs
        self.rows.place(op)
        self.ops.append(op)
        if self.scope:
            self.leaks.exposed += [value.row for value in outputs]
        return outputs

    def repeat(self, known: Op, inputs: Sequence[Any]) -> Op:
        """Append a copy of a known operation, with other inputs of the same types."""
        self.leaks.check(inputs)
        op = Op(inputs, self.scope, len(self.builder.kinds), known.site)
        op.primitive, op.params, op.effects, op.index = known.primitive, known.params, known.effects, known.index
        self._append(op, [self.value(value.aval, op) for value in known.outputs])
        return op

    def index(self, value: Value, index: int | range) -> Value:
        """`value[index]` along axis 0. The index of a slice becomes an index of the sliced array."""
        self.leaks.check((value,))
        while isinstance(value.source, Op) and isinstance(value.source.index, range):
            index, value = within(value.source.index, index), value.source.inputs[0]
        length = None
        site = self.sites.here()
        if isinstance(index, int):
            element = self.rows.element(value, index)
            if element is None:
                element = self._key_of_split(value, index)
            if element is not None:
                return element
            if self._is_look_up(value, site):
                return getitem(value, self._row_of(np.int32(index)))
        else:
            length = len(index)
        op = Op([value], self.scope, len(self.builder.kinds), site)
        op.index = index
        return self._append(op, [Value(self, *self.tables.element_aval(value.aval_id, length), op)])[0]

    def _is_look_up(self, value: Value, site: Site) -> bool:
        """Whether an index into a value is data, so that all indices are one type: the value is a shared table of
        vectors or numbers, as embeddings are, and Python has computed the index. Of larger parts, such as the matrices
        of a stack of layers, each is shared: as rows they would be copied for each node. In an asynchronous sample, an
        index into a row is data, too."""
        if self.scope or compat.is_prng_key(value.aval.dtype) or not has_computed_index(site):
            return False
        return value.ndim <= 2 if self.rows.row(value) is None else self.data_numbers is not None

    def _key_of_split(self, value: Value, index: int) -> Value | None:
        """A row of a split key, if it can be recorded independently of the other rows. Else None."""
        split = split_of(value)
        if split is None or self.rows.row(split.key) is None:
            return None
        before = len(self.ops)
        key = self.process_primitive(primitives.random_fold_in_p, [split.key, np.uint32(index)], {})
        if split.is_unwrapped:
            key = self.process_primitive(compat.random_unwrap_p, [key], {})
        for op in self.ops[before:]:  # each row is a separate group: a node with n children has n rows
            op.turn = id(value.source), index
        return key

    def elements(self, value: Value) -> Iterator[Value]:
        """The elements of a value along axis 0."""
        if self.rows.has_few_elements(value):
            return iter(self.rows.all_elements(value))
        return map(self.index, itertools.repeat(value), range(value.aval.shape[0]))

    def arithmetic(self, equation: Any, left: Value, right: Value) -> Value:
        """An operation on two values of one type, with a result of that type. The operators of `Value` call it."""
        if self.leaks.hidden or right._trace is not self:
            self.leaks.check((left, right))
        site = self.sites.here(2)
        op, aval_id = left.source, left.aval_id
        if not (equation is ADD and type(op) is Op and op.site == site and is_total(op, left, self.scope)):
            return self._operate(equation, [left, right], left, site)
        value = new(Value)
        value._trace = self
        value.aval = left.aval
        value.aval_id = value.form = aval_id
        value.source = op
        value.row = self.builder.bare_row()
        continue_total(op, right, value, len(self.builder.kinds))
        self.ops.append(op)
        if self.scope:
            self.leaks.exposed.append(value.row)
        return value

    def arithmetic_with(self, equation: Any, left: Any, right: Any, value: Value) -> Value:
        """An operation on a value and a number, in the order `left`, `right`. The operators of `Value` call it."""
        self.leaks.check((value,))
        site, inputs = self.sites.here(2), [left, right]
        if self.data_numbers is not None:
            inputs = self.data_numbers.in_operation(inputs, site)
        if combines_computed(site):
            inputs = self._numbers_as_rows(inputs)
        return self._operate(equation, inputs, value, site)

    def _numbers_as_rows(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The operands of an operation. A number becomes a row if another operand is a row.

        Then operations on different numbers have one type. This applies to numbers that Python computed and an operator
        combines, and to numbers that are folded into a key. A literal number in the code stays part of the cell.
        """
        if all(self.rows.row(value) is None for value in inputs):
            return inputs
        found = [None if self.rows.row(value) is not None else self._numbers.find(value) for value in inputs]
        return [
            value if number is None else self._row_of(number, plain_aval(value))
            for value, number in zip(inputs, found, strict=True)
        ]

    def _row_of(self, number: Any, aval: Any = None) -> Value:
        """A number as a row, of the type of `aval` or of its own."""
        row = ConstantRow(number, aval)
        return self.value(row.aval, row)

    def _operate(self, equation: Any, inputs: Sequence[Any], like: Value, site: Site) -> Value:
        """An operation whose output has the type of another value."""
        op = Op(inputs, self.scope, len(self.builder.kinds), site)
        op.primitive, op.params = equation.primitive, equation.params
        return self._append(op, [Value(self, like.aval, like.aval_id, op)])[0]

    # The interface that JAX requires of a trace

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        if self._opens_jits and primitive is compat.jit_p and compat.is_users_jit(params):
            closed = params["jaxpr"]
            with compat.set_current_trace(self):
                outputs = compat.eval_jaxpr(closed.jaxpr, closed.consts, *tracers)
            # A number that is passed through has a private class of JAX.
            return [value if is_array(value) else self.stage_value(value) for value in outputs]
        out_avals, effects = self._abstract.evaluate(primitive, tracers, params)
        op = self._operation(tracers)
        if self.data_numbers is not None and primitive is compat.jit_p and op.site is not None:
            op.inputs = self.data_numbers.in_operation(op.inputs, op.site)
        if len(tracers) == 2 and op.site is not None:
            is_data = primitive is primitives.random_fold_in_p or combines_computed(op.site)
            op.inputs = self._numbers_as_rows([*op.inputs]) if is_data else op.inputs
        op.primitive, op.params, op.effects = primitive, params, effects
        outputs = self._append(op, [self.value(aval, op) for aval in out_avals])
        if not primitive.multiple_results:
            return outputs[0]
        for output, operand in handed_through(primitive, params).items():
            if type(tracers[operand]) is Value:
                outputs = [*outputs[:output], tracers[operand], *outputs[output + 1 :]]
        return outputs

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Sequence[Any], /, *, symbolic_zeros: bool
    ) -> Any:
        return self._custom_call(primitive, (fun, jvp), tracers, {"symbolic_zeros": symbolic_zeros})

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Sequence[Any], /, *, out_trees: Any,
        symbolic_zeros: bool,
    ) -> Any:  # fmt: skip
        params = {"out_trees": out_trees, "symbolic_zeros": symbolic_zeros}
        return self._custom_call(primitive, (fun, fwd, bwd), tracers, params)

    def _custom_call(self, primitive: Any, functions: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        closed = self._abstract.custom_call(primitive, functions, tracers, params)
        env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(closed.jaxpr.invars, tracers, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, compat.Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:  # one equation, unless a rule of JAX opens the call during tracing
            op = self._operation([read(atom) for atom in eqn.invars])
            op.primitive, op.params, op.effects = eqn.primitive, eqn.params, eqn.effects
            outputs = self._append(op, [self.value(var.aval, op) for var in eqn.outvars])
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in closed.jaxpr.outvars]

    def stage_value(self, val: Any) -> Any:
        if self.data_numbers is not None and not self.scope and is_data(val):
            return self.data_numbers.row(val)
        return val if isinstance(val, jax.Array) else self.value(plain_aval(val), self._snapshot(val))

    def cur_qdd(self, x: Any) -> Any:
        raise OutputError("mutable array references (jax.new_ref) cannot be used inside a batched sample")

    # Errors

    def control_flow_error(self, value: Value, asked: str) -> ControlFlowError:
        return control_flow_error(value, asked, self._where(), self.sample)

    def number_error(self, value: Value, asked: str) -> NumberError:
        return number_error(value, asked, self._where(), self.sample)

    def _where(self) -> str:
        """The place in the user's code, for errors."""
        site = self.sites.here(1)
        return f" at {site.where}" if site.chain else ""
