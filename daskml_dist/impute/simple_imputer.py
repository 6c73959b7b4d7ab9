"""`SimpleImputer`: statistics of each column, merged over blocks.

Each strategy has a summary that merges: a count and a mean, a sketch of the quantiles, or the
counts of the values. `_finish` then fits scikit-learn's class to two made-up rows that have the
statistics of all rows, so that its attributes and its indicator are scikit-learn's own.
"""

from __future__ import annotations

from collections import Counter
from numbers import Number
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse
from sklearn import impute

from daskml_dist.backends.namespace import namespace
from daskml_dist.data.column_statistics import (
    check_no_infinity,
    compute_column_moments,
    merge_sketches,
    sketch_column,
    sketch_columns,
)
from daskml_dist.data.conversion import (
    as_rows,
    convert_foreign,
    copy_to_host,
    densify_columns,
    find_device,
    load_pandas,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.inference.few_transformed_rows import take_device_rows
from daskml_dist.sklearn_internals import is_scalar_nan


class SimpleImputer(BlockTransformer, impute.SimpleImputer):
    """:class:`sklearn.impute.SimpleImputer` for Dask collections.

    ``"mean"``, ``"most_frequent"`` and ``"constant"`` are exact; ``"median"`` comes from a sketch,
    exact up to 8192 different values a column (beyond that its rank is wrong by `rank_error_` of
    the rows at most).

    Parameters
    ----------
    missing_values : int, float, str, numpy.nan, None or pandas.NA, default=numpy.nan
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
    fill_value : str or number, default=None
    copy : bool, default=True
    add_indicator : bool, default=False
    keep_empty_features : bool, default=False

    Attributes
    ----------
    statistics_ : ndarray of shape (n_features,)
    indicator_ : sklearn.impute.MissingIndicator or None
    rank_error_ : float
        Largest error of a median's rank, as a share of the rows (Dask collections only).
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.impute import SimpleImputer
    >>> X = np.array([[1.0, np.nan], [3.0, 4.0]])
    >>> SimpleImputer(strategy='mean').fit_transform(X)
    array([[1., 4.],
           [3., 4.]])
    """

    _numeric = False
    _summarises_on_device = True

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        # Floats alone, with NaN as gaps. As in scikit-learn what fills them has first the dtype of
        # the fit, then that of the rows.
        dtype, statistics = vars(self).get("_fill_dtype"), vars(self).get("statistics_")
        if (
            is_inverse
            or dtype is None
            or statistics is None
            or dtype.kind != "f"
            or self.add_indicator
        ):
            return None
        filling = statistics.astype(dtype)
        if np.isnan(filling).any() or not is_scalar_nan(self.missing_values):
            return None
        if X.dtype.kind != "f" or (rows := take_device_rows(self, X)) is None:
            return None
        xp = namespace(rows)
        return xp.where(xp.isnan(rows), xp.asarray(filling.astype(rows.dtype)), rows)

    def _inverse_transformed(self, X: Any, **options: Any) -> Any:
        """Return the rows with their gaps, which the columns of the indicator show.

        scikit-learn leaves out each column whose values are all missing in the given rows, as the
        column may be in one block of many; here it is one that has no values in the fit.
        """
        check_fitted(self)
        if not self.add_indicator:
            raise InvalidParameterError(
                "'inverse_transform' works only when 'SimpleImputer' is instantiated with "
                f"'add_indicator=True'. Got 'add_indicator={self.add_indicator}' instead."
            )
        if is_dask(X := convert_foreign(X)):
            return self._map("inverse_transform", X)
        rows = np.asarray(copy_to_host(X))
        rows = rows.astype(object) if rows.dtype.kind in "US" else rows
        n_features, with_gaps = len(self.statistics_), self.indicator_.features_
        n_kept = rows.shape[1] - len(with_gaps)
        kept_columns = np.arange(n_features)
        if n_kept != n_features:
            kept_columns = np.flatnonzero([value == value for value in self.statistics_])  # not NaN
        if n_kept != len(kept_columns):
            raise InvalidDataError(
                f"X has {rows.shape[1]} features, but transform returns "
                f"{len(kept_columns) + len(with_gaps)}. Pass rows that transform has returned."
            )
        dtype = object if rows.dtype.kind == "O" else np.float64
        original = np.full((len(rows), n_features), self.missing_values, dtype)
        original[:, kept_columns] = rows[:, :n_kept]
        gaps = np.zeros(original.shape, dtype=bool)
        gaps[:, with_gaps] = rows[:, n_kept:].astype(bool)
        original[gaps] = self.missing_values
        return original

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        """Return for each column its summary and whether values are missing, dtypes, and kind."""
        if sparse.issparse(X):
            raise InvalidDataError(
                "SimpleImputer does not accept sparse chunks of a Dask collection: entries that "
                "are not stored are zero, not missing. Convert them to dense: "
                "X.map_blocks(lambda x: x.toarray())."
            )
        is_frame = is_dataframe_like(X)
        if find_device(X) == "gpu":
            dtypes = [X.dtype] * X.shape[1]
            if self._has_numeric_columns(dtypes):
                return *self._summarise_numbers(X), dtypes, is_frame
            X = copy_to_host(X)
        X = densify_columns(X) if is_frame else np.asarray(X)
        dtypes = list(X.dtypes) if is_frame else [X.dtype] * X.shape[1]
        if self._has_numeric_columns(dtypes):
            return *self._summarise_numbers(as_rows(X, any_order=True)), dtypes, is_frame
        # Texts, objects, extension dtypes and other missing values go through pandas.
        frame = X if is_frame else load_pandas().DataFrame(X)
        columns = [frame.iloc[:, j] for j in range(frame.shape[1])]
        missing = [self._find_missing(column) for column in columns]
        values = [self._summarise_column(c[~m]) for c, m in zip(columns, missing, strict=True)]
        return values, np.array([bool(m.any()) for m in missing]), dtypes, is_frame

    def _has_numeric_columns(self, dtypes: list[Any]) -> bool:
        """Return whether means or medians of NumPy numbers are asked for, with NaN as missing."""
        are_numbers = all(isinstance(d, np.dtype) and d.kind in "biuf" for d in dtypes)
        of_numbers = self.strategy in ("mean", "median")
        return of_numbers and are_numbers and is_scalar_nan(self.missing_values)

    def _summarise_numbers(self, rows: NDArray[Any]) -> tuple[list[Any], NDArray[np.bool_]]:
        """Return the summary of each column of numbers, and whether it has missing values."""
        if self.strategy == "median":
            check_no_infinity(rows)
            sketches = sketch_columns(rows)
            return sketches, np.array([s.n_rows < len(rows) for s in sketches])
        # A column without values in this block has a count of 0, and any mean.
        count, mean, _ = compute_column_moments(rows)
        means = np.where(count > 0, mean, 0.0)
        return list(zip(count.astype(int), means, strict=True)), count < len(rows)

    def _find_missing(self, column: Any) -> Any:
        """Return the mask of a column's missing values."""
        marker = self.missing_values
        if marker is None or type(marker).__name__ == "NAType" or marker != marker:  # NaN
            return column.isna().to_numpy()
        return (column == marker).fillna(False).to_numpy(dtype=bool)

    def _summarise_column(self, values: Any) -> Any:
        """Return the summary of a column's values in a block that the strategy needs."""
        if self.strategy in ("mean", "median"):
            # Objects may be numbers; an empty column of objects has no dtype to infer.
            inferred = values.infer_objects() if len(values) else values.astype(float)
            try:
                numbers = as_rows(inferred.to_frame())[:, 0].astype(np.float64)
            except InvalidDataError as error:
                raise ValueError(
                    f"Cannot use {self.strategy} strategy with non-numeric data of column "
                    f"{values.name!r} ({values.dtype})"
                ) from error
            if self.strategy == "median":
                return sketch_column(numbers)
            return (len(numbers), float(numbers.mean()) if len(numbers) else 0.0)
        if self.strategy == "most_frequent":
            return Counter(values.value_counts().to_dict())
        return len(values)

    def _merge(self, summaries: list[Any]) -> Any:
        values, missing, dtypes, are_frames = zip(*summaries, strict=True)
        merged = [self._merge_column(list(column)) for column in zip(*values, strict=True)]
        return merged, np.logical_or.reduce(missing), dtypes[0], are_frames[0]

    def _merge_column(self, column_summaries: list[Any]) -> Any:
        """Return the summary of a column in all blocks."""
        if self.strategy == "mean":
            n = sum(count for count, _ in column_summaries)
            # Weighted means, not sums, which might overflow.
            return n, sum(mean * (count / n) for count, mean in column_summaries) if n else 0.0
        if self.strategy == "median":
            return merge_sketches(column_summaries)
        return sum(column_summaries, Counter() if self.strategy == "most_frequent" else 0)

    def _compute_statistic(self, summary: Any) -> Any:
        """Return the value to fill with; None for a column without values."""
        if self.strategy == "mean":
            return summary[1] if summary[0] else None
        if self.strategy == "median":
            return summary.quantile(0.5) if len(summary.values) else None
        if self.strategy == "most_frequent":
            # Of several most frequent values the smallest, as in scikit-learn.
            max_count = max(summary.values(), default=0)
            return min((v for v, n in summary.items() if n == max_count), default=None)
        return 0 if summary else None  # "constant": the number of values

    def _finish(self, summary: Any) -> None:
        """Fit scikit-learn's class to two rows that have the statistics of all rows."""
        columns, missing, dtypes, is_frame = summary
        if self.strategy == "median":
            self.rank_error_ = max(s.error / max(s.n_rows, 1) for s in columns)
        made_up, replaced = {}, {}
        for j, (column_summary, lacks, dtype) in enumerate(
            zip(columns, missing, dtypes, strict=True)
        ):
            value = self._compute_statistic(column_summary)
            # Any value of the column's kind: the constant itself is a parameter.
            if self.strategy == "constant" and value is not None:
                value = "" if dtype.kind not in "biuf" else 0
            gap = self.missing_values
            # The rows must not look as if the column had no values: the mean of numbers may be the
            # number that stands for missing ones.
            if value is not None and isinstance(gap, Number | str) and value == gap:
                replaced[j] = value
                value = "a" if isinstance(gap, str) else value + 1
            first = gap if value is None else value
            # One value and one gap (if the column has any) have this statistic and this indicator.
            made_up[j] = load_pandas().Series(
                [first, gap if lacks or value is None else first], dtype=object
            )
        frame = load_pandas().DataFrame(made_up).infer_objects()
        if is_frame:
            frame.columns = (
                self.feature_names_in_
                if hasattr(self, "feature_names_in_")
                else range(len(columns))
            )
        rows = frame if is_frame else frame.to_numpy()
        if self.strategy == "constant" and not is_frame and dtypes[0].kind in "iu":
            # scikit-learn does not fill unsigned integers with signed ones.
            rows = rows.astype(dtypes[0])
        impute.SimpleImputer.fit(self, rows)
        if self.strategy != "constant":
            for j, value in replaced.items():
                self.statistics_[j] = value
