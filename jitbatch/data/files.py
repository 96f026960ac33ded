"""Lines of text files, and errors that say where in a file something is wrong."""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitbatch.util.errors import DataError


def lines_of(file: str | Path) -> list[str]:
    """The lines of a text file, without their ends and without a byte-order mark.

    Only line feeds end a line: `str.splitlines` would also split at characters that occur inside of words.
    """
    path = Path(file)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = path.read_bytes().removeprefix(codecs.BOM_UTF8)[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: this is not UTF-8 text") from None
    return lines[:-1] if lines[-1] == "" else lines


def numbered_lines(file: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that may be too large for memory, with their ends, and their numbers from 1."""
    with Path(file).open("rb") as lines:
        for line_number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig" if line_number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise DataError(f"{file}:{line_number}: this is not UTF-8 text") from None
            yield line_number, text


def fields(line: str) -> list[str]:
    """The fields of a line, separated by spaces and tabs. Other white space, such as a no-break space, may be part of a
    word."""
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
    """The integer of a text. `what` names it in errors."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{what} must be a whole number, not {text!r}")
    return int(text)
