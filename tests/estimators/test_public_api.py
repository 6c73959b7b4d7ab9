"""Every public name is exported, documented and in the API reference."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pickle
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sklearn.exceptions

import daskml_dist
import daskml_dist.errors
from daskml_dist.losses import AFT, AbsoluteError, Cox
from daskml_dist.optimizers import DelayedNesterov, Muon, RowWiseAdagrad, RowWiseAdam

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Subpackages that users do not import from; the few public names in them are listed
# in docs/_ext/reference_pages.py.
ENGINE = {
    "backends", "comm", "dask_internals", "data", "diagnostics", "estimators", "inference",
    "meta_estimators", "parameters", "ps", "sklearn_internals", "training",
}  # fmt: skip

# Names that users' code relies on. Names may be added without an entry here, never removed.
EXPORTS = {
    "linear_model": {"SGDClassifier", "SGDRegressor"},
    "policies": {
        "AllReduce",
        "Asynchronous",
        "BoundedStaleness",
        "Hogwild",
        "LocalSGD",
        "ModelAveraging",
        "Synchronous",
    },
    "optimizers": {"FTRL", "SGD", "Adagrad", "Adam", "AdamW", "Momentum", "Nesterov"},
    "schedules": {
        "Constant",
        "Cosine",
        "InverseScaling",
        "Optimal",
        "StalenessAware",
        "StepDecay",
        "Warmup",
    },
    "losses": {"get_loss"},
    "errors": {"DaskMLDistError", "InvalidDataError", "InvalidParameterError", "TrainingError"},
}
TABLES = ["losses", "optimizers", "penalties", "policies", "schedules"]
# Subpackages whose tables contain the exports of their modules.
FAMILIES = ["losses", "optimizers"]


#: Libraries that modules may need and that need not be installed.
EXTRAS = {"bokeh", "cupy", "cupyx", "httptools", "msgspec", "uvicorn", "uvloop"}


def _module_names() -> list[str]:
    found = pkgutil.walk_packages(daskml_dist.__path__, "daskml_dist.")
    return sorted(module.name for module in found)


def _subpackage(name: str) -> ModuleType:
    return importlib.import_module(f"daskml_dist.{name}")


def _own_definitions(module: ModuleType) -> dict[str, Any]:
    """Return the classes and functions defined in the module."""
    return {
        name: value
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isroutine(value))
        and getattr(value, "__module__", None) == module.__name__
    }


def _exported(module: ModuleType) -> dict[str, Any]:
    """Return the classes and functions in `__all__`, or else all defined public ones."""
    if not hasattr(module, "__all__"):
        return {n: v for n, v in _own_definitions(module).items() if not n.startswith("_")}
    names = {name: getattr(module, name) for name in module.__all__}
    return {n: v for n, v in names.items() if inspect.isclass(v) or inspect.isroutine(v)}


def _is_own(value: Any) -> bool:
    """Return whether the package defines a class or function; `dask_internals` hands on Dask's."""
    return str(getattr(value, "__module__", "")).partition(".")[0] == "daskml_dist"


def _is_documented(name: str, value: Any) -> bool:
    doc = (value.__doc__ or "").strip()
    # A dataclass without a docstring gets its signature as one.
    return bool(doc) and not doc.startswith(f"{name}(")


@pytest.fixture(scope="module")
def modules() -> list[ModuleType]:
    """Return all modules of the package except those that need a missing extra."""
    found = []
    for name in _module_names():
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in EXTRAS:
                raise
    return found


def test_public_names_are_exported(modules: list[ModuleType]) -> None:
    hidden = [
        f"{module.__name__}.{name}"
        for module in modules
        if hasattr(module, "__all__")
        for name in _own_definitions(module)
        if not name.startswith("_") and name not in module.__all__
    ]
    assert hidden == [], "add them to __all__ or underscore them"


def test_public_subpackages_define_their_exports() -> None:
    assert [
        subpackage
        for subpackage in _public_subpackages()
        if not getattr(_subpackage(subpackage), "__all__", ())
    ] == []


def test_exports_exist(modules: list[ModuleType]) -> None:
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name in getattr(module, "__all__", [])
        if not hasattr(module, name)
    ]
    assert missing == []


def test_exported_names_have_docstrings(modules: list[ModuleType]) -> None:
    bare = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in _exported(module).items()
        if _is_own(value) and not _is_documented(name, value)
    ]
    assert bare == []


@pytest.mark.parametrize("subpackage", EXPORTS)
def test_no_name_that_users_rely_on_is_lost(subpackage: str) -> None:
    assert EXPORTS[subpackage] <= set(_subpackage(subpackage).__all__)


@pytest.mark.parametrize("subpackage", TABLES)
def test_tables_name_exported_classes(subpackage: str) -> None:
    module = _subpackage(subpackage)
    table = getattr(module, subpackage.upper())
    entries = table.values() if isinstance(table, dict) else table
    assert {e.__name__ for e in entries if inspect.isclass(e)} <= set(module.__all__)


@pytest.mark.parametrize("subpackage", FAMILIES)
def test_tables_contain_the_exports_of_their_modules(subpackage: str) -> None:
    modules = [
        _subpackage(name.partition(".")[2]) for name in _module_names() if f".{subpackage}." in name
    ]
    definitions = [entry for module in modules for entry in _own_definitions(module).items()]
    classes = {
        value for name, value in definitions if inspect.isclass(value) and not name.startswith("_")
    }
    named = {
        value for value in classes if hasattr(value, "name")
    }  # their base class is not in a table
    table = getattr(_subpackage(subpackage), subpackage.upper())
    # Tables are for ordinary steps; some optimizers are only for outer steps or embedding rows,
    # and some losses only for boosting or survival times.
    of_some = {Muon, DelayedNesterov, RowWiseAdagrad, RowWiseAdam, AbsoluteError, AFT, Cox}
    of_all = {value for value in named - of_some if not inspect.isabstract(value)}
    assert of_all == set(table.values())


# --- the API reference -------------------------------------------------------------------------


def _public_subpackages() -> list[str]:
    subpackages = [name.split(".")[1] for name in _module_names() if name.count(".") == 1]
    return [
        subpackage
        for subpackage in subpackages
        if subpackage not in ENGINE and not subpackage.startswith("_")
    ]


def test_names_have_a_page_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    reference = importlib.import_module("reference_pages")
    pages = reference.pages()
    for subpackage in _public_subpackages():
        for name in _exported(_subpackage(subpackage)):
            assert ":: daskml_dist." in pages[f"daskml_dist.{subpackage}.{name}"]
            assert f":py:obj:`~daskml_dist.{subpackage}.{name}`" in pages["index"]
    for name in _exported(daskml_dist):
        assert f"daskml_dist.{name}" in pages
    # A subpackage without a group comes last, separately.
    first, *rest = reference.GROUPS["Estimators"]
    monkeypatch.setitem(reference.GROUPS, "Estimators", rest)
    assert reference.groups()["Others"] == [first]


# --- the package -----------------------------------------------------------------------------


def _maths_modules() -> list[str]:
    """Return modules that the layers in pyproject.toml keep free of Dask."""
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    [subpackages] = [
        c["source_modules"] for c in contracts if "dask" in c.get("forbidden_modules", [])
    ]
    return [
        name
        for name in _module_names()
        if any(f"{name}.".startswith(f"{subpackage}.") for subpackage in subpackages)
        and "cupy" not in name
    ]


def _imported_with(modules: list[str], wanted: set[str]) -> list[str]:
    """Return which of the given modules a new process has imported along with others."""
    code = f"import sys, {', '.join(modules)}\nprint(*sorted({wanted} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    return done.stdout.split()


def test_maths_runs_without_dask() -> None:
    assert _imported_with(_maths_modules(), {"dask", "distributed"}) == []


def test_workers_train_without_scikit_learn() -> None:
    """It takes over a second to import, before the first step on a new worker."""
    subpackages = [
        f"daskml_dist.{subpackage}"
        for subpackage in ("data", "ps", "comm", "training.worker.trainer")
    ]
    assert _imported_with(subpackages, {"sklearn", "pandas", "dask.dataframe"}) == []


def test_not_fitted_error_is_scikit_learns_too() -> None:
    error = daskml_dist.errors.NotFittedError("not fitted")
    assert isinstance(error, sklearn.exceptions.NotFittedError)
    assert isinstance(pickle.loads(pickle.dumps(error)), daskml_dist.errors.DaskMLDistError)
    with pytest.raises(AttributeError, match="no attribute 'NoSuchError'"):
        daskml_dist.errors.NoSuchError  # noqa: B018


def test_version_is_the_distribution_s() -> None:
    assert daskml_dist.__version__ == importlib.metadata.version("daskml-dist")
    assert f"## [{daskml_dist.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_package_is_typed() -> None:
    assert (Path(daskml_dist.__file__).parent / "py.typed").is_file()


def test_every_policy_has_its_picture_and_text() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    for name in _subpackage("policies").POLICIES:
        assert f'`"{name}"`' in page
        assert f"_static/policy_{name}.svg" in page
        assert (ROOT / "docs" / "_static" / f"policy_{name}.svg").is_file()
