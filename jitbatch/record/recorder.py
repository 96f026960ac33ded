"""Recording one sample: a JAX trace of our own that notes which subgraphs a function calls on what.

While a sample is recorded, its array leaves and those of the shared arguments are abstract `Value`s, and every
operation on anything goes through `Recorder`. What comes out are nodes, as lists of integers, and bare operations, as
`Op`s, both in the order of execution; `record/nodes` turns them into a graph. A call of a decorated function that has
been seen with arguments of these forms before is one dictionary look-up, and adds to the nodes (see
`record/templates`); its body does not run again.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import primitives

from jitbatch.ir.tables import Tables
from jitbatch.record.call_arguments import MANY_LEAVES, Passed, check_holds, code_of
from jitbatch.record.cell_body import check_returned, make_leaf
from jitbatch.record.forwarding import handed_through
from jitbatch.record.fragments import Recorded, copy_fragment, make_fragment, may_be_kept
from jitbatch.record.key_splits import split_of
from jitbatch.record.known_numbers import Constants
from jitbatch.record.list_arguments import list_elements
from jitbatch.record.rows import Numbers
from jitbatch.record.running_totals import apart, continue_total, is_total
from jitbatch.record.templates import COMPOSITE, ONCE, Composite, Known, Template, further_row, leaf_template
from jitbatch.record.values import ADD, NODE, ConstantRow, Op, SharedSource, Value, given_rows, new, root, within
from jitbatch.util import compat
from jitbatch.util.array_leaves import NUMBERS, is_array, plain_aval
from jitbatch.util.errors import ControlFlowError, LeakError, NumberError, OutputError
from jitbatch.util.sites import Site, SiteRecorder, combines_computed, describe_function


class Body(NamedTuple):
    """What there was before a body ran: how many nodes, operands, bare operations and made values; its scope; how many
    values were there for open bodies to see; and how many calls of decorated functions it made."""

    nodes: int
    operands: int
    ops: int
    made: int
    scope: int
    exposed: int
    calls: int


class Recorder(compat.Trace):
    """The trace that is current while one sample is recorded."""

    def __init__(
        self, tables: Tables, known: Known, granularity: str, outermost: CodeType, sample: str,
        may_close_over_tracers: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.tables = tables
        self.numbers = Numbers(tables, granularity, may_close_over_tracers)
        self.kinds: list[int] = []
        self.counts: list[int] = []
        self.operands: list[int] = []
        self.ops: list[Op] = []
        self.gathered: list[Op] = []  # what they became when sums were found among them
        self.sample = sample
        self._known = known
        self._templates: dict[Hashable, tuple[Any, ...]] = {}  # plain tuples are taken apart faster
        self._boundaries = granularity == "subgraph"
        self._opens_jits = granularity == "op"
        self._sites = SiteRecorder(outermost, Recorder._run.__code__)
        self._scope = self.scopes = 0
        self._calls = self._first_calls = self._walked = 0
        self._exposed: list[int | None] = []
        self._hidden: dict[int | None, Callable[..., Any]] = {}
        self._constants = Constants()
        self._arrays: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of NumPy's by `id`, and as they were last
        self.passed = Passed(tables, self.numbers, sample, known.walks)

    @property
    def scope(self) -> int:
        """The number of the decorated call whose body runs, 0 for the sample's function."""
        return self._scope

    def release(self) -> None:
        """Let go of everything: values and operations hold each other, and would wait for the garbage collector."""
        for op in {*self.ops, *self.gathered}:
            vars(op).clear()
        self.ops, self.gathered = [], []
        self.passed.release()
        self.numbers.elements.clear()
        self._constants.clear()
        self._arrays.clear()
        self._hidden.clear()
        self._sites.forget()
        self._known.templates.count(self._calls - self._first_calls, self._walked)

    # Values and operations

    def inputs(self, avals: Sequence[tuple[Any, int]]) -> list[Value]:
        """The leaves of the sample, of these avals and their numbers."""
        numbers = self.numbers
        sources = [(leaf, 0, 0) for leaf in range(len(avals))]
        numbers.leaf_avals = [aval for aval, _ in avals]
        numbers.given = list(sources)
        numbers.given_class = [self.tables.aval_class(number) for _, number in avals]
        return given_rows(self, zip(avals, sources, strict=True))

    def shared_inputs(self, avals: Sequence[tuple[Any, int]]) -> list[Value]:
        """The leaves of the shared arguments."""
        form = self.tables.leaf_form
        return [
            Value(self, aval, number, SharedSource(leaf), None, form(number, leaf))
            for leaf, (aval, number) in enumerate(avals)
        ]

    def value(self, aval: Any, source: Any) -> Value:
        return Value(self, aval, self.tables.avals.number(aval), source)

    def record(self, op: Op, out_avals: Sequence[Any]) -> list[Value]:
        op.outputs = [self.value(aval, op) for aval in out_avals]
        self.numbers.place(op)
        self.ops.append(op)
        self._expose(op.outputs)
        return op.outputs

    def _as_it_is(self, value: Any) -> Any:
        """A value that will not change: of an array of NumPy's, which may be filled anew, a copy."""
        if not isinstance(value, np.ndarray):
            return value
        _, last = self._arrays.get(id(value), (None, None))
        if last is None or last.dtype != value.dtype or last.shape != value.shape or last.tobytes() != value.tobytes():
            last = value.copy()
            self._arrays[id(value)] = value, last
        return last

    def _op(self, inputs: Sequence[Any]) -> Op:
        self.check_seen(inputs)
        inputs = [value if type(value) is Value else self._as_it_is(value) for value in inputs]
        return Op(inputs, self._scope, len(self.kinds), self._sites.here(1))

    def index(self, value: Value, index: int | range) -> Value:
        """`value[index]` along axis 0. An element or slice of a slice is one of what was sliced."""
        self.check_seen((value,))
        while isinstance(value.source, Op) and isinstance(value.source.index, range):
            index, value = within(value.source.index, index), value.source.inputs[0]
        length = None
        if isinstance(index, int):
            element = self.numbers.element(value, index)
            if element is None:
                element = self._key_of_split(value, index)
            if element is not None:
                return element
        else:
            length = len(index)
        op = Op([value], self._scope, len(self.kinds), self._sites.here())
        op.index = index
        op.outputs = [Value(self, *self.tables.element_aval(value.aval_number, length), op)]
        self.numbers.place(op)
        self.ops.append(op)
        self._expose(op.outputs)
        return op.outputs[0]

    def _key_of_split(self, value: Value, index: int) -> Value | None:
        """A row of a split key, if that can be recorded apart from the others."""
        split = split_of(value)
        if split is None or self.numbers.row(split.key) is None:
            return None
        before = len(self.ops)
        key = self.process_primitive(primitives.random_fold_in_p, [split.key, np.uint32(index)], {})
        if split.is_unwrapped:
            key = self.process_primitive(compat.random_unwrap_p, [key], {})
        for op in self.ops[before:]:  # each row is a group of its own: there are as many as there are children
            op.turn = id(value.source), index
        return key

    def rows(self, value: Value) -> Iterator[Value]:
        """What iterating over a value gives."""
        if self.numbers.are_given(value):
            return iter(self.numbers.all_elements(value))
        return map(self.index, itertools.repeat(value), range(value.aval.shape[0]))

    def arithmetic(self, equation: Any, left: Value, right: Value) -> Value:
        """An operation on two values of one type that makes another; called by an operator of `Value`."""
        if self._hidden:
            self.check_seen((left, right))
        site = self._sites.here(2)
        op, number = left.source, left.aval_number
        if not (equation is ADD and type(op) is Op and op.site == site and is_total(op, left, self._scope)):
            return self._operate(equation, [left, right], left, site)
        value = new(Value)
        value._trace = self
        value.aval = left.aval
        value.aval_number = value.form = number
        value.source = op
        value.row = self.numbers.fresh()
        continue_total(op, right, value, len(self.kinds))
        self.ops.append(op)
        if self._scope:
            self._exposed.append(value.row)
        return value

    def arithmetic_with(self, equation: Any, left: Any, right: Any, value: Value) -> Value:
        """An operation on a value and a number, which are `left` and `right`; called by an operator of `Value`."""
        self.check_seen((value,))
        site, inputs = self._sites.here(2), [left, right]
        return self._operate(
            equation, self._numbers_as_rows(inputs) if combines_computed(site) else inputs, value, site
        )

    def _numbers_as_rows(self, inputs: list[Any]) -> list[Any]:
        """The operands of an operation, with a row in place of a number that is combined with a row: operations on
        different numbers are one type. For what Python computed and an operator combines, and for what is folded into a
        key; a number that is written in the code is part of what is computed."""
        if all(self.numbers.row(value) is None for value in inputs):
            return inputs
        found = [None if self.numbers.row(value) is not None else self._constants.find(value) for value in inputs]
        return [
            value if number is None else self.value(plain_aval(value), ConstantRow(number, plain_aval(value)))
            for value, number in zip(inputs, found, strict=True)
        ]

    def _operate(self, equation: Any, inputs: Sequence[Any], like: Value, site: Site) -> Value:
        """An operation that makes a value of the type of another."""
        op = Op(inputs, self._scope, len(self.kinds), site)
        value = Value(self, like.aval, like.aval_number, op)
        op.primitive, op.params, op.outputs = equation.primitive, equation.params, [value]
        self.numbers.place(op)
        self.ops.append(op)
        self._expose(op.outputs)
        return value

    # What JAX asks of a trace

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        if self._opens_jits and primitive is compat.jit_p and compat.is_users_jit(params):
            closed = params["jaxpr"]
            with compat.set_current_trace(self):
                outputs = compat.eval_jaxpr(closed.jaxpr, closed.consts, *tracers)
            # A number that is handed through is of a class of JAX's own.
            return [value if is_array(value) else self.stage_value(value) for value in outputs]
        out_avals, effects = self._known.abstract.evaluate(primitive, tracers, params)
        op = self._op(tracers)
        if len(tracers) == 2 and op.site is not None:
            is_data = primitive is primitives.random_fold_in_p or combines_computed(op.site)
            op.inputs = self._numbers_as_rows([*op.inputs]) if is_data else op.inputs
        op.primitive, op.params, op.effects = primitive, params, effects
        outputs = self.record(op, out_avals)
        if not primitive.multiple_results:
            return outputs[0]
        for place, given in handed_through(primitive, params).items():
            if type(tracers[given]) is Value:
                outputs = [*outputs[:place], tracers[given], *outputs[place + 1 :]]
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
        closed = self._known.abstract.custom_call(primitive, functions, tracers, params)
        env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(closed.jaxpr.invars, tracers, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, compat.Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:  # one, unless a rule of JAX's opens the call while it is traced
            op = self._op([read(atom) for atom in eqn.invars])
            op.primitive, op.params, op.effects = eqn.primitive, eqn.params, eqn.effects
            env.update(zip(eqn.outvars, self.record(op, [var.aval for var in eqn.outvars]), strict=True))
        return [read(atom) for atom in closed.jaxpr.outvars]

    def stage_value(self, val: Any) -> Any:
        return val if isinstance(val, jax.Array) else self.value(plain_aval(val), self._as_it_is(val))

    def cur_qdd(self, x: Any) -> Any:
        raise OutputError("mutable array references (jax.new_ref) cannot be used inside a batched sample")

    # Calls of decorated functions

    def call(self, fun: Callable[..., Any], key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a decorated function, which `key` stands for: a subgraph boundary, unless this recording knows only
        operations."""
        if not self._boundaries:
            return fun(*args, **kwargs)
        self._calls += 1
        described: list[Any] = [key]
        rows: list[Any] = []
        known = self.passed.known
        for arg in (*args, *kwargs.values()) if kwargs else args:
            if type(arg) is Value and arg.form is not None:
                described.append(arg.form)
                rows.append(arg.row)
            else:
                flat = known.get(id(arg)) or self.passed.flatten(arg, fun)
                if flat is None:
                    self._first_calls += 1
                    self._walked += 1
                    return self._walk(fun, args, kwargs, self._known.composite(fun))[0]
                _, _, of_leaves, form, _ = flat
                described.append(form)
                rows += of_leaves
        if kwargs:
            described.append((len(args), *kwargs))
        if self._hidden and not self._hidden.keys().isdisjoint(rows):
            self._raise_leak(next(row for row in rows if row in self._hidden))
        forms = tuple(described)
        template = self._templates.get(forms)
        if template is None:
            self._first_calls += 1
            template = self._known.templates.get(forms)
            if template is None:
                template, result = self._first_call(fun, args, kwargs, forms, len(rows))
                if template is None:
                    return result
            else:
                self._templates[forms] = tuple(template)
        kinds, counts, operands, makes, reads_given, further, results, make, form, in_order, fragment = template
        numbers = self.numbers
        first = numbers.made
        numbers.made = end = first + makes
        if fragment is not None:
            given = {*rows} if self._scope else ()
            result = copy_fragment(
                self, Template._make(template), rows, first, jax.tree.leaves((*args, *kwargs.values()))
            )
            if self._scope:  # what is returned may be what was given
                self._expose([leaf for leaf in jax.tree.leaves(result) if getattr(leaf, "row", None) not in given])
            return result
        if not reads_given:
            rows += range(first, end)
            rows += [further_row(row, numbers) for row in further]
        self.kinds += kinds
        self.counts += counts
        self.operands += operands(rows)
        if self._scope:
            self._exposed += range(first, end)
        values = []
        for place, aval, number in results:
            value = new(Value)  # as `Value(...)`, in less time
            value._trace = self
            value.aval = aval
            value.aval_number = value.form = number
            value.source = NODE
            value.row = first + place
            values.append(value)
        if make is None:
            return values[0]
        result = make(values)
        if form is not None:
            made = range(first, end) if in_order else [value.row for value in values]
            known[id(result)] = result, values, made, form, False
        return result

    def _first_call(
        self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], forms: Hashable, leaves: int
    ) -> tuple[Template | None, Any]:  # fmt: skip
        """A call with arguments of forms of which there is no template, which have so many leaves that are not shared:
        its body runs, unless it is known what it does with arguments of this structure. Returns a template to be
        recorded, or what was returned by a body that recorded itself."""
        known = self._known
        met, composite = known.met.get(forms), known.composite(fun)
        is_large = composite is not None and leaves > MANY_LEAVES and not composite.calls_none
        if composite is not None and is_large:
            composite.met += not met
            composite.again += met is ONCE
        # Aliases for all leaves, at every level of a tree, take longer than all else.
        if met is COMPOSITE or (is_large and not met):
            result, body = self._walk(fun, args, kwargs, composite if is_large else None)
            if not met and body.calls and may_be_kept(len(self.kinds) - body.nodes + len(self.ops) - body.ops):
                known.met.put(forms, ONCE)
            return None, result
        call = self.passed.first_call(fun, args, kwargs)
        leaf = None if met else known.signatures.get(call.signature)
        if leaf is not None:
            template = leaf_template(leaf, call.leaves, call.positions, self.numbers)
            return known.templates.put(forms, template), None

        # A body needs aliases, so that `f(x, x)` is what `f(x, y)` is. Shared values are part of the forms, under which
        # a composite is kept; and a function that called others before is likely to do so again.
        call.replace(self._alias, with_shared=not met and composite is None)
        positional, named = call.arguments[: len(args)], dict(zip(kwargs, call.arguments[len(args) :], strict=True))
        result, body = self._run(fun, positional, named)
        call.check_unchanged()
        is_leaf = not met and not body.calls
        aliases = [alias.row for alias, leaf in zip(call.aliases, call.leaves, strict=True) if alias is not leaf]
        self._hide(fun, body, aliases, None if is_leaf else result)
        if is_leaf:
            ops = self.ops[body.ops :]
            del self.ops[body.ops :]
            elements = list_elements(fun, positional, list(named.values()), call.is_shared)
            leaf = make_leaf(fun, ops, call.aliases, elements, call.shared_aliases, result, self.tables, self.sample)
            template = leaf_template(leaf, call.leaves, call.positions, self.numbers)
            if not leaf.closes_over_tracer:
                if call.has_all_aliases:
                    known.signatures.put(call.signature, leaf)
                known.templates.put(forms, template)
            return template, None
        if not met:
            known.composites.put(code_of(fun), composite or Composite())
            known.met.put(forms, ONCE)
        elif met is ONCE:  # most structures are met once; what is met again is kept
            fragment = make_fragment(self._recorded(body), self.numbers, call.aliases, call.positions, result)
            if fragment is None:
                known.met.discard(forms)
                known.met.put(forms, COMPOSITE)
            else:
                known.templates.put(forms, fragment)
        return None, result

    def _walk(
        self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], large: Composite | None
    ) -> tuple[Any, Body]:  # fmt: skip
        """Run the body of a function that is known to call others, without aliases. If it calls none after all on large
        arguments, what it does is not one operation; it will be the next time."""
        given = [self.passed.opened(arg, self._alias_number) for arg in (*args, *kwargs.values())]
        passed = [arg for arg, _ in given]
        result, body = self._run(fun, passed[: len(args)], dict(zip(kwargs, passed[len(args) :], strict=True)))
        for arg, leaves in given:
            if leaves is not None:
                check_holds(arg, leaves, self.sample)
        self._hide(fun, body, (), result)
        if large is not None and not body.calls:
            check_returned(fun, result, self.sample)
            large.calls_none = True
        return result, body

    def _run(self, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Body]:
        """Run the body of a call, in a scope of its own."""
        nodes, operands, ops, made = len(self.kinds), len(self.operands), len(self.ops), self.numbers.made
        calls, outer, exposed = self._calls, self._scope, len(self._exposed)
        self.scopes += 1
        self._scope = scope = self.scopes
        try:
            result = fun(*args, **kwargs)
        finally:
            self._scope = outer
        if len(self.ops) > ops:
            self.ops[ops:] = apart(self.ops[ops:])
        return result, Body(nodes, operands, ops, made, scope, exposed, self._calls - calls)

    def _recorded(self, body: Body) -> Recorded:
        """What was recorded while a body ran that has just ended."""
        nodes, operands, ops, made, scope, *_ = body
        return Recorded(
            self.kinds[nodes:], self.counts[nodes:], self.operands[operands:], self.ops[ops:], nodes, made,
            scope, self.scopes - scope + 1,
        )  # fmt: skip

    def _alias_number(self, leaf: Any) -> Any:
        is_other = type(leaf) is not Value and is_array(leaf)
        return self.value(plain_aval(leaf), self._as_it_is(leaf)) if is_other else leaf

    def _alias(self, leaf: Any) -> Any:
        if type(leaf) is not Value:
            return self._alias_number(leaf)
        row = self.numbers.row(leaf)
        alias = Value(self, leaf.aval, leaf.aval_number, leaf, row, leaf.form)
        if row is not None:  # a number of its own, so that what is passed is told from what is closed over
            alias.row = self.numbers.fresh()
            self.numbers.same[alias.row] = row
        return alias

    # What a body keeps: it does not run for every call, and what it put somewhere would be missing

    def _expose(self, values: Sequence[Any]) -> None:
        """Note values that an open body has seen."""
        if self._scope:
            self._exposed += [value.row for value in values if type(value) is Value]

    def _hide(self, fun: Callable[..., Any], body: Body, aliases: Sequence[int | None], result: Any) -> None:
        """Note that a body has ended: nothing that it has seen, its aliases among that, is to be used any more, but for
        its result. What else than arrays it returns may hold anything; then it runs for every call."""
        leaves = jax.tree.leaves(result)
        if not all(map(is_array, leaves)):
            return
        seen = [*self._exposed[body.exposed :], *aliases]
        del self._exposed[body.exposed :]
        returned = {leaf.row for leaf in leaves if type(leaf) is Value}
        self._hidden |= dict.fromkeys([row for row in seen if row is not None and row not in returned], fun)
        if self._scope:
            self._exposed += [row for row in seen if row in returned]

    def check_seen(self, values: Sequence[Any]) -> None:
        """Raise if a value was made in a call that has ended, and was not returned."""
        if self._hidden:
            for value in values:
                if type(value) is Value and value.row in self._hidden:
                    self._raise_leak(value.row)

    def _raise_leak(self, row: int | None) -> None:
        name = describe_function(self._hidden[row])
        raise LeakError(
            f"a value of a call of {name} is used{self._where} after the call has ended, and was not returned by it, "
            f"while {self.sample} was recorded. The body of a decorated function does not run for every call: on "
            "arguments of a structure that it has met it is copied, and what it puts into a list, a dictionary or an "
            "object is missing. Return the value, or do not decorate the function."
        )

    # Errors

    def control_flow_error(self, value: Value, asked: str) -> ControlFlowError:
        origin = root(value)
        advice = "Wrap the value in Static where the sample is made"
        if type(origin) in NUMBERS:
            advice = (
                f"It is the Python {type(origin).__name__} {origin!r}, which a decorated function was called with: "
                f"pass jitbatch.Static({origin!r}) at the call, and read its `.value` here"
            )
        elif type(origin) is Value and type(origin.source) is SharedSource:
            advice = "It is part of a shared argument: wrap it in Static there, or close over it"
        return ControlFlowError(
            f"{asked} was asked of a traced {value.aval.str_short()}{self._where}, while {self.sample} was recorded. "
            "Samples are recorded with their arrays abstract, so Python's control flow can look only at their "
            f"structure, at shapes, and at values wrapped in jitbatch.Static(...). {advice}, or compute both sides "
            "with jnp.where or lax.cond."
        )

    def number_error(self, value: Value, asked: str) -> NumberError:
        return NumberError(
            f"a number, a traced {value.aval.str_short()}, was {asked}{self._where}, while {self.sample} was recorded. "
            "Numbers of a sample, and those that decorated functions are called with, are arrays of no axes there, so "
            "that `isinstance(t, int)` and `isinstance(t, float)` are False. Tell the inner nodes of a tree instead: "
            "`isinstance(t, tuple)` (list, dict, or a class of yours). Wrap numbers in jitbatch.Static(...) that "
            "Python is to look at."
        )

    @property
    def _where(self) -> str:
        place = self._sites.here(1)
        return f" at {place.where}" if place.chain else ""
