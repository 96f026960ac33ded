"""Reports as pages and figures: the page is opened in a real browser, where one is installed."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from html import escape
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from jitbatch import Report, Static, jitbatch
from jitbatch.inspect.page import LANES, colour, lanes_of
from jitbatch.inspect.report import Advice
from jitbatch.inspect.terminal import TYPES


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
    assert report.to_html() == text
    assert not re.search(r"{{\w+}}", text)
    for outside in ("src=", "href=", "@import", "url(", "fetch("):
        assert outside not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert len(json.loads(data)["launches"]) == report.launches


def test_names_are_escaped(tmp_path: Path) -> None:
    report = hostile()
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in re.sub(r'<script id="data".*?</script>', "", text, flags=re.DOTALL)
    assert text.count("</script>") == 2
    assert "<img" not in report._repr_html_()


HOSTILE_FILES = (
    "<img src=x onerror=document.title=1>{{data}}.py",
    "{{advice}}{{table}}{{title}}.py",
    "<!--<script>.py",
    "</script><script>document.title=1</script>.py",
    "]]>&lt;\u2028\u2029.py",
    "\udcff.py",  # a byte that is not UTF-8, as Python holds it
)


def with_hostile_files(report: Report, file: str) -> Report:
    """The report as if every place in it were in a file of this name."""
    cells = tuple(replace(cell, where=f"{file}:1", shapes=file) for cell in report.cells)
    advice = (Advice(f"{file}:2", f"`{file}` is {file}"),)
    return replace(report, function=file, where=f"/{file}:3", cells=cells, advice=advice, reason=file)


@pytest.mark.parametrize("file", HOSTILE_FILES)
def test_hostile_file_names_stay_text(report: Report, tmp_path: Path, file: str) -> None:
    with_hostile_files(report, file).to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    block = r'(?<=<script id="data" type="application/json">)(.*?)(?=</script>)'
    (data,) = re.findall(block, text, re.DOTALL)
    assert not set("<>&\u2028\u2029").intersection(data)
    assert {cell["shapes"] for cell in json.loads(data)["cells"]} == {file}
    assert "<img" not in text
    assert text.count("<script") == text.count("</script") == 2
    assert "<!--" not in text
    shown = escape(file).encode(errors="backslashreplace").decode()
    assert f"<h1>{shown}</h1>" in text
    assert f"<code>{shown}</code> is {shown}<pre>" in text


def test_the_policy_of_the_page_allows_its_own_script_and_style_and_nothing_else(
    report: Report, tmp_path: Path
) -> None:
    report.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    before, policy = re.findall(r'^(.*)<meta http-equiv="Content-Security-Policy" content="(.*?)">', text, re.DOTALL)[0]
    assert "<style" not in before
    assert "<script" not in before

    def allowed(tag: str) -> str:
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src {allowed('script')}",
        f"style-src {allowed('style')}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert not re.search(r"\sstyle=|\son\w+=", text), "the policy would block these"


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


def opened(browser: Any, report: Report, path: Path, scheme: str = "light", width: int = 1240) -> tuple[Any, list[str]]:
    """A page of a report, and what went wrong on it: errors, and anything that was loaded besides."""
    report.to_html(path)
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
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
    assert page.locator("#batch .mark").count() == report.steps < report.launches
    assert page.locator("#time .mark").count() == report.steps
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
    assert "recurrent.py:" in tip
    assert "calls in" in tip
    first = report.step_list[0]
    in_step = sum(node.step == 0 for node in report.sample_nodes)
    assert f"step 0, {first.count} calls in {first.width} rows" in tip
    assert page.locator("#sample .mark:not(.dim)").count() == in_step
    assert wrong == []


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, hostile(), tmp_path / "report.html")
    page.locator("#batch .mark").first.hover()
    assert "onerror" in page.locator("#tip").inner_text()
    assert page.locator("img").count() == 0
    assert wrong == []


@pytest.mark.parametrize("file", HOSTILE_FILES)
def test_hostile_file_names_run_nothing(browser: Any, report: Report, tmp_path: Path, file: str) -> None:
    page, wrong = opened(browser, with_hostile_files(report, file), tmp_path / "report.html")
    assert page.title().endswith(": what was batched")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#batch .mark").count() > 0
    page.locator("#batch .mark").first.hover()
    visible = file.translate({0x2028: None, 0x2029: None, 0xDCFF: None})
    told = page.locator("#tip").evaluate("tip => tip.textContent")
    assert told.translate({0x2028: None, 0x2029: None, 0xDCFF: None}).count(visible) >= 1
    assert wrong == []


def test_the_policy_stops_a_script_that_gets_into_the_page(browser: Any, report: Report, tmp_path: Path) -> None:
    # Names are escaped, so none gets there; the policy would stop one that did.
    class Broken(Report):
        def to_html(self, path: Any = None) -> str:
            text = super().to_html()
            attack = "<script>document.title = 'run'</script><b onclick=\"document.title = 'run'\" id=b>x</b>"
            path.write_text(text.replace("<main>", f"<main>{attack}"))
            return text

    broken = Broken(**{field.name: getattr(report, field.name) for field in fields(report)})
    page, wrong = opened(browser, broken, tmp_path / "report.html")
    page.locator("#b").click()
    assert page.title() != "run"
    assert len(wrong) == 2
    assert all("Content Security Policy" in message for message in wrong)


def test_colours_are_those_of_the_cells(browser: Any, report: Report, tmp_path: Path) -> None:
    page, _ = opened(browser, report, tmp_path / "report.html")
    shown = page.eval_on_selector_all(".key i", "keys => keys.map(key => getComputedStyle(key).backgroundColor)")
    expected = [
        f"rgb({', '.join(str(int(colour(n)[at : at + 2], 16)) for at in (1, 3, 5))})" for n in range(len(shown))
    ]
    assert shown == expected
    assert len(shown) == len(report.cells)


def test_each_drawing_is_walked_with_the_arrow_keys(browser: Any, report: Report, tmp_path: Path) -> None:
    page, wrong = opened(browser, report, tmp_path / "report.html")
    assert page.locator(".mark[tabindex='0']").count() == 3, "one stop for each drawing"
    page.keyboard.press("Tab")
    name = "document.activeElement.getAttribute('aria-label')"
    first = page.evaluate(name)
    assert first == page.locator("#batch .mark").first.get_attribute("aria-label")
    assert "step 0, " in first
    assert page.locator("#tip").evaluate("tip => tip.style.opacity") == "1"
    page.keyboard.press("ArrowRight")
    assert "step 1 in 2 launches, " in page.evaluate(name)
    page.keyboard.press("End")
    assert f"step {report.steps - 1}, " in page.evaluate(name)
    page.keyboard.press("Escape")
    assert page.locator("#tip").evaluate("tip => tip.style.opacity") == "0"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.ownerSVGElement.id") == "time"
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 400])
def test_two_hundred_types_fit_the_page(browser: Any, tmp_path: Path, width: int) -> None:
    report = many_types(60)
    page, wrong = opened(browser, report, tmp_path / "report.html", width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "It hardly batched." in page.locator(".verdict").inner_text()
    assert page.locator(".verdict pre code").inner_text() == "return jnp.take(words, jnp.arange(2), axis=0).sum()"
    assert page.locator(".verdict").bounding_box()["y"] < 300
    assert page.locator("#batch").bounding_box()["height"] < 200
    assert page.locator("tbody:visible").count() == TYPES
    page.get_by_role("button", name="Show 54 more types").click()
    assert page.locator("tbody:visible").count() == 60
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 400])
def test_long_paths_cut_nothing_off(browser: Any, report: Report, tmp_path: Path, width: int) -> None:
    long = with_hostile_files(report, "a_folder_of_a_project_with_long_names/" * 8 + "model.py")
    page, wrong = opened(browser, long, tmp_path / "report.html", width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width == 1280:
        table = page.locator("table").bounding_box()
        assert table["x"] + table["width"] <= width, "the columns of time and of compilation are seen"
    assert wrong == []


def many_types(count: int) -> Report:
    def pooled_words_with_a_name_that_is_longer_than_its_column_in_any_table(scale: Any, words: Any) -> Any:
        return jnp.take(words, jnp.arange(2), axis=0).sum()

    samples = [np.ones((2 + length, 4), np.float32) for length in range(count)]
    return jitbatch(pooled_words_with_a_name_that_is_longer_than_its_column_in_any_table).explain(1.0, samples)


@jitbatch
def add(w: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h * w + x)


def chain(w: Any, xs: Any) -> Any:
    h = jnp.zeros(4)
    for x in xs:
        h = add(w, h, x)
    return h.sum()


def chains(lengths: Any) -> Report:
    return jitbatch(chain).explain(
        jnp.ones(4), [np.full((length, 4), n, np.float32) for n, length in enumerate(lengths, 1)]
    )


def test_a_step_in_several_launches_names_all_of_its_samples(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, chains([5] * 28), tmp_path / "report.html")
    labels = page.eval_on_selector_all("#batch .mark", "marks => marks.map(mark => mark.getAttribute('aria-label'))")
    several = [label for label in labels if "launches" in label and "28 calls" in label]
    assert several
    assert all("of 28 samples" in label for label in several)
    assert wrong == []


def test_a_wider_step_is_drawn_no_shorter(browser: Any, tmp_path: Path) -> None:
    lengths = [12] * 40 + [6] * 11  # 51 calls run in one launch, 40 calls in several
    report = chains(lengths)
    launches = [launch.step for launch in report.step_list]
    assert len(launches) > len(set(launches))
    page, _ = opened(browser, report, tmp_path / "report.html")
    widths = {
        int(calls): mark.bounding_box()["width"]
        for mark in page.locator("#time .mark").all()
        if (calls := re.findall(r"(\d+) calls in", mark.get_attribute("aria-label") or "")[0]) in ("40", "51")
        and "add" in (mark.get_attribute("aria-label") or "").split(",")[0]
    }
    assert widths[40] <= widths[51] * 1.05


def test_every_box_has_its_number(browser: Any, tmp_path: Path) -> None:
    report = chains([5] * 64 + [9])
    for width in (1280, 400):
        page, _ = opened(browser, report, tmp_path / "report.html", width=width)
        marks = page.locator("#batch .mark").count()
        assert page.locator("#batch .mark text").count() == marks
        assert "1" in page.locator("#batch .mark text").all_text_contents()


@pytest.mark.parametrize("width", [1280, 400])
def test_positions_in_time_are_named_also_where_columns_are_narrow(browser: Any, tmp_path: Path, width: int) -> None:
    page, _ = opened(browser, chains([120, 90]), tmp_path / "report.html", width=width)
    names = page.locator("#batch > text:not(.lane)").all_text_contents()
    assert len(names) > 2
    assert all(re.fullmatch(r"(phase|round) \d+", name) for name in names), names
    boxes = [label.bounding_box() for label in page.locator("#batch > text:not(.lane)").all()]
    boxes.sort(key=lambda box: box["x"])
    assert all(box["x"] + box["width"] < after["x"] for box, after in itertools.pairwise(boxes))


def test_what_does_not_fit_says_so(browser: Any, tmp_path: Path) -> None:
    report = chains([120, 90])
    page, _ = opened(browser, report, tmp_path / "report.html", width=400)
    hints = page.locator(".hint:visible").all_inner_texts()
    columns = len(report.columns)
    assert re.fullmatch(rf"Columns 1 to \d+ of {columns} are visible. Scroll sideways for the others.", hints[0])
    assert "4 of 11 columns are visible. Scroll sideways for the others." in hints
    assert any(re.search(r"\d+ of \d+ calls are visible. Scroll", text) for text in hints)
    page.locator(".scroll").first.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    page.wait_for_function(f"document.querySelector('.hint').textContent.includes('to {columns} of {columns} are')")
    page, _ = opened(browser, chains([2, 3]), tmp_path / "report.html")
    assert page.locator(".hint:visible").count() == 0


def test_tiles_stand_alone(report: Report) -> None:
    tiles = dict(re.findall(r"<div class=tile><dt>(.*?)</dt><dd>(.*?)</dd></div>", report.to_html()))
    assert {"samples", "calls", "distinct parts of calls", "parts of calls per step (mean)"} <= tiles.keys()
    assert tiles[f"steps (lower bound {report.lower_bound})"] == str(report.steps)
    whole = re.findall(r"<dt>(.*?)</dt>", chains([1, 1]).to_html())
    assert {"distinct calls", "calls per step (mean)"} <= set(whole)


def test_advice_says_what_it_saves_and_notes_stand_below_the_table() -> None:
    def layers(w: Any, x: Any) -> Any:
        return add(w[1], add(w[0], x, x), x).sum()

    report = jitbatch(layers).explain([jnp.ones(4), jnp.zeros(4)], [np.full(4, n, np.float32) for n in range(8)])
    text = report.to_html()
    assert "<h2>What to do</h2><p>Nothing: " in text
    assert (
        text.index("</table>") < text.index("<h3>Good to know</h3>") < text.index("is used with 2 sets of parameters")
    )
    for told in (many_types(8).to_html(), many_types(8)._repr_html_()):
        assert "<b>It would save up to 7 of 8 steps and " in told
    assert "Good to know" in report._repr_html_()


def test_the_table_in_a_notebook_fits_a_column_of_text(browser: Any, report: Report) -> None:
    page = browser.new_page(viewport={"width": 560, "height": 900})
    page.set_content(f"<body style='font: 14px sans-serif'>{report._repr_html_()}</body>")
    assert page.locator("table").bounding_box()["width"] <= 544
    assert "compile" in page.locator("thead").inner_text()


def test_a_drawing_has_a_lane_for_each_function_if_types_are_many(report: Report) -> None:
    assert lanes_of(report) == ([cell.name for cell in report.cells], list(range(len(report.cells))))
    cells = tuple(replace(report.cells[0], name=f"f #{n}") for n in range(20))
    assert lanes_of(replace(report, cells=cells)) == (["f (20 types)"], [0] * 20)
    cells = tuple(replace(report.cells[0], name=f"f{n}") for n in range(30))
    names, lanes = lanes_of(replace(report, cells=cells))
    assert names == [*(f"f{n}" for n in range(LANES - 1)), "7 other functions"]
    assert lanes == [min(n, LANES - 1) for n in range(30)]


def test_a_batch_of_the_loop_executor_has_a_page_too(browser: Any, tmp_path: Path) -> None:
    report = jitbatch(lambda w, x: w * x, executor="per_sample").explain(1.0, [1.0, 2.0])
    page, wrong = opened(browser, report, tmp_path / "report.html")
    assert wrong == []
    assert "There is no graph to draw" in page.locator("main").inner_text()
