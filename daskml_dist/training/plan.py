"""From settings and a survey of the blocks to the `FitSpec`, and from lanes to its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import dask
import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec, held_out_rows, pass_steps
from daskml_dist.data.scales import Scales
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.losses import Loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import NAG, Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Policy
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.shard import ShardState, UpdateRule
from daskml_dist.schedules import Constant, Schedule
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.spec import FitSpec, Streaming
from daskml_dist.training.survey import Survey

__all__ = [
    "Settings",
    "make_class_weight",
    "make_fit",
    "make_target_shift",
    "make_weight_scale",
]

#: Steps of a pass at most, with automatic batches.
_MANY_STEPS = 4096
#: Distance of the quartiles of a normal distribution, in standard deviations.
_QUARTILES = 1.349
#: Features from which a sparse batch may push and pull only what it touches.
_MANY_FEATURES = 2048
#: ...if it touches at most this share of them.
_FEW_TOUCHED = 0.25


@dataclass(frozen=True)
class Settings:
    """What the user asked for, checked; nothing in it depends on the data."""

    loss: Loss
    penalty: Penalty
    optimizer: Optimizer
    schedule: Schedule
    policy: Policy
    fit_intercept: bool
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


def make_fit(
    settings: Settings,
    survey: Survey,
    lanes: list[LaneSpec],
    classes: NDArray[Any] | None,
    weighted: bool,
    initial: ShardState | None,
    streaming: Streaming | None = None,
    scales: Scales | None = None,
    target_shift: tuple[float, ...] | None = None,
) -> FitSpec:
    """Put the maths of a fit together.

    Parameters
    ----------
    settings : Settings
    survey : Survey
    lanes : list of LaneSpec
    classes : ndarray or None
        Sorted labels; None for regression.
    weighted : bool
        Whether rows have weights.
    initial : ShardState or None
        Where to go on from.
    streaming : Streaming or None
        How to read blocks that are not kept.
    scales : Scales or None
        Of the features, where the optimizer uses them.
    target_shift : tuple of float or None
        That of the model that `initial` is of; None: near the targets, where the loss allows it.
    """
    n_classes = 0 if classes is None else len(classes)
    if target_shift is None:
        target_shift = make_target_shift(settings.loss, settings.fit_intercept, survey)
    model = LinearModel(
        settings.loss,
        survey.n_features,
        n_classes,
        settings.fit_intercept,
        target_shift=target_shift,
    )
    fraction = settings.validation_fraction
    _check_held_out(lanes, fraction)
    single_rows = _steps_row_by_row(settings, survey, model)
    batch_size = _rows_at_a_time(lanes) if single_rows else _batch_size(settings.batch_size, lanes)
    steps = pass_steps(lanes, batch_size, fraction)
    class_weight = make_class_weight(settings.class_weight, survey, classes)
    policy = _policy(settings, len(lanes))
    dtype = "float32" if settings.run.compute_dtype else survey.dtype
    return FitSpec(
        model=model,
        policy=policy,
        rule=UpdateRule(
            settings.optimizer,
            _schedule(settings, survey),
            settings.penalty,
            model.n_penalised,
            steps_per_pass=float(policy.applies_per_pass(steps, len(lanes))),
            average_after=settings.average,
            # Streamed full batches are never in memory as a whole, so nobody knows their columns.
            coordinates=single_rows
            or (_touches_few(survey, batch_size) and not (streaming and steps == 1)),
        ),
        layout=Layout(*model.shape, settings.run.n_servers),
        stopping=StoppingRule(
            settings.max_iter, settings.tol, settings.n_iter_no_change, use_score=fraction > 0
        ),
        dtype=dtype,
        seed=settings.seed,
        lane_rows=tuple(
            sum(len(s) - held_out_rows(s, fraction) for s in lane.segments) for lane in lanes
        ),
        n_steps=steps,
        shuffle=settings.shuffle,
        validation_fraction=fraction,
        deterministic=settings.run.deterministic,
        device=survey.device(settings.run.device, settings.run.deterministic),
        compute_dtype=settings.run.compute_dtype,
        classes=classes,
        class_weight=class_weight,
        weight_scale=make_weight_scale(survey, classes, class_weight, weighted),
        initial=_scaled(
            initial or _first_state(model, survey, dtype), settings.optimizer, model, dtype, scales
        ),
        timeout=float(dask.config.get("daskml_dist.timeout", 300.0)),
        streaming=streaming,
        on_lost_data=settings.run.on_lost_data,
        shared_memory=bool(dask.config.get("daskml_dist.shared_memory", True)),
        single_rows=single_rows,
        compression=settings.run.compression,
    )


def _policy(settings: Settings, n_lanes: int) -> Policy:
    """The user's policy, or its equal for a lane that asks for nothing of a server."""
    asks = settings.run.n_servers > 1 or settings.run.compression is not None
    return settings.policy if n_lanes > 1 or asks else settings.policy.of_one_lane()


def _schedule(settings: Settings, survey: Survey) -> Schedule:
    """The learning rates; an automatic one is in the units in which parameters must move."""
    if settings.auto_rate and settings.loss.in_target_units and settings.optimizer.adaptive:
        spread = survey.target_spread
        if settings.loss.center == "median":  # which a few targets far away do not move
            first, _, third = survey.target_quartiles
            spread = float(third - first) / _QUARTILES or spread
        if not np.isfinite(spread):
            raise DivergedError("The squares of the targets overflow. Scale the targets.")
        return Constant(settings.optimizer.default_learning_rate * spread)
    return settings.schedule


def make_target_shift(loss: Loss, fit_intercept: bool, survey: Survey) -> tuple[float, ...]:
    """What the model is to take from the targets; empty where the loss or the model cannot."""
    if not fit_intercept or loss.center is None:
        return ()
    if loss.center == "mean" or survey.n_targets is not None:
        return tuple(survey.target_means.tolist())
    return (float(survey.target_quartiles[1]),)


def _first_state(model: LinearModel, survey: Survey, dtype: str) -> ShardState | None:
    """No effect of any feature, and the intercept that the loss begins with; None: zeros."""
    if model.n_classes or not model.fit_intercept or model.target_shift:
        return None
    constant = model.loss.constant(float(survey.target_mean))
    if not constant:
        return None
    w = np.zeros(model.shape, dtype=dtype)
    w[-1] = constant
    return ShardState(w, {})


def _scaled(
    initial: ShardState | None,
    optimizer: Optimizer,
    model: LinearModel,
    dtype: str,
    scales: Scales | None,
) -> ShardState | None:
    """The state to start from, with the scales of the features where the optimizer uses them."""
    if scales is None or not isinstance(optimizer, NAG):
        return initial
    if model.fit_intercept:
        scales = scales.with_intercept()
    if initial is None or not initial.slots:
        w = np.zeros(model.shape, dtype=dtype) if initial is None else initial.w
        return ShardState(w, optimizer.init_scaled(w, scales.largest, scales.norm))
    initial = initial.part(slice(None))  # the user's model is left alone
    optimizer.rescale(initial.w, initial.slots, scales.largest, scales.norm)
    return initial


def _check_held_out(lanes: list[LaneSpec], fraction: float) -> None:
    if fraction and not any(held_out_rows(s, fraction) for lane in lanes for s in lane.segments):
        raise InvalidDataError(
            f"early_stopping holds out no row: validation_fraction={fraction:g} of each block is "
            "less than one row. Raise it, or use larger chunks."
        )


def _batch_size(batch_size: int | str | None, lanes: list[LaneSpec]) -> int | None:
    """Rows of a batch; the automatic choice makes about 100 steps a pass of 32 to 256 rows.

    Lanes of more than a million rows take larger batches, so that a pass has 4096 steps at most:
    beyond that another step costs more than it gains.
    """
    if not isinstance(batch_size, str):
        return batch_size
    rows = max(lane.n_rows for lane in lanes)
    few = int(np.clip(2 ** round(np.log2(max(rows, 1) / 100)), 32, 256))
    return max(few, int(2 ** np.ceil(np.log2(max(rows, 1) / _MANY_STEPS))))


def _steps_row_by_row(settings: Settings, survey: Survey, model: LinearModel) -> bool:
    """Whether each row is an update of its own (``"hogwild"`` on sparse rows of many features)."""
    return (
        settings.policy.loop == "shared"
        and settings.run.device != "gpu"
        and settings.batch_size in ("auto", 1)
        and settings.average is None
        and model.width == 1
        and settings.loss.at_row is not None
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


def make_class_weight(
    class_weight: Any, survey: Survey, classes: NDArray[Any] | None
) -> NDArray[np.float64] | None:
    """Weight of each class, of what the user gave: "balanced", a dict or None."""
    if class_weight is None or classes is None:
        return None
    if isinstance(class_weight, str):
        # A weight of two is as good as a row twice, here too.
        sums = survey.label_weights(classes)
        balanced = np.zeros(len(sums))
        np.divide(sums.sum(), len(classes) * sums, out=balanced, where=sums > 0)
        return balanced
    known = dict.fromkeys(classes.tolist(), 1.0)
    unknown = [label for label in class_weight if label not in known]
    if unknown:
        raise InvalidParameterError(
            f"class_weight names labels that y does not hold: {unknown}. Use labels among "
            f"{list(known)}."
        )
    return np.array([float(class_weight.get(label, 1.0)) for label in known])


def make_weight_scale(
    survey: Survey,
    classes: NDArray[Any] | None,
    class_weight: NDArray[np.float64] | None,
    weighted: bool,
) -> float | None:
    """Factor that makes the mean weight of all rows 1; None where rows have no weights."""
    if class_weight is None and not weighted:
        return None
    if class_weight is not None and classes is not None:
        total = float(class_weight @ survey.label_weights(classes))
    else:
        total = sum(info.weight_sum for info in survey.infos)
    if not total > 0:
        raise InvalidDataError("All weights are zero. Give some rows a positive weight.")
    return survey.n_rows / total
