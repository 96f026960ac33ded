"""The options of planning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jitbatch.util.platforms import platform_of


@dataclass(frozen=True)
class Options:
    """The options of planning; see `jitbatch`."""

    policy: str
    executor: str
    dedupe: bool
    out: str
    loops: str = "auto"
    platform: str = "auto"
    differentiable: tuple[str, ...] = ()
    derives: bool = True
    """Whether plans may be differentiated."""

    @property
    def static_loops(self) -> bool | None:
        """Whether loops have static trip counts; None for the default of the platform."""
        return None if self.loops == "auto" else self.loops == "static"

    def platform_for(self, shared_leaves: Sequence[Any]) -> str:
        """Returns the platform that a plan is made for."""
        return platform_of(shared_leaves) if self.platform == "auto" else self.platform
