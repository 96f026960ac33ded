"""`StepCapacity`: the sizes of a step's programs, for a checkpoint (see `step/jit`)."""

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

from jitbatch.plan.capacity import Capacity
from jitbatch.plan.rooms import Room
from jitbatch.util.errors import PlanError

FORMAT = "jitbatch step capacity 1"


class SavedRoom(NamedTuple):
    """A room of a step.

    Attributes:
        use: the name of the use.
        samples: the number of samples.
        nodes: the number of nodes of the largest batch in this room.
        capacity: the sizes of the room.
    """

    use: str
    samples: int
    nodes: int
    capacity: Capacity


@dataclass(frozen=True)
class StepCapacity:
    """The sizes of the programs of a step: `step.capacity` of a step that `jitbatch.jit` made.

    Attributes:
        rooms: the sizes of the programs, for each use of samples and each number of samples.
    """

    rooms: tuple[SavedRoom, ...] = ()

    def of(self, use: str) -> dict[int, list[Room]]:
        """Returns the rooms of a use, by the number of samples."""
        found: dict[int, list[Room]] = {}
        for room in self.rooms:
            if room.use == use:
                found.setdefault(room.samples, []).append(Room(room.capacity, room.nodes))
        return found

    def __str__(self) -> str:
        return "\n".join(f"{room.use}, {room.samples} samples: {room.capacity}" for room in self.rooms) or "no room"

    def to_json(self) -> str:
        """Returns the capacity as JSON text, for a checkpoint or a file."""
        rooms = [[room.use, room.samples, room.nodes, room.capacity.to_json()] for room in self.rooms]
        return json.dumps({"format": FORMAT, "digest": _digest(rooms), "rooms": rooms})

    @classmethod
    def from_json(cls, text: str | bytes) -> "StepCapacity":
        """Returns the capacity of a text that `to_json` made.

        Loading is safe for text from untrusted sources: it runs nothing from the text.

        Args:
            text: the JSON text.

        Raises:
            PlanError: `to_json` did not make this text, or the text has changed since.
        """
        try:
            about = json.loads(text)
            rows = about["rooms"]
            is_right = about["format"] == FORMAT and about["digest"] == _digest(rows)
            kinds = [tuple(map(type, row)) for row in rows]
        except (KeyError, TypeError, ValueError, RecursionError):
            raise PlanError("this is not the capacity of a step, as `step.capacity.to_json()` has made it") from None
        if not is_right or not set(kinds) <= {(str, int, int, str)}:
            raise PlanError("the capacity of a step is damaged, or of another release: begin without it")
        return cls(
            tuple(SavedRoom(use, samples, nodes, Capacity.from_json(sizes)) for use, samples, nodes, sizes in rows)
        )


def _digest(rooms: list[list[object]]) -> str:
    return hashlib.sha256(json.dumps(rooms).encode()).hexdigest()
