"""The folders are stages: each imports only itself and earlier stages, and no module imports itself in a circle."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitbatch as package

STAGES = (
    "util", "core", "ir", "record", "batch", "schedule", "execute", "tune", "plan", "rollout", "inspect", "step",
    "serve", "methods", "segment", "errors", "decorator", "__init__", "data", "models", "cli", "__main__",
)  # fmt: skip
"""In the order of the pipeline; `_version` may be read by all."""

ROOT = Path(package.__file__).parent
MODULES = {
    ".".join(("jitbatch", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def stage_of(module: str) -> int:
    parts = module.split(".")
    return STAGES.index(parts[1] if len(parts) > 1 else "__init__")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The modules of the package that a file imports, also inside functions, with lines. What is imported for type
    annotations alone (`if TYPE_CHECKING`) is left out: it is not imported."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found = inner & MODULES.keys() or {node.module}
            yield from ((name, node.lineno) for name in found)


EDGES = {module: sorted(set(imported(path))) for module, path in MODULES.items()}


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("_version")])
def test_a_stage_imports_only_itself_and_earlier_ones(module: str) -> None:
    for other, line in EDGES[module]:
        if not other.endswith("_version"):
            assert stage_of(other) <= stage_of(module), f"{MODULES[module]}:{line} imports the later stage of {other}"


def test_no_module_imports_itself_in_a_circle() -> None:
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> None:
        assert module not in path, f"a circle: {' -> '.join([*path[path.index(module) :], module])}"
        if module not in done:
            path.append(module)
            for other, _ in EDGES[module]:
                visit(other)
            path.pop()
            done.add(module)

    for module in MODULES:
        visit(module)


def test_chains_of_imports_are_short() -> None:
    """A module is read after those that it imports. Make the number smaller where you can."""

    @functools.cache
    def chain(module: str) -> list[str]:
        return [module, *max((chain(other) for other, _ in EDGES[module]), key=len, default=[])]

    longest = chain("jitbatch.decorator")
    assert len(longest) <= 28, " > ".join(longest)


def test_every_stage_says_what_goes_in_and_what_comes_out() -> None:
    for stage in STAGES[:14]:
        text = ast.get_docstring(ast.parse((ROOT / stage / "__init__.py").read_text())) or ""
        for word in ("In:", "Out:", "Invariants:", "Imports:"):
            assert word in text, f"the docstring of {stage}/__init__.py has no line `{word}`"


def test_the_package_itself_holds_public_names_alone() -> None:
    kinds = {type(node) for node in ast.parse((ROOT / "__init__.py").read_text()).body}
    assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign}
