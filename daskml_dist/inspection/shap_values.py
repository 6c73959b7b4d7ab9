"""SHAP values: how much each feature adds to a model's prediction of each row, exactly.

For trees these are the values of `daskml_dist.models.tree_shap`; for linear models ``coef * (x -
mean)``, the Shapley value if features are replaced by those of background rows (S. Lundberg and
S.-I. Lee, "A unified approach to interpreting model predictions", NeurIPS 2017). They are functions
of single rows: blocks of a Dask collection are explained on the workers that hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.conversion import (
    as_rows,
    convert_foreign,
    copy_to_host,
    describe_block,
    join_blocks,
    load_pandas,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import check_feature_names, check_row_shape, make_no_rows_error
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.inference.block_mapping import map_pieces
from daskml_dist.models.tree_shap import ExplainedTrees, InterventionalShap, PathShap
from daskml_dist.models.trees import RawForest, RawTrees

Floats = NDArray[np.float64]

#: Largest number of background rows for trees; the time per row grows with it.
_MOST_BACKGROUND = 10_000


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contributions of features to predictions.

    Attributes
    ----------
    values : ndarray, lazy dask Array, or DataFrame
        Of float64 of shape (n_rows, n_features), or (n_rows, n_features, n_outputs) for several
        outputs.
    base_values : float or ndarray of shape (n_outputs,)
        Prediction to which the contributions of a row are added.
    feature_names : ndarray of str of shape (n_features,)

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.inspection import shap_values
    >>> from daskml_dist.linear_model import LinearRegression
    >>> X = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 2.0]])
    >>> found = shap_values(LinearRegression().fit(X, X @ [1.0, 2.0]), X[:1], background=X)
    >>> found.values.round(6).tolist(), round(found.base_values, 6)
    ([[-1.0, 0.0]], 3.0)
    """

    values: Any
    base_values: Any
    feature_names: NDArray[Any]


@suggest_arguments
def shap_values(
    estimator: Any, X: Any, *, background: Any = None, as_frame: bool = False
) -> Explanation:
    """Return how much each feature adds to the raw prediction of each row (SHAP values).

    The values of a row and `base_values` add up to its raw prediction: for boosting the sum of the
    trees (log odds of classes), for a forest the mean shares or targets, for a linear model ``X @
    coef + intercept``.

    Parameters
    ----------
    estimator : estimator
        Fitted: boosting, a forest, a decision tree, or a linear model of this package.
    X : array-like, pandas.DataFrame, dask Array or dask DataFrame
        Of shape (n_rows, n_features).
    background : array-like, dask Array or DataFrame of shape (n_background, n_features), or None
        Rows by which features are replaced (interventional values). Linear models require them, and
        use their mean, from one pass. For trees a few hundred rows are enough; None: the training
        rows of each node (path-dependent values).
    as_frame : bool, default=False
        Whether to return `values` as a DataFrame, with a column for each feature and a last column
        with the base value; lazy if X is a Dask collection. Only for models with one output.

    Returns
    -------
    Explanation
        ``values``, lazy if X is a Dask collection, ``base_values`` and ``feature_names``.

    Raises
    ------
    InvalidParameterError
        The estimator is of another kind, a linear model has no background, or the background for
        trees is too large.
    InvalidDataError
        X does not have the features of the fit.
    NotFittedError
        The estimator is not fitted.

    References
    ----------
    S. Lundberg et al., "From local explanations to global understanding with explainable AI for
    trees", Nature Machine Intelligence 2 (2020).

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.ensemble import HistGradientBoostingRegressor
    >>> from daskml_dist.inspection import shap_values
    >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(250, 3)).persist()
    >>> model = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(X, 3 * X[:, 1])
    >>> found = shap_values(model, X)
    >>> found.values
    dask.array<..., shape=(1000, 3), dtype=float64, chunksize=(250, 3), chunktype=numpy.ndarray>
    >>> total = found.values.sum(axis=1) + found.base_values
    >>> bool(abs(total - model.predict(X)).max().compute() < 1e-9)
    True
    """
    check_fitted(estimator)
    X = read_features(estimator, X)
    # Checked before any block is explained, so that a wrong argument raises immediately.
    columns = None
    if as_frame:
        columns = [*map(str, name_features(estimator)), "base_value"]
    with report_reading("shap_values"):
        function = make_row_explainer(estimator, background, columns)
    n_outputs = len(function.base)
    if as_frame and n_outputs > 1:
        raise InvalidParameterError(
            f"as_frame=True needs a model with one output, but this one has {n_outputs}. Leave "
            "it out."
        )
    if is_dask(X):
        values = map_pieces(_explain_block, function, X, function.make_empty())
    else:
        values = function(X)
    return Explanation(
        values=values,
        base_values=float(function.base[0]) if n_outputs == 1 else function.base,
        feature_names=name_features(estimator),
    )


def read_features(estimator: Any, X: Any) -> Any:
    """Return rows as the estimator's raw prediction reads them; raise if columns differ."""
    X = convert_foreign(X)
    # For boosting, categories become numbers, and a ranker's query column is removed.
    if hasattr(estimator, "_read_features"):
        return estimator._read_features(X)
    check_feature_names(estimator, X, reset=False)
    return X


def name_features(estimator: Any) -> NDArray[Any]:
    """Return the names of the features of a fit; made up if the fit had none."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        names = np.array([f"x{j}" for j in range(estimator.n_features_in_)], dtype=object)
    return np.asarray(names)


@dataclass(frozen=True, eq=False)
class RowExplainer:
    """Picklable function from rows, or from a block's rows, to their contributions.

    Parameters
    ----------
    explain : callable
        Function of rows to contributions of shape (n, n_features, n_outputs).
    base : ndarray of float64 of shape (n_outputs,)
    n_features : int
    name : str
        Name of the estimator, for errors.
    columns : list of str, or None
        Columns of a frame; None: results are arrays.
    """

    explain: Callable[[Any], Floats]
    base: Floats
    n_features: int
    name: str
    columns: list[str] | None

    def make_empty(self) -> Any:
        """Return the result for zero rows."""
        return self._convert(np.empty((0, self.n_features, len(self.base))), None)

    def __call__(self, X: Any, index: int | None = None) -> Any:
        """Return the contributions of rows, as an array or a frame with the index of X."""
        X = copy_to_host(X)
        rows = as_rows(X, index=index)
        check_row_shape(rows.shape[1:], (self.n_features,), self.name, index)
        if not rows.shape[0]:
            return self._convert(np.empty((0, self.n_features, len(self.base))), X)
        contributions = self.explain(rows)
        # Trees accept missing values; products with coefficients become NaN.
        if not np.isfinite(contributions).all():
            raise InvalidDataError(
                f"{describe_block(index)}X contains NaN or infinity, which the model cannot take. "
                "Impute such values: SimpleImputer()."
            )
        return self._convert(contributions, X)

    def _convert(self, contributions: Floats, X: Any) -> Any:
        """Return contributions in the requested form."""
        values = contributions[:, :, 0] if len(self.base) == 1 else contributions
        if self.columns is None:
            return values
        table = np.column_stack([values, np.full(len(values), self.base[0])])
        return load_pandas().DataFrame(table, getattr(X, "index", None), columns=self.columns)


def _explain_block(X: Any, function: RowExplainer, block_index: int) -> Any:
    return function(X, block_index)


# --- models -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LinearShap:
    """Function of rows: SHAP values of a linear model, of shape (n, n_features, n_outputs).

    Parameters
    ----------
    coef : ndarray of float64 of shape (n_outputs, n_features)
    mean : ndarray of float64 of shape (n_features,)
        Mean of the background rows.
    """

    coef: Floats
    mean: Floats

    def __call__(self, X: Any) -> Floats:
        """Return the contributions of the features to the raw predictions of rows."""
        rows = X.toarray() if hasattr(X, "toarray") else X
        return np.asarray((rows.astype(np.float64) - self.mean)[:, :, None] * self.coef.T)


def find_trees(estimator: Any) -> RawTrees | RawForest | None:
    """Return the raw prediction of a fitted model of trees; None for other models."""
    raw = estimator._raw_prediction() if hasattr(estimator, "_raw_prediction") else None
    return raw if isinstance(raw, RawTrees | RawForest) else None


def make_row_explainer(
    estimator: Any, background: Any, columns: list[str] | None = None
) -> RowExplainer:
    """Return the function that explains rows; as a frame if `columns` are given."""
    explain, base = _make_explainer(estimator, background)
    name = type(estimator).__name__
    return RowExplainer(explain, base, estimator.n_features_in_, name, columns)


def _make_explainer(estimator: Any, background: Any) -> tuple[Callable[[Any], Floats], Floats]:
    """Return the function that explains rows, and the base value of its explanations."""
    raw = find_trees(estimator)
    if raw is not None:
        explained = ExplainedTrees.from_raw(raw)
        if background is None:
            path = PathShap(explained)
            return path, path.base_values
        rows = _read_background(estimator, background)
        # The mean of the same raw predictions, so that a row's values and the mean add up exactly.
        base = np.atleast_1d(np.asarray(raw(rows), np.float64).mean(axis=0))
        return InterventionalShap(explained, rows, base), base
    if not hasattr(estimator, "_dense_coef"):
        raise InvalidParameterError(
            f"{type(estimator).__name__} is not supported: exact SHAP values exist for trees, "
            "forests, boosting and linear models of this package. Use permutation_importance, "
            "or the package shap."
        )
    if background is None:
        raise InvalidParameterError(
            "SHAP values of a linear model need rows to compare with. Pass background=X_train."
        )
    coef = np.atleast_2d(estimator._dense_coef()).astype(np.float64)
    mean = _compute_mean(estimator, background)
    return LinearShap(coef, mean), np.asarray(np.ravel(estimator.intercept_) + coef @ mean)


def _read_background(estimator: Any, background: Any) -> Any:
    """Return the background rows for trees, in memory."""
    collection = _collect_background(estimator, background)
    rows = reduce_parts(collection, _take_few_rows, _join_few_rows)
    if rows is None:
        raise make_no_rows_error(": the background is empty")
    if rows.shape[0] > _MOST_BACKGROUND:
        raise InvalidParameterError(
            f"background has more than {_MOST_BACKGROUND} rows, and each explained row is "
            "compared with all of them. Pass a sample of a few hundred rows."
        )
    return rows.toarray() if hasattr(rows, "toarray") else rows


def _take_few_rows(index: int, X: Any, y: Any, w: Any) -> Any:
    """Return a block's first rows, one more than allowed for a background; None if it is empty."""
    rows = as_rows(copy_to_host(X), index=index)
    return rows[: _MOST_BACKGROUND + 1] if rows.shape[0] else None


def _join_few_rows(block_rows: list[Any]) -> Any:
    """Return the rows of several blocks, at most as many as `_take_few_rows`."""
    # However large the collection is, no more than this number of rows reaches the caller.
    return join_blocks(block_rows)[: _MOST_BACKGROUND + 1]


def _compute_mean(estimator: Any, background: Any) -> Floats:
    """Return the mean of the background rows, in one pass over a collection."""
    sums = reduce_parts(_collect_background(estimator, background), _sum_block, _add_sums)
    if sums is None:
        raise make_no_rows_error(": the background is empty")
    return np.asarray(sums[1] / sums[0])


def _collect_background(estimator: Any, background: Any) -> Collection:
    """Return background rows as a collection, with the features of the fit."""
    collection = as_collection(read_features(estimator, background))
    check_row_shape(collection.row_shape, (estimator.n_features_in_,), type(estimator).__name__)
    return collection


def _sum_block(index: int, X: Any, y: Any, w: Any) -> tuple[int, Floats] | None:
    """Return the number of a block's rows, and their sum."""
    rows = as_rows(copy_to_host(X), index=index)
    if not rows.shape[0]:
        return None
    return rows.shape[0], np.asarray(rows.sum(axis=0, dtype=np.float64)).ravel()


def _add_sums(block_sums: list[tuple[int, Floats]]) -> tuple[int, Floats]:
    counts, sums = zip(*block_sums, strict=True)
    return sum(counts), np.sum(sums, axis=0)
