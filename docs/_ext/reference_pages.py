"""Pages of the API reference: one a class and function, found by what the rooms export.

Before Sphinx reads its sources, the folder ``docs/reference`` is written anew: ``index`` with every
public name by room, a page a room, and a page a name. Nothing is to be added by hand for a new one.
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

#: Rooms in the order of the reference; one that is in no group comes last by itself.
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
#: Rooms of the engine, of which the groups above name the modules that users meet.
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


def module_of(room: str) -> ModuleType:
    """The module of a room, or the package itself."""
    return importlib.import_module(f"daskml_dist.{room}" if room else "daskml_dist")


def names_of(room: str) -> list[str]:
    """Public classes and functions of a room that have a page."""
    module = module_of(room)
    names = ONLY.get(room) or getattr(module, "__all__", ())
    found = [name for name in names if callable(getattr(module, name))]
    # Classes first, each by its name, as a reader looks for them.
    return sorted(found, key=lambda name: (not inspect.isclass(getattr(module, name)), name))


def groups() -> dict[str, list[str]]:
    """Rooms by group, those that no group names in a last one."""
    named = {room.partition(".")[0] for rooms in GROUPS.values() for room in rooms} | ENGINE
    found = [module.name for module in pkgutil.iter_modules(daskml_dist.__path__)]
    others = [name for name in found if not name.startswith("_") and name not in named]
    return {**GROUPS, "Others": others} if others else GROUPS


def _summary(documented: Any) -> str:
    """The first paragraph of a docstring."""
    text = inspect.getdoc(documented) or ""
    return " ".join(text.split("\n\n")[0].split())


def _heading(title: str, line: str) -> str:
    return f"{title}\n{line * len(title)}\n\n"


def _full(room: str, name: str = "") -> str:
    return ".".join(part for part in ("daskml_dist", room, name) if part)


def _table(room: str) -> str:
    """Names of a room with a line each."""
    rows = [".. list-table::", "   :widths: 35 65", "   :class: reference-names", ""]
    for name in names_of(room):
        summary = _summary(getattr(module_of(room), name))
        rows += [f"   * - :py:obj:`~{_full(room, name)}`", f"     - {summary}"]
    return "\n".join(rows) + "\n\n"


def _toctree(pages: list[str], *options: str) -> str:
    lines = [*(f":{option}:" for option in options), "", *pages]
    return "\n".join([".. toctree::", *(f"   {line}".rstrip() for line in lines)]) + "\n"


def _title(room: str) -> str:
    return TITLES.get(room) or re.split(r"[.:;]", _summary(module_of(room)))[0]


def page_of_name(room: str, name: str) -> str:
    """Source of the page of a class or a function."""
    documented, full = getattr(module_of(room), name), _full(room, name)
    text = _heading(name, "=") + f".. py:currentmodule:: {_full(room)}\n\n"
    if not inspect.isclass(documented):
        return text + f".. autofunction:: {full}\n" + _used_by(full, name)
    kind = "autoexception" if issubclass(documented, BaseException) else "autoclass"
    options = ["members"]
    if issubclass(documented, BaseEstimator):
        options.append("inherited-members")
    text += f".. {kind}:: {full}\n" + "".join(f"   :{option}:\n" for option in options)
    return text + _used_by(full, name)


def _used_by(full: str, name: str) -> str:
    """Source of the end of a page: examples of the gallery, and scripts, that use the name."""
    title = f"Examples that use {name}"
    text = f"\n.. minigallery:: {full}\n   :add-heading: {title}\n   :heading-level: -\n"
    using = [path for path in scripts() if full in names_used(path)]
    if using:
        links = ", ".join(f":doc:`{path.name} </scripts/{path.stem}>`" for path in using)
        text += f"\nScripts that use it: {links}.\n"
    return text


def page_of_room(room: str) -> str:
    """Source of the page of a room: what it is, and its names."""
    text = _heading(_full(room), "=")
    if room not in TITLES:
        text += textwrap.dedent(inspect.getdoc(module_of(room)) or "") + "\n\n"
    else:
        text += f"{_title(room)}.\n\n"
    return text + _table(room) + _toctree([_full(room, name) for name in names_of(room)], "hidden")


def page_of_all() -> str:
    """Source of the page of all names."""
    text = _heading("API reference", "=")
    text += (
        "Every name here is public: it keeps its name and meaning between minor releases. "
        "Estimators have scikit-learn's parameters and attributes where they have its name.\n\n"
    )
    for group, rooms in groups().items():
        text += _heading(group, "-")
        for room in rooms:
            text += f"**{_title(room)}** (:doc:`{_full(room)} <{_full(room)}>`)\n\n" + _table(room)
    rooms = [room for some in groups().values() for room in some]
    # Short in the sidebar, as all of them begin alike.
    return text + _toctree([f"{room or 'daskml_dist'} <{_full(room)}>" for room in rooms], "hidden")


def pages() -> dict[str, str]:
    """Sources of all pages by name."""
    rooms = [room for some in groups().values() for room in some]
    names = {
        _full(room, name): page_of_name(room, name) for room in rooms for name in names_of(room)
    }
    return {"index": page_of_all(), **{_full(room): page_of_room(room) for room in rooms}, **names}


def write(app: Sphinx) -> None:
    """Write what has changed, and drop what is no more."""
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
