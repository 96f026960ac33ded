"""The display of a training: a line for each epoch, and on a terminal a live line of the running one."""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    from jitbatch.cli._trainer import Epoch, Step


class Display:
    """Lines of text, for a terminal or a file. Use it as a context.

    On a terminal, the last line is the epoch that runs and changes with every step.
    """

    def __init__(self, epochs: int, samples: int, console: Console | None = None):
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._epochs, self._samples = epochs, samples
        self._metrics = ""
        columns = (TextColumn("{task.fields[before]}"), BarColumn(20), TextColumn("{task.fields[after]}"))
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._line = self._progress.add_task("", total=samples, before="", after="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop_live_line()

    def stop_live_line(self) -> None:
        """Leave the terminal as it was, with its cursor. Lines can still be said."""
        if self._console.is_terminal:
            self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def header(self) -> None:
        self.say("epoch    samples/s    loss   analysis / compile / execution   dev")

    def compiling(self) -> None:
        """Print the reason for waiting before the first step."""
        if self._console.is_terminal:
            self._progress.update(
                self._line, completed=0, total=self._samples, before="compiling the first step", after=""
            )

    def step(self, step: "Step") -> None:
        if self._console.is_terminal:
            spent = sum(step.seconds.values())
            self._progress.update(
                self._line,
                completed=step.samples,
                total=self._samples,
                before=f"epoch {step.epoch}/{self._epochs}",
                after=f"{step.samples / spent:,.0f} samples/s  loss {step.mean_loss:.4f}  {shares(step.seconds)}"
                f"  {self._metrics}",
            )

    def epoch(self, epoch: "Epoch") -> None:
        self._metrics = figures(epoch.dev)
        work = " / ".join(f"{seconds:.1f} s" for seconds in epoch.seconds.values())
        line = f"{epoch.epoch:5}  {epoch.samples_per_second:11,.0f}  {epoch.loss:6.4f}   {work:>30}   {self._metrics}"
        self.say(line + ("  best" if epoch.is_best else ""))


def figures(metrics: Mapping[str, float]) -> str:
    """
    >>> figures({"pearson": 0.81234, "mse": 0.4})
    'pearson 0.8123, mse 0.4000'
    """
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def shares(seconds: Mapping[str, float]) -> str:
    """
    >>> shares({"analysis": 1.0, "compile": 0.0, "execution": 3.0})
    'analysis 25%, compile 0%, execution 75%'
    """
    total = sum(seconds.values()) or 1.0
    return ", ".join(f"{work} {part / total:.0%}" for work, part in seconds.items())
