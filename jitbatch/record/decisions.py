"""Decisions: the answers that samples received, and asynchronous functions with known answers."""

import base64
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, overload

import jax
import numpy as np

from jitbatch.record.nodes import cut
from jitbatch.record.questions import Question, answer_of, drive
from jitbatch.record.recorder import Recorder
from jitbatch.util import compat
from jitbatch.util.array_leaves import described, is_array
from jitbatch.util.errors import ArgumentError, DecisionError
from jitbatch.util.sites import describe_function
from jitbatch.util.static import Static, bits_key

FORMAT = 1

ANYWHERE = ""
"""The place of an answer that fits every question."""


@jax.tree_util.register_pytree_node_class
class Decisions(Sequence[Static[Any]]):
    """The answers that each sample of a rollout received, in the order of its questions.

    Decisions are a mapped argument: `f.plan(shared, samples, decisions=run.decisions)`. Slice and select them together
    with the samples. They can also be an argument of a step. Each answer has a digest of the place of its question, so
    decisions of other code are rejected.

    Attributes:
        samples: for each sample a `Static` of `(place, answers)` pairs. Equal decisions have one structure.
        counts: the number of answers of each sample. It is the only leaf of the pytree.

    >>> from jitbatch import Decisions, jitbatch, value
    >>> @jitbatch
    ... async def grow(scale, x):
    ...     while await value(x < 10):
    ...         x = x * scale
    ...     return x
    >>> run = grow.rollout(3.0, [1.0, 4.0, 20.0])
    >>> run.outputs.tolist(), run.decisions.answers
    ([27.0, 12.0, 20.0], [[True, True, True, False], [True, False], [False]])
    >>> Decisions.from_json(run.decisions.to_json()) == run.decisions
    True
    """

    def __init__(self, samples: Iterable[Static[Any]], counts: Any = None):
        self.samples = tuple(samples)
        self.counts = np.array([len(sample.value) for sample in self.samples], np.int32) if counts is None else counts

    def tree_flatten(self) -> tuple[tuple[Any], tuple[Static[Any], ...]]:
        return (self.counts,), self.samples

    @classmethod
    def tree_unflatten(cls, samples: tuple[Static[Any], ...], children: Sequence[Any]) -> "Decisions":
        return cls(samples, *children)

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> Static[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> "Decisions": ...
    def __getitem__(self, index: int | slice) -> Any:
        return Decisions(self.samples[index]) if isinstance(index, slice) else self.samples[index]

    def take(self, indices: Iterable[int]) -> "Decisions":
        """Returns the decisions of these samples."""
        return Decisions(self.samples[index] for index in indices)

    def __add__(self, other: "Decisions") -> "Decisions":
        return Decisions([*self.samples, *other.samples])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decisions) and self.samples == other.samples

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        asked = sum(len(sample.value) for sample in self.samples)
        return f"Decisions({len(self)} samples, {asked} answers)"

    @property
    def answers(self) -> list[list[Any]]:
        """For each sample the list of its answers. An answer is a number or an array; for a question about a tree it is
        a list of them."""
        return [
            [found[0] if len(found) == 1 else found for found in (decoded(answer) for _, answer in sample.value)]
            for sample in self.samples
        ]

    @staticmethod
    def from_answers(answers: Iterable[Iterable[Any]]) -> "Decisions":
        """Makes decisions from answers of your own, such as the actions of a treebank.

        Args:
            answers: for each sample its answers, in the form of `answers`: a number or an array for each question; for
                a question about a tree, a list of the answers to its leaves. It is not checked at which places they are
                asked for.

        >>> Decisions.from_answers([[True, False], [False]]).answers
        [[True, False], [False]]
        """
        return Decisions(
            Static(tuple((ANYWHERE, encoded(list(map(_own_answer, _leaves_of(answer))))) for answer in sample))
            for sample in answers
        )

    def to_json(self) -> str:
        """Returns the decisions as JSON: data alone, safe to load."""
        content = [[[place, *answer] for place, answer in sample.value] for sample in self.samples]
        return json.dumps({"jitbatch decisions": FORMAT, "samples": content})

    @staticmethod
    def from_json(text: str) -> "Decisions":
        """Reads decisions from JSON. Raises `DecisionError` for text that `to_json` did not write."""
        try:
            content = json.loads(text)
            if content["jitbatch decisions"] != FORMAT:
                raise ValueError("an unknown format")
            return Decisions(Static(tuple(map(_decision, sample))) for sample in content["samples"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DecisionError(f"this text is not what Decisions.to_json writes: {error}") from error


def _leaves_of(answer: Any) -> Sequence[Any]:
    return answer if isinstance(answer, list | tuple) else [answer]


def _own_answer(leaf: Any) -> Any:
    """A leaf as `value` would answer it."""
    if type(leaf) in (bool, int, float, complex):
        return leaf
    if not is_array(leaf) or compat.is_tracer(leaf):
        raise DecisionError(f"an answer is a number or an array with a value, not {described(leaf)}")
    return answer_of(leaf if isinstance(leaf, jax.Array) else np.asarray(leaf))


def _decision(content: list[Any]) -> tuple[str, tuple[Any, ...]]:
    place, *answer = content
    if not isinstance(place, str):
        raise ValueError("a place is no text")
    made = tuple(tuple(leaf) if isinstance(leaf, list) else leaf for leaf in answer)
    decoded(made)
    return place, made


def encoded(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Answers as hashable data. Real numbers stay as they are; complex numbers and arrays become their dtype, shape and
    bytes."""
    return tuple(leaf if type(leaf) in (bool, int, float) else _encoded_array(leaf) for leaf in leaves)


def _encoded_array(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, jax.Array) and compat.is_prng_key(leaf.dtype):
        return (str(leaf.dtype), *_encoded_array(np.asarray(jax.random.key_data(leaf))))
    array = np.asarray(leaf)
    data = base64.b64encode(array.tobytes()).decode()
    return (type(leaf) is complex and "number") or "array", str(array.dtype), *array.shape, data


def decoded(answer: Sequence[Any]) -> list[Any]:
    """The answers from their `encoded` form."""
    return [_decoded_array(*leaf) if isinstance(leaf, tuple) else leaf for leaf in answer]


def _decoded_array(kind: str, *content: Any) -> Any:
    if kind not in ("array", "number"):
        return compat.keys_of(_decoded_array(*content), compat.dtype_named(kind))
    dtype, *shape, data = content
    array = np.frombuffer(base64.b64decode(data), jax.numpy.dtype(dtype)).reshape(shape).copy()
    return array.item() if kind == "number" else array


def answer_key(serial: int, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """A key for the answers to the question `serial`. Keys are equal if types and bits are equal."""
    if len(leaves) == 1 and type(leaves[0]) in (int, bool):
        return serial, leaves[0]
    return serial, bits_key(encoded(leaves))


class Realised:
    """An asynchronous function of one sample, as a function of the sample and its decisions.

    With `decisions` it runs to its end and returns the result. Without them it returns a coroutine, like the original
    function.

    Attributes:
        asynchronous: the original function.
    """

    def __init__(self, fun: Callable[..., Any]):
        functools.update_wrapper(self, fun)
        self.asynchronous = fun
        self.__code__ = fun.__code__
        self.__signature__ = with_decisions(fun)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, decisions: Static[Any] | None = None, **kwargs: Any) -> Any:
        if decisions is not None and type(decisions) is not Static:
            raise DecisionError(
                f"the decisions of {describe_function(self)} are of type {type(decisions).__name__}: pass "
                "`run.decisions` of a rollout, or make them of answers with `jitbatch.Decisions.from_answers(answers)`"
            )
        coroutine = self.asynchronous(*args, **kwargs)
        return coroutine if decisions is None else replayed(coroutine, decisions.value)


def with_decisions(fun: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function with the additional argument `decisions`."""
    signature = inspect.signature(fun)
    if "decisions" in signature.parameters:
        raise ArgumentError(
            f"{describe_function(fun)} has an argument of the name `decisions`, which is that of the decisions of an "
            "asynchronous function: give it another name"
        )
    parameters = list(signature.parameters.values())
    rest = [parameters.pop()] if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    further = inspect.Parameter("decisions", inspect.Parameter.KEYWORD_ONLY)
    return signature.replace(parameters=[*parameters, further, *rest])


def replayed(coroutine: Any, decisions: Sequence[tuple[str, tuple[Any, ...]]]) -> Any:
    """The result of a coroutine with known answers. A recording is cut at each question."""
    trace = compat.current_trace()
    recorder = trace if type(trace) is Recorder else None
    sample = "the sample"
    if recorder is not None:
        sample = recorder.sample
        recorder.follow_answers()
    remaining: Iterator[tuple[str, tuple[Any, ...]]] = iter(decisions)
    count = 0

    def reply(question: Question) -> list[Any]:
        nonlocal count
        leaves = question.leaves(sample)
        decision = next(remaining, None)
        if decision is None:
            raise DecisionError(
                f"{sample} asks for a value at {question.where} after the {count} that its decisions have: there are "
                f"too few. {_REMEDY}"
            )
        count += 1
        place, answer = decision
        if place not in (question.place, ANYWHERE) or len(answer) != len(leaves):
            raise DecisionError(
                f"decision {count - 1} of {sample} was asked for elsewhere than at {question.where}: the function has "
                f"changed, or the decisions are those of another sample. {_REMEDY}"
            )
        if recorder is not None:
            cut(recorder, leaves)
        return decoded(answer)

    result = drive(coroutine, sample, reply)
    if count < len(decisions):
        raise DecisionError(f"{sample} asked {count} times, but its decisions have {len(decisions)} answers. {_REMEDY}")
    return result


_REMEDY = "Decisions are for the samples that they were made with: `run = f.rollout(shared, samples)`, `run.decisions`"
