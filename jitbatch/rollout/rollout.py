"""Rollouts: all samples of a batch in one flight, and their stacked results."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch.execute.sizes import Sizes
from jitbatch.ir.items import Items, split_items
from jitbatch.ir.tables import Tables
from jitbatch.plan.outputs import outputs_of
from jitbatch.plan.ragged import ragged_outputs
from jitbatch.record.context import Context
from jitbatch.record.decisions import Decisions
from jitbatch.record.noted_call import without_collections
from jitbatch.rollout.flight import Flight
from jitbatch.rollout.tickets import Ticket, Times
from jitbatch.util import compat

MOST_IN_FLIGHT = 1024
"""The largest number of samples in flight during a rollout. Further samples join when others return."""

SYNCS = 32
"""The number of syncs between possible runs of Python's garbage collector."""


@dataclass(frozen=True)
class Rollout:
    """The return value of `f.rollout(shared, samples)`.

    Attributes:
        outputs: the results of all samples, in the form of `.batch`.
        decisions: the answers that each sample received, for `f.plan(shared, samples, decisions=...)`.
        syncs: the number of syncs, in which all waiting samples get their answers.
        times: seconds on the host, by activity.
        tickets: the samples.
    """

    outputs: Any
    syncs: int
    times: Times
    tickets: Sequence[Ticket] = field(repr=False)

    @cached_property
    def decisions(self) -> Decisions:
        return Decisions(ticket.decisions for ticket in self.tickets)

    def __repr__(self) -> str:
        return f"Rollout({len(self.tickets)} samples, {self.syncs} syncs)"


@dataclass(frozen=True)
class Result:
    """The result of a sample, with those attributes of a `Graph` that describe its form."""

    ticket: Ticket
    tables: Tables

    @property
    def out_tree(self) -> Any:
        return self.ticket.tree

    @property
    def out_classes(self) -> tuple[int, ...]:
        return self.ticket.classes

    @cached_property
    def items(self) -> Items:
        return split_items(self.out_tree, self.out_classes)


def roll_out(flight: Flight, samples: Sequence[tuple[Any, ...]]) -> list[Ticket]:
    """Roll out all samples. If one raises an error, the others are cancelled, and the error is raised again."""
    waiting = iter(samples)
    tickets: list[Ticket] = []
    done = 0
    while done < len(samples):
        with without_collections():  # Each collection would find all suspended samples alive.
            for _ in range(SYNCS):
                room = min(flight.room - len(flight), len(samples) - len(tickets))
                tickets += [flight.admit(*sample) for sample in itertools.islice(waiting, room)]
                for ticket in flight.advance():
                    done += 1
                    if ticket.error is not None:
                        raise ticket.error
                if not len(flight):
                    break
    return tickets


def outputs_together(tickets: Iterable[Ticket], context: Context, out: str) -> Any:
    """The results of all samples in the form of `.batch`."""
    tables = context.tables
    results = [Result(ticket, tables) for ticket in tickets]
    leaves = [leaf for result in results for leaf in result.ticket.leaves]
    if out == "list":
        arrays = iter(_on_device(leaves))
        return [one.out_tree.unflatten([next(arrays) for _ in one.out_classes]) for one in results]
    trees, classes = outputs_of(results, tables, out, Sizes())
    output = trees[0], tuple(map(tables.classes.__getitem__, classes[0]))
    context.known_outputs.put(output, output)
    width = trees[0].num_leaves
    if out == "ragged":
        columns, ragged = ragged_outputs(results, np.arange(len(leaves), dtype=np.int32), width, 0)
        return replace(ragged, rows=trees[0].unflatten([_stacked([leaves[i] for i in one]) for one in columns]))
    return trees[0].unflatten([_stacked(leaves[place::width]) for place in range(width)])


def _stacked(leaves: Sequence[Any]) -> Any:
    is_key = compat.is_prng_key(leaves[0].dtype)
    return jnp.stack(leaves) if is_key else jax.device_put(np.stack(leaves))


def _on_device(leaves: Sequence[Any]) -> list[Any]:
    return [leaf if compat.is_prng_key(leaf.dtype) else jax.device_put(np.asarray(leaf)) for leaf in leaves]
