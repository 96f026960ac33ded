"""Whole programs, as Python text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fuzz.cells import HELPERS, Cell, Scope, indented, make_cell
from fuzz.choices import Choices
from fuzz.configurations import Configuration, make_configuration
from fuzz.samples import PARAMETERS, leaf
from fuzz.walks import Walk, make_walk

HEADER = """import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import Static, jitbatch, segment
"""

SETTINGS = """import jax

jax.config.update("jax_enable_x64", True)
"""
"""What a script begins with; trials are run in a context of the same settings, which ends with them."""


@dataclass(frozen=True)
class Program:
    """A program and how it is run.

    Attributes:
        source: defines `params`, `samples` and `main`.
        configurations: the ways in which it is run.
    """

    source: str
    configurations: tuple[Configuration, ...]

    @property
    def tolerance(self) -> float:
        """How far results may differ from the plain loop's."""
        return 1e-5 if "float32" in self.source else 1e-9

    def load(self) -> dict[str, Any]:
        """What the source defines."""
        names: dict[str, Any] = {}
        exec(compile(self.source, "<fuzz>", "exec"), names)
        return names

    def script(self, configuration: Configuration) -> str:
        """A script that runs the program in one configuration and says what differs."""
        return (
            f"# Run in the folder `tests`.\n{SETTINGS}\n{self.source}\n\n"
            "from fuzz.compare import PlainLoop, check\nfrom fuzz.configurations import Configuration\n\n"
            f"check(PlainLoop(main, params), main, samples, {configuration!r}, tolerance={self.tolerance})\n"
        )


def make_program(choices: Choices) -> Program:
    """The program that some choices make."""
    callees: list[Cell] = []
    for number in range(choices.of((0, 0, 1, 2, 3))):
        reads = choices.of(("v", "vv", "vs", "V", "i"))
        callees.append(make_cell(choices, f"inner{number}", reads, choices.of(("v", "v", "vs")), list(callees)))
    walk = make_walk(choices, callees)
    main, makes, extra = _main(choices, callees, walk)
    arguments = [(text, leaf(choices, extra)) if extra else (text,) for text in walk.samples]
    if choices.often(25):
        arguments.append(arguments[0])
    texts = [f"({', '.join(each)},)" for each in arguments]
    sample_text = "samples = [\n" + "".join(f"    {text},\n" for text in texts) + "]\n"
    copies = choices.of((0, 0, 0, 0, 1, 3, 10, 40))
    if copies:
        sample_text += f"samples += [varied(sample, seed) for seed in range({copies}) for sample in samples]\n"
    definitions = [*(cell.source for cell in callees), *walk.sources, main]
    body = "\n\n".join([*definitions, sample_text])
    helpers = [text.strip("\n") + "\n" for name, text in HELPERS.items() if re.search(rf"\b{name}\b", body)]
    source = "\n\n".join([HEADER, PARAMETERS.strip("\n") + "\n", *helpers, *definitions, sample_text])
    configurations = tuple(make_configuration(choices, makes, extra == "v") for _ in range(choices.between(2, 3)))
    return Program(source, configurations)


def _main(choices: Choices, callees: list[Cell], walk: Walk) -> tuple[str, str, str]:
    """The function of one sample; what it makes, `one` or `items`; and the type of a second mapped argument if any."""
    extra = choices.of("svikbz") if choices.often(20) else ""
    head = f"def main(p, sample{', extra' if extra else ''}):\n"
    if walk.collects and choices.often(60):
        item = "h" if choices.often(50) else "{'h': h, 'n': jnp.int32(2)}"
        return f"{head}    return [{item} for h in encode(p, sample)]\n", "items", extra
    scope = Scope(choices, callees)
    if walk.collects:
        vectors = "encode(p, sample)" if len(walk.states) == 1 else "[h[0] for h in encode(p, sample)]"
        scope.lines.append(f"hs = {vectors}")
        scope.variables.append(("hs", "V"))
        scope.assign("v", "sum(hs)")
    else:
        scope.assign(walk.states, "encode(p, sample)")
    if extra:
        scope.variables.append(("extra", extra))
    if choices.often(15):
        place = choices.of((0, -1))
        is_array = "jnp.array" in walk.samples[0] or ("rows" in walk.samples[0] and walk.kind == "v")
        text = f"sample[{place}]" if is_array else f"jax.tree.leaves(sample)[{place}]"
        scope.assign(walk.kind, text)
    if not walk.collects and choices.often(15):
        scope.assign(walk.states, f"encode(p, {walk.again})")
    for _ in range(choices.below(4)):
        scope.add_statement()
    kinds = [choices.of("vvsi") for _ in range(choices.between(1, 3))]
    results = [f"jnp.int32({scope.result(kind)})" if kind == "i" else scope.result(kind) for kind in kinds]
    named = ", ".join([f"{number}: {result}" for number, result in enumerate(results)])
    returned = choices.of((", ".join(results), f"[{', '.join(results)}]", f"{{{named}}}"))
    return head + indented([*scope.lines, f"return {returned}"]), "one", extra
