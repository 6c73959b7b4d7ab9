"""`cv_results_`: the scores of all candidates, as scikit-learn lays them out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.model_selection._validation import Fitted

__all__ = ["table_of"]


def table_of(
    candidates: Sequence[Mapping[str, Any]],
    fits: Sequence[Sequence[Fitted]],
    *,
    train_score: bool,
    more: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Lay the scores of candidates out as scikit-learn's ``cv_results_``."""
    table: dict[str, Any] = {key: np.asarray(values) for key, values in (more or {}).items()}
    for name in ("fit_time", "score_time"):
        _store(table, name, np.array([[getattr(fit, name) for fit in row] for row in fits]))
    for name in sorted({name for params in candidates for name in params}):
        table[f"param_{name}"] = _column([params.get(name, _ABSENT) for params in candidates])
    table["params"] = [dict(params) for params in candidates]
    for name in fits[0][0].test:
        scores = np.array([[fit.test[name] for fit in row] for row in fits])
        _store(table, f"test_{name}", scores, splits=True)
        means = table[f"mean_test_{name}"]
        table[f"rank_test_{name}"] = _ranks(means)
        if not np.isfinite(means).all():
            warnings.warn(
                f"One or more of the test scores are non-finite: {means}",
                stacklevel=user_stack_level(),
            )
        if train_score:
            trained = np.array([[fit.train[name] for fit in row] for row in fits])
            _store(table, f"train_{name}", trained, splits=True)
    return table


_ABSENT = object()


def _store(table: dict[str, Any], name: str, values: NDArray[Any], splits: bool = False) -> None:
    if splits:
        for i, column in enumerate(values.T):
            table[f"split{i}_{name}"] = column
    table[f"mean_{name}"], table[f"std_{name}"] = values.mean(axis=1), values.std(axis=1)


def _ranks(means: NDArray[np.float64]) -> NDArray[np.int32]:
    """Rank of each mean, 1 the best; what is NaN comes last."""
    if np.isnan(means).all():
        return np.ones(len(means), np.int32)
    lowest = np.nanmin(means) - 1
    found = rankdata(-np.where(np.isnan(means), lowest, means), method="min")
    return np.asarray(found, np.int32)


def _column(values: list[Any]) -> Any:
    """A parameter's values as a masked array, of their dtype where they have one."""
    mask = np.array([value is _ABSENT for value in values])
    given = [value for value in values if value is not _ABSENT]
    kind: Any = object
    if all(isinstance(v, int | float | np.number) for v in given):
        kind = np.result_type(*map(np.asarray, given)) if given else object
        kind = object if any(isinstance(v, bool) for v in given) else kind
    column: Any = np.ma.array(np.empty(len(values), dtype=kind))
    for i, value in enumerate(values):
        if value is not _ABSENT:
            column[i] = value
    column.mask = mask if mask.any() else np.zeros(len(values), bool)
    return column
