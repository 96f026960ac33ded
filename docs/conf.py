"""Sphinx configuration; `make docs` builds with warnings as errors."""

import functools

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
