"""Serving of samples that ask for values: they join at the next sync, and leave when they are done."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from jitbatch.rollout.flight import Flight
from jitbatch.rollout.tickets import Ticket
from jitbatch.serve.arguments import Given, ServedArguments, Shared
from jitbatch.serve.requests import Answer, Request, logger
from jitbatch.util import compat


class InFlight:
    """Runs requests whose samples ask for values, from sync to sync.

    A sample that raises an exception fails alone. If a sync itself fails, all of its samples begin again, one by one.

    Args:
        fly: makes a flight of the function: `fly(*args, room=n, **kwargs)`, with no samples.
        arguments: the signature of the function.
        shared: the shared arguments.
        room: the largest number of samples in flight.
    """

    def __init__(self, fly: Callable[..., Flight], arguments: ServedArguments, shared: Shared, room: int):
        self.shared = shared
        self.batches = self.retried = 0
        self._fly = fly
        self._arguments = arguments
        self._room = room
        self._flights: dict[Any, Flight] = {}  # by the form of requests
        self._flown = shared  # the shared arguments of each flight
        self._tickets: dict[Ticket, Request] = {}
        self._alone: deque[Request] = deque()  # requests that begin again
        self._is_stale = False  # whether there are arenas that were warmed up later

    @property
    def programs(self) -> int:
        return len(self._flights)

    @property
    def held(self) -> list[Request]:
        """The accepted requests without an answer."""
        return [*self._tickets.values(), *self._alone]

    @property
    def is_open(self) -> bool:
        """Whether further requests may join."""
        return not self._alone

    def admit(self, requests: Sequence[Request]) -> list[Answer]:
        """Accepts requests. Returns the answers to requests that are not samples."""
        refused = []
        for request in requests:
            try:
                self._begin(request)
            except BaseException as error:
                refused.append(Answer(request, error=error))
        return refused

    def advance(self) -> list[Answer]:
        """Runs one sync of all samples in flight."""
        refused = self._drop_abandoned()
        if not self._tickets and self._alone:
            refused += self.admit([self._alone.popleft()])
        self._update()
        answers = itertools.chain.from_iterable([self._sync(form) for form in list(self._flights)])
        return [*refused, *answers]

    def _drop_abandoned(self) -> list[Answer]:
        """Cancels the samples whose callers do not wait any longer."""
        for ticket, request in list(self._tickets.items()):
            if request.future.is_abandoned:
                self._alone.append(self._tickets.pop(ticket))
                try:
                    self._flights[request.given.form].cancel(ticket)
                except Exception as error:
                    _log(error)
        gone = [request for request in self._alone if request.future.is_abandoned]
        for request in gone:
            self._alone.remove(request)
        return [Answer(request, error=CancelledError()) for request in gone]

    def drop(self) -> list[Request]:
        """Cancels all waiting samples, and returns their requests."""
        held = self.held
        self._alone.clear()
        for form in list(self._flights):
            self._land(form)
        self._tickets.clear()
        return held

    def warm_up(self, columns: Given, counts: Sequence[int]) -> None:
        """Compiles the programs for samples like these, for few and for many samples in flight (see `Runner`). Samples
        may raise errors, unless all of them do."""
        requests = columns.split()
        errors: list[BaseException] = []
        ended = 0
        flight = self._new_flight(self.shared, requests[0])
        try:
            for count in (*counts, len(requests)):
                waiting = deque(self._samples(requests[:count]))
                while waiting or len(flight):
                    while waiting and len(flight) < min(count, self._room):
                        flight.admit(*waiting.popleft())
                    done = flight.advance()
                    errors += [ticket.error for ticket in done if ticket.error is not None]
                    ended += len(done)
        finally:
            flight.close()
        if len(errors) == ended:
            raise errors[0]
        self._is_stale = True

    def _begin(self, request: Request) -> None:
        if self._is_stale and not self._tickets:
            self._is_stale = False
            for form in list(self._flights):
                self._land(form)
        form = request.given.form
        if form not in self._flights:
            self._flights[form] = self._new_flight(self._flown, request.given)
        (sample,) = self._samples([request.given])
        self._tickets[self._flights[form].admit(*sample)] = request

    def _sync(self, form: Any) -> list[Answer]:
        """One sync of a flight."""
        flight = self._flights[form]
        if not len(flight):
            return []
        try:
            done = flight.advance()
        except BaseException as error:
            begun = [ticket for ticket, request in self._tickets.items() if request.given.form == form]
            requests = [self._tickets.pop(ticket) for ticket in begun]
            self._land(form)
            if len(requests) == 1:
                return [Answer(requests[0], error=error)]
            self.retried += 1
            self._alone.extend(requests)
            return []
        self.batches += 1
        return [self._answer_of(ticket) for ticket in done]

    def _answer_of(self, ticket: Ticket) -> Answer:
        request = self._tickets.pop(ticket)
        if ticket.error is not None:
            return Answer(request, error=ticket.error)
        leaves = [leaf if compat.is_prng_key(leaf.dtype) else np.array(leaf) for leaf in ticket.leaves]
        return Answer(request, ticket.tree.unflatten(leaves))

    def _land(self, form: Any) -> None:
        """Ends a flight. Errors in the `finally` blocks of cancelled samples are dropped."""
        flight = self._flights.pop(form)
        try:
            flight.close()
        except Exception as error:
            _log(error)

    def _update(self) -> None:
        """Replaces the shared arguments by the newest ones."""
        shared = self.shared
        if shared is not self._flown:
            for flight in self._flights.values():
                flight.update(*shared.snapshot.values())
            self._flown = shared

    def _new_flight(self, shared: Shared, given: Given) -> Flight:
        empty = Given(tuple([] for _ in given.args), {name: [] for name in given.kwargs})
        args, kwargs = self._arguments.merged(shared.snapshot, empty)
        return self._fly(*args, room=self._room, **kwargs)

    def _samples(self, requests: Sequence[Given]) -> list[tuple[Any, ...]]:
        """Returns the mapped arguments of each request, in the order of the function."""
        return self._arguments.batch(self.shared, requests).samples


def _log(error: Exception) -> None:
    logger.info("a sample that was cancelled raised an exception: %r", error)
