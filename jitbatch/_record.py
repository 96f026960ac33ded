"""Recording one sample: a JAX trace of our own that notes which subgraphs a function calls on what.

While a sample is recorded, its array leaves and those of the shared arguments are abstract `Value`s, and every
operation on anything goes through `Recorder`. What comes out is a list of `Op`s in the order of execution, which
`_build` turns into a graph. A call of a decorated function that has been seen with arguments of this structure before
is one dictionary look-up and one `Op`; its body does not run again. If it calls decorated functions itself, it is the
`Op`s that were recorded then (see `_fragments`).
"""

from collections.abc import Callable, Hashable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import jax

from jitbatch import _compat
from jitbatch._caches import Cache
from jitbatch._canonical import Cell, SumCell, intern_cell
from jitbatch._errors import ControlFlowError, MutationError, OutputError
from jitbatch._fold import fold
from jitbatch._fragments import Argument, Fragment, Made, make_fragment
from jitbatch._graph import Tables
from jitbatch._open import Element, list_elements, open_body
from jitbatch._sites import SiteRecorder
from jitbatch._static import bits_key, flatten_with_statics
from jitbatch._values import (
    ConstantRow,
    InputSource,
    Op,
    Value,
    described,
    is_array,
    plain_aval,
    root,
    within,
    within_body,
)


class Step(NamedTuple):
    """A cell that a call of a decorated function runs.

    `inputs` are arguments, what earlier steps made, constants that are rows, and what the body closes over; `passed`
    says which of them the cell takes as arguments.
    """

    cell: Cell
    inputs: tuple[Any, ...]
    passed: tuple[bool, ...]
    out_avals: tuple[tuple[Any, int], ...]


class Leaf(NamedTuple):
    """A decorated function on arguments of one structure, when it calls no other decorated function.

    Attributes:
        steps: one cell that is its body; none when there is nothing to compute; several when it reduces a list of any
            length (see `_open`).
        results: for each leaf of the result an `Argument`, a `Made`, or a value that is returned as it is.
        out_tree: the tree of the result.
    """

    steps: tuple[Step, ...]
    results: tuple[Any, ...]
    out_tree: Any

    @property
    def closes_over_tracer(self) -> bool:
        return any(
            _compat.is_tracer(value) for values in (*(s.inputs for s in self.steps), self.results) for value in values
        )


ONCE = "once"
"""In place of a `Leaf` or a `Fragment`: the body calls decorated functions, and has run once."""

COMPOSITE = "composite"
"""The same of a body that runs each time."""


class Recorder(_compat.Trace):
    """The trace that is current while one sample is recorded."""

    def __init__(self, tables: Tables, signatures: Cache, granularity: str, outermost: CodeType, sample: str):
        super().__init__()
        self.tables = tables
        self.ops: list[Op] = []
        self.input_avals: list[Any] = []
        self.sample = sample
        self._signatures = signatures
        self._boundaries = granularity == "subgraph"
        self._opens_jits = granularity == "op"
        self._sites = SiteRecorder(outermost, Recorder.call.__code__)
        self._scope = self._scopes = 0
        self._calls = 0
        self._element_avals: dict[tuple[int, int | None], tuple[Any, int]] = {}
        self._flat_shared: dict[int, tuple[Any, list[Any], Hashable]] = {}

    # Values and operations

    def value(self, aval: Any, source: Any) -> Value:
        return Value(self, aval, self.tables.avals.number(aval), source)

    def record(self, op: Op, out_avals: Sequence[Any]) -> list[Value]:
        op.outputs = [self.value(aval, op) for aval in out_avals]
        self.ops.append(op)
        return op.outputs

    def index(self, value: Value, index: int | range) -> Value:
        """`value[index]` along axis 0. An element or slice of a slice is one of what was sliced."""
        while isinstance(value.source, Op) and isinstance(value.source.index, range):
            index, value = within(value.source.index, index), value.source.inputs[0]
        length = None if isinstance(index, int) else len(index)
        known = self._element_avals.get((value.aval_number, length))
        if known is None:
            aval = value.aval
            shape = aval.shape[1:] if length is None else (length, *aval.shape[1:])
            aval = _compat.make_aval(shape, aval.dtype, aval.weak_type)
            known = self._element_avals[value.aval_number, length] = (aval, self.tables.avals.number(aval))
        op = Op([value], self._scope, self._sites.here())
        op.index = index
        op.outputs = [Value(self, *known, op)]
        self.ops.append(op)
        return op.outputs[0]

    def add(self, left: Value, right: Value) -> Value:
        return self._arithmetic(_ADD, left, right)

    def multiply(self, left: Value, right: Value) -> Value:
        return self._arithmetic(_MULTIPLY, left, right)

    def _arithmetic(self, equation: Any, left: Value, right: Value) -> Value:
        """An operation on two values of one type that makes another."""
        op = Op([left, right], self._scope, self._sites.here())
        op.primitive, op.params = equation.primitive, equation.params
        op.outputs = [Value(self, left.aval, left.aval_number, op)]
        self.ops.append(op)
        return op.outputs[0]

    # What JAX asks of a trace

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        if self._opens_jits and primitive is _compat.jit_p and _compat.is_users_jit(params):
            closed = params["jaxpr"]
            with _compat.set_current_trace(self):
                return _compat.eval_jaxpr(closed.jaxpr, closed.consts, *tracers)
        out_avals, effects = _compat.abstract_eval(primitive, [jax.typeof(t) for t in tracers], params)
        op = Op(tracers, self._scope, self._sites.here())
        op.primitive, op.params, op.effects = primitive, params, effects
        outputs = self.record(op, out_avals)
        return outputs if primitive.multiple_results else outputs[0]

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
        avals = [jax.typeof(t) for t in tracers]
        closed = _compat.trace_custom_call(primitive, functions, avals, params)
        env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(closed.jaxpr.invars, tracers, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, _compat.Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:  # one, unless a rule of JAX's opens the call while it is traced
            op = Op([read(atom) for atom in eqn.invars], self._scope, self._sites.here())
            op.primitive, op.params, op.effects = eqn.primitive, eqn.params, eqn.effects
            env.update(zip(eqn.outvars, self.record(op, [var.aval for var in eqn.outvars]), strict=True))
        return [read(atom) for atom in closed.jaxpr.outvars]

    def stage_value(self, val: Any) -> Any:
        return val if isinstance(val, jax.Array) else self.value(plain_aval(val), val)

    def cur_qdd(self, x: Any) -> Any:
        raise OutputError("mutable array references (jax.new_ref) cannot be used inside a batched sample")

    # Calls of decorated functions

    def call(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a decorated function: a subgraph boundary, unless this recording knows only operations."""
        if not self._boundaries:
            return fun(*args, **kwargs)
        self._calls += 1
        flat = [self._flatten(arg) for arg in (*args, *kwargs.values())]
        signature = (fun, len(args), tuple(kwargs), tuple(spec for *_, spec in flat))
        leaves = [leaf for one, *_ in flat for leaf in one]
        known = self._signatures.get(signature)
        if type(known) is Leaf:
            return self._emit(known, leaves)
        if type(known) is Fragment:
            return self._copy(known, leaves)

        aliases: list[Any] = []
        arguments = []
        for one, treedef, _ in flat:
            # The body of a leaf needs an alias for every argument, so that `f(x, x)` is the cell that `f(x, y)` is;
            # that of a composite needs one only for numbers, which must not be seen by Python's control flow.
            replaced = [self._alias(leaf, every=known is not COMPOSITE) for leaf in one]
            aliases += replaced
            arguments.append(treedef.unflatten(replaced))
        held = {id(alias) for alias in aliases}
        positional, named = arguments[: len(args)], dict(zip(kwargs, arguments[len(args) :], strict=True))

        start, calls, outer = len(self.ops), self._calls, self._scope
        self._scopes += 1
        self._scope = first_scope = self._scopes
        try:
            result = fun(*positional, **named)
        finally:
            self._scope = outer
        for given, (one, *_) in zip(arguments, flat, strict=True):
            after = jax.tree.leaves(given)
            if len(after) != len(one) or any(id(leaf) not in held for leaf in after if is_array(leaf)):
                raise mutation_error(given, self.sample)
        if known is None and self._calls == calls:
            body = self.ops[start:]
            del self.ops[start:]
            is_shared = [id(arg) in self._flat_shared for arg in (*args, *kwargs.values())]
            shared = {
                id(leaf) for arg, one in zip(arguments, is_shared, strict=True) if one for leaf in jax.tree.leaves(arg)
            }
            elements = list_elements(fun, positional, list(named.values()), is_shared)
            leaf = self._leaf(fun, body, aliases, elements, shared, result)
            if not leaf.closes_over_tracer:
                self._signatures.put(signature, leaf)
            return self._emit(leaf, leaves)
        if known is None:
            self._signatures.put(signature, ONCE)
        elif known is ONCE:  # most structures are met once; what is met again is kept
            scopes = self._scopes - first_scope + 1
            fragment = make_fragment(self.ops[start:], first_scope, scopes, aliases, result)
            self._signatures.discard(signature)
            self._signatures.put(signature, fragment or COMPOSITE)
        return result

    def _flatten(self, arg: Any) -> tuple[list[Any], Any, Hashable]:
        """An argument's leaves, its treedef and a hashable description of everything but the leaves' values.

        Shared arguments are passed along from call to call, and flattening a module costs more than recording a
        call: what holds nothing but shared values is looked up by identity.
        """
        if type(arg) is Value:
            return [arg], _LEAF, arg.aval_number
        found = self._flat_shared.get(id(arg))
        if found is not None:
            return found[1], *found[2]  # type: ignore[misc]
        leaves, treedef, statics = flatten_with_statics(arg)
        number = self.tables.avals.number
        spec = (
            treedef,
            statics,
            tuple(
                leaf.aval_number
                if type(leaf) is Value
                else number(plain_aval(leaf))
                if is_array(leaf)
                else (bits_key(leaf),)
                for leaf in leaves
            ),
        )
        if leaves and all(type(leaf) is Value and _is_shared_leaf(leaf) for leaf in leaves):
            # One number stands for the whole description, which is long for a large module.
            described = (treedef, ("shared", self.tables.shared_specs.number(spec)))
            self._flat_shared[id(arg)] = (arg, leaves, described)
            return leaves, *described
        return leaves, treedef, spec

    def _alias(self, leaf: Any, every: bool) -> Any:
        if type(leaf) is Value:
            return Value(self, leaf.aval, leaf.aval_number, leaf) if every else leaf
        return self.value(plain_aval(leaf), leaf) if is_array(leaf) else leaf

    def _leaf(
        self, fun: Callable[..., Any], body: list[Op], aliases: list[Any], elements: list[Element | None],
        shared: set[int], result: Any,
    ) -> Leaf:  # fmt: skip
        """The body of a call as steps."""
        leaves, out_tree = jax.tree.flatten(result)
        argument = {id(alias): i for i, alias in enumerate(aliases) if type(alias) is Value}
        made = {id(value) for op in body for value in op.outputs}
        for position, leaf in enumerate(leaves):
            if id(leaf) not in made and id(leaf) not in argument and not is_array(leaf):
                path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(result)[0][position][0])
                raise OutputError(
                    f"{describe_function(fun)} returned {described(leaf)} of type {type(leaf).__name__} "
                    f"at result{path}, while {self.sample} was recorded. A decorated function returns arrays and "
                    "numbers in any pytree; return static things from an undecorated function instead."
                )
        name, where = getattr(fun, "__qualname__", "cell"), _source(fun)
        parameters = [alias for alias in aliases if type(alias) is Value]
        element_of = {id(alias): element for alias, element in zip(aliases, elements, strict=True)}
        opened = open_body(body, leaves, element_of, shared, name, where)
        if opened is None:
            outputs = [leaf for leaf in leaves if id(leaf) in made]
            opened = []
            if outputs or any(op.effects for op in body):
                jaxpr, operands = fold(body, parameters, outputs, getattr(fun, "__name__", "cell"))
                opened = [(intern_cell(jaxpr, name, where), operands, outputs)]

        places: dict[int, Any] = {key: Argument(i) for key, i in argument.items()}
        steps: list[Step] = []

        def place(value: Any) -> Any:
            value = within_body(value, argument)
            if type(value) is Value and isinstance(value.source, ConstantRow):
                return value.source
            return places.get(id(value), value)

        for cell, operands, outputs in opened:
            self.tables.sources.note_call(cell, name, where, body, parameters, len(opened) > 1)
            avals = tuple((aval, self.tables.avals.number(aval)) for aval in cell.out_avals)
            inputs = tuple(map(place, operands))
            passed = tuple(type(value) is Argument or isinstance(cell, SumCell) for value in inputs)
            steps.append(Step(cell, inputs, passed, avals))
            for output, value in enumerate(outputs):
                places[id(value)] = Made(len(steps) - 1, output)
        return Leaf(tuple(steps), tuple(map(place, leaves)), out_tree)

    def _finder(self, arguments: list[Any], made: list[list[Value]]) -> Callable[[Any], Any]:
        def find(value: Any) -> Any:
            kind = type(value)
            if kind is Argument:
                return arguments[value.leaf]
            if kind is Made:
                return made[value.step][value.output]
            return self.value(jax.typeof(value.array), value) if kind is ConstantRow else value

        return find

    def _emit(self, leaf: Leaf, arguments: list[Any]) -> Any:
        made: list[list[Value]] = []
        find = self._finder(arguments, made)
        for cell, inputs, passed, out_avals in leaf.steps:
            op = Op([find(value) for value in inputs], self._scope)
            op.cell, op.passed, op.effects = cell, passed, cell.jaxpr.effects
            op.outputs = [Value(self, aval, number, op) for aval, number in out_avals]
            made.append(op.outputs)
            self.ops.append(op)
        return leaf.out_tree.unflatten([find(value) for value in leaf.results])

    def _copy(self, fragment: Fragment, arguments: list[Any]) -> Any:
        made: list[list[Value]] = []
        find = self._finder(arguments, made)
        first_scope = self._scopes + 1
        self._scopes += fragment.scopes
        for known, inputs, scope, avals in fragment.operations:
            op = Op([find(value) for value in inputs], first_scope + scope, known.site)
            op.primitive, op.params, op.effects = known.primitive, known.params, known.effects
            op.cell, op.passed, op.index = known.cell, known.passed, known.index
            op.outputs = [Value(self, aval, number, op) for aval, number in avals]
            made.append(op.outputs)
            self.ops.append(op)
        return fragment.out_tree.unflatten([find(value) for value in fragment.results])

    # Errors

    def check_unchanged(self) -> None:
        """Shared arguments that were looked up by identity must hold what they held at first."""
        for arg, leaves, _ in self._flat_shared.values():
            after = jax.tree.leaves(arg)
            if len(after) != len(leaves) or any(a is not b for a, b in zip(after, leaves, strict=True)):
                raise mutation_error(arg, self.sample)

    def control_flow_error(self, value: Value, asked: str) -> ControlFlowError:
        place = self._sites.here()
        where = f" at {place.where}" if place.chain else ""
        return ControlFlowError(
            f"{asked}() was asked of a traced {value.aval.str_short()}{where}, while {self.sample} was recorded. "
            "Samples are recorded with their arrays abstract, so Python's control flow can look only at their "
            "structure, at shapes, and at values wrapped in jitbatch.Static(...). Wrap the value in Static where the "
            "sample is made, or compute both sides with jnp.where or lax.cond."
        )


def mutation_error(arg: Any, sample: str) -> MutationError:
    return MutationError(
        f"the shared argument of type {type(arg).__name__} was changed in place while {sample} was recorded. "
        "A batched function is recorded once and run many times, so a change of state (Dropout's random stream, "
        "BatchNorm's running mean, an attribute or dictionary item that is set) would be lost. Pass random keys as a "
        "mapped argument, return new state as an output, or switch the module to evaluation mode."
    )


_LEAF = jax.tree.structure(0)
_ADD, _MULTIPLY = jax.make_jaxpr(lambda x: (jax.lax.add(x, x), jax.lax.mul(x, x)))(0.0).eqns


def _is_shared_leaf(value: Value) -> bool:
    origin = root(value)
    return type(origin) is Value and isinstance(origin.source, InputSource) and origin.source.shared


def _source(fun: Callable[..., Any]) -> str:
    code = getattr(fun, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def describe_source(fun: Callable[..., Any]) -> tuple[str, str]:
    """The name of a function, and its file and line."""
    return getattr(fun, "__qualname__", repr(fun)), _source(fun)


def describe_function(fun: Callable[..., Any]) -> str:
    name, where = describe_source(fun)
    return f"`{name}` ({where})"
