"""What a run of `jitbatch train` was asked for."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitbatch.cli._errors import CommandError

EXECUTORS = ("batch", "loop")


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers of a run depend on. Two runs with equal settings are equal bit for bit on CPU."""

    task: str
    epochs: int
    batch_size: int
    hidden: int
    learning_rate: float
    weight_decay: float = 0.0
    seed: int = 0
    executor: str = "batch"
    limit: int | None = None
    data: str | None = None
    vectors: str | None = None
    embedding: int | None = None
    train_size: int | None = None
    depth: int | None = None


DEFAULTS = {
    settings.task: settings
    for settings in (
        Settings("listops", epochs=8, batch_size=128, hidden=128, learning_rate=5e-3, train_size=30_000, depth=2),
        Settings("sick", epochs=10, batch_size=32, hidden=128, learning_rate=2e-3, weight_decay=0.1, embedding=128),
        Settings("sst", epochs=8, batch_size=32, hidden=128, learning_rate=1e-3, weight_decay=0.1, embedding=128),
        Settings("tagger", epochs=10, batch_size=32, hidden=128, learning_rate=2e-3, weight_decay=1e-3, embedding=128),
        Settings("parser", epochs=10, batch_size=32, hidden=128, learning_rate=2e-3, weight_decay=1e-3, embedding=128),
    )
}
"""What was not asked for, by task: sizes that a laptop trains in minutes."""

FILE = "settings.json"


def new_settings(given: Mapping[str, Any]) -> Settings:
    """The settings of a new run, from what was given on the command line."""
    return dataclasses.replace(DEFAULTS[given["task"]], **given)


def resumed_settings(given: Mapping[str, Any], directory: Path) -> Settings:
    """The settings of a run that is continued; what is given again must agree with it."""
    path = directory / FILE
    try:
        settings = Settings(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CommandError(f"there is no run to resume in {directory}: it has no {FILE}") from None
    except (ValueError, TypeError) as error:
        raise CommandError(f"{path} is not what `jitbatch train` wrote: {error}") from None
    for name, value in given.items():
        if value != getattr(settings, name):
            option = name.replace("_", "-")
            raise CommandError(
                f"the run in {directory} has {option} {getattr(settings, name)}, not {value}. A run is resumed with "
                f"the settings it began with: leave --{option} out, or begin a new run with another --run"
            )
    return settings


def write_settings(settings: Settings, directory: Path) -> None:
    text = json.dumps(dataclasses.asdict(settings), indent=2) + "\n"
    (directory / FILE).write_text(text, encoding="utf-8")
