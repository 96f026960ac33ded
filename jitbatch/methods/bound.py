"""`BoundBatched`: a decorated method of an object."""

from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from jitbatch.inspect.check import Check
    from jitbatch.inspect.report import Report
    from jitbatch.methods.batched import Batched
    from jitbatch.plan.capacity import Capacity
    from jitbatch.plan.plan import Plan
    from jitbatch.plan.prefetch import Ahead
    from jitbatch.rollout.rollout import Rollout
    from jitbatch.serve.server import Server
    from jitbatch.util.caches import CacheInfo

P = ParamSpec("P")
R = TypeVar("R")


class BoundBatched(Generic[P, R]):
    """A decorated method bound to an object. The object is the shared argument."""

    def __init__(self, batched: "Batched[Concatenate[Any, P], R]", instance: Any):
        self._batched = batched
        self._instance = instance
        self.__module__ = batched.__module__

    # Other attributes are looked up on access: every access of the method creates a new object of this class.

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._batched.__doc__

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            return self._batched.__wrapped__.__get__(self._instance)
        if name == "_batched" or name not in self._batched._attributes:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._batched._attributes[name]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._batched(self._instance, *args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._batched)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._instance, self.__name__)

    def batch(self, *args: Any, **kwargs: Any) -> Any:
        """See `Batched.batch`; the object is the shared argument."""
        return self._batched.batch(self._instance, *args, **kwargs)

    def rollout(self, *args: Any, **kwargs: Any) -> "Rollout":
        """See `AsyncBatched.rollout`; the object is the shared argument."""
        return self._batched.rollout(self._instance, *args, **kwargs)  # type: ignore[attr-defined]

    def plan(self, *args: Any, **kwargs: Any) -> "Plan":
        """See `Batched.plan`; the object is the shared argument."""
        return self._batched.plan(self._instance, *args, **kwargs)

    def capacity(self, *args: Any, **kwargs: Any) -> "Capacity":
        """See `Batched.capacity`; the object is the shared argument."""
        return self._batched.capacity(self._instance, *args, **kwargs)

    def plans(self, *args: Any, **kwargs: Any) -> "Ahead[Plan]":
        """See `Batched.plans`; the object is the shared argument."""
        return self._batched.plans(self._instance, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> "Report":
        """See `Batched.explain`; the object is the shared argument."""
        return self._batched.explain(self._instance, *args, **kwargs)

    def check(self, *args: Any, **kwargs: Any) -> "Check":
        """See `Batched.check`; the object is the shared argument."""
        return self._batched.check(self._instance, *args, **kwargs)

    def serve(self, *args: Any, **kwargs: Any) -> "Server":
        """See `Batched.serve`; the object is the shared argument."""
        return self._batched.serve(self._instance, *args, **kwargs)

    def cache_info(self) -> "dict[str, CacheInfo]":
        """See `Batched.cache_info`."""
        return self._batched.cache_info()
