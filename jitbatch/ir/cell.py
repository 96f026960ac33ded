"""Cells, identified by canonical jaxprs: two subgraphs are the same cell if the keys of their jaxprs are equal.

The key of a jaxpr holds its equations, with variables numbered in order, sub-jaxprs as keys and constants as bits. So
it does not depend on the Python function of a subgraph. Equality of keys is exact. Digests only define an order that is
the same in every process.
"""

import functools
import hashlib
import re
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jitbatch.util import compat, jaxprs
from jitbatch.util.caches import Cache
from jitbatch.util.static import bits_key


class Key:
    """A nested tuple whose hash is computed once."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: Hashable):
        self.parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Key) and self._hash == other._hash and self.parts == other.parts

    def __repr__(self) -> str:
        return repr(self.parts)


class Identity:
    """A key for an object that is equal only to itself. It keeps the object alive, so that its `id` stays unique."""

    __slots__ = ("thing",)

    def __init__(self, thing: Any):
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.thing is other.thing

    def __repr__(self) -> str:
        return f"<{type(self.thing).__name__}>"


def key_bits(keys: Any) -> np.ndarray:
    """The key data of concrete typed PRNG keys, also while JAX is tracing."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.key_data(keys))


def array_key(value: Any) -> Hashable:
    """A key of an array's shape, dtype and bits."""
    if compat.is_prng_key(value.dtype):
        return str(value.dtype), array_key(key_bits(value))
    host = np.asarray(value)
    return host.shape, host.dtype, host.tobytes()


def param_key(value: Any) -> Hashable:
    """A key for one parameter of an equation. An unhashable parameter is equal only to itself."""
    if value is None or isinstance(value, str | np.dtype | type):
        return value
    if isinstance(value, compat.ClosedJaxpr):
        return closed_jaxpr_key(value)
    if isinstance(value, compat.Jaxpr):
        return jaxpr_key(value)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(param_key, value))
    if isinstance(value, dict):
        return dict, tuple((name, param_key(value[name])) for name in sorted(value, key=str))
    if compat.is_tracer(value):
        return Identity(value)
    if isinstance(value, np.ndarray | jax.Array):
        return array_key(value)
    if isinstance(value, compat.JaxprEqn):  # dead code elimination leaves one in the rule of a custom derivative
        return value.primitive, equation_params_key(value.primitive, value.params)
    if compat.is_unhashable(value):
        return "static", param_key(value.val)
    key = compat.callable_key(value, param_key) if compat.is_function(value) else bits_key(value)
    try:
        hash(key)
    except TypeError:
        return Identity(value)
    return key


def aval_key(aval: Any) -> Hashable:
    if isinstance(aval, compat.ShapedArray):
        return aval.shape, aval.dtype, aval.weak_type
    return aval


def equation_params_key(primitive: Any, params: dict[str, Any]) -> Hashable:
    """A key for the parameters of an equation, without the name of a jit."""
    if primitive in _CUSTOM_CALLS:  # their functions are slow to compare, and JAX often records the same `params`
        return _custom_params_keys.get_or_make(Identity(params), lambda: _params_key(primitive, params))
    return _params_key(primitive, params)


def _params_key(primitive: Any, params: dict[str, Any]) -> Hashable:
    ignored = "name" if primitive is compat.jit_p else None
    return tuple((name, param_key(params[name])) for name in sorted(params) if name != ignored)


_CUSTOM_CALLS = (compat.custom_jvp_call_p, compat.custom_vjp_call_p)
_custom_params_keys = Cache(1024)
_jaxpr_keys = Cache(4096, first=1024)


def jaxpr_key(jaxpr: Any) -> Key:
    """The canonical key of a jaxpr. Cached by identity, because JAX reuses jaxprs."""
    return _jaxpr_keys.get_or_make(Identity(jaxpr), lambda: _make_jaxpr_key(jaxpr))


def closed_jaxpr_key(closed: Any) -> Hashable:
    return jaxpr_key(closed.jaxpr), tuple(map(param_key, closed.consts))


def _make_jaxpr_key(jaxpr: Any) -> Key:
    numbers: dict[Any, int] = {}

    def number(var: Any) -> int:
        return numbers.setdefault(var, len(numbers))

    def atom(value: Any) -> Hashable:
        if isinstance(value, compat.Literal):
            return aval_key(value.aval), array_key(np.asarray(value.val))
        return number(value)

    inputs = [(number(var), aval_key(var.aval)) for var in (*jaxpr.constvars, *jaxpr.invars)]
    equations = []
    for eqn in jaxpr.eqns:
        params = equation_params_key(eqn.primitive, eqn.params)
        operands = tuple(map(atom, eqn.invars))
        equations.append((eqn.primitive, params, operands, tuple(map(number, eqn.outvars))))
    body = Key((len(jaxpr.constvars), tuple(inputs), tuple(equations)))
    return Key((body, tuple(map(atom, jaxpr.outvars))))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _digest(key: Key) -> str:
    return hashlib.sha256(_ADDRESS.sub("", repr(key)).encode()).hexdigest()[:16]


def _has_custom_vjp(jaxpr: Any) -> bool:
    return any(
        equation.primitive is compat.custom_vjp_call_p
        or any(map(_has_custom_vjp, compat.jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def _may_hang_or_call(jaxpr: Any) -> bool:
    """Whether a jaxpr calls Python, or has a loop that may never end."""
    return any(
        equation.primitive.name in ("while", "pure_callback", "ffi_call")
        or any(map(_may_hang_or_call, compat.jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


class Cell:
    """A cell type: fixed work on arrays, as a closed jaxpr without constants.

    Cells with equal keys are equal. `name` and `where` (file and line of the user's function) are those of the first
    subgraph with this jaxpr.
    """

    def __init__(self, key: Key, jaxpr: Any, name: str, where: str):
        self.key = key
        self.jaxpr = jaxpr
        self.name = name
        self.where = where

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Cell) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Cell({self.name} {self.digest[:8]})"

    @property
    def in_avals(self) -> list[Any]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[Any]:
        return self.jaxpr.out_avals

    @property
    def has_effects(self) -> bool:
        return bool(self.jaxpr.effects)

    @property
    def has_derivative(self) -> bool:
        """Whether a derivative can pass through this cell. True unless the class of the cell rules it out."""
        return True

    @cached_property
    def may_merge(self) -> bool:
        """Whether calls with equal operands may be merged into one call. Not for a cell with a `jax.custom_vjp` rule:
        the rule need not be linear (clipped gradients), so it must see the cotangent of each call, not their sum."""
        return not self.has_effects and not _has_custom_vjp(self.jaxpr.jaxpr)

    @cached_property
    def may_run_in_vain(self) -> bool:
        """Whether it may run on values that no sample has: it calls no Python, and ends for all values."""
        return not self.has_effects and not _may_hang_or_call(self.jaxpr.jaxpr)

    @property
    def body(self) -> Key:
        """The part of the key for inputs and equations, without the outputs."""
        return self.key.parts[0]  # type: ignore[index]

    @property
    def output_numbers(self) -> tuple[Hashable, ...]:
        """For each output, the number of its variable in the body; for a literal, its key."""
        return self.key.parts[1]  # type: ignore[index]

    @cached_property
    def digest(self) -> str:
        """A short hash of the key as text, the same in every process."""
        return _digest(self.key)

    @cached_property
    def body_digest(self) -> str:
        """A short hash of the body as text, the same in every process."""
        return _digest(self.body)

    def scope(self) -> AbstractContextManager[Any]:
        """A named scope: JAX's profiler shows the cell under the name of the user's function."""
        return jax.named_scope(self.name)

    def __call__(self, *operands: Any) -> Sequence[Any]:
        return jaxprs.run(self.jaxpr, operands)


class ReductionCell(Cell):
    """A reduction of any number of arrays of one shape and dtype. The number of arrays is not part of the cell.

    Its jaxpr is the reduction of one term. Only a sum has a derivative: a maximum or minimum of floats is recorded only
    under `jax.lax.stop_gradient`.

    Attributes:
        operation: "sum", "max" or "min".
    """

    def __init__(self, operation: str, aval: Any):
        term = compat.Var(aval)
        key = Key((Key((operation, aval_key(aval))), (0,)))
        super().__init__(key, compat.make_jaxpr([term], [term], [], operation), operation, "")
        self.operation = operation

    @property
    def has_derivative(self) -> bool:
        return self.operation == "sum"

    def __call__(self, *operands: Any) -> Sequence[Any]:
        if self.operation != "sum":
            extreme = functools.reduce(jax.lax.max if self.operation == "max" else jax.lax.min, operands)
            return [jax.lax.stop_gradient(extreme)]
        dtype = accumulator(operands[0].dtype)
        return [sum(x.astype(dtype) for x in operands).astype(operands[0].dtype)]  # type: ignore[union-attr]


def accumulator(dtype: Any) -> Any:
    """The dtype in which a sum is accumulated: float32 for shorter floats, as in `jnp.sum`."""
    return np.float32 if jax.numpy.issubdtype(dtype, np.inexact) and np.dtype(dtype).itemsize < 4 else dtype


_cells = Cache(4096, first=1024)


def reduction_cell(operation: str, shape: tuple[int, ...], dtype: Any) -> Cell:
    """The cell for reductions ("sum", "max" or "min") of values of this shape and dtype."""
    key = operation, shape, dtype
    return _cells.get_or_make(key, lambda: ReductionCell(operation, compat.make_aval(shape, dtype)))


def intern_cell(jaxpr: Any, name: str, where: str) -> Cell:
    """The cell of a closed jaxpr without constants."""
    key = _make_jaxpr_key(jaxpr.jaxpr)
    return _cells.get_or_make(key, lambda: Cell(key, jaxpr, name, where))


_wide_cells = Cache(1024)


def widest(cells: Sequence[Cell]) -> Cell:
    """A cell with all outputs of some cells with equal bodies.

    The recorder gives a cell only the outputs that its sample reads: only `h` at the root of a tree, `h` and `c` at an
    inner node. With all outputs, both are one type.
    """
    outputs = dict.fromkeys(out for cell in sorted(cells, key=lambda cell: cell.digest) for out in cell.output_numbers)
    for cell in cells:
        if len(cell.output_numbers) == len(outputs):
            return cell
    key = (cells[0].body, tuple(outputs))
    return _wide_cells.get_or_make(key, lambda: _widen(cells, list(outputs)))


def _widen(cells: Sequence[Cell], outputs: Sequence[Hashable]) -> Cell:
    first = cells[0]
    jaxpr = first.jaxpr.jaxpr
    variables = list(
        dict.fromkeys(
            (
                *jaxpr.invars,
                *(v for eqn in jaxpr.eqns for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, compat.Literal)),
            )
        )
    )
    atoms = []
    for out in outputs:
        if isinstance(out, int):
            atoms.append(variables[out])
        else:  # a literal, which has no number
            atoms.append(
                next(
                    atom
                    for cell in cells
                    for atom, key in zip(cell.jaxpr.jaxpr.outvars, cell.output_numbers, strict=True)
                    if key == out
                )
            )
    return intern_cell(compat.make_jaxpr(jaxpr.invars, atoms, jaxpr.eqns, first.name), first.name, first.where)
