"""Base class of the supervised estimators: targets in, scores out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from daskml_dist._base import BaseOnRows
from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import take_columns
from daskml_dist.data.conversion import to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import check_row_shape
from daskml_dist.errors import InvalidDataError
from daskml_dist.inference.predict import results_of_rows

__all__ = ["Supervised", "as_column"]


class Supervised(BaseOnRows):
    """Base class of estimators that learn to predict a target."""

    def _taken(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        if y is None:
            raise InvalidDataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                "Pass y as well."
            )
        X, y, sample_weight = take_columns(X, y, sample_weight)
        if not is_dask(y) and not self._multi_output:
            y = as_column(y)
        return X, y, sample_weight

    def _score_sums(self, statistic: Callable[..., Any], X: Any, y: Any, sample_weight: Any) -> Any:
        """``statistic(y, raw, weight)`` of all blocks, added; one pass, nothing gathered."""
        inputs = self._taken(X, y, sample_weight)
        self._check_fitted(inputs[0])
        collection = self._aligned(*inputs)
        self._check_width(collection)
        make, shape = collection.block_maker, self._row_shape
        one = partial(_score_block, statistic, self._raw(), make, shape)
        total = reduce_parts(collection, one, _total)
        if total is None:
            raise InvalidDataError(
                "X holds 0 sample(s) in all its blocks: there is nothing to score. Check the "
                "filter or the path that made the collection."
            )
        return total


def _total(parts: Sequence[Any]) -> Any:
    filled = [part for part in parts if part is not None]
    return reduce(add, filled) if filled else None


def _score_block(
    statistic: Callable[..., Any],
    raw: Callable[[Any], NDArray[Any]],
    make_block: Callable[..., Block],
    row_shape: tuple[int, ...],
    index: int,
    *part: Any,
) -> Any:
    """The statistic of a block; None where it has no rows."""
    block = make_block(index, *part, on_device=hasattr(raw, "on_device"))
    assert block.y is not None
    given, ones = block.sample_weight, np.empty(0)
    pieces: list[Any] = []
    if block.n_rows == 0:
        return None
    check_row_shape(block.rows.shape[1:], row_shape, index=index)
    for at, found in results_of_rows(raw, block.rows, index):
        if len(ones) < len(found):
            ones = np.ones(len(found))
        weight = ones[: len(found)] if given is None else given[at].astype(np.float64)
        pieces.append(statistic(block.y[at], found, weight))
    return _total(pieces)


def as_column(y: Any) -> Any:
    """Targets in memory as one column, with scikit-learn's warning for a matrix of one."""
    y = to_host(y)
    if is_dataframe_like(y) and len(y.columns) == 1:
        column_or_1d(np.empty((1, 1)), warn=True)
        return y.iloc[:, 0]  # with its dtype, which may be one of pandas alone
    if len(getattr(y, "shape", ())) == 2:
        try:
            return column_or_1d(y, warn=True)
        except ValueError as error:
            raise InvalidDataError(f"{error} Pass one column, for example y[:, 0].") from error
    return y
