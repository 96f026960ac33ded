"""A sample that runs in Python: a coroutine, and the recorder of its operations."""

from collections.abc import Callable, Coroutine
from typing import Any

from jitbatch.record.arguments import Arguments
from jitbatch.record.context import Context
from jitbatch.record.nodes import Part, cut, finish
from jitbatch.record.noted_call import call_noted, note_wrong_arguments
from jitbatch.record.questions import Question, check_question
from jitbatch.record.recorder import Recorder
from jitbatch.record.shared_arguments import SharedArguments
from jitbatch.record.structure import Structure
from jitbatch.util import compat
from jitbatch.util.errors import QuestionError
from jitbatch.util.key_order import flatten


class Asked:
    """The recording of a sample up to a question, or up to its end.

    Attributes:
        part: the nodes since the last question.
        tree: the tree of the answer, or of the result.
        question: None at the end.
    """

    __slots__ = ("part", "question", "tree")

    def __init__(self, part: Part, tree: Any, question: Question | None):
        self.part = part
        self.tree = tree
        self.question = question


class Live:
    """A suspended sample.

    JAX's current trace belongs to a thread. The sample's recorder is the current trace exactly while the sample's code
    runs.

    Attributes:
        recorder: its recorder.
        position: the number of answers that it has received.
    """

    def __init__(
        self, context: Context, fun: Callable[..., Coroutine[Any, Any, Any]], structure: Structure, index: int,
        name: str, shared: SharedArguments, arguments: Arguments,
    ):  # fmt: skip
        self.recorder: Recorder = context.recorder(name, _send.__code__)
        self.recorder.follow_answers()
        self.position = -1
        self._fun = fun
        self._place = structure, index, arguments
        self._begun = context.begin(self.recorder, structure, shared, arguments)
        self._coroutine: Coroutine[Any, Any, Any] | None = None

    def advance(self, answer: Any = None) -> Asked:
        """Run until the next question, or until the end."""
        self.position += 1
        try:
            with compat.set_current_trace(self.recorder):
                if self._coroutine is None:
                    self._coroutine = self._called(self._fun, *self._begun.args, **self._begun.kwargs)
                has_ended, asked = self._called(_send, self._coroutine, answer)
                while not has_ended:
                    try:
                        return self._cut(asked)
                    except QuestionError as error:  # raised there, to show the user's line
                        has_ended, asked = self._called(_throw, self._coroutine, error)
                return self._finish(asked)
        except TypeError as error:
            note_wrong_arguments(error, *self._place)
            raise

    def _called(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return call_noted(fun, args, kwargs, self._begun.shared_objects, self.recorder.sample)

    def _cut(self, asked: Any) -> Asked:
        question = check_question(asked, self.recorder.sample)
        leaves = question.leaves(self.recorder.sample)
        for leaf in leaves:
            if compat.is_tracer(leaf) and getattr(leaf, "_trace", None) is not self.recorder:
                raise QuestionError(
                    f"jitbatch.value was asked at {question.where} for a value of "
                    f"{compat.transformation_of(leaf)}, in {self.recorder.sample}. Ask outside of it"
                )
        return Asked(cut(self.recorder, leaves), flatten(question.tree)[1], question)

    def _finish(self, result: Any) -> Asked:
        self._begun.check(self.recorder, result)
        self.recorder.arguments.check_unchanged()
        part, tree = finish(self.recorder, result)
        return Asked(part, tree, None)

    def close(self) -> None:
        """Cancel the waiting sample: its `finally` blocks run."""
        try:
            if self._coroutine is not None:
                with compat.set_current_trace(self.recorder):
                    self._coroutine.close()
        finally:
            self.recorder.invalidate()
            self.recorder.release()


def _send(coroutine: Coroutine[Any, Any, Any], answer: Any) -> tuple[bool, Any]:
    """Whether a coroutine has ended, and its result or the object that it awaits."""
    try:
        return False, coroutine.send(answer)
    except StopIteration as stop:
        return True, stop.value


def _throw(coroutine: Coroutine[Any, Any, Any], error: Exception) -> tuple[bool, Any]:
    try:
        return False, coroutine.throw(error)
    except StopIteration as stop:
        return True, stop.value
