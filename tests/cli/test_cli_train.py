"""Runs of `jitbatch train`: what they leave, and that they can be repeated, interrupted and resumed exactly."""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitbatch.cli import _baselines, main
from jitbatch.cli._checkpoints import Checkpoints
from jitbatch.cli._display import Display
from jitbatch.cli._log import Log

SMALL = ["--limit", "22", "--batch-size", "8", "--hidden", "4", "--epochs", "3", "--train-size", "100", "--depth", "2"]
STEPS = 3  # in each of the epochs: 8, 8 and 6 samples


@pytest.fixture(autouse=True)
def quick_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_baselines, "bag_of_symbols", lambda *args: 0.25)


def train(directory: Path, *options: str) -> int:
    return main(["train", "listops", "--run", str(directory), "--loop-samples", "0", *options])


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def numbers(directory: Path) -> list[dict[str, Any]]:
    """What a run computed, without how long it took."""
    timed = {"seconds", "samples_per_second", "loop_samples_per_second", "compilations"}
    return [{key: value for key, value in record.items() if key not in timed} for record in records(directory)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(_baselines, "bag_of_symbols", lambda *args: 0.25)
        assert main(["train", "listops", "--run", str(directory), "--loop-samples", "2", *SMALL]) == 0
    return directory


@pytest.fixture
def interrupt_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Make Ctrl-C arrive while a step is shown."""
    shown, before = Display.step, signal.getsignal(signal.SIGINT)
    wanted = -1

    def step(self: Display, record: Any) -> None:
        shown(self, record)
        if record.step == wanted:
            signal.raise_signal(signal.SIGINT)

    def choose(number: int) -> None:
        nonlocal wanted
        wanted = number

    monkeypatch.setattr(Display, "step", step)
    yield choose
    assert signal.getsignal(signal.SIGINT) is before


# What a run leaves


def test_the_log_has_every_step_epoch_and_the_result(whole: Path) -> None:
    kinds = [record["kind"] for record in records(whole)]
    assert kinds == [*["step"] * STEPS, "epoch"] * 3 + ["final"]
    steps = [record for record in records(whole) if record["kind"] == "step"]
    assert [step["step"] for step in steps] == list(range(1, 3 * STEPS + 1))
    assert [step["samples"] for step in steps] == [8, 16, 22] * 3
    last = records(whole)[-2]
    weights = np.array([8, 8, 6]) / 22
    assert last["loss"] == pytest.approx(weights @ [step["loss"] for step in steps[-STEPS:]])
    assert set(last["seconds"]) == {"analysis", "compile", "execution"}


def test_the_result_is_that_of_the_epoch_that_was_best_on_dev(whole: Path) -> None:
    final = records(whole)[-1]
    epochs = [record for record in records(whole) if record["kind"] == "epoch"]
    best = max(epochs, key=lambda epoch: epoch["dev"]["accuracy"])
    assert final["best_epoch"] == best["epoch"]
    assert 0 <= final["test"]["accuracy"] <= 1
    assert final["baselines"]["bag of symbols"] == 0.25
    assert final["samples_per_second"] > 0
    assert final["loop_samples_per_second"] > 0  # which is faster is nothing for a test


def test_the_table_and_the_picture_are_of_all_epochs(whole: Path) -> None:
    with open(whole / "epochs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    epochs = [record for record in records(whole) if record["kind"] == "epoch"]
    assert [float(row["loss"]) for row in rows] == [epoch["loss"] for epoch in epochs]
    assert [float(row["dev accuracy"]) for row in rows] == [epoch["dev"]["accuracy"] for epoch in epochs]
    assert (whole / "curve.png").read_bytes().startswith(b"\x89PNG")


# Repeating


def test_a_seed_is_a_run_bit_for_bit_and_another_seed_another_run(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "again", *SMALL)
    final = numbers(tmp_path / "again")
    assert final == numbers(whole)
    train(tmp_path / "other", *SMALL, "--seed", "1", "--epochs", "1")
    assert numbers(tmp_path / "other")[0]["loss"] != final[0]["loss"]


def test_the_plain_loop_has_the_same_losses(tmp_path: Path) -> None:
    few = [*SMALL, "--limit", "6", "--batch-size", "4", "--epochs", "1"]
    train(tmp_path / "batch", *few)
    train(tmp_path / "loop", *few, "--executor", "loop")
    ours, plain = numbers(tmp_path / "batch"), numbers(tmp_path / "loop")
    assert [one["kind"] for one in ours] == [one["kind"] for one in plain] == ["step", "step", "epoch", "final"]
    for one, other in zip(ours[:3], plain[:3], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert ours[3]["test"] == plain[3]["test"]


# Interrupting and resuming


@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.slow), STEPS, STEPS + 1])
def test_an_interrupted_run_resumes_exactly(
    step: int, whole: Path, tmp_path: Path, interrupt_at: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at(step)
    assert train(tmp_path / "run", *SMALL) == 130
    said = capsys.readouterr().out
    assert f"saved after {step} steps" in said
    assert f"jitbatch train listops --run {tmp_path / 'run'} --resume" in said
    assert len([record for record in records(tmp_path / "run") if record["kind"] == "step"]) == step
    interrupt_at(-1)
    assert train(tmp_path / "run", "--resume") == 0
    assert numbers(tmp_path / "run") == numbers(whole)


def test_records_after_the_checkpoint_are_dropped(whole: Path, tmp_path: Path, interrupt_at: Any) -> None:
    interrupt_at(1)
    train(tmp_path / "run", *SMALL)
    later = {"kind": "step", "epoch": 1, "step": 2, "loss": 0.0}
    with open(tmp_path / "run" / "log.jsonl", "a") as file:
        file.write(json.dumps(later) + "\n" + '{"kind": "st')  # as if killed while it wrote
    interrupt_at(2)
    train(tmp_path / "run", "--resume")
    assert numbers(tmp_path / "run") == numbers(whole)[:2]


def test_other_settings_are_refused_when_resuming(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(whole, "--resume", "--hidden", "5") == 1
    assert "has hidden 4, not 5. A run is resumed with the settings it began with" in capsys.readouterr().err


def test_a_run_that_is_finished_reports_again(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = numbers(whole)
    again = shutil.copytree(whole, tmp_path / "run")  # other tests compare with the run as it was
    assert train(again, "--resume", "--hidden", "4") == 0
    assert "test, of epoch" in capsys.readouterr().out
    assert numbers(again)[: len(before) - 1] == before[:-1]
    assert numbers(again)[-1]["test"] == before[-1]["test"]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", *SMALL, "--learning-rate", "1e38") == 1
    assert "Try a smaller --learning-rate than 1e+38" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "step"),
    [
        ("log", 1),
        ("checkpoint", STEPS + 1),
        pytest.param("log", STEPS + 1, marks=pytest.mark.slow),
        pytest.param("checkpoint", 1, marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_becomes_full_ends_a_run_which_can_be_resumed(
    what: str, step: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run, saved = tmp_path / "run", 0
    add, save = Log.add, Checkpoints.save

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run))

    def fail_to_add(self: Log, record: dict[str, Any]) -> None:
        add(self, record)
        if record["step"] == step:
            with open(run / "log.jsonl", "a") as file:
                file.write('{"kind": "st')  # a part of the next record
            full()

    def fail_to_save(self: Checkpoints, trainer: Any) -> None:
        nonlocal saved
        saved += 1
        if saved == 2 + step // STEPS:  # the first is that of the beginning
            full()
        save(self, trainer)

    with monkeypatch.context() as patched:
        if what == "log":
            patched.setattr(Log, "add", fail_to_add)
        else:
            patched.setattr(Checkpoints, "save", fail_to_save)
        assert train(run, *SMALL) == 1
    assert capsys.readouterr().err == (
        f"jitbatch: error: the run in {run} has stopped, since a file could not be written or read: No space left on "
        f"device ({run}). Its checkpoints are kept. Mend that, and go on by: "
        f"jitbatch train listops --run {run} --resume\n"
    )
    assert train(run, "--resume") == 0
    assert numbers(run) == numbers(whole)


def test_resuming_on_a_full_disk_changes_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        assert train(run, "--resume") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"} == before


def test_a_finished_run_without_its_log_reports_again(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "log.jsonl").unlink()
    assert train(run, "--resume", "--loop-samples", "2") == 0
    assert [record["kind"] for record in records(run)] == ["final"]


def test_binary_bytes_in_the_log_are_told(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    content = b"\xff\xfe\n" + (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(content)
    assert train(run, "--resume") == 1
    assert "log.jsonl, line 1: not a record of `jitbatch train`: b'\\xff\\xfe'" in capsys.readouterr().err
    assert (run / "log.jsonl").read_bytes() == content


def test_a_run_that_is_killed_in_its_first_epoch_resumes_exactly(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Display.step

    def killed(self: Display, record: Any) -> None:
        shown(self, record)
        if record.step == 2:
            raise KeyboardInterrupt  # at once, without saving

    with monkeypatch.context() as patched:
        patched.setattr(Display, "step", killed)
        assert train(tmp_path / "run", *SMALL) == 130
    assert train(tmp_path / "run", "--resume") == 0
    assert numbers(tmp_path / "run") == numbers(whole)


def test_a_long_epoch_is_saved_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoints, "are_old", property(lambda self: True))
    steps: list[int] = []
    save = Checkpoints.save

    def note(self: Checkpoints, trainer: Any) -> None:
        steps.append(trainer.progress.step)
        save(self, trainer)

    monkeypatch.setattr(Checkpoints, "save", note)
    assert train(tmp_path / "run", *SMALL, "--epochs", "1") == 0
    assert steps == [0, 1, 2, 3, 3]


@pytest.mark.slow
def test_a_process_that_gets_ctrl_c_saves_and_stops(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--run", str(run), *SMALL, "--epochs", "10000"]
    command = [sys.executable, "-m", "jitbatch", "train", "listops", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            log, begin = run / "log.jsonl", time.monotonic()
            while not log.exists() or len(log.read_text().splitlines()) < 2:
                assert time.monotonic() - begin < 600
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "--resume" in output
    assert list((run / "checkpoints").iterdir())


INTERRUPTED = """
import signal, sys
from jitbatch.cli import main
from jitbatch.cli._checkpoints import Checkpoints
from jitbatch.cli._display import Display
from jitbatch.cli._log import Log

shown = Display.step
def step(self, record):
    shown(self, record)
    if record.step == 4:
        signal.raise_signal(signal.SIGINT)
Display.step = step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_run_resumes_exactly_in_another_process(whole: Path, tmp_path: Path) -> None:
    """Nothing that was compiled is left: the programs are made anew, of the same sizes."""
    run = ["train", "listops", "--run", str(tmp_path / "run"), "--loop-samples", "0"]
    assert subprocess.run([sys.executable, "-c", INTERRUPTED, *run, *SMALL]).returncode == 130
    assert [record["kind"] for record in records(tmp_path / "run")] == [*["step"] * STEPS, "epoch", "step"]
    subprocess.run([sys.executable, "-m", "jitbatch", *run, "--resume"], check=True)
    assert numbers(tmp_path / "run")[:-1] == numbers(whole)[:-1]
    assert numbers(tmp_path / "run")[-1]["test"] == numbers(whole)[-1]["test"]


@pytest.mark.slow
def test_the_same_command_in_two_processes_has_the_same_bits(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "jitbatch", "train", "listops", "--run", str(tmp_path / seed), *SMALL]
        subprocess.run([*command, "--loop-samples", "0"], env=os.environ | {"PYTHONHASHSEED": seed}, check=True)
    assert numbers(tmp_path / "1") == numbers(tmp_path / "2")
