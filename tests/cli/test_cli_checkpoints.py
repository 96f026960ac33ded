"""Checkpoints: what is restored is what was saved, and what is damaged is noticed."""

import dataclasses
import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jitbatch import StepCapacity
from jitbatch.cli._checkpoints import SECONDS, Checkpoints
from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import new_settings
from jitbatch.cli._task import Task
from jitbatch.cli._tasks import make_task
from jitbatch.cli._trainer import Trainer

SETTINGS = new_settings({"task": "listops", "hidden": 3, "limit": 4, "train_size": 20, "depth": 1})


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(SETTINGS)


def trainer_at(task: Task, step: int) -> Trainer:
    """A trainer with parameters of its own, as if after some steps."""
    trainer = Trainer(task, SETTINGS)
    trainer.model = jax.tree.map(lambda leaf: leaf + step, trainer.model)
    trainer.best = nnx.state(trainer.model)
    trainer.progress.step, trainer.progress.summed_loss = step, 0.1 * step
    trainer.steps["update"](trainer.model, trainer.optimizer, task.train[: step + 1])
    return trainer


def leaves(trainer: Trainer) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((trainer.model, trainer.optimizer, trainer.best))]


@pytest.fixture
def saved(task: Task, tmp_path: Path) -> Path:
    """Checkpoints of three steps, of which the last two are kept."""
    with closing(Checkpoints(tmp_path / "checkpoints")) as checkpoints:
        for step in (0, 1, 2):
            checkpoints.save(trainer_at(task, step))
    return tmp_path / "checkpoints"


def restored(task: Task, directory: Path) -> tuple[Trainer, list[str]]:
    warnings: list[str] = []
    trainer = Trainer(task, SETTINGS)
    trainer.model = nnx.clone(trainer.model)  # a restored trainer changes its model, which others begin with here
    with closing(Checkpoints(directory)) as checkpoints:
        checkpoints.restore(trainer, warnings.append)
    return trainer, warnings


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_everything_is_restored(task: Task, saved: Path) -> None:
    trainer, warnings = restored(task, saved)
    expected = trainer_at(task, 2)
    assert warnings == []
    assert trainer.progress == expected.progress
    assert trainer.capacities == expected.capacities
    assert len(trainer.capacities["update"].rooms) == 1
    for ours, theirs in zip(leaves(trainer), leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()
    assert sorted(int(path.name) for path in saved.iterdir()) == [1, 2]


# Orbax gives up while some of its reads are still under way, and these then find no event loop.
while_reading = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def truncate(checkpoint: Path) -> None:
    for path in checkpoint.rglob("d/*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@while_reading
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(task: Task, saved: Path) -> None:
    truncate(saved / "2")
    trainer, (warning,) = restored(task, saved)
    assert warning.startswith("checkpoint 2 cannot be read, trying the one before it: ")
    assert trainer.progress.step == 1
    assert leaves(trainer)[0].tobytes() == leaves(trainer_at(task, 1))[0].tobytes()


@while_reading
def test_saving_after_a_fallback_keeps_the_checkpoint_that_was_good(task: Task, saved: Path) -> None:
    truncate(saved / "2")
    trainer = Trainer(task, SETTINGS)
    with closing(Checkpoints(saved)) as checkpoints:
        checkpoints.restore(trainer, lambda text: None)
        checkpoints.save(trainer_at(task, 2))
    assert names(saved) == ["1", "3"]
    assert restored(task, saved)[0].progress.step == 2


def test_a_step_that_was_saved_before_is_saved_beside_it(task: Task, saved: Path) -> None:
    """As after an interrupt in the last step of an epoch, which is evaluated when the run is resumed."""
    later = trainer_at(task, 2)
    later.progress.epoch = 1
    with closing(Checkpoints(saved)) as checkpoints:
        checkpoints.save(later)
    assert names(saved) == ["2", "3"]
    assert restored(task, saved)[0].progress.epoch == 1


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit there")
@pytest.mark.parametrize("size", [10, 2000])
def test_a_checkpoint_that_cannot_be_written_leaves_the_others(size: int, task: Task, tmp_path: Path) -> None:
    """Files that may not grow fail as on a full disk: those that Python writes, and those that TensorStore does."""
    import resource

    wide = make_task(dataclasses.replace(SETTINGS, hidden=64))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(trainer_at(wide, 1))
        later = trainer_at(wide, 1)  # of the step that is saved
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                checkpoints.save(later)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    trainer, warnings = restored(wide, tmp_path)
    assert (trainer.progress.step, warnings) == (1, [])
    assert leaves(trainer)[0].tobytes() == leaves(trainer_at(wide, 1))[0].tobytes()
    with closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(later)
    assert names(tmp_path) == ["0", "1"]  # what was begun is removed


def test_checkpoints_grow_old(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with closing(Checkpoints(tmp_path)) as checkpoints:
        now = SECONDS + 1
        assert checkpoints.are_old
        checkpoints.save(trainer_at(task, 1))
        assert not checkpoints.are_old


def test_arrays_that_are_not_those_saved_are_noticed(task: Task, saved: Path) -> None:
    about = saved / "2" / "about" / "metadata"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"digest": "another"}))
    trainer, (warning,) = restored(task, saved)
    assert "its arrays, or what is said of them, are not those that were saved" in warning
    assert trainer.progress.step == 1


def changed(checkpoint: Path, **about: Any) -> None:
    path = checkpoint / "about" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | about))


def test_progress_and_capacities_that_are_not_those_saved_are_noticed(task: Task, saved: Path) -> None:
    progress = dataclasses.asdict(trainer_at(task, 2).progress)
    changed(saved / "2", progress=progress | {"samples": 8})
    trainer, (warning,) = restored(task, saved)
    assert "what is said of them, are not those that were saved" in warning
    assert trainer.progress.step == 1


def test_nothing_in_a_checkpoint_is_a_pickle(task: Task, saved: Path) -> None:
    about = json.loads((saved / "2" / "about" / "metadata").read_text())
    restored = {name: StepCapacity.from_json(text) for name, text in about["rooms"].items()}
    assert restored == trainer_at(task, 2).capacities
    for path in saved.rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith(b"\x80\x04")  # of pickle's protocols 4 and later
            assert b"jitbatch.plan.capacity" not in path.read_bytes()


def test_checkpoints_of_an_earlier_release_are_refused_and_not_unpickled(task: Task, saved: Path) -> None:
    import base64
    import pickle

    for step in ("1", "2"):
        changed(saved / step, rooms=base64.b64encode(pickle.dumps({})).decode("ascii"))
    with pytest.raises(
        CommandError, match="an earlier release of jitbatch saved its checkpoints, with pickles in them"
    ):
        restored(task, saved)


def test_other_data_is_refused(task: Task, saved: Path) -> None:
    other = dataclasses.replace(task, train=task.train[::-1])
    with pytest.raises(CommandError, match="its training data, or how words in it are numbered, is not what it was"):
        restored(other, saved)


@while_reading
def test_without_a_good_checkpoint_a_run_is_not_resumed(task: Task, saved: Path, tmp_path: Path) -> None:
    truncate(saved / "1")
    truncate(saved / "2")
    with pytest.raises(CommandError, match="none of its 2 checkpoints can be read"):
        restored(task, saved)
    with pytest.raises(CommandError, match="it has no checkpoint"):
        restored(task, tmp_path / "empty")
