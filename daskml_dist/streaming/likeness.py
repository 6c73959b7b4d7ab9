"""Likeness of a stream's first rows: what it takes to start from such rows again."""

from __future__ import annotations

from typing import Any

from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.spec import FitSpec

__all__ = ["likeness_of"]


def likeness_of(
    fit: FitSpec, survey: DataSummary, auto_rate: bool, names: dict[str, str] | None
) -> dict[str, Any]:
    """Facts of the first rows from which a stream starts the same way again.

    `names` are of the columns, with the dtype of each.
    """
    classes = fit.rows.classes
    nonzeros = survey.nonzeros_per_row
    origin: Any = fit.steps.model.origin()
    rates = None
    if auto_rate:
        own = [list(group.rates) for group in fit.steps.rule.groups if group.rates]
        rates = own[0] if own else [fit.steps.rule.schedule(1, 0.0)]
    targets: list[Any] | None = None
    if classes is None and any(info.targets is not None for info in survey.infos):
        one = origin if isinstance(origin, list) and origin else survey.target_means.tolist()
        targets = one if survey.n_targets is not None else one[:1]
    return {
        "dtype": survey.rows_dtype,
        "row_shape": list(survey.row_shape),
        "nonzeros": None if nonzeros is None else round(nonzeros),
        "classes": None if classes is None else classes.tolist(),
        "labels": None if classes is None else classes.dtype.str,
        "targets": targets,
        "n_targets": survey.n_targets,
        "rates": rates,
        "row_size": getattr(fit.steps.model, "row_size", None),
        "steps_per_pass": fit.steps.rule.steps_per_pass,
        "names": names,
    }
