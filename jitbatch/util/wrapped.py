"""What becomes of the methods of a decorated function where something else is made of it.

`jax.jit`, `nnx.jit`, `jax.vmap` and others copy the attributes of a function to what they make of it, but not the
methods of its class. So a decorated function has, among its attributes, one under the name of each method: an error
that says in which order to decorate. The function itself has its methods, since properties come before attributes.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn, TypeVar

from jitbatch.util.errors import JitbatchError
from jitbatch.util.sites import describe_function

F = TypeVar("F", bound=Callable[..., Any])


def own(method: F) -> F:
    """A method that attributes of the same name do not hide."""
    found: Any = property(functools.partial(MethodType, method), doc=method.__doc__)
    return found


def copied_methods(fun: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Callable[..., NoReturn]]:
    """What stands in the place of methods on what other functions make of a decorated one."""
    return {name: functools.partial(_refuse, fun, name) for name in names}


def _refuse(fun: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise JitbatchError(
        f"`.{name}` is asked of what another transformation (nnx.jit, jax.jit, jax.vmap, jax.grad, ...) made of "
        f"{describe_function(fun)}, after it was decorated with jitbatch. That one takes one sample, and knows nothing "
        f"of batches. Leave the outer decorator out, and call `.{name}` on the decorated function; to compile a train "
        "step, decorate the function that calls `.batch` with jitbatch.jit (of a Flax module, "
        "`jitbatch.jit(step, jit=nnx.jit)`)"
    )
