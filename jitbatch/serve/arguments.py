"""The arguments of a served function: shared arguments come once, the others with each request."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jitbatch.plan.recorded import Call
from jitbatch.record.arguments import Arguments, Part, are_shared, take_apart
from jitbatch.record.shared_arguments import SharedArguments, shared_difference
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError, PlanError


@dataclass(frozen=True)
class Given:
    """The mapped arguments of one request; or those of a batch, as sequences.

    Attributes:
        args: the positional arguments in the order of the signature, without the shared ones.
        kwargs: the arguments by name.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> tuple[int, tuple[str, ...]]:
        """The form of a request. Requests of one form can be batched together."""
        return len(self.args), tuple(self.kwargs)

    @property
    def sample(self) -> Any:
        """The sample for `batch_size_fn`: the argument, or a tuple of several arguments."""
        parts = (*self.args, *self.kwargs.values())
        return parts[0] if len(parts) == 1 else parts

    def split(self) -> list["Given"]:
        """Returns the requests of a batch."""
        rows = list(zip(*self.args, *self.kwargs.values(), strict=True))
        count = len(self.args)
        return [Given(row[:count], dict(zip(self.kwargs, row[count:], strict=True))) for row in rows]


class Shared(NamedTuple):
    """The shared arguments of a server, as a snapshot.

    Attributes:
        objects: the objects by name.
        arguments: their leaves and structure. NumPy arrays are copied to the device.
    """

    objects: dict[str, Any]
    arguments: SharedArguments

    @property
    def snapshot(self) -> dict[str, Any]:
        """The objects, with the arrays of the snapshot."""
        return dict(zip(self.objects, self.arguments.rebuild(self.arguments.leaves), strict=True))

    @property
    def parts(self) -> Arguments:
        """The names of the shared arguments, for errors."""
        return Arguments([Part(name, None, None) for name in self.objects], (), 0)

    def check_same(self, name: str, before: "Shared") -> None:
        """Raises `PlanError` unless these differ from the shared arguments `before` only in their values."""
        old, new = before.arguments.key, self.arguments.key
        if old != new:
            raise PlanError(
                f"the new shared arguments of {name} differ in structure, shape or dtype from those that it is served "
                f"with: {shared_difference(old, new, self.parts)}. Make a new server for these"
            )


class ServedArguments:
    """The signature of a served function.

    Args:
        name: the name of the function, for errors.
        signature: its signature.
        in_axes, is_method: as for `take_apart`.
    """

    def __init__(self, name: str, signature: inspect.Signature, in_axes: Any, is_method: bool):
        self.name = name
        self._signature = signature
        self._is_method = is_method
        self._is_shared = are_shared(signature, in_axes, is_method)
        self._names = [one for one, is_shared in self._is_shared.items() if is_shared]
        # Each sample is one object, so the only axis is that of the requests.
        axes = [None if is_shared else 0 for is_shared in self._is_shared.values()]
        self._in_axes = None if in_axes is None else tuple(axes[is_method:])

    def shared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shared:
        """Returns the shared arguments of a call of `.serve` or `.update`."""
        values = dict(zip(self._names, args, strict=False)) | dict(kwargs)
        parameters = self._signature.parameters
        missing = [n for n in self._names if n not in values and parameters[n].default is inspect.Parameter.empty]
        if missing or not values.keys() <= set(self._names) or len(values) != len(args) + len(kwargs):
            raise ArgumentError(
                f"a server of {self.name} is given the shared arguments ({', '.join(self._names)}) alone; the other "
                f"arguments of {self._signature} come with each request"
            )
        objects = {name: values[name] for name in self._names if name in values}
        shared = SharedArguments(tuple(objects.values()))
        if any(map(compat.is_tracer, shared.leaves)):
            raise ArgumentError(
                f"{self.name} cannot be served with values of an outer JAX transformation (jax.grad, jit, vmap, ...), "
                "which a server outlives. Make the server outside of it"
            )
        given = Shared(objects, shared)
        shared.check_data(given.parts)
        shared.leaves = [jnp.array(leaf) if type(leaf) is np.ndarray else leaf for leaf in shared.leaves]
        return given

    def check(self, given: Given) -> None:
        """Raises `ArgumentError` if the arguments of a request are not those of a sample."""
        args, kwargs = self.merged(dict.fromkeys(self._names), given)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{error}; {self._expected}") from None
        if not bound.kwargs.keys().isdisjoint(self._names):
            raise ArgumentError(f"an argument before a shared one is left out; {self._expected}")

    def call(self, shared: Shared, columns: Given) -> Call:
        """Returns the call of a batch."""
        args, kwargs = self.merged(shared.objects, columns)
        arguments = take_apart(self._signature, self._in_axes, self._is_method, tuple(args), kwargs)
        return Call(arguments, shared.arguments)

    def batch(self, shared: Shared, requests: Sequence[Given]) -> Call:
        """Returns the call of a batch of requests of one form."""
        args = tuple([list(column) for column in zip(*[one.args for one in requests], strict=True)])
        kwargs = {name: [one.kwargs[name] for one in requests] for name in requests[0].kwargs}
        return self.call(shared, Given(args, kwargs))

    @property
    def _expected(self) -> str:
        mapped = [name for name in self._signature.parameters if name not in self._names]
        return f"a request to a server of {self.name} has the arguments ({', '.join(mapped)})"

    def merged(self, shared: Mapping[str, Any], given: Given) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of the function: shared and mapped ones in the order of its signature."""
        args, kwargs = [], dict(given.kwargs)
        mapped = list(given.args)
        names = list(self._is_shared)
        while names and (names[0] in shared if self._is_shared[names[0]] else mapped):
            name = names.pop(0)
            args.append(shared[name] if self._is_shared[name] else mapped.pop(0))
        return [*args, *mapped], kwargs | {name: shared[name] for name in names if name in shared}
