"""Manifests: descriptions of the estimators in model files, in JSON.

A manifest has the class, the features (number, names, dtypes), the classes, facts of the training,
the versions of packages and, added by the file's format, checksums of its parts. Servers, MLflow
and users read it without loading the model. The functions below find these facts in estimators of
this package, of scikit-learn, and in pipelines, searches and ensembles of them.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion

from daskml_dist._version import __version__
from daskml_dist.errors import ModelFileError
from daskml_dist.errors.stack_level import user_stack_level

#: Parameters that only a fit needs, and whose values may be anything, such as open files.
_FIT_PARAMS = ("callbacks", "checkpoint")
#: Types of which one object may be the value of many attributes: a replacement by its `id` would
#: replace all of them.
_SHARED_TYPES = (type(None), str, int, float, tuple)


def find_replacements(estimator: Any) -> dict[int, Any]:
    """Return the values that replace parts of an estimator in a file, by the `id` of the part.

    Callbacks and checkpoints become None, also in estimators that it holds. An estimator may have a
    method ``_in_files()``, which returns the attributes with other values in a file.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    left = [estimator]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) in (list, tuple):
            left.extend(one)
        elif isinstance(one, dict):
            left.extend(one.values())
        elif hasattr(one, "get_params") and hasattr(one, "__dict__"):
            parts = vars(one)
            replaced = {n: None for n in _FIT_PARAMS if not isinstance(parts.get(n), _SHARED_TYPES)}
            if hasattr(one, "_in_files"):
                replaced |= one._in_files()
            found |= {id(parts[name]): value for name, value in replaced.items() if name in parts}
            left.extend(value for name, value in parts.items() if name not in replaced)
    return found


#: Packages of which another minor release may predict other values from the same attributes.
_WARNED_PACKAGES = ("daskml-dist", "scikit-learn")


@contextmanager
def explain_old_versions(manifest: Mapping[str, Any], name: str) -> Iterator[None]:
    """Raise failures of reading a file with correct checksums, with the versions that wrote it.

    Such a file is whole, so it is the installed versions that do not fit.
    """
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:  # of many kinds: a class that has moved, attributes
        versions = ", ".join(f"{one} {number}" for one, number in manifest["versions"].items())
        raise ModelFileError(
            f"{name} cannot be read ({type(error).__name__}: {error}). It was written with "
            f"{versions}; install these, or save the model again."
        ) from error


def warn_of_versions(manifest: Mapping[str, Any], name: str) -> None:
    """Warn if another minor release of this package or scikit-learn wrote a file."""
    here, written = _find_versions(), manifest.get("versions", {})
    others = [
        f"{one} {written[one]} (here {here.get(one)})"
        for one in _WARNED_PACKAGES
        if one in written and _minor(written[one]) != _minor(here.get(one, ""))
    ]
    if others:
        warnings.warn(
            f"{name} was written with {' and '.join(others)}. Its predictions may differ: "
            "compare some and save the model again, or install those versions.",
            UserWarning,
            stacklevel=user_stack_level(),
        )


def _minor(version: str) -> list[str]:
    """Return major and minor number of a version."""
    return version.split(".")[:2]


#: Latest version of the layout of model files; a reader refuses a later one. Version 2, only of
#: skops, stores arrays that an estimator shares with its twin once, in the twin.
FORMAT = 2

#: Packages whose versions are in a manifest, besides this one and Python.
_PACKAGES = ("numpy", "scikit-learn", "skops", "safetensors")


def make_manifest(estimator: Any) -> dict[str, Any]:
    """Return the manifest of a fitted estimator, without checksums."""
    kind = type(estimator)
    # Version 2 only if it is needed: `skops_file.write` sets it.
    return {
        "format": 1,
        "estimator": f"{_find_public_module(kind.__module__)}.{kind.__name__}",
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "inputs": _describe_inputs(estimator),
        "outputs": _describe_outputs(estimator),
        "training": _describe_training(estimator),
        "versions": _find_versions(),
    }


def _find_public_module(module: str) -> str:
    """Return the subpackage that users import a class from; for other packages its module."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "daskml_dist" else module


def _describe_inputs(estimator: Any) -> dict[str, Any]:
    """Return number, names and dtypes of the features; None for those the fit did not learn."""
    names = getattr(estimator, "feature_names_in_", None)
    n_features = getattr(estimator, "n_features_in_", None)
    return {
        "n_features": None if n_features is None else int(n_features),
        "names": None if names is None else [str(name) for name in names],
        "dtypes": _find_dtypes(estimator),
    }


def needed_names(estimator: Any) -> list[str] | None:
    """Return the names of the columns that a fitted estimator reads, in the order of its fit.

    All columns of the fit except those that a ColumnTransformer at its start drops: scikit-learn
    requires these neither in `transform` nor in `predict`.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return None
    names = [str(name) for name in names]
    # Private, but the only place where scikit-learn stores the columns as numbers for any kind of
    # selection.
    if isinstance(estimator, ColumnTransformer):
        chosen = estimator._transformer_to_input_indices
        kept = {
            at
            for name, transformer, _ in estimator.transformers_
            if not (isinstance(transformer, str) and transformer == "drop")
            for at in chosen.get(name, ())
        }
        return [name for at, name in enumerate(names) if at in kept]
    # The rows are read by the first step of a pipeline, or the members of an ensemble or a search.
    steps = getattr(estimator, "steps", None)
    readers = [steps[0][1]] if steps else members_given_rows(estimator)
    if not readers:
        return names
    needed = {name for reader in readers for name in needed_names(reader) or names}
    return [name for name in names if name in needed]


def members_given_rows(estimator: Any) -> list[Any]:
    """Return the fitted members that an estimator passes its rows to unchanged."""
    for name in ("best_estimator_", "regressor_"):
        if (one := getattr(estimator, name, None)) is not None:
            return [one]
    if (calibrated := getattr(estimator, "calibrated_classifiers_", None)) is not None:
        return [one.estimator for one in calibrated]
    if isinstance(estimator, FeatureUnion):
        return [one for _, one in estimator.transformer_list if not isinstance(one, str)]
    # Voting and stacking pass rows on, but a stack with `passthrough` reads all columns itself, for
    # its final estimator, and so does a bagging ensemble.
    passes_rows = hasattr(estimator, "named_estimators_")
    reads_rows = getattr(estimator, "passthrough", False)
    return list(estimator.estimators_) if passes_rows and not reads_rows else []


def _find_dtypes(estimator: Any) -> list[str] | None:
    """Return the dtypes of the columns of the fit; one if all columns have the same."""
    steps = getattr(estimator, "steps", None)
    if steps:
        return _find_dtypes(steps[0][1])
    own: list[str] | None = getattr(estimator, "_feature_dtypes", None)
    if own is not None:
        return own
    # scikit-learn's estimators store no dtypes; a member of this package that was fitted to the
    # same columns does.
    width = getattr(estimator, "n_features_in_", None)
    alike = (
        one for one in _find_members(estimator) if getattr(one, "n_features_in_", None) == width
    )
    return next((found for one in alike if (found := _find_dtypes(one)) is not None), None)


def _find_members(estimator: Any) -> list[Any]:
    """Return the fitted estimators within this one: a search's best, all of an ensemble."""
    for name in ("best_estimator_", "estimator_", "regressor_"):
        if (one := getattr(estimator, name, None)) is not None:
            return [one]
    for name in ("estimators_", "calibrated_classifiers_", "transformer_list"):
        many = getattr(estimator, name, None)
        if isinstance(many, list | tuple):
            many = [one[-1] if isinstance(one, tuple) else one for one in many]
            return [getattr(one, "estimator", one) if "calib" in name else one for one in many]
    return []


def _describe_outputs(estimator: Any) -> dict[str, Any]:
    """Return classes and their dtype as JSON; for several outputs, lists of both."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return {"classes": None}
    several = isinstance(classes, list)
    found = [np.asarray(one) for one in (classes if several else [classes])]
    # JSON has no dates and times: they become text.
    found = [one.astype(str) if one.dtype.kind in "mM" else one for one in found]
    lists = [[_encode_label(label) for label in one.tolist()] for one in found]
    dtypes = [str(one.dtype) for one in found]
    return {"classes": lists if several else lists[0], "dtype": dtypes if several else dtypes[0]}


def _encode_label(label: Any) -> Any:
    """Return a label as JSON: None for NaN, text for infinity and other objects."""
    if isinstance(label, float) and not np.isfinite(label):
        return None if np.isnan(label) else str(label)
    return label if label is None or isinstance(label, str | int | float) else str(label)


def _describe_training(estimator: Any) -> dict[str, Any]:
    """Return facts of the last fit, if it stored a history; for an ensemble, the members' sums."""
    # For a pipeline the last step: the others make no passes.
    steps = getattr(estimator, "steps", None)
    last = steps[-1][1] if steps else estimator
    history: Any = getattr(last, "history_", None)
    records = getattr(history, "records", None)
    if records:
        return {
            "passes": len(records),
            "rows": _encode_number(records[-1].get("rows")),
            "loss": _encode_number(records[-1].get("loss")),
            "seconds": _encode_number(sum(record.get("seconds") or 0.0 for record in records)),
            "policy": history.extra.get("policy"),
        }
    fits = [facts for one in _find_members(last) if (facts := _describe_training(one))]
    return fits[0] if len(fits) == 1 else _sum_trainings(fits)


def _sum_trainings(fits: list[dict[str, Any]]) -> dict[str, Any]:
    """Return facts of several fits: sums, the most rows, a policy common to all, and no loss."""
    if not fits:
        return {}
    rows = [one["rows"] for one in fits if one["rows"] is not None]
    policies = {one["policy"] for one in fits}
    return {
        "fits": sum(one.get("fits", 1) for one in fits),
        "passes": sum(one["passes"] for one in fits),
        "rows": max(rows, default=None),
        "loss": None,
        "seconds": _encode_number(sum(one["seconds"] or 0.0 for one in fits)),
        "policy": policies.pop() if len(policies) == 1 else None,
    }


def _encode_number(value: Any) -> Any:
    """Return a number in JSON's form; None for NaN and infinity."""
    if value is None or not np.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def _find_versions() -> dict[str, str]:
    """Return the installed versions of this package, Python, and packages that files depend on."""
    found = {"daskml-dist": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
