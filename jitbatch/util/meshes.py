"""Meshes with explicit axes (the default of `jax.make_mesh`): a batch is recorded without a mesh and run with automatic
axes.

On such a mesh the type of an array says how it is sharded, and every operation checks the types of its operands. But a
cell does not depend on the shardings of its operands, and the rows of an arena come from operations of many types. So
XLA decides how rows are sharded, as in `jax.sharding.auto_axes`. Arguments are cast on entry, results on return. The
cotangents of arguments have the types of the arguments.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec, get_abstract_mesh, use_abstract_mesh

from jitbatch.util import compat

P = ParamSpec("P")
T = TypeVar("T")


def without_explicit_mesh(fun: Callable[P, T]) -> Callable[P, T]:
    """A function that runs without a mesh, if the current mesh has explicit axes; otherwise the current mesh stays."""

    @functools.wraps(fun)
    def run_without(*args: P.args, **kwargs: P.kwargs) -> T:
        if not compat.explicit_axes(get_abstract_mesh()):
            return fun(*args, **kwargs)
        with use_abstract_mesh(compat.EMPTY_MESH):
            return fun(*args, **kwargs)

    return run_without


def mesh_of_types(avals: Sequence[Any]) -> AbstractContextManager[Any]:
    """A context with the mesh of the explicit axes in `avals`; without such axes the current mesh stays."""
    meshes = [aval.sharding.mesh for aval in avals if compat.is_explicit(aval)]
    return use_abstract_mesh(meshes[0] if meshes else get_abstract_mesh())


def explicit_mesh(value: Any) -> Any:
    """The mesh of an array, if it has explicit axes; otherwise None."""
    if not isinstance(value, jax.Array):
        return None
    aval = jax.typeof(value)
    return aval.sharding.mesh if compat.is_explicit(aval) else None


def cast(values: T) -> T:
    """A pytree with automatic axes in place of explicit ones."""

    def leaf_cast(leaf: Any) -> Any:
        mesh = explicit_mesh(leaf)
        return leaf if mesh is None else _reshard(leaf, compat.automatic_mesh(mesh))

    return jax.tree.map(leaf_cast, values)


def run(fun: Callable[..., Any], *operands: Any) -> Any:
    """`fun(*operands)` with automatic axes. On a mesh with explicit axes, results are replicated."""
    mesh = _mesh_of(operands)
    if mesh is None:
        return fun(*operands)
    automatic = compat.automatic_mesh(mesh)

    def cast_in(leaf: Any) -> Any:
        # Tracers without a mesh are cast as well, so that their cotangents have no mesh either.
        return _reshard(leaf, automatic) if compat.is_tracer(leaf) or explicit_mesh(leaf) is not None else leaf

    def cast_out(leaf: Any) -> Any:
        is_on_mesh = isinstance(leaf, jax.Array) and not jax.typeof(leaf).sharding.mesh.empty
        return _reshard(leaf, mesh) if is_on_mesh else leaf

    with use_abstract_mesh(automatic):
        results = fun(*jax.tree.map(cast_in, operands))
    return jax.tree.map(cast_out, results)


def _reshard(array: Any, mesh: Any) -> Any:
    return jax.reshard(array, NamedSharding(mesh, PartitionSpec()))


def _mesh_of(operands: Any) -> Any:
    """The current mesh, or without one the mesh of an operand; None if that mesh has no explicit axes."""
    current = get_abstract_mesh()
    if not current.empty:
        return current if compat.explicit_axes(current) else None
    return next(filter(None, map(explicit_mesh, jax.tree.leaves(operands))), None)
