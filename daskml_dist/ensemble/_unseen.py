"""Out-of-bag answers of bagged members: to the rows that each has not drawn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.data.conversion import as_column
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.ensemble._draws import weights_of
from daskml_dist.inference.share import shared

__all__ = ["oob_scores", "unseen_answers"]


def unseen_answers(bagged: Any, fitted: list[Any], n_classes: int | None) -> list[Delayed]:
    """Of each block, sums of what members say of rows they have not drawn, and who says it."""
    once = shared(partial(_given, fitted, bagged.features, bagged.draws, n_classes))
    ask = delayed(_asked, pure=False)
    each = zip(bagged.rows.parts, bagged.starts, strict=True)
    return [ask(once, int(start), X, weight) for (X, _, weight), start in each]


def _given(*values: Any) -> tuple[Any, ...]:
    return values


def _asked(once: Any, first: int, X: Any, weight: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    fitted, each_features, draws, n_classes = once()
    n = X.shape[0]
    rows = X if sparse.issparse(X) else np.asarray(X)
    sums = np.zeros(n if n_classes is None else (n, n_classes))
    n_members = np.zeros(n, np.int64)
    weight = weights_of(n, weight)
    for member, (one, features) in enumerate(zip(fitted, each_features, strict=True)):
        at = np.flatnonzero(draws.of(member, first, n, weight) == 0)
        if not len(at):
            continue
        some = rows[at][:, features]
        n_members[at] += 1
        if n_classes is None:
            sums[at] += one.predict(some)
        elif hasattr(one, "predict_proba"):
            sums[np.ix_(at, np.asarray(one.classes_, np.int64))] += one.predict_proba(some)
        else:
            sums[at, np.asarray(one.predict(some), np.int64)] += 1
    return sums, n_members


def oob_scores(bagged: Any, answers: list[Delayed], n_classes: int | None) -> tuple[float, int]:
    """Accuracy, or R^2, of the answers; and how many rows nobody answers."""
    parts = [(one, y, None) for one, (_, y, _) in zip(answers, bagged.rows.parts, strict=True)]
    rows = replace(bagged.rows, parts=parts, inputs=(None, None, None))  # answers are no rows
    sums = reduce_parts(rows, partial(_sums, n_classes), _added)
    if n_classes is not None:
        n, without, hits = sums
        return float(hits / n), int(without)
    spread, (without, errors) = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return float((1 - errors / spread.squares).item()), int(without)


def _sums(n_classes: int | None, index: int, answers: Any, y: Any, weight: Any) -> Any:
    found, n_members = answers
    y = as_column(y, name="y", index=index)
    if not len(y):
        return None
    without = (n_members == 0).sum()
    if n_classes is not None:
        return np.array([len(y), without, (found.argmax(axis=1) == y).sum()])
    predicted = found / np.maximum(n_members, 1)
    values = y.astype(np.float64)
    return WeightedMoments.of(values, np.ones(len(y))), np.array(
        [without, ((values - predicted) ** 2).sum()]
    )


def _added(parts: list[Any]) -> Any:
    filled = [part for part in parts if part is not None]
    if not filled:
        return None
    if not isinstance(filled[0], tuple):
        return np.sum(filled, axis=0)
    spread, sums = filled[0]
    for other, more in filled[1:]:
        spread, sums = spread + other, sums + more
    return spread, sums
