"""Errors for functions that change shared arguments during recording: the changed part, and the remedy."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import jax

from jitbatch.util.errors import MutationError, mutation_error

_REMEDIES = {
    "Dropout": "Give it a random key of the sample in each call, `dropout(x, rngs=key)` with the key as a mapped "
    "argument, or switch it off with `model.eval()`.",
    "BatchNorm": "Statistics over samples are not known inside of one: use LayerNorm, compute the statistics outside "
    "on the stacked outputs, or use the running ones with `model.eval()`.",
}
"""Remedies, by Flax class."""


def is_flax_mutation(error: Exception) -> bool:
    """Whether an error comes from Flax, which checks that the trace of a variable is also the trace that changes it."""
    errors = sys.modules.get("flax.errors")
    return errors is not None and isinstance(error, errors.TraceContextError)


def flax_mutation(error: Exception, shared: Sequence[Any], sample: str) -> MutationError:
    """The error for a changed Flax module. It names the innermost module in the traceback."""
    module = _innermost_module(error.__traceback__)
    owner = next((part for part in shared if _is_module(part)), None)
    if owner is None:
        remedy = _REMEDIES.get(type(module).__name__)
        return mutation_error("a Flax module" if module is None else f"the {type(module).__name__}", sample, remedy)
    path = next((path for path, node in sys.modules["flax.nnx"].iter_graph(owner) if node is module), ())
    return _module_error(module, ".".join(map(str, path)), owner, True, sample)


def changed_argument(arg: Any, before: Sequence[Any], sample: str, is_shared: bool = True) -> MutationError:
    """The error for a changed argument. It names the first leaf that differs from the leaves before."""
    flat = jax.tree_util.tree_flatten_with_path(arg)[0]
    what = _described(arg, is_shared)
    if len(flat) != len(before):
        return mutation_error(what, sample)
    path = next((path for (path, after), leaf in zip(flat, before, strict=True) if after is not leaf), ())
    module, place = _submodule(arg, path)
    if module is not None:
        return _module_error(module, place, arg, is_shared, sample)
    return mutation_error(f"{what}, at `{jax.tree_util.keystr(path)}`," if path else what, sample)


def _module_error(module: Any, path: str, owner: Any, is_shared: bool, sample: str) -> MutationError:
    what = _described(owner, is_shared)
    name = type(module).__name__
    return mutation_error(f"the {name} at `{path}` in {what}" if path else what, sample, _REMEDIES.get(name))


def _described(arg: Any, is_shared: bool) -> str:
    return f"{'the shared' if is_shared else 'an'} argument of type {type(arg).__name__}"


def _submodule(arg: Any, path: Sequence[Any]) -> tuple[Any, str]:
    """The innermost Flax module on the path to a leaf, and the path to the module. None if the argument is not a
    module."""
    module, place = arg if _is_module(arg) else None, ""
    names: list[str] = []
    for key in path[:-1] if module is not None else ():  # the last entry of the path leads to the leaf
        arg = getattr(arg, key.name, None) if hasattr(key, "name") else _item(arg, key)
        names.append(str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", "?")))))
        if _is_module(arg):
            module, place = arg, ".".join(names)
    return module, place


def _item(arg: Any, key: Any) -> Any:
    try:
        return arg[getattr(key, "idx", getattr(key, "key", None))]
    except (TypeError, LookupError):
        return None


def _is_module(thing: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(thing, nnx.Module)


def _innermost_module(traceback: TracebackType | None) -> Any:
    """The module whose method raised an error."""
    found = None
    while traceback is not None:
        receiver = traceback.tb_frame.f_locals.get("self")
        found = receiver if _is_module(receiver) else found
        traceback = traceback.tb_next
    return found
