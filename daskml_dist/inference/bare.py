"""Bare functions: a fitted model's answers to few plain rows, asked for once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.plain_rows import RowsPlaceholder, convert_few_rows
from daskml_dist.inference.bare_scalers import bare_scaler
from daskml_dist.inference.each_row import lane_of_each_row, rows_are_apart
from daskml_dist.inference.few_rows import AppliedToRows, Lane

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

__all__ = ["Bare", "bare_functions"]


@dataclass(frozen=True)
class Bare:
    """Functions from few plain rows of one dtype to a method's answers.

    Each returns None itself for rows that are not few, plain and finite.
    """

    few: Lane
    each: Lane | None
    """Those of which each is to the bit the one that its row gets alone; None where only a call a
    row tells."""
    apart: bool
    """Whether both are the same, and the method's own answers are so too, to any rows."""


def bare_functions(model: Any, method: str, dtype: np.dtype[Any]) -> Bare | None:
    """Functions from few plain rows to a method's answers."""
    from sklearn.pipeline import Pipeline  # which every worker would load otherwise

    if type(model) is Pipeline:
        return _of_pipeline(model, method, dtype)
    if method == "transform" and (scaled := bare_scaler(model, dtype)) is not None:
        lane = _after([(model, scaled)], None)
        return Bare(lane, lane, True)
    if not hasattr(model, "_map_rows"):
        return None
    try:
        asked = getattr(model, method)(RowsPlaceholder(dtype))
    except (AttributeError, TypeError, ValueError):
        return None  # it looks into the rows itself
    if not isinstance(asked, AppliedToRows):
        return None
    few = asked.few(dtype)
    if rows_are_apart(asked):
        return Bare(few, few, True)
    return Bare(few, lane_of_each_row(asked, dtype), False)


def _of_pipeline(model: Pipeline, method: str, dtype: np.dtype[Any]) -> Bare | None:
    last = bare_functions(model.steps[-1][1], method, dtype)
    before = [step for _, step in model.steps[:-1] if step not in (None, "passthrough")]
    scalers = [(step, bare_scaler(step, dtype)) for step in before]
    if last is None or any(scaled is None for _, scaled in scalers):
        return None
    if not scalers:
        return last
    each = None if last.each is None else _after(scalers, last.each)
    return Bare(_after(scalers, last.few), each, last.apart)


def _after(scalers: list[tuple[Any, Any]], last: Lane | None) -> Lane:
    """The answers of a model, where there is one, to rows that are scaled first."""
    row_shape = (int(scalers[0][0].n_features_in_),)
    steps = [scaled for _, scaled in scalers]

    def answer(X: NDArray[Any]) -> NDArray[Any] | None:
        # What scaling would hide (clipped infinity) is seen before it.
        rows = convert_few_rows(X, row_shape)
        if rows is None or not np.isfinite(rows).all():
            return None
        for scaled in steps:
            rows = scaled(rows)
        return rows if last is None else last(rows)

    return answer
