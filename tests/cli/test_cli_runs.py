"""Directories of runs: made for one run, and held by one process, also where processes begin together."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jitbatch.cli import _runs, main
from jitbatch.cli._errors import CommandError
from jitbatch.cli._runs import existing_run, held, new_run
from jitbatch.cli._settings import new_settings, write_settings

SMALL = ["--limit", "22", "--batch-size", "8", "--hidden", "4", "--train-size", "100", "--loop-samples", "0"]

# Processes wait for a file, so that they do their work at the same time.
TOGETHER = """
import sys, time
from pathlib import Path
from jitbatch.cli import main
from jitbatch.cli._errors import CommandError
from jitbatch.cli._runs import held, new_run

def wait():
    Path(sys.argv[1] + ".ready").touch()
    while not Path("go").exists():
        time.sleep(0.001)
"""


def together(script: str, processes: int, directory: Path) -> list[tuple[int, str, str]]:
    """Exit codes, outputs and errors of some processes whose scripts continue at the same moment after `wait()`."""
    command = [sys.executable, "-c", TOGETHER + script]
    started = [
        subprocess.Popen([*command, str(i)], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(processes)
    ]
    try:
        begin = time.monotonic()
        while len(list(directory.glob("*.ready"))) < processes:
            assert time.monotonic() - begin < 300
            assert all(process.poll() is None for process in started)
            time.sleep(0.01)
        (directory / "go").touch()
        results = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(process.returncode, *texts) for process, texts in zip(started, results, strict=True)]


def test_processes_that_begin_together_get_directories_of_their_own(tmp_path: Path) -> None:
    script = "wait()\nfor _ in range(5):\n    with new_run('listops', None) as made: print(made)\n"
    results = together(script, 4, tmp_path)
    assert [code for code, *_ in results] == [0] * 4, results
    made = [line for _, out, _ in results for line in out.split()]
    assert sorted(made) == sorted(f"runs/listops-{i}" for i in range(1, 21))


def test_of_processes_that_begin_together_in_one_directory_one_runs(tmp_path: Path) -> None:
    script = """
wait()
try:
    with new_run('listops', Path('run')):
        print('held')
        time.sleep(3)
except CommandError as error:
    print(error)
"""
    said = sorted(out.strip() for _, out, _ in together(script, 3, tmp_path))
    assert said[0] == "held"
    for line in said[1:]:
        assert re.match(rf"run is in use by process \d+ on {re.escape(socket.gethostname())} since \d{{4}}-", line)


@pytest.mark.slow
def test_trainings_that_begin_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    train = f"wait()\nsys.exit(main(['train', 'listops', '--epochs', '2', *{SMALL}]))\n"
    assert [code for code, *_ in together(train, 2, tmp_path)] == [0, 0]
    for name in ("listops-1", "listops-2"):
        records = [json.loads(line) for line in (tmp_path / "runs" / name / "log.jsonl").read_text().splitlines()]
        assert [record["kind"] for record in records] == [*["step"] * 3, "epoch"] * 2 + ["final"]
        assert json.loads((tmp_path / "runs" / name / "settings.json").read_text())["epochs"] == 2


@pytest.mark.slow
def test_one_of_two_resumes_is_refused_and_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "jitbatch", "train", "listops", "--run", str(run)]
    with subprocess.Popen([*command, *SMALL, "--epochs", "10000"], stdout=subprocess.DEVNULL) as process:
        try:
            begin = time.monotonic()
            while not (run / "log.jsonl").exists():
                assert time.monotonic() - begin < 300
                assert process.poll() is None
                time.sleep(0.05)
            second = subprocess.run([*command, "--resume"], capture_output=True, text=True)
            assert second.returncode == 1
            assert second.stderr.startswith(f"jitbatch: error: {run} is in use by process {process.pid} on ")
            assert second.stderr.count("\n") == 1
        finally:
            process.send_signal(signal.SIGKILL)
    with held(run):
        pass  # what the killed process held is free


def test_a_run_that_is_held_says_by_whom(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(CommandError) as caught, held(tmp_path):
        pass
    assert str(caught.value).startswith(f"{tmp_path} is in use by process {os.getpid()} on {socket.gethostname()} ")
    with held(tmp_path):
        pass  # it is free again


def test_resuming_a_run_that_is_held_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_settings(new_settings({"task": "listops"}), tmp_path)
    with held(tmp_path):
        assert main(["train", "listops", "--run", str(tmp_path), "--resume"]) == 1
    assert f"{tmp_path} is in use by process {os.getpid()} on" in capsys.readouterr().err


def test_a_lock_without_text_is_held_by_another_process(tmp_path: Path) -> None:
    with held(tmp_path):
        (tmp_path / "lock").write_bytes(b"")
        with pytest.raises(CommandError, match="is in use by another process"), held(tmp_path):
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="locks by flock")
def test_where_files_cannot_be_locked_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with held(tmp_path):
        pass
    assert capsys.readouterr().err == (
        f"jitbatch: warning: files on the disk of {tmp_path} cannot be locked. Let no other process train in it\n"
    )


def test_a_directory_that_was_used_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def held_later(directory: Path) -> Iterator[None]:
        (directory / "settings.json").touch()  # another run began and ended here
        with held(directory):
            yield

    monkeypatch.setattr(_runs, "held", held_later)
    with pytest.raises(CommandError, match="is not empty"), new_run("listops", tmp_path / "run"):
        pass


def test_the_last_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 10):
        (tmp_path / "runs" / f"listops-{number}").mkdir(parents=True)
        (tmp_path / "runs" / f"listops-{number}" / "settings.json").touch()
    (tmp_path / "runs" / "listops-11").touch()  # a file
    assert existing_run("listops", None) == Path("runs/listops-10")
    with new_run("listops", None) as made:
        assert made == Path("runs/listops-12")


# Places where no run can be


@pytest.mark.parametrize("below", ["", "below", "below/it"])
def test_a_file_in_place_of_a_directory(below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["train", "listops", "--run", str(file / below), *SMALL]) == 1
    assert f"cannot hold a run: {file} is a file. Give another directory by --run\n" in capsys.readouterr().err
    assert main(["train", "listops", "--run", str(file / below), "--resume"]) == 1
    assert f"there is no run to resume in {file / below}" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_a_file_in_place_of_the_directory_of_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    assert main(["train", "listops", *SMALL]) == 1
    assert "runs cannot hold a run: runs is a file. Give another directory by --run\n" in capsys.readouterr().err


def test_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--resume"]):
        assert main(["train", "listops", "--run", str(tmp_path / ("x" * 300)), *options]) == 1
        assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_disk_that_cannot_be_written(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(code, os.strerror(code), str(self))

    run = tmp_path / "run"
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(["train", "listops", "--run", str(run), *SMALL]) == 1
    assert capsys.readouterr().err == (
        f"jitbatch: error: {run} cannot hold a run: {os.strerror(code)} ({run}). "
        "Give a directory that can be written to by --run\n"
    )
