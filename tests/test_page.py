"""Reports as pages and figures: the page is opened in a real browser, where one is installed."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import Report, Static, jitbatch
from jitbatch._plot import place_nodes
from jitbatch._report import NodeReport


@pytest.fixture(scope="module")
def report() -> Report:
    workload = zoo.named("tagger")
    return workload.batched.explain(*workload.draw(12))


@jitbatch
def evil(w: Any, mode: Static[str], x: Any) -> Any:
    return jnp.sin(w * x) if mode.value == "</script><b>" else jnp.cos(w * x)


evil.__wrapped__.__qualname__ = "<img src=x onerror=alert(1)></script>"


def hostile() -> Report:
    return jitbatch(lambda w, s: evil(w, *s)).explain(1.0, [(Static("</script><b>"), 1.0), (Static("b"), 2.0)])


def test_the_page_needs_nothing_else(report: Report, tmp_path: Path) -> None:
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"{{\w+}}", text)
    for outside in ("src=", "href=", "@import", "url(", "fetch("):
        assert outside not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert len(json.loads(data)["steps"]) == report.steps


def test_names_are_escaped(tmp_path: Path) -> None:
    report = hostile()
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in re.sub(r'<script id="data".*?</script>', "", text, flags=re.DOTALL)
    assert text.count("</script>") == 2
    assert "<img" not in report._repr_html_()


def test_a_notebook_shows_the_table(report: Report) -> None:
    text = report._repr_html_()
    assert "<table" in text
    assert "tagger_cell" in text
    assert "<script" not in text


# --- A browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="no browser test: playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no browser test: chromium is not installed")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


def opened(browser: Any, report: Report, path: Path, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page of a report, and what went wrong on it: errors, and anything that was loaded besides."""
    report.to_html(path)
    page = browser.new_context(color_scheme=scheme, viewport={"width": 1240, "height": 900}).new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_draws_the_batch(browser: Any, report: Report, tmp_path: Path, scheme: str) -> None:
    page, wrong = opened(browser, report, tmp_path / "report.html", scheme)
    assert wrong == []
    boxes = len({(step.column, step.cell, step.part) for step in report.step_list})
    assert page.locator("#batch .mark").count() == boxes
    assert page.locator("#time .mark").count() == len(report.step_list)
    assert page.locator("#sample .mark").count() == len(report.sample_nodes)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 600) == (scheme == "light")


def test_pointing_at_a_step_shows_its_line_and_its_place_in_the_sample(
    browser: Any, report: Report, tmp_path: Path
) -> None:
    page, wrong = opened(browser, report, tmp_path / "report.html")
    assert page.locator("#tip").evaluate("tip => tip.style.opacity") != "1"
    page.locator("#batch .mark").first.hover()
    tip = page.locator("#tip").inner_text()
    assert "zoo.py:" in tip
    assert "calls in" in tip
    first = report.step_list[0]
    in_step = sum(node.step == 0 for node in report.sample_nodes)
    assert f"{first.count} calls in {first.width} rows" in tip
    assert page.locator("#sample .mark:not(.dim)").count() == in_step
    assert wrong == []


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, hostile(), tmp_path / "report.html")
    page.locator("#batch .mark").first.hover()
    assert "onerror" in page.locator("#tip").inner_text()
    assert page.locator("img").count() == 0
    assert wrong == []


def test_a_batch_of_the_loop_executor_has_a_page_too(browser: Any, tmp_path: Path) -> None:
    report = jitbatch(lambda w, x: w * x, executor="loop").explain(1.0, [1.0, 2.0])
    page, wrong = opened(browser, report, tmp_path / "report.html")
    assert wrong == []
    assert "There is no graph to draw" in page.locator("main").inner_text()


# --- A figure


def test_the_figure_draws_the_same(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no figure: matplotlib is not installed")
    figure = report.plot()
    batch, time, sample = figure.axes
    lanes = sum(len(cell.parts) for cell in report.cells)
    assert len(batch.get_yticklabels()) == lanes
    assert len(time.patches) == len(report.step_list)
    assert len(sample.texts) == len(report.sample_nodes)
    figure.savefig(tmp_path / "report.png")


def test_nodes_are_placed_below_what_reads_them_and_apart() -> None:
    # A diamond with a chain beside it.
    reads = [(), (), (0,), (0, 1), (2, 3), (4, 1)]
    nodes = [NodeReport(0, 0, 0, one) for one in reads]
    x, y = place_nodes(nodes)
    for number, node in enumerate(nodes):
        assert all(y[read] < y[number] for read in node.reads)
    places = np.array([x, y]).T
    assert len(np.unique(places, axis=0)) == len(nodes)
    for level in set(y):
        here = sorted(x[n] for n in range(len(nodes)) if y[n] == level)
        assert all(b - a >= 0.89 for a, b in itertools.pairwise(here))
