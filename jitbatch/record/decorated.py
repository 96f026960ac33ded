"""The call of a decorated function: recorded during a recording, and otherwise a plain call."""

from collections.abc import Callable, Hashable
from typing import Any

from jitbatch.core import choice
from jitbatch.record import compiled_calls
from jitbatch.record.recorder import Recorder
from jitbatch.util.compat import current_trace


class DecoratedInPython:
    """The base class of decorated functions, in Python. `Decorated` is this class, or an equivalent class of the
    compiled core.

    Attributes:
        __wrapped__: the undecorated function.
    """

    __wrapped__: Callable[..., Any]
    _key: Hashable  # identifies the function in the keys of known calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if type(trace) is Recorder:
            return trace.call(self.__wrapped__, self._key, args, kwargs)
        return self.__wrapped__(*args, **kwargs)


Decorated: type = choice.native.Decorated if compiled_calls.is_bound() else DecoratedInPython  # type: ignore[union-attr]
