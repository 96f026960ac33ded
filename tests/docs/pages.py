"""The Python of a page of the documentation. As a script it runs the pages it is given: `python pages.py README.md`."""

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

HIDDEN = r"<!-- before the next block:\n(.*?)-->"
"""What a page's code needs but its readers do not."""


def code_of(page: Path, language: str = "python") -> str:
    """All code of a page in a language, on the lines where it stands there, so that tracebacks name them."""
    text = page.read_text(encoding="utf-8")
    code = [""] * text.count("\n")
    for block in re.finditer(rf"^( *)```{language}\n(.*?)^\1```|{HIDDEN}", text, re.DOTALL | re.MULTILINE):
        part = 2 if block[2] is not None else 3
        lines = textwrap.dedent(block[part]).splitlines()
        first = text.count("\n", 0, block.start(part))
        code[first : first + len(lines)] = lines
    return "\n".join(code)


def run(page: Path, language: str = "python", names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs the code of a page in a language, with the names of an earlier run, and returns its names."""
    names = names or {"__name__": page.stem}
    exec(compile(code_of(page, language), str(page), "exec"), names)
    return names


if __name__ == "__main__":
    for path in sys.argv[1:]:
        run(Path(path))
        print(f"{path}: its code runs")
