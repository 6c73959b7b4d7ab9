"""Start of a stream: the plan of a fit to its first rows, which all others go by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from daskml_dist.backends import get_backend
from daskml_dist.data.blocks import check_finite
from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.policies import get_policy
from daskml_dist.streaming.likeness import likeness_of
from daskml_dist.streaming.rows import RowsOfCalls
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import Engine
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec

if TYPE_CHECKING:
    from daskml_dist.streaming.cluster.plan import StreamLayout
    from daskml_dist.streaming.progress import ProgressiveLoss
    from daskml_dist.streaming.saved import Saved

__all__ = ["Started", "batch_rows_of", "check_streams", "resume", "start"]


@dataclass
class Started:
    """A stream that has seen its first rows.

    Parameters
    ----------
    fit : FitSpec
    rows : DatasetInfo
        Facts of the first rows.
    make : RowsOfCalls
    steps : Steps
    seen : float
        Rows that the estimator was trained on before.
    likeness : dict
        Facts of the first rows, to start again from.
    """

    fit: FitSpec
    rows: DatasetInfo
    make: RowsOfCalls
    steps: Steps
    seen: float
    likeness: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Facts from which the stream starts again, as JSON can hold them."""
        return self.likeness

    def n_seen(self, progress: ProgressiveLoss) -> float:
        """Rows that the state was trained on, of a fit before too."""
        return self.seen + progress.n_rows - self.steps.n_behind

    def over_lanes(self, client: Any, plan: StreamLayout) -> Any:
        """Steps of lanes on a cluster, which take the place of those of this process."""
        from daskml_dist.streaming.cluster.steps import ClusterSteps

        return ClusterSteps(client, plan, self.fit, self.steps)


def check_streams(estimator: Any) -> Settings:
    """Settings of an estimator for a stream in this process."""
    estimator._check_one_pass()
    if isinstance(estimator._params()["class_weight"], str):
        raise InvalidParameterError(
            'class_weight="balanced" counts all rows first, and a stream has no end. Name the '
            "weights, by label: class_weight={0: 1.0, 1: 5.0}."
        )
    settings: Settings = estimator._check_settings("allreduce")
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
        calibrates=False, pipeline=None,
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

    `ready` puts the plan where a stream goes on, whose first step had `first_rows`; without it the
    plan begins with what else the estimator finds in the rows.
    """
    settings = check_streams(estimator)
    goes_on = hasattr(estimator, "_state")
    if goes_on:
        settings = estimator._settings_of_last_fit(settings)
    if estimator._classification:
        classes = estimator._all_classes(classes, not hasattr(estimator, "classes_"))
    collection = _in_memory(estimator._make_collection(X, y, sample_weight, reset=not goes_on))
    batch_rows = None if estimator._whole_calls else batch_rows_of(settings)
    with InProcessEngine(collection) as engine:
        # Elsewhere weights are no part of the plan.
        weighted = estimator._whole_calls and sample_weight is not None
        rows = estimator._dataset_info(
            engine, settings.run, classes, settings.class_weight, weighted
        )
        # Whether a step touches few of the parameters depends on its rows.
        most = first_rows or batch_rows or rows.survey.n_rows
        fit = _planned(estimator, settings, rows, engine, most, goes_on)
        fit = estimator._ready(engine, fit) if ready is None else fit
    names = _names(estimator, collection.feature_names)
    likeness = likeness_of(fit, rows.survey, settings.auto_rate, names) | {"batch_rows": most}
    fit = fit if ready is None else ready(fit)
    make = RowsOfCalls(
        fit, rows.survey, collection.block_maker, batch_rows, get_backend("cpu"),
        type(estimator).__name__,
    )  # fmt: skip
    steps = Steps(fit, batch_rows, estimator._rule_of_rows)
    return Started(fit, rows, make, steps, float(estimator.t_) if goes_on else 0.0, likeness)


def _in_memory(collection: Collection) -> Collection:
    if collection.kind != "memory":
        raise InvalidParameterError(
            "A stream learns rows that are in the memory of this process, and these are a Dask "
            "collection. Compute each batch first: X, y = dask.compute(X, y)."
        )
    return collection


def batch_rows_of(settings: Settings) -> int | None:
    """Rows of a step at most, where the user says."""
    return settings.batch_size if isinstance(settings.batch_size, int) else None


def _planned(
    estimator: Any, settings: Settings, rows: DatasetInfo, engine: Engine, most: int, goes_on: bool
) -> FitSpec:
    """The fit to the first rows, by steps of `most` at most where calls are not taken whole."""
    settings = dataclasses.replace(settings, batch_size=None if estimator._whole_calls else most)
    initial = estimator._last_state(rows, settings) if goes_on else None
    model = estimator._model(rows, estimator._last_model if initial is not None else None)
    if not model.takes_missing:
        engine.ask(check_finite)
    fit: FitSpec = estimator._plan_fit(settings, model, rows, initial, engine)
    return fit


def resume(
    estimator: Any,
    saved: Saved,
    path: Any,
    classes: Any,
    ready: Callable[[FitSpec], FitSpec] | None = None,
    n_rows: int = 2,
) -> Started:
    """Plan the fit that a stream was saved of; `ready` comes before its state does.

    `n_rows` are as many as such a fit needs.
    """
    X, y = saved.rows(n_rows)
    state = partial(saved.fit, path=path)

    def both(fit: FitSpec) -> FitSpec:
        return state(fit if ready is None else ready(fit))

    stream = saved.stream
    started = start(estimator, X, y, None, classes, both, stream["likeness"]["batch_rows"])
    started.steps.resumed()
    started.seen, started.likeness = stream["seen"], stream["likeness"]
    return started


def _names(estimator: Any, names: Any) -> dict[str, str] | None:
    """Names and dtypes of columns, where they have any."""
    if names is None:
        return None
    kinds = getattr(estimator, "_feature_dtypes", None) or []
    same = len(kinds) == len(names)
    return {str(n): kinds[i] if same else "" for i, n in enumerate(names.tolist())}
