"""Requests, the queue in which they wait, and their answers."""

import logging
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, NamedTuple

from jitbatch.serve.arguments import Given

logger = logging.getLogger("jitbatch")


class AnswerFuture(Future[Any]):
    """The future of a request.

    Attributes:
        is_abandoned: whether it was cancelled while its request was running, for example because a caller did not wait
            any longer. A sample in flight is then cancelled.
    """

    is_abandoned = False

    def cancel(self) -> bool:
        """Cancels a waiting request. False if it is running or answered already."""
        is_cancelled = super().cancel()
        self.is_abandoned |= not is_cancelled
        return is_cancelled


@dataclass(frozen=True, eq=False)
class Request:
    """A request for the result of one sample.

    Attributes:
        given: the arguments.
        future: the future of the answer.
        arrived: the time at which the request was accepted.
    """

    given: Given
    future: AnswerFuture
    arrived: float


class Answer(NamedTuple):
    """The result of a request, or its exception."""

    request: Request
    result: Any = None
    error: BaseException | None = None

    def give(self) -> None:
        """Gives the answer to the future. Errors in callbacks of the future are dropped."""
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
