"""Makes the pictures of the documentation, and the page in `docs/live`: `python docs/pictures/make.py`.

Needs playwright and Chromium.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import Report, jitbatch
from jitbatch.inspect.page import colour

HERE = Path(__file__).parent


@jitbatch
def word(params: Any, token: Any) -> Any:
    return jnp.tanh(params["embed"][token])


@jitbatch
def compose(params: Any, tag: Any, left: Any, right: Any) -> Any:
    x = params["tags"][tag] @ params["in"]
    return jnp.tanh(x + left @ params["left"] + right @ params["right"])


@jitbatch
def sentiment(params: Any, tree: Any) -> Any:
    def encode(tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return word(params, tree)
        tag, left, right = tree
        return compose(params, tag, encode(left), encode(right))

    return jax.nn.log_softmax(encode(tree) @ params["out"])


@jitbatch
def combine(params: Any, left: Any, right: Any) -> Any:
    return jnp.tanh(left @ params["left"] + right @ params["right"])


@jitbatch
def score(params: Any, h: Any) -> Any:
    return jax.nn.log_softmax(h @ params["out"])


@jitbatch
def untagged(params: Any, tree: Any) -> Any:
    def encode(tree: Any) -> Any:
        return combine(params, *map(encode, tree)) if isinstance(tree, tuple) else word(params, tree)

    return score(params, encode(tree))


def without_tags(tree: Any) -> Any:
    return (without_tags(tree[1]), without_tags(tree[2])) if isinstance(tree, tuple) else tree


def random_tree(rng: np.random.Generator, words: int) -> Any:
    if words == 1:
        return int(rng.integers(40))
    left = int(rng.integers(1, words))
    return int(rng.integers(5)), random_tree(rng, left), random_tree(rng, words - left)


def draw() -> tuple[Any, list[Any]]:
    shapes = {"embed": (40, 64), "tags": (5, 64), "in": (64, 64), "left": (64, 64), "right": (64, 64), "out": (64, 5)}
    params = {name: 0.1 * jax.random.normal(jax.random.key(i), shape) for i, (name, shape) in enumerate(shapes.items())}
    rng = np.random.default_rng(1)
    return params, [random_tree(rng, int(words)) for words in rng.integers(2, 14, size=32)]


def portable(report: Report) -> Report:
    """The report, with this file named `model.py` as a reader's would be."""

    def place(where: str) -> str:
        return f"model.py:{where.rpartition(':')[2]}"

    cells = tuple(replace(cell, where=place(cell.where)) for cell in report.cells)
    advice = tuple(replace(one, where=one.where and place(one.where)) for one in report.advice)
    return replace(report, where=place(report.where), cells=cells, advice=advice)


def draw_before_and_after(report: Report, file: Path) -> None:
    """Draws each call as a launch of its own, and below it the steps with the number of calls in each.

    The type is large, for screens on which the picture is 400 pixels wide.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Rectangle

    figure, (before, after) = plt.subplots(2, 1, figsize=(7.2, 6.4), height_ratios=(1, 1.15))
    colours = [colour(cell) for cell in range(len(report.cells))]
    each = [cell for cell, one in enumerate(report.cells) for _ in range(one.calls or 0)]
    across = 40
    for at, cell in enumerate(each):
        before.add_patch(Rectangle((at % across, -(at // across)), 0.8, 0.8, color=colours[cell]))
    before.set(xlim=(-0.3, across + 0.1), ylim=(-len(each) / across + 0.8, 1.1))
    before.set_title(f"Before: {len(each)} calls, one by one", fontsize=17, loc="left")
    steps: dict[int, tuple[int, int, int]] = {}
    for launch in report.step_list:
        column, count, cell = steps.get(launch.step, (launch.column, 0, launch.cell))
        steps[launch.step] = (column, count + launch.count, cell)
    lanes = list(dict.fromkeys(cell for _, _, cell in steps.values()))
    for column, count, cell in steps.values():
        y = -1.5 * lanes.index(cell)
        after.add_patch(Rectangle((column, y), 0.94, 0.8, color=colours[cell]))
        after.text(column + 0.47, y + 0.37, str(count), ha="center", va="center", color="white", fontsize=16)
    for y, cell in enumerate(lanes):
        one = report.cells[cell]
        merged = f", {one.distinct} distinct: equal calls run once" if one.distinct < (one.calls or 0) else ""
        after.text(0, -1.5 * y + 0.92, f"{one.name}: {one.calls} calls{merged}", va="bottom", fontsize=14)
    after.set(xlim=(-0.08, len(report.columns) + 0.03), ylim=(-1.5 * len(lanes) + 1.45, 1.6))
    after.set_title(f"After: {report.steps} steps, with the calls that each runs", fontsize=17, loc="left")
    for axes in (before, after):
        axes.axis("off")
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> None:
    params, trees = draw()
    draw_before_and_after(untagged.explain(params, [without_tags(tree) for tree in trees]), HERE / "before-after.png")
    report = portable(sentiment.explain(params, trees))
    report.to_html(HERE.parent / "live" / "report.html")
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("the pictures are taken in Chromium, which is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1180})
        page.goto((HERE.parent / "live" / "report.html").as_uri())
        page.screenshot(path=HERE / "page.png")
        page.locator("#batch").screenshot(path=HERE / "batch.png")
        browser.close()


if __name__ == "__main__":
    main()
