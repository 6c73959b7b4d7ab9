"""Batches of fits by gradient steps: candidates and splits are columns that the same steps train.

E. R. Sparks et al., "Automating model search for large scale machine learning" (TuPAQ), SoCC 2015.
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
from daskml_dist.optimizers import Optimizer
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

#: Columns of parameters trained together at most: so many rows of them stay in a core's caches.
_MAX_STEP_CANDIDATES = 1024
#: Schedules whose rates are never 0: lazy l1 of a column would be lost at a rate of 0.
_POSITIVE_SCHEDULES = (Constant, InverseScaling, Optimal, StepDecay)
#: Parameters that a batch cannot vary, and the only values that it takes.
_FIXED_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "callbacks": (None,), "class_weight": (None,), "warm_start": (False,), "average": (False, 0),
    "early_stopping": (False,), "checkpoint": (None,), "groups": (None,), "pipeline": (None,),
    "clip": (None,), "micro_batch_size": (None,),
}  # fmt: skip


@dataclass(eq=False)
class StepCandidate:
    """Fit of a candidate to the training rows of a split, and how far it has come.

    Attributes
    ----------
    candidate, split : int
    stopping : PassStoppingRule
        Its own.
    n_iter : int
        Passes made.
    records : list of dict
        Passes and mean training losses, one for passes that were made together.
    seconds : float
        Its share of the batch's time.
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
        """Return whether a pass is left, up to pass `last`: not converged, and finite."""
        if self.stopping.converged or self.n_iter >= min(last, self.stopping.max_iter):
            return False
        return self.w is None or bool(np.isfinite(self.w).all())


class BatchedSteps:
    """Fits of linear models by gradient steps, all in the same steps; used in :meth:`opened`.

    Each candidate gets what its own fit would with weights of 0 for all rows but the training
    rows of its split.

    Parameters
    ----------
    estimators : sequence of estimator
        Unfitted, of one of :func:`group_step_estimators`.
    roles : FoldAssignment
        What codes of rows mean.
    classes : ndarray or None
        Labels of the targets' codes.
    """

    def __init__(self, estimators: Sequence[Any], roles: FoldAssignment, classes: Any) -> None:
        self.estimators, self.roles, self.classes = estimators, roles, classes

    @contextmanager
    def opened(
        self, collection: Collection, weighted: bool, client: Any = None
    ) -> Iterator[list[StepCandidate]]:
        """Hold the rows of a fit; yield the candidates, of each estimator one a split."""
        self._settings = [estimator._check_settings(None) for estimator in self.estimators]
        with FitJob(collection, client, self._settings[0].run) as job:
            rows = job.rows = DatasetInfo.of(job.summarize_rows(), None, None, weighted)
            job.lay_out_lanes(max(s.max_iter for s in self._settings))
            self._job, self._asked = job, SolverFits(job)
            own = CandidatePlans(job, self.roles, self.classes)
            self._rows_of = own.rows_of_splits(collection)
            #: Of each split: these differ in where their parameters begin.
            self._models = [self.estimators[0]._model(some, None) for some in self._rows_of]
            self._model: LinearModel = self._models[0]
            weights = self._asked.split_weights(self._stacked).sum(axis=1)
            self._scales = tuple((rows.survey.n_rows / weights).tolist())
            self._plans = own.of(self._settings, self._models, self._rows_of, self._scales)
            self._optimizer = find_common_optimizer([plan for row in self._plans for plan in row])
            yield [
                StepCandidate(
                    number, split, PassStoppingRule(s.max_iter, s.tol, s.n_iter_no_change)
                )
                for number, plans in enumerate(self._plans)
                for split, s in enumerate(plan.steps.stopping for plan in plans)
            ]  # fmt: skip

    @property
    def _codes(self) -> NDArray[Any] | None:
        return None if self.classes is None else np.arange(len(self.classes))

    @property
    def _stacked(self) -> BatchedLinear:
        return BatchedLinear(self._model, self.roles, self._codes)

    # -- training ------------------------------------------------------------------------------

    def advance(self, columns: Iterable[StepCandidate], last: int) -> int:
        """Train candidates up to pass `last`; return the passes made, summed over candidates."""
        columns, made = list(columns), 0
        while going := [column for column in columns if column.has_passes_left(last)]:
            done = min(column.n_iter for column in going)
            now = [column for column in going if column.n_iter == done]
            until = min(last, *(column.stopping.max_iter for column in now))
            if any(column.stopping.tol is not None for column in now):
                until = done + 1
            most = max(1, _MAX_STEP_CANDIDATES // self._model.width)
            for start in range(0, len(now), most):
                self._train(now[start : start + most], until)
            made += len(now) * (until - done)
        return made

    def _train(self, columns: list[StepCandidate], until: int) -> None:
        begin, done = time.perf_counter(), columns[0].n_iter
        columns = sorted(columns, key=lambda column: column.split)
        result = self._job.train(self._fit_of(columns, done, until))
        state, records = result.state, result.records
        assert isinstance(state, ShardState)
        width, seconds = self._model.width, time.perf_counter() - begin
        for k, column in enumerate(columns):
            at = slice(k * width, (k + 1) * width)
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

    def _fit_of(self, columns: list[StepCandidate], done: int, until: int) -> FitSpec:
        """Return the one fit of some candidates that makes the passes after `done`."""
        width = self._model.width
        plans = [self._plans[column.candidate][column.split] for column in columns]
        settings = replace(
            self._settings[columns[0].candidate], max_iter=until, tol=None,
            optimizer=self._optimizer,
        )  # fmt: skip
        splits = tuple(column.split for column in columns)
        model = BatchedStepLinear(self._model, self.roles, self._codes, splits, self._scales)
        fit = self._job.plan_steps(settings, model, self._state_of(columns, plans, settings))
        if fit.work.n_steps != plans[0].work.n_steps:
            raise NotBatchableError("Its batches are of another size.")
        rule = fit.steps.rule
        penalties = [self._settings[column.candidate].penalty for column in columns]
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
        # The penalty of strength 1 marks where one applies; each column has strengths of its own.
        groups = tuple(
            replace(g, optimizer=optimizer, penalty=Penalty(1.0, 0.0)) if g.descends else g
            for g in rule.groups
        )
        rule = replace(rule, groups=groups, schedule=_PassesDone())
        return fit.replace_work(rule=rule, first_pass=done)

    def _state_of(
        self, columns: list[StepCandidate], plans: list[FitSpec], settings: Settings
    ) -> ShardState:
        """Return the candidates' joint state so far; at first, where their own fits would start."""
        first = columns[0]
        dtype = settings.dtype_of(self._job.rows.survey)

        def joined(arrays: list[Any]) -> NDArray[Any]:
            side_by_side = np.concatenate(arrays, axis=1)
            return np.concatenate([side_by_side, np.zeros_like(side_by_side[:1])])

        if first.w is None:
            begun = [plan.steps.make_start_state(dtype) for plan in plans]
            models = [self._models[column.split] for column in columns]
            w = [self._model.moved(s.w, m.origin()) for s, m in zip(begun, models, strict=True)]
            opt_state = {
                name: joined([s.opt_state[name] for s in begun]) for name in begun[0].opt_state
            }
            return ShardState(joined(w), opt_state)
        opt_state = {name: joined([c.opt_state[name] for c in columns]) for name in first.opt_state}
        return ShardState(joined([c.w for c in columns]), opt_state, first.step, first.rows)

    # -- what came of it -----------------------------------------------------------------------

    def scores(
        self, columns: Sequence[StepCandidate], role: int, looks: ScoreParts = SUMS_ONLY
    ) -> NDArray[np.float64]:
        """Return the sums of the candidates' scores over the rows of a role in their split."""
        return self._asked.scores(self._stacked, *_stack_parameters(columns), role, looks)

    def rankings(self, columns: Sequence[StepCandidate], role: int) -> NDArray[np.float64]:
        """Return the candidates' ranking scores, as :meth:`SolverFits.rankings` does."""
        return self._asked.rankings(self._stacked, *_stack_parameters(columns), role)

    def fitted(self, column: StepCandidate) -> Any:
        """Return the fitted estimator of a candidate."""
        made = self.estimators[column.candidate]
        estimator = type(made)(**made.get_params(deep=False))
        assert column.w is not None
        if not all(np.isfinite(array).all() for array in column.opt_state.values()):
            raise DivergedError("The squares of the gradients overflow. Scale the features.")
        estimator._set_parameters(column.w, self._model, self._rows_of[column.split])
        estimator._state = ShardState(column.w, column.opt_state, column.step, column.rows)
        estimator._last_model = self._model
        estimator.n_iter_, estimator.t_ = column.n_iter, column.rows
        extra = {"policy": self._settings[0].policy.name}
        estimator.history_ = History(list(column.records), extra=extra)
        return estimator


@dataclass(frozen=True)
class _PassesDone(Schedule):
    """Schedule that is the number of passes done: a `BatchedOptimizer` finds all rates by it."""

    name = "passes"

    def __call__(self, step: int, passes: float) -> float:
        return passes

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        return cls()


@dataclass(frozen=True, eq=False)
class CandidatePlans:
    """Plans of fits with weights of 0 for all rows but the training rows of a split.

    Parameters
    ----------
    job : FitJob
        Of all rows; their targets have codes beside them.
    roles : FoldAssignment
    classes : ndarray or None
        Labels of the targets' codes.
    """

    job: FitJob
    roles: FoldAssignment
    classes: Any

    def rows_of_splits(self, collection: Collection) -> list[DatasetInfo]:
        """Return the facts of the rows as the fits of each split know them."""
        rows, n_splits = self.job.rows, self.roles.n_splits
        if self.classes is not None:
            survey = TargetSummary(rows.survey.infos)
            return [replace(rows, survey=survey, classes=self.classes)] * n_splits
        # Targets of the training rows tell where parameters begin, and their units.
        look = partial(inspect_block_by_split, self.roles)
        if self.job.engine.streaming is None:
            of_blocks = self.job.engine.map_kept_blocks(look)
        else:
            make = collection.block_maker
            of_blocks = reduce_parts(
                collection, partial(_make_and_apply, make, look), concatenate_lists
            )
        return [
            replace(rows, survey=DataSummary([of_block[split] for of_block in of_blocks]))
            for split in range(n_splits)
        ]

    def of(
        self, settings: Sequence[Settings], models: Sequence[LinearModel],
        rows_of: Sequence[DatasetInfo], scales: Sequence[float],
    ) -> list[list[FitSpec]]:  # fmt: skip
        """Return the plans of each candidate, one a split."""
        plans = [
            [self._plan(of, model, rows) for model, rows in zip(models, rows_of, strict=True)]
            for of in settings
        ]
        # Settings of a stack are alike in how they find a rate.
        if not (settings[0].calibrates and settings[0].auto_rate):
            return plans
        n_fits = len(settings) * len(models)
        sample = draw_calibration_sample(
            plans[0][0], settings[0], self.job.lanes, self.job.engine, n_fits=n_fits
        )
        factor = self.job.rows.weight_scale or 1.0
        of_splits = [
            (self._in_split(sample, split), scale * factor) for split, scale in enumerate(scales)
        ]
        columns = [
            _calibrate_split([row[split] for row in plans], block, scale, settings[0].seed)
            for split, (block, scale) in enumerate(of_splits)
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def _plan(self, settings: Settings, model: LinearModel, rows: DatasetInfo) -> FitSpec:
        plan = self.job.plan_steps(settings, model, rows=rows)
        work = plan.steps
        if work.coordinates or work.steps_single_rows or len(work.rule.groups) > 2:
            raise NotBatchableError("Its steps are in few of the parameters.")
        return plan

    def _in_split(self, sample: Block, split: int) -> Block:
        """Return the sample with weights of 0 for all but a split's training rows."""
        if sample.y is None:
            return sample
        y = sample.y[:, 0]
        if self.classes is not None:
            y = self.classes[y.astype(np.int64)]
        return replace(sample, y=y, sample_weight=_weigh_training_rows(self.roles, sample, split))


def find_common_optimizer(plans: Sequence[FitSpec]) -> Optimizer:
    """Return the optimizer that all fits share; raise where it, or its state, differs."""
    (first, _), *others = {
        (p.steps.rule.only.optimizer, frozenset(p.steps.make_start_state(p.rows.dtype).opt_state))
        for p in plans
    }
    if others:
        raise NotBatchableError("Their steps are in other units, or begin with another state.")
    return first


def _calibrate_split(
    plans: Sequence[FitSpec], block: Block, scale: float, seed: int
) -> list[FitSpec]:
    """Return a split's plans with the rates that pilots find on its weighted rows."""
    weighed = [replace(plan, rows=replace(plan.rows, weight_scale=scale)) for plan in plans]
    found = calibrated_together(weighed, block, seed)
    return [replace(one, rows=plan.rows) for one, plan in zip(found, plans, strict=True)]


def _weigh_training_rows(roles: FoldAssignment, block: Block, split: int) -> Any:
    """Return the weights of a block's rows, 0 for all but a split's training rows."""
    assert block.y is not None
    codes = block.y[:, 1].astype(np.int64) - 1
    given = 1.0 if block.sample_weight is None else block.sample_weight
    return roles.trained(codes, split) * given


def inspect_block_by_split(roles: FoldAssignment, block: Block) -> list[BlockInfo]:
    """Return the facts of a block as fits to the training rows of each split know it."""
    assert block.y is not None
    found = []
    for split in range(roles.n_splits):
        weight = _weigh_training_rows(roles, block, split).astype(block.rows.dtype)
        found.append(inspect_block(replace(block, y=block.y[:, 0], sample_weight=weight)))
    return found


def _make_and_apply(
    make: Callable[..., Block], look: Callable[[Block], Any], i: int, *part: Any
) -> Any:
    return [look(make(i, *part))]


def _stack_parameters(columns: Sequence[StepCandidate]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the parameters of candidates, stacked, and the split of each."""
    w: list[Any] = [column.w for column in columns]
    return np.stack(w), np.array([column.split for column in columns])


def group_step_estimators(estimators: Sequence[Any]) -> list[list[int]] | None:
    """Return the numbers of estimators whose fits can be one; None where one cannot be batched."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, estimator in enumerate(estimators):
        if (
            type(estimator) is not type(estimators[0])
            or (key := _find_group_key(estimator)) is None
        ):
            return None
        found.setdefault(key, []).append(number)
    return list(found.values())


def _find_group_key(estimator: Any) -> tuple[str, ...] | None:
    """Return the key that estimators of one batch share; None where one cannot be batched."""
    if not isinstance(estimator, BaseSGD):
        return None
    params = estimator._params()
    if any(params.get(name) not in plain for name, plain in _FIXED_PARAMETERS.items()):
        return None
    if isinstance(params["random_state"], np.random.RandomState):
        return None
    try:
        settings, loss = estimator._check_settings(None), estimator._loss()
    except DaskMLDistError:
        return None  # its own fit says so
    return (
        _describe_shared_settings(params, settings, loss) if _settings_can_batch(settings) else None
    )


def _settings_can_batch(settings: Settings) -> bool:
    """Return whether fits of such settings can be trained in the same steps."""
    policy, optimizer, run = settings.policy, settings.optimizer, settings.run
    if policy.uses_threads or (policy.averages and settings.tol is not None):
        return False
    if run.shard != "rows" or run.compression is not None or run.compute_dtype is not None:
        return False
    if type(optimizer).elementwise_update is None or optimizer.uses_scales:
        return False
    if settings.schedule.scales_with_staleness:
        return False
    return not settings.penalty.l1 or isinstance(settings.schedule, _POSITIVE_SCHEDULES)


def _describe_shared_settings(
    params: dict[str, Any], settings: Settings, loss: Any
) -> tuple[str, ...]:
    """Return what the fits of a batch must have in common, as a key."""
    names = ("fit_intercept", "batch_size", "shuffle", "random_state", "run", "device", "dtype")
    own = (
        str(type(loss)),
        repr(settings.policy),
        repr(settings.optimizer),
        str(settings.penalty.l1 > 0),
        str(settings.auto_rate),
    )
    return (loss.name, repr(loss.parameters), *own, *(repr(params.get(name)) for name in names))
