"""Estimators by the names of their classes, with parameters as the command line gives them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import daskml_dist
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import nearest

__all__ = ["encoding_columns", "list_estimators", "make_estimator"]

#: Rooms whose estimators are fitted to a target, in the order that they are looked at.
_ROOMS = ("linear_model", "svm", "naive_bayes", "neural_network", "tree", "ensemble")


def make_estimator(name: str, settings: Iterable[str], **params: Any) -> Any:
    """Return an estimator of a class."""
    made = _class(name)()
    given = dict(map(_setting, settings))
    given |= {key: value for key, value in params.items() if value is not None}
    known = made.get_params()
    for key in given:
        if key.partition("__")[0] not in known:
            raise InvalidParameterError(
                f"{name} has no parameter {key!r}. Use one of {sorted(known)}.{nearest(key, known)}"
            )
    return made.set_params(**given)


def encoding_columns(
    model: Any, columns: Sequence[str], categories: Sequence[str], texts: Sequence[str]
) -> Any:
    """Return a pipeline that makes numbers of columns of categories and texts before a model."""
    if not (categories or texts):
        return model
    from sklearn.pipeline import make_pipeline

    from daskml_dist.compose import ColumnTransformer
    from daskml_dist.feature_extraction import TfidfVectorizer
    from daskml_dist.preprocessing import OneHotEncoder

    takes_sparse = model.__sklearn_tags__().input_tags.sparse
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=takes_sparse)
    steps: list[tuple[str, Any, Any]]
    steps = [("numbers", "passthrough", [c for c in columns if c not in (*categories, *texts)])]
    steps += [("categories", one_hot, list(categories))] if categories else []
    steps += [(f"text-{name}", TfidfVectorizer(), name) for name in texts]
    dense = 0.3 if takes_sparse else 0.0  # scikit-learn's default; no output is below 0
    return make_pipeline(ColumnTransformer(steps, sparse_threshold=dense), model)


def list_estimators() -> list[str]:
    """Return the names of all classes that `make_estimator` makes."""
    return sorted(name for room in _ROOMS for name in _of(room))


def _class(name: str) -> Any:
    for room in _ROOMS:
        if (found := _of(room).get(name)) is not None:
            return found
    known = list_estimators()
    raise InvalidParameterError(
        f"There is no estimator {name!r}. Use one of {known}.{nearest(name, known)}"
    )


def _of(room: str) -> dict[str, Any]:
    module = import_module(f"{daskml_dist.__name__}.{room}")
    classes = {name: getattr(module, name) for name in module.__all__}
    return {n: c for n, c in classes.items() if hasattr(c, "fit") and hasattr(c, "predict")}


def _setting(text: str) -> tuple[str, Any]:
    name, is_set, value = text.partition("=")
    if not is_set or not name.isidentifier():
        raise InvalidParameterError(
            f"--set {text}: give a parameter as NAME=VALUE, such as --set alpha=1e-4."
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
