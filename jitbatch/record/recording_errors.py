"""Errors for operations that an abstract value does not support during recording."""

from jitbatch.record.values import SharedSource, Value, root
from jitbatch.util.array_leaves import NUMBERS
from jitbatch.util.errors import ControlFlowError, NumberError


def control_flow_error(value: Value, asked: str, where: str, sample: str) -> ControlFlowError:
    """The error for Python code that needs the data of a value.

    Args:
        value: an abstract value.
        asked: the operation, such as `"bool()"`.
        where: the place in the user's code, such as `" at file:line"`, or `""`.
        sample: the name of the recorded sample.
    """
    origin = root(value)
    advice = "Wrap the value in Static where the sample is made"
    if type(origin) in NUMBERS:
        advice = (
            f"It is the Python {type(origin).__name__} {origin!r}, which a decorated function was called with: "
            f"pass jitbatch.Static({origin!r}) at the call, and read its `.value` here"
        )
    elif type(origin) is Value and type(origin.source) is SharedSource:
        advice = "It is part of a shared argument: wrap it in Static there, or close over it"
    return ControlFlowError(
        f"{asked} was asked of a traced {value.aval.str_short()}{where}, while {sample} was recorded. "
        "Samples are recorded with their arrays abstract, so Python's control flow can look only at their "
        f"structure, at shapes, and at values wrapped in jitbatch.Static(...). {advice}, or compute both sides "
        "with jnp.where or lax.cond, or ask for the value with `await jitbatch.value(...)` in an `async def`."
    )


def number_error(value: Value, asked: str, where: str, sample: str) -> NumberError:
    """The error for Python code that uses a number as a container. Arguments: see `control_flow_error`."""
    return NumberError(
        f"a number, a traced {value.aval.str_short()}, was {asked}{where}, while {sample} was recorded. "
        "Numbers of a sample, and those that decorated functions are called with, are arrays of no axes there, so "
        "that `isinstance(t, int)` and `isinstance(t, float)` are False. Tell the inner nodes of a tree instead: "
        "`isinstance(t, tuple)` (list, dict, or a class of yours). Wrap numbers in jitbatch.Static(...) that "
        "Python is to look at."
    )
