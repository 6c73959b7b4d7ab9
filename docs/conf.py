"""Sphinx configuration: sphinx-build -W -b html docs docs/_build."""

from __future__ import annotations

import os
import sys
from importlib.metadata import metadata
from importlib.metadata import version as distribution_version
from pathlib import Path

from sphinx.application import Sphinx

project = "daskml_dist"
author = "daskml_dist developers"
copyright = "2026, daskml_dist developers"
release = version = distribution_version("daskml-dist")

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery"]
extensions += ["sphinx.ext.viewcode", "sphinx_copybutton", "sphinx_design"]
extensions += ["reference_pages", "script_pages"]
exclude_patterns = ["_build", "gallery/*.ipynb"]  # pages of the gallery are its .rst files
# Each public class and function has a page by the module that users import it from:
# reference/{estimator_module}.{estimator_name}.html, with estimator_module such as
# "daskml_dist.linear_model". Links from outside (the "?" of a notebook) are made by this template.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"  # prompts and outputs are not copied
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Links into other projects' references need their inventories, and so the network: builds without
# it, as in CI, leave them out.
if os.environ.get("DASKML_DIST_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "scipy": ("https://docs.scipy.org/doc/scipy", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
        "dask": ("https://docs.dask.org/en/stable", None),
        "distributed": ("https://distributed.dask.org/en/stable", None),
    }

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
    "backreferences_dir": "gallery/backreferences",  # examples that use a class, on its page
    "doc_module": ("daskml_dist",),
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
html_favicon = "_static/logo.svg"
html_css_files = ["site.css"]
html_sidebars = {"**": ["sidebar-nav-bs.html"]}
#: Addresses of the project that its metadata name, such as those of its source and its issues.
_ADDRESSES = dict(
    line.split(", ", 1) for line in metadata("daskml-dist").get_all("Project-URL") or ()
)
_ICONS = {"Source": "fa-brands fa-git-alt", "Issues": "fa-solid fa-circle-exclamation"}
html_theme_options = {
    "logo": {"image_light": "_static/logo.svg", "image_dark": "_static/logo.svg", "text": project},
    "icon_links": [
        {"name": name, "url": _ADDRESSES[name], "icon": icon}
        for name, icon in _ICONS.items()
        if name in _ADDRESSES
    ],
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
