"""Everything that JAX may change between releases, in one place. Checked with jax 0.10.2.

Only public names are imported. Their signatures may change, and so may the attributes of the objects that JAX passes
to a tracer. Each entry says which release it describes, and why it is here.
"""

import operator
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jax import core
from jax.extend import core as jex
from jax.extend import linear_util
from jax.extend.core import primitives
from jax.interpreters import ad, partial_eval

from jitbatch.util.caches import memoised

ShapedArray = core.ShapedArray
Trace = core.Trace
Tracer = core.Tracer
Jaxpr = jex.Jaxpr
ClosedJaxpr = jex.ClosedJaxpr
Literal = jex.Literal
Var = jex.Var
eval_jaxpr = core.eval_jaxpr
jaxpr_as_fun = jex.jaxpr_as_fun
JaxprEqn = jex.JaxprEqn
jaxprs_in_params = jex.jaxprs_in_params
set_current_trace = jex.set_current_trace
eval_context = core.eval_context

# New in jax 0.10, and not public: the primitive of `jnp.stack`.
stack_p = jax.make_jaxpr(lambda x: jax.numpy.stack([x, x]))(0.0).eqns[-1].primitive

# jax 0.10: the primitives that make keys are public, these two are not. Nothing is computed here, since
# `jax.distributed.initialize` has to come before the first computation, but may come after the import.
random_wrap_p, _, random_unwrap_p = (
    equation.primitive
    for equation in jax.make_jaxpr(jax.random.fold_in)(jax.ShapeDtypeStruct((2,), np.uint32), np.uint32(0)).eqns
)

# `pjit_p` was renamed to `jit_p` in jax 0.7.
jit_p = primitives.jit_p
custom_jvp_call_p = primitives.custom_jvp_call_p
custom_vjp_call_p = primitives.custom_vjp_call_p

# By name, because jax 0.10 does not export all of them. If JAX renames one, it counts as costly; nothing else changes.
CALLS = frozenset(("jit", "custom_jvp_call", "custom_vjp_call", "remat2"))
LOOKUPS = frozenset(("gather", "dynamic_slice"))
CHEAP = frozenset(
    """
    abs add add_any and argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp complex concatenate conj
    convert_element_type copy device_put div dynamic_update_slice eq eq_to floor ge gt imag integer_pow iota is_finite
    le le_to lt lt_to max min mul name ne neg not optimization_barrier or pad random_unwrap random_wrap real reduce_and
    reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum reduce_xor rem reshape rev round rsqrt
    select_n shift_left shift_right_arithmetic shift_right_logical sign slice split sqrt square squeeze stop_gradient
    sub transpose xor
    """.split()  # noqa: SIM905
)
"""Arithmetic, comparisons, reductions and data movement: cheap in comparison to a matmul, a loop or an exponential."""

JAX_FOLDERS = tuple(os.path.dirname(module.__file__) + os.sep for module in (jax, np) if module.__file__)


def is_tracer(value: Any) -> bool:
    return isinstance(value, Tracer)


def modes_of(value: Any) -> Iterator[str]:
    """The modes of the differentiations around a value, `"forward"` or `"reverse"`, the innermost first.

    Differentiations outside of a jit are not visible. jax 0.10: a tracer holds its inner value as `primal`, that of
    vmap as `val`. `jax.linearize` and reverse mode use one class of tracer; its trace has `is_vjp`.
    """
    while is_tracer(value):
        if isinstance(value, ad.JVPTracer):
            yield "forward"
        elif hasattr(value._trace, "is_vjp"):
            yield "reverse" if value._trace.is_vjp else "forward"
        value = getattr(value, "primal", getattr(value, "val", None))


def is_in_reverse_mode_alone(value: Any) -> bool:
    """Whether reverse-mode differentiation, once, is the only transformation of a value."""
    return list(modes_of(value)) == ["reverse"] and not is_tracer(getattr(value, "primal", value))


def typed_number(leaf: Any) -> type | None:
    """The Python type of a number with a dtype; None for every other leaf. jax 0.10: `jax.vjp`, and `jax.grad` with
    `allow_int`, pass Python integers to a function as `TypedInt`, a subclass of `int` that is not public."""
    cls = next((cls for cls in (int, float, complex) if isinstance(leaf, cls)), None)
    return cls if hasattr(leaf, "dtype") else None


def is_of_jit(value: Any) -> bool:
    """Whether a value, beneath differentiations and vmaps, is a tracer of a jit that is being compiled. jax 0.10: the
    trace of such a tracer has a `frame` of equations."""
    while is_tracer(value) and not hasattr(value._trace, "frame"):
        value = getattr(value, "primal", getattr(value, "val", None))
    return is_tracer(value)


def primal_of(value: Any) -> Any:
    """The value that is differentiated, in place of its tracer. jax 0.10: such tracers hold it as `primal`."""
    while is_tracer(value) and hasattr(value, "primal"):
        value = value.primal
    return value


def transformation_of(value: Any) -> str:
    """The innermost transformation that made a tracer, for errors. jax 0.10: the tracer of a differentiation has a
    `primal`, that of a vmap a `batch_dim`."""
    if hasattr(value, "primal"):
        return "jax.grad or another differentiation"
    return "jax.vmap" if hasattr(value, "batch_dim") else "jax.jit or a body of jax.lax"


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes that a value varies over. jax 0.10 renamed `vma` of jax 0.9 to `manual_axis_type`."""
    return jax.typeof(value).manual_axis_type.varying if is_tracer(value) else frozenset()


def varying_struct(aval: Any, axes: frozenset[str]) -> jax.ShapeDtypeStruct:
    """The struct of a value of this aval that varies over mesh axes. jax 0.10: such a struct needs the mesh as well."""
    mesh = jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec())
    varying = jax.sharding.ManualAxisType(varying=axes)
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=mesh, manual_axis_type=varying
    )


def struct_of(aval: Any) -> jax.ShapeDtypeStruct:
    """The struct of a value of this aval that varies over no mesh axes. Explicit axes stay in its type."""
    if not is_explicit(aval):
        return varying_struct(aval, frozenset())
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=aval.sharding)


EMPTY_MESH = jax.sharding.AbstractMesh((), ())


def explicit_axes(mesh: Any) -> tuple[str, ...]:
    """The axes of an abstract mesh that are part of the types of arrays; new in jax 0.7."""
    return tuple(mesh.explicit_axes)


def typeof(value: Any) -> Any:
    """The type of an array, without the explicit axes of a mesh."""
    return without_explicit_axes(jax.typeof(value))


def without_explicit_axes(aval: Any) -> Any:
    return make_aval(aval.shape, aval.dtype, aval.weak_type) if is_explicit(aval) else aval


def is_explicit(aval: Any) -> bool:
    """Whether an aval has explicit axes in its sharding. jax 0.10: avals of references and tokens have no sharding."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and bool(explicit_axes(sharding.mesh))


RESHARDINGS = frozenset(("reshard", "sharding_constraint"))
"""Primitives that only change a sharding. By name: jax 0.10 does not export them."""


def is_explicit_sharding(param: Any) -> bool:
    """Whether a parameter of an equation names explicit axes."""
    return isinstance(param, jax.sharding.NamedSharding) and bool(explicit_axes(param.mesh.abstract_mesh))


def names_explicit_axes(equation: Any) -> bool:
    """Whether a parameter of an equation names explicit axes, or is a jaxpr that was traced with explicit axes."""
    params = equation.params
    return any(map(is_explicit_sharding, params.values())) or any(map(has_explicit_axes, jaxprs_in_params(params)))


def has_explicit_axes(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr was traced with arrays on a mesh with explicit axes. jax 0.10: its equations keep that mesh."""
    atoms = (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars)
    return any(is_explicit(atom.aval) for atom in atoms) or any(map(names_explicit_axes, jaxpr.eqns))


def automatic_mesh(mesh: Any) -> Any:
    """An abstract mesh with automatic axes in place of explicit ones."""
    return mesh.update_axis_types(dict.fromkeys(explicit_axes(mesh), jax.sharding.AxisType.Auto))


def is_float(value: Any) -> bool:
    """Whether an array or aval is floating-point or complex, so that it can have a derivative."""
    return jax.numpy.issubdtype(value.dtype, jax.numpy.inexact)


def is_prng_key(dtype: Any) -> bool:
    """Whether a dtype is a dtype of typed PRNG keys. NumPy has no such dtype."""
    return jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


KEY_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


def dtype_named(name: str) -> Any:
    """The dtype whose `str` is `name`, dtypes of typed PRNG keys included."""
    return key_named(name).dtype if name.startswith("key<") else jax.numpy.dtype(name)


def key_named(name: str) -> Any:
    """An arbitrary typed PRNG key whose dtype has the `str` `name`."""
    keys = [jax.random.key(7, impl=impl) for impl in KEY_IMPLEMENTATIONS]
    return next(key for key in keys if str(key.dtype) == name)


def node_kinds(treedef: Any) -> int:
    """A hash of the classes of a treedef's nodes and of their numbers of children. jax 0.10: the hash of a treedef
    depends on nothing else. To compare treedefs takes three times as long."""
    return hash(treedef)


def keys_of(words: Any, dtype: Any) -> Any:
    """Typed PRNG keys of a dtype, from their key data."""
    impl = next(impl for impl in KEY_IMPLEMENTATIONS if jax.random.key(0, impl=impl).dtype == dtype)
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=impl)


def device_memory() -> int:
    """The memory for arrays in bytes. jax 0.10: a CPU has no `memory_stats`; there it is the machine's memory."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    names = getattr(os, "sysconf_names", {})
    known = "SC_PAGE_SIZE" in names and "SC_PHYS_PAGES" in names
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 2**40


def flatten_one_level(node: Any) -> tuple[list[Any], Any] | None:
    """The children and the auxiliary data of a pytree node; None for a leaf. jax 0.10: (children, data)."""
    flat = jax.tree_util.default_registry.flatten_one_level(node)
    return None if flat is None else (list(flat[0]), flat[1])


def children(node: Any) -> Sequence[Any] | None:
    """The children of a pytree node; None for a leaf."""
    flat = flatten_one_level(node)
    return None if flat is None else flat[0]


def unflatten_one_level(cls: type, about: Any, count: int) -> Callable[[Sequence[Any]], Any]:
    """A function from `count` children to a pytree node of class `cls` with the auxiliary data `about`. jax 0.10: if
    the class is not registered with JAX, `from_node_data_and_children` raises a RuntimeError."""
    leaf = jax.tree.structure(0)
    registry = jax.tree_util.default_registry
    tree = jax.tree_util.PyTreeDef.from_node_data_and_children(registry, (cls, about), [leaf] * count)
    return tree.unflatten


current_trace: Callable[[], Trace] = partial(jex.find_top_trace, ())
"""The current trace, which receives operations. jax 0.10: `find_top_trace` ignores its argument; it takes 0.1 us,
`take_current_trace` 1.5 us."""


def trace_state() -> Any:
    """An object whose `value` is the current trace. The compiled core reads it, which takes a tenth of `current_trace`.

    jax 0.10: this is what `find_top_trace` itself reads; it has no public name. Raises if it is not that any more.
    """
    state = jex.find_top_trace.__globals__["trace_state_strong_ref"]
    probe = Trace()
    with set_current_trace(probe):
        if state.value is not probe:
            raise LookupError("`trace_state_strong_ref` is not the current trace")
    if state.value is not current_trace():
        raise LookupError("`trace_state_strong_ref` is not the current trace")
    return state


def is_compiling() -> bool:
    """Whether the current trace belongs to a jit, also below differentiations. jax 0.10: the trace of a jit has a
    `frame`, the trace of a differentiation a `parent_trace`."""
    trace = current_trace()
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def _settings(_: Any) -> object:
    return object()


_settings_of = linear_util.cache(_settings)
_probe = linear_util.wrap_init(object, debug_info=jex.DebugInfo("jitbatch", "settings", (), ()))


def trace_context() -> Any:
    """An object that identifies the JAX settings that influence tracing: equal settings give the same object.

    jax 0.10: a cache of `linear_util` has all of these settings in its keys (x64, matmul precision, promotion rules,
    ...), as JAX's own trace cache. A look-up takes 2 us.
    """
    return _settings_of(_probe)


def avals_of(leaves: Sequence[Any]) -> list[Any] | None:
    """The avals of JAX's arrays and tracers; None if a leaf is something else. jax 0.10: both have the attribute
    `aval`; `jax.typeof` takes ten times as long to find it."""
    try:
        return list(map(_aval, leaves))
    except AttributeError:
        return None


_aval = operator.attrgetter("aval")


def make_aval(shape: Sequence[int], dtype: Any, weak_type: bool = False) -> ShapedArray:
    return ShapedArray(tuple(shape), dtype, weak_type=weak_type)


def abstract_eval(primitive: Any, avals: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], Any]:
    """Output avals and effects of one primitive. jax 0.10: `abstract_eval` returns (avals, effects)."""
    out, effects = primitive.abstract_eval(*avals, **params)
    return (list(out) if primitive.multiple_results else [out]), effects


def make_equation(
    inputs: Sequence[Any], outputs: Sequence[Any], primitive: Any, params: dict[str, Any], effects: Any
) -> Any:
    return jex.new_jaxpr_eqn(list(inputs), list(outputs), primitive, params, effects)


def evaluate(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of an equation. jax 0.10: `get_bind_params` returns all keyword arguments of `bind`."""
    outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def make_jaxpr(inputs: Sequence[Any], outputs: Sequence[Any], equations: Sequence[Any], name: str) -> ClosedJaxpr:
    """A closed jaxpr without constants. jax 0.10 needs a `DebugInfo` with one name for each input and output."""
    effects = frozenset().union(*(eqn.effects for eqn in equations)) if equations else jex.no_effects
    debug = jex.DebugInfo("jitbatch", name, ("",) * len(inputs), ("",) * len(outputs))
    return ClosedJaxpr(Jaxpr([], list(inputs), list(outputs), list(equations), effects, debug), [])


def with_outputs(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """A closed jaxpr with only its first `count` outputs."""
    jaxpr = closed.jaxpr
    shortened = make_jaxpr(jaxpr.invars, jaxpr.outvars[:count], jaxpr.eqns, "sample").jaxpr
    return ClosedJaxpr(shortened.replace(constvars=jaxpr.constvars), closed.consts)


def dead_code_eliminated(jaxpr: Jaxpr, used_outputs: Sequence[bool]) -> tuple[Jaxpr, list[bool]]:
    return partial_eval.dce_jaxpr(jaxpr, list(used_outputs))


def trace_custom_call(
    primitive: Any, functions: Sequence[Any], avals: Sequence[Any], params: dict[str, Any]
) -> ClosedJaxpr:
    """The one-equation jaxpr of a custom_jvp or custom_vjp call. jax 0.10 takes the functions as `subfuns`."""

    def bind(*args: Any) -> Any:
        return primitive.bind(*args, subfuns=tuple(functions), **params)

    return jax.make_jaxpr(bind)(*(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals))


def stored_results(functions: Sequence[Any]) -> list[list[Any]]:
    """The contents of the stores of a custom call's functions: the trees of their results. jax 0.10 fills the `stores`
    of a wrapped function when it traces the function, and reads them after the call."""
    return [[_content(store) for store in getattr(fun, "stores", ())] for fun in functions]


def _content(store: Any) -> Any:
    try:
        return None if store is None else store.val
    except Exception:  # the store is empty; the class of this exception is not public
        return None


def store_results(functions: Sequence[Any], stored: list[list[Any]]) -> None:
    """Fill the stores of functions with `stored_results` of equal functions, because JAX did not trace these."""
    for fun, contents in zip(functions, stored, strict=True):
        for store, content in zip(getattr(fun, "stores", ()), contents, strict=True):
            if content is not None:
                store.store(content)


def defined_in_jax(filename: str | None) -> bool:
    return filename is None or filename.startswith(JAX_FOLDERS)


@memoised(4096)
def defined_in_network_library(filename: str) -> bool:
    """Whether code belongs to a library of network layers. The user knows the line that calls the layer."""
    modules = (sys.modules.get(name) for name in ("flax", "equinox", "haiku", "optax"))
    folders = [os.path.dirname(module.__file__) + os.sep for module in modules if module and module.__file__]
    return filename.startswith(tuple(folders))


def is_users_jit(params: dict[str, Any]) -> bool:
    """Whether a `jit` equation comes from the user's code, not from a jit inside jnp or jax.nn."""
    return not defined_in_jax(params["jaxpr"].jaxpr.debug_info.func_filename)


def is_function(value: Any) -> bool:
    return callable(value) or type(value).__name__ == "WrappedFun"


_thread = threading.local()


def callable_key(fun: Any, param_key: Callable[[Any], Hashable]) -> Hashable:
    """A key for the Python functions that JAX keeps in a jaxpr: the rules of custom derivatives.

    JAX wraps a rule anew each time it traces it, so by identity no two calls of `jax.nn.relu` would be equal.
    Functions have equal keys when their code, their defaults and their closures are equal, and the globals that they
    name are equal (functions, classes and modules by identity, other values by `param_key`). The mutable stores and
    memo tables in JAX's own wrappers are results of the rule, not part of it; the key leaves them out.
    """
    visiting: list[Any] = _thread.__dict__.setdefault("visiting", [])
    for depth, other in enumerate(reversed(visiting)):
        if other is fun:  # functions that refer to each other
            return "visiting", depth
    visiting.append(fun)
    try:
        return _callable_key(fun, param_key)
    finally:
        visiting.pop()


def _callable_key(fun: Any, param_key: Callable[[Any], Hashable]) -> Hashable:
    if type(fun).__name__ == "WrappedFun":
        transforms = tuple((callable_key(gen, param_key), param_key(args)) for gen, args in fun.transforms)
        return "wrapped", callable_key(fun.f, param_key), transforms
    if isinstance(fun, FunctionType):
        in_jax = defined_in_jax(fun.__code__.co_filename)
        contents = []
        for cell in fun.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # a name that is not bound yet, such as the name of the function itself
                contents.append("unbound")
                continue
            contents.append("store" if in_jax and _is_store(content) else param_key(content))
        defaults = param_key(fun.__defaults__), param_key(fun.__kwdefaults__)
        named = () if in_jax else tuple(map(_global_key(fun, param_key), _names_in(fun.__code__)))
        return "function", fun.__code__, defaults, tuple(contents), named
    if hasattr(fun, "func") and hasattr(fun, "args"):  # functools.partial
        return "partial", callable_key(fun.func, param_key), param_key(fun.args), param_key(fun.keywords)
    return ("store",) if _is_store(fun) else ("object", fun)


def is_unhashable(value: Any) -> bool:
    """Whether a value is JAX's wrapper of an argument in `nondiff_argnums`. jax 0.10: the class is `Unhashable`. Its
    instances are equal to nothing, so without unwrapping no two calls would be equal."""
    return type(value).__name__ == "Unhashable" and hasattr(value, "val")


def _names_in(code: CodeType) -> list[str]:
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names.update(_names_in(const))
    return sorted(names)


def _global_key(fun: FunctionType, param_key: Callable[[Any], Hashable]) -> Callable[[str], Hashable]:
    def key(name: str) -> Hashable:
        value = fun.__globals__.get(name)
        return ("is", value) if isinstance(value, FunctionType | type | ModuleType) else param_key(value)

    return key


def _is_store(content: Any) -> bool:
    return isinstance(content, dict | Trace) or type(content).__name__ in ("object", "Store", "EqualStore")


# Processes. jax 0.10: the client of the coordination service, which `jax.distributed.initialize` starts, is not public.
# It is the one private name of JAX that this package uses. A collective operation of devices is no substitute: in a
# planning thread, it could come before a step in one process and after it in another, and both would wait for ever.


def _coordination() -> Any:
    from jax._src import distributed

    client = distributed.global_state.client
    if client is None:
        raise RuntimeError("the devices belong to several processes, but `jax.distributed.initialize` was not called")
    return client


def send(key: str, text: str) -> None:
    """Stores a text under a key for all processes."""
    _coordination().key_value_set_bytes(key, text.encode(), allow_overwrite=True)


def received(folder: str) -> dict[str, str]:
    """Returns all texts whose keys begin with `folder`, by the rest of their keys."""
    found = _coordination().key_value_dir_get_bytes(folder)
    return {key.rpartition("/")[2]: text.decode() for key, text in found}


def forget(key: str) -> None:
    """Removes the text under a key."""
    _coordination().key_value_delete(key)


def wait_for_processes(name: str, seconds: float, processes: Sequence[int]) -> None:
    """Waits until each of some processes has called this with one name; all call it as often.

    Raises:
        jax.errors.JaxRuntimeError: a process has failed, or has not come in time.
    """
    _coordination().wait_at_barrier(name, int(1000 * seconds), list(processes))
