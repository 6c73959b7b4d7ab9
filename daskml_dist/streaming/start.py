"""Start of a stream: a fit to its first rows is planned, and later rows are learned by this plan.

The fit itself is never run. The stream uses its model, its update rule and its initial parameters.
So a stream has the same defaults, checks and arithmetic as a fit, and there is only one place that
chooses the batch size, the learning rate and whether steps are sparse. A checkpoint holds facts of
the first rows (`describe_first_rows`), from which a resumed stream makes rows of zeros
(`SavedStream.rows`) that lead to the same plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daskml_dist.backends.devices import get_backend
from daskml_dist.data.blocks import check_finite
from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.streaming.checkpoints import SCALES_OF_FIRST_ROWS
from daskml_dist.streaming.rows import CallRowsMaker
from daskml_dist.streaming.steps import InProcessSteps
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary
from daskml_dist.training.job import INLINE, FitJob
from daskml_dist.training.spec import FitSpec, Settings

if TYPE_CHECKING:
    from daskml_dist.streaming.checkpoints import SavedStream
    from daskml_dist.streaming.cluster.calls import StreamLayout
    from daskml_dist.streaming.drift import ProgressiveLoss


@dataclass
class StartedStream:
    """A stream that was planned from its first rows.

    Parameters
    ----------
    fit : FitSpec
    rows : DatasetInfo
        Facts of the first rows.
    make_rows : CallRowsMaker
        Makes the model's rows of each call.
    steps : InProcessSteps
        Steps that learn the rows: in this process, or by lanes on a cluster.
    n_rows_seen : float
        Rows that the estimator was trained on before the stream.
    likeness : dict
        Facts of the first rows, from which the stream can be planned again.
    open_cluster_steps : callable, optional
        Function that makes steps by lanes on a cluster, from a client, a layout, the fit and the
        steps of this process; by default :class:`ClusterSteps`.
    """

    fit: FitSpec
    rows: DatasetInfo
    make_rows: CallRowsMaker
    steps: InProcessSteps
    n_rows_seen: float
    likeness: dict[str, Any]
    # A function, not a class: the class's module imports `distributed`, which steps in this process
    # do not need.
    open_cluster_steps: Callable[..., Any] | None = field(default=None, kw_only=True)

    def describe(self) -> dict[str, Any]:
        """Return the facts from which the stream starts again, as values that JSON can hold."""
        return self.likeness

    def with_tables(
        self, hash_table: Callable[[Any], Any], field_info: dict[str, Any]
    ) -> StartedStream:
        """Return the stream for calls with tables; `field_info` of their fields are saved too."""
        make: Any = TableCallRowsMaker(hash_table, self.make_rows)
        return dataclasses.replace(
            self, make_rows=make, likeness=self.likeness | {"fields": field_info}
        )

    def n_seen(self, progress: ProgressiveLoss) -> float:
        """Return the number of rows that the state was trained on, including an earlier fit."""
        # Rows that are counted but whose call is not yet in the fetched state are subtracted.
        return self.n_rows_seen + progress.n_rows - self.steps.n_behind

    def open_lanes(self, client: Any, layout: StreamLayout) -> Any:
        """Return steps by lanes on a cluster, which replace those of this process."""
        from daskml_dist.streaming.cluster.steps import ClusterSteps

        open_steps = self.open_cluster_steps or ClusterSteps
        return open_steps(client, layout, self.fit, self.steps)


@dataclass(frozen=True, eq=False)
class TableCallRowsMaker:
    """Function from the tables of a stream's calls to rows in the model's format.

    Parameters
    ----------
    hash_table : callable
        Function from a table to rows of hashed ids.
    make_rows : CallRowsMaker
        Function from such rows to the model's rows.
    """

    hash_table: Callable[[Any], Any]
    make_rows: Callable[..., tuple[BatchRows, Any]]

    def __call__(self, X: Any, y: Any, sample_weight: Any) -> tuple[BatchRows, Any]:
        """Return the rows of a call in the model's format, and as a block."""
        return self.make_rows(self.hash_table(X), y, sample_weight)


def check_stream_settings(estimator: Any) -> Settings:
    """Return an estimator's settings for a stream in this process; raise if some do not fit."""
    estimator._check_one_pass()
    if isinstance(estimator._params()["class_weight"], str):
        raise InvalidParameterError(
            'class_weight="balanced" needs all rows, but a stream has no end. Give the weights '
            "by label: class_weight={0: 1.0, 1: 5.0}."
        )
    # One lane, for which all policies are the same.
    settings: Settings = estimator._check_settings(estimator._stream_policy)
    run = settings.run
    if run.device == "gpu":
        raise InvalidParameterError(
            'A stream learns on the CPU of the calling process. Use device="cpu" or "auto".'
        )
    run = dataclasses.replace(
        run, device="cpu", n_lanes=1, n_servers=1, shard="rows", compression=None,
        compute_dtype=None,
    )  # fmt: skip
    return dataclasses.replace(
        settings, run=run, max_iter=1, tol=None, shuffle=False, calibrates=False, pipeline=None
    )


def plan_stream(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    classes: Any,
    prepare_fit: Callable[[FitSpec], FitSpec] | None = None,
    first_rows: int | None = None,
) -> StartedStream:
    """Plan a fit to the first rows of a stream; nothing is learned yet.

    `prepare_fit` and `first_rows` are for a resumed stream: a function that gives the saved state
    to the plan, and the rows of the stream's first step. A new stream computes its start, such as
    the first centroids, from the rows instead.
    """
    settings = check_stream_settings(estimator)
    # A fitted estimator: the stream continues from its fit.
    continues = hasattr(estimator, "_state")
    if continues:
        settings = estimator._settings_of_last_fit(settings)
    if estimator._classification:
        classes = estimator._all_classes(classes, not hasattr(estimator, "classes_"))
    collection = _check_in_memory(
        estimator._make_collection(X, y, sample_weight, reset=not continues)
    )
    batch_rows = None if estimator._whole_calls else get_batch_rows(settings)
    with FitJob(collection, INLINE, settings.run) as job:
        # Weights are part of the plan only if it computes a start from the rows.
        weighted = estimator._whole_calls and sample_weight is not None
        rows = estimator._dataset_info(job, classes, settings.class_weight, weighted)
        job.rows = rows
        # The rows of a step, not of the call: whether steps are sparse depends on how many
        # parameters the rows of one step touch.
        max_rows = first_rows or batch_rows or rows.summary.n_rows
        # None is a full batch: the solvers of such estimators use all rows of a call in one step.
        size = None if estimator._whole_calls else max_rows
        sized = dataclasses.replace(settings, batch_size=size)
        model, initial = estimator._model_to_train(rows, sized, continues)
        if not model.takes_missing:
            job.engine.map_kept_blocks(check_finite)
        fit: FitSpec = estimator._plan_fit(job, sized, model, initial)
        fit = estimator._prepare_fit(job, fit) if prepare_fit is None else fit
    names = _name_columns(estimator, collection.feature_names)
    likeness = describe_first_rows(fit, rows.summary, settings.auto_rate, names) | {
        "batch_rows": max_rows
    }
    fit = fit if prepare_fit is None else prepare_fit(fit)
    make = CallRowsMaker(
        fit, rows.summary, collection.block_maker, batch_rows, get_backend("cpu"),
        type(estimator).__name__,
    )  # fmt: skip
    steps = InProcessSteps(fit, batch_rows, estimator._rule_of_rows)
    return StartedStream(
        fit, rows, make, steps, float(estimator.t_) if continues else 0.0, likeness
    )


def _check_in_memory(collection: Collection) -> Collection:
    """Return a collection that is in memory; raise for a Dask collection."""
    if collection.kind != "memory":
        raise InvalidParameterError(
            "A stream needs rows in memory, but these are a Dask collection. Compute each batch "
            "first: X, y = dask.compute(X, y)."
        )
    return collection


def get_batch_rows(settings: Settings) -> int | None:
    """Return the most rows of a step, if the user set them."""
    return settings.batch_size if isinstance(settings.batch_size, int) else None


def describe_first_rows(
    fit: FitSpec, summary: DataSummary, auto_rate: bool, names: dict[str, str] | None
) -> dict[str, Any]:
    """Return the facts of a stream's first rows, from which it can be started again.

    `names` holds the dtype of each column by its name. The facts are plain values for JSON.
    """
    classes = fit.rows.classes
    nonzeros = summary.nonzeros_per_row
    origin: Any = fit.steps.model.origin()
    # An automatic rate was searched on the first rows. It is kept, since rows of zeros give
    # another.
    rates = None
    if auto_rate:
        group_rates = [list(group.rates) for group in fit.steps.rule.groups if group.rates]
        rates = group_rates[0] if group_rates else [fit.steps.rule.schedule(1, 0.0)]
    targets: list[Any] | None = None
    if classes is None and any(info.targets is not None for info in summary.infos):
        # A linear model subtracts a shift, its origin, from the targets: rows of zeros with this
        # target in each row lead to the same shift.
        shift = origin if isinstance(origin, list) and origin else summary.targets.mean.tolist()
        targets = shift if summary.n_targets is not None else shift[:1]
    return {
        "dtype": summary.rows_dtype,
        "row_shape": list(summary.row_shape),
        "nonzeros": None if nonzeros is None else round(nonzeros),
        "classes": None if classes is None else classes.tolist(),
        "labels": None if classes is None else classes.dtype.str,
        "targets": targets,
        "n_targets": summary.n_targets,
        "rates": rates,
        **{name: getattr(fit.steps.model, name, None) for name in SCALES_OF_FIRST_ROWS},
        "steps_per_pass": fit.steps.rule.steps_per_pass,
        "names": names,
    }


def plan_resumed_stream(
    estimator: Any,
    saved: SavedStream,
    path: Any,
    classes: Any,
    prepare_fit: Callable[[FitSpec], FitSpec] | None = None,
    n_rows: int = 2,
) -> StartedStream:
    """Plan the fit of a saved stream; `prepare_fit` changes it before it gets the saved state.

    `n_rows` is the least number of rows from which such a fit can be planned.
    """
    X, y = saved.rows(n_rows)

    def make_ready(fit: FitSpec) -> FitSpec:
        return saved.fit(fit if prepare_fit is None else prepare_fit(fit), path)

    stream = saved.stream
    started = plan_stream(
        estimator, X, y, None, classes, make_ready, stream["likeness"]["batch_rows"]
    )
    started.steps.note_resumed()
    # The facts of the true first rows, not of the rows of zeros: the next checkpoint holds them.
    started.n_rows_seen, started.likeness = stream["seen"], stream["likeness"]
    return started


def _name_columns(estimator: Any, names: Any) -> dict[str, str] | None:
    """Return the dtype of each named column, '' if unknown; None if columns have no names."""
    if names is None:
        return None
    kinds = getattr(estimator, "_feature_dtypes", None) or []
    has_kinds = len(kinds) == len(names)
    return {str(n): kinds[i] if has_kinds else "" for i, n in enumerate(names.tolist())}
