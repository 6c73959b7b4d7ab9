"""`TargetEncoder`: categories encoded by the mean target, from sums that add over blocks.

1. `_sum_block` sums the target by category in a block: counts of labels, or moments of numbers.
2. `_merge_sums` merges the sums of blocks or folds (moments by the pairwise update of T. Chan, G.
   Golub and R. LeVeque 1983).
3. `_shrink_means` shrinks the mean of each category towards that of all rows, more strongly if it
has few rows (D. Micci-Barreca 2001): the empirical Bayes estimate of a normal mean.

`fit_transform` fits across folds, since the mean of a category would otherwise leak a row's own
target: the sums of each fold are kept separately, and its rows are encoded with those of the other
folds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import type_of_target

from daskml_dist.data.collection import as_collection, take_named_columns
from daskml_dist.data.column_statistics import count_whole_numbers, find_distinct_rows
from daskml_dist.data.conversion import (
    as_column,
    convert_missing_to_nan,
    convert_to_host,
    copy_to_host,
    describe_block,
    load_pandas,
)
from daskml_dist.data.lazy import has_fixed_row_order, is_dask
from daskml_dist.data.reduce import PassGenerator, ReductionPass, run_computation
from daskml_dist.data.row_checks import explain_unsortable_labels, merge_block_labels
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError, as_ours
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.transformer import keeping_lazy
from daskml_dist.inference.block_mapping import map_pieces
from daskml_dist.preprocessing.encoders import CategoryEncoder, join_categories, number_categories


@dataclass(eq=False)
class TargetSums:
    """Sums of a target by the categories of each column: counts of labels, or moments.

    Parameters
    ----------
    categories : list of ndarray
        Sorted categories of each column.
    labels : ndarray or None
        Sorted labels that are counted; None: y is numeric, and moments are kept.
    tables : list of ndarray of float64
        For each column, counts of shape (n_categories, n_labels), or moments (count, mean and sum
        of squared deviations) of shape (n_categories, 3).
    total : ndarray of float64
        A table with one row, for all rows.
    """

    categories: list[NDArray[Any]]
    labels: Any
    tables: list[NDArray[np.float64]]
    total: NDArray[np.float64]


def _sum_block(categories: Any, target_type: str, X: Any, y: NDArray[Any]) -> TargetSums:
    """Return the sums of a block's rows."""
    # Only the distinct values of each column are looked up; `places` maps the rows to them.
    distinct, places = find_distinct_rows(X)
    distinct_categories, codes = number_categories(convert_missing_to_nan(distinct), categories)
    # Keep counts by label if possible: whether integers are classes or amounts can only be decided
    # from all blocks together.
    labels: NDArray[Any] | None = None
    if _is_counted(target_type, y):
        labels, numbers = count_whole_numbers(y) or np.unique(y, return_inverse=True)
    else:
        numbers = y.astype(float)
    tables = []
    for j, column_categories in enumerate(distinct_categories):
        code = codes[places[j], j]
        if code.min() >= 0:
            tables.append(_sum_by_category(code, numbers, len(column_categories), labels))
        else:  # values outside the given categories count only in the total
            is_known = code >= 0
            tables.append(
                _sum_by_category(code[is_known], numbers[is_known], len(column_categories), labels)
            )
    total = _sum_by_category(np.zeros(len(y), dtype=np.int64), numbers, 1, labels)
    return TargetSums(distinct_categories, labels, tables, total)


def _sum_by_category(
    code: NDArray[np.int64], y: NDArray[Any], n: int, labels: Any
) -> NDArray[np.float64]:
    """Return the table of n categories: counts of `y`, indices of labels, or moments of `y`."""
    if labels is not None:
        # Combine category and label into one number: a single count gives the whole table.
        counts = np.bincount(code * len(labels) + y, minlength=n * len(labels))
        return counts.reshape(n, len(labels)).astype(np.float64)
    # Deviations from the mean in a second step: sums of squares would lose digits if the mean is
    # large.
    count = np.bincount(code, minlength=n)
    mean = np.bincount(code, y, minlength=n) / np.maximum(count, 1)
    return np.column_stack([count, mean, np.bincount(code, (y - mean[code]) ** 2, minlength=n)])


def _is_counted(target_type: str, y: NDArray[Any]) -> bool:
    """Return whether labels are counted: unless y is continuous, as far as one block shows."""
    if target_type != "auto":
        return target_type != "continuous"
    return bool(y.dtype.kind not in "fc" or not (y % 1).any())


def _merge_sums(partial_sums: list[TargetSums | None]) -> TargetSums | None:
    """Return the sums of all parts that have rows; None if there are none."""
    filled = [part for part in partial_sums if part is not None]
    if len(filled) < 2:
        return filled[0] if filled else None
    # If one part has fractions, the target is continuous everywhere.
    labels: NDArray[Any] | None = None
    counted = [part.labels for part in filled if part.labels is not None]
    if len(counted) < len(filled):
        filled = [_convert_to_moments(part) for part in filled]
    else:
        labels, _ = merge_block_labels(counted, "y")
    categories, tables = [], []
    for j in range(len(filled[0].categories)):
        columns = [part.categories[j] for part in filled]
        union, joined = join_categories(columns)
        places = np.split(joined, np.cumsum([len(column) for column in columns])[:-1])
        parts_of_column = [
            (positions, part.labels, part.tables[j])
            for positions, part in zip(places, filled, strict=True)
        ]
        categories.append(union)
        tables.append(_join_tables(parts_of_column, len(union), labels))
    total = _join_tables([(np.zeros(1, dtype=int), p.labels, p.total) for p in filled], 1, labels)
    return TargetSums(categories, labels, tables, total)


def _convert_to_moments(label_sums: TargetSums) -> TargetSums:
    """Convert counts of labels to moments, because another block has numbers that are no labels."""
    if label_sums.labels is None:
        return label_sums
    y = label_sums.labels.astype(float)

    def moments(table: NDArray[np.float64]) -> NDArray[np.float64]:
        count = table.sum(axis=1)
        mean = table @ y / np.maximum(count, 1)
        squares = (table * (y[None, :] - mean[:, None]) ** 2).sum(axis=1)
        return np.column_stack([count, mean, squares])

    return TargetSums(
        label_sums.categories,
        None,
        [moments(t) for t in label_sums.tables],
        moments(label_sums.total),
    )


def _join_tables(part_tables: list[Any], n: int, labels: Any) -> NDArray[np.float64]:
    """Merge the tables of parts; each is given as rows of the union, labels, and table."""
    if labels is not None:
        merged_table = np.zeros((n, len(labels)))
        for positions, part_labels, table in part_tables:
            merged_table[np.ix_(positions, np.searchsorted(labels, part_labels))] += table
        return merged_table
    merged_table = np.zeros((n, 3))
    for positions, _, table in part_tables:
        # Pairwise update of mean and squared deviations (Chan, Golub and LeVeque 1983).
        (n_a, m_a, s_a), (n_b, m_b, s_b) = merged_table[positions].T, table.T
        count = np.maximum(n_a + n_b, 1)
        gap = m_b - m_a
        merged = [n_a + n_b, m_a + gap * n_b / count, s_a + s_b + gap**2 * n_a * n_b / count]
        merged_table[positions] = np.column_stack(merged)
    return merged_table


def _find_places(union: NDArray[Any], categories: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions of some categories among all categories."""
    return number_categories(categories.astype(union.dtype)[:, None], [union])[1][:, 0]


#: Number of integer classes above which they are probably amounts, and a warning is given: each
#: class becomes a column for each feature.
_SUSPICIOUS_N_CLASSES = 50


@keeping_lazy
class TargetEncoder(CategoryEncoder, preprocessing.TargetEncoder):
    """:class:`sklearn.preprocessing.TargetEncoder` for Dask collections.

    The encodings of `fit` are those of scikit-learn. `fit_transform` encodes the rows of each fold
    with the other folds, as in scikit-learn, but draws the folds of a Dask collection from
    `random_state` and the number of the block, so its result is not digit for digit that of
    scikit-learn.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
    target_type : {"auto", "continuous", "binary", "multiclass"}, default="auto"
    smooth : "auto" or float, default="auto"
    cv : int, default=5
        Number of folds in `fit_transform`.
    shuffle : bool, default=True
        Only for rows in memory.
    random_state : int, RandomState or None, default=None

    Attributes
    ----------
    encodings_ : list of ndarray
    categories_ : list of ndarray
    target_type_ : str
    target_mean_ : float, or ndarray of shape (n_classes,)
    classes_ : ndarray or None
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    References
    ----------
    Micci-Barreca (2001), "A preprocessing scheme for high-cardinality categorical attributes in
    classification and prediction problems".

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.preprocessing import TargetEncoder
    >>> X = np.array([['a'], ['a'], ['b'], ['b']], dtype=object)
    >>> y = np.array([1.0, 3.0, 5.0, 7.0])
    >>> encoder = TargetEncoder(smooth=1.0, target_type='continuous').fit(X, y)
    >>> encoder.transform(X).round(2).ravel().tolist()
    [2.67, 2.67, 5.33, 5.33]
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the encoding of each category.

        Parameters
        ----------
        X : array-like, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).
        y : array-like, dask Array or dask Series of shape (n_rows,)

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            `y` is missing, has missing values, or is of a kind that has no encoding.
        InvalidParameterError
            `target_type` is "binary" and `y` has more than two values.
        """
        X, y = convert_to_host(X, y)
        if not (is_dask(X) or is_dask(y)):
            preprocessing.TargetEncoder.fit(self, *self._rows_and_target(X, y))
            self._keep(X)
            return self
        return self._fit_lazy(X, y)

    def _passes(self, X: Any, y: Any = None, sample_weight: Any = None) -> PassGenerator[None]:
        yield from self._fit_folds(X, y, n_folds=1)

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit, and encode each fold with the other folds.

        Parameters
        ----------
        X, y : as in :meth:`fit`

        Returns
        -------
        ndarray or dask Array of shape (n_rows, n_features * n_outputs)
            For a Dask collection always an Array, whatever `set_output` requests.

        Raises
        ------
        InvalidDataError
            As in :meth:`fit`; also if `X` comes from a shuffle, with another order at each reading.
        """
        X, y = convert_to_host(X, y)
        if not (is_dask(X) or is_dask(y)):
            encoded = preprocessing.TargetEncoder.fit_transform(
                self, *self._rows_and_target(X, y), **params
            )
            self._keep(X)
            return encoded
        if not isinstance(self.cv, Integral) or self.cv < 2:
            raise InvalidParameterError(f"cv={self.cv!r}: use a number of folds, 2 or more.")
        if is_dask(X) and not has_fixed_row_order(X):
            raise InvalidDataError(
                "The fold of a row depends on its position, but X comes from a shuffle "
                "(shuffle, merge, sort_values...) that may reorder rows each time it is "
                "computed. Call df = df.persist() first."
            )
        with report_reading(type(self).__name__):
            seed, folds = run_computation(self._fit_folds(X, y, n_folds=int(self.cv)))
        # Cross fitting: an encoder for each fold, from the sums of all other folds.
        encoders = []
        for left_out in range(len(folds)):
            encoder = clone(self)
            encoder.feature_names_in_ = getattr(self, "feature_names_in_", None)
            encoder._set_from_sums(_merge_sums(folds[:left_out] + folds[left_out + 1 :]), self)
            encoders.append(encoder)
        width = len(self.encodings_)
        apply = partial(_encode_folds, seed=seed, width=width)
        return map_pieces(apply, encoders, X, np.empty((0, width)))

    def _fit_folds(self, X: Any, y: Any, n_folds: int) -> PassGenerator[tuple[int, list[Any]]]:
        """Fit to all rows; return the seed that folds are drawn with, and the sums of each fold."""
        self._check_parameters()
        _check_target_given(y)
        # In newer versions of scikit-learn random_state is a string by default, without a seed.
        random_state = 0 if isinstance(self.random_state, str) else self.random_state
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        collection = as_collection(*take_named_columns(X, y, None), numeric=False)
        summarise = partial(_summarise_folds, clone(self), n_folds, seed)
        (folds,) = yield [ReductionPass(collection, summarise, _merge_folds)]
        total = _merge_sums(folds)
        if total is None:
            raise InvalidDataError("X holds 0 sample(s) in all its blocks. Check its filter.")
        self.__dict__.pop("feature_names_in_", None)
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names
        self.n_features_in_ = len(total.categories)
        self._set_from_sums(total, None)
        return seed, folds

    def _rows_and_target(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows in memory and a target in a dtype for scikit-learn's compiled sums."""
        _check_target_given(y)
        target = _read_target(y, self.target_type)
        dtype = {"i": np.int64, "u": np.int64, "f": np.float64}.get(target.dtype.kind, target.dtype)
        target = target.astype(dtype, copy=False)
        if self.target_type == "auto" and target.dtype.kind in "iuf":
            if type_of_target(target) == "multiclass":
                _warn_of_many_classes(np.unique(target))
        if self.target_type in ("binary", "multiclass"):
            # scikit-learn takes more labels for numbers, and has no second column of fewer.
            n_labels = len(load_pandas().unique(target))
            _check_number_of_labels(self.target_type, n_labels)
            if self.target_type == "multiclass" and n_labels < 3:
                raise InvalidParameterError(
                    f'target_type="multiclass", but y has {n_labels} values. Use "binary".'
                )
        return convert_missing_to_nan(X), target

    def _set_from_sums(self, sums: TargetSums | None, full_encoder: Any) -> None:
        """Set the fitted attributes from sums; a fold has the categories of `full_encoder`."""
        if sums is None:
            raise InvalidDataError("There are fewer rows than folds. Set cv to a smaller number.")
        if full_encoder is None:
            self.target_type_, self.classes_ = _find_target_type(self.target_type, sums)
            self._set_categories(sums)
        else:
            skip = self.get_params(deep=False)
            self.__dict__.update({k: v for k, v in vars(full_encoder).items() if k not in skip})
        if self.target_type_ == "continuous":
            encoded = _encode_by_numbers(sums, self.categories_, self.smooth)
        else:
            encoded = _encode_by_labels(
                sums, self.categories_, self.smooth, self.target_type_, self.classes_
            )
        self.target_mean_, self.encodings_ = encoded

    def _set_categories(self, sums: TargetSums) -> None:
        """Set the attributes that all encoders share, by scikit-learn's fit to made-up rows."""
        small = self._make_rows_of_categories(sums.categories, hasattr(self, "feature_names_in_"))
        helper = preprocessing.TargetEncoder(
            categories=self.categories, target_type="continuous", smooth=1.0
        )
        helper.fit(small, np.arange(len(small), dtype=float))
        kept_names = {*self.get_params(deep=False), "target_type_", "classes_"}
        if "feature_names_in_" in self.__dict__:
            kept_names.add("feature_names_in_")
        self.__dict__.update({k: v for k, v in vars(helper).items() if k not in kept_names})


def _warn_of_many_classes(labels: NDArray[Any]) -> None:
    """Warn about integers that are treated as classes but are probably amounts."""
    if labels.dtype.kind in "iuf" and len(labels) > _SUSPICIOUS_N_CLASSES:
        warnings.warn(
            f"y holds {len(labels)} different integers, which are treated as classes, so each "
            "feature becomes one column per class. If they are amounts, set "
            'target_type="continuous"; if they are classes, set target_type="multiclass".',
            UserWarning,
            stacklevel=user_stack_level(),
        )


def _check_target_given(y: Any) -> None:
    """Raise if there is no target."""
    if y is None:
        raise InvalidDataError("TargetEncoder requires y to be passed: pass fit(X, y).")


def _read_target(y: Any, target_type: str, index: int | None = None) -> NDArray[Any]:
    """Return the target of rows; raise if it is not of the kind that `target_type` says."""
    target = as_column(y, name="y", index=index)
    if target_type == "continuous":
        try:
            return target.astype(np.float64, copy=False)
        except (ValueError, TypeError) as error:
            raise InvalidDataError(
                f"{describe_block(index)}y is not numeric ({error}). For labels, set "
                'target_type="auto"; for a target_type of "continuous", give numbers.'
            ) from error
    if target.dtype.kind == "O":
        # A missing label in memory is a label as others, if scikit-learn is told that it is one.
        counts_missing = index is None and target_type != "auto"
        given = target[~load_pandas().isna(target)] if counts_missing else target
        with explain_unsortable_labels("y", index):
            np.unique(given)
    return target


def _assign_folds(n_rows: int, n_folds: int, seed: int, block_index: int) -> NDArray[np.intp]:
    """Return the fold of each row of a block; folds have nearly equal sizes."""
    # Draw from the seed and the block's number, so that a second reading gives the same folds.
    return np.random.default_rng([seed, block_index]).permutation(n_rows) % n_folds


def _summarise_folds(
    unfitted: TargetEncoder, n_folds: int, seed: int, block_index: int, X: Any, y: Any, weight: Any
) -> list[TargetSums | None]:
    """Return the sums of each fold's rows in a block; None for a fold without rows."""
    if X.shape[0] == 0:
        return [None] * n_folds
    rows, target = copy_to_host(X), _read_target(y, unfitted.target_type, block_index)
    sum_rows = partial(_sum_block, unfitted.categories, unfitted.target_type)
    where = describe_block(block_index)
    try:
        assert_all_finite(target, input_name="y")
    except ValueError as error:
        raise InvalidDataError(f"{where}{error}\nEvery row needs a target: drop others.") from error
    try:
        if n_folds == 1:
            return [sum_rows(rows, target)]
        fold = _assign_folds(len(target), n_folds, seed, block_index)
        indexer = rows.iloc if hasattr(rows, "iloc") else rows
        members = [np.flatnonzero(fold == k) for k in range(n_folds)]
        return [
            sum_rows(indexer[row_numbers], target[row_numbers]) if len(row_numbers) else None
            for row_numbers in members
        ]
    except (ValueError, TypeError) as error:
        raise as_ours(error, where) from error


def _merge_folds(fold_sums: list[list[TargetSums | None]]) -> list[TargetSums | None]:
    """Return the sums of each fold over all blocks."""
    return [_merge_sums(list(blocks)) for blocks in zip(*fold_sums, strict=True)]


def _find_target_type(target_type: str, sums: TargetSums) -> tuple[str, NDArray[Any] | None]:
    """Return the type of the target, and its classes; None for a continuous one."""
    if sums.labels is None:
        return "continuous", None
    kind = target_type
    if target_type == "auto":
        kind = type_of_target(sums.labels)
        _warn_of_many_classes(sums.labels)
    if kind not in ("binary", "multiclass"):
        raise InvalidDataError(
            f"Unknown label type: y is {kind!r}. Pass labels or numbers, or set target_type."
        )
    if kind == "multiclass" and type_of_target(sums.labels) == "continuous":
        raise InvalidDataError(
            'Unknown label type: target_type="multiclass", but y is "continuous". Pass labels, or '
            'set target_type="continuous".'
        )
    _check_number_of_labels(kind, len(sums.labels))
    return kind, sums.labels


def _check_number_of_labels(kind: str, n_labels: int) -> None:
    """Raise if a binary target has more than two labels."""
    if kind == "binary" and n_labels > 2:
        raise InvalidParameterError(
            f'target_type="binary", but y has {n_labels} values. Use "multiclass".'
        )


def _encode_by_numbers(
    sums: TargetSums, categories: list[Any], smooth: Any
) -> tuple[Any, list[Any]]:
    """Return the mean of a continuous target, and the encoding of each category."""
    ((n_rows, mean, squares),) = sums.total
    variance, encodings = squares / n_rows, []
    for fold_categories, union, table in zip(sums.categories, categories, sums.tables, strict=True):
        # A fold may lack categories of the whole: their count is 0.
        padded = np.zeros((len(union), 3))
        padded[_find_places(union, fold_categories)] = table
        n, means, deviations = padded.T
        encodings.append(_shrink_means(n, means, deviations, mean, variance, smooth))
    return mean, encodings


def _encode_by_labels(
    sums: TargetSums, categories: list[Any], smooth: Any, kind: str, classes: Any
) -> tuple[Any, list[Any]]:
    """Return the share of each class, and for each class the encoding of each category.

    With two classes only the second has encodings.
    """
    # A fold may have fewer labels than there are classes.
    columns = np.searchsorted(classes, sums.labels)
    means = np.zeros(max(2, len(classes)))  # if y has a single value, there is no second class
    means[columns] = sums.total[0] / sums.total.sum()
    encoded_classes = [1] if kind == "binary" else range(len(classes))
    encodings = []
    for fold_categories, union, table in zip(sums.categories, categories, sums.tables, strict=True):
        counts = np.zeros((len(union), len(means)))
        counts[np.ix_(_find_places(union, fold_categories), columns)] = table
        n = counts.sum(axis=1)
        for k in encoded_classes:
            # The target is the indicator of class k: its squared deviations follow from its mean.
            p = counts[:, k] / np.maximum(n, 1)
            variance = means[k] * (1 - means[k])
            encodings.append(_shrink_means(n, p, n * p * (1 - p), means[k], variance, smooth))
    return (means[1] if kind == "binary" else means), encodings


def _shrink_means(
    n: Any, mean: Any, squares: Any, target: float, variance: float, smooth: Any
) -> Any:
    """Shrink the mean of each category towards that of the target (Micci-Barreca 2001).

    `squares` is the sum of squared deviations within a category, `variance` that of the target.
    """
    # 0 / 0 is NaN: a category without rows, or without variance, gets the mean of the target.
    with np.errstate(invalid="ignore", divide="ignore"):
        if smooth == "auto":
            # Empirical Bayes: the weight of a category's own mean grows with its number of rows,
            # and with the ratio of the target's variance to the variance within the category.
            share = variance * n / (variance * n + squares / n)
            return np.where(np.isnan(share), target, share * mean + (1 - share) * target)
        # `smooth` acts like this number of additional rows with the target's mean in each category.
        return np.where(n + smooth > 0, (n * mean + smooth * target) / (n + smooth), target)


def _encode_folds(
    X: Any, encoders: list[TargetEncoder], block_index: int, *, seed: int, width: int
) -> NDArray[np.float64]:
    """Return a block in which the rows of each fold are encoded by the other folds' encoder."""
    rows = convert_missing_to_nan(copy_to_host(X))
    out = np.empty((rows.shape[0], width))
    if rows.shape[0]:
        fold = _assign_folds(len(out), len(encoders), seed, block_index)
        indexer = rows.iloc if hasattr(rows, "iloc") else rows
        for k, encoder in enumerate(encoders):
            row_numbers = np.flatnonzero(fold == k)
            if len(row_numbers):
                out[row_numbers] = encoder.transform(indexer[row_numbers])
    return out
