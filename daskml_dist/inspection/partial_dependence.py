"""Partial dependence: mean predictions of a model with some features set to given values.

J. H. Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics
29, 2001, section 8.2. A first pass over the blocks summarises the features to choose the points of
the grid: distinct values if they are few, or a quantile sketch. (If a sketch is not exact at the
percentiles, another pass counts the values around them.) A last pass sums the predictions of all
rows at all points. Trees need no rows: scikit-learn's recursion traverses them with the weights of
the training rows (`_find_recursion_estimator`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.utils import Bunch

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.column_statistics import ColumnSketch, merge_sketches, sketch_column
from daskml_dist.data.conversion import convert_foreign, convert_named_columns, describe_block
from daskml_dist.data.order_statistics import select_ranks
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import make_no_rows_error
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import ExportError, InvalidDataError, InvalidParameterError
from daskml_dist.errors.remedies import add_remedy
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.inference.export import to_sklearn
from daskml_dist.inspection._blocks import check_weights, read_rows
from daskml_dist.parameters.checks import check_count

Array = NDArray[Any]
#: Estimators for which `method="auto"` uses the recursion, as scikit-learn does for its own.
_TREE_ESTIMATORS = {
    "DecisionTreeRegressor", "HistGradientBoostingClassifier", "HistGradientBoostingRegressor",
    "RandomForestRegressor",
}  # fmt: skip


@report_reading("partial_dependence")
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
    """Average a model's predictions over all rows, with some features set to points of a grid.

    As :func:`sklearn.inspection.partial_dependence`, also for Dask collections. These are read once
    for the grid (twice, if a feature has so many values that exact percentiles need a second pass),
    and once for the predictions at all points of the grid. No rows are gathered.
    ``sklearn.inspection.PartialDependenceDisplay`` draws the result.

    Parameters
    ----------
    estimator : estimator
        Fitted classifier or regressor, of this package, of scikit-learn, or with the same
        interface. It is called with blocks in memory.
    X : array-like, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features), with any dtypes that the estimator accepts. Not sparse.
    features : int, str or sequence of these
        Features that span the grid, all together. Columns of numbers are converted to floats.
    sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
        Weights of the rows in the average.
    categorical_features : array-like of bool, int or str, or None
        Features for which every value is a point of the grid.
    feature_names : sequence of str, or None
        Names that `categorical_features` uses; None: those of X.
    response_method : {"auto", "predict_proba", "decision_function"}, default="auto"
        Prediction method of a classifier.
    percentiles : tuple of float, default=(0.05, 0.95)
        Ends of the grid, from 0 to 1. Missing values do not count.
    grid_resolution : int, default=100
        Number of points of a feature; a feature with fewer values has one point for each value.
    method : {"auto", "recursion", "brute"}, default="auto"
        "recursion" traverses the trees of boosting models, regression trees and forests, and
        weights branches by the training rows of each node. "auto" uses it where possible: without
        sample weights, and if no tree splits on categories, which scikit-learn's recursion ignores.
    kind : {"average", "individual", "both"}, default="average"
        Whether predictions are averaged over rows, returned for each row, or both.
    custom_values : dict or None
        Grid points for some of `features`, under the same names.

    Returns
    -------
    sklearn.utils.Bunch
        ``grid_values``, a list of ndarrays; ``average``, an ndarray of shape (n_outputs, n_points
        of the first feature, ...); and ``individual``, of shape (n_outputs, n_rows, n_points of the
        first feature, ...). For a Dask collection, ``individual`` is a lazy Dask array with one
        chunk for each block that has rows.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        An argument or the rows are invalid; the message names the remedy.
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
    # scikit-learn takes no scalar of NumPy for the number of a feature.
    features = features.item() if isinstance(features, np.generic) else features
    options: dict[str, Any] = {
        "response_method": response_method, "percentiles": percentiles, "kind": kind,
        "grid_resolution": grid_resolution, "categorical_features": categorical_features,
        "feature_names": feature_names,
    }  # fmt: skip
    # 1. The recursion, if possible: it gives weighted means over the training rows.
    tree_model = None
    if kind == "average" and sample_weight is None:
        tree_model = _find_recursion_estimator(estimator, method)
    method = "brute" if tree_model is None and method == "auto" else method
    X, sample_weight = convert_named_columns(*convert_foreign(X, sample_weight))
    collection = as_collection(X, None, sample_weight, numeric=False)
    if collection.kind == "memory":
        if is_dataframe_like(X) or hasattr(X, "tocsr"):
            X = read_rows(X, None)  # a copy in which single values can be set
        return _run_scikit_learn(
            estimator if tree_model is None else tree_model, X, features, method=method,
            custom_values=custom_values, sample_weight=sample_weight, **options,
        )  # fmt: skip
    # 2. The grid.
    features = [features] if isinstance(features, str) or not np.iterable(features) else features
    features = list(features)
    custom = dict(custom_values or {})
    grid = _make_grid(
        collection, features, custom, categorical_features, feature_names, percentiles,
        grid_resolution,
    )  # fmt: skip
    # scikit-learn's own function on a single row determines the number of outputs, and raises
    # errors about parameters. The recursion needs no rows: with the whole grid, this already is its
    # result. Otherwise two points of each feature are enough to find the shape.
    max_points = 2 if tree_model is None else None
    points = {f: axis[:max_points] for f, axis in zip(features, grid.axes, strict=True)}
    one_row_result = _run_scikit_learn(
        estimator if tree_model is None else tree_model, grid.row, features, method=method,
        custom_values=points, sample_weight=None, **options,
    )  # fmt: skip
    if tree_model is not None:
        return one_row_result
    # 3. Predictions at all points of the grid.
    n_outputs = one_row_result["average" if kind == "average" else "individual"].shape[0]
    predictor = _GridPredictor(
        estimator, grid.columns, _list_grid_points(grid.axes), response_method,
        (n_outputs, *(len(axis) for axis in grid.axes)),
    )  # fmt: skip
    return _predict_blocks(collection, predictor, grid.axes, kind)


def _predict_blocks(
    collection: Any, predictor: _GridPredictor, axes: list[Array], kind: str
) -> Bunch:
    """Return averages over all rows, lazy predictions of each row, or both."""
    shared, result = share_in_graph(predictor), Bunch(grid_values=axes)
    if kind != "individual":
        weight, sums = reduce_parts(collection, _sum_predictions, _add_sums, shared)
        if weight == 0:
            raise InvalidParameterError(
                "Weights sum to zero, so there is no average. Give some rows a positive weight."
            )
        result["average"] = sums / weight
    if kind != "average":
        result["individual"] = _make_lazy_array(collection, shared, predictor.shape)
    return result


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise scikit-learn's errors as this package's errors, which name a remedy."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, IndexError, AttributeError) as error:
        if isinstance(error, InvalidParameterError):
            raise
        raise InvalidParameterError(add_remedy(f"partial_dependence: {error}")) from error


def _run_scikit_learn(estimator: Any, X: Any, features: Any, **options: Any) -> Bunch:
    """Return the result of scikit-learn's function; its errors are translated."""
    from sklearn import inspection

    with _translate_errors():
        return inspection.partial_dependence(estimator, X, features, **options)


def _find_recursion_estimator(estimator: Any, method: str) -> Any:
    """Return the scikit-learn model for the recursion; None if predictions of rows are needed."""
    name, is_ours = type(estimator).__name__, type(estimator).__module__.startswith("daskml_dist.")
    if not is_ours:
        recurses = method == "recursion" or (
            method == "auto" and _uses_recursion_by_default(estimator)
        )
        return estimator if recurses else None
    if method == "brute" or (method == "auto" and name not in _TREE_ESTIMATORS):
        return None
    # Use the recursion on the exported scikit-learn model, if its result would be correct.
    reason = None
    if hasattr(estimator, "_trees") and (estimator._trees.nodes.category >= 0).any():
        reason = "its trees split on categories, which the recursion ignores"
    elif getattr(estimator, "_has_weights", False):
        reason = "it was fitted with sample weights, which its nodes do not record"
    if reason is None:
        try:
            return to_sklearn(estimator)
        except ExportError as error:
            reason = str(error)
    if method == "auto":
        return None
    raise InvalidParameterError(
        f"method='recursion' does not work for this {name}: {reason}. Use method='brute'."
    )


def _uses_recursion_by_default(estimator: Any) -> bool:
    """Return whether scikit-learn's ``method="auto"`` would use the recursion."""
    class_names = [
        k.__name__ for k in type(estimator).__mro__ if k.__module__.startswith("sklearn.")
    ]
    # If the trees start from another model (init), they contain only a part of the prediction.
    boosts_from_constant = "BaseGradientBoosting" in class_names and estimator.init is None
    return boosts_from_constant or not _TREE_ESTIMATORS.isdisjoint(class_names)


# --- blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _GridPredictor:
    """Predictions of rows at all points of the grid; callable because functions are shared.

    Parameters
    ----------
    estimator : estimator
    columns : list of int
    points : list of tuple
        Each tuple has a value for each column.
    response_method : str
    shape : tuple of int
        Number of outputs, then number of points of each feature.
    """

    estimator: Any
    columns: list[int]
    points: list[tuple[Any, ...]]
    response_method: str
    shape: tuple[int, ...]

    def __call__(self, rows: Any) -> Iterator[Array]:
        """Yield the predictions of rows at each point, of shape (n, n_outputs)."""
        from sklearn.base import is_regressor

        from daskml_dist.sklearn_internals import assign_values, get_response_values

        method: Any = self.response_method
        if method == "auto":
            regresses = is_regressor(self.estimator)
            method = "predict" if regresses else ["predict_proba", "decision_function"]
        rows = rows.copy()  # its columns are overwritten point by point
        for point in self.points:
            for column, value in zip(self.columns, point, strict=True):
                assign_values(rows, value, column_indexer=column)
            values, *_ = get_response_values(self.estimator, rows, response_method=method)
            yield np.asarray(values).reshape(len(rows), self.shape[0])


def _sum_predictions(index: int, X: Any, y: Any, w: Any, predictor: _GridPredictor) -> Any:
    """Return a block's total weight, and weighted sums of predictions in the result's shape."""
    rows = read_rows(X, index)
    n = rows.shape[0]
    weight = check_weights(w, index, n)
    if n == 0:
        return 0.0, np.zeros(predictor.shape)
    # One point at a time, so that memory only holds the predictions of one point.
    sums = [weight @ predictions.astype(np.float64) for predictions in predictor(rows)]
    # Reshape (n_points, n_outputs) to one axis for each feature, in the order of
    # `_list_grid_points`.
    return weight.sum(), np.array(sums).T.reshape(predictor.shape)


def _add_sums(block_sums: list[Any]) -> Any:
    """Return the weights and the weighted sums of blocks, added up."""
    return sum(weight for weight, _ in block_sums), np.sum([sums for _, sums in block_sums], axis=0)


def _predict_block(index: int, X: Any, predictor: _GridPredictor) -> Array:
    """Return the predictions of each row of a block, of shape (n_outputs, n, *points)."""
    rows = read_rows(X, index)
    n, (n_outputs, *lengths) = rows.shape[0], predictor.shape
    if n == 0:
        return np.zeros((n_outputs, 0, *lengths))
    predictions = np.array([values.astype(np.float64) for values in predictor(rows)])
    # Reshape (n_points, n, n_outputs): after the transpose, the last axis becomes one per feature.
    return np.ascontiguousarray(predictions.T).reshape(n_outputs, n, *lengths)


def _make_lazy_array(collection: Any, shared: Any, shape: tuple[int, ...]) -> Any:
    """Return the lazy array of `kind="individual"`, one chunk for each block."""
    n_outputs, *lengths = shape
    predict, counts = delayed(_predict_block, pure=False), collection.chunk_rows
    parts = [
        da.from_delayed(predict(i, X, shared), (n_outputs, n, *lengths), dtype=np.float64)
        for i, ((X, _, _), n) in enumerate(zip(collection.parts, counts, strict=True))
    ]
    # A filter, for example, leaves the numbers of rows unknown (NaN), which must not be an error.
    return da.concatenate(parts, axis=1, allow_unknown_chunksizes=True)


def _list_grid_points(axes: list[Array]) -> list[tuple[Any, ...]]:
    """Return all points of a grid; the value of the last feature changes fastest."""
    indices = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)
    return list(zip(*(axis[rows] for axis, rows in zip(axes, indices, strict=True)), strict=True))


# --- the grid: values of features, or points between two percentiles ----------------------------


@dataclass(frozen=True, eq=False)
class _Grid:
    """Points of each feature, positions of the features' columns, and a row of the collection."""

    axes: list[Array]
    columns: list[int]
    row: Any


@dataclass(frozen=True, eq=False)
class _ColumnSummary:
    """Distinct values of a column (None if there are too many), and a quantile sketch of it."""

    values: Array | None
    sketch: ColumnSketch | None


def _make_grid(
    collection: Collection, features: Sequence[Any], custom: Mapping[Any, Any], categorical: Any,
    names: Any, percentiles: tuple[float, float], resolution: int,
) -> _Grid:  # fmt: skip
    """Return the same grid as scikit-learn, except that percentiles ignore missing values."""
    check_count("grid_resolution", resolution)
    if np.shape(percentiles) != (2,):
        raise InvalidParameterError(f"percentiles={percentiles!r}: use two numbers of [0, 1].")
    columns = [_find_column(collection, feature) for feature in features]
    categorical_columns = _find_categorical_columns(collection, categorical, names)
    # A feature with fewer distinct values than points uses these values as its points.
    max_values = {
        j: np.inf if j in categorical_columns else resolution - 1
        for j, feature in zip(columns, features, strict=True)
        if feature not in custom
    }
    merged = reduce_parts(
        collection, partial(_summarize_block, max_values), partial(_merge_summaries, max_values)
    )
    if merged is None:
        raise make_no_rows_error(": there is nothing to average")
    first_row, summaries = merged
    # Columns with many values: points between two percentiles. Others: their distinct values.
    sketches = {j: column.sketch for j, column in summaries.items() if column.values is None}
    ends = _find_percentiles(collection, sketches, np.asarray(percentiles, np.float64))
    axes: list[Array] = []
    for feature, j in zip(features, columns, strict=True):
        if feature in custom:
            axes.append(_convert_custom_values(custom[feature]))
        elif j not in sketches:
            axes.append(summaries[j].values)
        elif np.allclose(ends[j][0], ends[j][1]):
            raise InvalidParameterError(
                "percentiles are too close to each other, unable to build the grid. Please choose "
                f"percentiles that are further apart; of feature {feature!r} both are {ends[j][0]}."
            )
        else:
            axes.append(np.linspace(ends[j][0], ends[j][1], num=resolution))
    return _Grid(axes, columns, first_row)


def _convert_custom_values(values: Any) -> Array:
    """Return the user's points as an array; texts as objects, since NumPy would truncate them."""
    return np.asarray(values, object if any(isinstance(v, str) for v in values) else None)


def _list_names(collection: Collection) -> list[Any]:
    return [] if collection.feature_names is None else list(collection.feature_names)


def _find_column(collection: Collection, feature: Any) -> int:
    """Return the position of a feature given by name or position."""
    if isinstance(feature, str):
        names = _list_names(collection)
        if feature in names:
            return names.index(feature)
        raise InvalidParameterError(
            f"{feature!r} is not a column of X, which has {names or 'no names'}. Use one of "
            "these, or a number."
        )
    n = collection.row_shape[0] if collection.row_shape else np.inf
    is_number = isinstance(feature, Real) and not isinstance(feature, bool)
    if not is_number or not 0 <= feature < n:
        raise InvalidParameterError(
            f"all features must be in [0, {n - 1}], and one is {feature!r}. Use numbers or names."
        )
    return int(feature)


def _find_categorical_columns(
    collection: Collection, categorical_features: Any, names: Any
) -> set[int]:
    """Return the positions of categorical columns; scikit-learn raises errors for invalid ones."""
    features = np.asarray([] if categorical_features is None else categorical_features)
    if features.dtype.kind == "b":
        return set(np.flatnonzero(features).tolist())
    feature_names = list(names) if names is not None else _list_names(collection)
    if not feature_names and collection.row_shape:
        feature_names = [f"x{j}" for j in range(collection.row_shape[0])]
    return {
        feature_names.index(feature) if isinstance(feature, str) else int(feature)
        for feature in features.tolist()
        if not isinstance(feature, str) or feature in feature_names
    }


# --- summaries of columns, in a first pass ---------------------------------------------------


def _summarize_block(max_values: dict[int, float], index: int, X: Any, y: Any, w: Any) -> Any:
    """Return a row of a block (None if it is empty), and the summaries of the grid's columns."""
    rows = read_rows(X, index)
    if not len(rows):
        return None
    summaries = {}
    for j, limit in max_values.items():
        values = _get_column_values(rows, j)
        try:
            distinct = np.unique(values)
        except TypeError as error:
            raise InvalidDataError(
                f"{describe_block(index)}Column #{j} contains mixed data types ({error}), so its "
                "categories cannot be sorted. Fill missing ones with a category of their own."
            ) from error
        is_number = values.dtype.kind in "biuf"
        # Drop too many distinct values already here, so that blocks send little data.
        summaries[j] = _drop_many_values(
            _ColumnSummary(distinct, sketch_column(values) if is_number else None), j, limit
        )
    return (rows.iloc[:1] if is_dataframe_like(rows) else rows[:1].copy()), summaries


def _get_column_values(rows: Any, j: int) -> Array:
    return np.asarray(rows.iloc[:, j] if is_dataframe_like(rows) else rows[:, j])


def _drop_many_values(summary: _ColumnSummary, j: int, limit: float) -> _ColumnSummary:
    """Return a column's summary, without its distinct values if there are more than the limit."""
    if summary.values is None or len(summary.values) <= limit:
        return summary
    if summary.sketch is None:
        raise InvalidDataError(
            f"Column #{j} is not numeric, and has more values than grid_resolution. Name it in "
            "categorical_features, or pass its values as custom_values."
        )
    return _ColumnSummary(None, summary.sketch)


def _merge_summaries(max_values: dict[int, float], block_summaries: list[Any]) -> Any:
    """Merge the summaries of blocks, and drop distinct values if there are too many together."""
    merged = {}
    for j, limit in max_values.items():
        blocks = [summaries[j] for _, summaries in block_summaries]
        # Distinct values of the column, unless one of the blocks has too many.
        values: Any = None
        if all(block.values is not None for block in blocks):
            values = np.unique(np.concatenate([block.values for block in blocks]))
        sketches = [block.sketch for block in blocks if block.sketch is not None]
        merged[j] = _drop_many_values(
            _ColumnSummary(values, merge_sketches(sketches) if sketches else None), j, limit
        )
    return block_summaries[0][0], merged


# --- percentiles -----------------------------------------------------------------------------


def _find_percentiles(
    collection: Collection, sketches: dict[int, Any], shares: NDArray[np.float64]
) -> dict[int, list[float]]:
    """Return exact quantiles of columns, as `scipy.stats.mstats.mquantiles` defines them.

    If a sketch has left values out, another pass counts the values near the rank.
    """
    # The lower of the two ranks between which a quantile lies, and its relative position there.
    ranks_and_weights: dict[int, list[tuple[int, float]]] = {}
    for j, sketch in sketches.items():
        # mquantiles' default alphap = betap = 0.4, for ranks of rows that begin at 1.
        positions = sketch.n_rows * shares + (0.4 + shares * (1 - 0.4 - 0.4))
        lower = np.clip(positions, 1, sketch.n_rows - 1).astype(np.int64)
        between = np.clip(positions - lower, 0, 1)
        ranks_and_weights[j] = list(zip(lower.tolist(), between.tolist(), strict=True))
    ranks = {
        j: [r for rank, _ in pairs for r in (rank, rank + 1)]
        for j, pairs in ranks_and_weights.items()
    }
    values = select_ranks(collection, partial(_read_columns, list(sketches)), sketches, ranks)
    return {
        j: [(1 - share) * values[j][rank] + share * values[j][rank + 1] for rank, share in pairs]
        for j, pairs in ranks_and_weights.items()
    }


def _read_columns(columns: list[int], index: int, X: Any, y: Any, w: Any) -> dict[int, Array]:
    """Return some columns of a block."""
    rows = read_rows(X, index)
    return {j: _get_column_values(rows, j) for j in columns}
