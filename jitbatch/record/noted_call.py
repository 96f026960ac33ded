"""The call of the user's function during recording, with notes on errors, and checks of its arguments."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jitbatch.record.arguments import Arguments, swapped
from jitbatch.record.mutation import changed_argument, flax_mutation, is_flax_mutation
from jitbatch.record.structure import Structure, describe_leaf
from jitbatch.util.errors import JitbatchError, QuestionError
from jitbatch.util.tracebacks import users_line_of, users_part


@contextmanager
def without_collections() -> Iterator[None]:
    """A context without Python's garbage collection.

    A recording frees its values when it ends. A collection during the recording would find all of them alive, and free
    none. Such collections took a third of the recording time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def note_wrong_arguments(error: TypeError, structure: Structure, index: int, arguments: Arguments) -> None:
    """Add a note on a likely mistake in the arguments, if the error suggests one."""
    if isinstance(error, JitbatchError):
        return
    if "Indexer must have integer" in str(error):
        leaves = jax.tree_util.tree_flatten_with_path(structure.sample)[0]
        for path, leaf in [(path, leaf) for path, leaf in leaves if isinstance(leaf, float | np.floating)][:1]:
            place = f"{arguments.mapped[path[0].idx].name}[{index}]{jax.tree_util.keystr(path[1:])}"
            error.add_note(f"jitbatch: {place} is the float {leaf!r}; an index, such as that of a word, is an integer")
    if told := swapped(arguments):
        error.add_note(f"jitbatch: {told}")


def call_noted(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shared: Sequence[Any], name: str
) -> Any:
    """The result of the user's function for a sample. Errors get notes with the name of the sample."""
    try:
        return fun(*args, **kwargs)
    except JitbatchError as error:
        if isinstance(error, QuestionError) and name not in str(error):  # raised without the name of a sample
            error.add_note(f"jitbatch: raised while {name} was recorded")
        error.__traceback__ = users_part(error.__traceback__)
        raise
    except Exception as error:
        if is_flax_mutation(error):
            raise flax_mutation(error, shared, name) from error
        if told := _wrong_await(error):
            raise QuestionError(f"{name} {told}: {error}") from error
        found = error
        if isinstance(error, SystemError) and _is_too_deep(error):
            found = RecursionError("maximum recursion depth exceeded").with_traceback(error.__traceback__)
        _add_notes(found, name)
        found.__traceback__ = users_part(found.__traceback__)
        if found is not error:
            raise found from error
        raise


def _wrong_await(error: Exception) -> str | None:
    """What a sample does wrong, if an error comes from a missing or a wrong `await`."""
    text = str(error)
    where = f"at {users_line_of(error)}"
    if isinstance(error, RuntimeError) and "no running event loop" in text:
        return f"awaits something of asyncio {where}. Inside a sample only `jitbatch.value(...)` can be awaited"
    if not isinstance(error, TypeError | AttributeError) or not any(
        name in text for name in ("coroutine", "Question'")
    ):
        return None
    return (
        f"uses the result of an asynchronous function, or `jitbatch.value(...)`, that is not awaited, {where}. Write "
        "`await f(...)`. An `async def` cannot be the body of a jit or of another transformation, which has no values"
    )


def _add_notes(error: Exception, name: str) -> None:
    """Add the name of the sample to an error, and a remedy for some error texts."""
    error.add_note(f"jitbatch: raised while {name} was recorded")
    if _is_too_deep(error):
        error.add_note(
            f"jitbatch: the recursion is too deep for Python's limit of {sys.getrecursionlimit()} calls, of which "
            "a decorated function takes several for each level. Raise it with `sys.setrecursionlimit`"
        )
    if "'Static'" in str(error):
        error.add_note("jitbatch: what is wrapped in a Static is its `.value`")
    if "PartitionSpec" in str(error) and jax.sharding.get_abstract_mesh().empty:
        error.add_note(
            "jitbatch: a sample is recorded without a mesh, and a batch runs with automatic axes: XLA decides how "
            "its values are sharded. Give a `jax.NamedSharding(mesh, spec)` in place of the PartitionSpec, which "
            "the plain function follows and a batch ignores, or leave it out"
        )


def array_leaves(part: Any, count: int) -> list[Any]:
    """The array leaves of a shared argument, which had `count` of them."""
    leaves = jax.tree.leaves(part)
    return leaves if len(leaves) == count else [leaf for leaf in leaves if describe_leaf(leaf) is not None]


def check_unchanged(shared: Sequence[Any], leaves: Sequence[Sequence[Any]], name: str) -> None:
    """Raise an error if shared arguments do not have these array leaves any more."""
    for part, before in zip(shared, leaves, strict=True):
        if list(map(id, array_leaves(part, len(before)))) != list(map(id, before)):
            raise changed_argument(part, before, name)


def _is_too_deep(error: BaseException | None) -> bool:
    """Whether an error is, or was caused by, too deep a recursion. Compiled code wraps it in a `SystemError`."""
    while error is not None and not isinstance(error, RecursionError):
        error = error.__cause__ or error.__context__
    return error is not None
