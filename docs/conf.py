"""Sphinx configuration; `make docs` builds with warnings as errors."""

import functools
import inspect
import re
from typing import Any, NamedTuple

import jitbatch

project = "jitbatch"
author = copyright = "the jitbatch developers"
release = jitbatch.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "jitbatch"
html_extra_path = ["live"]
exclude_patterns = ["_build", "live"]
default_role = "code"  # docstrings have single backquotes, as Markdown has
autodoc_typehints = "none"
myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests execute notebooks; their outputs are stored

# Methods of decorated functions are properties (`util/wrapped`). The reference shows them as the methods that they are.
for decorated in (jitbatch.Batched, jitbatch.AsyncBatched):
    for name, member in list(vars(decorated).items()):
        if isinstance(member, property) and isinstance(member.fget, functools.partial):
            setattr(decorated, name, member.fget.args[0])


class _Example(NamedTuple):
    field: int


def _skip(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples: Python documents them as "Alias for field number 0"."""
    return True if isinstance(member, type(_Example.field)) else None


def _list_fields(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Makes a list of the section "Attributes". A line may describe several fields: `rows, columns: the sizes`."""
    if "Attributes:" not in lines:
        return
    begin = lines.index("Attributes:")
    end = next((i for i in range(begin + 1, len(lines)) if re.match(r"\S", lines[i])), len(lines))
    lines[begin] = "Attributes:\n"
    for i in range(begin + 1, end):
        field = re.match(r" {4}(\w+(?:, \w+)*): (.*)", lines[i])
        lines[i] = f"* **{field[1]}** -- {field[2]}" if field else lines[i][4:].replace("    ", "  ", 1)
    lines[:] = "\n".join(lines).splitlines()


def _signature(app: Any, what: str, name: str, member: Any, options: Any, arguments: Any, returned: Any) -> Any:
    """The arguments of a model: the metaclass of Flax's modules hides them."""
    if what != "class" or arguments != "(*args, **kwargs)":
        return None
    parameters = list(inspect.signature(member.__init__).parameters.values())[1:]  # without `self`
    return str(inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters])), returned


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _list_fields, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
