"""Sphinx configuration; `make docs` builds with warnings as errors."""

import jitbatch

project = "jitbatch"
author = "the jitbatch developers"
release = jitbatch.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
myst_heading_anchors = 2
