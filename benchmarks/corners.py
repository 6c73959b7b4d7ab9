"""Fits that were slower than scikit-learn's: small ensembles, NMF, sparse SVD, k-means, small MLPs.

Our fit and scikit-learn's alternate, with the same arguments and rows, so that a busy machine slows
both. CPU seconds include all threads, and the workers if there are any.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import sklearn.calibration
import sklearn.cluster
import sklearn.decomposition
import sklearn.ensemble
import sklearn.linear_model
import sklearn.neural_network
import sklearn.tree
from scipy import sparse

from benchmarks._common import logistic_rows, markdown, persisted, processes
from daskml_dist import calibration, cluster, decomposition, ensemble, linear_model, tree
from daskml_dist import neural_network as networks

#: Number of pairs of fits after one to warm up; fewer if a pair takes longer than LONG_PAIR
#: seconds.
PAIRS, LONG_PAIR = 5, 2.0
FEATURES, BLOCKS = 28, 4


@dataclass(frozen=True)
class Corner:
    """A fit, by our class and by scikit-learn's.

    Parameters
    ----------
    ours, theirs : callable
        Functions that return an estimator, given X.
    rows : callable
        Function that returns X and y (or None), given the number of rows.
    sizes : tuple of int
    figure : callable
        Function that returns a figure of a fitted estimator, given X and y; both should be close.
    """

    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    rows: Callable[[int], tuple[Any, Any]]
    sizes: tuple[int, ...]
    figure: Callable[[Any, Any, Any], float]


@cache
def _labelled(n: int) -> tuple[Any, Any]:
    return logistic_rows(n, FEATURES, "float32")


@cache
def _blobs(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = 1.5 * rng.standard_normal((n, FEATURES), dtype=np.float32)
    X += 2 * rng.standard_normal((20, FEATURES), dtype=np.float32)[rng.integers(0, 20, n)]
    return X, None


@cache
def _parts(n: int) -> tuple[Any, Any]:
    """Return rows that are sums of ten non-negative parts of 100 features, with a little noise."""
    rng = np.random.default_rng(0)
    parts = rng.random((10, 100)) * (rng.random((10, 100)) < 0.3)
    weights = rng.random((n, 10)) * (rng.random((n, 10)) < 0.5)
    return (weights @ parts + 0.05 * rng.random((n, 100))).astype(np.float32), None


@cache
def _words(n: int) -> tuple[Any, Any]:
    """Return sparse rows of 50 entries: a few columns in most rows, most columns in few rows."""
    rng = np.random.default_rng(0)
    columns = (2**14 * rng.random((n, 50)) ** 3).astype(np.int32)
    indptr = np.arange(0, columns.size + 1, 50)
    values = rng.random(columns.size, dtype=np.float32)
    X = sparse.csr_matrix((values, columns.ravel(), indptr), shape=(n, 2**14))
    X.sum_duplicates()
    return X, None


def _members(linear: Any, trees: Any) -> list[tuple[str, Any]]:
    return [
        ("line", linear.LogisticRegression()),
        ("tree", trees.DecisionTreeClassifier(max_depth=6, random_state=0)),
    ]


def _voting(ensembles: Any, linear: Any, trees: Any, X: Any) -> Any:
    return ensembles.VotingClassifier(_members(linear, trees), voting="soft")


def _stacking(ensembles: Any, linear: Any, trees: Any, X: Any) -> Any:
    return ensembles.StackingClassifier(_members(linear, trees), linear.LogisticRegression())


def _calibrated(calibrations: Any, linear: Any, X: Any) -> Any:
    return calibrations.CalibratedClassifierCV(linear.LogisticRegression())


def _k_means(clusters: Any, X: Any) -> Any:
    return clusters.KMeans(20, init=X[:20], n_init=1, max_iter=20, tol=0.0)


def _factors(decompositions: Any, X: Any) -> Any:
    return decompositions.NMF(10, random_state=0)


def _singular(decompositions: Any, X: Any) -> Any:
    return decompositions.TruncatedSVD(10, random_state=0)


def _network(neural: Any, X: Any) -> Any:
    return neural.MLPClassifier((50,), max_iter=20, random_state=0)


def _accuracy(model: Any, X: Any, y: Any) -> float:
    return float(model.score(X, y))


def _pair(make: Callable[..., Any], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> Any:
    return partial(make, *ours), partial(make, *theirs)


_OURS, _THEIRS = (linear_model, tree), (sklearn.linear_model, sklearn.tree)
_SMALL = 1_000, 20_000
CORNERS = {
    "VotingClassifier, line and tree": Corner(
        *_pair(_voting, (ensemble, *_OURS), (sklearn.ensemble, *_THEIRS)),
        _labelled, _SMALL, _accuracy,
    ),
    "StackingClassifier, line and tree": Corner(
        *_pair(_stacking, (ensemble, *_OURS), (sklearn.ensemble, *_THEIRS)),
        _labelled, _SMALL, _accuracy,
    ),
    "CalibratedClassifierCV, line": Corner(
        *_pair(_calibrated, (calibration, linear_model),
               (sklearn.calibration, sklearn.linear_model)),
        _labelled, _SMALL, _accuracy,
    ),
    "NMF(10), dense": Corner(
        *_pair(_factors, (decomposition,), (sklearn.decomposition,)),
        _parts, (1_000, 20_000), lambda model, X, y: float(model.reconstruction_err_),
    ),
    "NMF(10), sparse": Corner(
        *_pair(_factors, (decomposition,), (sklearn.decomposition,)),
        _words, (1_000, 20_000), lambda model, X, y: float(model.reconstruction_err_),
    ),
    "TruncatedSVD(10), sparse": Corner(
        *_pair(_singular, (decomposition,), (sklearn.decomposition,)),
        _words, (1_000, 20_000, 100_000), lambda model, X, y: float(model.singular_values_[-1]),
    ),
    "KMeans(20), same start, 20 steps": Corner(
        *_pair(_k_means, (cluster,), (sklearn.cluster,)),
        _blobs, (1_000, 20_000, 200_000), lambda model, X, y: float(model.inertia_),
    ),
    "MLPClassifier((50,)), 20 passes": Corner(
        *_pair(_network, (networks,), (sklearn.neural_network,)),
        _labelled, _SMALL, _accuracy,
    ),
}  # fmt: skip


def run(tiny: bool = False) -> str:
    """Print the table row by row; ``DASKML_DIST_CORNERS=NMF,KMeans`` selects corners."""
    asked = os.environ.get("DASKML_DIST_CORNERS", "")
    corners = {
        name: corner
        for name, corner in CORNERS.items()
        if not asked or any(name.startswith(one) for one in asked.split(","))
    }
    columns = [
        "fit", "rows", "where", "first fit, s", "s", "scikit-learn, s", "times its time",
        "CPU s", "scikit-learn's", "figure", "scikit-learn's",
    ]  # fmt: skip
    print(markdown("Cases that were slower than scikit-learn", columns, []), flush=True)
    for name, corner in corners.items():
        for n in (300,) if tiny else corner.sizes:
            _print_row(name, corner, n, "here", None)
    with processes(2) as client:
        for name, corner in corners.items():
            for n in (300,) if tiny else corner.sizes:
                _print_row(name, corner, n, "2 workers", client)
    return ""


def _print_row(name: str, corner: Corner, n: int, where: str, client: Any) -> None:
    """Run pairs of fits, and print their medians."""
    X, y = corner.rows(n)
    rows = (X, y) if client is None else _on_workers(X, y)
    fits = (
        lambda: corner.ours(X).fit(*rows),
        lambda: corner.theirs(X).fit(X, y),
    )
    times: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits end early as requested
        start = time.perf_counter()
        models = [fits[0](), None]
        first = time.perf_counter() - start
        fits[1]()
        for _ in range(PAIRS):
            for side, fit in enumerate(fits):
                cpu, start = _cpu(client), time.perf_counter()
                models[side] = fit()
                times[side][0].append(time.perf_counter() - start)
                times[side][1].append(_cpu(client) - cpu)
            if sum(sum(wall) for wall, _ in times) > LONG_PAIR:
                break
        figures = [corner.figure(model, X, y) for model in models]
    (ours, cpu_ours), (theirs, cpu_theirs) = (map(statistics.median, of) for of in times)
    ratio = statistics.median(a / b for a, b in zip(times[0][0], times[1][0], strict=True))
    seconds = [f"{s:.4f}" for s in (first, ours, theirs)]
    cells = [name, f"{n:,}", where, *seconds, f"{ratio:.2f}", f"{cpu_ours:.4f}"]
    cells += [f"{cpu_theirs:.4f}", *(f"{figure:.6g}" for figure in figures)]
    print("| " + " | ".join(cells) + " |", flush=True)


def _cpu(client: Any) -> float:
    """Return the CPU seconds of this process and of the workers."""
    own = time.process_time()
    return own if client is None else own + sum(client.run(time.process_time).values())


def _on_workers(X: Any, y: Any) -> tuple[Any, Any]:
    """Return the rows and targets in the memory of two workers."""
    if not sparse.issparse(X):
        return persisted(X, BLOCKS), None if y is None else persisted(y, BLOCKS)
    size = -(-X.shape[0] // BLOCKS)
    pieces = [X[start : start + size] for start in range(0, X.shape[0], size)]
    blocks = [
        da.from_delayed(dask.delayed(piece), piece.shape, X.dtype, meta=X[:0]) for piece in pieces
    ]
    return da.concatenate(blocks).persist(), None
