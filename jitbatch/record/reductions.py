"""Search for sums over a variable number of values in a recording.

For JAX, a sum over two children and a sum over three are different operations: two additions, three additions, or
reductions of stacks of different lengths. Here each of them becomes one operation with any number of terms, so nodes
with different numbers of children have one type. So does `max` or `min` of a stack. Without a derivative
(`lax.stop_gradient`, as in a softmax; integers), it becomes one operation. With a derivative, it becomes a tree of one
cell with two operands.

How does the search distinguish a sum over a variable number of values from arithmetic inside a cell? An addition
accumulates in two cases. Either its place in the code comes again on a path of additions that nothing else reads, or it
begins with zero, as Python's `sum` does. A path passes only through results with one reader. A running total that is
read before its end stays as it is, because each reader would add its terms again.

A sum has the dtype of the additions. If JAX converts terms of another dtype before it adds them, each term is converted
separately. The rows of a stack that is converted before its reduction are converted separately, too.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import primitives

from jitbatch.ir.cell import reduction_cell
from jitbatch.record.extremes import has_extremes, reduce_pairs
from jitbatch.record.key_splits import without_unread
from jitbatch.record.running_totals import apart
from jitbatch.record.terms import mark_turns
from jitbatch.record.values import NODE, SOURCES, ConstantRow, Op, Value, new_value, root, within_body
from jitbatch.util import compat, passes
from jitbatch.util.caches import memoised
from jitbatch.util.sites import is_call, loop_depth


def gather_sums(
    ops: Sequence[Op], results: Sequence[Any], wanted: Callable[[Sequence[Any]], bool] = lambda terms: True,
    arguments: Collection[int] = (), read: Collection[int] = (),
) -> list[Op]:  # fmt: skip
    """Replace sums, maxima and minima in a list of operations by reductions of any number of terms.

    Args:
        ops: in the order of execution.
        results: values that are read later.
        wanted: whether to gather these terms.
        arguments: the `id`s of the arguments of the recorded function, if there is one. They are aliases, but other
            calls pass other values.
        read: the row ids that nodes read.
    """
    ops = without_unread(ops, results, read)
    if not passes.runs("sums"):
        return apart(ops)
    gatherer = _Gatherer(ops, results, wanted, arguments, read)
    if any(map(gatherer.is_read_on_the_way, gatherer.ops)):
        ops = apart(ops, gatherer.is_read_on_the_way)
        gatherer = _Gatherer(ops, results, wanted, arguments, read)
    return gatherer.run()


class _Gatherer:
    def __init__(
        self, ops: Sequence[Op], results: Sequence[Any], wanted: Callable[[Sequence[Any]], bool],
        arguments: Collection[int], read: Collection[int],
    ):  # fmt: skip
        # A running total comes at the place of its last addition.
        self.ops = list(dict.fromkeys(reversed(ops)))[::-1] if any(op.totals for op in ops) else ops
        self.wanted = wanted
        self.arguments = arguments
        self.read = read
        # The number of readers of each value. Node outputs are not counted.
        read_values = [value for values in (*[op.inputs for op in self.ops], results) for value in values]
        bare = [value for value in read_values if type(value) is not Value or value.source is not NODE]
        self.uses: dict[int, int] = {}
        for value in bare:
            key = id(self._origin(value))
            self.uses[key] = self.uses.get(key, 0) + 1
        self.replaced: dict[int, list[Op]] = {}  # by the `id` of the operation that they replace
        self.dropped: set[int] = set()
        self.reductions: list[tuple[Sequence[Any], Op]] = []  # their terms, and the operations that they replace
        self.stops: dict[int, Op] = {}  # each `stop_gradient`, by the `id` of its operand

    def is_read_on_the_way(self, op: Op) -> bool:
        """Whether something reads a running total before its last addition."""
        values = [value for value, _ in op.totals]
        is_used = not self.uses.keys().isdisjoint(map(id, values))
        return is_used or (bool(self.read) and any(value.row in self.read for value in values))

    def run(self) -> list[Op]:
        additions = list(filter(_is_addition, self.ops))
        terms = {id(op): found for op in additions if (found := self._addends(op)) is not None}
        self._gather_stacks()
        if terms:
            self._gather_chains([op for op in additions if id(op) in terms], terms)
        if not self.replaced:
            return list(self.ops)
        result = []
        for op in self.ops:
            if id(op) in self.replaced:
                result += self.replaced[id(op)]
            elif id(op) not in self.dropped:
                result.append(op)
        for terms, last in self.reductions:
            mark_turns(terms, last)
        return result

    def _origin(self, value: Any) -> Any:
        """The value that an alias refers to."""
        if type(value) is Value and type(value.source) in SOURCES:
            return value
        if not self.arguments:
            return root(value)
        value = within_body(value, self.arguments)
        return value if id(value) in self.arguments else root(value)

    # Chains of additions

    def _addends(self, op: Op) -> Sequence[Any] | None:
        """The terms of an addition: values of one shape, without the initial zero of a sum."""
        left, right, *further = op.inputs
        if further:
            first = self._two_addends(op, left, right)
            others = [term for term in further if term.source is NODE or not self._starts_from_zero(op, term)]
            return None if first is None else [*first, *others]
        return self._two_addends(op, left, right)

    def _two_addends(self, op: Op, left: Any, right: Any) -> Sequence[Any] | None:
        total = op.outputs[0]
        if _is_plain_term(left, total) and _is_plain_term(right, total):
            return left, right
        may_be_terms = _may_be_term(left, total), _may_be_term(right, total)
        if may_be_terms[1] and self._starts_from_zero(op, left):
            return (right,)
        if may_be_terms[0] and self._starts_from_zero(op, right):
            return (left,)
        return (left, right) if all(may_be_terms) else None

    def _starts_from_zero(self, op: Op, value: Any) -> bool:
        """Whether `value`, an operand of an addition, is the initial zero of a sum. This is Python's zero; or a zero of
        `jnp.zeros`, if it is the start of `sum` or was created before the loop of the additions."""
        assert op.site is not None
        value, outside = self._origin(value), 0
        while type(value) is Value and isinstance(value.source, Op):
            made_by = value.source
            if made_by.primitive not in (primitives.broadcast_in_dim_p, primitives.convert_element_type_p):
                return False
            outside = max(outside, 0 if made_by.site is None else loop_depth(made_by.site))
            value = self._origin(made_by.inputs[0])
        if not is_call(op.site) and loop_depth(op.site) <= outside:
            return False
        if type(value) is Value and type(value.source) is ConstantRow:
            value = value.source.array
        return type(value) is not Value and not compat.is_tracer(value) and np.ndim(value) == 0 and not value

    def _gather_chains(self, additions: Sequence[Op], terms: dict[int, Sequence[Any]]) -> None:
        """Replace chains of accumulating additions. `terms` has the terms of each addition, by its `id`."""
        made_by: dict[int, Op] = {}  # for the `id` of a term, the addition that computes it, if nothing else reads it
        for op in additions:
            for value in terms[id(op)]:
                if type(value) is Value and value.source is NODE:
                    continue
                origin = self._origin(value)
                source: Any = origin.source if type(origin) is Value else None
                is_addition = type(source) is Op and id(source) in terms
                if is_addition and self._is_private(origin) and _same_class(source.outputs[0], op.outputs[0]):
                    made_by[id(value)] = source
        has_reader = {id(source) for source in made_by.values()}
        known: dict[Any, Any] = {}  # many sites have only one chain
        places = {}
        for op in additions:
            site = op.site
            assert site is not None
            key = id(site.chain), site.ordinal
            if key not in known:
                known[key] = _place(op)
            places[id(op)] = known[key]
        inner: dict[int, list[Op]] = {id(op): [] for op in additions}
        if made_by:
            inner = {id(op): [made_by[id(one)] for one in terms[id(op)] if id(one) in made_by] for op in additions}
        above: dict[int, Op | None] = {}
        accumulates = {id(op) for op in additions if op.totals or len(terms[id(op)]) == 1}
        for op in additions:
            if id(op) not in has_reader:
                accumulates |= _accumulating(op, inner, above, places)
        # The meaning of a place in the code must not depend on its position in the sample.
        accumulating = {places[key] for key in accumulates}
        accumulates |= {key for key in above if places[key] in accumulating}
        for op in additions:
            upper = above.get(id(op))
            if id(op) in accumulates and (upper is None or id(upper) not in accumulates):
                flat, absorbed = (
                    _flat_terms(op, terms, made_by, accumulates) if inner[id(op)] else (list(terms[id(op)]), set())
                )
                if self.wanted(flat):
                    self.dropped |= absorbed
                    self._replace(op, flat)

    def _is_private(self, value: Any) -> bool:
        origin = self._origin(value)
        return type(origin) is Value and self.uses.get(id(origin)) == 1 and origin.row not in self.read

    def _replace(self, op: Op, terms: list[Any]) -> None:
        made: list[Op] = []
        dtype = op.outputs[0].aval.dtype
        for place, term in enumerate(terms):
            aval = term.aval if type(term) is Value else compat.typeof(term)
            if aval.dtype != dtype:
                made.append(_step(_conversion(aval, dtype), [term], op))
                terms[place] = made[-1].outputs[0]
        self.replaced[id(op)] = [*made, _reduce("sum", terms, op, op.outputs[0])]
        self.reductions.append((terms, op))

    # Reductions of stacks

    def _gather_stacks(self) -> None:
        """Replace operations that reduce a stack of values, if nothing else reads the stack."""
        reductions: dict[int, tuple[Value, list[_Reduction]]] = {}
        self.stops = {
            id(self._origin(op.inputs[0])): op for op in self.ops if op.primitive is primitives.stop_gradient_p
        }
        for op in self.ops:
            if len(op.inputs) == 1 and (found := self._reduction(op)) is not None:
                reductions.setdefault(id(found.stacked), (found.stacked, []))[1].append(found)
        for stacked, found in reductions.values():
            if self.uses.get(id(stacked)) == len(found) and stacked.row not in self.read:
                self.dropped |= {id(stacked.source), id(found[0].stack)}
                for one in found:
                    self._replace_reduction(one)

    def _reduction(self, op: Op) -> "_Reduction | None":
        """The reduction that an operation on a stack of any number of values computes, or None."""
        if len(op.outputs) != 1 or type(op.inputs[0]) is not Value:
            return None
        stacked = self._origin(op.inputs[0])
        stack, conversion = self._stack_of(stacked)
        if stack is None:
            return None
        equations = _equations(op)
        widened = len(equations) > 1 and equations[0].primitive is primitives.convert_element_type_p
        reduction = equations[widened] if len(equations) > widened else None
        if reduction is None or reduction.primitive not in _REDUCTIONS:
            return None
        if tuple(reduction.params["axes"]) != (stack.params["axis"],):
            return None
        if reduction.primitive is not primitives.reduce_sum_p and not has_extremes(stacked.aval.dtype):
            return None
        result = op.params["jaxpr"].jaxpr.outvars[0] if op.primitive is compat.jit_p else equations[-1].outvars[0]
        reads = {atom for eqn in equations[widened + 1 :] for atom in (*eqn.invars, result) if _is_var(atom)}
        if not _is_var(result) or not reads <= {v for eqn in equations[widened:] for v in eqn.outvars}:
            return None
        conversions = [*conversion, *equations[:widened]]
        found = _Reduction(op, stacked, stack, conversions, equations[widened:], result)
        return found if self.wanted(stack.inputs) else None

    def _stack_of(self, value: Any) -> tuple[Op | None, Sequence[Any]]:
        """The operation that stacks the terms, and the equations between the stack and the reduction: a conversion or a
        `stop_gradient`."""
        op = value.source if type(value) is Value else None
        if not isinstance(op, Op):
            return None, ()
        if op.primitive is compat.stack_p:
            return op, ()
        if op.primitive in _ELEMENTWISE and self._is_private(op.inputs[0]):
            stack = self._origin(op.inputs[0]).source
            if isinstance(stack, Op) and stack.primitive is compat.stack_p:
                return stack, _equations(op)
        return None, ()

    def _replace_reduction(self, found: "_Reduction") -> None:
        op, _, stack, conversions, (reduction, *following), result = found
        terms = list(stack.inputs)
        made: list[Op] = []
        for conversion in conversions:
            steps = [_step(conversion, [term], op, compat.typeof(term).shape) for term in terms]
            terms = [step.outputs[0] for step in steps]
            made += steps
        stop = self.stops.get(id(op.outputs[0])) if self._is_private(op.outputs[0]) else None
        is_sum, aval = reduction.primitive is primitives.reduce_sum_p, compat.typeof(terms[0])
        is_constant = any(equation.primitive is primitives.stop_gradient_p for equation in conversions)
        if is_sum or stop is not None or is_constant or not compat.is_float(aval):
            made.append(_reduce(_REDUCTIONS[reduction.primitive], terms, op, new_value(op, aval)))
            reduced = made[-1].outputs[0]
        else:
            reduced = reduce_pairs(terms, reduction.primitive, op, made)
        self.reductions.append((terms, op))
        # the equations after the reduction in the same operation: the division of a mean, whose divisor is an operand
        env: dict[Any, Any] = {reduction.outvars[0]: reduced}
        for equation in following:
            step = _step(equation, [_operand(atom, env, op, equation, len(terms)) for atom in equation.invars], op)
            env.update(zip(equation.outvars, step.outputs, strict=True))
            made.append(step)
        self.replaced[id(op)] = made
        if is_sum or stop is None:
            _replace_value(op.outputs[0], env[result])
        else:  # a separate reduction, which has no derivative
            _replace_value(stop.outputs[0], env[result])
            self.dropped.add(id(stop))


class _Reduction(NamedTuple):
    """An operation that reduces a stack.

    Attributes:
        op: the operation.
        stacked: its input: a stack, or a stack in another dtype.
        stack: the operation that stacks.
        conversions: equations that convert the stack. The last may belong to `op` itself: short integers, bools and
            short floats are summed in a wider type.
        equations: the reduction, and the equations after it in the operation.
        result: the variable of the operation's output.
    """

    op: Op
    stacked: Value
    stack: Op
    conversions: Sequence[Any]
    equations: Sequence[Any]
    result: Any


_BOOL = np.dtype(bool)  # comparing two dtypes takes a tenth of the time of comparing a dtype with a type
_REDUCTIONS = {primitives.reduce_sum_p: "sum", primitives.reduce_max_p: "max", primitives.reduce_min_p: "min"}
_ELEMENTWISE = (primitives.convert_element_type_p, primitives.stop_gradient_p)
"""Operations between a stack and its reduction that are allowed. They are applied to each value of the stack."""


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, compat.Literal)


def _equations(op: Op) -> Sequence[Any]:
    """The equations of an operation: one, or those of a function of jnp."""
    if op.primitive is compat.jit_p and op.params["inline"] and not op.params["jaxpr"].consts:
        return op.params["jaxpr"].jaxpr.eqns
    if op.primitive is None or op.primitive is compat.jit_p:
        return ()
    inputs = [compat.Var(compat.typeof(value)) for value in op.inputs]
    outputs = [compat.Var(value.aval) for value in op.outputs]
    return (compat.make_equation(inputs, outputs, op.primitive, op.params, op.effects),)


def _flat_terms(
    last: Op, terms: dict[int, Sequence[Any]], made_by: dict[int, Op], accumulates: set[int]
) -> tuple[list[Any], set[int]]:
    """The terms of a sum, and the additions that it absorbs."""
    flat: list[Any] = []
    absorbed: set[int] = set()
    pending = list(terms[id(last)][::-1])
    while pending:
        value = pending.pop()
        source = made_by.get(id(value))
        if source is not None and id(source) in accumulates:
            absorbed.add(id(source))
            pending += reversed(terms[id(source)])
        else:
            flat.append(value)
    return flat, absorbed


def _accumulating(
    last: Op, inner: dict[int, list[Op]], above: dict[int, Op | None], places: dict[int, Any]
) -> set[int]:
    """The additions that accumulate on the paths to `last`. Fills in `above`: the addition that reads each addition."""
    above[id(last)] = None
    order = [last]
    for op in order:
        for source in inner[id(op)]:
            above[id(source)] = op
            order.append(source)
    # Look for the nearest addition above with the same place. All additions between the two accumulate.
    found: set[int] = set()
    nearest: dict[int, dict[Any, Op]] = {}
    for op in order:
        upper = above[id(op)]
        seen = {} if upper is None else nearest[id(upper)]
        if upper is not None and len(inner[id(upper)]) > 1:
            seen = dict(seen)  # the paths separate here
        place = places[id(op)]
        if place in seen:
            step: Op | None = op
            while step is not None:
                found.add(id(step))
                if step is seen[place]:
                    break
                step = above[id(step)]
        seen[place] = op
        nearest[id(op)] = seen
    return found


def _is_plain_term(value: Any, total: Value) -> bool:
    """Whether a value has the type of a total, and is certainly not the initial zero of a sum."""
    if type(value) is not Value or value.aval_id != total.aval_id or total.aval.dtype == _BOOL:
        return False
    source = value.source
    return source is NODE or (type(source) is Op and source.primitive is primitives.add_p)


def _is_addition(op: Op) -> bool:
    """Whether an operation adds its two inputs, with at most one conversion of each."""
    if op.primitive is not compat.jit_p or len(op.inputs) != 2:
        return op.primitive is primitives.add_p
    equations = _equations(op)
    if not equations or equations[-1].primitive is not primitives.add_p:
        return False
    if any(eqn.primitive is not primitives.convert_element_type_p for eqn in equations[:-1]):
        return False
    jaxpr = op.params["jaxpr"].jaxpr
    converted = {eqn.outvars[0]: eqn.invars[0] for eqn in equations[:-1]}
    added = {converted.get(atom, atom) for atom in equations[-1].invars if _is_var(atom)}
    return jaxpr.outvars == equations[-1].outvars and added == set(jaxpr.invars)


def _may_be_term(value: Any, total: Value) -> bool:
    """Whether a value can be a term of a total. Bools are not: they are joined by `or`."""
    aval = value.aval if type(value) is Value else compat.typeof(value)
    return aval.shape == total.aval.shape and total.aval.dtype != _BOOL


def _same_class(one: Value, other: Value) -> bool:
    if one.aval_id == other.aval_id:
        return one.aval.dtype != _BOOL
    return one.aval.shape == other.aval.shape and one.aval.dtype == other.aval.dtype != _BOOL


def _place(op: Op) -> Any:
    """The place of an operation in the code, equal for all activations of the function."""
    site = op.site
    assert site is not None
    return site.ordinal, *[(id(frame.f_code), instruction) for frame, instruction in site.chain]


def _replace_value(old: Value, new: Any) -> None:
    """Make a value an alias of another value, and give its row id to the other value."""
    old.source = new
    if type(new) is Value and new.row is None:
        new.row, new.form = old.row, old.form


def _step(equation: Any, inputs: Sequence[Any], op: Op, shape: tuple[int, ...] | None = None) -> Op:
    """One equation of `op` as an operation, optionally with another shape."""
    step = Op(inputs, op.scope, op.at, op.site)
    step.primitive, step.params, step.effects = equation.primitive, equation.params, equation.effects
    avals = [var.aval for var in equation.outvars]
    if shape is not None:
        avals = [compat.make_aval(shape, aval.dtype, aval.weak_type) for aval in avals]
    step.outputs = [new_value(op, aval) for aval in avals]
    for value in step.outputs:
        value.source = step
    return step


@memoised(256)
def _conversion(aval: Any, dtype: Any) -> Any:
    """The equation that converts values of an aval to a dtype."""
    given = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    (equation,) = jax.make_jaxpr(lambda x: jax.lax.convert_element_type(x, dtype))(given).eqns
    return equation


def _operand(atom: Any, env: dict[Any, Any], op: Op, equation: Any, terms: int) -> Any:
    if _is_var(atom):
        return env[atom]
    if equation.primitive is primitives.div_p and float(atom.val) == terms:
        value = new_value(op, atom.aval)
        value.source = ConstantRow(np.asarray(atom.val, atom.aval.dtype))
        return value
    return np.asarray(atom.val, atom.aval.dtype)


def _reduce(operation: str, terms: list[Any], last: Op, output: Value) -> Op:
    """The operation that computes `output` as the sum, the maximum or the minimum of the terms."""
    reduction = Op(terms, last.scope, last.at)
    reduction.made_from = last.site
    aval = compat.typeof(terms[0])
    reduction.cell = reduction_cell(operation, aval.shape, aval.dtype)
    reduction.outputs = [output]
    output.source = reduction
    return reduction
