"""Serving in whole batches: the waiting requests are planned together and run as one program."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jitbatch.plan.plan import Plan
from jitbatch.plan.run import execute
from jitbatch.plan.serving import ServingPlanner
from jitbatch.serve.arguments import Given, ServedArguments, Shared
from jitbatch.serve.programs import Programs
from jitbatch.serve.requests import Answer, Request
from jitbatch.util import compat
from jitbatch.util.errors import ArgumentError


class WholeBatches:
    """Runs requests in batches, each from its beginning to its end.

    A batch that fits no program is split in halves. A batch that fails is run again one by one, so that each request
    gets its own exception.

    Args:
        planner: plans the batches.
        arguments: the signature of the function.
        shared: the shared arguments.
        most: the largest number of samples of a batch.
    """

    def __init__(self, planner: ServingPlanner, arguments: ServedArguments, shared: Shared, most: int):
        if not planner.batches:
            raise ArgumentError(
                f"{arguments.name} has executor='per_sample', which batches nothing: serve it with another executor"
            )
        self.shared = shared
        self.batches = self.retried = 0
        self._planner = planner
        self._arguments = arguments
        self._programs = Programs(self._planner, most)
        self._groups: deque[list[Request]] = deque()

    @property
    def held(self) -> list[Request]:
        """The accepted requests without an answer."""
        return list(itertools.chain(*self._groups))

    @property
    def is_open(self) -> bool:
        """Whether further requests may join."""
        return not self._groups

    @property
    def programs(self) -> int:
        return len(self._programs)

    def admit(self, requests: Sequence[Request]) -> list[Answer]:
        """Accepts requests. Returns the answers to refused requests."""
        forms: dict[Any, list[Request]] = {}
        for request in requests:
            forms.setdefault(request.given.form, []).append(request)
        self._groups.extend(forms.values())
        return []

    def advance(self) -> list[Answer]:
        """Runs one batch."""
        group = self._groups[0]
        try:
            results = self._run([request.given for request in group])
        except BaseException as error:
            if len(group) == 1:
                self._groups.popleft()
                return [Answer(group[0], error=error)]
            self.retried += 1
            self._replace_first([request] for request in group)
            return []
        if results is None:
            middle = len(group) // 2
            self._replace_first([group[:middle], group[middle:]])
            return []
        self.batches += 1
        self._groups.popleft()
        return [Answer(request, result) for request, result in zip(group, results, strict=True)]

    def drop(self) -> list[Request]:
        """Drops the accepted requests, and returns them."""
        held = self.held
        self._groups.clear()
        return held

    def warm_up(self, columns: Given, counts: Sequence[int]) -> None:
        """Compiles a program for each of these numbers of samples (see `Runner`)."""
        shared = self.shared
        batch = self._planner.record(self._arguments.call(shared, columns))
        for plan in self._programs.warm_up(batch, counts):
            results_of(plan, execute(plan, shared.arguments.leaves))

    def _run(self, requests: Sequence[Given]) -> list[Any] | None:
        shared = self.shared
        batch = self._planner.record(self._arguments.batch(shared, requests))
        plan = self._programs.plan(batch)
        return None if plan is None else results_of(plan, execute(plan, shared.arguments.leaves))

    def _replace_first(self, groups: Any) -> None:
        self._groups.popleft()
        self._groups.extendleft(reversed(list(groups)))


def results_of(plan: Plan, columns: Sequence[Any]) -> list[Any]:
    """Returns the result of each sample of a plan with `out="rows"`, with NumPy arrays of its own.

    Args:
        plan: the plan.
        columns: the output rows of each value class.
    """
    rows = dict(zip(plan.static.out_classes, map(_each, columns), strict=True))
    return [graph.out_tree.unflatten([next(rows[c]) for c in graph.out_classes]) for graph in plan.graphs]


def _each(column: Any) -> Iterator[Any]:
    """Yields the rows of an array, on the host. Rows of keys, which NumPy does not know, stay on the device."""
    if compat.is_prng_key(column.dtype):
        yield from (column[row] for row in range(len(column)))
    else:
        host = np.asarray(column)
        yield from (host[row, ...].copy() for row in range(len(host)))
