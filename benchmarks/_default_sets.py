"""Data sets on which defaults are tried: bundled, real and generated, scaled and unscaled."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn import datasets
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import PolynomialFeatures, scale

from benchmarks._common import data_folder, read_a9a, read_mnist
from benchmarks._unseen_sets import UNSEEN

__all__ = ["SETS", "Problem", "problems"]


#: Number of splits of small data sets.
_SPLITS = 5


@dataclass(frozen=True)
class Problem:
    """Training and test rows, and the loss to fit.

    Parameters
    ----------
    name, loss : str
    splits : list of tuple
        X and y for training, X and y for testing; small data sets have several splits, whose scores
        are averaged.
    metric : {"accuracy", "auc", "rmse", "mae"}
    """

    name: str
    loss: str
    splits: list[tuple[Any, Any, Any, Any]]
    metric: str


def problems(names: list[str] | None = None) -> Iterator[Problem]:
    """Yield the data sets, one after another; real data only if its folder exists."""
    for name, (loss, make, metric) in (SETS | UNSEEN).items():
        if names is None or name in names:
            made = make()
            yield Problem(name, loss, made if isinstance(made, list) else [made], metric)


def _cut(X: Any, y: Any, seed: int = 0, test: float | int = 0.25) -> tuple[Any, Any, Any, Any]:
    X, X_test, y, y_test = train_test_split(X, y, test_size=test, random_state=seed)
    return X, y, X_test, y_test


def _labels(X: Any, seed: int, noise: float = 1.0, density: float = 1.0) -> Any:
    """Return labels of a logistic model of the columns' standard scores."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=X.shape[1]) * (rng.random(X.shape[1]) < density)
    raw = X @ w
    raw = 3 * (raw - np.median(raw)) / raw.std()
    return (raw + noise * rng.logistic(size=len(raw)) > 0).astype(np.int64)


def _normal(n: int, d: int, seed: int, test: int = 10_000) -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(seed).normal(size=(n + test, d))
    return _cut(X.astype(np.float32), _labels(X, seed), test=test)


def _in_other_units(seed: int, d: int = 24) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30_000, d))
    return X, X * 10 ** rng.uniform(-3, 6, d) + rng.normal(size=d) * 10 ** rng.uniform(-3, 3, d)


def _unscaled(seed: int = 3) -> tuple[Any, Any, Any, Any]:
    X, moved = _in_other_units(seed)
    return _cut(moved, _labels(X, seed), test=10_000)


def _offset() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(4).normal(size=(30_000, 20))
    return _cut(X + 100, _labels(X, 4), test=10_000)


def _correlated_rows(n: int, d: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)) @ rng.normal(size=(5, d)) + 0.1 * rng.normal(size=(n, d))


def _correlated() -> tuple[Any, Any, Any, Any]:
    X = _correlated_rows(30_000, 50, 5)
    return _cut(X, _labels(X, 5), test=10_000)


def _constant() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(6).normal(size=(15_000, 12))
    y = _labels(X, 6)
    X = np.column_stack([X, X[:, 0], np.full(len(X), 1000.0), np.zeros(len(X)), np.ones(len(X))])
    return _cut(X, y, test=5_000)


def _binary_rows(n: int, d: int, seed: int, nnz: int = 60) -> Any:
    """Return rows of 0 and 1, with some frequent columns and many rare ones."""
    rng = np.random.default_rng(seed)
    frequency = 1 / (np.arange(d) + 20.0)
    columns = rng.choice(d, size=(n, nnz), p=frequency / frequency.sum())
    X = sparse.csr_matrix(
        (np.ones(n * nnz, np.float32), columns.ravel(), np.arange(0, n * nnz + 1, nnz)), (n, d)
    )
    X.sum_duplicates()
    X.data[:] = 1
    return X


def _sparse_binary(n: int = 60_000, d: int = 5_000) -> tuple[Any, Any, Any, Any]:
    X = _binary_rows(n, d, 7)
    return _cut(X, _labels(X, 7), test=10_000)


def _wide() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(8).normal(size=(3_000, 2_000))
    return _cut(X, _labels(X, 8, density=0.01), test=2_000)


def _imbalanced() -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(9)
    X = rng.normal(size=(60_000, 20))
    raw = X @ rng.normal(size=20) / 3 - 6
    return _cut(X, (raw + rng.logistic(size=len(X)) > 0).astype(int), test=30_000)


def _many_classes() -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(10)
    centres, y = rng.normal(size=(40, 30)), rng.integers(40, size=30_000)
    return _cut(centres[y] * 0.8 + rng.normal(size=(30_000, 30)), y, test=10_000)


def _heavy_features() -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(30_000, 20))
    return _cut(np.exp(1.5 * X), _labels(X, 11), test=10_000)


def _mixed() -> tuple[Any, Any, Any, Any]:
    """Return raw measurements beside columns of 0 and 1, with seven classes (as in covtype)."""
    rng = np.random.default_rng(12)
    measures = rng.normal(size=(50_000, 10))
    kinds = np.eye(40)[rng.choice(40, 50_000, p=(p := 1 / np.arange(1, 41)) / p.sum())]
    raw = np.hstack([measures, kinds]) @ rng.normal(size=(50, 7)) + [2, 3, 0, -2, -1, 0, 0]
    y = (raw + rng.gumbel(size=raw.shape)).argmax(axis=1)
    units = np.array([280, 110, 7.5, 210, 60, 1600, 27, 20, 38, 1300])
    centres = np.array([2960, 155, 14, 270, 46, 2350, 212, 223, 142, 1980])
    return _cut(np.hstack([measures * units + centres, kinds]), y, test=10_000)


def _tiny() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(13).normal(size=(2_060, 5))
    return _cut(X, _labels(X, 13), test=2_000)


def _adult() -> tuple[Any, Any, Any, Any]:
    """Return the unscaled numbers of the census: ages beside weights of 1e5 and gains."""
    found = []
    for name, skip in (("adult.data", 0), ("adult.test", 1)):
        table = pd.read_csv(data_folder() / "adult" / name, header=None, skiprows=skip)
        X = table[[0, 2, 4, 10, 11, 12]].to_numpy(float)
        found += [X, table[14].str.contains(">50K").to_numpy(int)]
    return tuple(found)


def _a9a() -> tuple[Any, Any, Any, Any]:
    X, y, X_test, y_test = read_a9a()
    for rows in (X, X_test):  # in the layout that scikit-learn's SGD expects
        rows.indices, rows.indptr = rows.indices.astype("i4"), rows.indptr.astype("i4")
    return X, y, X_test, y_test


def _mnist() -> tuple[Any, Any, Any, Any]:
    X, y, X_test, y_test = read_mnist()
    return X[:20_000], y[:20_000].astype(int), X_test, y_test.astype(int)


def _news() -> tuple[Any, Any, Any, Any]:
    """Return six of the newsgroups, hashed."""
    texts: dict[str, list[str]] = {"train": [], "test": []}
    labels: dict[str, list[str]] = {"train": [], "test": []}
    with tarfile.open(data_folder() / "news20" / "20news-bydate.tar.gz") as archive:
        for member in archive:
            *_, folder, group, _ = ("", "", *member.name.split("/"))
            if member.isfile() and group.startswith(("comp.", "sci.crypt")):
                part = folder.rpartition("-")[2]
                file = archive.extractfile(member)
                assert file is not None
                texts[part].append(file.read().decode("latin1"))
                labels[part].append(group)
    hashed = HashingVectorizer(n_features=1 << 15, alternate_sign=False, norm=None)
    weigh = TfidfTransformer().fit(X := hashed.transform(texts["train"]))
    return (
        weigh.transform(X),
        np.array(labels["train"]),
        weigh.transform(hashed.transform(texts["test"])),
        np.array(labels["test"]),
    )


def _noisy(
    X: Any, seed: int, noise: Callable[[Any, int], Any] | None = None, density: float = 1.0
) -> Any:
    """Return targets of a linear model of the columns, with noise of a given spread."""
    rng = np.random.default_rng(seed)
    raw = X @ (rng.normal(size=X.shape[1]) * (rng.random(X.shape[1]) < density))
    errors = rng.normal(size=len(raw)) if noise is None else noise(rng, len(raw))
    return raw / raw.std() + 0.5 * errors


def _regression(
    n: int = 40_000, d: int = 20, a: float = 1.0, b: float = 0.0, seed: int = 20
) -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(seed).normal(size=(n, d))
    return _cut(X, a * _noisy(X, seed) + b, test=0.25)


def _unscaled_regression() -> tuple[Any, Any, Any, Any]:
    X, moved = _in_other_units(21)
    return _cut(moved, 1e4 * _noisy(X, 21) + 5e5, test=10_000)


def _heavy_targets() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(22).normal(size=(40_000, 20))
    return _cut(X, 100 * _noisy(X, 22, lambda rng, n: rng.standard_t(2.2, n)), test=0.25)


def _lognormal_targets() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(23).normal(size=(30_000, 15))
    return _cut(X, 1e5 * np.exp(_noisy(X, 23)), test=0.25)


def _sparse_regression() -> tuple[Any, Any, Any, Any]:
    X = _binary_rows(40_000, 3_000, 24)
    return _cut(X, _noisy(X, 24), test=10_000)


def _correlated_regression() -> tuple[Any, Any, Any, Any]:
    X = _correlated_rows(20_000, 50, 25)
    return _cut(X, _noisy(X, 25), test=0.25)


def _wide_regression() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(26).normal(size=(2_600, 1_500))
    return _cut(X, _noisy(X, 26, density=0.02), test=2_000)


def _tiny_regression() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(27).normal(size=(2_040, 5))
    return _cut(X, _noisy(X, 27), test=2_000)


def _flights() -> tuple[Any, Any, Any, Any]:
    names = ["dep_delay", "distance", "hour", "air_time"]
    table = pd.read_parquet(data_folder() / "nycflights" / "flights.parquet")
    table = table[[*names, "arr_delay"]].dropna()
    rows = table[names].to_numpy(float), table["arr_delay"].to_numpy(float)
    return _cut(*rows, test=0.25)


def _bundled(load: Callable[..., Any], scaled: bool = False) -> Any:
    def make() -> list[tuple[Any, Any, Any, Any]]:
        X, y = load(return_X_y=True)
        return [_cut(scale(X) if scaled else X, y, seed) for seed in range(_SPLITS)]

    return make


def _squares() -> list[tuple[Any, Any, Any, Any]]:
    X, y = datasets.load_diabetes(return_X_y=True)
    X = PolynomialFeatures(2, include_bias=False).fit_transform(X)
    return [_cut(X, y, seed) for seed in range(_SPLITS)]


#: Loss, rows and metric of each data set, by name.
SETS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "breast cancer": ("log_loss", _bundled(datasets.load_breast_cancer), "accuracy"),
    "breast cancer, scaled": (
        "log_loss",
        _bundled(datasets.load_breast_cancer, scaled=True),
        "accuracy",
    ),
    "iris": ("log_loss", _bundled(datasets.load_iris), "accuracy"),
    "wine": ("log_loss", _bundled(datasets.load_wine), "accuracy"),
    "digits": ("log_loss", _bundled(datasets.load_digits), "accuracy"),
    "a9a": ("log_loss", _a9a, "accuracy"),
    "adult, raw numbers": ("log_loss", _adult, "accuracy"),
    "MNIST / 255, 20k": ("log_loss", _mnist, "accuracy"),
    "newsgroups": ("log_loss", _news, "accuracy"),
    "normal 50k x 28": ("log_loss", lambda: _normal(50_000, 28, 1), "accuracy"),
    "normal 200k x 50": ("log_loss", lambda: _normal(200_000, 50, 2), "accuracy"),
    "scales 1e-3 to 1e6": ("log_loss", _unscaled, "accuracy"),
    "offset 100": ("log_loss", _offset, "accuracy"),
    "sparse 0/1": ("log_loss", _sparse_binary, "accuracy"),
    "sparse 0/1, few rows": ("log_loss", lambda: _sparse_binary(15_000, 5_000), "accuracy"),
    "wide": ("log_loss", _wide, "accuracy"),
    "imbalanced": ("log_loss", _imbalanced, "auc"),
    "40 classes": ("log_loss", _many_classes, "accuracy"),
    "heavy-tailed features": ("log_loss", _heavy_features, "accuracy"),
    "mixed, 7 classes": ("log_loss", _mixed, "accuracy"),
    "tiny": ("log_loss", _tiny, "accuracy"),
    "correlated": ("log_loss", _correlated, "accuracy"),
    "constant columns": ("log_loss", _constant, "accuracy"),
    "hinge, normal": ("hinge", lambda: _normal(20_000, 28, 14), "accuracy"),
    "hinge, breast cancer": ("hinge", _bundled(datasets.load_breast_cancer), "accuracy"),
    "hinge, a9a": ("hinge", _a9a, "accuracy"),
    "diabetes": ("squared_error", _bundled(datasets.load_diabetes), "rmse"),
    "diabetes, squares": ("squared_error", _squares, "rmse"),
    "flights": ("squared_error", _flights, "rmse"),
    "regression": ("squared_error", _regression, "rmse"),
    "targets 5e6 +- 1e6": ("squared_error", lambda: _regression(a=1e6, b=5e6, seed=28), "rmse"),
    "regression, scales 1e-3 to 1e6": ("squared_error", _unscaled_regression, "rmse"),
    "heavy-tailed targets": ("squared_error", _heavy_targets, "rmse"),
    "log-normal targets": ("squared_error", _lognormal_targets, "rmse"),
    "regression, sparse": ("squared_error", _sparse_regression, "rmse"),
    "regression, correlated": ("squared_error", _correlated_regression, "rmse"),
    "regression, wide": ("squared_error", _wide_regression, "rmse"),
    "regression, tiny": ("squared_error", _tiny_regression, "rmse"),
}
