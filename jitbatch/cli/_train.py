"""`jitbatch train`: train a model on a task, with checkpoints, a log and a live display."""

import argparse
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitbatch import keep_memory
from jitbatch.cli._errors import CommandError, require
from jitbatch.cli._settings import DEFAULTS, EXECUTORS, Settings, new_settings, resumed_settings, write_settings

if TYPE_CHECKING:
    from jitbatch.cli._display import Display
    from jitbatch.cli._trainer import Trainer

HELP = "train a model; every figure can be reproduced from its command"

TASKS = {
    "listops": "a Tree-LSTM that evaluates nested expressions, made on the fly",
    "sick": "a child-sum Tree-LSTM for semantic relatedness: DIR/{train,dev,test}/{a,b}.{toks,parents}, sim.txt",
    "sst": "a binary Tree-LSTM for sentiment, with a loss at every node: DIR/{train,dev,test}.txt",
    "tagger": "a BiLSTM tagger that also reads characters: DIR/{train,dev,test}.conllu, or a toy language",
    "parser": "a transition-based parser with a stack LSTM: DIR/{train,dev,test}.conllu, or a toy language",
}

NOT_SETTINGS = {"command", "run", "resume", "loop_samples"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", required=True, metavar="task")
    for name, text in TASKS.items():
        # What is not given is not there: defaults depend on the task, or come from the run that is resumed.
        task = tasks.add_parser(name, help=text, description=text, argument_default=argparse.SUPPRESS)
        defaults = DEFAULTS[name]

        def option(flag: str, kind: Any, text: str, name: str, task: Any = task, defaults: Any = defaults) -> None:
            task.add_argument(flag, type=kind, metavar=name, help=f"{text} (default: {getattr(defaults, _name(flag))})")

        option("--epochs", positive, "passes over the training data", "N")
        option("--batch-size", positive, "samples in a minibatch", "N")
        option("--hidden", positive, "size of hidden states", "N")
        option("--learning-rate", positive_float, "of Adam, at first; it falls to zero along a cosine", "X")
        option("--weight-decay", non_negative_float, "of AdamW", "X")
        if name == "listops":
            option("--train-size", positive, "expressions in the training data", "N")
            option("--depth", positive, "how deep operators are nested at most", "N")
        else:
            task.add_argument("--data", metavar="DIR", help="where the data is, as above")
            option("--embedding", positive, "size of word vectors without --vectors", "N")
            task.add_argument("--vectors", metavar="FILE", help="pretrained word vectors in GloVe's text format")
        task.add_argument("--seed", type=int, metavar="N", help="of data, parameters and order (default: 0)")
        task.add_argument("--limit", type=positive, metavar="N", help="use N samples of each split, for a quick try")
        task.add_argument(
            "--executor", choices=EXECUTORS, help="batch: by jitbatch; loop: sample by sample, slow (default: batch)"
        )
        task.add_argument("--run", metavar="DIR", type=Path, help=f"where results go (default: runs/{name}-1, -2, ...)")
        task.add_argument("--resume", action="store_true", help="continue the run in --run, or the last one")
        task.add_argument(
            "--loop-samples", type=non_negative, metavar="N",
            help=f"in the end, time a plain loop over N samples (default: {_loop_samples(name)})",
        )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    require(["flax.nnx", "optax", "orbax.checkpoint", "rich", "matplotlib"], "train")
    given = {name: value for name, value in vars(arguments).items() if name not in NOT_SETTINGS}
    resume = getattr(arguments, "resume", False)
    directory = _run_directory(arguments.task, getattr(arguments, "run", None), resume)
    settings = resumed_settings(given, directory) if resume else new_settings(given)
    return train(settings, directory, resume, getattr(arguments, "loop_samples", _loop_samples(settings.task)))


def train(settings: Settings, directory: Path, resume: bool, loop_samples: int) -> int:
    """Train, or train on, in a directory. Returns the exit code."""
    from jitbatch.cli._checkpoints import Checkpoints
    from jitbatch.cli._display import Display
    from jitbatch.cli._interrupt import catch_interrupts
    from jitbatch.cli._log import Log
    from jitbatch.cli._tasks import make_task
    from jitbatch.cli._trainer import Epoch, Trainer, as_json

    keep_memory()
    task = make_task(settings)
    trainer = Trainer(task, settings)
    directory.mkdir(parents=True, exist_ok=True)
    write_settings(settings, directory)
    log = Log(directory)
    with (
        closing(Checkpoints(directory / "checkpoints")) as checkpoints,
        Display(settings.epochs, len(task.train)) as display,
    ):
        display.say(f"{task.description}\nresults in {directory}")
        if resume:
            checkpoints.restore(trainer, warn=lambda text: display.say(f"warning: {text}"))
            log.resume(trainer.progress.step, trainer.progress.epoch)
            display.say(f"resumed after {trainer.progress.step} steps")

        def on_interrupt() -> None:
            display.stop_live_line()
            display.say("stopping after this step; once more stops at once")

        display.header()
        trainer.on_analysis = display.analysis
        with catch_interrupts(on_interrupt) as interrupt:
            for record in trainer.run():
                log.add(as_json(record))
                if isinstance(record, Epoch):
                    display.epoch(record)
                    checkpoints.save(trainer)
                    log.summarise()
                else:
                    display.step(record)
                if interrupt.signal is not None:
                    checkpoints.save(trainer)
                    display.say(
                        f"saved after {trainer.progress.step} steps. Go on by:"
                        f" jitbatch train {settings.task} --run {directory} --resume"
                    )
                    return interrupt.exit_code
        report(trainer, display, log, loop_samples)
    return 0


def report(trainer: "Trainer", display: "Display", log: Any, loop_samples: int) -> None:
    """What the run has achieved, and what else would have."""
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
    if loop_samples:
        epochs = [record for record in log.records if record["kind"] == "epoch"]
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


def _run_directory(task: str, given: Path | None, resume: bool) -> Path:
    """The directory of a run: the given one, the last one of its task to be resumed, or a new one."""
    numbers = [int(path.name[len(task) + 1 :]) for path in Path("runs").glob(f"{task}-*") if _is_run(path.name, task)]
    if given is not None:
        if not resume and given.exists() and any(given.iterdir()):
            raise CommandError(f"{given} is not empty. Continue the run in it by --resume, or give another --run")
        return given
    if resume and not numbers:
        raise CommandError(f"there is no run runs/{task}-N to resume. Give its directory by --run")
    return Path("runs") / f"{task}-{max(numbers) if resume else max(numbers, default=0) + 1}"


def _is_run(name: str, task: str) -> bool:
    return re.fullmatch(rf"{task}-\d+", name) is not None


def _loop_samples(task: str) -> int:
    return 16 if task == "listops" else 0


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def positive(text: str) -> int:
    return _number(text, int, "a positive whole number", lambda value: value > 0)


def non_negative(text: str) -> int:
    return _number(text, int, "a whole number, zero or more", lambda value: value >= 0)


def positive_float(text: str) -> float:
    return _number(text, float, "a positive number", lambda value: 0 < value < float("inf"))


def non_negative_float(text: str) -> float:
    return _number(text, float, "a number, zero or more", lambda value: 0 <= value < float("inf"))


def _number(text: str, kind: Any, wanted: str, allowed: Any) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value
