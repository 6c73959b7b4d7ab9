"""Plans of fits: from checked settings and a summary of the rows to a `FitSpec`.

`make_fit` plans gradient steps: batch size, steps of a pass, learning rates, policy.
`make_solver_fit` plans a fit by a solver. Neither reads rows: both use only the `DatasetInfo`.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import (
    ClientSteps,
    LaneSpec,
    count_held_out_rows,
    count_pass_steps,
)
from daskml_dist.data.computing import configured_number
from daskml_dist.data.feature_scales import FeatureScales
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import ColumnModel, Model, StagedModel, StepModel
from daskml_dist.optimizers.adagrad import NAG
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.policies.base import Policy
from daskml_dist.privacy import GaussianNoise
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.rule import OuterStep, UpdateRule, make_parameter_groups
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.solvers.base import RangedSolver, Solver
from daskml_dist.solvers.own_rows import RowSolver
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary
from daskml_dist.training.spec import (
    FitSpec,
    OwnRowsWork,
    RoundWork,
    RowsSpec,
    RunSettings,
    RunSpec,
    Settings,
    StepWork,
    Streaming,
    count_training_rows,
)

#: Most steps of a pass with automatic batches: more steps cost more than they gain. The limit is
#: lower for streamed rows: trainers that synchronize more often wait longer for each other than for
#: rows.
_MAX_STEPS, _MAX_STREAMED_STEPS = 4096, 2048
#: Fewest rows of an automatic batch (except for tiny lanes, 1 % of the largest lane).
_MIN_BATCH_ROWS = 32
#: Most rows of an automatic batch, unless the limits of steps need more: for dense rows; for sparse
#: rows of linear models, where a batch is one message and little work; for rows that name pairs of
#: factors, which touch the fewest parameters.
_DENSE_BATCH_ROWS, _SPARSE_BATCH_ROWS, _PAIRED_BATCH_ROWS = 256, 512, 2048
#: Fewest and most rows that a thread takes at once if each row is a step.
_MIN_ROWS_PER_TURN, _MAX_ROWS_PER_TURN = 32, 8192
#: Interquartile range of a normal distribution, in standard deviations.
_NORMAL_QUARTILE_DISTANCE = 1.349
#: Rows of the parameters from which a step may push and pull only those that its batch touches.
_MIN_INDEXED_PARAMETER_ROWS = 2048
#: Largest share of the parameters' rows for which it does: above, indices cost more than whole
#: arrays.
_MAX_TOUCHED_SHARE = 0.25
#: Parameters from which each trainer holds only a range of the solver's vectors (8 MiB each).
_RANGES_FROM = 2**20


def make_fit(
    settings: Settings,
    model: StepModel,
    rows: DatasetInfo,
    lanes: list[LaneSpec],
    initial: ShardState | None,
    streaming: Streaming | None = None,
    scales: FeatureScales | None = None,
    on_one_host: bool = False,
    columns: tuple[int, ...] | None = None,
) -> FitSpec:
    """Plan a fit by gradient steps.

    Parameters
    ----------
    settings : Settings
    model : StepModel
    rows : DatasetInfo
    lanes : list of LaneSpec
    initial : ShardState or None
        State of an earlier fit to continue from; None: the model's initial parameters.
    streaming : Streaming or None
        How blocks are read again in each pass; None: all are in memory.
    scales : FeatureScales or None
        Scales of the features, for an optimizer that uses them.
    on_one_host : bool
        Whether all lanes are on one host, so that they can synchronize without a server.
    columns : tuple of int or None
        First column of each lane, and the number of columns, where lanes hold columns.
    """
    summary, run, fraction = rows.summary, settings.run, settings.validation_fraction
    if model.table is not None:
        _check_table_settings(settings)
    if settings.policy.loop == "parts":
        if model.table is None or not len(model.own_ids):
            raise InvalidParameterError(
                f"policy={settings.policy!r} needs a model over ids that also has layers or an "
                "intercept, such as DeepFMClassifier. Use one policy for all parameters."
            )
        model = model.with_own_rows_last()
    _check_held_out_rows(lanes, fraction)
    if settings.batch_size == "auto" and _may_step_row_by_row(settings, summary, model):
        # If a policy has such a variant, lanes then synchronize rarely enough to step row by row.
        settings = replace(settings, policy=settings.policy.by_single_rows())
    # 1. How rows become steps: single rows where these may be updates, else batches.
    single_rows = _is_row_by_row(settings, summary, model)
    batch_size = choose_batch_rows(settings.batch_size, lanes, streaming, largest_batch_rows(model))
    if single_rows and not settings.policy.average_every:
        batch_size = _count_rows_per_turn(lanes)
    steps = count_pass_steps(lanes, batch_size, fraction)
    clients: tuple[ClientSteps, ...] = ()
    if settings.policy.draws_lanes:
        # A pass is a round: the steps of the client that makes the most.
        clients = _plan_clients(settings, lanes, batch_size)
        steps = max(client.n_steps for client in clients)
        settings = replace(settings, policy=settings.policy.for_round(steps))
    # 2. Whether steps read and change only the parameters that a batch touches.
    dtype = settings.dtype_of(summary)
    # A streamed full batch is never in memory as a whole, so the union of its columns is unknown.
    in_memory = not (streaming and steps == 1)
    is_indexed = _touches_few_parameters(model, batch_size) and in_memory
    # The pull towards the last average (`proximal`) moves all parameters.
    is_indexed = is_indexed and not settings.policy.proximal
    if model.table is not None:
        if not in_memory:
            raise InvalidParameterError(
                "A full batch touches all ids, but the rows do not fit in memory together. Set "
                "batch_size, or raise memory_budget of run=Run()."
            )
        is_indexed = True
    is_sparse = single_rows or is_indexed
    if is_sparse and run.compression is not None and run.compression.needs_allreduce:
        raise InvalidParameterError(
            f"compression={run.compression!r} needs whole gradients, but batches of these rows "
            "touch few parameters. Use another one, such as 'topk', or compression=None."
        )
    # 3. How noise hides the rows in a private fit, which depends on the number of its steps.
    privacy = None if settings.privacy is None else settings.privacy.plan(steps, settings.max_iter)
    if privacy is not None and streaming is not None:
        raise InvalidParameterError(
            "privacy= draws each batch from all rows of a lane, but these do not fit in memory "
            "together, so blocks would be read again for each step. Raise memory_budget of "
            "run=Run(), use more workers, float32 rows, or fewer rows."
        )
    # 4. Which processes hold the parameters, and when lanes synchronize.
    policy = _resolve_policy(settings, model, len(lanes), on_one_host)
    if settings.pipeline is not None:
        policy = policy_of_stages(settings, settings.pipeline.stages, model)
    if columns is not None:
        policy = policy_of_columns(settings, model, streaming)
    _check_averaging(policy, len(lanes), run, model)
    if policy.sums_within_hosts and summary.device(run.device, run.deterministic) == "gpu":
        raise InvalidParameterError(
            f"{policy!r} sums gradients in host memory, but the rows are on GPUs. Use "
            'device="cpu", or another policy, such as LocalSGD.'
        )
    mean_batch_rows = sum(count_training_rows(lanes, fraction)) / (len(lanes) * steps)
    work = StepWork(
        model=model,
        policy=policy,
        rule=_make_update_rule(
            settings,
            model,
            rates=_automatic_learning_rates(settings, summary, model, single_rows, is_indexed),
            steps_per_pass=float(policy.applies_per_pass(steps, len(lanes))),
            coordinates=is_sparse,
            noise=None if privacy is None else privacy.noise,
            # Schedules that count steps count each of these rows, as scikit-learn's do.
            scheduled_steps=mean_batch_rows if single_rows else 1.0,
        ),
        # One shard of the parameters per server.
        layout=ShardLayout(*model.parameters.shape, max(run.n_servers, policy.fragments)),
        stopping=PassStoppingRule(
            settings.max_iter, settings.tol, settings.n_iter_no_change, use_score=fraction > 0
        ),
        n_steps=steps,
        seed=settings.seed,
        shuffle=settings.shuffle,
        initial=_add_feature_scales(initial, settings, model, dtype, scales),
        single_rows=single_rows,
        compression=run.compression,
        micro_batch=settings.micro_batch,
        pipeline=settings.pipeline,
        columns=columns,
        clients=clients,
        privacy=privacy,
    )
    spec = _make_rows_spec(rows, dtype, lanes, streaming, run, fraction)
    return FitSpec(spec, work, RunSpec.from_settings(run, summary))


#: Loops whose steps push to servers, and pull rows by their ids.
_TABLE_LOOPS = ("bulk", "free", "parts")


def _check_table_settings(settings: Settings) -> None:
    """Raise for settings that need all parameter rows at once; a table creates rows by id."""
    policy = settings.policy
    if policy.loop not in _TABLE_LOOPS or policy.delay_compensation:
        raise InvalidParameterError(
            f"policy={policy!r} needs all parameters in each trainer, but rows of a table are "
            'created on servers for new ids. Use "sync", "ssp", "async", or PolicyByPart.'
        )
    refused = {
        "early_stopping=True": settings.validation_fraction > 0,
        f"average={settings.average!r}": settings.average is not None,
        "privacy=DP(...)": settings.privacy is not None,
        f"optimizer={settings.optimizer!r}": settings.optimizer.whole_matrices,
        f"penalty={settings.penalty!r}": bool(settings.penalty.l1 or settings.penalty.l2),
    }
    if names := [name for name, is_set in refused.items() if is_set]:
        raise InvalidParameterError(
            f"{' and '.join(names)}: needs all parameters at once, but rows of a table are "
            "created on servers for new ids. Leave it out (eval_set= scores your own rows after "
            "each pass)."
        )


def _make_rows_spec(
    rows: DatasetInfo,
    dtype: str,
    lanes: list[LaneSpec],
    streaming: Streaming | None,
    run: RunSettings,
    held_out: float = 0.0,
) -> RowsSpec:
    """Return the specification of the rows that trainers get, of which a share is held out."""
    lane_rows = count_training_rows(lanes, held_out)
    return RowsSpec(
        dtype, rows.summary.rows_dtype, lane_rows, rows.classes, rows.class_weight,
        rows.weight_scale, streaming, held_out, run.compute_dtype,
    )  # fmt: skip


def _make_update_rule(
    settings: Settings,
    model: StepModel,
    *,
    rates: list[float] | None,
    steps_per_pass: float,
    coordinates: bool,
    noise: GaussianNoise | None = None,
    scheduled_steps: float = 1.0,
) -> UpdateRule:
    """Combine optimizer, penalty, schedule and parameter groups into the rule of the updates."""
    # Each server knows only the gradient of its own shard, so none knows the norm of the whole.
    steps_alone = settings.policy.averages
    if settings.clip is not None and settings.run.n_servers > 1 and not steps_alone:
        raise InvalidParameterError(
            "The norm of the whole gradient needs all parameters on one server, but "
            f"n_servers={settings.run.n_servers}. Use n_servers=1, or clip=None."
        )
    groups = make_parameter_groups(
        model.parameters, settings.optimizer, settings.penalty, settings.groups
    )
    compressed = settings.policy.averages and settings.run.compression is not None
    rule = UpdateRule(
        groups,
        settings.schedule,
        steps_per_pass,
        settings.average,
        coordinates,
        clip=settings.clip,
        outer=OuterStep.from_policy(settings.policy, model.parameters, compressed),
        flushes=model.flushes,
        proximal=float(settings.policy.proximal),
        noise=noise,
        scheduled_steps=scheduled_steps,
    )
    return rule if rates is None else rule.with_constant_rates(rates)


def _plan_clients(
    settings: Settings, lanes: list[LaneSpec], batch_size: int | None
) -> tuple[ClientSteps, ...]:
    """Return the steps that each client makes in a round, if it is drawn."""
    _check_clients(settings, lanes)
    return tuple(
        ClientSteps(*settings.policy.count_client_steps(n, batch_size))
        for n in count_training_rows(lanes, settings.validation_fraction)
    )


def _check_clients(settings: Settings, lanes: list[LaneSpec]) -> None:
    """Raise if a policy draws clients but the rows have none, or other settings do not fit."""
    n_wanted, n_lanes = settings.run.n_lanes, len(lanes)
    if n_wanted is not None and n_lanes < n_wanted:
        raise InvalidParameterError(
            f"Run(n_lanes={n_wanted}) asks for more clients than there are rows, {n_lanes}. Use "
            f"n_lanes={n_lanes} at most."
        )
    if n_lanes < 2:
        raise InvalidParameterError(
            f"{type(settings.policy).__name__} draws from clients, but the rows are one block, "
            "so one client. Give Dask collections with one chunk or partition per client, as "
            "daskml_dist.datasets.partition_by_class and partition_by_column make, or "
            "Run(n_lanes=...) for that many clients of equal size."
        )
    if settings.average is not None:
        raise InvalidParameterError(
            f"average={settings.average!r} averages over the steps of a replica, but replicas of "
            "clients end with each round. Use average=False."
        )


def _resolve_policy(
    settings: Settings, model: StepModel, n_lanes: int, on_one_host: bool
) -> Policy:
    """Return the user's policy, or its equivalent without a server where no server is needed."""
    # A server is needed for several shards, for compression, between hosts, and for growing tables.
    needs_server = settings.run.n_servers > 1 or settings.run.compression is not None
    if needs_server or model.table is not None or (n_lanes > 1 and not on_one_host):
        return settings.policy
    return settings.policy.on_one_host() if n_lanes > 1 else settings.policy.for_one_lane()


def _check_averaging(policy: Policy, n_lanes: int, run: RunSettings, model: StepModel) -> None:
    """Raise for a quorum of more lanes, or parts of more rows, than there are."""
    n_servers = run.n_servers
    if policy.quorum is not None and n_servers > 1 and not policy.fragments:
        raise InvalidParameterError(
            f"LocalSGD(quorum={policy.quorum}) with n_servers={n_servers}: each server would "
            "have its own quorum, so lanes could wait for each other. Use "
            f"fragments={n_servers}, under which no lane waits, or n_servers=1."
        )
    if policy.steps_by_speed and run.deterministic:
        raise InvalidParameterError(
            f"{policy!r} has lanes send after as many steps as their speed allows, so fits are not "
            "reproducible, but deterministic=True was set. Leave out steps_by_speed, or set "
            "deterministic=False."
        )
    if policy.quorum is not None and policy.quorum < n_lanes and run.deterministic:
        raise InvalidParameterError(
            f"LocalSGD(quorum={policy.quorum}) averages the lanes that arrive first, so fits are "
            f"not reproducible, but deterministic=True was set. Use quorum={n_lanes}, all lanes, "
            "or deterministic=False."
        )
    if (policy.quorum or 0) > n_lanes:
        raise InvalidParameterError(
            f"LocalSGD(quorum={policy.quorum}) waits for more lanes than the {n_lanes} of this "
            "fit. Lower quorum, raise n_lanes, or split the rows into more blocks."
        )
    outer = policy.outer_optimizer if policy.averages_on_servers else None
    if outer is not None and outer.optimizer.whole_matrices:
        raise InvalidParameterError(
            f"outer={policy.outer!r} updates whole matrices, but servers hold only parts of "
            "them. Leave out quorum and fragments, or use another outer optimizer, such as "
            "outer='nesterov'."
        )
    n_rows = model.parameters.shape[0]
    if policy.fragments > n_rows:
        raise InvalidParameterError(
            f"fragments={policy.fragments} is more than the {n_rows} rows of the parameters. "
            f"Use fragments={n_rows} or fewer."
        )


def _choose_default_rate(optimizer: Optimizer, single_rows: bool, is_indexed: bool) -> float:
    """Return the learning rate of a fit that sets none.

    Where a step touches few of the parameters (`is_indexed`), each has few steps to reach its
    value, so the rate is larger; batches make fewer steps than single rows do.
    """
    sparse, rows = optimizer.sparse_learning_rate, optimizer.row_learning_rate
    if single_rows and rows is not None:
        return rows
    if (single_rows or is_indexed) and sparse is not None:
        return sparse
    return optimizer.default_learning_rate


def _automatic_learning_rates(
    settings: Settings, summary: DataSummary, model: StepModel, single_rows: bool, is_indexed: bool
) -> list[float] | None:
    """Return the rate of each target, in its units; None where the user's schedule sets it."""
    if not settings.auto_rate:
        return None
    default = settings.own_rate or _choose_default_rate(settings.optimizer, single_rows, is_indexed)
    units = getattr(model, "target_units", ()) or measure_target_units(settings, model, summary)
    return [default * unit for unit in units] or [default]


def take_first_target_unit(model: Any, summary: DataSummary) -> tuple[float, Any]:
    """Return the targets' spread in the model's unit, and the model, which keeps its unit.

    The unit is the spread of the first targets that differ, unlike those of a single row; without
    one, or if the loss has none, it is 1.
    """
    if model.target_unit is not None or not model.loss.in_target_units:
        return 1.0, model
    deviation = summary.target_spread
    if not summary.targets_differ:
        return deviation, model
    return 1.0, replace(model, target_unit=deviation)


def measure_target_units(
    settings: Settings, model: StepModel, summary: DataSummary
) -> tuple[float, ...]:
    """Return the unit of each target that automatic rates are multiplied by; empty where none is.

    Losses in units of the targets (absolute, Huber) need steps in those units too. The unit is a
    fact about the rows that no noise hides, so a private fit does not use it.
    """
    loss = None if model.linear is None else model.linear.loss
    if settings.privacy is not None or not settings.optimizer.adaptive:
        return ()
    if loss is None or not loss.in_target_units:
        return ()
    return tuple(_measure_target_unit(loss, target) for target in summary.of_each_target)


def _measure_target_unit(loss: Loss, summary: DataSummary) -> float:
    """Return the unit of the targets: their standard deviation, or a robust estimate of it."""
    deviation = summary.target_spread
    # Losses whose centre is the median are robust to outliers, and so must their unit be.
    if loss.center == "median":
        first_quartile, _, third_quartile = summary.target_quartiles
        deviation = float(third_quartile - first_quartile) / _NORMAL_QUARTILE_DISTANCE or deviation
    if not np.isfinite(deviation):
        raise DivergedError("The squares of the targets overflow. Scale the targets.")
    return deviation


def count_lane_batch_rows(batch: int, settings: Settings, lanes: list[LaneSpec]) -> int:
    """Return the batch rows of the largest lane for `batch` rows in one step of the parameters."""
    lane_rows = count_training_rows(lanes, settings.validation_fraction)
    largest, policy = max(lane_rows), settings.policy
    # Lanes in lock-step share a step's rows; others step alone, once for several of their batches,
    # and clients have batches of their own.
    in_lockstep = (policy.lockstep or policy.averages) and not policy.draws_lanes
    step_rows = sum(lane_rows) if in_lockstep else largest * policy.push_every
    n_steps = -(-step_rows // batch)
    return max(1, -(-largest // max(n_steps, 1)))


def make_target_shift(loss: Loss, fit_intercept: bool, summary: DataSummary) -> tuple[float, ...]:
    """Return the mean or median of each target, to be subtracted from it before the fit.

    Empty if the loss has no centre, or if the model has no intercept to add it to again.
    """
    if not fit_intercept or loss.center is None:
        return ()
    if loss.center == "mean":
        return tuple(summary.targets.mean.tolist())
    return tuple(float(target.target_quartiles[1]) for target in summary.of_each_target)


def _add_feature_scales(
    initial: ShardState | None,
    settings: Settings,
    model: StepModel,
    dtype: str,
    scales: FeatureScales | None,
) -> ShardState | None:
    """Return the initial state with the scales of the features, for optimizers that use them."""
    optimizer, linear = settings.optimizer, model.linear
    if scales is None or linear is None or not isinstance(optimizer, NAG):
        return initial
    if linear.fit_intercept:
        scales = scales.with_intercept()
    if initial is None or not initial.opt_state:
        w = model.init(settings.seed, dtype) if initial is None else initial.w
        return ShardState(w, optimizer.init_scaled(w, scales.largest, scales.norm))
    # Copied: the optimizer rescales in place, and the state may be that of the user's fitted model.
    initial = initial.slice_rows(slice(None))
    optimizer.rescale(initial.w, initial.opt_state, scales.largest, scales.norm)
    return initial


def _check_held_out_rows(lanes: list[LaneSpec], fraction: float) -> None:
    """Raise `InvalidDataError` if early stopping would not hold out any row."""
    if fraction and not any(
        count_held_out_rows(s, fraction) for lane in lanes for s in lane.segments
    ):
        raise InvalidDataError(
            "The validation set is too small: early_stopping holds out no row, since "
            f"validation_fraction={fraction:g} of each block is less than one. Raise it, or use "
            "larger chunks."
        )


def choose_batch_rows(
    batch_size: int | str | None,
    lanes: list[LaneSpec],
    streaming: Streaming | None = None,
    widest: int = _DENSE_BATCH_ROWS,
) -> int | None:
    """Return the rows of a batch; "auto" makes about 100 steps a pass, of 32 to `widest` rows.

    Large lanes take larger batches, so that a pass has at most 4096 steps (2048 where rows are
    streamed).
    """
    if not isinstance(batch_size, str):
        return batch_size
    # A power of two near 1 % of the largest lane: small fits still make about 100 steps a pass.
    rows = max(1, *(lane.n_rows for lane in lanes))
    batch_rows = int(np.clip(2 ** round(np.log2(rows / 100)), _MIN_BATCH_ROWS, widest))
    max_steps = _MAX_STEPS if streaming is None else _MAX_STREAMED_STEPS
    return max(batch_rows, int(2 ** np.ceil(np.log2(rows / max_steps))))


def largest_batch_rows(model: StepModel) -> int:
    """Return the most rows of an automatic batch: as many as touch few parameters, if any do."""
    candidates = (
        (_SPARSE_BATCH_ROWS,)
        if model.linear is not None
        else (_PAIRED_BATCH_ROWS, _SPARSE_BATCH_ROWS)
    )
    return next((n for n in candidates if _touches_few_parameters(model, n)), _DENSE_BATCH_ROWS)


def _is_row_by_row(settings: Settings, summary: DataSummary, model: StepModel) -> bool:
    """Return whether each row is a step of its own: if it can be, and lanes rarely synchronize."""
    # Not if lanes sum or push the gradient of every step, nor if replicas end with a round.
    policy = settings.policy
    exchanges_seldom = policy.loop == "shared" or (
        policy.averages and not policy.draws_lanes and not policy.sums_within_hosts
    )
    return exchanges_seldom and _may_step_row_by_row(settings, summary, model)


def _may_step_row_by_row(settings: Settings, summary: DataSummary, model: StepModel) -> bool:
    """Return whether each row could be a step of its own: sparse rows of many features."""
    return (
        model.linear is not None
        and model.linear.loss.evaluate_row is not None
        and settings.run.device != "gpu"
        and settings.run.compression is None
        and settings.batch_size in ("auto", 1)
        and settings.average is None
        and not settings.schedule.scales_with_staleness
        and model.parameters.width == 1
        and settings.optimizer.elementwise_update is not None
        and settings.optimizer.single_rows
        and all(info.device == "cpu" for info in summary.infos)
        and _touches_few_parameters(model, 1)
    )


def _count_rows_per_turn(lanes: list[LaneSpec]) -> int:
    """Return the rows that a thread takes at once if each is a step: about 1/32 of a pass."""
    rows = max(1, *(lane.n_rows for lane in lanes))
    turn_rows = 2 ** round(np.log2(rows / 32))
    return int(np.clip(turn_rows, _MIN_ROWS_PER_TURN, _MAX_ROWS_PER_TURN))


def _touches_few_parameters(model: StepModel, batch_size: int | None) -> bool:
    """Return whether a batch touches few of many rows of the parameters."""
    n_rows = model.parameters.shape[0]
    if model.touches is None or batch_size is None or n_rows < _MIN_INDEXED_PARAMETER_ROWS:
        return False
    return model.touches * batch_size <= _MAX_TOUCHED_SHARE * n_rows


def policy_of_stages(settings: Settings, stages: int, model: StepModel) -> Policy:
    """Return the policy of a pipeline, whose stages sum gradients and hold the parameters."""
    policy, run = settings.policy.on_one_host(), settings.run
    if not isinstance(model, StagedModel):
        raise InvalidParameterError(
            f"{type(model).__name__} is not a chain of layers that a pipeline can split into "
            "stages. Use pipeline=None."
        )
    if not policy.sums_gradients or run.n_servers > 1 or run.compression is not None:
        raise InvalidParameterError(
            "The stages of a pipeline hold the parameters and sum the gradients of all lanes. "
            "Use policy='allreduce' or 'sync' without servers or compression, or pipeline=None."
        )
    if stages > len(model.layers):
        raise InvalidParameterError(
            f"Pipeline(stages={stages}): each stage needs at least one layer with parameters, "
            f"but the network has {len(model.layers)}. Use Pipeline(stages={len(model.layers)})."
        )
    for name, value in [("clip", settings.clip), ("micro_batch_size", settings.micro_batch)]:
        if value is not None:
            raise InvalidParameterError(
                f"{name}={value!r} is not supported by pipelines: each stage sees only its "
                f"layers, and Pipeline(micro_batches=) splits the batches. Use {name}=None."
            )
    return policy


def check_column_settings(settings: Settings) -> None:
    """Raise for settings that ``shard="features"`` does not support, before the data is known."""
    policy, run = settings.policy.on_one_host(), settings.run
    if not policy.sums_gradients or run.n_servers > 1 or run.compression is not None:
        raise InvalidParameterError(
            f'shard="features" under policy={settings.policy.name!r}: lanes that hold columns '
            "make each step together and keep the parameters. Use policy='allreduce' or 'sync' "
            'without backup workers, servers or compression, or shard="rows".'
        )
    if settings.pipeline is not None:
        raise InvalidParameterError(
            'shard="features" splits the columns of the first layer, but a pipeline splits '
            'between layers. Use pipeline=None, or shard="rows".'
        )
    if run.on_lost_data == "skip":
        raise InvalidParameterError(
            'shard="features" with on_lost_data="skip": other lanes would still have the other '
            'columns of lost rows. Use on_lost_data="raise", or shard="rows".'
        )
    if settings.micro_batch is not None:
        raise InvalidParameterError(
            f'micro_batch_size={settings.micro_batch!r} with shard="features": sums over a batch '
            "cannot be split. Use micro_batch_size=None and a smaller batch_size."
        )


def policy_of_columns(settings: Settings, model: StepModel, streaming: Streaming | None) -> Policy:
    """Return the policy of lanes that hold columns: they step together and hold the parameters."""
    if not isinstance(model, ColumnModel):
        raise InvalidParameterError(
            f"{type(model).__name__} does not start with sums over the columns of X, so lanes "
            'cannot share them. Use shard="rows".'
        )
    if streaming is not None:
        raise InvalidParameterError(
            'shard="features" keeps rows in memory, but they do not fit. Use more workers, a '
            'larger memory_budget, float32 or sparse rows, or shard="rows".'
        )
    return settings.policy.on_one_host()


def make_solver_fit(
    model: Model,
    solver: Solver | RowSolver,
    rows: DatasetInfo,
    lanes: list[LaneSpec],
    start: NDArray[Any] | None,
    streaming: Streaming | None,
    run: RunSettings,
    budget: float = float("inf"),
) -> FitSpec:
    """Plan a fit by a solver of sums over all rows, or one that runs on each trainer's own rows.

    `start` are the initial parameters of a solver of sums; `budget` is the memory of a worker, in
    bytes, for blocks and the arrays that a solver on own rows makes of them.
    """
    # Features stored in 16 bits are computed with in float32.
    dtype = "float32" if run.compute_dtype else rows.summary.dtype
    spec = _make_rows_spec(rows, dtype, lanes, streaming, run)
    if isinstance(solver, RowSolver):
        work = _plan_own_rows_work(model, solver, rows)
        # The solver may use the rest of the budget, beside the blocks in memory, for its arrays.
        nbytes = 0 if streaming else sum(info.nbytes for info in rows.summary.infos)
        row_bytes = nbytes / max(rows.summary.n_rows, 1)
        work = replace(work, budget=budget, row_bytes=row_bytes)
        return FitSpec(spec, work, RunSpec.from_settings(run, rows.summary))
    shape = model.parameters.shape if isinstance(model, StepModel) else None
    # L-BFGS keeps many vectors of the parameters' length: if that is millions, each trainer holds a
    # range of each. Not if deterministic: sums in the order of the lanes are gathered whole.
    in_ranges = (
        shape is not None
        and isinstance(solver, RangedSolver)
        and not run.deterministic
        and prod(shape) >= configured_number("daskml_dist.ranges_from", _RANGES_FROM)
    )
    return FitSpec(
        spec,
        RoundWork(
            model, solver, shape, start, PassStoppingRule(solver.max_passes, None), in_ranges
        ),
        RunSpec.from_settings(run, rows.summary),
    )


def _plan_own_rows_work(model: Model, solver: RowSolver, rows: DatasetInfo) -> OwnRowsWork:
    """Return the work of a solver on each trainer's own rows."""
    infos = sorted(rows.summary.infos, key=lambda info: info.index)
    # Number of the first row of each block among all rows: exclusive cumulative sum of block sizes.
    first = np.zeros(infos[-1].index + 1, np.int64)
    for info in infos:
        first[info.index] = info.n_rows
    first = first.cumsum() - first
    # Two passes at least: trees read the rows for the edges of the bins, then for the bins.
    return OwnRowsWork(model, solver, PassStoppingRule(max(2, solver.max_passes), None), first)
