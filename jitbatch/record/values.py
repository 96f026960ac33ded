"""`Value`: an abstract array of a sample during recording. `Op`: the operation that computes it."""

import inspect
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from jitbatch.ir.cell import Cell
from jitbatch.util import compat
from jitbatch.util.array_leaves import described, is_array, plain_aval
from jitbatch.util.compat import current_trace
from jitbatch.util.errors import OutputError
from jitbatch.util.sites import Site


class Op:
    """One recorded operation: a primitive, an index into an array, or a sum that replaces several operations.

    Attributes:
        inputs: `Value`s, concrete arrays, and tracers of outer transformations.
        outputs: `Value`s.
        primitive, params, effects: for a primitive.
        cell: for a sum, maximum or minimum of terms.
        index: for an indexing operation, an int or a range along axis 0.
        at: the number of nodes recorded before it.
        site, scope: the place in the user's code, and the decorated call whose body was running.
        turn: its turn of a loop over the terms of a reduction; None outside of such loops.
        common: for an operation on one element of a list (see `record/elements`), the positions of the inputs that are
            the same for all elements; None for all other operations.
        made_from: for a sum of any length, the user's code that contains it.
        totals: for a running total, its value before each of its last additions, and the `at` of that value (see
            `record/running_totals`).
    """

    primitive: Any = None
    params: Any = MappingProxyType({})
    effects: Any = frozenset()
    cell: Cell | None = None
    index: int | range | None = None
    turn: tuple[int, int] | None = None
    common: tuple[int, ...] | None = None
    made_from: Site | None = None
    totals: Sequence[tuple["Value", int]] = ()

    def __init__(self, inputs: Sequence[Any], scope: int, at: int, site: Site | None = None):
        self.inputs: Sequence[Any] = inputs
        self.outputs: list[Value] = []
        self.scope = scope
        self.at = at
        self.site = site

    @property
    def is_users_jit(self) -> bool:
        return self.primitive is compat.jit_p and compat.is_users_jit(self.params)


class SharedSource(NamedTuple):
    """The source of a value that is a leaf of the shared arguments."""

    leaf: int


InputSource: TypeAlias = tuple[int, int, int]
"""The source of an input: a leaf of the sample, the number of indexed axes of the leaf, and the row along these axes. A
plain tuple, because a sentence has one for each word."""


class NodeSource:
    """The source of the outputs of a decorated call: a node or a shared computation."""

    __slots__ = ()


NODE = NodeSource()


class ConstantRow:
    """The source of a constant that is a row, like an input. It is not part of the cell."""

    __slots__ = ("array", "aval")

    def __init__(self, array: Any, aval: Any = None):
        self.array = array
        self.aval = plain_aval(array) if aval is None else aval


SOURCES = frozenset({Op, tuple, SharedSource, NodeSource, ConstantRow})
"""The classes of all sources except those of aliases."""


# Arithmetic on values of one type, or with a Python number, bypasses JAX's operators, which take 20 us.

_OPERATORS = (jax.lax.add, jax.lax.mul, jax.lax.sub, jax.lax.div)
ADD, MULTIPLY, SUBTRACT, DIVIDE = jax.make_jaxpr(lambda x: [apply(x, x) for apply in _OPERATORS])(0.0).eqns


def _operator(equation: Any, inherited: Callable[[Any, Any], Any]) -> Any:
    """A binary operator of `Value`, with the value on the left. JAX's operator handles operands that need a
    conversion."""

    def operate(self: "Value", other: Any) -> Any:
        trace = self._trace
        if type(other) is Value:
            if other.aval_id == self.aval_id and self.aval.dtype.kind == "f" and current_trace() is trace:
                return trace.arithmetic(equation, self, other)
        elif (number := _converted(other, self)) is not None:
            return trace.arithmetic_with(equation, self, number, self)
        return inherited(self, other)

    return operate


def _reflected(equation: Any, inherited: Callable[[Any, Any], Any]) -> Any:
    """A binary operator of `Value`, with the value on the right."""

    def operate(self: "Value", other: Any) -> Any:
        if (number := _converted(other, self)) is not None:
            return self._trace.arithmetic_with(equation, number, self, self)
        return inherited(self, other)

    return operate


def _converted(number: Any, value: "Value") -> np.ndarray | None:
    """A Python number in the dtype that JAX's arithmetic gives it. None for operands that JAX handles."""
    kind = type(number)
    if not ((kind is float or kind is int) and value.aval.dtype.kind == "f" and current_trace() is value._trace):
        return None
    return np.asarray(number, jax.dtypes.canonicalize_dtype(kind)).astype(value.aval.dtype)


class Value(compat.Tracer):
    """An array of a sample during recording.

    Attributes:
        source: the `Op` that computes it, an `InputSource`, a `SharedSource`, a `ConstantRow` or `NODE`. For an alias,
            the other value or concrete array.
        row: its row id if it is a row of the batch (see `record/graph_builder`), None if it is shared.
        form: its part of the key of a decorated call. The form of a row is the id of its aval. The form of a shared
            value is a negative id, or None until it is needed.
    """

    __slots__ = ("aval_id", "form", "row", "source")
    aval: Any

    def __init__(
        self, trace: Any, aval: Any, aval_id: int, source: Any, row: int | None = None, form: int | None = None
    ):
        self._trace = trace
        self.aval = aval
        self.aval_id = aval_id
        self.source = source
        self.row = row
        self.form = form

    def __getitem__(self, index: Any) -> Any:
        # Indexing with Python integers has an operation of its own: jnp's general indexing takes 130 us. Also, a row of
        # an input must stay a reference to that row, for arrays of every length.
        if isinstance(index, tuple):
            if index and len(index) <= self.ndim and all(map(_is_int, index)):
                value: Any = self
                for i in index:
                    value = value[i]
                return value
        elif self.ndim and self._trace.is_valid():
            length: int = self.aval.shape[0]
            if _is_int(index) and -length <= index < length:
                return self._trace.index(self, int(index) % length)
            if isinstance(index, slice) and not any(isinstance(i, jax.Array) for i in _slice_parts(index)):
                return self._trace.index(self, range(length)[index])
            if isinstance(index, np.ndarray) and self._trace.data_numbers is not None:
                index = self._trace.data_numbers.in_index(index, self._trace.sites.here())
            if type(index) is Value:
                return getitem(self, index)
        self._check_index(index if isinstance(index, tuple) else (index,))
        return self.aval._getitem(self, index)

    def _check_index(self, index: tuple[Any, ...]) -> None:
        """Raise a helpful error for two common mistakes: an indexed number, and a slice whose bound depends on
        values."""
        if self.ndim == 0 and any(_is_int(part) or isinstance(part, slice) for part in index):
            raise self._trace.number_error(self, "indexed")
        for part in index:
            for end in _slice_parts(part) if isinstance(part, slice) else ():
                if type(end) is Value:
                    raise self._trace.control_flow_error(end, "a bound of a slice")

    __add__ = _operator(ADD, compat.Tracer.__add__)
    __radd__ = _reflected(ADD, compat.Tracer.__radd__)
    __mul__ = _operator(MULTIPLY, compat.Tracer.__mul__)
    __rmul__ = _reflected(MULTIPLY, compat.Tracer.__rmul__)
    __sub__ = _operator(SUBTRACT, compat.Tracer.__sub__)
    __rsub__ = _reflected(SUBTRACT, compat.Tracer.__rsub__)
    __truediv__ = _operator(DIVIDE, compat.Tracer.__truediv__)
    __rtruediv__ = _reflected(DIVIDE, compat.Tracer.__rtruediv__)

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise self._trace.number_error(self, "iterated over or unpacked")
        if self._trace.is_valid():
            return self._trace.elements(self)
        return (self[i] for i in range(self.shape[0]))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise self._trace.number_error(self, "asked for its len()")
        return self.aval.shape[0]

    def __reversed__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise self._trace.number_error(self, "iterated over")
        return (self[i] for i in reversed(range(self.shape[0])))

    def __bool__(self) -> bool:
        raise self._trace.control_flow_error(self, "bool()")

    def __int__(self) -> int:
        raise self._trace.control_flow_error(self, "int()")

    def __index__(self) -> int:
        raise self._trace.control_flow_error(self, "index()")

    def __float__(self) -> float:
        raise self._trace.control_flow_error(self, "float()")

    def __complex__(self) -> complex:
        raise self._trace.control_flow_error(self, "complex()")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._trace.control_flow_error(self, "numpy.asarray()")

    def __hash__(self) -> int:
        raise self._trace.control_flow_error(self, "hash()")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._trace.control_flow_error(self, "format()")
        return str(self)

    def tolist(self) -> Any:
        raise self._trace.control_flow_error(self, "tolist()")

    def item(self, *args: Any) -> Any:
        raise self._trace.control_flow_error(self, "item()")


new = object.__new__

getitem = jax.jit(operator.getitem, inline=True)
"""Indexing with an array as one operation. jnp records a dozen operations for it, in 270 us."""


def given_rows(trace: Any, given: Iterable[tuple[tuple[Any, int], InputSource]], before: int = 0) -> list[Value]:
    """Values for input rows.

    Args:
        trace: the recorder.
        given: for each row its aval, the id of the aval, and its source.
        before: the number of earlier input rows.
    """
    if trace.caller is not None:
        return trace.caller.given_rows(given, before)
    values = []
    for row, ((aval, aval_id), source) in enumerate(given, before + 1):
        value = new(Value)  # a faster `Value(...)`: a sentence has one for each word
        value._trace = trace
        value.aval = aval
        value.aval_id = value.form = aval_id
        value.source = source
        value.row = -row
        values.append(value)
    return values


def new_value(op: Op, aval: Any) -> Value:
    """A new value in the recording of an operation. It has no source yet."""
    return op.outputs[0]._trace.value(aval, None)


def _is_int(index: Any) -> bool:
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def _slice_parts(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step


def check_result(result: Any, sample: str) -> None:
    """Raise an error if a result has a leaf that is not an array or a number."""
    if all(map(is_array, jax.tree.leaves(result))):
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]:
        if not is_array(leaf):
            advice = " It is not awaited: write `await f(...)`." if inspect.isawaitable(leaf) else ""
            raise OutputError(
                f"the batched function returned {described(leaf)} of type {type(leaf).__name__} at "
                f"result{jax.tree_util.keystr(path)} for {sample}. It must return arrays and numbers, in any pytree."
                f"{advice}"
            )


def within(rows: range, index: int | range) -> int | range:
    """Composition of two slices: the element or slice `index` of the slice `rows`, in terms of the sliced array."""
    if isinstance(index, int):
        return rows[index]
    start, step = rows.start + index.start * rows.step, index.step * rows.step
    return range(start, start + step * len(index), step)


def root(value: Any) -> Any:
    """Follows aliases to the original value."""
    while type(value) is Value:
        source = value.source
        if type(source) in SOURCES:
            break
        value = source
    return value


def within_body(value: Any, arguments: Container[int]) -> Any:
    """Follows aliases to the original value inside a body. It stops at the arguments of the body, which are passed as a
    set of `id`s."""
    while type(value) is Value and type(value.source) is Value and id(value) not in arguments:
        value = value.source
    return value
