"""Settings of a run: written, read again, and refused where they are not what was written."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jitbatch.cli import main
from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import ALLOWED, DEFAULTS, Settings, read_settings, write_settings

LISTOPS = dataclasses.asdict(DEFAULTS["listops"])


def test_each_setting_has_allowed_values() -> None:
    assert list(ALLOWED) == [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize("task", DEFAULTS)
def test_settings_are_read_as_they_were_written(task: str, tmp_path: Path) -> None:
    settings = dataclasses.replace(DEFAULTS[task], seed=7, limit=3)
    write_settings(settings, tmp_path)
    assert read_settings(tmp_path) == settings
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_a_number_without_a_point_is_a_learning_rate(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(LISTOPS | {"learning_rate": 1}))
    assert read_settings(tmp_path).learning_rate == 1.0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (LISTOPS | {"hidden": "4"}, 'hidden is "4", not a positive whole number below 2**31'),
        (LISTOPS | {"hidden": True}, "hidden is true, not a positive whole number below 2**31"),
        (LISTOPS | {"epochs": 2.5}, "epochs is 2.5, not a positive whole number"),
        (LISTOPS | {"batch_size": [8]}, "batch_size is [8], not a positive whole number"),
        (LISTOPS | {"seed": -1}, "seed is -1, not a whole number from 0 to 2**32 - 1"),
        (LISTOPS | {"seed": None}, "seed is null, not a whole number"),
        (LISTOPS | {"depth": None}, "depth is null, not a positive whole number"),
        (LISTOPS | {"learning_rate": float("nan")}, "learning_rate is NaN, not a positive number"),
        (LISTOPS | {"executor": {}}, "executor is {}, not one of batch, loop"),
        (LISTOPS | {"data": 3}, "data is 3, not a text"),
        (LISTOPS | {"task": ["listops"]}, 'task is ["listops"], not one of listops, sick'),
        (LISTOPS | {"colour": "red"}, "'colour' is not a setting"),
        ({"task": "listops", "hidden": 3}, "it has no epochs, batch_size, learning_rate"),
        ([1, 2], "it holds a list, not an object"),
        (b"\xff\xfe\x00", "it is not JSON ("),
        (b"", "it is not JSON ("),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_other_content_is_refused(
    content: Any, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    before = path.read_bytes()
    assert main(["train", "listops", "--run", str(tmp_path), "--resume"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"jitbatch: error: {path} is not what `jitbatch train` wrote: {problem}")
    assert text.endswith(". Mend it, or begin a new run\n")
    assert path.read_bytes() == before


def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "settings.json").mkdir()
    with pytest.raises(CommandError, match=r"settings\.json cannot be read: Is a directory"):
        read_settings(tmp_path)
