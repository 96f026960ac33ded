"""The predicted time of a batch by the cost model, and the time that it would save to run several types as one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitbatch.inspect.executed import Executed
from jitbatch.ir.ranks import find_ranks
from jitbatch.tune.cost import Costs, cell_price, known_costs, step_seconds, work_of


class Saving(NamedTuple):
    """What is saved if some types become one: steps and seconds of each batch, and seconds of compilation."""

    steps: int
    seconds: float
    compile: float


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predicted times of the steps of a plan.

    Attributes:
        executed: the steps.
        in_one_program: whether the executor runs all steps in one program.
        costs: the costs of the backend.
    """

    executed: Executed
    in_one_program: bool
    costs: Costs = field(default_factory=known_costs)

    @cached_property
    def launch_seconds(self) -> list[float]:
        """The seconds of each launch. The launches of one step share its time by their rows."""
        steps, numbers = self.executed.steps, self.executed.step_numbers
        rows = np.bincount(numbers, weights=[step.width for step in steps]).tolist()
        return [
            self._step(step.type, int(rows[number])) * step.width / rows[number]
            for step, number in zip(steps, numbers, strict=True)
        ]

    @cached_property
    def seconds(self) -> float:
        """The seconds of all steps."""
        return sum(self.launch_seconds)

    @cached_property
    def compile_seconds(self) -> dict[int, float]:
        """The seconds to compile each running type in all its widths."""
        widths: dict[int, set[int]] = {}
        for step in self.executed.steps:
            widths.setdefault(step.type, set()).add(step.width)
        return {type_id: self.price(type_id, len(some)) for type_id, some in widths.items()}

    def price(self, type_id: int, widths: int) -> float:
        """Returns the seconds to compile a type in a number of widths."""
        return cell_price(work_of(self.executed.kinds[type_id]), widths, self.in_one_program, self.costs)

    def fixed(self, type_id: int) -> float:
        """Returns the seconds of a step of a type that do not depend on its width."""
        return self._step(type_id, 0)

    def seconds_of(self, type_id: int) -> float:
        """Returns the seconds of all steps of a type."""
        launches = zip(self.executed.steps, self.launch_seconds, strict=True)
        return sum(seconds for step, seconds in launches if step.type == type_id)

    def rows(self, type_id: int) -> int:
        """Returns the number of nodes of a type."""
        return int(np.count_nonzero(self.executed.node_type == type_id))

    def merge(self, sets: Iterable[Sequence[int]]) -> Saving:
        """Returns the saving if the types of each set were one type.

        It compares lower bounds on the number of steps before and after. The work of rows is assumed to stay.
        """
        steps, seconds, compilation = 0, 0.0, 0.0
        problem, least = self.executed.problem, self.executed.least_steps
        for types in sets:
            node_type = self.executed.node_type.copy()
            node_type[np.isin(node_type, types)] = types[0]
            rank = find_ranks(node_type, problem.level, problem.reader, problem.read)
            after = int(rank[node_type == types[0]].max(initial=-1)) + 1
            steps += sum(least[type_id] for type_id in types) - after
            seconds += sum(least[type_id] * self.fixed(type_id) for type_id in types)
            seconds -= after * max(self.fixed(type_id) for type_id in types)
            prices = [self.compile_seconds.get(type_id, 0.0) for type_id in types]
            compilation += sum(prices) - max(prices)
        return Saving(steps, seconds, compilation)

    def copying(self, types: Sequence[int]) -> float:
        """Returns the seconds to read parameters once for each row, as with weights that are stacked and indexed."""
        work = [work_of(self.executed.kinds[type_id]) for type_id in types]
        return sum(self.rows(t) * w.bound_bytes for t, w in zip(types, work, strict=True)) * self.costs.byte

    def computing_all(self, types: Sequence[int]) -> float:
        """Returns the further seconds to compute all of some types for each row and to select one result."""
        flops = [work_of(self.executed.kinds[type_id]).flops for type_id in types]
        rows = [self.rows(type_id) for type_id in types]
        return sum(count * (sum(flops) - own) for count, own in zip(rows, flops, strict=True)) * self.costs.flop

    def _step(self, type_id: int, rows: int) -> float:
        return step_seconds(work_of(self.executed.kinds[type_id]), rows, self.in_one_program, self.costs)
