"""`partial_dependence`: what a model answers on average where some features have given values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.utils import Bunch

from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import convert_foreign, convert_named_columns
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import ExportError, InvalidParameterError
from daskml_dist.errors.remedies import add_remedy
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.inference.export import to_sklearn
from daskml_dist.inspection._blocks import read_rows, weights_of
from daskml_dist.inspection._grid import axes_of

__all__ = ["partial_dependence"]

Array = NDArray[Any]
#: Estimators that `method="auto"` asks for their trees, as scikit-learn does of its own.
_TREES = {
    "DecisionTreeRegressor", "HistGradientBoostingClassifier", "HistGradientBoostingRegressor",
    "RandomForestRegressor",
}  # fmt: skip


@reading("partial_dependence")
@suggest_arguments
def partial_dependence(
    estimator: Any,
    X: Any,
    features: Any,
    *,
    sample_weight: Any = None,
    categorical_features: Any = None,
    feature_names: Any = None,
    response_method: str = "auto",
    percentiles: tuple[float, float] = (0.05, 0.95),
    grid_resolution: int = 100,
    method: str = "auto",
    kind: str = "average",
    custom_values: Any = None,
) -> Bunch:
    """Average the answers of a model over all rows, with some features set to points of a grid.

    As :func:`sklearn.inspection.partial_dependence`, for Dask collections too, where the blocks are
    looked at for the grid (and once more where a feature has over 8,000 values, so that its
    percentiles are exact), and then asked once for all points. Nothing is gathered.
    ``sklearn.inspection.PartialDependenceDisplay`` draws what is found.

    Parameters
    ----------
    estimator : estimator
        Fitted classifier or regressor; of this package, of scikit-learn, or like these. It is
        called with blocks in memory.
    X : array-like, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features); of any dtypes that the estimator takes. Not sparse.
    features : int, str or sequence of these
        Features that the grid spans, all together. Columns of numbers are floats.
    sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
        Weights of rows in the average.
    categorical_features : array-like of bool, int or str, or None
        Features of which each value is a point of the grid.
    feature_names : sequence of str, or None
        Names that `categorical_features` uses; None: those of X.
    response_method : {"auto", "predict_proba", "decision_function"}, default="auto"
        Answer of a classifier.
    percentiles : tuple of float, default=(0.05, 0.95)
        Ends of the grid, from 0 to 1. Missing values do not count.
    grid_resolution : int, default=100
        Points of a feature; of one with fewer values these are the points.
    method : {"auto", "recursion", "brute"}, default="auto"
        "recursion" asks the trees of boosting and of regression trees and forests, and the rows of
        the fit that each node had; "auto" takes it where it can: without weights, and where no tree
        splits categories, of which scikit-learn's recursion takes no notice.
    kind : {"average", "individual", "both"}, default="average"
        Whether answers are averaged.
    custom_values : dict or None
        Points of some of `features`, as these name them.

    Returns
    -------
    sklearn.utils.Bunch
        ``grid_values``, a list of ndarrays; ``average``, an ndarray of shape
        (n_outputs, n_points of the first feature, ...); and ``individual``, of shape
        (n_outputs, n_rows, n_points of the first feature, ...), which of a Dask collection is a
        lazy Dask array, of one chunk for each block that has rows.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Naming the remedy.
    NotFittedError
        The estimator is not fitted.

    References
    ----------
    J. Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics
    29 (2001). A. Goldstein et al., "Peeking inside the black box", Journal of Computational and
    Graphical Statistics 24 (2015), for ``kind="individual"``.

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.inspection import partial_dependence
    >>> from daskml_dist.linear_model import Ridge
    >>> X = da.random.default_rng(0).normal(size=(1000, 2), chunks=(250, 2)).persist()
    >>> model = Ridge().fit(X, X[:, 0])
    >>> partial_dependence(model, X, [0], grid_resolution=3)["average"].round(1)
    array([[-1.6,  0. ,  1.6]])
    """
    check_fitted(estimator)
    asked: dict[str, Any] = {
        "response_method": response_method, "percentiles": percentiles, "kind": kind,
        "grid_resolution": grid_resolution, "categorical_features": categorical_features,
        "feature_names": feature_names,
    }  # fmt: skip
    trees = None
    if kind == "average" and sample_weight is None:
        trees = _of_trees(estimator, method)
    method = "brute" if trees is None and method == "auto" else method
    X, sample_weight = convert_named_columns(*convert_foreign(X, sample_weight))
    collection = as_collection(X, None, sample_weight, numeric=False)
    if collection.kind == "memory":
        if is_dataframe_like(X) or hasattr(X, "tocsr"):
            X = read_rows(X, None)  # whose values can be set one by one
        return _by_scikit_learn(
            estimator if trees is None else trees, X, features, method=method,
            custom_values=custom_values, sample_weight=sample_weight, **asked,
        )  # fmt: skip
    features = [features] if isinstance(features, str | int) else list(features)
    custom = dict(custom_values or {})
    grid = axes_of(
        collection, features, custom, categorical_features, feature_names, percentiles,
        grid_resolution,
    )  # fmt: skip
    # One row tells what answers look like, and scikit-learn what is wrong with what was asked for.
    most = 2 if trees is None else None
    points = {f: axis[:most] for f, axis in zip(features, grid.axes, strict=True)}
    of_row = _by_scikit_learn(
        estimator if trees is None else trees, grid.row, features, method=method,
        custom_values=points, sample_weight=None, **asked,
    )  # fmt: skip
    if trees is not None:
        return of_row
    n_outputs = (of_row.average if kind == "average" else of_row.individual).shape[0]
    work = _Work(
        estimator, grid.columns, _cartesian(grid.axes), response_method,
        (n_outputs, *(len(axis) for axis in grid.axes)),
    )  # fmt: skip
    return _of_blocks(collection, work, grid.axes, kind)


def _of_blocks(collection: Any, work: _Work, axes: list[Array], kind: str) -> Bunch:
    """The averages over all blocks' rows, and the answers for each row."""
    given, found = share_in_graph(work), Bunch(grid_values=axes)
    if kind != "individual":
        weight, sums = reduce_parts(collection, _summed, _added, given)
        if weight == 0:
            raise InvalidParameterError(
                "Weights sum to zero, so there is no average. Give some rows a positive weight."
            )
        found["average"] = sums / weight
    if kind != "average":
        found["individual"] = _lazy(collection, given, work.shape)
    return found


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, IndexError) as error:
        if isinstance(error, InvalidParameterError):
            raise
        raise InvalidParameterError(add_remedy(f"partial_dependence: {error}")) from error


def _by_scikit_learn(estimator: Any, X: Any, features: Any, **asked: Any) -> Bunch:
    from sklearn import inspection

    with _in_our_words():
        return inspection.partial_dependence(estimator, X, features, **asked)


def _of_trees(estimator: Any, method: str) -> Any:
    """scikit-learn's own of an estimator whose trees are to be asked; None for those of rows."""
    name, ours = type(estimator).__name__, type(estimator).__module__.startswith("daskml_dist.")
    if not ours:
        asks_trees = method == "recursion" or (method == "auto" and _are_trees_of_theirs(estimator))
        return estimator if asks_trees else None
    if method == "brute" or (method == "auto" and name not in _TREES):
        return None
    reason = None
    if hasattr(estimator, "_trees") and (estimator._trees.nodes.category >= 0).any():
        reason = "its trees split categories, of which the recursion takes no notice"
    elif getattr(estimator, "_has_weights", False):
        reason = "it was fitted with sample weights, which its nodes do not count"
    if reason is None:
        try:
            return to_sklearn(estimator)
        except ExportError as error:
            reason = str(error)
    if method == "auto":
        return None
    raise InvalidParameterError(
        f"method='recursion' cannot answer for this {name}: {reason}. Use method='brute'."
    )


def _are_trees_of_theirs(estimator: Any) -> bool:
    """Return whether scikit-learn's ``method="auto"`` asks the trees of an estimator of its own."""
    kinds = [k.__name__ for k in type(estimator).__mro__ if k.__module__.startswith("sklearn.")]
    # Trees that go on from another model (init) know their part of the answer alone.
    is_whole = "BaseGradientBoosting" in kinds and estimator.init is None
    return is_whole or not _TREES.isdisjoint(kinds)


# --- blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Work:
    """Task that is done with every block. (Callable, as what is shared must be.)

    Parameters
    ----------
    estimator : estimator
    columns : list of int
    points : list of tuple
        A value of each column.
    response_method : str
    shape : tuple of int
        Outputs, and points of each feature.
    """

    estimator: Any
    columns: list[int]
    points: list[tuple[Any, ...]]
    response_method: str
    shape: tuple[int, ...]

    def __call__(self, rows: Any) -> Iterator[Array]:
        """Answers for some rows, of shape (n, n_outputs), at one point after the other."""
        from sklearn.base import is_regressor

        from daskml_dist.sklearn_internals import assign_values, get_response_values

        method: Any = self.response_method
        if method == "auto":
            regresses = is_regressor(self.estimator)
            method = "predict" if regresses else ["predict_proba", "decision_function"]
        rows = rows.copy()
        for point in self.points:
            for column, value in zip(self.columns, point, strict=True):
                assign_values(rows, value, column_indexer=column)
            found, *_ = get_response_values(self.estimator, rows, response_method=method)
            yield np.asarray(found).reshape(len(rows), self.shape[0])


def _summed(index: int, X: Any, y: Any, w: Any, work: _Work) -> Any:
    """Weight of a block, and sums of its answers in the shape of the result."""
    rows = read_rows(X, index)
    n = rows.shape[0]
    weight = weights_of(w, index, n)
    if n == 0:
        return 0.0, np.zeros(work.shape)
    sums = [weight @ found.astype(np.float64) for found in work(rows)]
    return weight.sum(), np.array(sums).T.reshape(work.shape)


def _added(parts: list[Any]) -> Any:
    return sum(weight for weight, _ in parts), np.sum([sums for _, sums in parts], axis=0)


def _each(index: int, X: Any, work: _Work) -> Array:
    """Answers for each row of a block, in the shape of the result."""
    rows = read_rows(X, index)
    n, (n_outputs, *lengths) = rows.shape[0], work.shape
    if n == 0:
        return np.zeros((n_outputs, 0, *lengths))
    found = np.array([answers.astype(np.float64) for answers in work(rows)])
    return np.ascontiguousarray(found.T).reshape(n_outputs, n, *lengths)


def _lazy(collection: Any, work: Any, shape: tuple[int, ...]) -> Any:
    n_outputs, *lengths = shape
    counts = collection.row_counts or [np.nan] * len(collection.parts)
    one = delayed(_each, pure=False)
    parts = [
        da.from_delayed(one(i, X, work), (n_outputs, n, *lengths), dtype=np.float64)
        for i, ((X, _, _), n) in enumerate(zip(collection.parts, counts, strict=True))
    ]
    return da.concatenate(parts, axis=1, allow_unknown_chunksizes=True)


def _cartesian(axes: list[Array]) -> list[tuple[Any, ...]]:
    """All points of a grid, the last feature's changing fastest."""
    at = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)
    return list(zip(*(axis[rows] for axis, rows in zip(axes, at, strict=True)), strict=True))
