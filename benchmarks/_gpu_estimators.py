"""Every estimator that computes on a GPU, with rows and parameters that take a short time.

`benchmarks gpu_once` compares their fits with the CPU's; a test compares this list with the table
in `docs/gpu.md`.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["FITS", "SPARSE_FITS", "Fit", "make_rows"]

#: Parameters of fits by steps, with few passes.
_STEPS = {"max_iter": 3, "tol": None, "random_state": 0}
#: Largest difference from the CPU's fit, relative to the largest entry. If the result depends on a
#: row between two centroids, or on a stop by a tolerance, it may differ by more than rounding.
_ROUNDED, _STOPPED, _DECIDED = 5e-3, 0.02, 0.05


class Fit(NamedTuple):
    """Fit: package and class of the estimator, its parameters, rows, and tolerance."""

    subpackage: str
    name: str
    params: dict[str, Any]
    #: Kind of X: "numbers", "counts" or "sparse"; after a space, kind of y: "two", "three",
    #: "numbers", "positive", or nothing.
    rows: str
    tolerance: float = _ROUNDED

    @property
    def title(self) -> str:
        chosen = [f"{key}={self.params[key]}" for key in _TOLD if key in self.params]
        return " ".join([self.name, *chosen, *(["sparse"] if "sparse" in self.rows else [])])

    def make(self, device: str) -> Any:
        """Return the estimator for a device."""
        kind = getattr(importlib.import_module(f"daskml_dist.{self.subpackage}"), self.name)
        return kind(device=device, **self.params)


#: Parameters that distinguish several fits of one estimator.
_TOLD = ("solver", "penalty", "early_stopping")

FITS = [
    Fit("linear_model", "LogisticRegression", {}, "numbers two"),
    Fit("linear_model", "LogisticRegression", {"solver": "newton-cholesky"}, "numbers three"),
    Fit("linear_model", "LogisticRegression", {"penalty": "l1"}, "numbers two", _STOPPED),
    Fit("linear_model", "LogisticRegressionCV", {"cv": 3, "Cs": 4}, "numbers two", _DECIDED),
    Fit("linear_model", "LinearRegression", {}, "numbers numbers"),
    Fit("linear_model", "Ridge", {}, "numbers numbers"),
    Fit("linear_model", "RidgeCV", {}, "numbers numbers"),
    Fit("linear_model", "RidgeClassifier", {}, "numbers three"),
    Fit("linear_model", "RidgeClassifierCV", {}, "numbers two"),
    Fit("linear_model", "Lasso", {"alpha": 0.05}, "numbers numbers"),
    Fit("linear_model", "LassoCV", {"cv": 3, "alphas": 10}, "numbers numbers", _STOPPED),
    Fit("linear_model", "ElasticNet", {"alpha": 0.05}, "numbers numbers"),
    Fit("linear_model", "ElasticNetCV", {"cv": 3, "alphas": 10}, "numbers numbers", _STOPPED),
    Fit("linear_model", "HuberRegressor", {}, "numbers numbers", _STOPPED),
    Fit("linear_model", "PoissonRegressor", {}, "numbers positive"),
    Fit("linear_model", "GammaRegressor", {}, "numbers positive"),
    Fit("linear_model", "TweedieRegressor", {"power": 1.5}, "numbers positive"),
    Fit("linear_model", "SGDClassifier", {**_STEPS, "early_stopping": True}, "numbers two"),
    Fit("linear_model", "SGDRegressor", _STEPS, "numbers numbers"),
    Fit("svm", "LinearSVC", {}, "numbers two", _STOPPED),
    Fit("svm", "LinearSVR", {"loss": "squared_epsilon_insensitive"}, "numbers numbers", _STOPPED),
    Fit("naive_bayes", "GaussianNB", {}, "numbers three"),
    Fit("naive_bayes", "BernoulliNB", {}, "numbers three"),
    Fit("naive_bayes", "MultinomialNB", {}, "counts three"),
    Fit("naive_bayes", "ComplementNB", {}, "counts three"),
    Fit("naive_bayes", "CategoricalNB", {}, "counts three"),
    Fit("cluster", "KMeans", {"n_clusters": 5, "random_state": 0}, "numbers", _DECIDED),
    Fit("cluster", "BisectingKMeans", {"n_clusters": 5, "random_state": 0}, "numbers", _DECIDED),
    Fit(
        "cluster",
        "MiniBatchKMeans",
        {"n_clusters": 5, "random_state": 0, "max_iter": 3},
        "numbers",
        _DECIDED,
    ),
    Fit("decomposition", "PCA", {"n_components": 4}, "numbers"),
    Fit("decomposition", "TruncatedSVD", {"n_components": 4, "random_state": 0}, "numbers"),
    Fit(
        "decomposition",
        "NMF",
        {"n_components": 4, "random_state": 0, "max_iter": 20},
        "counts",
        _DECIDED,
    ),
    Fit(
        "mixture",
        "GaussianMixture",
        {"n_components": 3, "random_state": 0, "max_iter": 10},
        "numbers",
        _DECIDED,
    ),
    Fit(
        "neural_network",
        "MLPClassifier",
        {**_STEPS, "hidden_layer_sizes": (32,)},
        "numbers three",
        _STOPPED,
    ),
    Fit(
        "neural_network",
        "MLPRegressor",
        {**_STEPS, "hidden_layer_sizes": (32,)},
        "numbers numbers",
        _STOPPED,
    ),
]
SPARSE_FITS = [
    Fit("linear_model", "LogisticRegression", {}, "sparse two"),
    Fit("linear_model", "Ridge", {}, "sparse numbers"),
    Fit("linear_model", "SGDClassifier", _STEPS, "sparse two"),
    Fit("naive_bayes", "MultinomialNB", {}, "sparse two"),
    Fit("cluster", "KMeans", {"n_clusters": 4, "random_state": 0}, "sparse", _DECIDED),
    Fit("decomposition", "TruncatedSVD", {"n_components": 3, "random_state": 0}, "sparse"),
    Fit(
        "decomposition",
        "NMF",
        {"n_components": 3, "random_state": 0, "max_iter": 10},
        "sparse",
        _DECIDED,
    ),
]


def make_rows(rows: str, n: int, d: int = 20) -> tuple[Any, NDArray[Any] | None]:
    """Return X with n rows, as float32, and y; see :class:`Fit`."""
    kind, _, target = rows.partition(" ")
    rng = np.random.default_rng(0)
    X: Any = rng.normal(size=(n, d)).astype(np.float32)
    signal = X[:, :5] @ np.array([1, -2, 0.5, 0, 1.5], np.float32)
    if kind == "counts":
        X = rng.poisson(2.0, (n, d)).clip(0, 7).astype(np.float32)
    elif kind == "sparse":
        X = sparse.random(n, 15 * d, 0.03, format="csr", random_state=0, dtype=np.float32)
        X.data = np.abs(X.data) + np.float32(0.1)
        signal = np.asarray(X[:, :50].sum(axis=1)).ravel()
        signal -= np.median(signal)
    noisy = signal + rng.normal(size=n).astype(np.float32)
    targets: dict[str, NDArray[Any] | None] = {
        "two": noisy > 0,
        "three": np.digitize(noisy, [-1, 1]),
        "numbers": noisy,
        "positive": np.exp(signal / 4),
        "": None,
    }
    return X, targets[target]
