"""The target of a fused program: the properties of a platform that decide the form of its loops."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A platform, as loops see it.

    Attributes:
        platform: the platform as JAX names it in `Device.platform`.
        widths: the possible widths of chunks, ascending. There is no width 1: XLA for CPUs (jax 0.10) fails to compile
            some programs with such chunks, "Failed to translate module to LLVM IR".
        most_widths: the largest number of widths in a loop. Each width makes the program longer.
        launch: the fixed cost of a chunk, in rows.
        hoists_trips: whether a round reads all its trip counts at its beginning. Otherwise the condition of each loop
            over chunks looks its own up.
        static_loops: whether `loops="auto"` means static trip counts.
    """

    platform: str
    widths: tuple[int, ...]
    most_widths: int
    launch: int
    hoists_trips: bool
    static_loops: bool = False


CPU = Target("cpu", (2, 4, 16, 64, 256, 512), most_widths=5, launch=6, hoists_trips=False)
"""A row costs the same at every width: weights stay in the caches from chunk to chunk (256 x 640: 8 us for one row, 28
for 8, 110 for 32, 430 for 128). A lookup in a condition costs nothing; before the loop it is one more operation."""

GPU = Target("gpu", (32, 128, 512, 2048), most_widths=2, launch=2000, hoists_trips=True)
"""A kernel of any width takes some microseconds. Each condition that looks up a table is one more kernel."""

TPU = Target("tpu", (32, 128, 512, 2048), most_widths=2, launch=1000, hoists_trips=True)
"""A fusion of any width costs some 1,800 cycles, and so does each lookup in a condition."""

TARGETS = {target.platform: target for target in (CPU, GPU, TPU)}
