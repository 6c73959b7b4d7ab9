"""Categories of blocks, as encoders know them, and how they are merged."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.preprocessing import OrdinalEncoder

from daskml_dist.data.column_statistics import find_distinct_rows
from daskml_dist.data.containers import load_pandas
from daskml_dist.data.conversion import convert_missing_to_nan
from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.transformer import BlockTransformer
from daskml_dist.inference.transform import sample_rows

__all__ = ["CategoryTransformer"]

#: Rows from which on distinct values are looked for: for fewer, looking at each costs less.
_MANY_ROWS = 256


class CategoryTransformer(BlockTransformer):
    """An encoder whose fitted state follows from the categories of each column and their rows."""

    _numeric = False
    #: Rows of each category of each column, while scikit-learn's `fit` looks at categories alone.
    _counts: tuple[int, list[NDArray[np.int64]]] | None = None

    def _read(self, X: Any) -> Any:
        return X  # distinct values alone are made plain

    def _summarise(self, X: Any, y: Any, sample_weight: Any) -> Any:
        """Categories of each column, their rows, and the number of rows."""
        few, places = find_distinct_rows(X)
        few = convert_missing_to_nan(few)
        # Given categories are checked against the rows; found ones are collected.
        given = self.categories
        if not isinstance(given, str):
            clone(self).set_params(min_frequency=None, max_categories=None).fit(few)
        plain = OrdinalEncoder(
            categories=given,
            handle_unknown="use_encoded_value",
            unknown_value=-1,
            encoded_missing_value=-2,
        )
        codes = plain.fit_transform(few)
        counts = []
        for j, categories in enumerate(plain.categories_):
            column, each = codes[:, j], np.bincount(places[j], minlength=len(codes))
            column = np.where(column == -2, len(categories) - 1, column)  # missing values come last
            rows = np.zeros(len(categories), dtype=np.int64)
            known = column >= 0
            np.add.at(rows, column[known].astype(np.int64), each[known])
            counts.append(rows)
        return plain.categories_, counts, X.shape[0], is_dataframe_like(X)

    def _merge(self, summaries: list[Any]) -> Any:
        categories, counts, rows, frames = zip(*summaries, strict=True)
        join = _join if isinstance(self.categories, str) else _add
        merged = [
            join(list(found), list(sums))
            for found, sums in zip(
                zip(*categories, strict=True), zip(*counts, strict=True), strict=True
            )
        ]
        return [c for c, _ in merged], [n for _, n in merged], sum(rows), frames[0]

    def _finish(self, summary: Any) -> None:
        """Fit scikit-learn on a few rows that hold all categories."""
        categories, counts, n_rows, is_frame = summary
        small = self._rows_of(categories, is_frame)
        self._counts = n_rows, counts
        try:
            super().fit(small)
        except ValueError as error:  # such as a category to drop that is not there
            raise InvalidParameterError(
                f"{error}\nThe parameters do not fit the categories that X holds: change either."
            ) from error
        finally:
            del self._counts

    def _rows_of(self, categories: list[NDArray[Any]], is_frame: bool) -> Any:
        longest = max(map(len, categories))
        columns = [np.resize(found, longest) for found in categories]
        if not is_frame:
            return np.column_stack(columns)
        names = getattr(self, "feature_names_in_", range(len(columns)))
        return _frame(names, columns)

    def _fit_infrequent_category_mapping(
        self, n_samples: int, category_counts: Any, missing_indices: Any
    ) -> None:
        # scikit-learn's hook: the few rows that it sees are not the rows that count.
        if self._counts is not None:
            n_samples, category_counts = self._counts
        super()._fit_infrequent_category_mapping(n_samples, category_counts, missing_indices)

    def _rows_to_transform(self, X: Any) -> Any:
        # Of many rows distinct values alone are made plain.
        many = is_dataframe_like(X) and len(X) >= _MANY_ROWS
        return X if many else self._plain(X)

    def _transform(self, X: Any, *args: Any, **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the code of each value of X, and whether it is known.

        scikit-learn's hook of all encoders. It looks each value up in Python, which we leave to the
        distinct values of a column.
        """
        if np.shape(X)[0] < _MANY_ROWS or not (is_dataframe_like(X) or isinstance(X, np.ndarray)):
            known = super()._transform(X, *args, **options)
            return known[0], known[1]
        few, places = find_distinct_rows(X)
        codes, are_known = super()._transform(convert_missing_to_nan(few), *args, **options)
        at = np.stack(places, axis=1), np.arange(len(places))
        return codes[at], are_known[at]

    def _sample(self, X: Any) -> Any:
        if not hasattr(self, "categories_") or not all(map(len, self.categories_)):
            return sample_rows(X)
        first = [found[:1] for found in self.categories_]
        if not hasattr(X, "columns"):
            return np.column_stack(first)
        return _frame(X.columns, first)


def _frame(names: Any, columns: list[NDArray[Any]]) -> Any:
    # Left to itself, pandas makes strings of objects, and NaN of the None among them.
    series = load_pandas().Series
    made = [series(column, dtype=column.dtype) for column in columns]
    return load_pandas().DataFrame(dict(zip(names, made, strict=True)))


def _add(
    categories: list[NDArray[Any]], counts: list[NDArray[np.int64]]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Sums of the rows of given categories, which keep the user's order."""
    return categories[0], np.sum(counts, axis=0)


def _join(
    categories: list[NDArray[Any]], counts: list[NDArray[np.int64]]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Union of the categories of a column, in scikit-learn's order, and the sums of their rows."""
    dtypes = {found.dtype for found in categories}
    if len(dtypes) > 1 and any(dtype.kind not in "biuf" for dtype in dtypes):
        # A block without a value of the column may have another dtype; numbers join as numbers.
        categories = [found.astype(object) for found in categories]
    every = np.concatenate(categories)[:, None]
    encoder = OrdinalEncoder(encoded_missing_value=-2).fit(every)
    (union,) = encoder.categories_
    at = encoder.transform(every)[:, 0].astype(np.int64)
    at[at == -2] = len(union) - 1
    sums = np.zeros(len(union), dtype=np.int64)
    np.add.at(sums, at, np.concatenate(counts))
    return union, sums
