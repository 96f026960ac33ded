"""Questions: a sample that needs values is a coroutine, and waits at each question.

An asynchronous function awaits `value(tree)`. The code that drives its coroutine receives a `Question`, and sends the
answer. There are three drivers: `run` for one sample alone, a flight for many samples (see `rollout/flight`), and
`Realised` for known answers (see `record/decisions`).
"""

import hashlib
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import CodeType
from typing import Any, NoReturn

import jax
import numpy as np

from jitbatch.record.recorder import Recorder
from jitbatch.util import compat
from jitbatch.util.array_leaves import described, is_array
from jitbatch.util.caches import at_clearing
from jitbatch.util.errors import QuestionError

_places: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""For the `id` of a code object and an instruction: the code object, which is kept alive, and the digest of the
place."""
at_clearing(_places.clear)


class Question:
    """The awaitable that `value` returns.

    Attributes:
        tree: the arrays whose values are needed.
        code, instruction: the place in the user's code.
        line: the line number.
    """

    __slots__ = ("code", "instruction", "line", "tree")

    def __init__(self, tree: Any, code: CodeType, instruction: int, line: int):
        self.tree = tree
        self.code = code
        self.instruction = instruction
        self.line = line

    def __await__(self) -> Generator["Question", Any, Any]:
        return (yield self)

    def _not_awaited(self, *_: Any) -> NoReturn:
        raise QuestionError(
            f"jitbatch.value(...) is not awaited, at {self.where}: write `await jitbatch.value(...)`, in an `async "
            "def`. A decorated function that is not asynchronous cannot ask, nor can the body of a jit, vmap, grad or "
            "of jax.lax: ask outside of it"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # libraries look for methods of theirs
            raise AttributeError(name)
        self._not_awaited()

    @property
    def where(self) -> str:
        """The place in the user's code, as `file:line`."""
        return f"{self.code.co_filename}:{self.line}"

    @property
    def place(self) -> str:
        """A digest of the place, the same in every process: the function and its code up to the question."""
        key = id(self.code), self.instruction
        found = _places.get(key)
        if found is None:
            if len(_places) > 4096:
                _places.clear()
            text = f"{self.code.co_qualname}:{self.line - self.code.co_firstlineno}:{self.instruction}"
            found = _places[key] = self.code, hashlib.sha256(text.encode()).hexdigest()[:12]
        return found[1]

    def leaves(self, sample: str) -> list[Any]:
        """The leaves of the question's tree."""
        leaves = jax.tree.leaves(self.tree)
        for leaf in leaves:
            if not is_array(leaf):
                raise QuestionError(
                    f"jitbatch.value was asked at {self.where} for {described(leaf)} of type {type(leaf).__name__}, in "
                    f"{sample}: it takes arrays and numbers, in any pytree"
                )
        return leaves

    def answer(self, leaves: Sequence[Any]) -> Any:
        """The answer as a tree, from the answers to its leaves."""
        return jax.tree.unflatten(jax.tree.structure(self.tree), leaves)


_USES = (
    "bool int index float complex hash str format len iter next contains getitem call array eq ne lt le gt ge neg "
    "pos abs invert round add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul "
    "rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift"
)
"""The special methods of arrays and numbers. A question raises an error for each, because it is not awaited."""
for _name in _USES.split():
    setattr(Question, f"__{_name}__", Question._not_awaited)


def value(tree: Any) -> Question:
    """Asks for the values of arrays, inside an asynchronous function of one sample.

    `await jitbatch.value(x)` is a Python number for an array without axes, and a NumPy array for any other array. The
    sample waits there. The values for all waiting samples of a batch are computed together. No gradient passes through
    an answer.

    Args:
        tree: an array or number, or a pytree of them.

    Returns:
        An object to be awaited. Its result has the structure of `tree`.

    >>> import jax.numpy as jnp, jitbatch
    >>> @jitbatch.jitbatch
    ... async def halvings(scale, x):
    ...     count = 0
    ...     while await jitbatch.value(scale * x >= 1):
    ...         x, count = x / 2, count + 1
    ...     return jnp.float32(count)
    >>> halvings.batch(1.0, [5.0, 0.5, 100.0]).tolist()
    [3.0, 0.0, 7.0]
    """
    frame = sys._getframe(1)
    return Question(tree, frame.f_code, frame.f_lasti, frame.f_lineno)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs one sample alone, outside of a batch, and returns the result of its coroutine.

    `run` can be differentiated. A loop of `run` over samples is the reference for `.batch`.

    Args:
        coroutine: the return value of a plain call of an asynchronous function.

    >>> import jitbatch
    >>> async def sign(scale, x):
    ...     return -scale if await jitbatch.value(x < 0) else scale
    >>> jitbatch.run(sign(2.0, -3.0))
    -2.0
    """
    if not isinstance(coroutine, Coroutine):
        raise QuestionError(
            f"jitbatch.run takes the coroutine that an asynchronous function returns, got {type(coroutine).__name__}"
        )
    trace = compat.current_trace()
    if type(trace) is Recorder:
        coroutine.close()
        inside = " and inside of a decorated function" if trace.scope else ""
        raise QuestionError(
            f"jitbatch.run was called{trace._where()} while {trace.sample} was recorded{inside}: a sample that is "
            "batched awaits the coroutine, `await f(...)`. A decorated function that is not asynchronous cannot ask "
            "for values; make it `async def` and leave its own jitbatch.jitbatch in place, or ask outside of it"
        )
    return drive(
        coroutine,
        "the sample",
        lambda question: [concrete(leaf, question.where) for leaf in question.leaves("the sample")],
    )


def drive(coroutine: Coroutine[Any, Any, Any], sample: str, reply: Callable[[Question], Sequence[Any]]) -> Any:
    """The result of a coroutine. `reply` returns the answers to the leaves of a question.

    An exception of `reply` is raised in the coroutine, at the place of the question.
    """
    try:
        asked = coroutine.send(None)
        while True:
            try:
                answer = check_question(asked, sample).answer(reply(asked))
            except Exception as error:
                asked = coroutine.throw(error)
            else:
                asked = coroutine.send(answer)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()


def check_question(asked: Any, sample: str) -> Question:
    """The question that a coroutine awaits. Raises an error for other awaitables."""
    if type(asked) is Question:
        return asked
    what = "something" if asked is None else f"an object of type {type(asked).__name__}"
    raise QuestionError(
        f"{sample} awaits {what} that is not `jitbatch.value(...)`. Inside a sample only values can be awaited, and "
        "asynchronous functions that await nothing else: a batch has no event loop for input, output or sleep"
    )


def concrete(leaf: Any, where: str) -> Any:
    """The answer to a leaf with a known value. For a tracer of a differentiation, this is its primal value, without a
    gradient. `where` is the place of the question, for errors."""
    primal = compat.primal_of(leaf)
    if compat.is_tracer(primal):
        raise QuestionError(
            f"jitbatch.value was asked at {where} inside of {compat.transformation_of(primal)} for a traced "
            f"{primal.aval.str_short()}, which has no value there. Ask outside of the transformation, or in a batch: "
            "`run = f.rollout(shared, samples)`, then `f.batch(shared, samples, decisions=run.decisions)` inside of it"
        )
    return answer_of(primal if isinstance(primal, jax.Array) else np.asarray(primal, jax.typeof(primal).dtype))


def answer_of(array: Any) -> Any:
    """An array as an answer: a Python number if it has no axes, else a NumPy array. Keys are unchanged."""
    if compat.is_prng_key(array.dtype):
        return array
    return np.asarray(array) if array.ndim else numbers_of(np.asarray(array))


def numbers_of(array: np.ndarray) -> Any:
    """An array as Python numbers. NumPy does not know JAX's short floats."""
    return (array if array.dtype.kind in "biufc" else array.astype(np.float32)).tolist()
