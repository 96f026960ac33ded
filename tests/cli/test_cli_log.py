"""The log of a run: taken up by a later process, or refused where it is not one."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from jitbatch.cli._errors import CommandError
from jitbatch.cli._files import write_whole
from jitbatch.cli._log import Log

STEP = {"kind": "step", "epoch": 1, "step": 1, "loss": 2.5}
EPOCH = {
    "kind": "epoch",
    "epoch": 1,
    "step": 1,
    "loss": 2.5,
    "dev": {"accuracy": 0.5},
    "samples_per_second": 10.0,
    "seconds": {"analysis": 0.1},
}


def lines(*records: Any) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


def test_records_up_to_a_step_are_taken_up(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(lines(STEP, EPOCH, STEP | {"step": 2}, STEP | {"step": 3}))
    log = Log(tmp_path)
    log.resume(step=2, epoch=1)
    assert log.records == [STEP, EPOCH, STEP | {"step": 2}]
    assert (tmp_path / "log.jsonl").read_bytes() == lines(*log.records)
    log.summarise()
    assert (tmp_path / "epochs.csv").read_text().startswith("epoch,step,loss,dev accuracy")


WRONG = [
    b"\xff\xfe\x00\x01",
    b"[" * 100_000,
    b"5",
    b"null",
    b"",
    STEP | {"step": "1"},
    STEP | {"epoch": None},
    STEP | {"kind": "stop"},
    {"kind": "step"},
    EPOCH | {"dev": [0.5]},
    EPOCH | {"dev": {}},
    EPOCH | {"seconds": {"analysis": "long"}},
    EPOCH | {"loss": "small"},
]


@pytest.mark.parametrize("record", WRONG, ids=[str(record)[:30] for record in WRONG])
def test_a_line_that_is_no_record_is_refused(record: Any, tmp_path: Path) -> None:
    content = lines(STEP, record, STEP)
    (tmp_path / "log.jsonl").write_bytes(content)
    with pytest.raises(CommandError, match=r"log\.jsonl, line 2: not a record of `jitbatch train`: .*Remove the line"):
        Log(tmp_path).resume(step=9, epoch=9)
    assert (tmp_path / "log.jsonl").read_bytes() == content


@pytest.mark.parametrize("last", [b'{"kind": "st', b"\x00\x00\x00", b"\xff"])
def test_a_last_line_that_was_cut_off_is_dropped(last: bytes, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(lines(STEP) + last)
    log = Log(tmp_path)
    log.resume(step=9, epoch=9)
    assert log.records == [STEP]
    assert (tmp_path / "log.jsonl").read_bytes() == lines(STEP)


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"
