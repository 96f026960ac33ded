"""The notebooks run, and show what they showed when they were stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def outputs(cell: Any) -> list[str]:
    """The kinds of what a cell shows."""
    return [kind for output in cell.get("outputs", []) for kind in sorted(output.get("data", {"text": None}))]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:.*:DeprecationWarning")
def test_a_notebook_runs(file: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    stored = nbformat.read(file, as_version=4)
    executed = nbclient.NotebookClient(nbformat.read(file, as_version=4), timeout=300, kernel_name="python3").execute()
    for before, after in zip(stored.cells, executed.cells, strict=True):
        assert outputs(before) == outputs(after), "execute the notebook again, and store it"
    reports = [
        output.data["text/html"]
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    tables = [report for report in reports if "<iframe" not in report]
    verdicts = [table.split("<b>")[2].split("</b>")[0] for table in tables]
    assert verdicts == ["It batched.", "It batched in part.", "It batched."]
    assert len(reports) == len(tables) + 1, "one page is shown inline"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_stored_notebook_names_no_file_of_the_machine_that_made_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "ipykernel_" not in text
    assert "/tmp/" not in text
    assert "site-packages" not in text
