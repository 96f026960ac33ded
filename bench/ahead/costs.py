"""What a compiled program costs in a step, with the real trip counts of its loops."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ahead.hlo import COPIES, Instruction, Module
from ahead.trips import Trips

FIXED = 1800
"""Cycles that the TPU compiler's estimate has for the start of a fusion that reads or writes main memory. It has them
for every fusion; one whose operands and results are all in the fast memory does not have to wait for any."""

LARGE = 100_000
"""The size in bytes from which on a copy counts as one of an arena."""

_LOOP = re.compile(r"loop_\d+")
_NAMED = re.compile(r"^(chunks|pairs)_\d+_\d+$")


@dataclass
class Costs:
    """The costs of a step.

    Attributes:
        launches: fusions and other operations on arrays that a device starts one after the other.
        checks: evaluations of a loop's condition.
        cycles: the sum of the compiler's estimates.
        adjusted: the same, without the fixed cost of fusions that stay in the fast memory.
        copies: arena-sized copies in bodies of loops: how many there are in the program.
        copied: the bytes that these copy in a step.
        unknown: loops whose trip count is unknown; each counts as one trip, a scan as `assumed`.
    """

    launches: int = 0
    checks: int = 0
    cycles: float = 0.0
    adjusted: float = 0.0
    copies: int = 0
    copied: int = 0
    unknown: list[str] = field(default_factory=list)


def costs_of(module: Module, trips: Trips, assumed: int = 1) -> Costs:
    """Returns the costs of a step.

    Args:
        module: the compiled program.
        trips: the trip counts of the loops of a plan.
        assumed: the trips of a scan whose count the compiler does not tell.
    """
    costs = Costs()
    for one, times, in_loop in _runs(module, module.entry, 1, False, trips, costs, assumed):
        if one.operation == "while":
            costs.checks += times
            continue
        if not one.is_scalar:
            costs.launches += times
        cycles, fast = _cycles(module, one)
        costs.cycles += times * cycles
        costs.adjusted += times * fast
        if in_loop and one.operation in COPIES and one.nbytes >= LARGE:
            costs.copies += 1
            costs.copied += times * one.nbytes
    return costs


def _runs(
    module: Module, name: str, times: int, in_loop: bool, trips: Trips, costs: Costs, assumed: int
) -> Iterator[tuple[Instruction, int, bool]]:
    """Yields each instruction that runs, how often, and whether in a loop. A loop itself runs once for each check."""
    for one in module.computations.get(name, []):
        if one.is_free:
            continue
        if one.operation == "while":
            count = _trips(one, times, trips)
            if count is None:
                costs.unknown.append(one.scope[-120:])
                count = times * (1 if "scatter" in one.scope else assumed)
            yield one, times + count, in_loop
            yield from _runs(module, one.called("condition"), times + count, True, trips, costs, assumed)
            yield from _runs(module, one.called("body"), count, True, trips, costs, assumed)
        elif one.operation == "conditional":  # both phases of `cond` outside of loops: the larger one is the real one
            branch = max(one.branches, key=lambda name: len(module.computations.get(name, [])))
            yield from _runs(module, branch, times, in_loop, trips, costs, assumed)
        elif one.operation in ("call", "async-start"):
            yield from _runs(
                module, one.called("to_apply") or one.called("calls"), times, in_loop, trips, costs, assumed
            )
        else:
            yield one, times, in_loop


def _trips(loop: Instruction, times: int, trips: Trips) -> int | None:
    """Returns how often the body of a loop runs in a step, None if that is unknown."""
    found = _LOOP.findall(loop.scope)
    if found:
        direction = "backward" if "transpose(" in loop.scope else "forward"
        inside = loop.scope.rsplit(found[-1], 1)[1].split("/")
        depth = inside.count("while")
        names = [name for name in inside if _NAMED.match(name)]
        key = (f"{direction} {found[-1]}", *names, *[""] * (depth - 1 - len(names)))
        if key in trips:
            return trips[key]
    known = loop.known_trips
    return None if known is None else times * known


def _cycles(module: Module, one: Instruction) -> tuple[float, float]:
    """Returns the estimated cycles of an operation on a TPU: the compiler's, and adjusted (see `Costs`).

    The compiler has no estimate for gathers and updates; theirs are from the schedules that it dumps.
    """
    operands = [module.by_name[name] for name in one.operands if name in module.by_name]
    is_fast = one.in_fast_memory and all(own.in_fast_memory for own in operands)
    if one.cycles is not None:
        return one.cycles, max(one.cycles - FIXED, 0) + 20 if is_fast and one.cycles > FIXED else one.cycles
    inside = {own.operation for own in module.inside(one)} if one.operation == "fusion" else {one.operation}
    if "gather" in inside and operands:
        rows, *rest = [int(n) for n in (one.arrays[0][1] or "1").split(",")]
        lanes = max((rest[-1] if rest else 1) / 128, 1)
        cost = 600 + 1.7 * rows * lanes if operands[0].in_fast_memory else 1500 + 17 * rows
        return cost, cost
    if one.operation == "dynamic-update-slice" and len(operands) > 1:
        cost = 100 + operands[1].nbytes / 2048 if is_fast else 1500 + operands[1].nbytes / 546
        return cost, cost
    return 0, 0
