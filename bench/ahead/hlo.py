"""Optimised HLO as text: its computations, and what runs in each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
"""The size of an element; 4 for other types."""

FREE = {"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "opt-barrier", "partition-id"}
"""Operations that a device does not run."""

COPIES = ("copy", "copy-start")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
        name, type, operation, operands: its name, its type as text, its operation, and the names of its operands.
        rest: the text behind the operands.
    """

    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    rest: str

    @cached_property
    def nbytes(self) -> int:
        """The size of its result."""
        return sum(BYTES.get(dtype, 4) * prod(map(int, filter(None, dims.split(",")))) for dtype, dims in self.arrays)

    @cached_property
    def arrays(self) -> list[tuple[str, str]]:
        """The dtype and the dimensions, as text, of each array of its result."""
        return _ARRAY.findall(self.type)

    @cached_property
    def is_scalar(self) -> bool:
        return all(not dims for _, dims in self.arrays)

    @cached_property
    def in_fast_memory(self) -> bool:
        """Whether a TPU keeps the result in its vector or scalar memory."""
        layouts = re.findall(r"\w+\[([\d,]*)\](\{[^}]*\})?", self.type)
        return all(not dims or "S(1)" in layout or "S(6)" in layout for dims, layout in layouts)

    @cached_property
    def cycles(self) -> int | None:
        """The estimate of the TPU compiler, None if there is none."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(found.group(1)) if found else None

    @cached_property
    def known_trips(self) -> int | None:
        """The trip count of a loop, if the compiler knows it."""
        found = re.search(r'known_trip_count":\{"n":"(\d+)"', self.rest)
        return int(found.group(1)) if found else None

    @cached_property
    def scope(self) -> str:
        """The names of the operation in the traced program."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found.group(1) if found else ""

    @property
    def is_free(self) -> bool:
        return self.operation in FREE

    def called(self, key: str) -> str:
        """Returns the name of a computation that it calls: its `body`, `condition`, `calls` or `to_apply`."""
        found = re.search(key + r"=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else ""

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional."""
        found = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        if found:
            return re.findall(r"%?([\w.\-]+)", found.group(1))
        return [self.called("true_computation"), self.called("false_computation")]


class Module:
    """A compiled program.

    Attributes:
        computations: the instructions of each computation.
        entry: the name of the computation that runs first.
        by_name: all instructions.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] | None = None
        for line in text.splitlines():
            if head := _COMPUTATION.match(line):
                current = self.computations.setdefault(head.group(2), [])
                self.entry = head.group(2) if head.group(1) else self.entry
            elif line.startswith("}"):
                current = None
            elif current is not None and (found := _INSTRUCTION.match(line)):
                current += _parsed(found.group(1), found.group(2))
        self.by_name = {one.name: one for own in self.computations.values() for one in own}

    def inside(self, fusion: Instruction) -> Iterator[Instruction]:
        """Yields what a fusion consists of."""
        for one in self.computations.get(fusion.called("calls"), []):
            if one.operation == "fusion":
                yield from self.inside(one)
            else:
                yield one


def _parsed(name: str, text: str) -> list[Instruction]:
    end = _closing(text) + 1 if text.startswith("(") else text.index(" ")
    type_, text = text[:end], text[end:].lstrip()
    found = re.match(r"([\w\-]+)\(", text)
    if not found:
        return []
    operation = found.group(1)
    arguments = text[len(operation) :]
    end = _closing(arguments) + 1
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments[:end]))
    return [Instruction(name, type_, operation, operands, arguments[end:])]


def _closing(text: str) -> int:
    """Returns the position of the bracket that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    return len(text) - 1
