"""Makes the pictures of the documentation, by the library itself: `python docs/pictures/make.py`.

Needs playwright and Chromium.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jitbatch import jitbatch

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


def main() -> None:
    report = sentiment.explain(*draw(), measure=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("the pictures are taken in Chromium, which is not installed")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        report.to_html(page_file)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1180})
        page.goto(page_file.as_uri())
        page.evaluate("document.querySelector('header code').textContent = 'model.py:26'")
        page.screenshot(path=HERE / "page.png")
        page.locator("svg").first.screenshot(path=HERE / "batch.png")
        browser.close()


if __name__ == "__main__":
    main()
