"""Directories of runs: each is made for one run, and held by the process that trains in it."""

import errno
import itertools
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from jitbatch.cli._errors import CommandError, warn
from jitbatch.cli._files import file_errors
from jitbatch.cli._settings import FILE

ROOT = Path("runs")
LOCK = "lock"
"""The file that a process locks while it trains; its text names the process."""

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of file systems that cannot lock files, such as some network drives."""


@contextmanager
def new_run(task: str, chosen: Path | None) -> Iterator[Path]:
    """Make and hold the directory of a new run: the given one, or the next of `runs/TASK-1`, `runs/TASK-2`, ..."""
    check_new(chosen)
    with file_errors(f"{chosen or ROOT} cannot hold a run", "Give a directory that can be written to by --run"):
        if chosen is None:
            directory = _make_next(task)
        else:
            directory = chosen
            directory.mkdir(parents=True, exist_ok=True)
    with held(directory):
        check_new(directory)  # again: another run may have begun and ended in it meanwhile
        yield directory


def existing_run(task: str, chosen: Path | None) -> Path:
    """The directory of a run to be resumed: the given one, or the last of `runs/TASK-N`."""
    directory = chosen
    if directory is None:
        run_ids = [run_id for run_id, path in _numbered(task) if path.is_dir()]
        if not run_ids:
            raise CommandError(f"there is no run {ROOT}/{task}-N to resume. Give its directory by --run")
        directory = ROOT / f"{task}-{max(run_ids)}"
    with file_errors(f"there is no run to resume in {directory}", "Give its directory by --run"):
        if not (directory / FILE).exists():
            raise CommandError(f"there is no run to resume in {directory}: it has no {FILE}")
    return directory


def check_new(directory: Path | None) -> None:
    """Refuse a place for a new run that is, or is below, a file, or that holds something."""
    target = directory or ROOT
    with file_errors(f"{target} cannot hold a run", "Give another directory by --run"):
        for path in (target, *target.parents):
            if path.exists() and not path.is_dir():
                raise CommandError(f"{target} cannot hold a run: {path} is a file. Give another directory by --run")
        if directory is not None and directory.exists() and set(os.listdir(directory)) - {LOCK}:
            raise CommandError(f"{directory} is not empty. Continue the run in it by --resume, or give another --run")


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold the directory of a run, or say which process holds it. The hold ends with the process, however that ends."""
    with ExitStack() as stack:
        with file_errors(f"{directory} cannot be written to", "Make it writable, or copy the run to another disk"):
            file = stack.enter_context(open(directory / LOCK, "ab+", buffering=0))
            if not _lock_or_warn(file, directory):
                raise CommandError(
                    f"{directory} is in use by {_holder(file)}. Wait until it ends, or give another directory by --run"
                )
            now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
        yield


def _lock_or_warn(file: IO[bytes], directory: Path) -> bool:
    try:
        return _lock(file.fileno())
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warn(f"files on the disk of {directory} cannot be locked. Let no other process train in it")
        return True


def _holder(file: IO[bytes]) -> str:
    """The process that a locked file names. It writes its name right after it has locked the file."""
    time.sleep(0.1)
    file.seek(0)
    return file.readline(200).decode(errors="replace").strip() or "another process"


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        """Lock an open file; False where another process has locked it."""
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # a byte behind the text, which others must be able to read
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Lock an open file; False where another process has locked it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _make_next(task: str) -> Path:
    """Make the first directory `runs/TASK-N` after all that there are; two processes never make the same."""
    ROOT.mkdir(exist_ok=True)
    for run_id in itertools.count(1 + max((run_id for run_id, _ in _numbered(task)), default=0)):
        directory = ROOT / f"{task}-{run_id}"
        with suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise AssertionError("numbers do not end")


def _numbered(task: str) -> list[tuple[int, Path]]:
    names = ((re.fullmatch(rf"{task}-(\d+)", path.name), path) for path in ROOT.glob(f"{task}-*"))
    return [(int(name[1]), path) for name, path in names if name]
