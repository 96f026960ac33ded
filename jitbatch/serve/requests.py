"""Requests, the line in which they wait, and their answers."""

import logging
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, NamedTuple

from jitbatch.serve.arguments import Given

logger = logging.getLogger("jitbatch")


@dataclass(frozen=True, eq=False)
class Request:
    """One sample that somebody asked for.

    Attributes:
        given: the arguments.
        future: the answer.
        arrived: when the request was accepted.
    """

    given: Given
    future: "Future[Any]"
    arrived: float


class Answer(NamedTuple):
    """The result of a request, or the exception that it raised."""

    request: Request
    result: Any = None
    error: BaseException | None = None

    def give(self) -> None:
        """Gives the answer to whoever waits. Nothing that a callback of the future raises comes back."""
        future = self.request.future
        try:
            if self.error is None:
                future.set_result(self.result)
            else:
                future.set_exception(self.error)
        except InvalidStateError:
            logger.debug("a request was answered by somebody else")
        except BaseException:
            logger.exception("a callback of the future of a request raised an exception")
