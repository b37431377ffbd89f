"""Sphinx configuration: `make docs` writes docs/_build/html."""

from thunder.__about__ import __author__, __copyright__, __version__

project = "thunder"
author = __author__
copyright = __copyright__.removeprefix("Copyright ")
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"thunder {release}"
myst_heading_anchors = 3
