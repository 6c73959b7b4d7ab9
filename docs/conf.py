"""Sphinx configuration: sphinx-build -W -b html docs docs/_build."""

from __future__ import annotations

import sys
from importlib.metadata import version as distribution_version
from pathlib import Path

from sphinx.application import Sphinx

project = "daskml_dist"
author = "daskml_dist developers"
copyright = "2026, daskml_dist developers"
release = version = distribution_version("daskml-dist")

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery"]
extensions += ["reference_pages"]
exclude_patterns = ["_build", "gallery/*.ipynb"]  # pages of the gallery are its .rst files
# Each public class and function has a page by the module that users import it from:
# reference/{estimator_module}.{estimator_name}.html, with estimator_module such as
# "daskml_dist.linear_model". Links from outside (the "?" of a notebook) are made by this template.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Examples with pictures, run at each build, which fails where one raises.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "abort_on_example_error": True,
    "show_memory": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "copyfile_regex": "",
}

# Notebooks are stored without outputs: these are made as the site is built.
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # what Dask logs as a worker is killed

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's sections state them
# Members are listed where a class asks for it (_ext/reference_pages.py), not by numpydoc too.
numpydoc_show_class_members = False

toc_object_entries_show_parents = "hide"  # fit(), not SGDClassifier.fit(), beside a class's page

html_theme = "pydata_sphinx_theme"
html_title = f"daskml_dist {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"**": ["sidebar-nav-bs.html"]}
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "collapse_navigation": True,  # else each of some hundred pages holds the tree of all
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def _skip_foreign_members(
    app: object, what: str, name: str, obj: object, skip: bool, options: object
) -> bool | None:
    """Leave out what scikit-learn's base classes add: their docstrings refer to its own pages."""
    made_by = getattr(obj, "fget", None) or obj  # a property names no module, its function does
    return True if (getattr(made_by, "__module__", None) or "").startswith("sklearn.") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", _skip_foreign_members)
