"""What the caller of a plan asks for."""

from typing import NamedTuple

from jitbatch.execute.registry import EXECUTORS
from jitbatch.plan.capacity import Capacity
from jitbatch.plan.differentiable import Names
from jitbatch.plan.plan import Plan
from jitbatch.plan.rooms import Rooms
from jitbatch.util.errors import ArgumentError


class PlanRequest(NamedTuple):
    """What the caller of a plan asks for, besides the samples.

    Attributes:
        like: the least sizes. `"auto"` uses the rooms of earlier plans; None takes the sizes of the batch.
        shards: the number of shards, or None.
        rooms: the rooms of a caller that plans repeatedly, or None.
        differentiable: the names of the inputs that are differentiated. Names that no sample has are ignored.
        is_eager: whether the plan runs immediately, and only once.
    """

    like: Plan | Capacity | str | None = None
    shards: int | None = None
    rooms: Rooms | None = None
    differentiable: Names = ()
    is_eager: bool = False

    @property
    def asks_for_a_program(self) -> bool:
        """Whether the request decides which program runs the plan, so that no other strategy may be chosen."""
        is_sized = isinstance(self.like, Capacity) or (
            isinstance(self.like, Plan) and EXECUTORS[self.like.static.executor].records_samples
        )
        return is_sized or self.shards is not None or self.rooms is not None or bool(self.differentiable)

    @property
    def least(self) -> Plan | Capacity | None:
        """The plan or capacity with the least sizes, if there is one."""
        return None if isinstance(self.like, str) else self.like

    def check(self, executor: str) -> None:
        """Raises `ArgumentError` if plans for this executor cannot be as requested."""
        if not (self.like == "auto" or isinstance(self.like, Plan | Capacity | None)):
            raise ArgumentError(f'like={self.like!r} is not a plan, the capacity of one, "auto" or None')
        if self.differentiable and executor in EXECUTORS and not EXECUTORS[executor].records_samples:
            raise ArgumentError(
                f"differentiable={self.differentiable}: a plan for the per-sample executor has no differentiable "
                "inputs. Leave the executor to jitbatch, or call .batch on the samples themselves inside jax.grad"
            )
