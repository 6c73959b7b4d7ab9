"""Rows that a user holds out, behind those of the fit."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy.sparse import issparse

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.solvers.hold_out import HoldOut
from daskml_dist.training.survey import Survey

__all__ = ["FitRows", "held_out", "joined"]

Inputs = tuple[Any, Any, Any]


@dataclass(frozen=True, eq=False)
class FitRows:
    """Which of joined rows are those of the fit: the first.

    Parameters
    ----------
    n : int
        Rows, or blocks where `of_blocks`.
    of_blocks : bool
    target : ndarray or None
        Their targets, where these are in memory.
    weight : ndarray or None
    """

    n: int
    of_blocks: bool
    target: Any
    weight: Any

    def n_rows(self, survey: Survey) -> int:
        """How many they are."""
        return self._survey(survey).n_rows if self.of_blocks else self.n

    def label_weights(self, survey: Survey, classes: NDArray[Any]) -> NDArray[np.float64]:
        """Sum of the weights of each class among them; its rows where these have none.

        Raises
        ------
        InvalidDataError
            A class is among the rows held out alone.
        """
        if self.target is None:
            of_fit = self._survey(survey)
            sums, found = of_fit.label_weights(classes), of_fit.classes
        else:
            found, at = np.unique(np.asarray(self.target), return_inverse=True)
            sums = np.zeros(len(classes))
            weight = None if self.weight is None else np.asarray(self.weight, np.float64)
            sums[np.searchsorted(classes, found)] = np.bincount(at, weight, minlength=len(found))
        if len(strange := np.setdiff1d(classes, found)):
            raise InvalidDataError(
                f"y_val contains previously unseen labels: {strange.tolist()[:5]}. Hold out rows "
                "of the classes that y has."
            )
        return sums

    def _survey(self, survey: Survey) -> Survey:
        """Facts of their blocks, which end where they do."""
        infos, n_rows = sorted(survey.infos, key=lambda info: info.index), 0
        if self.of_blocks:
            return Survey(infos[: self.n])
        for number, info in enumerate(infos):
            if n_rows >= self.n:
                return Survey(infos[:number])
            n_rows += info.n_rows
        return Survey(infos)


def joined(given: Inputs, held: Inputs) -> tuple[Inputs, FitRows]:
    """X, y and weights with those held out behind them.

    Raises
    ------
    InvalidDataError
        The two cannot be put together.
    """
    _check_alike(given[0], held[0])
    _check_lengths(given, ("X", "y", "sample_weight"))
    _check_lengths(held, ("X_val", "y_val", "sample_weight_val"))
    if (given[2] is None) != (held[2] is None):
        given, held = _with_weights(given), _with_weights(held)
    n = _length(given[0])
    lazy = any(is_dask(a) for a in (*given, *held))
    of_fit = FitRows(
        int(given[0].npartitions) if n is None else n,
        n is None,
        None if lazy else given[1],
        None if lazy else given[2],
    )
    found: Any = tuple(
        None if a is None else _behind(a, b) for a, b in zip(given, held, strict=True)
    )
    return found, of_fit


def _check_alike(X: Any, X_val: Any) -> None:
    if issparse(X) or issparse(X_val):
        raise InvalidDataError("X is sparse, and trees need dense rows. Convert it: X.toarray().")
    frames = is_dataframe_like(X), is_dataframe_like(X_val)
    if frames[0] != frames[1]:
        raise InvalidDataError(
            f"X {'is' if frames[0] else 'is not'} a dataframe, and X_val "
            f"{'is' if frames[1] else 'is not'}. Give both in one form."
        )
    if frames[0] and list(X.columns) != list(X_val.columns):
        raise InvalidDataError(
            "The feature names should match those that were passed during fit: X has "
            f"{list(X.columns)[:8]}, X_val {list(X_val.columns)[:8]}. Order the columns alike: "
            "X_val[list(X.columns)]."
        )
    if not frames[0] and X.ndim == X_val.ndim == 2 and X.shape[1] != X_val.shape[1]:
        raise InvalidDataError(
            f"X_val has {X_val.shape[1]} features, but {X.shape[1]} are expected: X has as many. "
            "Give both the same columns."
        )


def _check_lengths(inputs: Inputs, names: tuple[str, str, str]) -> None:
    for what in (_length, _n_partitions):
        known = {
            name: n for name, a in zip(names, inputs, strict=True) if (n := what(a)) is not None
        }
        if len(set(known.values())) > 1:
            told = ", ".join(f"{name} has {n}" for name, n in known.items())
            unit = "rows" if what is _length else "partitions"
            raise InvalidDataError(
                f"Found input variables with inconsistent numbers of samples: {told} {unit}. Pass "
                "the same rows in each, in the same order."
            )


def _with_weights(inputs: Inputs) -> Inputs:
    """Weights of 1 where there are none."""
    X, y, weight = inputs
    if weight is not None:
        return inputs
    if is_dask(y):
        ones = y.map_partitions(_ones_like) if is_series_like(y) else da.ones_like(y, dtype=float)
        return X, y, ones
    return X, y, np.ones(len(y))


def _ones_like(y: Any) -> Any:
    return y.astype(object).map(lambda _: 1.0).astype(float)


def _length(X: Any) -> int | None:
    """Rows, where they are known."""
    if X is None or np.isscalar(X):
        return None
    if is_dask(X) and (is_dataframe_like(X) or is_series_like(X) or np.isnan(X.shape[0])):
        return None
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _n_partitions(X: Any) -> int | None:
    """Partitions of what has no known length."""
    return int(X.npartitions) if is_dask(X) and _length(X) is None else None


def _behind(a: Any, b: Any) -> Any:
    """Rows of `b` behind those of `a`."""
    if np.isscalar(a) or np.isscalar(b):
        raise InvalidDataError(
            "With X_val, weights are to be given a row: a number for all rows has no length."
        )
    if is_dask(a) or is_dask(b):
        if is_dataframe_like(a) or is_series_like(a):
            return _frames_behind(a, b)
        parts = [v if is_dask(v) else da.from_array(np.asarray(v)) for v in (a, b)]
        if parts[0].ndim == 2:
            parts = [v.rechunk({1: -1}) for v in parts]
        return da.concatenate(parts)
    if hasattr(a, "iloc") and hasattr(b, "iloc"):
        import pandas as pd

        return pd.concat([a, b], ignore_index=True)
    return np.concatenate([np.asarray(a), np.asarray(b)])


def _frames_behind(a: Any, b: Any) -> Any:
    import dask.dataframe as dd
    import pandas as pd

    parts = []
    for part in (a, b):
        if not is_dask(part):
            part = part if hasattr(part, "iloc") else pd.Series(np.asarray(part))
            part = dd.from_pandas(part, npartitions=1, sort=False)
        parts.append(part)
    return dd.concat(parts)


def held_out(survey: Survey, classes: NDArray[Any] | None, share: float, seed: int) -> HoldOut:
    """Rows to hold out, of each class by its share.

    Parameters
    ----------
    share : float
        Of all rows; from 1 on, their number.

    Raises
    ------
    InvalidDataError
        Too few would be left.
    """
    infos = sorted(survey.infos, key=lambda info: info.index)
    counts = np.zeros((len(infos), 1 if classes is None else len(classes)), np.int64)
    for of_block, info in zip(counts, infos, strict=True):
        if classes is None:
            of_block[0] = info.n_rows
        elif info.labels is not None and info.label_rows is not None:
            of_block[np.searchsorted(classes, info.labels)] = info.label_rows
    n_rows = counts.sum(axis=1)
    first, n = n_rows.cumsum() - n_rows, int(n_rows.sum())
    held = int(share) if share >= 1 else ceil(share * n)
    if held > n - counts.shape[1]:
        raise InvalidDataError(
            f"Early stopping leaves {max(n - held, 0)} rows to train on and {held} to validate "
            "with. Change validation_fraction, or set early_stopping=False."
        )
    return HoldOut(first[n_rows > 0], counts[n_rows > 0], held, seed)
