"""`TargetEncoder`: categories encoded by means of the target, with sums that blocks are merged by.

`_sum_block` sums the target by category, `_merge_sums` adds the sums of blocks or folds, and
`_compute_encodings` makes scikit-learn's attributes of them. `fit_transform` keeps the sums of each
fold apart, and encodes its rows by those of the others.
"""

from __future__ import annotations

import warnings
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
)
from daskml_dist.data.lazy import has_fixed_row_order, is_dask
from daskml_dist.data.reduce import PassGenerator, ReductionPass, run_computation
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.transformer import keeping_lazy
from daskml_dist.inference.block_mapping import map_pieces
from daskml_dist.preprocessing.encoders import CategoryEncoder, number_categories


class TargetSums:
    """Sums of a target by the categories of each column: counts of labels, or moments."""

    def __init__(self, categories: Any, labels: Any, tables: list[Any], total: Any) -> None:
        self.categories = categories
        self.labels = labels  # None: y is numbers, of which moments are kept
        self.tables = tables  # (n_categories, n_labels) counts, or (n_categories, 3) moments
        self.total = total


def _sum_block(categories: Any, target_type: str, X: Any, y: NDArray[Any]) -> TargetSums:
    """Return the sums of a block's rows."""
    few, places = find_distinct_rows(X)
    found, codes = number_categories(convert_missing_to_nan(few), categories)
    # Counts by label keep both ways open: whole numbers may be classes or amounts, which only all
    # blocks together tell.
    labels: NDArray[Any] | None = None
    if _is_counted(target_type, y):
        labels, numbers = count_whole_numbers(y) or np.unique(y, return_inverse=True)
    else:
        numbers = y.astype(float)
    tables = []
    for j, own in enumerate(found):
        code = codes[places[j], j]
        if code.min() >= 0:
            tables.append(_sum_by_category(code, numbers, len(own), labels))
        else:
            known = code >= 0
            tables.append(_sum_by_category(code[known], numbers[known], len(own), labels))
    total = _sum_by_category(np.zeros(len(y), dtype=np.int64), numbers, 1, labels)
    return TargetSums(found, labels, tables, total)


def _sum_by_category(
    code: NDArray[np.int64], y: NDArray[Any], n: int, labels: Any
) -> NDArray[np.float64]:
    """Return, of each of n categories, counts of the label numbers `y`, or moments of `y`."""
    if labels is None:
        return _moments(code, y, n)
    counts = np.bincount(code * len(labels) + y, minlength=n * len(labels))
    return counts.reshape(n, len(labels)).astype(np.float64)


def _is_counted(target_type: str, y: NDArray[Any]) -> bool:
    if target_type != "auto":
        return target_type != "continuous"
    return bool(y.dtype.kind not in "fc" or not (y % 1).any())


def _moments(code: NDArray[np.int64], y: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the count, mean and sum of squared deviations of each category."""
    count = np.bincount(code, minlength=n)
    mean = np.bincount(code, y, minlength=n) / np.maximum(count, 1)
    return np.column_stack([count, mean, np.bincount(code, (y - mean[code]) ** 2, minlength=n)])


def _merge_sums(parts: list[TargetSums | None]) -> TargetSums | None:
    """Return the sums of all parts that have rows; None where none has."""
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    numbers = any(part.labels is None for part in found)
    if numbers:
        found = [_convert_to_moments(part) for part in found]
    labels = None if numbers else np.unique(np.concatenate([part.labels for part in found]))
    categories, tables = [], []
    for j in range(len(found[0].categories)):
        union = _join_categories_of_column([part.categories[j] for part in found])
        categories.append(union)
        tables.append(
            _join_tables(
                [(_find_places(union, p.categories[j]), p.labels, p.tables[j]) for p in found],
                len(union),
                labels,
            )
        )
    total = _join_tables([(np.zeros(1, dtype=int), p.labels, p.total) for p in found], 1, labels)
    return TargetSums(categories, labels, tables, total)


def _convert_to_moments(part: TargetSums) -> TargetSums:
    """Convert counts of labels to moments: another block has numbers that are no labels."""
    if part.labels is None:
        return part

    def moments(table: NDArray[np.float64]) -> NDArray[np.float64]:
        y = part.labels.astype(float)
        count = table.sum(axis=1)
        mean = table @ y / np.maximum(count, 1)
        squares = (table * (y[None, :] - mean[:, None]) ** 2).sum(axis=1)
        return np.column_stack([count, mean, squares])

    return TargetSums(part.categories, None, [moments(t) for t in part.tables], moments(part.total))


def _join_tables(parts: list[Any], n: int, labels: Any) -> NDArray[np.float64]:
    """Merge tables of sums: counts add up, moments are merged as in Chan et al. (1983)."""
    if labels is not None:
        whole = np.zeros((n, len(labels)))
        for at, own, table in parts:
            whole[np.ix_(at, np.searchsorted(labels, own))] += table
        return whole
    whole = np.zeros((n, 3))
    for at, _, table in parts:
        (n_a, m_a, s_a), (n_b, m_b, s_b) = whole[at].T, table.T
        count = np.maximum(n_a + n_b, 1)
        gap = m_b - m_a  # pairwise update of moments (Chan et al. 1983)
        merged = [n_a + n_b, m_a + gap * n_b / count, s_a + s_b + gap**2 * n_a * n_b / count]
        whole[at] = np.column_stack(merged)
    return whole


def _join_categories_of_column(categories: list[NDArray[Any]]) -> NDArray[Any]:
    if len({found.dtype for found in categories}) > 1:
        categories = [found.astype(object) for found in categories]
    every = np.concatenate(categories)[:, None]
    union: NDArray[Any] = preprocessing.OrdinalEncoder().fit(every).categories_[0]
    return union


def _find_places(union: NDArray[Any], some: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions of some categories among all."""
    return number_categories(some.astype(union.dtype)[:, None], [union])[1][:, 0]


#: Number of whole-numbered classes above which they are probably amounts, and a warning is given:
#: each class becomes a column for each feature.
_SUSPICIOUS_N_CLASSES = 50


@keeping_lazy
class TargetEncoder(CategoryEncoder, preprocessing.TargetEncoder):
    """:class:`sklearn.preprocessing.TargetEncoder` for Dask collections.

    The encodings of `fit` are scikit-learn's. `fit_transform` encodes the rows of each fold by the
    other folds as there, but the folds of a Dask collection are drawn from `random_state` and the
    number of the block, so its result is not scikit-learn's to the digit.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
    target_type : {"auto", "continuous", "binary", "multiclass"}, default="auto"
    smooth : "auto" or float, default="auto"
    cv : int, default=5
        Folds of `fit_transform`.
    shuffle : bool, default=True
        For rows in memory.
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
        """Fit, and encode each fold by the others.

        Parameters
        ----------
        X, y : as in :meth:`fit`

        Returns
        -------
        ndarray or dask Array of shape (n_rows, n_features * n_outputs)
            Of a Dask collection always an Array, whatever `set_output` says.

        Raises
        ------
        InvalidDataError
            As :meth:`fit`; and where `X` comes out of a shuffle, in another order at each reading.
        """
        X, y = convert_to_host(X, y)
        if not (is_dask(X) or is_dask(y)):
            found = preprocessing.TargetEncoder.fit_transform(
                self, *self._rows_and_target(X, y), **params
            )
            self._keep(X)
            return found
        if not isinstance(self.cv, Integral) or self.cv < 2:
            raise InvalidParameterError(f"cv={self.cv!r}: use a number of folds, 2 or more.")
        if is_dask(X) and not has_fixed_row_order(X):
            raise InvalidDataError(
                "A row's fold follows from its place, and X comes out of a shuffle (shuffle, "
                "merge, sort_values...) that gives its rows in another order at each reading. "
                "Call df = df.persist() first."
            )
        with reading(type(self).__name__):
            seed, folds = run_computation(self._fit_folds(X, y, n_folds=int(self.cv)))
        # Cross fitting: an encoder for each fold, of the sums of all other folds.
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
        """Fit to all rows; return the seed that folds are drawn by, and the sums of each fold."""
        self._check_parameters()
        _check_target_given(y)
        # Newer versions of scikit-learn have no seed here but a splitter; 0 is as good as any.
        given = 0 if isinstance(self.random_state, str) else self.random_state
        seed = int(check_random_state(given).randint(2**31 - 1))
        collection = as_collection(*take_named_columns(X, y, None), numeric=False)
        summarise = partial(_summarise_folds, clone(self), n_folds, seed)
        (folds,) = yield [ReductionPass(collection, summarise, _merge_folds)]
        whole = _merge_sums(folds)
        if whole is None:
            raise InvalidDataError("X holds 0 sample(s) in all its blocks. Check its filter.")
        self.__dict__.pop("feature_names_in_", None)
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names
        self.n_features_in_ = len(whole.categories)
        self._set_from_sums(whole, None)
        return seed, folds

    def _rows_and_target(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows in memory and a target of a dtype that scikit-learn's compiled sums take."""
        _check_target_given(y)
        target = as_column(y, name="y")
        wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(target.dtype.kind, target.dtype)
        target = target.astype(wide, copy=False)
        if self.target_type == "auto" and target.dtype.kind in "iuf":
            if type_of_target(target) == "multiclass":
                _warn_of_many_classes(np.unique(target))
        return convert_missing_to_nan(X), target

    def _set_from_sums(self, found: TargetSums | None, whole: Any) -> None:
        """Set the fitted attributes from sums; a fold takes categories and classes from `whole`."""
        if found is None:
            raise InvalidDataError("There are fewer rows than folds. Set cv to a smaller number.")
        if whole is None:
            self.target_type_, self.classes_ = _find_target_type(self.target_type, found)
            self._set_categories(found)
        else:
            skip = self.get_params(deep=False)
            self.__dict__.update({k: v for k, v in vars(whole).items() if k not in skip})
        self.target_mean_, self.encodings_ = _compute_encodings(
            found, self.categories_, self.target_type_, self.classes_, self.smooth
        )

    def _set_categories(self, found: TargetSums) -> None:
        """Set the attributes of all encoders by a fit of scikit-learn's to made-up rows."""
        small = self._make_rows_of_categories(found.categories, hasattr(self, "feature_names_in_"))
        helper = preprocessing.TargetEncoder(
            categories=self.categories, target_type="continuous", smooth=1.0
        )
        helper.fit(small, np.arange(len(small), dtype=float))
        kept = {*self.get_params(deep=False), "target_type_", "classes_"}
        if "feature_names_in_" in self.__dict__:
            kept.add("feature_names_in_")
        self.__dict__.update({k: v for k, v in vars(helper).items() if k not in kept})


def _warn_of_many_classes(labels: NDArray[Any]) -> None:
    """Warn of whole numbers that are taken for classes and are probably amounts."""
    if labels.dtype.kind in "iuf" and len(labels) > _SUSPICIOUS_N_CLASSES:
        warnings.warn(
            f"y holds {len(labels)} different whole numbers, which are taken for classes: each "
            "feature gets a column for each of them. Where they are amounts, set "
            'target_type="continuous"; where they are classes, set target_type="multiclass".',
            UserWarning,
            stacklevel=user_stack_level(),
        )


def _check_target_given(y: Any) -> None:
    if y is None:
        raise InvalidDataError("TargetEncoder requires y to be passed: pass fit(X, y).")


def _assign_folds(n_rows: int, n_folds: int, seed: int, number: int) -> NDArray[np.intp]:
    # The seed and the block's number decide, so that a second reading assigns the same folds.
    return np.random.default_rng([seed, number]).permutation(n_rows) % n_folds


def _summarise_folds(
    plain: TargetEncoder, n_folds: int, seed: int, number: int, X: Any, y: Any, weight: Any
) -> list[TargetSums | None]:
    if X.shape[0] == 0:
        return [None] * n_folds
    rows, target = copy_to_host(X), as_column(y, name="y", index=number)
    fold = _assign_folds(len(target), n_folds, seed, number)
    try:
        assert_all_finite(target, input_name="y")
        return _sum_folds(plain, n_folds, fold, rows, target)
    except (ValueError, TypeError) as error:
        raise InvalidDataError(
            f"Block {number}: {error}\nEvery row needs a target, of the kind that target_type "
            "says, and every column of X values of one type: drop or convert the others."
        ) from error


def _sum_folds(
    plain: TargetEncoder, n_folds: int, fold: NDArray[np.intp], X: Any, y: NDArray[Any]
) -> list[TargetSums | None]:
    sums = partial(_sum_block, plain.categories, plain.target_type)
    if n_folds == 1:
        return [sums(X, y)]
    pick = X.iloc if hasattr(X, "iloc") else X
    found: list[TargetSums | None] = []
    for k in range(n_folds):
        at = np.flatnonzero(fold == k)
        found.append(sums(pick[at], y[at]) if len(at) else None)
    return found


def _merge_folds(parts: list[list[TargetSums | None]]) -> list[TargetSums | None]:
    return [_merge_sums(list(folds)) for folds in zip(*parts, strict=True)]


def _find_target_type(target_type: str, found: TargetSums) -> tuple[str, NDArray[Any] | None]:
    if found.labels is None:
        return "continuous", None
    kind = target_type
    if target_type == "auto":
        kind = type_of_target(found.labels)
        _warn_of_many_classes(found.labels)
    if kind not in ("binary", "multiclass"):
        raise InvalidDataError(
            f"Unknown label type: y is {kind!r}. Pass labels or numbers, or set target_type."
        )
    if kind == "binary" and len(found.labels) > 2:
        raise InvalidParameterError(
            f'target_type="binary", but y has {len(found.labels)} values. Use "multiclass".'
        )
    return kind, found.labels


def _compute_encodings(
    found: TargetSums, categories: list[Any], kind: str, classes: Any, smooth: Any
) -> tuple[Any, list[NDArray[np.float64]]]:
    """Return the mean of the target, and the encoding of each category (and class)."""
    if kind == "continuous":
        return _encode_by_numbers(found, categories, smooth)
    return _encode_by_labels(found, categories, kind, classes, smooth)


def _encode_by_numbers(
    found: TargetSums, categories: list[Any], smooth: Any
) -> tuple[Any, list[Any]]:
    """Return the mean of a continuous target, and the encoding of each category."""
    ((n_rows, mean, squares),) = found.total
    variance, encodings = squares / n_rows, []
    for own, union, table in zip(found.categories, categories, found.tables, strict=True):
        # A fold may lack categories of the whole, whose count is 0 then.
        whole = np.zeros((len(union), 3))
        whole[_find_places(union, own)] = table
        n, means, deviations = whole.T
        encodings.append(_shrink_means(n, means, deviations, mean, variance, smooth))
    return mean, encodings


def _encode_by_labels(
    found: TargetSums, categories: list[Any], kind: str, classes: Any, smooth: Any
) -> tuple[Any, list[Any]]:
    """Return the share of each class, and for each class the encoding of each category."""
    columns = np.searchsorted(classes, found.labels)
    means = np.zeros(max(2, len(classes)))  # y of a single value has no second class
    means[columns] = found.total[0] / found.total.sum()
    chosen = [1] if kind == "binary" else range(len(classes))
    encodings = []
    for own, union, table in zip(found.categories, categories, found.tables, strict=True):
        counts = np.zeros((len(union), len(means)))
        counts[np.ix_(_find_places(union, own), columns)] = table
        n = counts.sum(axis=1)
        for k in chosen:
            # An indicator of class k: its sum of squared deviations follows from its mean.
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
    # 0 / 0 is NaN: a category without rows, or without variance, has the mean of the target.
    with np.errstate(invalid="ignore", divide="ignore"):
        if smooth == "auto":
            share = variance * n / (variance * n + squares / n)
            return np.where(np.isnan(share), target, share * mean + (1 - share) * target)
        return np.where(n + smooth > 0, (n * mean + smooth * target) / (n + smooth), target)


def _encode_folds(
    X: Any, encoders: list[TargetEncoder], number: int, *, seed: int, width: int
) -> NDArray[np.float64]:
    rows = convert_missing_to_nan(copy_to_host(X))
    out = np.empty((rows.shape[0], width))
    if rows.shape[0]:
        fold = _assign_folds(len(out), len(encoders), seed, number)
        pick = rows.iloc if hasattr(rows, "iloc") else rows
        for k, encoder in enumerate(encoders):
            at = np.flatnonzero(fold == k)
            if len(at):
                out[at] = encoder.transform(pick[at])
    return out
