"""The result of an empty batch: its shapes and dtypes are those of an earlier batch."""

from typing import Any

import jax.numpy as jnp

from jitbatch.plan.outputs import describe_result
from jitbatch.plan.plan import Plan
from jitbatch.plan.ragged import no_samples
from jitbatch.record.context import Context
from jitbatch.util.errors import ArgumentError


def note_output(plan: Plan, context: Context) -> None:
    """Notes the shapes and dtypes of a plan's output in the context of the call."""
    static = plan.static
    if context.last_static is static:
        return
    output = static.out_trees[0], tuple(map(static.tables.classes.__getitem__, static.out_classes))
    context.known_outputs.put(output, output)
    context.last_static = static


def results_of_no_samples(function: str, out: str, context: Context) -> Any:
    """Returns the result of an empty batch.

    Args:
        function: the name of the function, for errors.
        out: the form of its outputs.
        context: the context of the call.
    """
    if out == "list":
        return []
    known = list(context.known_outputs)
    if len(known) > 1:
        first, second = (describe_result(*output) for output in known[:2])
        raise ArgumentError(
            f"{function} was given no samples, and earlier batches do not tell what its output looks like: one was "
            f'made of {first}, one of {second}. Leave empty batches out, or use out="list"'
        )
    if not known:
        raise ArgumentError(
            f"{function} was given no samples, and no earlier batch tells what its output looks like. Give at least "
            'one sample first, or use out="list"'
        )
    tree, classes = known[0]
    rows = tree.unflatten([jnp.zeros((0, *c.shape), c.dtype) for c in classes])
    return no_samples(rows, context.tables.outlines) if out == "ragged" else rows
