"""Reports as tables for a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import zoo

from jitbatch import Report
from jitbatch.inspect.report import Advice
from jitbatch.inspect.terminal import TYPES, WIDTH, as_text, further_cells, rows_of, shown_cells


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
        "lower bound",
        "memory",
        "structures",
        "estimated",
        "fused",
    ):
        assert word in text
    lines = text.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("cell")) :]
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
    row = table_of(replace(report, cells=(first,)))[0]
    assert row.startswith("a_name_that_is_long...  tree.py:7 ")
    elsewhere = replace(report.cells[1], where="/a/folder/elsewhere/under/it/all/leaf.py:3")
    assert "...er/it/all/leaf.py:3 " in table_of(replace(report, cells=(first, elsewhere)))[1]
    numbered = replace(first, name="a_name_that_is_longer_than_its_column #12")
    assert table_of(replace(report, cells=(numbered,)))[0].startswith("a_name_that_is_... #12  tree.py:7 ")


def table_of(report: Report) -> list[str]:
    """The rows of the table."""
    lines = as_text(report).splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.startswith("cell")) + 2 :]


def test_verdict_and_advice_come_first(report: Report) -> None:
    text = as_text(replace(report, advice=(Advice(f"{__file__}:3", "do this"),)))
    assert (
        text.index("It batched.") < text.index("do this") < text.index("from __future__ import") < text.index("\ncell")
    )
    assert "advice: nothing to do" in as_text(replace(report, advice=()))


def test_few_types_of_one_function_are_shown(report: Report) -> None:
    cells = tuple(replace(report.cells[0], name=f"cell #{n}", differs=f"n is {n}") for n in range(TYPES + 4))
    shown = shown_cells(replace(report, cells=cells))
    assert shown == list(cells[:TYPES])
    text = as_text(replace(report, cells=cells))
    assert f"cell #{TYPES - 1}: n is {TYPES - 1}\n" in text
    assert f"n is {TYPES}\n" not in text
    assert f"... and 4 more of cell, with {4 * cells[0].steps} steps" in text


def test_cells_beyond_the_table_are_counted(report: Report) -> None:
    assert further_cells(report, report.cells) == ""
    shares = [replace(cell, parts=(replace(cell.main, share=0.25),)) for cell in report.cells[:2]]
    told = further_cells(replace(report, cells=tuple(shares)), shares[:1])
    assert told == f"... and 1 more of {shares[1].name}, with {shares[1].steps} steps and 25% of the time"


def test_advice_is_wrapped_and_words_stay_whole(report: Report) -> None:
    word = "jax.lax." + "x" * WIDTH
    lines = as_text(replace(report, advice=(Advice("model.py:3", "use " * 60 + word),))).splitlines()
    start = lines.index("advice")
    assert lines[start + 1].startswith("- model.py:3")
    assert all(line.startswith("  ") for line in lines[start + 2 : lines.index("", start)])
    assert any(line.strip() == word for line in lines)
