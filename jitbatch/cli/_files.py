"""Files of a run: written whole or not at all, and errors of the file system in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitbatch.cli._errors import CommandError


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file. At any time, also after a crash or on a full disk, there is the old file or the new one."""
    new = path.with_name(f"{path.name}.new")
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextmanager
def file_errors(problem: str, advice: str) -> Iterator[None]:
    """Errors of the file system as one line: the problem, the reason and the file, and the advice."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{problem}: {reason(error)}. {advice}") from None


def reason(error: OSError) -> str:
    """
    >>> reason(FileNotFoundError(2, "No such file or directory", "train.txt"))
    'No such file or directory (train.txt)'
    """
    text = error.strerror or str(error) or type(error).__name__
    return f"{text} ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes | os.PathLike) else text
