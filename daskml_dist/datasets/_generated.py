"""Synthetic data sets, generated lazily block by block; rows do not depend on the chunks.

Values that all rows share (centers, coefficients) are drawn in the calling process. Rows are drawn
by the tasks of blocks, in units of a fixed number of rows: the number of a unit seeds its random
stream, so a block always draws the same rows, wherever and whenever it is computed, and with any
chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from daskml_dist.errors import InvalidParameterError
from daskml_dist.parameters.checks import check_count, check_number

Floats: TypeAlias = NDArray[np.float64]
#: Function that draws X and y of some rows.
Draw: TypeAlias = Callable[[np.random.Generator, int], tuple[NDArray[Any], NDArray[Any]]]

#: Entries of X that share a random stream: 1 MiB of float64. A block draws whole units and keeps
#: its own rows, so units should be small compared with blocks; but starting a stream takes 20
#: microseconds.
UNIT_ENTRIES = 2**17
#: Largest number of features whose signs choose a cluster's corner: the corner's number must fit an
#: int64.
_MAX_SIGNS = 62


def make_classification(
    n_samples: int = 100,
    n_features: int = 20,
    *,
    n_informative: int = 2,
    n_redundant: int = 2,
    n_repeated: int = 0,
    n_classes: int = 2,
    n_clusters_per_class: int = 2,
    weights: Any = None,
    flip_y: float = 0.01,
    class_sep: float = 1.0,
    shift: float = 0.0,
    scale: float = 1.0,
    random_state: Any = None,
    chunks: Any = "auto",
) -> tuple[da.Array, da.Array]:
    """Generate rows of several classes, each with clusters at the corners of a hypercube.

    Follows scikit-learn's function of the same name, with other random draws; the number of rows of
    a cluster is random too.

    Parameters
    ----------
    n_samples, n_features : int
        Number of rows and columns.
    n_informative : int, default=2
        Number of columns that separate the classes: normally distributed around the corner of the
        row's cluster, with a different covariance for each cluster.
    n_redundant : int, default=2
        Number of columns that are combinations of the informative ones.
    n_repeated : int, default=0
        Number of columns that repeat an informative or redundant one. All others are standard
        normal.
    n_classes, n_clusters_per_class : int, default=2
        There are at most ``2**n_informative`` clusters in total.
    weights : array-like of shape (n_classes,) or (n_classes - 1,), or None
        Shares of the classes; equal ones by default.
    flip_y : float of [0, 1], default=0.01
        Share of the rows whose label is redrawn at random.
    class_sep : float, default=1.0
        Half the length of the hypercube's edges.
    shift, scale : float
        Rows are ``(rows + shift) * scale``.
    random_state : int, RandomState or None, default=None
    chunks : int, tuple or "auto", default="auto"
        Rows of a chunk, or chunks in Dask's notation for the shape of X; columns are never split.

    Returns
    -------
    X : dask Array of float64 of shape (n_samples, n_features)
    y : dask Array of int64 of shape (n_samples,)
        Labels from 0 to ``n_classes - 1``.

    Raises
    ------
    InvalidParameterError
        A parameter is out of range, or parameters contradict each other.

    References
    ----------
    Guyon, "Design of experiments for the NIPS 2003 variable selection benchmark", 2003.

    Examples
    --------
    >>> from daskml_dist.datasets import make_classification
    >>> X, y = make_classification(1_000_000, 8, random_state=0, chunks=250_000)
    >>> X.numblocks, X.dtype, y.dtype
    ((4, 1), dtype('float64'), dtype('int64'))
    """
    n_samples, n_features, n_informative, n_classes, n_clusters_per_class = check_counts(
        n_samples=n_samples,
        n_features=n_features,
        n_informative=n_informative,
        n_classes=n_classes,
        n_clusters_per_class=n_clusters_per_class,
    )
    n_redundant, n_repeated = check_counts(0, n_redundant=n_redundant, n_repeated=n_repeated)
    check_number("flip_y", flip_y, lambda v: 0 <= v <= 1, "of [0, 1]")
    for name, number in (("class_sep", class_sep), ("shift", shift), ("scale", scale)):
        check_number(name, number, _is_any, "that is finite")
    n_used = n_informative + n_redundant + n_repeated
    n_clusters = n_classes * n_clusters_per_class
    if n_used > n_features:
        raise InvalidParameterError(
            f"n_informative + n_redundant + n_repeated is {n_used}, and n_features={n_features}. "
            "Raise n_features, or lower one of the others."
        )
    if n_clusters > 2 ** min(n_informative, _MAX_SIGNS):
        raise InvalidParameterError(
            f"n_classes * n_clusters_per_class is {n_clusters}, and a hypercube of n_informative="
            f"{n_informative} dimensions has {2**n_informative} corners. Raise n_informative."
        )
    rng, seed = make_streams(random_state)
    # 1. Distinct corners of the hypercube, as the bits of distinct integers: bit 0 is -1, bit 1 is
    # 1.
    signs = min(n_informative, _MAX_SIGNS)
    corners = _draw_distinct(rng, 2**signs, n_clusters)
    centers = np.ones((n_clusters, n_informative))
    centers[:, :signs] = 2.0 * (corners[:, np.newaxis] >> np.arange(signs) & 1) - 1
    # 2. The covariance of each cluster, and the columns that depend on others.
    shared = _Clusters(
        centers=class_sep * centers,
        mixing=rng.uniform(-1, 1, (n_clusters, n_informative, n_informative)),
        redundant=rng.uniform(-1, 1, (n_informative, n_redundant)),
        repeated=rng.integers(0, n_informative + n_redundant, n_repeated),
        order=rng.permutation(n_features),
        shares=np.repeat(_resolve_class_shares(weights, n_classes), n_clusters_per_class)
        / n_clusters_per_class,
        n_classes=n_classes,
        flip_y=float(flip_y),
        shift=float(shift),
        scale=float(scale),
    )
    return _make_lazy_rows(shared.draw, n_samples, n_features, seed, chunks, np.dtype(np.int64))


@dataclass(frozen=True, eq=False)
class _Clusters:
    """Shared values from which the rows of :func:`make_classification` are drawn.

    Parameters
    ----------
    centers : ndarray of shape (n_clusters, n_informative)
    mixing : ndarray of shape (n_clusters, n_informative, n_informative)
        Matrices that multiply standard normal rows, one for each cluster.
    redundant : ndarray of shape (n_informative, n_redundant)
    repeated : ndarray of int of shape (n_repeated,)
        Indices of the repeated columns among the informative and redundant ones.
    order : ndarray of int of shape (n_features,)
        Position before shuffling of each column of X.
    shares : ndarray of shape (n_clusters,)
        Probabilities of the clusters; the clusters of a class are adjacent.
    n_classes, flip_y, shift, scale
        As in :func:`make_classification`.
    """

    centers: Floats
    mixing: Floats
    redundant: Floats
    repeated: NDArray[np.int64]
    order: NDArray[np.int64]
    shares: Floats
    n_classes: int
    flip_y: float
    shift: float
    scale: float

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
        """Draw `n` rows and their labels."""
        cluster = rng.choice(len(self.shares), n, p=self.shares)
        # Normal rows with the covariance mixing.T @ mixing of their cluster, around its center.
        informative = rng.standard_normal((n, self.centers.shape[1]))
        for k in range(len(self.shares)):
            rows = cluster == k
            informative[rows] = informative[rows] @ self.mixing[k] + self.centers[k]
        # Columns in this order: informative, redundant, repeated, noise; then they are shuffled.
        dependent = np.hstack([informative, informative @ self.redundant])
        dependent = np.hstack([dependent, dependent[:, self.repeated]])
        noise = rng.standard_normal((n, len(self.order) - dependent.shape[1]))
        X = np.hstack([dependent, noise])[:, self.order]
        y = cluster // (len(self.shares) // self.n_classes)
        # As in scikit-learn, a flipped label is drawn from all classes, including its own.
        flipped = rng.random(n) < self.flip_y
        y[flipped] = rng.integers(0, self.n_classes, int(flipped.sum()))
        return (X + self.shift) * self.scale, y


def _resolve_class_shares(weights: Any, n_classes: int) -> Floats:
    """Return the shares of all classes; a missing last one gets the remainder."""
    if weights is None:
        return np.full(n_classes, 1 / n_classes)
    shares = np.asarray(weights, np.float64)
    if shares.shape == (n_classes - 1,):
        shares = np.append(shares, 1 - shares.sum())
    if shares.shape != (n_classes,) or not (shares >= 0).all() or not shares.sum() > 0:
        raise InvalidParameterError(
            f"weights={weights!r} should be a share of each of the {n_classes} classes, of at "
            "least 0. Pass one weight per class, or leave the last one out."
        )
    return np.asarray(shares / shares.sum())


def _draw_distinct(rng: np.random.Generator, below: int, n: int) -> NDArray[np.int64]:
    """Draw `n` distinct integers from 0 to `below` - 1."""
    # By rejection, since `below` may be 2**62: a permutation would not fit in memory.
    numbers: dict[int, None] = {}
    while len(numbers) < n:
        numbers[int(rng.integers(0, below))] = None
    return np.array(list(numbers), np.int64)


def make_regression(
    n_samples: int = 100,
    n_features: int = 100,
    *,
    n_informative: int = 10,
    n_targets: int = 1,
    bias: float = 0.0,
    noise: float = 0.0,
    coef: bool = False,
    random_state: Any = None,
    chunks: Any = "auto",
) -> tuple[Any, ...]:
    """Generate standard normal rows, and targets that are linear in some of their columns.

    Parameters
    ----------
    n_samples, n_features : int, default=100
        Number of rows and columns.
    n_informative : int, default=10
        Number of columns with a coefficient, drawn uniformly from [0, 100).
    n_targets : int, default=1
    bias : float, default=0.0
        Intercept.
    noise : float, default=0.0
        Standard deviation of the normal noise of the targets.
    coef : bool, default=False
        Whether to return the coefficients too.
    random_state, chunks
        As in :func:`make_classification`.

    Returns
    -------
    X : dask Array of float64 of shape (n_samples, n_features)
    y : dask Array of float64 of shape (n_samples,), or (n_samples, n_targets) for several
    coef : ndarray of float64 of shape (n_features,) or (n_features, n_targets)
        Only with `coef`.

    Raises
    ------
    InvalidParameterError
        A parameter is out of range.

    Examples
    --------
    >>> from daskml_dist.datasets import make_regression
    >>> from daskml_dist.linear_model import LinearRegression
    >>> X, y, coef = make_regression(1000, 5, coef=True, random_state=0, chunks=400)
    >>> bool(abs(LinearRegression().fit(X, y).coef_ - coef).max() < 1e-6)
    True
    """
    n_samples, n_features, n_targets = check_counts(
        n_samples=n_samples, n_features=n_features, n_targets=n_targets
    )
    (n_informative,) = check_counts(0, n_informative=n_informative)
    check_number("noise", noise, lambda v: v >= 0, "that is not negative")
    check_number("bias", bias, _is_any, "that is finite")
    rng, seed = make_streams(random_state)
    # The first columns of a permutation are a sample of `n_informative` columns without
    # replacement.
    true_coef = np.zeros((n_features, n_targets))
    informative = rng.permutation(n_features)[:n_informative]
    true_coef[informative] = 100 * rng.random((len(informative), n_targets))
    if n_targets == 1:
        true_coef = true_coef[:, 0]

    draw = partial(_draw_linear_rows, true_coef, float(bias), float(noise))
    X, y = _make_lazy_rows(
        draw, n_samples, n_features, seed, chunks, np.dtype(float), true_coef.shape[1:]
    )
    return (X, y, true_coef) if coef else (X, y)


def _draw_linear_rows(
    coef: Floats, bias: float, noise: float, rng: np.random.Generator, n: int
) -> tuple[Floats, Floats]:
    """Draw rows and their linear targets."""
    X = rng.standard_normal((n, len(coef)))
    y = X @ coef + bias
    return X, y + noise * rng.standard_normal(y.shape) if noise else y


def make_counts(
    n_samples: int = 1000,
    n_features: int = 100,
    *,
    n_informative: int = 2,
    scale: float = 1.0,
    random_state: Any = None,
    chunks: Any = "auto",
) -> tuple[da.Array, da.Array]:
    """Generate standard normal rows, and counts with a log rate that is linear in some columns.

    Parameters
    ----------
    n_samples, n_features : int
        Number of rows and columns.
    n_informative : int, default=2
        Number of columns with a coefficient, drawn uniformly from [-scale, 0).
    scale : float, default=1.0
        Largest absolute value of a coefficient.
    random_state, chunks
        As in :func:`make_classification`.

    Returns
    -------
    X : dask Array of float64 of shape (n_samples, n_features)
    y : dask Array of int64 of shape (n_samples,)
        Poisson-distributed with the rate ``exp(X @ coefficients)``.

    Raises
    ------
    InvalidParameterError
        A parameter is out of range.

    Examples
    --------
    >>> from daskml_dist.datasets import make_counts
    >>> from daskml_dist.linear_model import PoissonRegressor
    >>> X, y = make_counts(2000, 5, random_state=0, chunks=500)
    >>> PoissonRegressor(alpha=0).fit(X, y).coef_.shape
    (5,)
    """
    n_samples, n_features = check_counts(n_samples=n_samples, n_features=n_features)
    (n_informative,) = check_counts(0, n_informative=n_informative)
    check_number("scale", scale, lambda v: v >= 0, "that is not negative")
    rng, seed = make_streams(random_state)
    true_coef = np.zeros(n_features)
    informative = rng.permutation(n_features)[:n_informative]
    true_coef[informative] = (rng.random(len(informative)) - 1) * scale
    draw = partial(_draw_count_rows, true_coef)
    return _make_lazy_rows(draw, n_samples, n_features, seed, chunks, np.dtype(np.int64))


def _draw_count_rows(
    coef: Floats, rng: np.random.Generator, n: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw rows and their Poisson counts."""
    X = rng.standard_normal((n, len(coef)))
    return X, rng.poisson(np.exp(X @ coef))


def make_blobs(
    n_samples: int = 100,
    n_features: int = 2,
    *,
    centers: Any = None,
    cluster_std: Any = 1.0,
    center_box: tuple[float, float] = (-10.0, 10.0),
    return_centers: bool = False,
    random_state: Any = None,
    chunks: Any = "auto",
) -> tuple[Any, ...]:
    """Generate rows of normally distributed clusters of equal probability.

    Parameters
    ----------
    n_samples : int, default=100
        Number of rows.
    n_features : int, default=2
        Number of columns; if `centers` is an array, that of its columns.
    centers : int, array-like of shape (n_centers, n_features) or None, default=None
        Centers, or the number of centers to draw; None: three.
    cluster_std : float, or array-like of shape (n_centers,), default=1.0
        Standard deviation of each cluster's columns.
    center_box : (float, float), default=(-10.0, 10.0)
        Range of the centers' coordinates, which are drawn uniformly.
    return_centers : bool, default=False
        Whether to return the centers too.
    random_state, chunks
        As in :func:`make_classification`.

    Returns
    -------
    X : dask Array of float64 of shape (n_samples, n_features)
    y : dask Array of int64 of shape (n_samples,)
        Index of each row's center.
    centers : ndarray of float64 of shape (n_centers, n_features)
        Only with `return_centers`.

    Raises
    ------
    InvalidParameterError
        The length of `cluster_std` differs from the number of centers.

    Examples
    --------
    >>> from daskml_dist.cluster import KMeans
    >>> from daskml_dist.datasets import make_blobs
    >>> X, y = make_blobs(3000, centers=[[0, 0], [9, 9]], random_state=0, chunks=1000)
    >>> sorted(KMeans(2, random_state=0).fit(X).cluster_centers_.round().tolist())
    [[0.0, 0.0], [9.0, 9.0]]
    """
    n_samples, n_features = check_counts(n_samples=n_samples, n_features=n_features)
    rng, seed = make_streams(random_state)
    n_centers = 3 if centers is None else centers
    if isinstance(n_centers, int | np.integer):
        check_count("centers", n_centers)
        low, high = center_box
        points = rng.uniform(low, high, (int(n_centers), n_features))
    else:
        points = np.atleast_2d(_convert_to_floats("centers", centers))
    spread = _convert_to_floats("cluster_std", cluster_std)
    if spread.shape not in ((), (len(points),)):
        raise InvalidParameterError(
            f"cluster_std has the shape {spread.shape}, and there are {len(points)} centers. "
            "Pass one number, or one for each center."
        )
    spread = np.broadcast_to(spread, len(points))
    draw = partial(_draw_blobs, points, spread)
    X, y = _make_lazy_rows(draw, n_samples, points.shape[1], seed, chunks, np.dtype(np.int64))
    return (X, y, points) if return_centers else (X, y)


def _draw_blobs(
    centers: Floats, spread: Floats, rng: np.random.Generator, n: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw rows of clusters and the positions of their centers."""
    y = rng.integers(0, len(centers), n)
    noise = rng.standard_normal((n, centers.shape[1]))
    return centers[y] + spread[y, np.newaxis] * noise, y


# --- rows of units -------------------------------------------------------------------------------


def check_counts(least: int = 1, **counts: Any) -> list[int]:
    """Return parameters as Python's integers; raise if one is no integer or less than `least`."""
    for name, value in counts.items():
        check_count(name, value, min_value=least)
    # Arithmetic with integers of NumPy could overflow.
    return [int(value) for value in counts.values()]


def _is_any(value: float) -> bool:
    """Return True: `check_number` itself refuses values that are not finite."""
    return True


def _convert_to_floats(name: str, values: Any) -> Floats:
    """Return a parameter of numbers as an array."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{name}={values!r}: use numbers ({error}).") from error


def make_streams(random_state: Any) -> tuple[np.random.Generator, int]:
    """Return the random stream of shared values, and the seed of the rows."""
    # One draw from the user's RandomState advances it: the next call generates other rows.
    try:
        seed = int(check_random_state(random_state).randint(2**31))
    except ValueError as error:
        raise InvalidParameterError(f"{error}: use an integer, a RandomState or None.") from error
    return np.random.default_rng(seed), seed


def _make_lazy_rows(
    draw: Draw,
    n_samples: int,
    n_features: int,
    seed: int,
    chunks: Any,
    dtype: np.dtype[Any],
    y_shape: tuple[int, ...] = (),
) -> tuple[da.Array, da.Array]:
    """Return lazy X and y; one task draws both for a block."""
    check_count("n_samples", n_samples)
    check_count("n_features", n_features)
    rows = chunks[0] if isinstance(chunks, tuple) else chunks
    shape = (n_samples, n_features)
    sizes = da.core.normalize_chunks((rows, -1), shape, dtype=np.dtype(np.float64))[0]
    unit_rows = max(UNIT_ENTRIES // n_features, 1)
    # One task for X and y of a block; further tasks take its two results without a copy.
    draw_block = delayed(partial(_draw_block, draw, seed, unit_rows), pure=False, nout=2)
    blocks, start = [], 0
    for size in sizes:
        X, y = draw_block(start, start + size)
        blocks.append(
            (
                da.from_delayed(X, (size, n_features), dtype=np.float64),
                da.from_delayed(y, (size, *y_shape), dtype=dtype),
            )
        )
        start += size
    X, y = (da.concatenate(list(column)) for column in zip(*blocks, strict=True))
    return X, y


def _draw_block(
    draw: Draw, seed: int, unit_rows: int, start: int, stop: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw the rows from `start` to `stop`: draw all units that contain them, and cut."""
    units = []
    # At least one unit, so that an empty block has arrays of the right shapes.
    for unit in range(start // unit_rows, max(-(-stop // unit_rows), start // unit_rows + 1)):
        first = unit * unit_rows
        # The leading 1 separates these streams from that of shared values.
        X_and_y = draw(np.random.default_rng((1, seed, unit)), unit_rows)
        window = slice(max(start - first, 0), max(min(stop - first, unit_rows), 0))
        units.append(tuple(values[window] for values in X_and_y))
    X, y = (np.concatenate(column) for column in zip(*units, strict=True))
    return X, y
