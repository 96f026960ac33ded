"""Advice: what to change, and what it would save. Without a predicted saving there is no advice.

A reason for several types of one function becomes advice if one type would save enough steps, time or compilation.
What is right as it is, such as a type for each layer, becomes a note.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jitbatch.execute.predicted_memory import Memory
from jitbatch.inspect.differences import Difference, compared, families
from jitbatch.inspect.gain import Predicted
from jitbatch.inspect.report import Advice, CellReport
from jitbatch.inspect.verdict import MOSTLY, are_narrow, narrow_cells
from jitbatch.ir.tables import ROW
from jitbatch.util import compat
from jitbatch.util.malloc import remedy
from jitbatch.util.readable import readable_count, readable_seconds

if TYPE_CHECKING:
    from jitbatch.inspect.explain import Group

WORTH = 0.1
"""The least fraction of the time of a batch that advice has to save."""

COMPILE, SOME = 0.5, 4
"""Advice that saves compilation alone has to save this many seconds, and be about at least `SOME` types."""

MANY = 8
"""The number of types from which on a type for each value in the data is too many: each new value compiles again. For a
type for each set of parameters, the number that is unlikely for layers of which each has many calls."""

WASTE = 0.5
"""The fraction of padding above which a plan gets advice."""


@dataclass(frozen=True, eq=False)
class Explained:
    """A plan, as advice sees it.

    Attributes:
        groups: the cell types, without those that this batch does not call.
        cells: their reports.
        types: the running types of the parts of each group, by its kinds and the part's name (a whole cell's is `""`).
        type_of: the type of each part, by the indices of its cell and part in the reports.
        predicted: the predicted times.
        static: the static part of the plan.
        samples: the number of samples.
        memory: the predicted memory.
        steps: the number of steps of the batch.
        steps_by: the number of steps under other policies.
    """

    groups: "Sequence[Group]"
    cells: Sequence[CellReport]
    types: Mapping[tuple[int, ...], Mapping[str, int]]
    type_of: Mapping[tuple[int, int], int]
    predicted: Predicted
    static: Any
    samples: int
    memory: Memory
    steps: int
    steps_by: Mapping[str, int]


class Variants(NamedTuple):
    """Types of one function with one kind of difference.

    Attributes:
        function: the function.
        difference: the difference between two of them.
        sides: all values that differ.
        sets: the types that would be one without the difference, in sets.
    """

    function: str
    difference: Difference
    sides: "list[str]"
    sets: "list[list[Group]]"

    @property
    def types(self) -> int:
        """The number of types."""
        return sum(map(len, self.sets))


def advise(plan: Explained) -> tuple[tuple[Advice, ...], tuple[Advice, ...]]:
    """Returns the advice for a plan, that with the largest saving first, and the notes. A line has one advice."""
    advice, notes = [*_of_plan(plan)], []
    told: set[str] = set()
    for (_, where), clusters in families(plan.groups).items():
        for variants in _variants(clusters, plan.static):
            found = _of_variants(variants, plan)
            if found is not None:
                told.add(where)
                advice.append(found)
            elif variants.difference.cause == "parameters":
                notes.append(_of_layers(variants))
    if plan.static.owner._options.dedupe:
        notes += [note for group in plan.groups for note in _of_keys(group, plan.cells)]
    advice += _of_width(plan, told)
    advice.sort(key=lambda one: -one.gain)
    first_of_line = {one.where or one.text: one for one in reversed(advice)}
    return tuple(one for one in advice if first_of_line[one.where or one.text] is one), tuple(notes)


# The whole plan


def _of_plan(plan: Explained) -> Iterator[Advice]:
    """Yields advice about effects, the policy, padding and memory."""
    static, predicted, costs = plan.static, plan.predicted, plan.predicted.costs
    total = predicted.seconds or 1.0
    if static.reason == "cells have effects":
        saved = plan.steps * (costs.step - costs.launch)
        yield Advice(
            "", "some cells have effects (jax.debug.print, a callback), so the plan runs step by step by the dispatch "
            "executor: take them out of what is trained", _saves_time(saved), saved / total,
        )  # fmt: skip
    if plan.steps_by and static.owner._options.policy != "auto":
        name, steps = min(plan.steps_by.items(), key=lambda entry: entry[1])
        gain = (plan.steps - steps) * (costs.launch if predicted.in_one_program else costs.step) / total
        if gain >= WORTH:
            saves = _saves(plan.steps - steps, plan, 0.0)
            yield Advice("", f"another policy needs fewer steps: use policy={name!r}", saves, gain)
    rows = sum(step.count for step in predicted.executed.steps)
    padded = sum(step.width for step in predicted.executed.steps)
    if padded > 256 and rows < (1 - WASTE) * padded:
        wasted = sum(
            (1 - step.count / step.width) * max(seconds - predicted.fixed(step.type), 0.0)
            for step, seconds in zip(predicted.executed.steps, predicted.launch_seconds, strict=True)
        )
        if wasted >= WORTH * total:
            yield Advice(
                "", f"{100 * (1 - rows / padded):.0f}% of the computed rows are padding: the plan has room for more "
                "(`like`), or steps are narrower than the smallest width that is compiled. Larger minibatches fill "
                "them", _saves_time(wasted), wasted / total,
            )  # fmt: skip
    if static.program.sizes is not None and (what := remedy(plan.memory.training)) is not None:
        yield Advice(
            "", f"a training step needs {plan.memory.training / 1e6:.0f} MB, which the C library gives back to the "
            f"system after every step: {what}", "It would save up to a third of the time of a training step", 1 / 3,
        )  # fmt: skip


def _saves(steps: int, plan: Explained, compilation: float) -> str:
    parts = []
    if steps > 0:
        parts.append(f"up to {readable_count(steps)} of {readable_count(plan.steps)} steps")
    if compilation > 0:
        parts.append(f"{readable_seconds(compilation)} of compilation")
    return f"It would save {' and '.join(parts)}" if parts else ""


def _saves_time(seconds: float) -> str:
    return f"It would save about {readable_seconds(seconds)} of each batch"


# Types of one function


def _variants(clusters: "Sequence[Sequence[Group]]", static: Any) -> list[Variants]:
    """Returns the types of a function by the kind of their difference."""
    found: dict[tuple[str, str, str], Variants] = {}
    for cluster in clusters:
        sets: dict[tuple[tuple[str, str, str], int], list[Group]] = {}
        for first, second, difference in compared(cluster, static):
            key = (difference.where, difference.what, difference.remedy)
            variants = found.setdefault(key, Variants(first.source.name, difference, [], []))
            for side in difference.sides:
                if side not in variants.sides:
                    variants.sides.append(side)
            if (key, id(first)) not in sets:
                sets[key, id(first)] = [first]
                variants.sets.append(sets[key, id(first)])
            sets[key, id(first)].append(second)
    return list(found.values())


def _of_variants(variants: Variants, plan: Explained) -> Advice | None:
    """Returns advice to make types of a function one type, if that saves enough, or None."""
    predicted, (_, what, _, advised, cause) = plan.predicted, variants.difference
    sets = [types for groups in variants.sets for types in _types_of_parts(groups, plan)]
    if variants.types < MANY and not _may_pay(sets, plan):
        return None
    saving = predicted.merge(sets)
    seconds = saving.seconds
    if cause == "parameters":
        seconds -= sum(map(predicted.copying, sets))
    if cause == "branch":
        seconds -= sum(map(predicted.computing_all, sets))
    gain = 0.0 if cause == "loop" else seconds / (predicted.seconds or 1.0)
    is_narrow = are_narrow([_main_part(group, plan) for groups in variants.sets for group in groups], plan.samples)
    if cause == "loop" and is_narrow:  # decorated turns run in steps of their own: the steps become wider, not fewer
        gain = sum(map(predicted.seconds_of, (t for types in sets for t in types))) / (predicted.seconds or 1.0) / 2
    if gain < WORTH or (cause == "parameters" and not is_narrow and variants.types < MANY):
        gain = 0.0
    grows = cause in ("value", "loop") and variants.types >= MANY
    compiles = grows or (cause == "other" and variants.types >= SOME and saving.compile >= COMPILE)
    if compiles:
        gain = max(gain, saving.compile / (predicted.costs.program + sum(predicted.compile_seconds.values())))
    if gain < WORTH:
        return None
    saved = _saves(0 if cause == "loop" else saving.steps, plan, saving.compile if compiles else 0.0)
    if not saved:
        calls = sum(group.calls or 0 for groups in variants.sets for group in groups)
        saved = f"Then turns of {readable_count(calls)} calls share steps" if calls else "Then turns share steps"
    if grows:
        saved += ". As it is, new samples can add types, and then compile again."
    would_do = "one" if len(variants.sets) == 1 else str(len(variants.sets))
    text = (
        f"`{variants.function}` has {variants.types} types where {would_do} would do: "
        f"{what.format(_listed(variants.sides))}. {advised}"
    )
    return Advice(variants.difference.where, text, saved, gain, variants.types)


def _types_of_parts(groups: "Sequence[Group]", plan: Explained) -> Iterator[list[int]]:
    """Yields the types that would be one if some cell types were: those of their parts before, in and after a loop."""
    by_part: dict[str, dict[int, None]] = {}
    for group in groups:
        for name, type_id in plan.types.get(group.kinds, {}).items():
            by_part.setdefault(name or "core", {})[type_id] = None
    yield from (list(types) for types in by_part.values() if len(types) > 1)


def _may_pay(sets: Sequence[Sequence[int]], plan: Explained) -> bool:
    """Returns whether advice can save enough, by a bound that takes no search."""
    predicted = plan.predicted
    types = {type_id for some in sets for type_id in some}
    fixed = sum(predicted.executed.least_steps[type_id] * predicted.fixed(type_id) for type_id in types)
    return fixed >= WORTH * predicted.seconds or sum(predicted.compile_seconds.get(t, 0.0) for t in types) >= COMPILE


def _main_part(group: "Group", plan: Explained) -> Any:
    types = plan.types.get(group.kinds, {})
    main = types.get("", types.get("core"))
    cell, part = next((at for at, type_id in plan.type_of.items() if type_id == main), (None, None))
    return None if cell is None or part is None else plan.cells[cell].parts[part]


def _listed(sides: Sequence[str]) -> str:
    if len(sides) > 4:
        return ", ".join(sides[:4]) + f", ... ({len(sides)} in all)"
    return " and ".join([*([", ".join(sides[:-1])] if sides[:-1] else []), sides[-1]])


# Notes


def _of_layers(variants: Variants) -> Advice:
    return Advice(
        variants.difference.where,
        f"`{variants.function}` is used with {len(variants.sides)} sets of parameters ({_listed(variants.sides)}): a "
        "type for each, as for layers of a network",
    )


def _of_keys(group: "Group", cells: Sequence[CellReport]) -> Iterator[Advice]:
    """Yields a note on a cell whose calls all differ because each has its own random key."""
    rows = zip(group.cell.cell.in_avals, group.cell.binding, strict=True)
    if not any(bound == ROW and compat.is_prng_key(aval.dtype) for aval, bound in rows):
        return
    cell = next((c for c in cells if (c.name, c.where) == (group.source.name, group.source.where)), None)
    if cell is not None and group.calls and group.calls > 1 and cell.distinct == group.calls:
        yield Advice(
            group.source.where,
            f"`{cell.name}` gets a random key of its own in each of {group.calls} calls, so that no two are equal and "
            "dedupe merges none. Right for dropout; where the rest of the cell does not need the key, move it to a "
            "cell without one",
        )


# Narrow steps


def _of_width(plan: Explained, told: set[str]) -> Iterator[Advice]:
    """Yields advice on a larger minibatch if much time is in narrow steps of functions without other advice."""
    found = [ids for ids in narrow_cells(plan.cells, plan.samples) if plan.cells[ids[0]].where not in told]
    narrow = {cell_id for ids in found for cell_id in ids}
    fixed = sum(
        plan.cells[cell_id].parts[part_id].steps * plan.predicted.fixed(type_id)
        for (cell_id, part_id), type_id in plan.type_of.items()
        if cell_id in narrow
    )
    gain = fixed / (plan.predicted.seconds or 1.0) / 2
    if gain < WORTH and sum(plan.cells[cell_id].share for cell_id in narrow) <= MOSTLY:
        return
    largest = max(found, key=lambda ids: sum(plan.cells[cell_id].share for cell_id in ids))
    cells = [plan.cells[cell_id] for cell_id in largest]
    yield Advice(
        cells[0].where,
        f"`{cells[0].function}` {_why_narrow(cells)}. Use a larger minibatch: it makes every step wider",
        f"Twice the samples would take about {100 * gain:.0f}% less time for each",
        gain,
    )


def _why_narrow(cells: Sequence[CellReport]) -> str:
    if len(cells) > 1:
        return f"runs {len(cells)} calls, each of a type of its own: no two do the same computation"
    main = cells[0].main
    runs = f"runs {main.distinct} calls in {main.steps} steps, {main.mean_width:.1f} at a time"
    if main.steps > main.least_steps:
        return f"{runs}, because they wait for calls of other types ({main.least_steps} steps would do without these)"
    return f"{runs}, because they wait for each other in a chain of {main.least_steps}, which no schedule can shorten"
