"""Small fits that make numba compile what common estimators call, and a count of what it compiled.

A worker of a cluster runs the same functions (`warm_up`), so nothing here is bound to a process.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["DTYPES", "SUBJECTS", "Compiled", "warm_up"]

#: Types of rows for which functions are compiled.
DTYPES = ("float64", "float32")
#: Rows and features of dense rows: above the size up to which NumPy computes a log loss.
_DENSE = 5_000, 40
#: Rows, features and share of the entries that are not zero, of sparse rows.
_SPARSE = 2_000, 400, 0.02
#: Passes of 79 steps each: more steps than are computed by NumPy before a loop is compiled.
_PASSES = 20


@dataclass(frozen=True)
class Compiled:
    """Number of functions that numba compiled, and how many seconds that and the fits took."""

    functions: int
    seconds: float


@dataclass(frozen=True)
class _Subject:
    """An estimator, its parameters, and the kind of its rows and of its target."""

    name: str
    params: dict[str, Any]
    rows: str = "dense"
    target: str = "classes"


def _subject(name: str, rows: str = "dense", target: str = "classes", **params: Any) -> _Subject:
    return _Subject(name, params, rows, target)


#: What is fitted, by the names that ``--only`` takes.
SUBJECTS: dict[str, tuple[_Subject, ...]] = {
    "LogisticRegression": (
        _subject("linear_model.LogisticRegression", max_iter=3),
        _subject("linear_model.LogisticRegression", "sparse", max_iter=3),
    ),
    "LogisticRegressionCV": (
        _subject("linear_model.LogisticRegressionCV", Cs=2, cv=2, max_iter=3),
    ),
    "SGDClassifier": (
        _subject("linear_model.SGDClassifier", max_iter=_PASSES, tol=None, batch_size=64),
        _subject("linear_model.SGDClassifier", "sparse", max_iter=2, tol=None),
    ),
    "SGDRegressor": (
        _subject(
            "linear_model.SGDRegressor",
            target="numbers", max_iter=_PASSES, tol=None, batch_size=64,
        ),
    ),
    "KMeans": (_subject("cluster.KMeans", target="none", n_clusters=8, max_iter=3),),
    "MiniBatchKMeans": (
        _subject("cluster.MiniBatchKMeans", target="none", n_clusters=8, max_iter=3),
    ),
    "GaussianMixture": (
        _subject("mixture.GaussianMixture", target="none", n_components=4, max_iter=3),
    ),
    "GaussianNB": (_subject("naive_bayes.GaussianNB"),),
    "MultinomialNB": (_subject("naive_bayes.MultinomialNB", "sparse"),),
    "TruncatedSVD": (_subject("decomposition.TruncatedSVD", "sparse", "none"),),
    "LatentDirichletAllocation": (
        _subject("decomposition.LatentDirichletAllocation", "sparse", "none", max_iter=2),
    ),
    "DecisionTreeClassifier": (_subject("tree.DecisionTreeClassifier", max_depth=4),),
    "RandomForestClassifier": (
        _subject("ensemble.RandomForestClassifier", n_estimators=2, max_depth=4),
    ),
    "RandomForestRegressor": (
        _subject("ensemble.RandomForestRegressor", target="numbers", n_estimators=2, max_depth=4),
    ),
    "HistGradientBoostingClassifier": (
        _subject("ensemble.HistGradientBoostingClassifier", max_iter=2),
    ),
    "HistGradientBoostingRegressor": (
        _subject("ensemble.HistGradientBoostingRegressor", target="numbers", max_iter=2),
    ),
}  # fmt: skip


def warm_up(name: str, dtype: str) -> Compiled:
    """Fit the estimators of a name to made-up rows and let them predict, in this process.

    Parameters
    ----------
    name : str
        Key of `SUBJECTS`.
    dtype : {"float64", "float32"}
        Of the rows.
    """
    start = time.perf_counter()
    with _count_of_compiled() as count, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits are not given the passes to converge
        for subject in SUBJECTS[name]:
            _fit_and_predict(subject, dtype)
    return Compiled(count(), time.perf_counter() - start)


def _fit_and_predict(subject: _Subject, dtype: str) -> None:
    room, _, kind = subject.name.partition(".")
    model = getattr(import_module(f"daskml_dist.{room}"), kind)(**subject.params)
    X = _made_up_rows(subject.rows, dtype)
    total = np.asarray(X[:, :5].sum(axis=1)).ravel()
    if subject.target == "none":
        model.fit(X, client="inline")
    elif subject.target == "numbers":
        model.fit(X, total.astype(dtype), client="inline")
    else:
        model.fit(X, (total > np.median(total)).astype(np.int64), client="inline")
    for method in ("predict", "transform"):
        if hasattr(model, method):
            getattr(model, method)(X)


def _made_up_rows(kind: str, dtype: str) -> NDArray[Any] | sparse.csr_matrix:
    rng = np.random.default_rng(0)
    if kind == "dense":
        return rng.normal(size=_DENSE).astype(dtype)
    n_rows, n_features, density = _SPARSE
    rows = sparse.random(n_rows, n_features, density, format="csr", random_state=0)
    return sparse.csr_matrix(rows.astype(dtype))


@contextmanager
def _count_of_compiled() -> Iterator[Callable[[], int]]:
    """Count the functions that numba compiles meanwhile; those within others count as these."""
    from numba.core import event

    with event.install_recorder("numba:compile") as recorder:

        def count() -> int:
            depth, found = 0, 0
            for _, each in recorder.buffer:
                found += each.is_start and depth == 0
                depth += 1 if each.is_start else -1
            return found

        yield count
