"""The options of planning."""

from dataclasses import dataclass

from jitbatch.record.shared_arguments import SharedArguments


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

    def platform_for(self, shared: SharedArguments) -> str:
        """Returns the platform that a plan with these shared arguments is made for."""
        return shared.platform if self.platform == "auto" else self.platform
