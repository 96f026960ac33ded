"""The code in the README and in the documentation runs, page by page, each block after those before it."""

import asyncio
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import jax
import jax.numpy as jnp
import pytest
from pages import code_of, run
from test_imports import EDGES, STAGES

import jitbatch
from jitbatch import data, models
from jitbatch.core import choice

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
    assert step.cache_info()["programs"] == (1, 1, 1, 1)


SERVING = ROOT / "docs" / "howto" / "serving.md"

LANGUAGES = {"", "python", "py", "text", "{eval-rst}", "{toctree}", "{glossary}"}
"""The languages of blocks. `py` is Python that needs a package that the tests do not install."""


def test_every_block_of_python_is_run() -> None:
    for page in PAGES:
        if "_build" not in page.parts:
            text = page.read_text(encoding="utf-8")
            languages = set(re.findall(r"^ *```([^\n`]*)\n.*?^ *```$", text, re.MULTILINE | re.DOTALL))
            assert languages <= LANGUAGES, f"{page.relative_to(ROOT)} has a block that no test runs"
            assert "py" not in languages or page == SERVING


class _Framework:
    """Stands for `FastAPI` and `ray.serve`: like theirs, its decorators return what they are given."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def post(self, path: str) -> Callable[[Any], Any]:
        return lambda answer: answer

    def deployment(self, **options: Any) -> Callable[[Any], Any]:
        return lambda replica: replica


class _HTTPException(Exception):
    def __init__(self, status: int, headers: Any = None) -> None:
        super().__init__(status)


def test_a_model_is_served_behind_fastapi_and_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    fastapi = SimpleNamespace(FastAPI=_Framework, HTTPException=_HTTPException)
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=_Framework()))
    names = run(SERVING, "py", run(SERVING))
    params, score = names["params"], names["score"]
    tree = (0.5, (0.25, 1.0))

    async def behind_fastapi() -> list[Any]:
        async with names["lifespan"](names["app"]):
            answers = [await names["answer"]([0.5, [0.25, 1.0]])]
        for error in (jitbatch.Overloaded(), TimeoutError()):
            names["server"] = AsyncMock(side_effect=error)
            with pytest.raises(_HTTPException) as raised:
                await names["answer"]([0.5])
            answers.append(raised.value.args[0])
        return answers

    answer, *refused = asyncio.run(behind_fastapi())
    assert answer == {"score": pytest.approx(float(score(params, tree)["score"]))}
    assert refused == [503, 504]

    replica = names["Score"](params)
    names["load"] = lambda checkpoint: {"w": jnp.float32(checkpoint)}
    replica.reconfigure({"checkpoint": 2.0})
    answer = asyncio.run(replica(tree))
    assert float(answer["score"]) == pytest.approx(float(score({"w": 2.0}, tree)["score"]))
    replica.server.close()


REFERENCE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

NAMESPACES = {
    "jitbatch": set(jitbatch.__all__) - {"errors", "segment"},
    "jitbatch.errors": set(jitbatch.errors.__all__),
    "jitbatch.models": {name for name, item in vars(models).items() if not name.startswith("_") and callable(item)},
    "jitbatch.data": {name for name, item in vars(data).items() if not name.startswith("_") and callable(item)},
}
"""The public names, by where users import them from."""


def documented() -> dict[str, str]:
    """The names in the reference, as users write them, each with its options."""
    found = re.findall(r"^\.\. (?:auto(?!module)\w+|py:data):: (\S+)\n((?:   :.*\n)*)", REFERENCE, re.MULTILINE)
    assert len(found) == len(dict(found)), "a name is in the reference twice"
    return dict(found)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_public_name_is_in_the_reference(namespace: str) -> None:
    listed = {name.rpartition(".")[2] for name in documented() if name.rpartition(".")[0] == namespace}
    also = {"jitbatch": "jitbatch.errors", "jitbatch.data": "jitbatch.errors"}.get(namespace)  # described there
    wanted = NAMESPACES[namespace] - (NAMESPACES[also] if also else set())
    assert listed == wanted


def test_every_function_for_lists_is_in_the_reference() -> None:
    (segment,) = re.findall(r"automodule:: jitbatch\.segment\n\s+:members: (.*)", REFERENCE)
    assert sorted(segment.split(", ")) == sorted(jitbatch.segment.__all__)


def object_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


CLASSES = sorted(
    name for name in documented() if inspect.isclass(object_of(name)) and not name.startswith("jitbatch.models.")
)


class Field(NamedTuple):
    field: int


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_of_a_class_is_in_the_reference(name: str) -> None:
    """A member is in the description of the class, or it has one of its own, which the reference shows."""
    options, found = documented()[name], object_of(name)
    own = [base for base in found.__mro__ if base.__module__.startswith("jitbatch.")]
    described = "\n".join((inspect.getdoc(base) or "").partition("\nAttributes:")[2] for base in own)
    for base in own:
        for member, value in {**dict.fromkeys(inspect.get_annotations(base)), **vars(base)}.items():
            if member.startswith("_") or member in ("tree_flatten", "tree_unflatten"):  # JAX calls them
                continue
            if re.search(rf"^ *[\w, ]*\b{member}\b[\w, ]*:", described, re.MULTILINE):
                continue
            is_field = isinstance(value, type(Field.field))  # Python describes it: "Alias for field number 0"
            assert not is_field, f"nothing says what {name}.{member} is"
            assert inspect.getdoc(value), f"nothing says what {name}.{member} is"
            is_shown = ":members:" in options and (base is found or ":inherited-members:" in options)
            assert is_shown, f"docs/api.md does not show {name}.{member}"


def test_every_public_name_says_what_it_is() -> None:
    for namespace, names in NAMESPACES.items():
        for name in names:
            described = object_of(f"{namespace}.{name}").__doc__ or ""
            assert described.strip(), f"{namespace}.{name} has no docstring"


def test_errors_are_imported_from_one_place() -> None:
    for module in pkgutil.walk_packages(jitbatch.__path__, "jitbatch."):
        if module.name.startswith("jitbatch.cli") or module.name.endswith("__main__"):  # errors of the command
            continue
        for name, item in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(item) and issubclass(item, (jitbatch.JitbatchError, UserWarning)):
                is_ours = item.__module__.startswith("jitbatch.")
                assert not is_ours or getattr(jitbatch.errors, item.__name__, None) is item, f"{module.name}.{name}"


def test_the_version_is_that_of_the_changelog_and_the_citation() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert released[0] == jitbatch.__version__
    assert f"\nversion: {jitbatch.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_readme_of_a_package_index_has_no_link_into_the_repository() -> None:
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"!\[.*\]\(docs/", readme)
    for rule in hooks["fancy-pypi-readme"]["substitutions"]:
        readme = re.sub(rule["pattern"], rule["replacement"], readme)
    assert re.findall(r"\]\((?!https?:)[^)]*\)", readme) == []
    assert "quickstart" in readme


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_pages_build_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    pytest.importorskip("furo", reason="furo is not installed")
    pytest.importorskip("myst_nb", reason="myst-nb is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "dummy", ROOT / "docs", tmp_path]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


DEVELOPERS = ("design", "contributing", "compiler", "decisions", "glossary")
"""The pages that name files and objects of the package itself."""

SOURCES = [path for folder in ("jitbatch", "native", "tests", "bench") for path in sorted((ROOT / folder).rglob("*.*"))]


def names_in(page: str) -> list[str]:
    """What stands in backticks on a page, outside of its blocks of code."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def source_of(path: str) -> Path | None:
    """The file or folder that a page names `batch/types`, `jitbatch/batch/types.py` or `native/batch.h`."""
    candidates = (ROOT / path, ROOT / "jitbatch" / path, ROOT / "jitbatch" / f"{path}.py")
    return next((candidate for candidate in candidates if candidate.exists()), None)


@pytest.mark.parametrize("page", DEVELOPERS)
def test_files_that_a_page_names_exist(page: str) -> None:
    stages = {path.name for path in (ROOT / "jitbatch").iterdir() if path.is_dir()}
    for name in names_in(page):
        path = re.fullmatch(r"(?:jitbatch/)?((\w+)/(?:\w+/)*\w*)(\.\w+)?", name)
        if path is None or path[2] not in {*stages, "native", "tests", "bench"}:
            continue
        file, ending = path[1].rstrip("/"), path[3] or ""
        source = source_of(file + ending) or source_of(file)
        assert source is not None, f"docs/{page}.md names {name}"
        if source_of(file + ending) is None:  # `util/passes.verified`
            assert re.search(rf"\b{ending[1:]}\b", source.read_text(encoding="utf-8")), f"docs/{page}.md names {name}"


def test_the_table_of_stages_names_their_files() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", text, flags=re.MULTILINE)
    assert len(rows) >= 12
    for stage, files in rows:
        for file in re.findall(r"`([^`]+)`", files):
            assert (ROOT / "jitbatch" / stage / file).exists(), f"docs/design.md sends readers to {stage}/{file}"


@pytest.mark.parametrize("page", ["design", "contributing"])
def test_names_of_code_on_a_page_exist(page: str) -> None:
    """Names of classes, constants and functions: they have a capital letter, or an underscore."""
    known = {
        word
        for path in SOURCES
        if path.suffix in (".py", ".cpp", ".h")
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }
    for name in names_in(page):
        if re.fullmatch(r"[A-Za-z_][\w.]*", name) and re.search(r"[A-Z_]", name) and name not in ("inN", "sharedN"):
            assert set(name.split(".")) <= known, f"docs/{page}.md names {name}"


def test_the_files_to_read_are_the_way_of_a_tree() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    path = re.findall(r"^\| \d+ \| \[`([\w/]+\.py)`\]", text, flags=re.MULTILINE)
    assert len(path) == len(set(path)) <= 25
    stages = [STAGES.index(file.partition("/")[0]) for file in path]
    assert stages == sorted(stages)
    modules = ["jitbatch." + file.removesuffix(".py").replace("/", ".") for file in path]
    for position, module in enumerate(modules):
        below = {name for name, _ in EDGES[module]} & set(modules[position:])
        assert not below, f"{path[position]} imports {below}, which stand below it"

    visited = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            visited.add(frame.f_code.co_filename)

    @jitbatch.jitbatch
    def compose(params: dict[str, jax.Array], left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.tanh(left @ params["left"] + right @ params["right"])

    @jitbatch.jitbatch(executor="fused")
    def encode(params: dict[str, jax.Array], tree: Any) -> jax.Array:
        return compose(params, *(encode(params, t) for t in tree)) if isinstance(tree, tuple) else params["embed"][tree]

    params = {"left": jnp.eye(2), "right": jnp.eye(2), "embed": jnp.ones((10, 2))}
    jitbatch.clear_caches()  # what other pages have recorded and traced
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        plan = encode.plan(params, [((1, 2), 3), (4, 5)], like=None)
        jax.grad(lambda params: encode.batch(params, plan).sum())(params)
    finally:
        sys.setprofile(before)
    package = Path(jitbatch.__file__).parent
    missed = [file for file in path if str(package / file) not in visited]
    assert missed == []


@pytest.mark.skipif(choice.native is None, reason="the compiled core, which knows samples, was not built")
def test_the_files_of_a_known_batch_are_its_way() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    path = re.findall(r"^\| \[`([\w/]+\.py)`\]", text, flags=re.MULTILINE)
    rows = re.findall(r"^\| \[`[\w/]+\.py`\]\S+ \| `([\w.]+)`", text, flags=re.MULTILINE)
    assert len(path) == len(rows) >= 9

    @jitbatch.jitbatch
    def score(params: jax.Array, tree: Any) -> jax.Array:
        return sum(score(params, t) for t in tree) if isinstance(tree, tuple) else params * tree

    params, trees = jnp.ones(()), [((1, 2), 3), (4, 5)]
    visited: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            visited.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname))

    before = sys.getprofile()
    with choice.using("native"):
        score.plan(params, trees)
        score.plan(params, trees)
        sys.setprofile(note)
        try:
            score.plan(params, trees)
        finally:
            sys.setprofile(before)
    package = Path(jitbatch.__file__).parent
    way = [(str(package / file), name) for file, name in zip(path, rows, strict=True)]
    assert [place for place in visited if place in way] == way
