"""Pages of the API reference, made from what the subpackages export.

Before Sphinx reads its sources, the folder ``docs/reference`` is written anew: ``index`` with every
public name by subpackage, one page for each subpackage, and one for each class and function. A new
name gets its page without an entry here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from script_pages import names_used, scripts
from sklearn.base import BaseEstimator

import daskml_dist

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Subpackages in the order of the reference; one that is in no group comes last, by itself.
GROUPS = {
    "Estimators": [
        "linear_model", "svm", "naive_bayes", "neural_network", "tree", "ensemble", "calibration",
        "conformal",
        "cluster", "decomposition", "mixture", "recommender", "graph", "frequent_patterns",
        "wrappers",
    ],
    "Data, scores and searches": [
        "preprocessing", "impute", "compose", "feature_extraction", "feature_selection",
        "metrics", "metrics.pairwise", "model_selection", "inspection", "inference", "datasets",
    ],
    "How a fit is made": [
        "", "planning", "streaming", "collective", "integrations.xgboost", "integrations.lightgbm",
        "integrations.torch", "policies", "compression", "privacy", "optimizers",
        "schedules", "losses", "penalties", "solvers", "callbacks", "training.history",
        "training.callbacks",
        "training.client.cluster_run", "diagnostics.progress", "diagnostics.plots",
    ],
    "Your own, errors, services, the command line": [
        "base", "models", "errors", "exceptions", "serving", "cli",
    ],
}  # fmt: skip
#: Internal subpackages, of which the groups above name the modules that users meet.
ENGINE = {
    "backends", "comm", "dask_internals", "data", "diagnostics", "estimators", "inference",
    "meta_estimators", "parameters", "ps", "sklearn_internals", "training",
}  # fmt: skip
#: What of these modules users meet, where it is not all that they export.
ONLY = {
    "inference": ["to_sklearn", "to_onnx", "Predictor"],
    "training.client.cluster_run": ["GenerationEvent"],
}
TITLES = {
    "": "How a fit is laid out, and other names of the package itself",
    "inference": "Export, methods of every estimator and transformer; predictors",
    "training.callbacks": "Callbacks of your own",
    "training.client.cluster_run": "What a callback is told of a change of workers",
}


def module_of(subpackage: str) -> ModuleType:
    """Return the module of a subpackage, or the package itself for an empty name."""
    return importlib.import_module(f"daskml_dist.{subpackage}" if subpackage else "daskml_dist")


def names_of(subpackage: str) -> list[str]:
    """Return the public classes and functions of a subpackage that have a page, classes first."""
    module = module_of(subpackage)
    names = ONLY.get(subpackage) or getattr(module, "__all__", ())
    documented = [name for name in names if callable(getattr(module, name))]
    return sorted(documented, key=lambda name: (not inspect.isclass(getattr(module, name)), name))


def groups() -> dict[str, list[str]]:
    """Return subpackages by group; the ones that no group names are the last group."""
    named = {
        subpackage.partition(".")[0]
        for subpackages in GROUPS.values()
        for subpackage in subpackages
    } | ENGINE
    existing = [module.name for module in pkgutil.iter_modules(daskml_dist.__path__)]
    others = [name for name in existing if not name.startswith("_") and name not in named]
    return {**GROUPS, "Others": others} if others else GROUPS


def _summary(documented: Any) -> str:
    """Return the first paragraph of a docstring."""
    text = inspect.getdoc(documented) or ""
    return " ".join(text.split("\n\n")[0].split())


def _heading(title: str, line: str) -> str:
    return f"{title}\n{line * len(title)}\n\n"


def _full(subpackage: str, name: str = "") -> str:
    return ".".join(part for part in ("daskml_dist", subpackage, name) if part)


def _table(subpackage: str) -> str:
    """Return a table of the names of a subpackage with a line on each."""
    rows = [".. list-table::", "   :widths: 35 65", "   :class: reference-names", ""]
    for name in names_of(subpackage):
        summary = _summary(getattr(module_of(subpackage), name))
        rows += [f"   * - :py:obj:`~{_full(subpackage, name)}`", f"     - {summary}"]
    return "\n".join(rows) + "\n\n"


def _toctree(pages: list[str], *options: str) -> str:
    lines = [*(f":{option}:" for option in options), "", *pages]
    return "\n".join([".. toctree::", *(f"   {line}".rstrip() for line in lines)]) + "\n"


def _title(subpackage: str) -> str:
    return TITLES.get(subpackage) or re.split(r"[.:;]", _summary(module_of(subpackage)))[0]


def page_of_name(subpackage: str, name: str) -> str:
    """Return the source of the page of a class or function."""
    documented, full = getattr(module_of(subpackage), name), _full(subpackage, name)
    text = _heading(name, "=") + f".. py:currentmodule:: {_full(subpackage)}\n\n"
    if not inspect.isclass(documented):
        return text + f".. autofunction:: {full}\n" + _used_by(full, name)
    kind = "autoexception" if issubclass(documented, BaseException) else "autoclass"
    options = ["members"]
    if issubclass(documented, BaseEstimator):
        options.append("inherited-members")
    text += f".. {kind}:: {full}\n" + "".join(f"   :{option}:\n" for option in options)
    return text + _used_by(full, name)


def _used_by(full: str, name: str) -> str:
    """Return the end of a page: the gallery's examples and the scripts that use the name."""
    title = f"Examples that use {name}"
    text = f"\n.. minigallery:: {full}\n   :add-heading: {title}\n   :heading-level: -\n"
    using = [path for path in scripts() if full in names_used(path)]
    if using:
        links = ", ".join(f":doc:`{path.name} </scripts/{path.stem}>`" for path in using)
        text += f"\nScripts that use it: {links}.\n"
    return text


def page_of_subpackage(subpackage: str) -> str:
    """Return the source of the page of a subpackage: its docstring and its names."""
    text = _heading(_full(subpackage), "=")
    if subpackage not in TITLES:
        text += textwrap.dedent(inspect.getdoc(module_of(subpackage)) or "") + "\n\n"
    else:
        text += f"{_title(subpackage)}.\n\n"
    return (
        text
        + _table(subpackage)
        + _toctree([_full(subpackage, name) for name in names_of(subpackage)], "hidden")
    )


def page_of_all() -> str:
    """Return the source of the page of all names."""
    text = _heading("API reference", "=")
    text += (
        "Every name here is public: it keeps its name and meaning between minor releases. "
        "Estimators have scikit-learn's parameters and attributes where they have its name.\n\n"
    )
    for title, subpackages in groups().items():
        text += _heading(title, "-")
        for subpackage in subpackages:
            text += (
                f"**{_title(subpackage)}** (:doc:`{_full(subpackage)} <{_full(subpackage)}>`)\n\n"
                + _table(subpackage)
            )
    subpackages = [subpackage for group in groups().values() for subpackage in group]
    # Short in the sidebar, as all of them begin alike.
    return text + _toctree(
        [f"{subpackage or 'daskml_dist'} <{_full(subpackage)}>" for subpackage in subpackages],
        "hidden",
    )


def pages() -> dict[str, str]:
    """Return the sources of all pages by name."""
    subpackages = [subpackage for group in groups().values() for subpackage in group]
    names = {
        _full(subpackage, name): page_of_name(subpackage, name)
        for subpackage in subpackages
        for name in names_of(subpackage)
    }
    return {
        "index": page_of_all(),
        **{_full(subpackage): page_of_subpackage(subpackage) for subpackage in subpackages},
        **names,
    }


def write(app: Sphinx) -> None:
    """Write the pages that have changed, and remove the ones whose name is gone."""
    folder, sources = Path(app.srcdir) / "reference", pages()
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.rst"):
        if path.stem not in sources:
            path.unlink()
    for name, text in sources.items():
        path = folder / f"{name}.rst"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
