"""Lines of text files, and errors that say where in a file something is wrong."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitbatch._errors import DataError


def lines_of(file: str | Path) -> list[str]:
    """The lines of a text file, without their ends.

    Only line feeds end a line: `str.splitlines` would also split at characters that occur inside of words.
    """
    path = Path(file)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: this is not UTF-8 text") from None
    return lines[:-1] if lines[-1] == "" else lines


def fields(line: str) -> list[str]:
    """What stands between spaces and tabs. Other white space, such as a no-break space, may be part of a word."""
    return re.findall(r"\S+", line, re.ASCII)


@contextmanager
def located(file: str | Path, line: int) -> Iterator[None]:
    """Errors in the given line of a file name both."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{file}:{line}: {error}") from None


def whole_number(text: str, what: str) -> int:
    """The number that a text stands for; `what` it is goes into the error."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{what} must be a whole number, not {text!r}")
    return int(text)
