"""How a program is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuzz.choices import Choices
from jitbatch.util.passes import PASSES

FUSED_PLAN = ("fused", "plan")


@dataclass(frozen=True)
class Configuration:
    """Options of the decorator, and how the batch is run.

    Attributes:
        by: run by `samples`, or by a `plan`.
        like: the plan is like that of the `first` sample, or of all samples `twice`; its `capacity` or what was
            `pickled` of it.
        jit: whether values and gradients are one compiled program.
        inputs: whether the samples are differentiated too.
        turned: whether the samples are run in the opposite order afterwards, by what was compiled.
        stacked: whether further arguments are arrays, and not lists of samples' parts.
        without: optional passes that are switched off.
    """

    granularity: str = "auto"
    policy: str = "auto"
    executor: str = "auto"
    dedupe: bool = True
    out: str = "stack"
    loops: str = "auto"
    by: str = "samples"
    like: str = ""
    jit: bool = True
    inputs: bool = False
    turned: bool = False
    stacked: bool = False
    without: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        names = ("granularity", "policy", "executor", "dedupe", "out", "loops")
        return {name: getattr(self, name) for name in names}


def make_configuration(choices: Choices, makes: str, stackable: bool) -> Configuration:
    """A random configuration of a program.

    Args:
        makes: `one` result a sample, or any number of `items`.
        stackable: whether all arguments but the first can be given as arrays.
    """
    executor = choices.of(("dispatch", "dispatch", "fused", "fused", "fused", "fused", "per_sample", "auto"))
    by = "plan" if choices.often(85 if executor == "fused" else 25) else "samples"
    like = choices.of(("", "", "", "first", "twice", "capacity", "pickled")) if (executor, by) == FUSED_PLAN else ""
    jit = not choices.often(15)
    return Configuration(
        granularity=choices.of(("auto", "auto", "op", "graph", "subgraph")),
        policy=choices.of(("auto", "depth", "agenda", "layers")),
        executor=executor,
        dedupe=not choices.often(30),
        out=choices.of(("stack", "stack", "list") if makes == "one" else ("list", "ragged")),
        loops=choices.of(("auto", "static")) if executor == "fused" else "auto",
        by=by,
        like=like,
        jit=jit,
        inputs=by == "samples" and choices.often(30),
        turned=(by == "plan" or not jit) and choices.often(35),
        stacked=stackable and choices.often(50),
        without=tuple(name for name in PASSES if choices.often(30)) if choices.often(30) else (),
    )
