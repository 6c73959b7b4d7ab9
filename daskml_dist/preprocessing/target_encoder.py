"""`TargetEncoder`."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import type_of_target

from daskml_dist.data.collection import as_collection, take_columns
from daskml_dist.data.conversion import as_column, plain_rows, to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.lowering import has_one_order
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.inference.transform import map_pieces
from daskml_dist.preprocessing._categories import CategoryTransformer

__all__ = ["TargetEncoder"]


class TargetEncoder(CategoryTransformer, preprocessing.TargetEncoder):
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
        if not (is_dask(X) or is_dask(y)):
            preprocessing.TargetEncoder.fit(self, *_plain(X, y))
            return self
        self._fit_folds(X, y, n_folds=1)
        return self

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
        if not (is_dask(X) or is_dask(y)):
            return preprocessing.TargetEncoder.fit_transform(self, *_plain(X, y), **params)
        if not isinstance(self.cv, Integral) or self.cv < 2:
            raise InvalidParameterError(f"cv={self.cv!r}: use a number of folds, 2 or more.")
        if is_dask(X) and not has_one_order(X):
            raise InvalidDataError(
                "A row's fold follows from its place, and X comes out of a shuffle (shuffle, "
                "merge, sort_values...) that gives its rows in another order at each reading. "
                "Call df = df.persist() first."
            )
        seed, folds = self._fit_folds(X, y, n_folds=int(self.cv))
        encoders = []
        for left_out in range(len(folds)):
            encoder = clone(self)
            encoder.feature_names_in_ = getattr(self, "feature_names_in_", None)
            encoder._set(_merge_folds(folds[:left_out] + folds[left_out + 1 :]), self)
            encoders.append(encoder)
        width = len(self.encodings_)
        apply = partial(_encode_folds, seed=seed, width=width)
        return map_pieces(apply, encoders, X, np.empty((0, width)))

    def _fit_folds(self, X: Any, y: Any, n_folds: int) -> tuple[int, list[Any]]:
        self._check_parameters()
        if y is None:
            raise InvalidDataError("TargetEncoder requires y: pass fit(X, y).")
        # Newer versions of scikit-learn have no seed here but a splitter; 0 is as good as any.
        given = 0 if isinstance(self.random_state, str) else self.random_state
        seed = int(check_random_state(given).randint(2**31 - 1))
        collection = as_collection(*take_columns(X, y, None), numeric=False)
        summarise = partial(_summarise, clone(self), n_folds, seed)
        folds = reduce_parts(collection, summarise, _merge_each)
        whole = _merge_folds(folds)
        if whole is None:
            raise InvalidDataError("X holds 0 sample(s) in all its blocks. Check its filter.")
        self.__dict__.pop("feature_names_in_", None)
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names
        self.n_features_in_ = len(whole.categories)
        self._set(whole, None)
        return seed, folds

    def _set(self, found: _Sums | None, whole: Any) -> None:
        """Set the fitted attributes from sums; a fold takes what is known of all from `whole`."""
        if found is None:
            raise InvalidDataError("There are fewer rows than folds. Set cv to a smaller number.")
        if whole is None:
            kind, classes = _kind_of(self.target_type, found)
            self.target_type_, self.classes_ = kind, classes
            # scikit-learn sets what encoders share; the target is a stand-in of the right kind.
            small = self._rows_of(found.categories, hasattr(self, "feature_names_in_"))
            stand_in = np.zeros(len(small)) if classes is None else np.resize(classes, len(small))
            names = self.__dict__.get("feature_names_in_")
            helper = preprocessing.TargetEncoder(
                categories=self.categories, target_type="continuous", smooth=1.0
            )
            helper.fit(small, np.arange(len(small), dtype=float) + len(stand_in))
            skip = {*self.get_params(deep=False), "target_type_", "classes_"}
            self.__dict__.update({k: v for k, v in vars(helper).items() if k not in skip})
            if names is not None:
                self.feature_names_in_ = names
        else:
            skip = self.get_params(deep=False)
            self.__dict__.update({k: v for k, v in vars(whole).items() if k not in skip})
        self.target_mean_, self.encodings_ = _encodings(
            found, self.categories_, self.target_type_, self.classes_, self.smooth
        )


class _Sums:
    """Of each column and category: rows, and for each label (or once) sum and squares of y."""

    def __init__(self, categories: Any, labels: Any, tables: list[Any], total: Any) -> None:
        self.categories = categories
        self.labels = labels  # None for numbers that are no labels
        self.tables = tables  # (n_categories, n_labels) counts, or (n_categories, 3) moments
        self.total = total


def _plain(X: Any, y: Any) -> tuple[Any, Any]:
    """Rows in memory as scikit-learn's takes them, whose sums know few dtypes of numbers."""
    if y is None:
        return plain_rows(X), y
    target = as_column(y, name="y")
    wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(target.dtype.kind, target.dtype)
    return plain_rows(X), target.astype(wide, copy=False)


def _folds_of(n_rows: int, n_folds: int, seed: int, number: int) -> NDArray[np.intp]:
    return np.random.default_rng([seed, number]).permutation(n_rows) % n_folds


def _summarise(
    plain: TargetEncoder, n_folds: int, seed: int, number: int, X: Any, y: Any, weight: Any
) -> list[_Sums | None]:
    if X.shape[0] == 0:
        return [None] * n_folds
    rows, target = plain_rows(to_host(X)), as_column(y, name="y", index=number)
    fold = _folds_of(len(target), n_folds, seed, number)
    try:
        assert_all_finite(target, input_name="y")
        return _sums_of_folds(plain, n_folds, fold, rows, target)
    except (ValueError, TypeError) as error:
        raise InvalidDataError(
            f"Block {number}: {error}\nEvery row needs a target, of the kind that target_type "
            "says, and every column of X values of one type: drop or convert the others."
        ) from error


def _sums_of_folds(
    plain: TargetEncoder, n_folds: int, fold: NDArray[np.intp], X: Any, y: NDArray[Any]
) -> list[_Sums | None]:
    if n_folds == 1:
        return [_sums(plain, X, y)]
    pick = X.iloc if hasattr(X, "iloc") else X
    found: list[_Sums | None] = []
    for k in range(n_folds):
        at = np.flatnonzero(fold == k)
        found.append(_sums(plain, pick[at], y[at]) if len(at) else None)
    return found


def _sums(plain: TargetEncoder, X: Any, y: NDArray[Any]) -> _Sums:
    encoder = preprocessing.OrdinalEncoder(
        categories=plain.categories,
        handle_unknown="use_encoded_value",
        unknown_value=-1,
        encoded_missing_value=-2,
    )
    codes = encoder.fit_transform(X).astype(np.int64)
    labels, at = None, np.zeros(len(y), dtype=np.intp)
    if _is_discrete(plain.target_type, y):
        labels, at = np.unique(y, return_inverse=True)
    tables = []
    for j, categories in enumerate(encoder.categories_):
        code = np.where(codes[:, j] == -2, len(categories) - 1, codes[:, j])
        known = code >= 0
        if labels is not None:
            table = np.zeros((len(categories), len(labels)))
            np.add.at(table, (code[known], at[known]), 1)
        else:
            table = _moments(code[known], y[known].astype(float), len(categories))
        tables.append(table)
    if labels is not None:
        total = np.bincount(at, minlength=len(labels)).astype(float)[None, :]
    else:
        total = _moments(np.zeros(len(y), dtype=np.int64), y.astype(float), 1)
    return _Sums(encoder.categories_, labels, tables, total)


def _is_discrete(target_type: str, y: NDArray[Any]) -> bool:
    if target_type != "auto":
        return target_type != "continuous"
    return bool(y.dtype.kind not in "fc" or not (y % 1).any())


def _moments(code: NDArray[np.int64], y: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Count, mean and sum of squared differences of each category."""
    count = np.bincount(code, minlength=n)
    mean = np.bincount(code, y, minlength=n) / np.maximum(count, 1)
    return np.column_stack([count, mean, np.bincount(code, (y - mean[code]) ** 2, minlength=n)])


def _merge_each(parts: list[list[_Sums | None]]) -> list[_Sums | None]:
    return [_merge_folds(list(folds)) for folds in zip(*parts, strict=True)]


def _merge_folds(parts: list[_Sums | None]) -> _Sums | None:
    found = [part for part in parts if part is not None]
    if len(found) < 2:
        return found[0] if found else None
    numbers = any(part.labels is None for part in found)
    if numbers:
        found = [_as_moments(part) for part in found]
    labels = None if numbers else np.unique(np.concatenate([part.labels for part in found]))
    categories, tables = [], []
    for j in range(len(found[0].categories)):
        union = _union([part.categories[j] for part in found])
        categories.append(union)
        tables.append(
            _join(
                [(_places(union, p.categories[j]), p.labels, p.tables[j]) for p in found],
                len(union),
                labels,
            )
        )
    total = _join([(np.zeros(1, dtype=int), p.labels, p.total) for p in found], 1, labels)
    return _Sums(categories, labels, tables, total)


def _as_moments(part: _Sums) -> _Sums:
    """Counts of whole numbers as moments: another block has shown that they are no labels."""
    if part.labels is None:
        return part

    def moments(table: NDArray[np.float64]) -> NDArray[np.float64]:
        y = part.labels.astype(float)
        count = table.sum(axis=1)
        mean = table @ y / np.maximum(count, 1)
        squares = (table * (y[None, :] - mean[:, None]) ** 2).sum(axis=1)
        return np.column_stack([count, mean, squares])

    return _Sums(part.categories, None, [moments(t) for t in part.tables], moments(part.total))


def _join(parts: list[Any], n: int, labels: Any) -> NDArray[np.float64]:
    """Tables of the same rows, put together: counts add up, moments as of Chan et al. (1983)."""
    if labels is not None:
        whole = np.zeros((n, len(labels)))
        for at, own, table in parts:
            whole[np.ix_(at, np.searchsorted(labels, own))] += table
        return whole
    whole = np.zeros((n, 3))
    for at, _, table in parts:
        (n_a, m_a, s_a), (n_b, m_b, s_b) = whole[at].T, table.T
        count = np.maximum(n_a + n_b, 1)
        gap = m_b - m_a
        merged = [n_a + n_b, m_a + gap * n_b / count, s_a + s_b + gap**2 * n_a * n_b / count]
        whole[at] = np.column_stack(merged)
    return whole


def _union(categories: list[NDArray[Any]]) -> NDArray[Any]:
    if len({found.dtype for found in categories}) > 1:
        categories = [found.astype(object) for found in categories]
    every = np.concatenate(categories)[:, None]
    union: NDArray[Any] = preprocessing.OrdinalEncoder().fit(every).categories_[0]
    return union


def _places(union: NDArray[Any], some: NDArray[Any]) -> NDArray[np.intp]:
    encoder = preprocessing.OrdinalEncoder(categories=[union], encoded_missing_value=-2)
    at = encoder.fit_transform(some.astype(union.dtype)[:, None])[:, 0].astype(np.intp)
    return np.where(at == -2, len(union) - 1, at)


def _kind_of(target_type: str, found: _Sums) -> tuple[str, NDArray[Any] | None]:
    if found.labels is None:
        return "continuous", None
    kind = type_of_target(found.labels) if target_type == "auto" else target_type
    if kind not in ("binary", "multiclass"):
        raise InvalidDataError(
            f"Unknown label type: y is {kind!r}. Pass labels or numbers, or set target_type."
        )
    if kind == "binary" and len(found.labels) > 2:
        raise InvalidParameterError(
            f'target_type="binary", but y has {len(found.labels)} values. Use "multiclass".'
        )
    return kind, found.labels


def _encodings(
    found: _Sums, categories: list[Any], kind: str, classes: Any, smooth: Any
) -> tuple[Any, list[NDArray[np.float64]]]:
    """Mean of the target, and the encoding of each category (and class)."""
    if kind == "continuous":
        ((_, mean, squares),) = found.total
        variance = squares / found.total[0, 0]
        tables = [
            _placed(f, c, t)
            for f, c, t in zip(found.categories, categories, found.tables, strict=True)
        ]
        return mean, [_encode(t[:, 0], t[:, 1], t[:, 2], mean, variance, smooth) for t in tables]
    columns = np.searchsorted(classes, found.labels)
    means = np.zeros(max(2, len(classes)))  # y of a single value has no second class
    means[columns] = found.total[0] / found.total.sum()
    chosen = [1] if kind == "binary" else range(len(classes))
    encodings = []
    for own, union, table in zip(found.categories, categories, found.tables, strict=True):
        counts = np.zeros((len(union), len(means)))
        counts[np.ix_(_places(union, own), columns)] = table
        n = counts.sum(axis=1)
        for k in chosen:
            p = counts[:, k] / np.maximum(n, 1)
            variance = means[k] * (1 - means[k])
            encodings.append(_encode(n, p, n * p * (1 - p), means[k], variance, smooth))
    return (means[1] if kind == "binary" else means), encodings


def _placed(own: Any, union: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
    whole = np.zeros((len(union), 3))
    whole[_places(union, own)] = table
    return whole


def _encode(n: Any, mean: Any, squares: Any, target: float, variance: float, smooth: Any) -> Any:
    """Shrink the mean of each category towards that of the target (Micci-Barreca 2001)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        if smooth == "auto":
            share = variance * n / (variance * n + squares / n)
            return np.where(np.isnan(share), target, share * mean + (1 - share) * target)
        return np.where(n + smooth > 0, (n * mean + smooth * target) / (n + smooth), target)


def _encode_folds(
    X: Any, encoders: list[TargetEncoder], number: int, *, seed: int, width: int
) -> NDArray[np.float64]:
    rows = plain_rows(to_host(X))
    out = np.empty((rows.shape[0], width))
    if rows.shape[0]:
        fold = _folds_of(len(out), len(encoders), seed, number)
        pick = rows.iloc if hasattr(rows, "iloc") else rows
        for k, encoder in enumerate(encoders):
            at = np.flatnonzero(fold == k)
            if len(at):
                out[at] = encoder.transform(pick[at])
    return out
