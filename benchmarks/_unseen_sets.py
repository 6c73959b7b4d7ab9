"""Data sets not used for tuning: made after the defaults, to test whether these hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import datasets
from sklearn.model_selection import train_test_split

__all__ = ["UNSEEN"]

Split = tuple[Any, Any, Any, Any]

#: Number of splits of small data sets.
_SPLITS = 10


def _cut(X: Any, y: Any, test: float | int = 0.3, seed: int = 0) -> Split:
    X, X_test, y, y_test = train_test_split(X, y, test_size=test, random_state=seed)
    return X, y, X_test, y_test


def _several(make: Callable[[int], Split]) -> Callable[[], list[Split]]:
    return lambda: [make(seed) for seed in range(_SPLITS)]


def _made(n: int = 20_000, seed: int = 100, **more: Any) -> tuple[Any, Any]:
    settings = {"n_features": 20, "n_informative": 10, "class_sep": 0.7} | more
    found: tuple[Any, Any] = datasets.make_classification(n, random_state=seed, **settings)
    return found


def _repeated() -> Split:
    """Return rows, some of which are repeated forty times."""
    X, y, X_test, y_test = _cut(*_made(seed=101), test=10_000)
    often = np.repeat(np.arange(len(y)), np.where(np.arange(len(y)) % 10, 1, 40))
    return X[often], y[often], X_test, y_test


def _large_column() -> Split:
    X, y = _made(seed=103)
    X[:, 7] *= 1e6
    return _cut(X, y)


def _zeros_and_ones(n: int, d: int, density: float, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    X = sparse.random(
        n, d, density, format="csr", dtype=np.float64, random_state=rng, data_rvs=np.ones
    )
    X.indices, X.indptr = X.indices.astype("i4"), X.indptr.astype("i4")
    raw = X @ rng.normal(size=d)
    raw = 3 * (raw - raw.mean()) / raw.std()
    return _cut(X, (raw + rng.logistic(size=n) > 0).astype(int))


def _collinear() -> Split:
    X, y = _made(seed=105)
    return _cut(np.hstack([X, X[:, :5], X[:, :5] + X[:, 5:10], 3 * X[:, :2] - X[:, 2:4]]), y)


def _with_constant() -> Split:
    X, y = _made(seed=106)
    return _cut(np.hstack([X[:, :10], np.full((len(X), 1), 37.0), X[:, 10:]]), y)


def _two_a_class(seed: int) -> Split:
    rng = np.random.default_rng(200 + seed)
    centres = rng.normal(size=(40, 30))
    y, y_test = np.repeat(np.arange(40), 2), np.repeat(np.arange(40), 50)
    return (
        centres[y] + 0.8 * rng.normal(size=(len(y), 30)), y,
        centres[y_test] + 0.8 * rng.normal(size=(len(y_test), 30)), y_test,
    )  # fmt: skip


def _classes() -> Split:
    rng = np.random.default_rng(107)
    centres, y = rng.normal(size=(200, 40)), rng.integers(200, size=24_000)
    return _cut(centres[y] + rng.normal(size=(len(y), 40)), y, test=8_000)


def _one_in_thousand() -> Split:
    rng = np.random.default_rng(108)
    X = rng.normal(size=(200_000, 15))
    raw = X @ rng.normal(size=15) / 2 - 9
    return _cut(X, (raw + rng.logistic(size=len(X)) > 0).astype(int), test=0.5)


def _cauchy() -> Split:
    rng = np.random.default_rng(109)
    X = rng.standard_cauchy(size=(20_000, 12))
    raw = np.tanh(X) @ rng.normal(size=12) * 2
    return _cut(X, (raw + rng.logistic(size=len(X)) > 0).astype(int))


def _count_features() -> Split:
    rng = np.random.default_rng(110)
    X = rng.poisson(np.exp(rng.uniform(-3, 4, 30)), size=(20_000, 30)).astype(float)
    raw = np.log1p(X) @ rng.normal(size=30)
    raw = 2 * (raw - raw.mean()) / raw.std()
    return _cut(X, (raw + rng.logistic(size=len(X)) > 0).astype(int))


def _sorted() -> Split:
    X, y, X_test, y_test = _cut(*_made(seed=111, n_classes=3))
    order = np.argsort(y, kind="stable")
    return X[order], y[order], X_test, y_test


def _narrow_far() -> Split:
    X, y = _made(seed=112)
    return _cut((X + 1000).astype(np.float32), y)


def _few_rows(seed: int) -> Split:
    X, y = _made(700, 300 + seed, n_features=800, n_informative=20)
    return _cut(X, y, test=500, seed=seed)


def _thirty(seed: int) -> Split:
    X, y = _made(2_030, 400 + seed, n_features=6, n_informative=4)
    return _cut(X, y, test=2_000, seed=seed)


def _drift() -> Split:
    """Return rows in the order of time, along which the coefficients rotate."""
    rng = np.random.default_rng(113)
    X = rng.normal(size=(30_000, 15))
    first, last, t = rng.normal(size=15), rng.normal(size=15), np.linspace(0, 1, 30_000)
    raw = (1 - t) * (X @ first) + t * (X @ last)
    y = (raw + rng.logistic(size=len(X)) > 0).astype(int)
    at = np.sort(rng.choice(len(y), 20_000, replace=False))
    rest = np.setdiff1d(np.arange(len(y)), at)
    return X[at], y[at], X[rest], y[rest]


def _rings() -> Split:
    """Return rings, which no linear model can separate well."""
    X, y = datasets.make_gaussian_quantiles(
        n_samples=20_000, n_features=8, n_classes=3, random_state=114
    )
    return _cut(np.hstack([X, X[:, :3] ** 2]), y)


def _targets(
    d: int, seed: int, noise: Callable[[Any, int], Any], n: int = 20_000, unit: float = 1.0
) -> Split:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.2, 5, d)
    raw = X @ rng.normal(size=d)
    return _cut(X, unit * (raw / raw.std() + noise(rng, n)))


def _friedman(which: int) -> Callable[[], Split]:
    make = (datasets.make_friedman1, datasets.make_friedman2, datasets.make_friedman3)[which - 1]
    noise = (1.0, 100.0, 0.1)[which - 1]
    return lambda: _cut(*make(n_samples=10_000, noise=noise, random_state=114 + which))


def _count_targets() -> Split:
    rng = np.random.default_rng(118)
    X = rng.normal(size=(20_000, 10))
    return _cut(X, rng.poisson(np.exp(X @ rng.normal(size=10) / 3 + 1)).astype(float))


def _few_rows_regression(seed: int) -> Split:
    rows: tuple[Any, Any] = datasets.make_regression(
        700, 800, n_informative=30, noise=20.0, random_state=500 + seed
    )
    return _cut(*rows, test=500, seed=seed)


def _thirty_regression(seed: int) -> Split:
    rows: tuple[Any, Any] = datasets.make_regression(
        2_030, 6, n_informative=4, noise=30.0, random_state=600 + seed
    )
    return _cut(*rows, test=2_000, seed=seed)


def _gross(rng: Any, n: int) -> Any:
    """Return noise of which a twentieth is a hundred times too large."""
    return rng.normal(size=n) * np.where(rng.random(n) < 0.05, 30, 0.3)


def _student(rng: Any, n: int) -> Any:
    return 0.5 * rng.standard_t(2.5, n)


def _cauchy_noise(rng: Any, n: int) -> Any:
    return 0.3 * rng.standard_cauchy(n)


#: Loss, rows and metric of each data set, by name.
UNSEEN: dict[str, tuple[str, Callable[[], Any], str]] = {
    "repeated rows": ("log_loss", _repeated, "accuracy"),
    "30 % wrong labels": (
        "log_loss",
        lambda: _cut(*_made(seed=102, flip_y=0.6)),
        "accuracy",
    ),
    "one column x 1e6": ("log_loss", _large_column, "accuracy"),
    "0/1, 1 % dense": (
        "log_loss",
        lambda: _zeros_and_ones(20_000, 2_000, 0.01, 104),
        "accuracy",
    ),
    "0/1, 0.01 % dense": (
        "log_loss",
        lambda: _zeros_and_ones(60_000, 50_000, 0.0001, 119),
        "accuracy",
    ),
    "collinear": ("log_loss", _collinear, "accuracy"),
    "one constant column": ("log_loss", _with_constant, "accuracy"),
    "2 rows a class": ("log_loss", _several(_two_a_class), "accuracy"),
    "200 classes": ("log_loss", _classes, "accuracy"),
    "1 in 1000": ("log_loss", _one_in_thousand, "auc"),
    "Cauchy features": ("log_loss", _cauchy, "accuracy"),
    "counts as features": ("log_loss", _count_features, "accuracy"),
    "sorted by label": ("log_loss", _sorted, "accuracy"),
    "float32 + 1000": ("log_loss", _narrow_far, "accuracy"),
    "200 rows of 800": ("log_loss", _several(_few_rows), "accuracy"),
    "30 rows": ("log_loss", _several(_thirty), "accuracy"),
    "drift": ("log_loss", _drift, "accuracy"),
    "rings": ("log_loss", _rings, "accuracy"),
    "hinge, 30 % wrong labels": (
        "hinge",
        lambda: _cut(*_made(seed=102, flip_y=0.6)),
        "accuracy",
    ),
    "hinge, one column x 1e6": ("hinge", _large_column, "accuracy"),
    "hinge, 0/1, 1 % dense": (
        "hinge",
        lambda: _zeros_and_ones(20_000, 2_000, 0.01, 104),
        "accuracy",
    ),
    "hinge, Cauchy features": ("hinge", _cauchy, "accuracy"),
    "hinge, sorted by label": ("hinge", _sorted, "accuracy"),
    "hinge, 30 rows": ("hinge", _several(_thirty), "accuracy"),
    "Friedman 1": ("squared_error", _friedman(1), "rmse"),
    "Friedman 2": ("squared_error", _friedman(2), "rmse"),
    "Friedman 3": ("squared_error", _friedman(3), "rmse"),
    "counts as targets": ("squared_error", _count_targets, "rmse"),
    "Student's t targets": ("squared_error", lambda: _targets(15, 120, _student), "rmse"),
    "regression, 200 rows of 800": ("squared_error", _several(_few_rows_regression), "rmse"),
    "regression, 30 rows": ("squared_error", _several(_thirty_regression), "rmse"),
    "huber, gross errors": ("huber", lambda: _targets(15, 121, _gross), "mae"),
    "huber, Cauchy targets": ("huber", lambda: _targets(15, 122, _cauchy_noise), "mae"),
    "huber, targets of 1e4": (
        "huber",
        lambda: _targets(15, 123, _gross, n=5_000, unit=1e4),
        "mae",
    ),
    "huber, Friedman 2": ("huber", _friedman(2), "mae"),
    "huber, 30 rows": ("huber", _several(_thirty_regression), "mae"),
    "median, targets of 1e4": (
        "quantile",
        lambda: _targets(15, 124, _gross, n=5_000, unit=1e4),
        "mae",
    ),
}
