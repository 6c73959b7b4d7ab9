"""Batches of fits by gradient steps: each fit of a search is a column of one parameter matrix.

A search fits every candidate on every split, and all these fits read the same rows. Here they are
columns side by side, so that a pass over the rows trains them all: a row has weight 0 in the
columns of the splits that do not train on it, and each column has its own learning rate, penalty
and stopping rule. Fits can share their steps only if they agree on the loss, the optimizer, the
batches and the policy (`group_step_estimators`).

References
----------
E. R. Sparks et al., "Automating model search for large scale machine learning" (TuPAQ), SoCC 2015:
batching turns the products of the rows and a vector into products of matrices, for one reading of
the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import Block, BlockInfo, inspect_block
from daskml_dist.data.collection import Collection
from daskml_dist.data.reduce import concatenate_lists, reduce_parts
from daskml_dist.errors import DaskMLDistError, DivergedError
from daskml_dist.estimators.batched_fits.solver_rounds import NotBatchableError, SolverFits
from daskml_dist.estimators.linear.sgd import BaseSGD
from daskml_dist.models.batched import BatchedLinear, BatchedStepLinear, FoldAssignment
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.ps.batched_optimizer import BatchedOptimizer
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, InverseScaling, Optimal, Schedule, StepDecay
from daskml_dist.solvers.batched_scores import SUMS_ONLY, ScoreParts
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary, TargetSummary
from daskml_dist.training.history import History
from daskml_dist.training.job import FitJob
from daskml_dist.training.learning_rate_search import calibrated_together, draw_calibration_sample
from daskml_dist.training.spec import FitSpec, Settings

#: Maximum columns of parameters trained together: a row of 1024 float64 numbers is 8 KiB, a few of
#: which fit in a core's L1 cache.
_MAX_STEP_COLUMNS = 1024
#: Schedules whose rates are never 0: a step under l1 divides by the rate (`take_ftrl_step`).
_POSITIVE_SCHEDULES = (Constant, InverseScaling, Optimal, StepDecay)
#: Parameters that a batch cannot vary, with the only supported values (that switch them off).
_FIXED_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "callbacks": (None,), "class_weight": (None,), "warm_start": (False,), "average": (False, 0),
    "early_stopping": (False,), "checkpoint": (None,), "groups": (None,), "pipeline": (None,),
    "clip": (None,), "micro_batch_size": (None,), "privacy": (None,),
}  # fmt: skip


@dataclass(eq=False)
class StepCandidate:
    """Fit of one candidate to the training rows of one split, and its progress.

    Attributes
    ----------
    candidate, split : int
        Indices.
    stopping : PassStoppingRule
    w : ndarray of shape (n_parameters, width), or None
        Parameters; None before the first pass.
    opt_state : dict of str to ndarray
        State of the optimizer, of the shape of `w`.
    step, rows : int and float
        Steps made and rows seen, from which schedules continue.
    n_iter : int
        Passes made.
    records : list of dict
        The pass and the mean training loss, one record for passes that were made in one go.
    seconds : float
        Share of the batch's time, which is divided evenly.
    """

    candidate: int
    split: int
    stopping: PassStoppingRule
    w: NDArray[Any] | None = None
    opt_state: dict[str, NDArray[Any]] = field(default_factory=dict)
    step: int = 0
    rows: float = 0.0
    n_iter: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def has_passes_left(self, last: int) -> bool:
        """Return whether to train on, up to pass `last`: neither converged nor diverged."""
        if self.stopping.converged or self.n_iter >= min(last, self.stopping.max_iter):
            return False
        # A diverged column would only spend time: its NaN never become finite.
        return self.w is None or bool(np.isfinite(self.w).all())


class BatchedSteps:
    """Linear models trained together by the same gradient steps, within :meth:`open_candidates`.

    Each candidate ends with the parameters of its own fit to all rows, in which the rows that its
    split does not train on have weight 0.

    Parameters
    ----------
    estimators : sequence of estimator
        Unfitted, of one group of :func:`group_step_estimators`.
    roles : FoldAssignment
        Role of each row in each split, by the row's code.
    classes : ndarray or None
        Sorted labels, whose indices are the targets; None for regression.
    """

    def __init__(self, estimators: Sequence[Any], roles: FoldAssignment, classes: Any) -> None:
        self.estimators, self.roles, self.classes = estimators, roles, classes

    @contextmanager
    def open_candidates(
        self, collection: Collection, client: Any = None
    ) -> Iterator[list[StepCandidate]]:
        """Hold the rows in memory; yield the candidates, by estimator and then by split."""
        self._settings = [estimator._check_settings(None) for estimator in self.estimators]
        with FitJob(collection, client, self._settings[0].run) as job:
            summary = job.summarize_rows()
            rows = job.rows = DatasetInfo.from_summary(summary, None, None, collection.is_weighted)
            job.lay_out_lanes(max(s.max_iter for s in self._settings))
            self._job, self._solver_fits = job, SolverFits(job)
            planner = _CandidatePlanner(job, self.roles, self.classes)
            self._split_infos = planner.summarize_splits(collection)
            # One model per split: they differ in the shift of the targets and the first intercept.
            self._models = [self.estimators[0]._model(info, None) for info in self._split_infos]
            self._model: LinearModel = self._models[0]
            weights = self._solver_fits.split_weights(self._batched_model).sum(axis=1)
            # A fit scales weights to a mean of 1 over its rows; here the rows are all rows.
            self._scales = tuple((rows.summary.n_rows / weights).tolist())
            self._plans = planner.plan_fits(
                self._settings, self._models, self._split_infos, self._scales
            )
            self._optimizer = _find_common_optimizer([plan for row in self._plans for plan in row])
            yield [
                StepCandidate(
                    number, split, PassStoppingRule(s.max_iter, s.tol, s.n_iter_no_change)
                )
                for number, plans in enumerate(self._plans)
                for split, s in enumerate(plan.steps.stopping for plan in plans)
            ]  # fmt: skip

    @property
    def _class_codes(self) -> NDArray[Any] | None:
        """Return the labels as in the targets; None for regression."""
        return None if self.classes is None else np.arange(len(self.classes))

    @property
    def _batched_model(self) -> BatchedLinear:
        """Return the batched model for sums over rows outside of training."""
        return BatchedLinear(self._model, self.roles, self._class_codes)

    # -- training ------------------------------------------------------------------------------

    def advance(self, columns: Iterable[StepCandidate], last: int) -> None:
        """Train candidates up to pass `last`, each until its stopping rule ends it."""
        columns = list(columns)
        chunk_size = max(1, _MAX_STEP_COLUMNS // self._model.width)
        while going := [column for column in columns if column.has_passes_left(last)]:
            # Columns of one fit make the same passes: the least advanced candidates catch up first.
            done = min(column.n_iter for column in going)
            current = [column for column in going if column.n_iter == done]
            # Without a tolerance losses are not checked, and all passes are made in one call.
            until = min(last, *(column.stopping.max_iter for column in current))
            if any(column.stopping.tol is not None for column in current):
                until = done + 1
            for start in range(0, len(current), chunk_size):
                self._train(current[start : start + chunk_size], until)

    def _train(self, columns: list[StepCandidate], until: int) -> None:
        """Train candidates that have made the same passes up to pass `until`, as one fit."""
        begin, done = time.perf_counter(), columns[0].n_iter
        # `BatchedStepLinear` needs the columns of a split side by side.
        columns = sorted(columns, key=lambda column: column.split)
        result = self._job.train(self._join_fits(columns, done, until))
        state, records = result.state, result.records
        assert isinstance(state, ShardState)
        width, seconds = self._model.width, time.perf_counter() - begin
        for k, column in enumerate(columns):
            at = slice(k * width, (k + 1) * width)
            # All rows of the parameters but the last one, which accumulates each model's loss.
            column.w = state.w[:-1, at].copy()
            column.opt_state = {
                name: array[:-1, at].copy() for name, array in state.opt_state.items()
            }
            column.step, column.rows = state.step, state.rows
            column.seconds += seconds / len(columns)
            seen = sum(record["rows"] for record in records)
            loss = float(state.w[-1, k * width]) / max(seen, 1)
            column.n_iter = until
            column.records.append({"pass": until, "loss": loss})
            column.stopping.update(column.records[-1])
        result.raise_if_interrupted(until)

    def _join_fits(self, columns: list[StepCandidate], first_pass: int, until: int) -> FitSpec:
        """Return the single fit of the passes from `first_pass` to `until` of some candidates."""
        width = self._model.width
        plans = [self._plans[column.candidate][column.split] for column in columns]
        settings = replace(
            self._settings[columns[0].candidate], max_iter=until, tol=None,
            optimizer=self._optimizer,
        )  # fmt: skip
        splits = tuple(column.split for column in columns)
        model = BatchedStepLinear(self._model, self.roles, self._class_codes, splits, self._scales)
        fit = self._job.plan_steps(settings, model, self._join_states(columns, plans, settings))
        # "auto" uses larger batches if these use few parameters, which no joint fit does.
        if fit.work.n_steps != plans[0].work.n_steps:
            raise NotBatchableError("Its batches are of another size.")
        rule = fit.steps.rule
        penalties = [self._settings[column.candidate].penalty for column in columns]
        # Schedules are mostly equal (often only one): each is evaluated once a step for all its
        # columns.
        schedules: list[Schedule] = []
        for schedule in (plan.steps.rule.schedule for plan in plans):
            if schedule not in schedules:
                schedules.append(schedule)
        optimizer = BatchedOptimizer(
            self._optimizer,
            tuple(schedules),
            np.repeat([schedules.index(plan.steps.rule.schedule) for plan in plans], width),
            np.repeat([penalty.l1 for penalty in penalties], width),
            np.repeat([penalty.l2 for penalty in penalties], width),
            rule.steps_per_pass,
        )
        # The penalty of strength 1 marks where a penalty applies; each column has its own
        # strengths.
        groups = tuple(
            replace(g, optimizer=optimizer, penalty=Penalty(1.0, 0.0)) if g.descends else g
            for g in rule.groups
        )
        rule = replace(rule, groups=groups, schedule=_PassesDone())
        return fit.replace_work(rule=rule, first_pass=first_pass)

    def _join_states(
        self, columns: list[StepCandidate], plans: list[FitSpec], settings: Settings
    ) -> ShardState:
        """Return the joint state of candidates; before the first pass, their own initial states."""
        first = columns[0]
        dtype = settings.dtype_of(self._job.rows.summary)

        def join(arrays: list[Any]) -> NDArray[Any]:
            """Join parameters as columns; the row of zeros below them sums the losses."""
            side_by_side = np.concatenate(arrays, axis=1)
            return np.concatenate([side_by_side, np.zeros_like(side_by_side[:1])])

        if first.w is None:
            starts = [plan.steps.make_start_state(dtype) for plan in plans]
            models = [self._models[column.split] for column in columns]
            # The joint fit has one shift of the targets, that of the first split's model.
            w = [self._model.moved(s.w, m.origin()) for s, m in zip(starts, models, strict=True)]
            opt_state = {
                name: join([s.opt_state[name] for s in starts]) for name in starts[0].opt_state
            }
            return ShardState(join(w), opt_state)
        opt_state = {name: join([c.opt_state[name] for c in columns]) for name in first.opt_state}
        return ShardState(join([c.w for c in columns]), opt_state, first.step, first.rows)

    # -- scores and fitted estimators ----------------------------------------------------------

    def scores(
        self, columns: Sequence[StepCandidate], role: int, score_parts: ScoreParts = SUMS_ONLY
    ) -> NDArray[np.float64]:
        """Return the sums of the candidates' scores over the rows of a role in their split."""
        return self._solver_fits.scores(
            self._batched_model, *_stack_parameters(columns), role, score_parts
        )

    def rankings(self, columns: Sequence[StepCandidate], role: int) -> NDArray[np.float64]:
        """Return the candidates' ranking scores, as :meth:`SolverFits.rankings` does."""
        return self._solver_fits.rankings(self._batched_model, *_stack_parameters(columns), role)

    def make_fitted(self, column: StepCandidate) -> Any:
        """Return the fitted estimator of a candidate."""
        unfitted = self.estimators[column.candidate]
        estimator = type(unfitted)(**unfitted.get_params(deep=False))
        assert column.w is not None
        # An infinite sum of squares makes adaptive steps zero: the parameters would seem converged.
        if not all(np.isfinite(array).all() for array in column.opt_state.values()):
            raise DivergedError("The squares of the gradients overflow. Scale the features.")
        estimator._set_parameters(column.w, self._model, self._split_infos[column.split])
        estimator._state = ShardState(column.w, column.opt_state, column.step, column.rows)
        estimator._last_model = self._model
        estimator.n_iter_, estimator.t_ = column.n_iter, column.rows
        extra = {"policy": self._settings[0].policy.name}
        estimator.history_ = History(list(column.records), extra=extra)
        return estimator


@dataclass(frozen=True)
class _PassesDone(Schedule):
    """Schedule whose "rate" is the number of passes done, for :class:`BatchedOptimizer`.

    An optimizer gets one number a step; each column's own schedule needs the passes instead.
    """

    name = "passes"

    def __call__(self, step: int, passes: float) -> float:
        return passes

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        return cls()


@dataclass(frozen=True, eq=False)
class _CandidatePlanner:
    """Planner of the fits that candidates would make alone, each on the training rows of a split.

    Parameters
    ----------
    job : FitJob
        Facts about all rows; the last column of their targets is a row's code plus 1.
    roles : FoldAssignment
    classes : ndarray or None
        Sorted labels; None for regression.
    """

    job: FitJob
    roles: FoldAssignment
    classes: Any

    def summarize_splits(self, collection: Collection) -> list[DatasetInfo]:
        """Return the facts about each split's training rows, as separate fits would find them."""
        rows, n_splits = self.job.rows, self.roles.n_splits
        # A classifier's labels and features are those of all rows, whatever the split.
        if self.classes is not None:
            summary = TargetSummary(rows.summary.infos)
            return [replace(rows, summary=summary, classes=self.classes)] * n_splits
        # Regression: the mean of a split's targets is the initial intercept, and their spread is
        # the unit of its loss.
        inspect = partial(_inspect_block_by_split, self.roles)
        if self.job.engine.streaming is None:
            infos_of_blocks = self.job.engine.map_kept_blocks(inspect)
        else:
            inspect_part = partial(_make_and_inspect, collection.block_maker, inspect)
            infos_of_blocks = reduce_parts(collection, inspect_part, concatenate_lists)
        return [
            replace(rows, summary=DataSummary([of_splits[split] for of_splits in infos_of_blocks]))
            for split in range(n_splits)
        ]

    def plan_fits(
        self, settings: Sequence[Settings], models: Sequence[LinearModel],
        split_infos: Sequence[DatasetInfo], scales: Sequence[float],
    ) -> list[list[FitSpec]]:  # fmt: skip
        """Return the plans of each candidate, one a split, with calibrated learning rates."""
        plans = [
            [
                self._plan_fit(one, model, rows)
                for model, rows in zip(models, split_infos, strict=True)
            ]
            for one in settings
        ]
        # The settings of a batch have the same `auto_rate`: the first represents all.
        if not (settings[0].calibrates and settings[0].auto_rate):
            return plans
        # One sample is used for all pilots; in each split's pilots its other rows have weight 0.
        n_fits = len(settings) * len(models)
        sample = draw_calibration_sample(
            plans[0][0], settings[0], self.job.lanes, self.job.engine, n_fits=n_fits
        )
        factor = self.job.rows.weight_scale or 1.0
        plans_by_split = [
            _calibrate_split(
                [row[split] for row in plans], self._mask_sample(sample, split), scale * factor,
                settings[0].seed,
            )
            for split, scale in enumerate(scales)
        ]  # fmt: skip
        return [list(row) for row in zip(*plans_by_split, strict=True)]

    def _plan_fit(self, settings: Settings, model: LinearModel, rows: DatasetInfo) -> FitSpec:
        """Return the plan of one candidate's own fit; raise if no batch can make its steps."""
        plan = self.job.plan_steps(settings, model, rows=rows)
        work = plan.steps
        # Sparse updates change few coordinates each, which columns of a batch cannot do separately.
        # Two groups are the coefficients and the intercept.
        if work.coordinates or work.steps_single_rows or len(work.rule.groups) > 2:
            raise NotBatchableError("Its steps are in few of the parameters.")
        return plan

    def _mask_sample(self, sample: Block, split: int) -> Block:
        """Return the sample with weights of 0 for all rows except a split's training rows."""
        if sample.y is None:
            return sample
        y = sample.y[:, 0]
        if self.classes is not None:
            y = self.classes[y.astype(np.int64)]
        return replace(
            sample, target=y, sample_weight=_weigh_training_rows(self.roles, sample, split)
        )


def _find_common_optimizer(plans: Sequence[FitSpec]) -> Optimizer:
    """Return the optimizer that all fits share; raise if it, or its state, differs."""
    # A pilot may have replaced one fit's Adagrad by NAG, or warmed the state of only some fits.
    (first, _), *others = {
        (
            p.steps.rule.only_group.optimizer,
            frozenset(p.steps.make_start_state(p.rows.dtype).opt_state),
        )
        for p in plans
    }
    if others:
        raise NotBatchableError("Their steps are in other units, or begin with another state.")
    return first


def _calibrate_split(
    plans: Sequence[FitSpec], block: Block, scale: float, seed: int
) -> list[FitSpec]:
    """Return a split's plans with the rates that pilots find on its weighted rows."""
    # The scale that gives the split's rows a mean weight of 1 is only for the pilots: in the joint
    # fit `BatchedStepLinear` applies it.
    weighed = [replace(plan, rows=replace(plan.rows, weight_scale=scale)) for plan in plans]
    found = calibrated_together(weighed, block, seed)
    return [replace(one, rows=plan.rows) for one, plan in zip(found, plans, strict=True)]


def _weigh_training_rows(roles: FoldAssignment, block: Block, split: int) -> Any:
    """Return the weights of a block's rows, 0 for all except a split's training rows."""
    assert block.y is not None
    codes = block.y[:, 1].astype(np.int64) - 1
    given = 1.0 if block.sample_weight is None else block.sample_weight
    return roles.count_training_draws(codes, split) * given


def _inspect_block_by_split(roles: FoldAssignment, block: Block) -> list[BlockInfo]:
    """Return the facts about a block's training rows in each split."""
    assert block.y is not None
    infos = []
    for split in range(roles.n_splits):
        weight = _weigh_training_rows(roles, block, split).astype(np.float64)
        infos.append(inspect_block(replace(block, target=block.y[:, 0], sample_weight=weight)))
    return infos


def _make_and_inspect(
    make_block: Callable[..., Block],
    inspect: Callable[[Block], Any],
    index: int,
    *block_inputs: Any,
) -> Any:
    """Return a list of one block's facts, to be concatenated with those of the others."""
    return [inspect(make_block(index, *block_inputs))]


def _stack_parameters(columns: Sequence[StepCandidate]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the parameters of candidates, stacked, and the split of each."""
    w: list[Any] = [column.w for column in columns]
    return np.stack(w), np.array([column.split for column in columns])


def group_step_estimators(estimators: Sequence[Any]) -> list[list[int]] | None:
    """Return the indices of estimators in groups to be batched; None if one cannot be."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, estimator in enumerate(estimators):
        if (
            type(estimator) is not type(estimators[0])
            or (key := _find_group_key(estimator)) is None
        ):
            return None
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _find_group_key(estimator: Any) -> tuple[str, ...] | None:
    """Return the key shared by estimators of one batch; None if it cannot be batched."""
    # Bounds of times are two numbers, but a column of a batch reads one target.
    if not isinstance(estimator, BaseSGD) or estimator._survival_loss is not None:
        return None
    params = estimator._params()
    if any(params.get(name) not in allowed for name, allowed in _FIXED_PARAMETERS.items()):
        return None
    # Each fit would draw from the generator, and so have a different order of rows.
    if isinstance(params["random_state"], np.random.RandomState):
        return None
    try:
        settings, loss = estimator._check_settings(None), estimator._loss()
    except DaskMLDistError:
        return None  # the estimator's own fit raises the error
    if not _settings_can_batch(settings):
        return None
    # Settings that the fits of a batch must share; candidates may differ in the rest: strengths of
    # the penalty, rates, tolerances, numbers of passes.
    names = ("fit_intercept", "batch_size", "shuffle", "random_state", "run", "device", "dtype")
    return (
        loss.name, repr(loss.parameters), str(type(loss)), repr(settings.policy),
        repr(settings.optimizer), str(settings.penalty.l1 > 0), str(settings.auto_rate),
        *(repr(params.get(name)) for name in names),
    )  # fmt: skip


def _settings_can_batch(settings: Settings) -> bool:
    """Return whether fits of such settings can be trained in the same steps."""
    policy, optimizer, run = settings.policy, settings.optimizer, settings.run
    # Racing threads have no common steps. With a tolerance each pass is a separate fit, at whose
    # end a policy that averages replicas would average again.
    if policy.uses_threads or (policy.averages and settings.tol is not None):
        return False
    if policy.draws_lanes or policy.sums_within_hosts:
        return False
    if run.shard != "rows" or run.compression is not None or run.compute_dtype is not None:
        return False
    # Rates by column need an elementwise update, and scales of features belong to each plan.
    if type(optimizer).elementwise_update is None or optimizer.uses_scales:
        return False
    if settings.schedule.scales_with_staleness:
        return False
    # Fits are columns of one matrix, which an outer step of whole matrices would mix.
    outer = policy.outer_optimizer
    if outer is not None and outer.optimizer.elementwise_update is None:
        return False
    return not settings.penalty.l1 or isinstance(settings.schedule, _POSITIVE_SCHEDULES)
