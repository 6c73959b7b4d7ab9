"""Univariate tests of each feature against the target.

For rows in memory the functions are scikit-learn's. For a Dask collection each test needs the rows
once, as sums from which its statistic follows:

- `f_classif` and `chi2` need moments or sums of each class, which are what a naive Bayes classifier
  learns;
- `r_regression` and `f_regression` need co-moments with the target (`_Comoments`), merged pairwise
  so that no digits are lost to a large mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
from operator import add
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special
from sklearn import feature_selection
from sklearn.utils.sparsefuncs import mean_variance_axis

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import check_finite, make_block
from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.conversion import convert_extension_column, convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, as_ours
from daskml_dist.naive_bayes import GaussianNB, MultinomialNB
from daskml_dist.sklearn_internals import is_constant_feature

Array = NDArray[np.float64]
Score = TypeVar("Score", bound=Callable[..., Any])

#: Bytes of a piece of rows in float64, of which two copies are made (1 MiB: they stay in a cache).
_PIECE_BYTES = 2**20


def _leave_rows_in_memory_to(sklearn_score: Callable[..., Any]) -> Callable[[Score], Score]:
    """Return a decorator of scores of Dask collections: others are those of scikit-learn."""

    def decorate(score: Score) -> Score:
        @wraps(score)
        def compute(X: Any, y: Any, **options: Any) -> Any:
            X, y = convert_foreign(X), convert_extension_column(convert_foreign(y))
            if is_dask(X) or is_dask(y):
                if y is None:
                    raise InvalidDataError(
                        f"{score.__name__} requires y to be passed, but the target y is None. Pass "
                        "y as well."
                    )
                return score(X, y, **options)
            try:
                return sklearn_score(X, y, **options)
            except (ValueError, TypeError) as error:
                raise as_ours(error) from error

        return cast("Score", compute)

    return decorate


@_leave_rows_in_memory_to(feature_selection.f_classif)
def f_classif(X: Any, y: Any) -> tuple[Array, Array]:
    """Compute the F statistic of an analysis of variance between the classes, for each feature.

    Parameters
    ----------
    X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features).
    y : array-like, dask Array or dask Series of shape (n_rows,)
        Labels.

    Returns
    -------
    f_statistic : ndarray of float64 of shape (n_features,)
        Mean square between the classes divided by that within them; infinite for a feature that is
        constant in each class, NaN for one that is constant in all rows.
    p_values : ndarray of float64 of shape (n_features,)

    Raises
    ------
    InvalidDataError
        Dask rows have missing values, or `y` has one class or is continuous.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import f_classif
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> f_classif(X, y)[0].round(2)
    array([32.,  0.])
    """
    moments = _fit_classes("f_classif", GaussianNB(var_smoothing=0.0), X, y)
    n, means = moments.class_count_[:, None], moments.theta_
    n_classes, n_rows = len(n), n.sum()
    _check_several_classes(n_classes)
    # Decomposition of the squared deviations: between the classes' means, and within the classes.
    mean = (n * means).sum(axis=0) / n_rows
    between = (n * (means - mean) ** 2).sum(axis=0)
    within = (n * moments.var_).sum(axis=0)
    # Both may be rounding errors of a constant, whose ratio would be any number.
    constant = is_constant_feature((between + within) / n_rows, mean, n_rows)
    between[constant] = within[constant] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        f_statistic = (between / (n_classes - 1)) / (within / (n_rows - n_classes))
    return f_statistic, special.fdtrc(n_classes - 1, n_rows - n_classes, f_statistic)


@_leave_rows_in_memory_to(feature_selection.chi2)
def chi2(X: Any, y: Any) -> tuple[Array, Array]:
    """Compute the chi-squared statistic between each feature, of counts, and the classes.

    Parameters
    ----------
    X, y : as in :func:`f_classif`
        No number in X is negative.

    Returns
    -------
    chi2 : ndarray of float64 of shape (n_features,)
        NaN for a feature that is 0 in all rows.
    p_values : ndarray of float64 of shape (n_features,)

    Raises
    ------
    InvalidDataError
        X has negative values, or `y` is continuous; Dask rows have missing values, or one class.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import chi2
    >>> X = da.from_array(np.array([[1, 0], [2, 4], [5, 0], [6, 4]]), chunks=2)
    >>> y = da.from_array(np.array([0, 0, 1, 1]), chunks=2)
    >>> chi2(X, y)[0].round(2)
    array([4.57, 0.  ])
    """
    counts = _fit_classes("chi2", MultinomialNB(), X, y)
    observed = counts.feature_count_
    n_classes = len(observed)
    _check_several_classes(n_classes)
    # Expected if the features did not depend on the class.
    expected = np.outer(counts.class_count_ / counts.class_count_.sum(), observed.sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = ((observed - expected) ** 2 / expected).sum(axis=0)
    return statistic, special.chdtrc(n_classes - 1, statistic)


@_leave_rows_in_memory_to(feature_selection.r_regression)
def r_regression(X: Any, y: Any, *, center: bool = True, force_finite: bool = True) -> Array:
    """Compute Pearson's correlation of each feature with the target.

    Parameters
    ----------
    X : as in :func:`f_classif`
    y : array-like, dask Array or dask Series of shape (n_rows,)
        Numbers.
    center : bool, default=True
        Whether to subtract the means.
    force_finite : bool, default=True
        Whether the correlation of a constant is 0 instead of NaN.

    Returns
    -------
    ndarray of float64 of shape (n_features,)

    Raises
    ------
    InvalidDataError
        Dask rows have missing values, or `y` is not numeric.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import r_regression
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> r_regression(X, da.arange(4, chunks=2)).round(2)
    array([0.98, 0.45])
    """
    return _correlate(_sum_comoments("r_regression", X, y), center, force_finite)


@_leave_rows_in_memory_to(feature_selection.f_regression)
def f_regression(
    X: Any, y: Any, *, center: bool = True, force_finite: bool = True
) -> tuple[Array, Array]:
    """Compute the F statistic of a linear regression of the target on each feature alone.

    Parameters
    ----------
    X, y, center : as in :func:`r_regression`
    force_finite : bool, default=True
        Whether the statistic of a constant is 0 instead of NaN, and that of a feature that
        determines the target the largest float instead of infinity.

    Returns
    -------
    f_statistic, p_values : ndarray of float64 of shape (n_features,)

    Raises
    ------
    InvalidDataError
        Dask rows have missing values, or `y` is not numeric.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from daskml_dist.feature_selection import f_regression
    >>> X = da.from_array(np.array([[1.0, 0.0], [2.0, 4.0], [5.0, 0.0], [6.0, 4.0]]), chunks=2)
    >>> f_regression(X, da.arange(4, chunks=2))[0].round(2)
    array([40.5,  0.5])
    """
    moments = _sum_comoments("f_regression", X, y)
    explained = _correlate(moments, center, force_finite) ** 2
    n_free = moments.n_rows - (2 if center else 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        f_statistic = explained / (1 - explained) * n_free
    p_values = special.fdtrc(1, n_free, f_statistic)
    if force_finite:
        # As in scikit-learn: only a perfect correlation is infinite here.
        f_statistic = np.where(np.isinf(f_statistic), np.finfo(np.float64).max, f_statistic)
    return f_statistic, p_values


#: What a classifier says of rows, and what the user of a score is told instead.
_CLASS_ERRORS = {
    "Negative values": "X has negative values, and chi2 compares counts. Use f_classif, or scale "
    "the features to [0, 1] (MinMaxScaler).",
    "Unknown label type: continuous": "y is continuous, and {name} compares classes. Use "
    "f_regression, or cut y into classes, for example y.round().astype(int).",
}


def _fit_classes(name: str, classifier: Any, X: Any, y: Any) -> Any:
    """Return the classifier, fitted to a collection; its errors are told of the score `name`."""
    try:
        return classifier.fit(X, y)
    except InvalidDataError as error:
        for start, message in _CLASS_ERRORS.items():
            if str(error).startswith(start):
                raise InvalidDataError(message.format(name=name)) from error
        raise


def _check_several_classes(n_classes: int) -> None:
    """Raise unless there are classes to compare."""
    if n_classes < 2:
        raise InvalidDataError(
            "y holds one class, so there is nothing to compare. Give rows of two or more classes."
        )


@dataclass(frozen=True, eq=False)
class _Comoments:
    """Means of features and a target, their squared deviations and products; parts are added.

    Parameters
    ----------
    n_rows : int
    means : ndarray of float64 of shape (n_features + 1,)
        The last one is that of the target; also in `squares`.
    squares : ndarray of float64 of shape (n_features + 1,)
        Sums of squared deviations from the mean.
    products : ndarray of float64 of shape (n_features,)
        Sums of a feature's deviation times the target's.
    """

    n_rows: int
    means: Array
    squares: Array
    products: Array

    def __add__(self, other: _Comoments) -> _Comoments:
        # Pairwise update of Chan, Golub and LeVeque (1983), for products as for squares.
        n_rows = self.n_rows + other.n_rows
        share = other.n_rows / n_rows
        gap = other.means - self.means
        scale = self.n_rows * share
        return _Comoments(
            n_rows,
            self.means + share * gap,
            self.squares + other.squares + scale * gap**2,
            self.products + other.products + scale * gap[:-1] * gap[-1],
        )


def _sum_comoments(name: str, X: Any, y: Any) -> _Comoments:
    """Return the co-moments of all rows of a Dask collection, from one pass."""
    with report_reading(name):
        collection = as_collection(*take_named_columns(X, y, None))
        comoments = reduce_parts(collection, _sum_block, _add_all)
    if comoments is None:
        raise InvalidDataError("X holds 0 sample(s) in all its blocks. Check its filter.")
    return comoments


def _add_all(comoments: list[_Comoments]) -> _Comoments:
    """Return the co-moments of all rows of some parts."""
    return reduce(add, comoments)


def _sum_block(index: int, X: Any, y: Any, weight: None) -> _Comoments | None:
    """Return the co-moments of a block; None for one without rows."""
    if X.shape[0] == 0:
        return None
    block = make_block(index, X, y)
    check_finite(block)
    rows, target = block.X, np.asarray(block.y, np.float64)
    if sparse.issparse(rows):
        return _sum_sparse_rows(rows, target)
    size = max(_PIECE_BYTES // (8 * max(rows.shape[1], 1)), 1)
    return _add_all(
        [_sum_rows(rows[piece], target[piece]) for piece in row_slices(len(target), size)]
    )


def _sum_rows(rows: NDArray[Any], target: Array) -> _Comoments:
    """Return the co-moments of dense rows: their means, then sums of deviations from these."""
    columns = np.column_stack([rows.astype(np.float64, copy=False), target])
    means = columns.mean(axis=0)
    columns -= means
    squares = np.einsum("ij,ij->j", columns, columns)
    return _Comoments(len(target), means, squares, columns[:, -1] @ columns[:, :-1])


def _sum_sparse_rows(rows: Any, target: Array) -> _Comoments:
    """Return the co-moments of a CSR matrix, of which only stored entries are read."""
    n_rows = len(target)
    means, variances = mean_variance_axis(rows.astype(np.float64), axis=0)
    deviations = target - target.mean()
    # The target's deviations sum to 0, so the features' means need not be subtracted.
    return _Comoments(
        n_rows,
        np.append(means, target.mean()),
        np.append(variances * n_rows, deviations @ deviations),
        rows.T @ deviations,
    )


def _correlate(moments: _Comoments, center: bool, force_finite: bool) -> Array:
    """Return the correlation of each feature with the target."""
    n_rows, means, squares, products = vars(moments).values()
    if center:  # a constant's squares are 0 or rounding errors
        squares = np.where(is_constant_feature(squares / n_rows, means, n_rows), 0.0, squares)
    else:  # moments about 0
        squares = squares + n_rows * means**2
        products = products + n_rows * means[:-1] * means[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Rounding may exceed a correlation of 1; that with a constant is not defined.
        correlations: Array = np.clip(
            products / np.sqrt(squares[:-1]) / np.sqrt(squares[-1]), -1.0, 1.0
        )
    correlations[(squares[:-1] == 0) | (squares[-1] == 0)] = 0.0 if force_finite else np.nan
    return correlations
