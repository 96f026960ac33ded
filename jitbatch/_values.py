"""What a recording is made of: values and the operations that make them."""

import re
from collections.abc import Container, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jitbatch import _compat
from jitbatch._canonical import Cell
from jitbatch._errors import OutputError
from jitbatch._sites import Site


class Op:
    """One recorded operation: a primitive, a call of a cell, or an index into an array.

    Attributes:
        inputs: `Value`s, concrete arrays, and tracers of outer transformations.
        outputs: `Value`s.
        primitive, params, effects: of a primitive.
        cell: of a call.
        passed: of a call, which of the inputs are arguments; the others are what the cell closes over.
        index: of an indexing operation, an int or a range along axis 0.
        site, scope: the user's code and the decorated call it was recorded in.
        turn: which turn of a loop over terms of a sum it belongs to, if any.
        made_from: of a sum of any length, the user's code that it was found in.
    """

    __slots__ = (
        "cell", "effects", "index", "inputs", "made_from", "outputs", "params", "passed", "primitive", "scope", "site",
        "turn",
    )  # fmt: skip

    def __init__(self, inputs: Sequence[Any], scope: int, site: Site | None = None):
        self.inputs = inputs
        self.outputs: list[Value] = []
        self.scope = scope
        self.site = site
        self.primitive: Any = None
        self.params: dict[str, Any] = {}
        self.effects: Any = frozenset()
        self.cell: Cell | None = None
        self.passed: tuple[bool, ...] = ()
        self.index: int | range | None = None
        self.turn: tuple[int, int] | None = None
        self.made_from: Site | None = None

    @property
    def is_users_jit(self) -> bool:
        return self.primitive is _compat.jit_p and _compat.is_users_jit(self.params)


class InputSource:
    """Where a value comes from that no operation makes."""

    __slots__ = ("leaf", "shared")

    def __init__(self, leaf: int, shared: bool):
        self.leaf = leaf
        self.shared = shared


class ConstantRow:
    """The source of a constant that is a row, as an input is, and not part of what is computed."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray):
        self.array = array


class Value(_compat.Tracer):
    """An array of a sample that is being recorded.

    `source` is the `Op` that makes it, an `InputSource`, a `ConstantRow`, or another value or a concrete array that it
    is an alias of.
    """

    __slots__ = ("aval_number", "source")
    aval: Any

    def __init__(self, trace: Any, aval: Any, aval_number: int, source: Any):
        self._trace = trace
        self.aval = aval
        self.aval_number = aval_number
        self.source = source

    def __getitem__(self, index: Any) -> Any:
        # Indexing with Python integers is recorded as such: jnp's general indexing takes 130 us, and a row of an
        # input must stay a reference to that row, whatever the length of the array.
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
        return self.aval._getitem(self, index)

    # Arithmetic on values of one type is recorded as such: an operator of jnp's takes 50 us to find out as much.

    def __add__(self, other: Any) -> Any:
        return self._trace.add(self, other) if self._is_like(other) else super().__add__(other)

    def __mul__(self, other: Any) -> Any:
        return self._trace.multiply(self, other) if self._is_like(other) else super().__mul__(other)

    def _is_like(self, other: Any) -> bool:
        """Whether arithmetic with another value needs no conversion, and is this recording's business."""
        return (
            type(other) is Value
            and other.aval_number == self.aval_number
            and self.aval.dtype.kind == "f"
            and _compat.current_trace() is self._trace
        )

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __reversed__(self) -> Iterator[Any]:
        return (self[i] for i in reversed(range(self.shape[0])))

    def __bool__(self) -> bool:
        raise self._trace.control_flow_error(self, "bool")

    def __int__(self) -> int:
        raise self._trace.control_flow_error(self, "int")

    def __index__(self) -> int:
        raise self._trace.control_flow_error(self, "index")

    def __float__(self) -> float:
        raise self._trace.control_flow_error(self, "float")

    def __complex__(self) -> complex:
        raise self._trace.control_flow_error(self, "complex")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._trace.control_flow_error(self, "numpy.asarray")

    def __hash__(self) -> int:
        raise self._trace.control_flow_error(self, "hash")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._trace.control_flow_error(self, "format")
        return str(self)

    def tolist(self) -> Any:
        raise self._trace.control_flow_error(self, "tolist")

    def item(self, *args: Any) -> Any:
        raise self._trace.control_flow_error(self, "item")


def _is_int(index: Any) -> bool:
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def _slice_parts(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step


NUMBERS = frozenset({int, float, bool, complex})
"""Types of numbers that are arrays to JAX, of weak type."""


def is_array(leaf: Any) -> bool:
    """Whether a leaf is something JAX computes with: an array, a tracer or a number."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUVMm" or jax.numpy.issubdtype(leaf.dtype, np.number)
    return isinstance(leaf, jax.Array | bool | int | float | complex)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def described(thing: Any) -> str:
    """What a thing is, for a message: short, and without its address."""
    text = _ADDRESS.sub("", repr(thing))
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_result(result: Any, sample: str) -> None:
    """Raise for what a function returned that is not an array or a number."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]:
        if not is_array(leaf):
            raise OutputError(
                f"the batched function returned {described(leaf)} of type {type(leaf).__name__} at "
                f"result{jax.tree_util.keystr(path)} for {sample}. It must return arrays and numbers, in any pytree."
            )


def within(rows: range, index: int | range) -> int | range:
    """The element or slice `index` of the slice `rows`, as an element or slice of what `rows` is a slice of."""
    if isinstance(index, int):
        return rows[index]
    start, step = rows.start + index.start * rows.step, index.step * rows.step
    return range(start, start + step * len(index), step)


def root(value: Any) -> Any:
    """What an alias stands for."""
    while type(value) is Value:
        source = value.source
        kind = type(source)
        if kind is Op or kind is InputSource or kind is ConstantRow:
            break
        value = source
    return value


def within_body(value: Any, arguments: Container[int]) -> Any:
    """What an alias stands for inside a body: arguments, given by `id`, are aliases of what they are outside."""
    while type(value) is Value and type(value.source) is Value and id(value) not in arguments:
        value = value.source
    return value


def plain_aval(leaf: Any) -> Any:
    aval = jax.typeof(leaf)
    return _compat.make_aval(aval.shape, aval.dtype, aval.weak_type)
