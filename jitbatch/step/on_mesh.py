"""A step on a mesh: global arrays in place of samples and rows (see `step/split` and `jitbatch.jit`)."""

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import get_abstract_mesh

from jitbatch.step.agreement import Agreement, Planned, Terms
from jitbatch.step.channel import Channel
from jitbatch.step.examples import first_row, is_empty
from jitbatch.step.places import Bound, Place
from jitbatch.step.rows import count_of, filled
from jitbatch.step.samples import About, Samples, StepTrace, Use
from jitbatch.step.split import Parts, Rows, Split, put_plans
from jitbatch.util.errors import ArgumentError


class OnMesh:
    """Puts the samples and rows of a step's calls on a mesh.

    Args:
        split: the axis of the mesh.
        pad: as for `jitbatch.jit`.
        rows: the arguments with one row per sample; None if the step names none.
    """

    def __init__(self, split: Split, pad: int | None, rows: Sequence[Place] | None):
        self.split = split
        self._pad = pad
        self._rows = rows
        self._terms = Terms()

    def agreement(self, channel: Channel) -> Agreement:
        """Returns an agreement for a sequence of minibatches, which begins with the newest terms."""
        return Agreement(channel, self._terms, self._parts)

    def with_handles(
        self, step: StepTrace, places: Sequence[Place], uses: Sequence[Use], call: Bound, agreement: Agreement | None
    ) -> Bound:
        """Returns the call with `Samples` in place of samples, and `Rows` in place of rows.

        Args:
            step: the trace of the step.
            places, uses: the places of the samples, and their uses.
            call: the call.
            agreement: the agreement with other processes; None if there are none.
        """
        given: dict[Place, Any] = {place: call.at(place) for place in places if place.argument in call.arguments}
        known = {place: value._given if isinstance(value, Samples) else value for place, value in given.items()}
        step.samples.update(known)
        own = {place: tuple(use for use in uses if use.places[0] == place) for place in given}
        if not all(isinstance(value, Samples) and value._about.uses == own[place] for place, value in given.items()):
            given = self._planned(step.name, known, own, agreement)
        for place, handle in given.items():
            step.handles[place] = handle
            call = call.replaced(place, handle)
        return self._with_rows(call, {place: handle._about.parts for place, handle in given.items()}, known)

    def lacks_samples(self, call: Bound, places: Sequence[Place]) -> bool:
        """Whether this process has no samples in a call. If no places are named, an empty argument counts as
        samples."""
        values = [call.at(place) for place in places if place.argument in call.arguments]
        return any(map(is_empty, values if places else call.arguments.values()))

    def with_examples(self, call: Bound, samples: Mapping[Place, Any]) -> Bound:
        """Returns the call with other samples, one at each place, and one row in each argument with rows."""
        for place in self._row_places(call, {count_of(call.at(place)) for place in samples}):
            call = call.replaced(place, first_row(call.at(place)))
        for place, value in samples.items():
            call = call.replaced(place, value)
        return call

    def settle(self, handles: Iterable[Samples]) -> None:
        """Makes the terms of a call the newest terms of the step. All processes do this in the order of their calls."""
        for handle in handles:
            about, terms = handle._about, handle._terms
            if terms is not None and about.parts is not None:
                self._terms = terms
                for use in about.uses:
                    use.settle(about.parts.size, terms.rooms[use.name, about.parts.size])

    def mesh_set(self) -> AbstractContextManager[Any]:
        """A context for calls of the compiled step. If a mesh is set outside, it sets the step's mesh instead."""
        return nullcontext() if get_abstract_mesh().empty else jax.set_mesh(self.split.mesh)

    def placed(self, call: Bound, in_place: bool) -> Bound:
        """Returns the call with all arrays on the mesh.

        Args:
            call: the call.
            in_place: whether the variables of Flax modules stay the same objects, with new arrays. `nnx.jit` changes
                these objects.
        """
        arguments = dict(call.arguments)
        for name, value in arguments.items():
            variables = _variables(value) if in_place else []
            for variable in variables:
                before = variable.get_value()
                after = self.split.replicated(before)
                if after is not before:
                    variable.set_value(after)
            if not variables:
                arguments[name] = self.split.replicated(value)
        return call._replace(arguments=arguments)

    def with_real_rows(self, call: Bound) -> Bound:
        """Returns the call with arrays in place of `Rows`, without rows of padding."""
        return self._without(call, Rows.real)

    def as_given(self, call: Bound) -> Bound:
        """Returns the call with the samples and rows of this process in place of `Samples` and `Rows`."""

        def given(part: Any) -> Any:
            if isinstance(part, Samples):
                return part._given
            return part.given if isinstance(part, Rows) else part

        def is_whole(part: Any) -> bool:
            return isinstance(part, Samples | Rows)

        holding = [
            n for n, value in call.arguments.items() if any(map(is_whole, jax.tree.leaves(value, is_leaf=is_whole)))
        ]
        changed = {name: jax.tree.map(given, call.arguments[name], is_leaf=is_whole) for name in holding}
        return call._replace(arguments={**call.arguments, **changed})

    def with_given_rows(self, call: Bound) -> Bound:
        """Returns the call with the rows of this process in place of `Rows`."""
        return self._without(call, lambda rows: rows.given)

    def _without(self, call: Bound, replacement: Callable[[Rows], Any]) -> Bound:
        for place in self._rows or ():
            value = call.at(place) if place.argument in call.arguments else None
            if isinstance(value, Rows):
                call = call.replaced(place, replacement(value))
        return call

    def _planned(
        self, name: str, samples: Mapping[Place, Any], uses: Mapping[Place, tuple[Use, ...]],
        agreement: Agreement | None,
    ) -> dict[Place, Samples]:  # fmt: skip
        if agreement is None:
            parts = {place: self._parts((count_of(value),)) for place, value in samples.items()}
            full = {place: filled(value, parts[place].local_rows) for place, value in samples.items()}
            plans = {place: [use.plan(full, shards=len(self.split.mine)) for use in uses[place]] for place in samples}
            found = Planned(parts, plans, None)
        else:
            found = agreement.plan(samples, uses)
        return {place: self._handle(name, place, uses[place], found, samples[place]) for place in samples}

    def _handle(self, name: str, place: Place, uses: tuple[Use, ...], planned: Planned, samples: Any) -> Samples:
        parts, mask = planned.parts[place], None
        if self._pad is not None:
            mask = self.split.put(np.arange(parts.local_rows) < count_of(samples))
        about = About(place, parts.count, uses, name, parts)
        return Samples(about, put_plans(planned.plans[place], self.split), mask, samples, planned.terms)

    def _parts(self, counts: tuple[int, ...]) -> Parts:
        """Returns the parts of samples, from the number of samples of each process."""
        split = self.split
        shards = [len(split.positions_of(process)) for process in split.processes]
        size = max(-(-count // own) for count, own in zip(counts, shards, strict=True))
        if self._pad is None:
            return Parts(split, size, counts)
        least = -(-self._pad // split.shards)
        return Parts(split, -(-size // least) * least, None)

    def _with_rows(self, call: Bound, parts: Mapping[Place, Parts], samples: Mapping[Place, Any]) -> Bound:
        """Returns the call with rows on the mesh, and everything else replicated."""
        counts = {count_of(value): parts[place] for place, value in samples.items()}
        for place in self._row_places(call, counts):
            value = call.at(place)
            rows = value.given if isinstance(value, Rows) else value
            found = counts.get(count_of(rows))
            if found is None:
                raise ArgumentError(
                    f"{place} has {count_of(rows)} rows, but there are {' and '.join(map(str, counts))} samples"
                )
            if any(other != found for at, other in parts.items() if count_of(samples[at]) == count_of(rows)):
                raise ArgumentError(
                    f"{place} has as many rows as several arguments have samples, which are split in different ways. "
                    "Pass rows and their samples as one argument: a list of pairs"
                )
            if not isinstance(value, Rows) or value.parts != found:
                call = call.replaced(place, Rows(self._put_rows(rows, found, place), found, rows))
        return call

    def _row_places(self, call: Bound, counts: Container[int]) -> list[Place]:
        if self._rows is not None:
            return [place for place in self._rows if place.argument in call.arguments]
        if len(self.split.processes) > 1:
            for name, value in call.arguments.items():
                if _may_be_rows(value, counts):
                    raise ArgumentError(
                        f"the argument {name!r} has one row for each of the samples of process {jax.process_index()}. "
                        "Are these rows of the samples, such as labels, or an array that is equal in all processes? "
                        f'Name the arguments with one row per sample: jitbatch.jit(rows="{name}"), or none: rows=()'
                    )
        return []

    def _put_rows(self, rows: Any, parts: Parts, place: Place) -> Any:
        rows = jax.tree.map(np.asarray, rows)
        if count_of(rows):
            full = filled(rows, parts.local_rows, str(place))
        else:
            full = jax.tree.map(lambda leaf: np.zeros((parts.local_rows, *leaf.shape[1:]), leaf.dtype), rows)
        return jax.tree.map(self.split.put, full)


def _may_be_rows(value: Any, counts: Container[int]) -> bool:
    """Whether all leaves of an argument are NumPy arrays with one row per sample."""
    leaves = jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, Samples))
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray) and leaf.ndim > 0 and len(leaf) in counts for leaf in leaves
    )


def _variables(value: Any) -> list[Any]:
    """Returns the variables of Flax modules in an argument."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return []
    leaves = jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, nnx.Variable))
    return [leaf for leaf in leaves if isinstance(leaf, nnx.Variable)]
