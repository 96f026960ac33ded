"""A random key for each node of a sample, from one key for each sample."""

from typing import Any

import jax

from jitbatch.record.recorder import Recorder
from jitbatch.util import compat
from jitbatch.util.errors import MutationError


class Keys:
    """Generates random keys, a new one in every call: the key of a sample, with a counter folded in.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jitbatch import Keys, jitbatch
    >>> @jitbatch
    ... def cell(w, key, x):
    ...     return jnp.where(jax.random.bernoulli(key), w * x, 0.0)
    >>> @jitbatch
    ... def total(w, key, xs):
    ...     keys = Keys(key)
    ...     return sum(cell(w, keys(), x) for x in xs)
    >>> samples = [(1.0, 2.0, 3.0), (4.0,)]
    >>> batch = total.batch(2.0, list(jax.random.split(jax.random.key(0), 2)), samples)

    Create one `Keys` in each sample, from a key argument of the sample. Pass its keys to decorated functions. Do not
    pass the `Keys` object itself: the body of a decorated function does not run in every call, so it could not count.
    `Keys` is plain Python, so the plain loop gets the same keys.

    Args:
        key: a key of `jax.random.key` or `jax.random.PRNGKey`.
    """

    def __init__(self, key: Any):
        self._key = key
        self._count = 0
        self._made_in = _running()

    def __call__(self) -> Any:
        running = _running()
        if running != self._made_in:
            where = "" if running is None else f", while {running[0].sample} was recorded"
            raise MutationError(
                f"jitbatch.Keys was called in another function than the one that made it{where}. It counts its calls, "
                "but the body of a decorated function does not run in every call, so the count would be wrong. Make it "
                "in the sample, from the sample's key, and pass what it gives to decorated functions: "
                "`cell(params, keys(), x)`. A decorated function can make one of its own, from a key that it is given"
            )
        key = jax.random.fold_in(self._key, self._count)
        self._count += 1
        return key

    def __repr__(self) -> str:
        return f"Keys({self._key}, {self._count} taken)"


def _running() -> tuple[Recorder, int] | None:
    """The current recording, and the decorated call whose body runs."""
    trace: Any = compat.current_trace()
    while trace is not None and not isinstance(trace, Recorder):
        trace = getattr(trace, "parent_trace", None)
    return None if trace is None else (trace, trace.scope)
