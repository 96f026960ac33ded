"""The code in the README and in the documentation runs, page by page, each block after those before it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import code_of, run

import jitbatch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

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
        run(page)


def test_the_example_of_the_readme_compiles_once() -> None:
    step = run(ROOT / "README.md")["step"]
    assert step.cache_info()["programs"] == (1, 1, 1, 1)  # type: ignore[attr-defined]


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: jitbatch\.(\w+)$", reference, re.MULTILINE)
    assert sorted(listed) == sorted(jitbatch.__all__)
    (segment,) = re.findall(r"automodule:: jitbatch\.segment\n\s+:members: (.*)", reference)
    assert sorted(segment.split(", ")) == sorted(jitbatch.segment.__all__)


def test_every_public_name_says_what_it_is() -> None:
    for name in jitbatch.__all__:
        assert (getattr(jitbatch, name).__doc__ or "").strip(), f"jitbatch.{name} has no docstring"


def test_the_version_is_that_of_the_changelog_and_the_citation() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert released[0] == jitbatch.__version__
    assert f"\nversion: {jitbatch.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
