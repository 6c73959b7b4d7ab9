"""Start of a stream: the plan of a fit to its first rows, which all others go by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daskml_dist.backends import get_backend
from daskml_dist.errors import InvalidParameterError
from daskml_dist.policies import get_policy
from daskml_dist.streaming.likeness import likeness_of
from daskml_dist.streaming.rows import RowsOfCalls
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.rows import Rows
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec

__all__ = ["Started", "check_streams", "start"]


@dataclass
class Started:
    """A stream that has seen its first rows.

    Parameters
    ----------
    fit : FitSpec
    rows : Rows
        Facts of the first rows.
    make : RowsOfCalls
    steps : Steps
    seen : float
        Rows that the estimator was trained on before.
    likeness : dict
        Facts of the first rows, to start again from.
    """

    fit: FitSpec
    rows: Rows
    make: RowsOfCalls
    steps: Steps
    seen: float
    likeness: dict[str, Any]


def check_streams(estimator: Any) -> Settings:
    """Settings of an estimator for a stream in this process.

    Raises
    ------
    InvalidParameterError
        Parameters with no meaning in a stream, naming the remedy.
    """
    estimator._check_one_pass()
    if isinstance(estimator._params()["class_weight"], str):
        raise InvalidParameterError(
            'class_weight="balanced" counts all rows first, and a stream has no end. Name the '
            "weights, by label: class_weight={0: 1.0, 1: 5.0}."
        )
    settings: Settings = estimator._settings("allreduce")
    run = settings.run
    if run.device == "gpu":
        raise InvalidParameterError(
            'A stream learns on the CPU of the calling process. Use device="cpu" or "auto".'
        )
    # One lane, in which all policies are the same.
    run = dataclasses.replace(
        run, device="cpu", n_lanes=1, n_servers=1, shard="rows", compression=None,
        compute_dtype=None,
    )  # fmt: skip
    return dataclasses.replace(
        settings, policy=get_policy("allreduce"), run=run, max_iter=1, tol=None, shuffle=False,
        calibrates=False,
    )  # fmt: skip


def start(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    classes: Any,
    ready: Callable[[FitSpec], FitSpec] | None = None,
    first_rows: int | None = None,
) -> Started:
    """Plan a fit to the first rows of a stream; nothing is learned yet.

    `ready` puts the plan where a stream goes on, whose first step had `first_rows`.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        As ``partial_fit``.
    """
    settings = check_streams(estimator)
    goes_on = hasattr(estimator, "_state")
    if goes_on:
        settings = estimator._as_before(settings)
    if estimator._classification:
        classes = estimator._all_classes(classes, not hasattr(estimator, "classes_"))
    collection = estimator._collection(X, y, sample_weight, reset=not goes_on)
    if collection.kind != "memory":
        raise InvalidParameterError(
            "A stream learns rows that are in the memory of this process, and these are a Dask "
            "collection. Compute each batch first: X, y = dask.compute(X, y)."
        )
    batch_rows = settings.batch_size if isinstance(settings.batch_size, int) else None
    with InProcessEngine(collection) as engine:
        rows = estimator._rows(engine, settings.run, classes, settings.class_weight, False)
        # Whether a step touches few of the parameters depends on its rows.
        most = first_rows or (rows.survey.n_rows if batch_rows is None else batch_rows)
        settings = dataclasses.replace(settings, batch_size=most)
        initial = estimator._initial(rows, settings) if goes_on else None
        model = estimator._model(rows, estimator._last_model if initial is not None else None)
        fit: FitSpec = estimator._plan(settings, model, rows, initial, engine)
    names = collection.feature_names
    likeness = likeness_of(fit, rows.survey, settings.auto_rate, names) | {"batch_rows": most}
    fit = fit if ready is None else ready(fit)
    make = RowsOfCalls(
        fit, collection.block_maker, rows.survey.row_shape, rows.survey.any_sparse,
        get_backend("cpu"), type(estimator).__name__,
    )  # fmt: skip
    seen = float(estimator.t_) if goes_on else 0.0
    return Started(fit, rows, make, Steps(fit, batch_rows), seen, likeness)
