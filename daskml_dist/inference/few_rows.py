"""Few plain rows in memory, as services have them: answered without what only others need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.plain_rows import convert_few_rows
from daskml_dist.data.row_checks import RowShape

__all__ = ["AppliedToRows", "Lane", "few_answers"]

#: From rows to answers; to None where only the method itself should answer.
Lane = Callable[[NDArray[Any]], "NDArray[Any] | None"]


@dataclass(frozen=True, eq=False)
class AppliedToRows:
    """The call of `map_rows` that rows to come led to; its parameters are described there."""

    function: Callable[..., NDArray[Any]]
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None
    dtype: np.dtype[Any]
    n_outputs: int | None
    row_shape: RowShape

    def few(
        self, dtype: np.dtype[Any], function: Callable[..., NDArray[Any]] | None = None
    ) -> Lane:
        """The answers to few rows of one dtype, with all found beforehand that can be."""
        if function is None:
            prepare = getattr(self.function, "for_dtype", None)
            function = self.function if prepare is None else prepare(dtype)
        made = function
        shows = getattr(self.function, "shows_not_finite", False)
        then, of_results, n_outputs = self.then, self.dtype, self.n_outputs
        shape = self.row_shape

        def answer(X: NDArray[Any]) -> NDArray[Any] | None:
            rows = convert_few_rows(X, shape)
            if rows is None:
                return None
            return _answered(rows, made, shows, then, of_results, n_outputs)

        return answer


def few_answers(
    X: Any,
    function: Callable[..., NDArray[Any]],
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None,
    dtype: np.dtype[Any],
    n_outputs: int | None,
    row_shape: RowShape,
) -> NDArray[Any] | None:
    """Answers to few rows that are plain and finite; None where these are not so."""
    rows = convert_few_rows(X, row_shape)
    if rows is None:
        return None
    shows = getattr(function, "shows_not_finite", False)
    return _answered(rows, function, shows, then, dtype, n_outputs)


def _answered(
    X: NDArray[Any],
    function: Callable[..., NDArray[Any]],
    shows: bool,
    then: Callable[[NDArray[Any], NDArray[Any]], Any] | None,
    dtype: np.dtype[Any],
    n_outputs: int | None,
) -> NDArray[Any] | None:
    # Sums tell: of finite numbers one may be infinite too, and `map_rows` looks closer.
    if shows:
        with np.errstate(invalid="ignore", over="ignore"):
            found = function(X)
            finite = _sums_to_finite(found)
        if not finite:
            return None
    else:
        with np.errstate(all="ignore"):
            finite = _sums_to_finite(X)
        if not finite:
            return None
        found = function(X)
    n_rows = len(X)
    shape = (n_rows,) if n_outputs is None else (n_rows, n_outputs)
    if then is not None:
        out = np.empty(shape, dtype)
        then(found, out)
        return out
    if len(found) != n_rows:
        return None
    return np.asarray(found, dtype=dtype).reshape(shape)


def _sums_to_finite(values: NDArray[Any]) -> bool:
    return math.isfinite(values.item() if values.size == 1 else values.sum())
