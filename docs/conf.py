"""Sphinx configuration: sphinx-build -W -b html docs docs/_build."""

from __future__ import annotations

from importlib.metadata import version as distribution_version

from sphinx.application import Sphinx

project = "daskml_dist"
author = "daskml_dist developers"
copyright = "2026, daskml_dist developers"
release = version = distribution_version("daskml-dist")

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Notebooks are stored without outputs: these are made as the site is built.
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_timeout = 110
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # what Dask logs as a worker is killed

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's sections state them
# Members are listed where a class asks for it (docs/api.md), not once more by numpydoc.
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"daskml_dist {release}"
html_static_path = ["_static"]
html_sidebars = {"**": ["sidebar-nav-bs.html"]}
html_theme_options = {"navigation_with_keys": False, "show_toc_level": 2}


def _skip_foreign_members(
    app: object, what: str, name: str, obj: object, skip: bool, options: object
) -> bool | None:
    """Leave out what scikit-learn's base classes add: their docstrings refer to its own pages."""
    return True if (getattr(obj, "__module__", None) or "").startswith("sklearn.") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", _skip_foreign_members)
