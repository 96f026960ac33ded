"""`jitbatch train`: train a model on a task, with checkpoints, a log and a live display."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitbatch import keep_memory
from jitbatch.cli import _processes
from jitbatch.cli._errors import CommandError, require
from jitbatch.cli._files import file_errors
from jitbatch.cli._runs import check_new, existing_run, held, new_run
from jitbatch.cli._settings import (
    ALLOWED,
    COUNT,
    DEFAULTS,
    EXECUTORS,
    NON_NEGATIVE,
    Settings,
    new_settings,
    resumed_settings,
    write_settings,
)

if TYPE_CHECKING:
    from jitbatch.cli._checkpoints import Checkpoints
    from jitbatch.cli._display import Display
    from jitbatch.cli._log import Log
    from jitbatch.cli._processes import Together
    from jitbatch.cli._trainer import Trainer

HELP = "train a model; every figure can be reproduced from its command"

TASKS = {
    "listops": "a Tree-LSTM that evaluates nested expressions, made on the fly",
    "sick": "a child-sum Tree-LSTM for semantic relatedness: DIR/{train,dev,test}/{a,b}.{toks,parents}, sim.txt",
    "sst": "a binary Tree-LSTM for sentiment, with a loss at every node: DIR/{train,dev,test}.txt",
    "tagger": "a BiLSTM tagger that also reads characters: DIR/{train,dev,test}.conllu, or a toy language",
    "parser": "a transition-based parser with a stack LSTM: DIR/{train,dev,test}.conllu, or a toy language",
    "ast": "a child-sum Tree-LSTM that guesses the first word of a function's name from its syntax tree: the standard "
    "library of the running Python, or DIR/**/*.py",
    "molecules": "message passing over atoms and bonds for energies of molecules: the G2 set, in the package ase",
}

NOT_SETTINGS = {"command", "words", "run", "resume", "loop_samples", *_processes.OPTIONS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", required=True, metavar="task")
    for name, text in TASKS.items():
        # Options without a value are absent: defaults depend on the task, or come from the resumed run.
        task = tasks.add_parser(name, help=text, description=text, argument_default=argparse.SUPPRESS)
        defaults = DEFAULTS[name]

        def option(flag: str, text: str, metavar: str, task: Any = task, defaults: Any = defaults) -> None:
            setting = flag.removeprefix("--").replace("-", "_")
            text = f"{text} (default: {getattr(defaults, setting)})"
            task.add_argument(flag, type=ALLOWED[setting].parse, metavar=metavar, help=text)

        option("--epochs", "passes over the training data", "N")
        option("--batch-size", "samples in a minibatch", "N")
        option("--hidden", "size of hidden states", "N")
        option("--learning-rate", "of Adam, at first; it falls to zero along a cosine", "X")
        option("--weight-decay", "of AdamW", "X")
        if name == "listops":
            option("--train-size", "expressions in the training data", "N")
            option("--depth", "how deep operators are nested at most", "N")
        elif name == "ast":
            task.add_argument(
                "--data", metavar="DIR", help="Python files to learn from in place of the standard library"
            )
            option("--names", "how many first words, the most frequent ones, are told apart", "N")
            option("--max-nodes", "functions with more nodes are left out", "N")
            option("--embedding", "size of the vectors of node types and words", "N")
        elif name == "molecules":
            option("--forces", "weight of the mean squared force, which is zero in molecules at rest", "X")
        else:
            task.add_argument("--data", metavar="DIR", help="where the data is, as above")
            option("--embedding", "size of word vectors without --vectors", "N")
            task.add_argument("--vectors", metavar="FILE", help="pretrained word vectors in GloVe's text format")
        option("--seed", "of data, parameters and order", "N")
        task.add_argument("--limit", type=COUNT.parse, metavar="N", help="use N samples of each split, for a quick try")
        task.add_argument(
            "--executor", choices=EXECUTORS, help="batch: by jitbatch; loop: sample by sample, slow (default: batch)"
        )
        task.add_argument("--run", metavar="DIR", type=Path, help=f"where results go (default: runs/{name}-1, -2, ...)")
        task.add_argument("--resume", action="store_true", help="continue the run in --run, or the last one")
        task.add_argument(
            "--loop-samples", type=NON_NEGATIVE.parse, metavar="N",
            help=f"in the end, time a plain loop over N samples (default: {_loop_samples(name)})",
        )  # fmt: skip
        _processes.add_arguments(task)


def run(arguments: argparse.Namespace) -> int:
    require(["flax.nnx", "optax", "orbax.checkpoint", "rich", "matplotlib"], "train")
    options = {name: value for name, value in vars(arguments).items() if name not in NOT_SETTINGS}
    directory = getattr(arguments, "run", None)
    loop_samples = getattr(arguments, "loop_samples", _loop_samples(arguments.task))
    if hasattr(arguments, "local_processes"):
        return _processes.start(arguments.local_processes, arguments.words)
    keep_memory()
    heartbeat = _processes.join(arguments)
    with limits_told():
        if getattr(arguments, "resume", False):
            return resume(options, directory, loop_samples, heartbeat)
        return begin(options, directory, loop_samples, heartbeat)


def begin(options: Mapping[str, Any], directory: Path | None, loop_samples: int, heartbeat: int) -> int:
    """Begin a run. Its directory is made once its data has been read, so that mistakes in that leave none."""
    settings = new_settings(options)
    together = _processes.Together(settings, heartbeat)
    with together.told(), ExitStack() as stack:
        if together.is_first:
            check_new(directory)
        trainer = make_trainer(settings)
        if together.is_first:
            directory = stack.enter_context(new_run(settings.task, directory))
            write_settings(settings, directory)
        run_directory = together.directory_of_first(directory if together.is_first else None)
        stack.enter_context(stop_told(settings, run_directory))
        return train(trainer, run_directory, together, resume=False, loop_samples=loop_samples)


def resume(options: Mapping[str, Any], directory: Path | None, loop_samples: int, heartbeat: int) -> int:
    """Train on in the directory of a run."""
    together = _processes.Together(None, heartbeat)
    with together.told(), ExitStack() as stack:
        if together.is_first:
            directory = existing_run(options["task"], directory)
            stack.enter_context(held(directory))
        directory = together.directory_of_first(directory if together.is_first else None)
        settings = resumed_settings(options, directory)
        together.compare(settings)
        trainer = make_trainer(settings)
        with stop_told(settings, directory):
            return train(trainer, directory, together, resume=True, loop_samples=loop_samples)


def make_trainer(settings: Settings) -> "Trainer":
    from jitbatch.cli._tasks import make_task
    from jitbatch.cli._trainer import Trainer

    return Trainer(make_task(settings), settings)


def train(trainer: "Trainer", directory: Path, together: "Together", resume: bool, loop_samples: int) -> int:
    """Train in a directory that process 0 holds; this process shows progress for all. Returns the exit code."""
    from rich.console import Console

    from jitbatch.cli._checkpoints import Checkpoints
    from jitbatch.cli._display import Display
    from jitbatch.cli._log import Log

    task, settings = trainer.task, trainer.settings
    log = Log(directory if together.is_first else None)
    with (
        closing(Checkpoints(directory / "checkpoints")) as checkpoints,
        Display(settings.epochs, len(task.train), None if together.is_first else Console(quiet=True)) as display,
    ):
        display.say(f"{task.description}\nresults in {directory}")
        if resume:
            checkpoints.restore(trainer, warn=lambda text: display.say(f"warning: {text}"))
            log.resume(trainer.progress.step, trainer.progress.epoch)
            display.say(f"resumed after {trainer.progress.step} steps")
        else:
            checkpoints.save(trainer)  # a run can be resumed from the beginning on
        display.header()
        display.compiling()
        exit_code = run_epochs(trainer, checkpoints, display, log, together)
        if exit_code == 0:
            if together.is_first:
                report(trainer, display, log, loop_samples)
            together.heard()  # the others end when the first has
        else:
            display.say(f"saved after {trainer.progress.step} steps. Go on by: {resume_command(settings, directory)}")
    return exit_code


def run_epochs(
    trainer: "Trainer", checkpoints: "Checkpoints", display: "Display", log: "Log", together: "Together"
) -> int:
    """Train to the end, or until someone interrupts; all is saved then. Returns the exit code."""
    from jitbatch.cli._interrupt import catch_interrupts
    from jitbatch.cli._trainer import Epoch, as_json

    def on_interrupt() -> None:
        display.stop_live_line()
        display.say("stopping after this step; once more stops at once")

    with catch_interrupts(on_interrupt) as interrupt:
        for record in trainer.run(together.of_first):
            log.add(as_json(record))
            if isinstance(record, Epoch):
                display.epoch(record)
            else:
                display.step(record)
            wishes = together.heard(stop=interrupt.signal is not None, save=checkpoints.are_old)
            if isinstance(record, Epoch) or wishes:
                checkpoints.save(trainer)
            if isinstance(record, Epoch):
                log.summarise()
            if "stop" in wishes:
                return interrupt.exit_code
    return 0


@contextmanager
def stop_told(settings: Settings, directory: Path) -> Iterator[None]:
    """Say how to continue a run that ends because a file cannot be written, as on a full disk."""
    advice = f"Its checkpoints are kept. Mend that, and go on by: {resume_command(settings, directory)}"
    with file_errors(f"the run in {directory} has stopped, since a file could not be written or read", advice):
        yield


@contextmanager
def limits_told() -> Iterator[None]:
    """Say in one line that Python's stack or the memory is too small."""
    import jax

    try:
        yield
    except RecursionError:
        raise CommandError(
            f"a sample is nested too deeply for Python's limit of {sys.getrecursionlimit()} calls. Leave the deepest "
            "samples out of the data; for ListOps, give a smaller --depth"
        ) from None
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise CommandError(
            f"there is not enough memory: {str(error).partition(chr(10))[0][:200]}. Begin a new run with a smaller "
            "--hidden or --batch-size"
        ) from None


def report(trainer: "Trainer", display: "Display", log: "Log", loop_samples: int) -> None:
    """Print the results of the run, and those of the baselines."""
    from jitbatch.cli._display import figures
    from jitbatch.cli._speed import loop_samples_per_second

    display.stop_live_line()
    progress, task = trainer.progress, trainer.task
    test = trainer.evaluate_best(task.test)
    display.say(f"test, of epoch {progress.best_epoch} (best on dev): {figures(test)}")
    baselines = {name: achieved() for name, achieved in task.baselines.items()}
    for name, achieved in baselines.items():
        display.say(f"test, {name}: {figures({next(iter(test)): achieved})}")
    final: dict[str, Any] = {"best_epoch": progress.best_epoch, "test": test, "baselines": baselines}
    epochs = [record for record in log.records if record["kind"] == "epoch"]
    if loop_samples and epochs:
        seconds = sum(sum(epoch["seconds"].values()) for epoch in epochs)
        trained = len(epochs) * len(task.train) / seconds
        loop = loop_samples_per_second(task, task.train[:loop_samples])
        display.say(
            f"training: {trained:,.0f} samples/s, with all analysis and compilation; a plain loop over samples:"
            f" {loop:,.1f}/s; {trained / loop:,.0f} times as fast"
        )
        final |= {"samples_per_second": trained, "loop_samples_per_second": loop}
    log.add({"kind": "final", "step": progress.step, "epoch": progress.epoch, **final})


# Parts of the above


def resume_command(settings: Settings, directory: Path) -> str:
    return f"jitbatch train {settings.task} --run {shlex.quote(str(directory))} --resume"


def _loop_samples(task: str) -> int:
    return 16 if task == "listops" else 0
