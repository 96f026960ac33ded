"""The methods of a decorated function that another transformation wraps.

`jax.jit`, `nnx.jit`, `jax.vmap` and others copy the attributes of a function to their result, but not the methods of
its class. So a decorated function has one attribute for each of its methods: a function that raises an error and says
in which order to decorate. On the decorated function itself the methods still work, because they are properties of the
class, and Python looks up properties before instance attributes.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn, TypeVar

from jitbatch.util.errors import JitbatchError
from jitbatch.util.sites import describe_function

F = TypeVar("F", bound=Callable[..., Any])


def unshadowed(method: F) -> F:
    """A method as a property, so that an instance attribute of the same name does not hide it."""
    found: Any = property(functools.partial(MethodType, method), doc=method.__doc__)
    return found


def copied_methods(fun: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Callable[..., NoReturn]]:
    """For each method name, the attribute that raises an error on the result of another transformation."""
    return {name: functools.partial(_refuse, fun, name) for name in names}


def _refuse(fun: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise JitbatchError(
        f"`.{name}` is asked of what another transformation (nnx.jit, jax.jit, jax.vmap, jax.grad, ...) made of "
        f"{describe_function(fun)}, after it was decorated with jitbatch. That one takes one sample, and knows nothing "
        f"of batches. Leave the outer decorator out, and call `.{name}` on the decorated function; to compile a train "
        "step, decorate the function that calls `.batch` with jitbatch.jit (of a Flax module, "
        "`jitbatch.jit(step, jit=nnx.jit)`)"
    )
