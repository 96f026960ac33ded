"""Inputs of samples that a step differentiates: handles for `jax.grad`, targets, and gradients as samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.ir.cell import Identity
from jitbatch.plan.differentiable import Names, check_names, check_parts, leaves_named
from jitbatch.plan.plan import Plan
from jitbatch.step.buffers import Buffers
from jitbatch.step.places import Bound, Place
from jitbatch.step.rows import count_of, filled
from jitbatch.step.samples import Samples
from jitbatch.util.errors import ArgumentError


@jax.tree_util.register_pytree_node_class
class Inputs(Samples):
    """Samples in the body of a step that differentiates some of their inputs. The inputs are the leaves of this pytree.

    So `jax.grad` differentiates with respect to samples, and the gradient is of this class, too. `jax.tree.map`
    computes with gradients, targets and samples.
    """

    _instead = "Compute with what is differentiated by `jax.tree.map`; do all else before the step is called"

    def __init__(self, whole: Samples, inputs: Sequence[Any]):
        super().__init__(whole._about, whole._plans, whole._mask)
        self._whole = whole
        self._inputs = inputs

    def tree_flatten(self) -> tuple[tuple[Any, ...], Identity]:  # type: ignore[override]
        return tuple(self._inputs), Identity(self._whole)

    @classmethod
    def tree_unflatten(cls, whole: Identity, children: Sequence[Any]) -> "Inputs":  # type: ignore[override]
        return cls(whole.thing, children)

    def _plan(self, index: int) -> Plan:
        plan = super()._plan(index)
        return plan.with_inputs(self._inputs) if plan.static.differentiable_arenas else plan

    def sums(self) -> jax.Array:
        """Returns the sum of the values of each sample: an array with one number per sample."""
        total = jnp.zeros(len(self), jnp.result_type(*self._inputs) if self._inputs else float)
        plan = _plan_with_inputs(self._whole)
        for rows, samples in zip(self._inputs, () if plan is None else plan.row_samples, strict=True):
            row_sums = jnp.where(samples >= 0, jnp.sum(rows, axis=tuple(range(1, jnp.ndim(rows)))), 0)
            total = total.at[jnp.maximum(samples, 0)].add(row_sums)
        return total


@jax.tree_util.register_pytree_node_class
class Packed:
    """Values for the inputs of the samples at a place: targets as arguments of the body, and gradients in its
    result."""

    def __init__(self, place: Place, rows: Sequence[Any]):
        self.place = place
        self.rows = rows

    def tree_flatten(self) -> tuple[tuple[Any, ...], Place]:
        return tuple(self.rows), self.place

    @classmethod
    def tree_unflatten(cls, place: Place, children: Sequence[Any]) -> "Packed":
        return cls(place, children)


class Differentiated:
    """The differentiated inputs of a step.

    Attributes:
        names: the names of the inputs.
        targets: the arguments with values for them, in the structure of the samples.
    """

    def __init__(self, names: Names, targets: Sequence[Place]):
        self.names = names
        self.targets = targets
        self._found: set[str] = set()

    def check_new(self, plans: Sequence[Plan]) -> None:
        """Checks the plans of new uses: each name must occur in the samples of some use."""
        for plan in plans:
            call = plan.static.call
            if plan.static.differentiable_arenas and len(call.mapped) > 1:
                raise ArgumentError(
                    f"the step differentiates inputs of samples that are {len(call.mapped)} arguments of "
                    f"{plan.static.owner!r}: pass them as one argument, a list of tuples"
                )
            graphs = plan.graphs
            self._found |= {n for n in self.names if any(leaves_named(graph, (n,), call) for graph in set(graphs))}
        missing = tuple(name for name in self.names if name not in self._found)
        if plans and missing:
            check_names(plans[0].graphs, missing, plans[0].static.call)

    def packed(self, call: Bound, handles: Mapping[Place, Samples]) -> Bound:
        """Returns the call with `Packed` in place of targets."""
        plans = {place: _plan_with_inputs(handle) for place, handle in handles.items()}
        for plan in plans.values():
            if plan is not None and plan.graphs:
                check_parts(plan.graphs, self.names, plan.static.call)
        for place in self.targets:
            value = call.at(place) if place.argument in call.arguments else None
            if value is None or isinstance(value, Packed) or not handles:
                continue
            (at, handle), *others = handles.items()
            if others:
                raise ArgumentError(
                    f"{place} are targets of samples, but there are several: {', '.join(map(str, handles))}"
                )
            if count_of(value) != _real_count(handle):
                raise ArgumentError(
                    f"{place} has {count_of(value)} targets, but there are {_real_count(handle)} samples"
                )
            plan = plans[at]
            rows = () if plan is None else plan.pack(filled(value, len(handle), str(place)))
            call = call.replaced(place, Packed(at, rows))
        return call

    def in_body(self, call: Bound, places: Sequence[Place]) -> Bound:
        """Returns the call of the body, with `Inputs` in place of samples and targets."""
        found: dict[Place, Samples] = {}
        for place in places:
            value = call.at(place) if place.argument in call.arguments else None
            if isinstance(value, Samples):
                found[place] = value
                plan = _plan_with_inputs(value)
                call = call.replaced(place, Inputs(value, () if plan is None else plan.inputs))
        for place in self.targets:
            value = call.at(place) if place.argument in call.arguments else None
            if isinstance(value, Packed):
                call = call.replaced(place, Inputs(found[value.place], value.rows))
        return call

    def returned(self, result: Any) -> Any:
        """Returns the result of the body with `Packed` in place of `Inputs`."""
        return _replaced(result, Inputs, lambda inputs: Packed(inputs._about.place, inputs._inputs))

    def unpacked(self, result: Any, handles: Mapping[Place, Samples]) -> Any:
        """Returns the result of a call with lists of samples in place of `Packed`."""

        def unpack(packed: Packed) -> list[Any]:
            handle = handles[packed.place]
            plan = _plan_with_inputs(handle)
            return [] if plan is None else plan.unpack(packed.rows)[: _real_count(handle)]

        return _replaced(result, Packed, unpack)


def _plan_with_inputs(handle: Samples) -> Plan | None:
    """Returns the plan of a handle that has differentiated inputs, or None."""
    plans = () if isinstance(handle._plans, Buffers) else handle._plans
    found = [plan for plan in plans if plan.static.differentiable_arenas]
    if len(found) > 1:
        about = handle._about
        names = ", ".join(f"{plan.static.owner!r}" for plan in found)
        raise ArgumentError(
            f"{len(found)} calls of `.batch` in {about.step} read the differentiated inputs of {about.place}: {names}. "
            "Then the gradient would be in parts: decorate one function that returns both results"
        )
    return found[0] if found else None


def _real_count(handle: Samples) -> int:
    """Returns the number of samples without padding."""
    return len(handle) if handle._mask is None else int(np.sum(np.asarray(handle._mask)))


def _replaced(result: Any, kind: type, replacement: Callable[[Any], Any]) -> Any:
    """Replaces the objects of a class in tuples, lists and dicts. Other objects stay the same ones."""

    def is_whole(part: Any) -> bool:
        return isinstance(part, kind) or not isinstance(part, tuple | list | dict)

    if not any(isinstance(part, kind) for part in jax.tree.leaves(result, is_leaf=is_whole)):
        return result
    return jax.tree.map(lambda part: replacement(part) if isinstance(part, kind) else part, result, is_leaf=is_whole)
