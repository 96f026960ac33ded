"""Ctrl-C: the first asks to stop, the second stops."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether someone has asked to stop, and by which signal."""

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """As shells have it: 130 after Ctrl-C, also where another process of the run got it."""
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def catch_interrupts(on_first: Callable[[], None]) -> Iterator[Interrupt]:
    """Note SIGINT and SIGTERM instead of stopping; the same signal again has its default effect, at once."""
    interrupt = Interrupt()

    def note(signal_id: int, frame: FrameType | None) -> None:
        interrupt.signal = signal_id
        signal.signal(signal_id, signal.SIG_DFL)
        on_first()

    before = {signal_id: signal.signal(signal_id, note) for signal_id in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for signal_id, handler in before.items():
            signal.signal(signal_id, handler)
