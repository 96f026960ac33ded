"""The settings of a run of `jitbatch train`."""

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitbatch.cli._errors import CommandError
from jitbatch.cli._files import reason, write_whole

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
    names: int | None = None
    max_nodes: int | None = None
    forces: float | None = None


DEFAULTS = {
    settings.task: settings
    for settings in (
        Settings("listops", epochs=8, batch_size=128, hidden=128, learning_rate=5e-3, train_size=30_000, depth=2),
        Settings("sick", epochs=10, batch_size=32, hidden=128, learning_rate=2e-3, weight_decay=0.1, embedding=128),
        Settings("sst", epochs=8, batch_size=32, hidden=128, learning_rate=1e-3, weight_decay=0.1, embedding=128),
        Settings("tagger", epochs=10, batch_size=32, hidden=128, learning_rate=2e-3, weight_decay=1e-3, embedding=128),
        Settings("parser", epochs=10, batch_size=32, hidden=128, learning_rate=2e-3, weight_decay=1e-3, embedding=128),
        Settings(
            "ast",
            epochs=8,
            batch_size=64,
            hidden=64,
            learning_rate=3e-3,
            weight_decay=1.0,
            embedding=128,
            names=50,
            max_nodes=200,
        ),
        Settings("molecules", epochs=60, batch_size=16, hidden=32, learning_rate=5e-3, weight_decay=1.0, forces=0.0),
    )
}
"""The default settings of each task: sizes that a laptop trains in minutes."""

FILE = "settings.json"


@dataclass(frozen=True)
class Allowed:
    """The values that a setting may have: their type, a name for them, and a test of one."""

    type: type
    name: str
    test: Callable[[Any], bool]

    def __contains__(self, value: object) -> bool:
        of_type = type(value) is self.type or (self.type is float and type(value) is int)
        return of_type and self.test(value)

    def parse(self, text: str) -> Any:
        """The value of a text on the command line."""
        try:
            value = self.type(text)
        except ValueError:
            value = None
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r} is not {self.name}")
        return value


COUNT = Allowed(int, "a positive whole number below 2**31", lambda value: 0 < value < 2**31)
NON_NEGATIVE = Allowed(int, "a whole number, zero or more", lambda value: value >= 0)
TEXT = Allowed(str, "a text", lambda value: True)

ALLOWED = {
    "task": Allowed(str, f"one of {', '.join(DEFAULTS)}", lambda value: value in DEFAULTS),
    "epochs": COUNT,
    "batch_size": COUNT,
    "hidden": COUNT,
    "learning_rate": Allowed(float, "a positive number", lambda value: 0 < value < math.inf),
    "weight_decay": Allowed(float, "a number, zero or more", lambda value: 0 <= value < math.inf),
    # JAX's random keys have 32 bits, so larger seeds would give partly equal results.
    "seed": Allowed(int, "a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32),
    "executor": Allowed(str, f"one of {', '.join(EXECUTORS)}", lambda value: value in EXECUTORS),
    "limit": COUNT,
    "data": TEXT,
    "vectors": TEXT,
    "embedding": COUNT,
    "train_size": COUNT,
    "depth": COUNT,
    "names": COUNT,
    "max_nodes": COUNT,
    "forces": Allowed(float, "a number, zero or more", lambda value: 0 <= value < math.inf),
}
"""By name of a setting. A setting that is None by default may be None, too."""


def new_settings(options: Mapping[str, Any]) -> Settings:
    """The settings of a new run, from the options of the command line."""
    return dataclasses.replace(DEFAULTS[options["task"]], **options)


def resumed_settings(options: Mapping[str, Any], directory: Path) -> Settings:
    """The settings of a continued run. Options that are given again must agree with it."""
    settings = read_settings(directory)
    for name, value in options.items():
        if value != getattr(settings, name):
            option = name.replace("_", "-")
            raise CommandError(
                f"the run in {directory} has {option} {getattr(settings, name)}, not {value}. A run is resumed with "
                f"the settings it began with: leave --{option} out, or begin a new run with another --run"
            )
    return settings


def read_settings(directory: Path) -> Settings:
    path = directory / FILE
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CommandError(f"there is no run to resume in {directory}: it has no {FILE}") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {reason(error)}. Make it readable, or begin a new run") from None
    except ValueError as error:
        problem = f"it is not JSON ({error})"
    except RecursionError:
        problem = "it is nested too deeply"
    else:
        problem = _problem(values)
        if problem is None:
            return Settings(**values)
    raise CommandError(f"{path} is not what `jitbatch train` wrote: {problem}. Mend it, or begin a new run")


def _problem(values: Any) -> str | None:
    """The first reason why these are not the values of settings."""
    if not isinstance(values, dict):
        return f"it holds a {type(values).__name__}, not an object"
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    if missing := [name for name in fields if fields[name].default is dataclasses.MISSING and name not in values]:
        return f"it has no {', '.join(missing)}"
    if unknown := [name for name in values if name not in fields]:
        return f"{unknown[0]!r} is not a setting"
    for name in fields:  # the task is the first
        optional = name != "task" and getattr(DEFAULTS[values["task"]], name) is None
        value = values.get(name, fields[name].default)
        if not (value in ALLOWED[name] or (value is None and optional)):
            return f"{name} is {json.dumps(value)[:80]}, not {ALLOWED[name].name}"
    return None


def write_settings(settings: Settings, directory: Path) -> None:
    text = json.dumps(dataclasses.asdict(settings), indent=2) + "\n"
    write_whole(directory / FILE, text.encode())
