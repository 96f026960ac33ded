"""What a call of a decorated function does: it is recorded if a sample is recorded, and otherwise runs the function."""

from collections.abc import Callable, Hashable
from typing import Any

from jitbatch.core import choice
from jitbatch.record import compiled_calls
from jitbatch.record.recorder import Recorder
from jitbatch.util.compat import current_trace


class DecoratedInPython:
    """The base class of decorated functions. `Decorated` is this class, or one of the compiled core that does what
    this one does.

    Attributes:
        __wrapped__: the function that is decorated.
    """

    __wrapped__: Callable[..., Any]
    _key: Hashable  # of the function, in the keys of known calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if type(trace) is Recorder:
            return trace.call(self.__wrapped__, self._key, args, kwargs)
        return self.__wrapped__(*args, **kwargs)


Decorated: type = choice.native.Decorated if compiled_calls.is_bound() else DecoratedInPython  # type: ignore[union-attr]
