"""Reports as tables for a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import zoo

from jitbatch import Report
from jitbatch.inspect.report import Advice
from jitbatch.inspect.terminal import WIDTH, as_text, further_cells, rows_of


@pytest.fixture(scope="module")
def report() -> Report:
    workload = zoo.named("binary_tree")
    return workload.batched.explain(*workload.draw(12))


def test_the_table_fits_a_terminal(report: Report) -> None:
    text = str(report)
    assert max(map(len, text.splitlines())) <= 120
    for word in (
        "compose",
        "leaf",
        "steps",
        "no schedule needs fewer than",
        "memory",
        "structures",
        "estimated",
        "fused",
    ):
        assert word in text
    table = text.splitlines()[3:]
    assert table[0].startswith("cell")
    assert len({len(row) for row in table[2 : 2 + len(report.cells)]}) == 1


def test_there_is_a_row_for_each_cell_and_for_each_part_of_a_split_one() -> None:
    workload = zoo.named("rnn")
    report = workload.batched.explain(*workload.draw(6))
    names = [row[0] for row in rows_of(report)]
    assert [name for name in names if not name.startswith(" ")] == [cell.name for cell in report.cells]
    parts = [part.name for cell in report.cells if len(cell.parts) > 1 for part in cell.parts]
    assert [name.strip() for name in names if name.startswith(" ")] == parts != []


def test_long_names_are_cut_where_they_say_least(report: Report) -> None:
    first = replace(
        report.cells[0], name="a_name_that_is_longer_than_its_column", where="/a/folder/of/models/tree.py:7"
    )
    row = as_text(replace(report, cells=(first,))).splitlines()[5]
    assert row.startswith("a_name_that_is_long...  tree.py:7 ")
    elsewhere = replace(report.cells[1], where="/a/folder/elsewhere/under/it/all/leaf.py:3")
    rows = as_text(replace(report, cells=(first, elsewhere))).splitlines()
    assert "...er/it/all/leaf.py:3 " in rows[6]


def test_cells_beyond_the_table_are_counted(report: Report) -> None:
    assert further_cells(report, len(report.cells)) == ""
    shares = [replace(cell, parts=(replace(cell.main, share=0.25),)) for cell in report.cells[:2]]
    assert further_cells(replace(report, cells=tuple(shares)), 1) == "... and 1 more, with 25% of the time"


def test_advice_is_wrapped_and_words_stay_whole(report: Report) -> None:
    word = "jax.lax." + "x" * WIDTH
    lines = as_text(replace(report, advice=(Advice("model.py:3", "use " * 60 + word),))).splitlines()
    start = lines.index("advice")
    assert lines[start + 1].startswith("- model.py:3")
    assert all(line.startswith("  ") for line in lines[start + 2 :])
    assert any(line.strip() == word for line in lines)
