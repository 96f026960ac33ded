"""The code in the README and in the documentation runs, page by page, each block after those before it."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HIDDEN = r"<!-- before the next block:\n(.*?)-->"
"""What a page's code needs but its readers do not."""


def code_of(page: Path) -> str:
    """All Python of a page, on the lines where it stands there, so that tracebacks name them."""
    text = page.read_text(encoding="utf-8")
    code = [""] * text.count("\n")
    for block in re.finditer(rf"^( *)```python\n(.*?)^\1```|{HIDDEN}", text, re.DOTALL | re.MULTILINE):
        part = 2 if block[2] is not None else 3
        lines = textwrap.dedent(block[part]).splitlines()
        first = text.count("\n", 0, block.start(part))
        code[first : first + len(lines)] = lines
    return "\n".join(code)


WITH_CODE = [page for page in PAGES if "_build" not in page.parts and code_of(page).strip()]


def test_the_readme_and_the_how_to_pages_have_code() -> None:
    names = {page.stem for page in WITH_CODE}
    assert {
        "README",
        "design",
        "tutorial",
        "trees",
        "dags",
        "sequences",
        "graphs",
        "children",
        "not-batching",
        "contributing",
    } <= names


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_a_page_runs(page: Path) -> None:
    if "make_mesh" in code_of(page):  # several devices have to be there when JAX starts
        flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
        subprocess.run([sys.executable, "-c", code_of(page)], env=os.environ | {"XLA_FLAGS": flags}, check=True)
    else:
        exec(compile(code_of(page), str(page), "exec"), {"__name__": page.stem})


def test_the_example_of_the_readme_compiles_once() -> None:
    names: dict[str, object] = {}
    exec(compile(code_of(ROOT / "README.md"), "README.md", "exec"), names)
    assert names["step"].cache_info()["programs"] == (1, 1, 1, 1)  # type: ignore[attr-defined]
