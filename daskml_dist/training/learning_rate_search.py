"""Initial parameters and learning rates of linear models' steps (``learning_rate="auto"``).

`calibrated` draws a sample of the rows (`draw_sample_rows`: the same rows wherever they are
stored). A pilot (`daskml_dist.training.pilot`) minimises the loss on it and tries rates, and the
fit is returned with the results. `calibrated_together` does so for the many fits of a search. If
rows arrive one by one there is no sample, and `rate_for_row_size` is the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.devices import get_backend, stored_dtype
from daskml_dist.backends.host_threads import BlasThreads
from daskml_dist.backends.namespace import namespace
from daskml_dist.data.batches import LaneRows, LaneSpec, Segment, count_held_out_rows
from daskml_dist.data.blocks import Block
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.feature_scales import compute_block_scales
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers.adagrad import NAG, Adagrad
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState, pack_rows
from daskml_dist.schedules import Constant
from daskml_dist.training.engine import Engine
from daskml_dist.training.pilot import (
    MAX_WHITENED,
    ROWS_PER_PARAMETER,
    Pilot,
    StackedPilot,
    search_best_rate,
    search_calm_rate,
)
from daskml_dist.training.spec import FitSpec, Settings

#: Blocks that are read again for a sample, where rows are streamed.
SAMPLED_BLOCKS = 8
#: Number of rows from which a sample is taken from a few blocks even if rows are in memory, where
#: some of them are held out: finding the held-out rows of all blocks would take longer than the
#: pilot.
_FEW_BLOCKS_FROM = 1 << 22


def _take_rows(block: Block, positions: NDArray[np.intp]) -> Block:
    """Return some rows of a block, by their positions in it."""
    y, weight = (None if a is None else a[positions] for a in (block.y, block.sample_weight))
    rows = block.rows
    if sparse.issparse(rows):
        return Block(block.index, rows[positions], y, weight)
    xp = namespace(rows)
    return Block(block.index, copy_to_host(xp.take(rows, xp.asarray(positions), axis=0)), y, weight)


def draw_sample_rows(
    engine: Engine, lanes: Sequence[LaneSpec], n_rows: int, seed: int, held_out: float
) -> Block:
    """Draw training rows without replacement; all of them where they are no more than `n_rows`.

    Rows that a share `held_out` of each block reserves for validation are never drawn. The draw
    depends on the seed and the rows' positions in the collection, not on the division into lanes.
    """
    by_columns = engine.columns is not None
    # Lanes that hold columns all have the same rows: the first lane's numbering is that of all.
    training_rows = _TrainingRows(lanes[:1] if by_columns else lanes, seed, held_out)
    rng = np.random.default_rng((seed, n_rows))
    # Streamed rows: a few blocks only, so that not all are read again.
    if engine.streaming is not None or (held_out > 0 and training_rows.n_rows > _FEW_BLOCKS_FROM):
        training_rows.keep_random_blocks(SAMPLED_BLOCKS, rng)
    # Draw numbers among all rows, then find the block and position of each.
    total = training_rows.n_rows
    chosen = np.arange(total)
    if total > n_rows:
        chosen = np.sort(rng.choice(total, n_rows, replace=False, shuffle=False))
    places = training_rows.find_places(chosen)
    if not by_columns:
        return _join_rows(engine.map_chosen_blocks(_take_rows, dict(sorted(places.items()))))
    parts = []
    for lane in lanes:
        lane_places = {
            s.block: places[s.seed_block] for s in lane.segments if s.seed_block in places
        }
        parts.append(
            _join_rows(engine.map_chosen_blocks(_take_rows, dict(sorted(lane_places.items()))))
        )
    columns = [part.rows for part in parts]
    dense = not any(sparse.issparse(X) for X in columns)
    X = np.hstack(columns) if dense else sparse.hstack(columns, format="csr")
    return replace(parts[0], rows=X)


class _TrainingRows:
    """Numbering of the rows that lanes train on, in block order, without a list of them.

    Parameters
    ----------
    lanes : sequence of LaneSpec
    seed : int
        Seed of the fit, from which held-out rows are drawn.
    held_out : float
        Share of each block's rows that is held out.
    """

    def __init__(self, lanes: Sequence[LaneSpec], seed: int, held_out: float) -> None:
        self._seed, self._held_out = seed, held_out
        segments = [segment for lane in lanes for segment in lane.segments]
        self._all = sorted(segments, key=lambda segment: (segment.seed_block, segment.start))

    @property
    def _segment_sizes(self) -> list[int]:
        """Return the number of training rows of each segment."""
        return [len(s) - count_held_out_rows(s, self._held_out) for s in self._all]

    @property
    def n_rows(self) -> int:
        """Return the number of training rows."""
        return sum(self._segment_sizes)

    def keep_random_blocks(self, n_blocks: int, rng: np.random.Generator) -> None:
        """Remove the rows of all but some randomly drawn blocks."""
        numbers = sorted({segment.seed_block for segment in self._all})
        if len(numbers) > n_blocks:
            kept_numbers = set(rng.choice(numbers, n_blocks, replace=False).tolist())
            self._all = [segment for segment in self._all if segment.seed_block in kept_numbers]

    def find_places(self, row_numbers: NDArray[np.intp]) -> dict[int, NDArray[np.intp]]:
        """Return, by block, the positions in it of rows given by their sorted numbers."""
        ends = np.cumsum(self._segment_sizes)
        parts = np.split(row_numbers, np.searchsorted(row_numbers, ends[:-1]))
        positions_by_block: dict[int, list[NDArray[np.intp]]] = {}
        for segment, part, end, size in zip(
            self._all, parts, ends, self._segment_sizes, strict=True
        ):
            if len(part):
                positions = self._training_positions(segment, part - (end - size))
                positions_by_block.setdefault(segment.seed_block, []).append(positions)
        return {number: np.concatenate(rows) for number, rows in positions_by_block.items()}

    def _training_positions(
        self, segment: Segment, positions: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Return positions in the block, given positions among a segment's training rows."""
        if not count_held_out_rows(segment, self._held_out):
            return positions + segment.start
        lane = LaneRows(LaneSpec(0, (segment,)), 1, self._seed, True, self._held_out)
        ((_, held_out_rows),) = lane.held_out
        # The same held-out rows as the fit draws from its seed.
        rows = np.arange(segment.start, segment.stop)
        return np.setdiff1d(rows, held_out_rows, assume_unique=True)[positions]


def _join_rows(blocks: list[Block]) -> Block:
    """Join the rows of blocks into one block; an empty one where there are no blocks."""
    if not blocks:
        return Block(0, np.empty((0, 0)))
    rows: list[Any] = [part.rows for part in blocks]
    dense = not any(sparse.issparse(X) for X in rows)
    X = np.concatenate(rows) if dense else sparse.vstack(rows, format="csr")
    return Block(
        0,
        X,
        _concatenate_or_none([p.y for p in blocks]),
        _concatenate_or_none([p.sample_weight for p in blocks]),
    )


def _concatenate_or_none(arrays: list[Any]) -> Any:
    """Concatenate arrays; None where blocks have none."""
    return None if arrays[0] is None else np.concatenate(arrays)


#: Entries that one pass over the sample may always read: 4 ms, at about a nanosecond each.
_SAMPLE_WORK = 1 << 22
#: Share of the rows that a sample may have in any case: the pilot's passes over it then take about
#: a tenth of the fit.
SAMPLE_SHARE = 1 / 8
#: Rows of a sample at most, and entries (64 MiB in float64): the client holds it in memory.
MAX_SAMPLE_ROWS, MAX_SAMPLE_ENTRIES = 1 << 16, 1 << 23
#: Rows that suffice, in all and per coefficient, whichever is more: the first steps of the fit
#: reach the precision that a larger sample would add as fast.
_SUFFICIENT_ROWS, _SUFFICIENT_ROWS_PER_COEFFICIENT = 1 << 14, 256
#: Rows of the rarest label that suffice: with fewer, its share in a half is off by several percent.
_SUFFICIENT_ROWS_OF_A_LABEL = 1 << 11
#: Entries of sparse rows that suffice, each read twice in a pass: a pilot of 0.2 s.
_SUFFICIENT_SPARSE_ENTRIES = 1 << 20
#: Rows of more columns than `_SUFFICIENT_ROWS`: share of both numbers that suffices. Such a sample
#: only finds the coefficients of frequent columns, for which fewer rows are enough.
_WIDE_SHARE = 1 / 4
#: Least rows of a sample that many fits share; and most, for pilots that are run one by one.
SHARED_ROWS = 1 << 11
#: Most parameters that a sample may touch: the client holds a pilot's vectors in memory.
_MAX_TOUCHED_PARAMETERS = 1 << 21
#: Largest magnitude of all features, or its inverse, beyond which Adagrad is replaced.
_FAR_UNITS = 10.0
#: Iterations of the quasi-Newton method at most.
ITERATIONS = 200
#: Useful change of a prediction by the first step: in log-odds, standard deviations of targets, or
#: logarithms of times.
_FIRST_MOVES = {"classification": 4.0, "regression": 2.0, "survival": 1.0}
#: Largest rate, for rows that are nearly empty.
_LARGEST_FIRST_RATE = 0.5
#: Rows whose size is averaged: enough for two digits.
_FIRST_RATE_ROWS = 1000


def calibrated(
    fit: FitSpec,
    settings: Settings,
    lanes: Sequence[LaneSpec],
    engine: Engine,
    rarest_share: float = 1.0,
) -> FitSpec:
    """Return the fit with the initial parameters, rates and tolerance that a pilot finds.

    `rarest_share` is the rarest label's share of the rows (`choose_sample_size`).
    """
    # Report the phase to the callbacks.
    engine.report_phase("finding a learning rate")
    sample = draw_calibration_sample(fit, settings, lanes, engine, rarest_share)
    return calibrated_on(fit, sample, settings.seed)


def draw_calibration_sample(
    fit: FitSpec,
    settings: Settings,
    lanes: Sequence[LaneSpec],
    engine: Engine,
    rarest_share: float = 1.0,
    n_fits: int = 1,
) -> Block:
    """Draw the sample of rows on which one or several fits are calibrated."""
    model = get_linear_model(fit)
    # Several targets share the sample, which is sized for one of them: each has its own pilot.
    model = model if model.n_targets is None else model.of_target(0)
    n_sample = choose_sample_size(sum(rows_of_each_lane(fit)), model, rarest_share)
    if n_fits > 1 and not (
        is_narrow_dense_fit(fit) and n_sample >= 2 * ROWS_PER_PARAMETER * model.shape[0]
    ):
        n_sample = min(n_sample, max(n_sample // n_fits, SHARED_ROWS))
    return draw_sample_rows(engine, lanes, n_sample, settings.seed, settings.validation_fraction)


def calibrated_on(fit: FitSpec, block: Block, seed: int) -> FitSpec:
    """Return the fit as a pilot on a given sample calibrates it."""
    # Products of a few thousand rows take less time than threads take to start.
    with np.errstate(all="ignore"), BlasThreads():
        return _calibrate_fit(fit, block, seed)


def calibrated_together(fits: Sequence[FitSpec], block: Block, seed: int) -> list[FitSpec]:
    """Return fits of one model and optimizer, calibrated on one shared sample.

    Pilots run as columns of one matrix where that is possible (`CalibrationTask.can_batch`), else
    one by one.
    """
    with np.errstate(all="ignore"), BlasThreads():
        # The first fit's task is used for all: they differ only in penalties, rates and stopping.
        first = CalibrationTask.from_sample(fits[0], block, seed)
        if first is None or len(fits) == 1 or not first.can_batch(fits):
            return [_calibrate_fit(fit, block, seed) for fit in fits]
        stacked = StackedPilot(first.pilot, [fit.steps.rule.only_group.penalty.l2 for fit in fits])
        tasks = [replace(first, fit=fit, unit=abs(float(value))) for fit, value in zip(
            fits, stacked.values(np.repeat(first.initial_params, len(fits), axis=1)), strict=True
        )]  # fmt: skip
        half_minima, w = (
            np.concatenate(points, axis=1).astype(first.initial_params.dtype)
            for points in stacked.find_minima(first.initial_params, ITERATIONS, first.has_all_rows)
        )
        opt_state = {
            name: np.repeat(s, len(fits), axis=1) for name, s in first.touched_state.items()
        }
        warm_state = {}
        if isinstance(first.optimizer, Adagrad | NAG):
            warm_state = stacked.warm_optimizer(first.optimizer, w, opt_state, first.n_step_rows)
        factors = stacked.rates(
            first.optimizer, half_minima, warm_state or opt_state,
            [task.base_rate for task in tasks], first.n_step_rows,
            search_calm_rate if first.has_all_rows else search_best_rate,
        )  # fmt: skip
        return [
            task.make_calibrated_fit(
                w[:, k : k + 1], {n: s[:, k : k + 1] for n, s in warm_state.items()}, factor
            )
            for k, (task, factor) in enumerate(zip(tasks, factors, strict=True))
        ]


def _calibrate_fit(fit: FitSpec, block: Block, seed: int) -> FitSpec:
    """Return the fit calibrated on a sample; unchanged if the sample cannot be used."""
    if get_linear_model(fit).n_targets is not None:
        return _calibrate_each_target(fit, block, seed)
    task = CalibrationTask.from_sample(fit, block, seed)
    if task is None:
        return fit
    return task.calibrated_fit()


def choose_sample_size(n_rows: int, model: LinearModel, rarest_share: float) -> int:
    """Return the number of rows of the sample: a pilot takes about a tenth of the fit's time.

    `rarest_share` is the rarest label's share of the rows; 1: targets are numbers.
    """
    d = model.n_features
    # Cost of one row of the sample in one pass: its entries, and its predictions.
    is_dense = model.touches is None or d <= MAX_WHITENED
    entries = d if is_dense else max(2 * (model.touches or 0), 1)
    work = entries * (1 + model.width / 8) + 10 * model.width
    affordable = max(_SAMPLE_WORK / work, n_rows * SAMPLE_SHARE)
    # No sample has all columns of sparse rows often, so their number does not count.
    sufficient = max(
        _SUFFICIENT_ROWS,
        _SUFFICIENT_ROWS_PER_COEFFICIENT * d * model.width
        if is_dense
        else _SUFFICIENT_SPARSE_ENTRIES / entries,
        _SUFFICIENT_ROWS_OF_A_LABEL / rarest_share,
    )
    sufficient = min(sufficient, MAX_SAMPLE_ROWS)
    # Up to twice as many rows are all taken: their minimum is the end of the fit.
    if n_rows <= 2 * sufficient:
        sufficient = n_rows
    elif not is_dense and d > _SUFFICIENT_ROWS:
        rows_for_rarest = _SUFFICIENT_ROWS_OF_A_LABEL / rarest_share
        sufficient = max(_WIDE_SHARE * sufficient, min(rows_for_rarest, MAX_SAMPLE_ROWS))
    return max(
        1,
        int(
            min(
                n_rows,
                affordable,
                max(MAX_SAMPLE_ENTRIES / entries, 1024),
                sufficient,
                MAX_SAMPLE_ROWS,
            )
        ),
    )


def _calibrate_each_target(fit: FitSpec, block: Block, seed: int) -> FitSpec:
    """Return a fit of several targets, each calibrated as a fit of its own.

    Targets whose sample cannot be used start as the fit does, at the rate of the others.
    """
    model = get_linear_model(fit)
    target_fits = [_select_target(fit, k) for k in range(model.width)]
    assert block.y is not None
    tasks = [
        CalibrationTask.from_sample(target_fit, replace(block, target=block.y[:, k].copy()), seed)
        for k, target_fit in enumerate(target_fits)
    ]
    first_task = next((task for task in tasks if task is not None), None)
    if first_task is None:
        return fit
    calibrated = [
        target_fit if task is None else task.calibrated_fit()
        for target_fit, task in zip(target_fits, tasks, strict=True)
    ]
    rates = [target_fit.steps.rule.schedule(1, 0.0) for target_fit in calibrated]
    for k, (target_fit, uncalibrated) in enumerate(zip(calibrated, target_fits, strict=True)):
        # This target's pilot found no rate: use its own rate, converted to the optimizer of the
        # others, which may be NAG instead of Adagrad.
        if target_fit is uncalibrated:
            rates[k] *= first_task.base_rate / first_task.fit.steps.rule.schedule(1, 0.0)
    if model.loss.in_target_units:
        units = tuple(1.0 if task is None else task.unit for task in tasks)
        model = replace(model, units=units)
    opt_state = [(first_task if task is None else task).opt_state for task in tasks]
    return fit.replace_work(
        model=model,
        initial=_join_target_states(
            [target_fit.steps.make_start_state(fit.rows.dtype) for target_fit in calibrated],
            opt_state,
        ),
        rule=first_task.rule.with_constant_rates(rates),
    )


def _join_target_states(states: list[ShardState], fresh: list[dict[str, Any]]) -> ShardState:
    """Join the states of single targets as columns; `fresh` replaces missing optimizer states."""
    names = next((tuple(state.opt_state) for state in states if state.opt_state), ())
    opt_state = {
        name: np.hstack(
            [s.opt_state.get(name, f[name]) for s, f in zip(states, fresh, strict=True)]
        )
        for name in names
    }
    return ShardState(np.hstack([state.w for state in states]), opt_state)


def _select_target(fit: FitSpec, target: int) -> FitSpec:
    """Return the fit of one of several targets, given its number."""
    state, column = fit.steps.make_start_state(fit.rows.dtype), slice(target, target + 1)
    opt_state = {name: array[:, column].copy() for name, array in state.opt_state.items()}
    return fit.replace_work(
        model=get_linear_model(fit).of_target(target),
        initial=ShardState(state.w[:, column].copy(), opt_state),
        rule=fit.steps.rule.take_column_at_rate(target),
    )


def get_linear_model(fit: FitSpec) -> LinearModel:
    """Return the model of a fit, which must be linear."""
    model = fit.steps.model
    assert isinstance(model, LinearModel)
    return model


@dataclass(frozen=True, eq=False)
class CalibrationTask:
    """Fit to be calibrated, with the pilot on its sample.

    Parameters
    ----------
    fit : FitSpec
    pilot : Pilot
        Pilot for the parameters that the sample touches.
    columns : ndarray of int
        Rows of the parameters that the sample touches.
    opt_state : dict of str to ndarray
        Initial optimizer state of all parameters.
    initial_params : ndarray
        Initial values of the parameters that the sample touches.
    rule : UpdateRule
        Update rule, with an optimizer that suits the features' units.
    unit : float
        Magnitude of the loss at `initial_params`.
    has_all_rows : bool
        Whether the sample is all rows.
    """

    fit: FitSpec
    pilot: Pilot
    columns: Any
    opt_state: dict[str, Any]
    initial_params: Any
    rule: UpdateRule
    unit: float
    has_all_rows: bool

    @classmethod
    def from_sample(cls, fit: FitSpec, block: Block, seed: int) -> CalibrationTask | None:
        """Return the task of a fit; None if its sample cannot be used."""
        work, model = fit.steps, get_linear_model(fit)
        # An empty sample, or groups of parameters with their own rates, leave the fit unchanged.
        if block.n_rows == 0 or len(work.rule.groups) > 1:
            return None
        # The sum of the rows' squares must not overflow (and no entry be NaN).
        largest = _largest_magnitude(block.rows)
        if not largest * largest * block.rows.size < np.inf:
            return None
        block = replace(block, rows=_round_to_stored_dtype(block.rows, fit))
        columns = _find_touched_rows(block.rows, model)
        if (
            not (columns < model.n_features).any()
            or len(columns) * model.width > _MAX_TOUCHED_PARAMETERS
        ):
            return None
        state = work.make_start_state(fit.rows.dtype)
        X = block.rows
        if len(columns) < model.shape[0]:
            X = X[:, columns[columns < model.n_features]]
        # The pilot sees only the columns that occur in the sample.
        small = replace(model, n_features=X.shape[1])
        assert block.y is not None
        pilot = Pilot(
            small, X.astype(fit.rows.dtype, copy=False),
            model.encode(block.y, fit.rows.classes, fit.rows.dtype), fit.rows.weights(block),
            work.rule.only_group.penalty, seed,
        )  # fmt: skip
        start = state.w[columns]
        unit = abs(pilot.value(start))
        # From a loss of 0 no rate gains anything, and from an infinite one no descent starts.
        if not 0 < unit < np.inf:
            return None
        rule = _choose_unit_free_optimizer(work.rule, largest)
        opt_state = state.opt_state or _opt_state(rule.only_group.optimizer, state.w, block, model)
        has_all_rows = block.n_rows == sum(rows_of_each_lane(fit))
        return cls(fit, pilot, columns, opt_state, start, rule, unit, has_all_rows)

    @property
    def optimizer(self) -> Optimizer:
        """Return the optimizer of all parameters."""
        return self.rule.only_group.optimizer

    @property
    def n_step_rows(self) -> int:
        """Return the rows of one step of the parameters."""
        return count_step_rows(self.fit)

    @property
    def base_rate(self) -> float:
        """Return the learning rate that factors multiply, converted where the optimizer is new."""
        rule = self.fit.steps.rule
        base = rule.schedule(1, 0.0) * self.optimizer.default_learning_rate
        return base / rule.only_group.optimizer.default_learning_rate

    @property
    def touched_state(self) -> dict[str, Any]:
        """Return the optimizer state of the parameters that the sample touches."""
        return {name: array[self.columns] for name, array in self.opt_state.items()}

    def can_batch(self, fits: Sequence[FitSpec]) -> bool:
        """Return whether the pilots of all fits can run as columns of one matrix."""
        # The minimisers of columns and of single pilots differ by their tolerances. A pilot of few
        # rows is cheap, so each fit has its own, and the same digits as when it is fitted alone.
        if self.pilot.n_rows <= SHARED_ROWS:
            return False
        rules = [fit.steps.rule.only_group for fit in fits]
        if any(rule.optimizer != rules[0].optimizer for rule in rules):
            return False
        if type(self.optimizer).elementwise_update is None or not all(
            map(is_narrow_dense_fit, fits)
        ):
            return False
        return StackedPilot.serves(self.pilot, len(fits))

    def calibrated_fit(self) -> FitSpec:
        """Return the fit as calibrated by its own pilot."""
        start = _StartSearch(self.pilot, self.optimizer, self.n_step_rows, self.base_rate)
        return self.make_calibrated_fit(
            *start.find_start(self.initial_params, self.touched_state, self.has_all_rows)
        )

    def make_calibrated_fit(self, w: Any, warm_state: dict[str, Any], factor: float) -> FitSpec:
        """Return the fit that begins at `w` and `warm_state`, at a factor times the base rate."""
        fit, work, columns = self.fit, self.fit.steps, self.columns
        if not (
            np.isfinite(w).all() and all(np.isfinite(array).all() for array in warm_state.values())
        ):
            return fit
        # Adagrad's accumulator holds squared gradients: of batch means in the pilot; where rows are
        # steps, of gradients that are not divided by the batch's rows.
        if work.single_rows and "accumulator" in warm_state:
            warm_state["accumulator"] *= self.n_step_rows**2
        start, stopping = work.make_start_state(fit.rows.dtype), work.stopping
        opt_state = {name: array.copy() for name, array in self.opt_state.items()}
        start.w[columns] = w
        for name, array in warm_state.items():
            opt_state[name][columns] = array
        if get_linear_model(fit).loss.in_target_units and stopping.tol is not None:
            stopping = replace(stopping, tol=stopping.tol * self.unit)
        rule = replace(
            self.rule,
            groups=tuple(
                replace(group, penalty=own_group.penalty)
                for group, own_group in zip(self.rule.groups, work.rule.groups, strict=True)
            ),
            schedule=Constant(self.base_rate * factor),
        )
        # Every process gets the start: of a model of millions of parameters, few are touched.
        initial = ShardState(
            pack_rows(start.w, columns),
            {name: pack_rows(array, columns) for name, array in opt_state.items()}
            if warm_state
            else {},
        )
        return fit.replace_work(initial=initial, rule=rule, stopping=stopping)


def is_narrow_dense_fit(fit: FitSpec) -> bool:
    """Return whether a fit has one output, few dense features, and no l1 penalty."""
    model, rules = get_linear_model(fit), fit.steps.rule.groups
    dense = model.touches is None and model.n_features <= MAX_WHITENED
    return (
        dense
        and model.width == 1
        and model.n_targets is None
        and not any(rule.penalty.l1 for rule in rules)
    )


def _round_to_stored_dtype(X: Any, fit: FitSpec) -> Any:
    """Return the rows, rounded as a GPU will store them; unchanged on the CPU."""
    kind = fit.rows.compute_dtype
    if kind is None or sparse.issparse(X) or get_backend(fit.run.device).device == "cpu":
        return X
    return X.astype(stored_dtype(kind)).astype(fit.rows.dtype)


def _find_touched_rows(X: Any, model: LinearModel) -> Any:
    """Return the rows of the parameters that the sample has entries for, and the intercept's."""
    if not sparse.issparse(X):
        return np.arange(model.shape[0])
    touched = np.zeros(model.shape[0], bool)
    touched[X.indices] = touched[model.n_features :] = True
    return np.flatnonzero(touched)


def _choose_unit_free_optimizer(rule: UpdateRule, largest: float) -> UpdateRule:
    """Return the rule with NAG in place of Adagrad where the largest feature is far from 1.

    Steps of NAG change predictions equally in any units of the features.
    """
    if type(rule.only_group.optimizer) is not Adagrad:
        return rule
    # The largest column is decisive: smaller ones matter little beside it.
    if not largest or 1 / _FAR_UNITS <= largest <= _FAR_UNITS:
        return rule
    return replace(rule, groups=(replace(rule.only_group, optimizer=NAG()),))


@dataclass(frozen=True, eq=False)
class _StartSearch:
    """Search for initial parameters and a learning rate by one pilot.

    Parameters
    ----------
    pilot : Pilot
    optimizer : Optimizer
    batch : int
        Rows of a step.
    base : float
        Learning rate that factors multiply.
    """

    pilot: Pilot
    optimizer: Optimizer
    batch: int
    base: float

    def find_start(
        self, initial_params: Any, opt_state: dict[str, Any], has_all_rows: bool
    ) -> tuple[Any, dict[str, Any], float]:
        """Return parameters, the optimizer's state (empty: fresh) and the factor on the rate.

        `has_all_rows`: the sample is all rows, so that its minimum is where the fit ends.
        """
        pilot = self.pilot
        # All rows: their minimum is the end of the fit. A part of them: minimise on one half until
        # the other half's loss stops falling, then on the whole sample for as many steps.
        if has_all_rows:
            w, converged = pilot.minimise_all_rows(initial_params, ITERATIONS)
            half_minimum = w
        else:
            half_minimum, n_iter = pilot.minimum_of_half(initial_params, ITERATIONS)
            w, converged = pilot.minimise_all_rows(initial_params, max(n_iter, 1))[0], False
        w, half_minimum = w.astype(initial_params.dtype), half_minimum.astype(initial_params.dtype)
        rate = pilot.find_calm_rate if converged else pilot.find_best_rate
        warm = self._warm_optimizer(w, opt_state)
        return w, warm, rate(self.optimizer, half_minimum, warm or opt_state, self.base, self.batch)

    def _warm_optimizer(self, w: Any, opt_state: dict[str, Any]) -> dict[str, Any]:
        """Return optimizer state that has seen the sample, if the optimizer can start from it."""
        # Adagrad's and NAG's sums of squares may include gradients of steps that were never made;
        # the moments of Adam or momentum are directions of steps, and start from zero.
        if not isinstance(self.optimizer, Adagrad | NAG):
            return {}
        return self.pilot.warm_optimizer(self.optimizer, w, opt_state, self.batch)


def _opt_state(optimizer: Optimizer, w: Any, block: Block, model: LinearModel) -> dict[str, Any]:
    """Return the state of an optimizer before its first step."""
    if not isinstance(optimizer, NAG):
        return optimizer.init(w)
    scales = compute_block_scales(block)
    if model.fit_intercept:
        scales = scales.with_intercept()
    return optimizer.init_scaled(w, scales.largest, scales.norm)


def _largest_magnitude(X: Any) -> float:
    """Return the largest absolute value; NaN if the array has a NaN."""
    values = X.data if sparse.issparse(X) else X
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def count_step_rows(fit: FitSpec) -> int:
    """Return the rows of one step of the parameters, over all lanes that step together."""
    rows_of_lanes, policy = rows_of_each_lane(fit), fit.steps.policy
    in_lockstep = policy.lockstep and not policy.averages
    rows = sum(rows_of_lanes) if in_lockstep else max(rows_of_lanes) * policy.push_every
    return max(1, -(-rows // fit.steps.n_steps))


def rows_of_each_lane(fit: FitSpec) -> tuple[int, ...]:
    """Return the rows of each lane; of the first lane where lanes hold columns of all rows."""
    return fit.rows.lane_rows if fit.steps.columns is None else fit.rows.lane_rows[:1]


def measure_row_size(engine: Engine, lanes: Sequence[LaneSpec], seed: int) -> float:
    """Return the mean l1 norm of a row, over a sample."""
    rows = draw_sample_rows(engine, lanes, _FIRST_RATE_ROWS, seed, 0.0).rows
    entries = rows.data if sparse.issparse(rows) else rows
    total = np.abs(entries).sum(dtype=np.float64)
    return float(total / max(rows.shape[0], 1))


def rate_for_row_size(model: LinearModel) -> float:
    """Return the rate at which a first step changes a prediction by a useful amount.

    Adagrad's first step changes the coefficient of each entry of a row by the rate, and so the
    row's prediction by the rate times its l1 norm (`model.row_size`).
    """
    assert model.row_size is not None
    move, row_size = _FIRST_MOVES[model.loss.kind], model.row_size + float(model.fit_intercept)
    return move / max(row_size, move / _LARGEST_FIRST_RATE)
