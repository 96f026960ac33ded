"""How a program is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuzz.choices import Choices
from jitbatch._passes import PASSES


@dataclass(frozen=True)
class Configuration:
    """Options of the decorator, and how the batch is run.

    Attributes:
        by: run by `samples`, or by a `plan`.
        like: the plan is like that of the `first` sample, or of all samples `twice`; its `capacity` or what was
            `pickled` of it.
        jit: whether values and gradients are one compiled program.
        inputs: whether the samples are differentiated too.
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
    without: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        names = ("granularity", "policy", "executor", "dedupe", "out", "loops")
        return {name: getattr(self, name) for name in names}


def make_configuration(choices: Choices, makes: str) -> Configuration:
    """A random configuration of a program that makes `one` result a sample, or any number of `items`."""
    executor = choices.of(("dispatch", "fused", "fused", "fused", "loop"))
    by = "plan" if executor == "fused" or choices.often(20) else "samples"
    like = choices.of(("", "", "", "first", "twice", "capacity", "pickled")) if executor == "fused" else ""
    return Configuration(
        granularity=choices.of(("auto", "auto", "op", "graph", "subgraph")),
        policy=choices.of(("auto", "depth", "agenda")),
        executor=executor,
        dedupe=not choices.often(30),
        out=choices.of(("stack", "stack", "list") if makes == "one" else ("list", "ragged")),
        loops=choices.of(("auto", "static")) if executor == "fused" else "auto",
        by=by,
        like=like,
        jit=not choices.often(15),
        inputs=by == "samples" and choices.often(30),
        without=tuple(name for name in PASSES if choices.often(30)) if choices.often(30) else (),
    )
