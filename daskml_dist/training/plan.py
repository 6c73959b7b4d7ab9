"""From settings and a survey of the blocks to the `FitSpec`, and from lanes to its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from daskml_dist.data.batches import LaneSpec, held_out_rows, pass_steps
from daskml_dist.data.scales import Scales
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.losses import Loss
from daskml_dist.models.base import StepModel
from daskml_dist.models.columned import ColumnModel
from daskml_dist.models.staged import StagedModel
from daskml_dist.optimizers import NAG, GroupOptions, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Pipeline, Policy
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.outer import OuterStep
from daskml_dist.ps.rule import UpdateRule, make_groups
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, Schedule
from daskml_dist.training.rows import Rows
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.spec import FitSpec, RunSpec, Streaming, training_rows
from daskml_dist.training.survey import Survey
from daskml_dist.training.work import StepWork

__all__ = ["Settings", "check_columns", "make_fit", "make_target_shift"]

#: Steps of a pass at most, with automatic batches; and where rows are streamed.
_MANY_STEPS, _STREAMED_STEPS = 4096, 2048
#: Distance of the quartiles of a normal distribution, in standard deviations.
_QUARTILES = 1.349
#: Rows of an automatic batch at most; a sparse one is a message and little work.
_DENSE_ROWS, _SPARSE_ROWS = 256, 512
#: Features from which a sparse batch may push and pull only what it touches.
_MANY_FEATURES = 2048
#: ...if it touches at most this share of them.
_FEW_TOUCHED = 0.25


@dataclass(frozen=True)
class Settings:
    """Settings that the user asked for, checked; nothing in them depends on the data."""

    penalty: Penalty
    optimizer: Optimizer
    schedule: Schedule
    policy: Policy
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    shuffle: bool
    batch_size: int | Literal["auto"] | None
    validation_fraction: float
    average: int | None
    class_weight: Any
    seed: int
    run: RunSettings
    auto_rate: bool = False
    clip: float | None = None
    micro_batch: int | None = None
    groups: Mapping[str, GroupOptions] | None = None
    dtype: str | None = None
    pipeline: Pipeline | None = None

    @property
    def slot_names(self) -> set[str]:
        """Names of the optimizers' state."""
        own = [o.optimizer for o in (self.groups or {}).values() if o.optimizer is not None]
        return {name for optimizer in (self.optimizer, *own) for name in optimizer.slot_names}

    def dtype_of(self, survey: Survey) -> str:
        """The dtype of the parameters of a fit to some rows."""
        return "float32" if self.run.compute_dtype else self.dtype or survey.dtype


def make_fit(
    settings: Settings,
    model: StepModel,
    rows: Rows,
    lanes: list[LaneSpec],
    initial: ShardState | None,
    streaming: Streaming | None = None,
    scales: Scales | None = None,
    on_one_host: bool = False,
    columns: tuple[int, ...] | None = None,
) -> FitSpec:
    """Put the maths of a fit together.

    Parameters
    ----------
    settings : Settings
    model : StepModel
    rows : Rows
    lanes : list of LaneSpec
    initial : ShardState or None
        Where to go on from.
    streaming : Streaming or None
        How to read blocks that are not kept.
    scales : Scales or None
        Of the features, where the optimizer uses them.
    on_one_host : bool
        Whether the lanes' workers share memory.
    columns : tuple of int, or None
        First column of each lane, and their number, where lanes hold columns.
    """
    survey, run, fraction = rows.survey, settings.run, settings.validation_fraction
    _check_held_out(lanes, fraction)
    single_rows = _steps_row_by_row(settings, survey, model)
    most = _SPARSE_ROWS if _touches_few(survey, _SPARSE_ROWS) else _DENSE_ROWS
    batch_size = _batch_size(settings.batch_size, lanes, streaming, most)
    if single_rows and not settings.policy.average_every:
        batch_size = _rows_at_a_time(lanes)
    steps = pass_steps(lanes, batch_size, fraction)
    dtype = settings.dtype_of(survey)
    # Streamed full batches are never in memory as a whole, so nobody knows their columns.
    in_memory = not (streaming and steps == 1)
    few = model.linear is not None and _touches_few(survey, batch_size) and in_memory
    policy = _policy(settings, len(lanes), on_one_host)
    if settings.pipeline is not None:
        policy = _policy_of_stages(settings, settings.pipeline.stages, model)
    if columns is not None:
        policy = _policy_of_columns(settings, model, streaming)
    work = StepWork(
        model=model,
        policy=policy,
        rule=_rule(
            settings,
            model,
            schedule=_schedule(settings, survey, model, few=single_rows or few),
            steps_per_pass=float(policy.applies_per_pass(steps, len(lanes))),
            coordinates=single_rows or few,
        ),
        layout=Layout(*model.parameters.shape, run.n_servers),
        stopping=StoppingRule(
            settings.max_iter, settings.tol, settings.n_iter_no_change, use_score=fraction > 0
        ),
        n_steps=steps,
        seed=settings.seed,
        shuffle=settings.shuffle,
        initial=_scaled(initial, settings, model, dtype, scales),
        single_rows=single_rows,
        compression=run.compression,
        micro_batch=settings.micro_batch,
        pipeline=settings.pipeline,
        columns=columns,
    )
    lane_rows = training_rows(lanes, fraction)
    spec = rows.spec(dtype, lane_rows, streaming, fraction, run.compute_dtype)
    return FitSpec(spec, work, RunSpec.of(run, survey))


def _rule(
    settings: Settings,
    model: StepModel,
    *,
    schedule: Schedule,
    steps_per_pass: float,
    coordinates: bool,
) -> UpdateRule:
    if settings.clip is not None and settings.run.n_servers > 1:
        raise InvalidParameterError(
            f"The norm of the whole gradient is known where one server holds all parameters, and "
            f"there are n_servers={settings.run.n_servers}. Use n_servers=1, or clip=None."
        )
    groups = make_groups(model.parameters, settings.optimizer, settings.penalty, settings.groups)
    average, clip, outer = settings.average, settings.clip, _outer(settings.policy)
    return UpdateRule(
        groups,
        schedule,
        steps_per_pass,
        average,
        coordinates,
        clip=clip,
        outer=outer,
        flushes=model.flushes,
    )


def _outer(policy: Policy) -> OuterStep | None:
    """Step that lanes make where they meet, unless they take the mean."""
    if policy.outer_rate == 1 and policy.outer_momentum == 0:
        return None
    return OuterStep(float(policy.outer_rate), float(policy.outer_momentum))


def _policy(settings: Settings, n_lanes: int, on_one_host: bool) -> Policy:
    """The user's policy, or its equal for lanes that ask for nothing of a server."""
    asks = settings.run.n_servers > 1 or settings.run.compression is not None
    if asks or (n_lanes > 1 and not on_one_host):
        return settings.policy
    return settings.policy.of_one_host() if n_lanes > 1 else settings.policy.of_one_lane()


def _policy_of_stages(settings: Settings, stages: int, model: StepModel) -> Policy:
    """Policy of a pipeline, whose stages sum gradients and hold the parameters.

    Raises
    ------
    InvalidParameterError
    """
    policy, run = settings.policy.of_one_host(), settings.run
    if not isinstance(model, StagedModel):
        raise InvalidParameterError(
            f"{type(model).__name__} is no chain of layers that a pipeline could cut into stages. "
            "Use pipeline=None."
        )
    if not policy.sums_gradients or run.n_servers > 1 or run.compression is not None:
        raise InvalidParameterError(
            "The stages of a pipeline hold the parameters and sum the gradients of all lanes. "
            "Use policy='allreduce' or 'sync' without servers or compression, or pipeline=None."
        )
    if stages > len(model.layers):
        raise InvalidParameterError(
            f"Pipeline(stages={stages}): each stage takes a layer with parameters at least, and "
            f"the network has {len(model.layers)}. Use Pipeline(stages={len(model.layers)})."
        )
    for name, value in [("clip", settings.clip), ("micro_batch_size", settings.micro_batch)]:
        if value is not None:
            raise InvalidParameterError(
                f"{name}={value!r} is not for pipelines: each stage sees its own layers, and "
                f"Pipeline(micro_batches=) cuts the batches. Use {name}=None."
            )
    return policy


def check_columns(settings: Settings) -> None:
    """Check settings of a fit whose lanes hold columns, as far as can be told before the fit.

    Raises
    ------
    InvalidParameterError
    """
    policy, run = settings.policy.of_one_host(), settings.run
    if not policy.sums_gradients or run.n_servers > 1 or run.compression is not None:
        raise InvalidParameterError(
            f'shard="features" under policy={settings.policy.name!r}: lanes that hold columns '
            "make each step together, and the parameters stay with them. Use policy='allreduce' "
            "or 'sync' without backup workers, servers or compression, or shard=\"rows\"."
        )
    if settings.pipeline is not None:
        raise InvalidParameterError(
            'shard="features" cuts the columns of the first layer, and a pipeline cuts between '
            'layers. Use pipeline=None, or shard="rows".'
        )
    if run.on_lost_data == "skip":
        raise InvalidParameterError(
            'shard="features" with on_lost_data="skip": of rows that are lost, other lanes would '
            'still have the other columns. Use on_lost_data="raise", or shard="rows".'
        )
    if settings.micro_batch is not None:
        raise InvalidParameterError(
            f'micro_batch_size={settings.micro_batch!r} with shard="features": the sums over a '
            "batch are added up at once. Use micro_batch_size=None and a smaller batch_size."
        )


def _policy_of_columns(settings: Settings, model: StepModel, streaming: Streaming | None) -> Policy:
    """Policy of lanes that hold columns: they step together, and hold the parameters.

    Raises
    ------
    InvalidParameterError
    """
    if not isinstance(model, ColumnModel):
        raise InvalidParameterError(
            f"{type(model).__name__} does not begin with products of the columns of X, which "
            'could be added up. Use shard="rows".'
        )
    if streaming is not None:
        raise InvalidParameterError(
            'shard="features" keeps its rows in memory, and they do not fit. Use more workers, a '
            'larger memory_budget, float32 or sparse rows, or shard="rows".'
        )
    return settings.policy.of_one_host()


def _schedule(settings: Settings, survey: Survey, model: StepModel, few: bool) -> Schedule:
    """The learning rates; an automatic one is in the units in which parameters must move.

    Where a step touches `few` of the parameters, each has few steps to reach its place in.
    """
    loss = None if model.linear is None else model.linear.loss
    optimizer = settings.optimizer
    default = optimizer.default_learning_rate
    if few and optimizer.sparse_learning_rate is not None:
        default = optimizer.sparse_learning_rate
    if settings.auto_rate and loss and loss.in_target_units and settings.optimizer.adaptive:
        spread = survey.target_spread
        if loss.center == "median":  # which a few targets far away do not move
            first, _, third = survey.target_quartiles
            spread = float(third - first) / _QUARTILES or spread
        if not np.isfinite(spread):
            raise DivergedError("The squares of the targets overflow. Scale the targets.")
        return Constant(default * spread)
    return Constant(default) if settings.auto_rate else settings.schedule


def make_target_shift(loss: Loss, fit_intercept: bool, survey: Survey) -> tuple[float, ...]:
    """Shift that the model is to take from the targets; empty where the loss or it cannot."""
    if not fit_intercept or loss.center is None:
        return ()
    if loss.center == "mean" or survey.n_targets is not None:
        return tuple(survey.target_means.tolist())
    return (float(survey.target_quartiles[1]),)


def _scaled(
    initial: ShardState | None,
    settings: Settings,
    model: StepModel,
    dtype: str,
    scales: Scales | None,
) -> ShardState | None:
    """The state to start from, with the scales of the features where the optimizer uses them."""
    optimizer, linear = settings.optimizer, model.linear
    if scales is None or linear is None or not isinstance(optimizer, NAG):
        return initial
    if linear.fit_intercept:
        scales = scales.with_intercept()
    if initial is None or not initial.slots:
        w = model.init(settings.seed, dtype) if initial is None else initial.w
        return ShardState(w, optimizer.init_scaled(w, scales.largest, scales.norm))
    initial = initial.part(slice(None))  # the user's model is left alone
    optimizer.rescale(initial.w, initial.slots, scales.largest, scales.norm)
    return initial


def _check_held_out(lanes: list[LaneSpec], fraction: float) -> None:
    if fraction and not any(held_out_rows(s, fraction) for lane in lanes for s in lane.segments):
        raise InvalidDataError(
            "The validation set is too small: early_stopping holds out no row, since "
            f"validation_fraction={fraction:g} of each block is less than one. Raise it, or use "
            "larger chunks."
        )


def _batch_size(
    batch_size: int | str | None, lanes: list[LaneSpec], streaming: Streaming | None, widest: int
) -> int | None:
    """Rows of a batch; the automatic choice makes about 100 steps a pass of 32 to `widest` rows.

    Lanes of more than a million rows take larger batches, so that a pass has 4096 steps at most:
    beyond that another step costs more than it gains; where rows are streamed, 2048, since trainers
    that meet more often wait for each other longer than for their rows.
    """
    if not isinstance(batch_size, str):
        return batch_size
    rows = max(lane.n_rows for lane in lanes)
    few = int(np.clip(2 ** round(np.log2(max(rows, 1) / 100)), 32, widest))
    most = _MANY_STEPS if streaming is None else _STREAMED_STEPS
    return max(few, int(2 ** np.ceil(np.log2(max(rows, 1) / most))))


def _steps_row_by_row(settings: Settings, survey: Survey, model: StepModel) -> bool:
    """Whether each row is an update of its own: sparse rows of many features, lanes that meet
    seldom.
    """
    return (
        model.linear is not None
        and model.linear.loss.at_row is not None
        and (settings.policy.loop == "shared" or settings.policy.averages)
        and settings.run.device != "gpu"
        and settings.batch_size in ("auto", 1)
        and settings.average is None
        and model.parameters.width == 1
        and settings.optimizer.at_entry is not None
        and settings.optimizer.single_rows
        and all(info.device == "cpu" for info in survey.infos)
        and _touches_few(survey, 1)
    )


def _rows_at_a_time(lanes: list[LaneSpec]) -> int:
    """Rows that a thread takes at once where each is an update: about 32 times a pass."""
    rows = max(lane.n_rows for lane in lanes)
    return int(np.clip(2 ** round(np.log2(max(rows, 1) / 32)), 32, 8192))


def _touches_few(survey: Survey, batch_size: int | None) -> bool:
    per_row = survey.nonzeros_per_row
    if per_row is None or batch_size is None or survey.n_features < _MANY_FEATURES:
        return False
    return per_row * batch_size <= _FEW_TOUCHED * survey.n_features
