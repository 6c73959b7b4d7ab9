"""Fits that run as a sequence of shorter fits ("parts").

A fit runs in parts where it writes checkpoints, where a callback needs the parameters after each
pass, or where the learning rate is adaptive.

Each part is a fit that starts where the one before ended. A `FitProgress` knows how far a fit has
come and which part is next: `StepsProgress` continues from parameters and optimizer state,
`RoundsProgress` from the log of a solver. `train_in_parts` is the one loop over the parts, and
`WholeFitCallbacks` makes them look like one fit to callbacks. A checkpoint holds the state of the
progress and JSON facts; those of its identity decide whether a file is of this fit.
"""

from __future__ import annotations

import json
import os
import reprlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import (
    CheckpointError,
    CommunicationError,
    DivergedError,
    InvalidParameterError,
)
from daskml_dist.models.base import StepModel, identity_of
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.solvers.base import Solution
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import (
    Checkpoint,
    CheckpointFiles,
    decode_solver_log,
    is_count_fact,
    is_number_fact,
)
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.history import RECORD_KEYS
from daskml_dist.training.spec import FitSpec, OwnRowsWork, RoundWork
from daskml_dist.training.worker.loops.rounds import SolverPoint, SumLog

_Path = str | os.PathLike[str]
_Log = NDArray[np.uint8]
#: Most bytes of the facts of any fit (labels and records apart from passes): 256 MiB.
MAX_FACTS_BYTES = 1 << 28
#: Most bytes of the JSON record of one pass.
MAX_RECORD_BYTES = 1 << 12


class WholeFitCallbacks(CallbackList):
    """Callbacks for which all parts are one fit, with passes numbered from first to last.

    Parameters
    ----------
    callbacks : CallbackList
    with_parameters : bool, default=True
        Whether callbacks that need the parameters are called at the end of each part, when the
        client has them. If False, all are called as each pass ends, and a callback that needs
        parameters is refused.
    """

    def __init__(self, callbacks: CallbackList, *, with_parameters: bool = True) -> None:
        super().__init__(callbacks)
        self._wrapped = callbacks
        #: The `run` argument of callbacks for the present part; None before the first part.
        self.view: Any = None
        #: Added to the number of each pass: a part may count its passes from 1 again.
        self.pass_offset = 0
        #: Whether `on_pass_end` is delayed until the part's end.
        self._delays_passes = with_parameters and callbacks.need_parameters

    @property
    def stopped(self) -> bool:
        """Return whether the user has stopped the fit."""
        return self.view is not None and self.view.stopped

    def on_fit_begin(self, run: Any) -> None:
        """Call `on_fit_begin` for the first part only."""
        # Each part has its own run, which callbacks must get; only the first part begins the fit.
        is_first, self.view = self.view is None, run
        if is_first:
            super().on_fit_begin(run)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Renumber the pass, and call `on_pass_end` now unless it is delayed to the part's end."""
        record["pass"] += self.pass_offset
        if not self._delays_passes:
            super().on_pass_end(run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Renumber a pass that was repeated after a loss, and call the callbacks unless delayed."""
        record["pass"] += self.pass_offset
        if not self._delays_passes:
            super().on_pass_redone(run, record)

    def has_raised(self, error: BaseException) -> bool:
        """Return whether an error was raised by a callback rather than by the fit."""
        return super().has_raised(error) or self._wrapped.has_raised(error)

    def on_part_end(self, records: list[dict[str, Any]], state: ShardState) -> None:
        """Call the delayed `on_pass_end` of a part's passes, with the parameters after them."""
        if self._delays_passes:
            # The view gets the state first: callbacks read the parameters from it.
            self.view.take_part_end(state, self.fitted)
            for record in records:
                super().on_pass_end(self.view, record)

    def on_fit_end(self, run: Any, error: BaseException | None = None) -> None:
        """Call `on_fit_end` for an error only: the end of a part is not the end of the fit."""
        if error is not None:
            super().on_fit_end(run, error)

    def finish(self, error: BaseException | None = None) -> None:
        """Call `on_fit_end` for the whole fit, if it has begun."""
        if self.view is not None:
            super().on_fit_end(self.view, error)


def train_in_parts(
    engine: Engine,
    progress: FitProgress,
    callbacks: CallbackList,
    checkpoint: Checkpoint | None = None,
) -> FitResult:
    """Run a fit part by part, from its checkpoint on if there is one, and return its result.

    A part has as many passes as there are between two checkpoints, or one if a callback or
    `progress` needs the parameters after each pass; else it ends where `progress` determines.
    """
    if checkpoint is not None:
        # Fail before the first pass, not after hours.
        checkpoint.check_writable()
        if checkpoint.resume:
            progress.resume(checkpoint)
    whole_fit = WholeFitCallbacks(callbacks, with_parameters=progress.exposes_parameters)
    length = None if checkpoint is None else checkpoint.every
    if progress.checks_each_pass or (progress.exposes_parameters and callbacks.need_parameters):
        length = 1
    try:
        # A part ends with a pass: no updates are pending then, under any synchronisation policy.
        while not progress.is_over(whole_fit.stopped):
            part = progress.next_part(length, whole_fit.stopped)
            # Most parts number their passes on from `first_pass`; after a restart with a smaller
            # rate they count from 1 again.
            whole_fit.pass_offset = len(progress.records) - part.work.first_pass
            result = engine.train(part, whole_fit)
            progress.add(result, whole_fit.stopped)
            if progress.interrupted is not None:
                # Interrupted inside a pass: a checkpoint here could not be resumed bit for bit.
                break
            whole_fit.on_part_end(result.records, progress.state)
            if checkpoint is not None and progress.is_due(checkpoint.every, whole_fit.stopped):
                checkpoint.save(*progress.get_saved_state())
    except BaseException as error:
        # Callbacks are called for every end. After Ctrl-C there may still be a result.
        whole_fit.finish(error)
        if not (isinstance(error, KeyboardInterrupt) and progress.can_end_early):
            raise
        progress.interrupted = error  # the result of the earlier parts is returned
    whole_fit.finish(progress.interrupted)
    # A callback may choose other final parameters, such as the best of all passes.
    if whole_fit.view is not None and (w := whole_fit.view.ending) is not None:
        progress.set_final_parameters(w, checkpoint)
    return progress.result()


class FitProgress(ABC):
    """Progress of a fit in parts: the results so far, and the fit that remains.

    Attributes
    ----------
    fit : FitSpec
        Specification of the remaining fit.
    records : list of dict
        Records of the passes made so far.
    state : ShardState or Solution
        State after the last part.
    interrupted : KeyboardInterrupt or None
        Interruption that ended the fit early.
    """

    #: Whether callbacks can get the parameters between two parts.
    exposes_parameters: ClassVar[bool]
    #: Whether parts have one pass each, since convergence is checked on the parameters.
    checks_each_pass = False
    state: Any

    def __init__(self, fit: FitSpec) -> None:
        self.fit = fit
        self.records: list[dict[str, Any]] = []
        self.interrupted: KeyboardInterrupt | None = None
        self._part_results: list[FitResult] = []

    @abstractmethod
    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from the newest intact file of a checkpoint; raise if it is of another fit."""

    @abstractmethod
    def is_over(self, stopped: bool) -> bool:
        """Return whether the fit has ended; `stopped`: a callback asked to stop it."""

    @abstractmethod
    def next_part(self, length: int | None, stopped: bool) -> FitSpec:
        """Return the specification of the next part: at most `length` passes (None: all)."""

    def add(self, result: FitResult, stopped: bool) -> None:
        """Take over the result of a part."""
        for number, record in enumerate(result.records, start=len(self.records) + 1):
            # A checkpoint is refused unless its records are of passes 1, 2, ...
            record["pass"] = number
        self._part_results.append(result)
        self.records = self.records + result.records
        self.state, self.interrupted = result.state, result.interrupted

    def is_due(self, checkpoint_interval: int, stopped: bool) -> bool:
        """Return whether a checkpoint is due after the latest part."""
        # The end is saved whatever `every` is: a fit with a larger max_iter can go on from there.
        return self.is_over(stopped) or len(self.records) % checkpoint_interval == 0

    @abstractmethod
    def get_saved_state(self) -> tuple[Any, dict[str, Any]]:
        """Return the state and the facts to be written into a checkpoint."""

    @property
    def can_end_early(self) -> bool:
        """Return whether the parts so far give a result if the next one is interrupted."""
        return self.exposes_parameters and bool(self._part_results)

    def set_final_parameters(self, w: Any, checkpoint: Checkpoint | None) -> None:  # noqa: B027
        """Replace the final parameters, also in the checkpoint; nothing where none are exposed."""

    @property
    def stopping(self) -> PassStoppingRule:
        """Return the stopping rule in its state after the last pass."""
        return self._part_results[-1].stopping

    def result(self) -> FitResult:
        """Return the result of the whole fit."""
        parts = self._part_results
        return FitResult(
            self.state,
            self.records,
            self.stopping,
            sum(part.partial_rows for part in parts),
            sum(part.dropped for part in parts),
            sum(part.lost_rows for part in parts),
            [event for part in parts for event in part.events],
            self.interrupted,
        )


@dataclass(frozen=True)
class AdaptiveRate:
    """Learning rate that is divided when the loss stops improving: scikit-learn's "adaptive".

    Parameters
    ----------
    restarts : bool
        Whether the stopping rule and the order of the rows are reset with each new rate.
    """

    restarts: bool = False
    #: Divisor of the rate, and the rate at or below which the fit ends; both as in scikit-learn.
    divisor: ClassVar[float] = 5.0
    min_rate: ClassVar[float] = 1e-6


class StepsProgress(FitProgress):
    """Progress of a fit by gradient steps: a part continues from parameters and optimizer state.

    Parameters
    ----------
    fit : FitSpec
    adaptive_rate : AdaptiveRate or None
        None: the rate follows the schedule, and the fit ends when the loss stops improving.
    has_settled : callable, optional
        Returns whether the fit has converged, given the state after a pass.
    """

    exposes_parameters = True
    state: ShardState

    def __init__(
        self,
        fit: FitSpec,
        adaptive_rate: AdaptiveRate | None = None,
        has_settled: Callable[[ShardState], bool] | None = None,
    ) -> None:
        super().__init__(fit)
        self.state = fit.make_start_state()
        self._adaptive_rate, self._has_settled = adaptive_rate, has_settled
        self.checks_each_pass = has_settled is not None
        #: Stopping rule and seed that a new rate is reset to (`AdaptiveRate.restarts`).
        self._initial_rule, self._initial_seed = replace(fit.work.stopping), fit.work.seed

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from the newest intact file of a checkpoint; raise if it is of another fit."""
        files = CheckpointFiles.from_url(os.fspath(checkpoint.path), checkpoint.keep)
        saved = files.load_newest(_largest_checkpoint_bytes(self.fit))
        if saved is not None:
            self.fit, self.records = resume_from_checkpoint(self.fit, checkpoint.path, *saved)
            self.state = self.fit.make_start_state()

    def is_over(self, stopped: bool) -> bool:
        """Return whether the passes are used up, or the fit has converged or was stopped."""
        work = self.fit.work
        return work.first_pass >= work.stopping.max_iter or work.stopping.converged or stopped

    def next_part(self, length: int | None, stopped: bool) -> FitSpec:
        """Return the specification of the next part: at most `length` passes (None: all)."""
        work = self.fit.work
        # A part is the same fit with a smaller `max_iter`.
        last_pass = work.stopping.max_iter
        if length is not None:
            last_pass = min(work.first_pass + length, last_pass)
        return self.fit.replace_work(stopping=replace(work.stopping, max_iter=last_pass))

    def add(self, result: FitResult, stopped: bool) -> None:
        """Take over the result of a part."""
        super().add(result, stopped)
        if self._adaptive_rate is None:
            # Parameters that are not finite must not reach a checkpoint.
            if not np.isfinite(self.state.w).all():
                raise DivergedError(
                    "The parameters became NaN or infinite. Lower learning_rate, or scale the "
                    "features (StandardScaler). The last checkpoint is from an earlier pass."
                )
        work = self.fit.work
        # The next part starts from this state, and its stopping rule keeps the best loss.
        self.fit = self.fit.replace_work(
            initial=self.state,
            stopping=replace(result.stopping, max_iter=work.stopping.max_iter),
            first_pass=work.first_pass + len(result.records),
        )
        if self.interrupted is not None or stopped:
            return
        if self._has_settled is not None and self._has_settled(self.state):
            self.fit.work.stopping.converged = True
        if self._adaptive_rate is not None and self.fit.work.stopping.converged:
            self._lower_rate(self._adaptive_rate)

    def _lower_rate(self, adaptive_rate: AdaptiveRate) -> None:
        """Continue with a smaller rate, unless the fit or the range of rates is at its end."""
        work = self.fit.steps
        rate = cast(Constant, work.rule.schedule).learning_rate
        if rate <= adaptive_rate.min_rate or work.first_pass >= work.stopping.max_iter:
            return
        # The best loss stays: the smaller rate must improve on it.
        self.fit = self.fit.replace_work(
            rule=replace(work.rule, schedule=Constant(rate / adaptive_rate.divisor)),
            stopping=replace(work.stopping, stale_passes=0, converged=False),
        )
        if adaptive_rate.restarts:
            # All rates together make at most `max_iter` passes, each rate in an order of rows of
            # its own.
            n_done = len(self.records)
            self.fit = self.fit.replace_work(
                stopping=replace(self._initial_rule, max_iter=self._initial_rule.max_iter - n_done),
                seed=self._initial_seed + n_done,
                first_pass=0,
            )

    def get_saved_state(self) -> tuple[ShardState, dict[str, Any]]:
        """Return the state and the facts to be written into a checkpoint."""
        return self.state, make_checkpoint_facts(self.fit, self.records)

    def set_final_parameters(self, w: Any, checkpoint: Checkpoint | None) -> None:
        """Replace the final parameters, also in the checkpoint."""
        self.state = self.state.with_final_parameters(w)
        if checkpoint is not None and self.interrupted is None:
            checkpoint.save(*self.get_saved_state())

    @property
    def stopping(self) -> PassStoppingRule:
        """Return the stopping rule in its state after the last pass."""
        return self.fit.work.stopping


class RoundsProgress(FitProgress):
    """Progress of a fit by a round solver, or by a solver that trainers run on their own rows.

    A checkpoint of a round solver holds its log: the latest state that the solver saved, if it
    saves any, and the sums over the rows that it has got since. On resuming, the solver runs again
    from that state and gets the logged sums without a pass, so that it ends with the same bits as a
    fit without checkpoints. Sums too large to be logged are left out. If a solver saves no state
    and its sums exceed 256 MB, no newer checkpoint is written. Of a solver that trainers run on
    their own rows (`RowSolver`), a checkpoint holds the state after the last iteration.

    Parameters
    ----------
    fit : FitSpec
    seed : int or None
        Seed that was drawn because the user gave no `random_state`; saved in the checkpoint, from
        which :func:`load_saved_seed` gets it.
    """

    exposes_parameters = False
    state: Solution

    def __init__(self, fit: FitSpec, seed: int | None = None) -> None:
        # The solver's vectors are split between the trainers: none could write the whole state.
        if isinstance(fit.work, RoundWork) and fit.work.in_ranges:
            raise InvalidParameterError(
                "Checkpoints are not supported if trainers hold ranges of the vectors. Leave "
                "the Checkpoint out, or raise "
                'dask.config.set({"daskml_dist.ranges_from": parameters}).'
            )
        super().__init__(fit)
        self._seed = seed
        self._log: _Log | None = None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from the newest intact file of a checkpoint; raise if it is of another fit."""
        files = CheckpointFiles.from_url(os.fspath(checkpoint.path), checkpoint.keep)
        if (saved := files.load_newest_by(decode_solver_log)) is None:
            return
        log, facts = saved
        if problem := _describe_other_fit(
            _rounds_identity(self.fit), facts
        ) or _describe_impossible_log(self.fit, log, facts):
            raise CheckpointError(
                f"{checkpoint.path} {problem}. Name another file, or set resume=False to start "
                "again."
            )
        self._log, self.records = log, facts["records"]

    def is_over(self, stopped: bool) -> bool:
        """Return whether the solver has finished: one that is only paused returns its log."""
        return bool(self._part_results) and self._log is None

    def next_part(self, length: int | None, stopped: bool) -> FitSpec:
        """Return the fit that resumes from the log and pauses after at most `length` passes."""
        # A stopped solver does not pause again: it runs to its own end, and returns its last
        # iterate instead of a log.
        n_done = len(self.records)
        return self.fit.replace_work(
            log=self._log,
            first_pass=n_done,
            pause_at=None if stopped or length is None else n_done + length,
            is_stopped=stopped,
        )

    def add(self, result: FitResult, stopped: bool) -> None:
        """Take over the result of a part."""
        super().add(result, stopped)
        self._log = self.state.extra.get("log")

    def is_due(self, checkpoint_interval: int, stopped: bool) -> bool:
        """Return whether the solver returned a log, which a checkpoint saves."""
        return self._log is not None

    def get_saved_state(self) -> tuple[Any, dict[str, Any]]:
        """Return the log and the facts to be written into a checkpoint."""
        facts = {"records": self.records, "drawn_seed": self._seed}
        return self._log, {**_rounds_identity(self.fit), **facts}


# -- checkpoints of fits by steps ------------------------------------------------------------------


def make_checkpoint_facts(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts that a checkpoint holds beside the state, as JSON can hold them."""
    rule = fit.work.stopping
    return {
        **_steps_identity(fit),
        "passes": fit.work.first_pass,
        "seed": fit.work.seed,
        "origin": fit.steps.model.origin(),
        "best": rule.best,
        "stale_passes": rule.stale_passes,
        "records": records,
    }


#: Most bytes of a checkpoint of a growing table: 1 TiB, more than a file of one host's memory.
_MOST_TABLE_BYTES = 1 << 40


def _largest_checkpoint_bytes(fit: FitSpec) -> int:
    """Return the most bytes that a checkpoint of this fit can have."""
    # Parameters, their average and the optimizer's state arrays have the same size.
    n_arrays = 2 + len(fit.steps.rule.state_names)
    if fit.steps.model.table is not None:
        return _MOST_TABLE_BYTES
    size = fit.steps.n_parameters * np.dtype(fit.rows.dtype).itemsize
    return n_arrays * size + MAX_FACTS_BYTES + MAX_RECORD_BYTES * fit.work.stopping.max_iter


def resume_from_checkpoint(
    fit: FitSpec, path: _Path, state: ShardState, metadata: dict[str, Any]
) -> tuple[FitSpec, list[dict[str, Any]]]:
    """Return the fit that continues from a state, and the records of its passes so far."""
    # Another model or dtype explains wrong shapes, so differences of identity are reported first.
    if (
        problem := _describe_other_fit(_steps_identity(fit), metadata)
        or _describe_state_mismatch(fit, state)
        or _describe_impossible_facts(state, metadata)
    ):
        raise CheckpointError(
            f"{path} {problem}. Name another file, or set resume=False to start again."
        )
    if fit.steps.rule.average_after is None:  # else the old average would be taken as the result
        state = replace(state, average=None, n_averaged=0)
    # Models may subtract an origin from the data, which can differ between fits: the parameters
    # are converted to this fit's origin.
    state = _move_to_origin(state, metadata.get("origin"), fit.steps.model, path)
    stopping = replace(
        fit.work.stopping, best=metadata["best"], stale_passes=metadata["stale_passes"]
    )
    resumed = fit.replace_work(
        initial=state, stopping=stopping, seed=metadata["seed"], first_pass=metadata["passes"]
    )
    return resumed, metadata["records"]


def _steps_identity(fit: FitSpec) -> dict[str, Any]:
    """Return the facts that must be equal for a fit by steps to resume from a checkpoint."""
    # Everything that changes the result is included; policy, lanes and workers may differ.
    optimizers = dict.fromkeys(group.optimizer.name for group in fit.steps.rule.groups)
    return _as_json(
        {
            **fit.steps.model.identity(),
            "dtype": fit.rows.dtype,
            "optimizer": " ".join(optimizers),
            "classes": None if fit.rows.classes is None else fit.rows.classes.tolist(),
        }
    )


def _describe_state_mismatch(fit: FitSpec, state: ShardState) -> str:
    """Return why the fit cannot continue from a state; "" where it can."""
    shape = fit.steps.shape
    if fit.steps.model.table is not None and state.ids is not None:
        shape = len(state.ids), shape[1]  # as many rows as ids had come
    if state.w.shape != shape or state.w.dtype != fit.rows.dtype:
        return f"holds parameters of shape {state.w.shape} and dtype {state.w.dtype}"
    # Names and shapes of an optimizer's arrays follow from those of the parameters.
    expected = fit.steps.rule.init(np.zeros_like(state.w))
    if state.opt_state.keys() != expected.keys():
        return (
            f"holds the optimizer state {sorted(state.opt_state)}, and {sorted(expected)} is needed"
        )
    for name, array in state.opt_state.items():
        if array.shape != expected[name].shape:
            return f"holds {name} in the shape {array.shape} instead of {expected[name].shape}"
    return ""


def _describe_impossible_facts(state: ShardState, metadata: dict[str, Any]) -> str:
    """Return which saved fact is invalid or contradicts another; "" where none does."""
    for name in ("passes", "seed", "stale_passes"):
        if not is_count_fact(metadata.get(name)):
            return f"says {name}={reprlib.repr(metadata.get(name))}"
    if not is_number_fact(metadata.get("best")):
        return f"says best={reprlib.repr(metadata.get('best'))}"
    records: Any = metadata.get("records")
    # The file is untrusted input: each fact is checked before it is used.
    if problem := _describe_wrong_records(records):
        return problem
    if records and not state.step:
        return f"has records of {len(records)} passes, and no step"
    if len(records) != metadata["passes"]:
        return f"says passes={metadata['passes']}, and has records of {len(records)}"
    return ""


def _move_to_origin(state: ShardState, origin: Any, model: StepModel, path: _Path) -> ShardState:
    """Return the state converted to the model's origin; the same bits if it is the saved one."""
    try:
        w, average = (
            None if values is None else model.moved(values, origin)
            for values in (state.w, state.average)
        )
    except ValueError as error:
        raise CheckpointError(
            f"{path} has an invalid origin: {error}. Restore the file from a copy, or set "
            "resume=False to start again."
        ) from error
    assert w is not None
    return replace(state, w=w, average=average)


# -- checkpoints of fits by solvers ----------------------------------------------------------------


def load_saved_seed(checkpoint: Checkpoint) -> int | None:
    """Return the seed that the fit in a file drew; None without a file or a seed."""
    files = CheckpointFiles.from_url(os.fspath(checkpoint.path), checkpoint.keep)
    saved = files.load_newest_by(decode_solver_log)
    seed: Any = None if saved is None else saved[1].get("drawn_seed")
    # NumPy's `RandomState` takes seeds below 2**32.
    return seed if is_count_fact(seed) and seed < 2**32 else None


def _rounds_identity(fit: FitSpec) -> dict[str, Any]:
    """Return the facts that must be equal for a fit by a solver to resume from a checkpoint."""
    rows = fit.rows
    # Another starting point leads to other iterates.
    start = fit.work.start if isinstance(fit.work, RoundWork) else None
    solver_facts, model_facts = fit.rounds.solver.identity(), identity_of(fit.work.model)
    # `start` is compared by its CRC-32: it is as large as the parameters.
    return _as_json(
        {
            "n_rows": sum(rows.lane_rows),
            "dtype": rows.dtype,
            "weight_scale": rows.weight_scale,
            "class_weight": None if rows.class_weight is None else rows.class_weight.tolist(),
            "classes": None if rows.classes is None else rows.classes.tolist(),
            **{f"solver's {name}": value for name, value in solver_facts.items()},
            **{f"model's {name}": value for name, value in model_facts.items()},
            "start": None if start is None else zlib.crc32(np.ascontiguousarray(start).data),
            "seed": fit.work.seed,
        }
    )


def _describe_impossible_log(fit: FitSpec, log: _Log, metadata: dict[str, Any]) -> str:
    """Return why a saved log cannot be of this fit; "" where it can."""
    progress: SolverPoint | SumLog
    # The bytes may be anything: whether they decode is the first test.
    try:
        if isinstance(fit.work, OwnRowsWork):
            progress = SolverPoint.unpacked(log)
        else:
            progress = SumLog(0)
            progress.replace_by(log)
    except (CommunicationError, ValueError, TypeError):
        return "has a state that cannot be read"
    if progress.n_rows != sum(fit.rows.lane_rows):
        return f"holds a state of {progress.n_rows} rows"
    if problem := _describe_wrong_records(metadata.get("records")):
        return problem
    if len(metadata["records"]) != len(progress.reports):
        n_passes = len(metadata["records"])
        return f"holds a state after {len(progress.reports)} passes, and has records of {n_passes}"
    return ""


# -- checkpoints of both ---------------------------------------------------------------------------


def _as_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return facts after a round trip through JSON, so that they compare equal to a file's."""
    decoded: dict[str, Any] = json.loads(json.dumps(metadata, default=repr))
    return decoded


def _describe_other_fit(identity: dict[str, Any], metadata: dict[str, Any]) -> str:
    """Return in which fact a checkpoint's fit differs from this one; "" where in none."""
    for name, value in identity.items():
        if metadata.get(name) != value:
            return (
                f"is of another fit: its {name} is {reprlib.repr(metadata.get(name))}, here it is "
                f"{reprlib.repr(value)}"
            )
    return ""


def _describe_wrong_records(records: Any) -> str:
    """Return why a value is not the list of records of passes 1, 2, ...; "" where it is."""
    if not (isinstance(records, list) and all(map(_is_pass_record, records))):
        return "has no records of its passes"
    if [record["pass"] for record in records] != list(range(1, len(records) + 1)):
        return "has records of other passes than the first ones"
    return ""


def _is_pass_record(record: Any) -> bool:
    """Return whether a value has the keys and types of a pass's record."""
    # By `type`, as a bool is an instance of int. Without held-out rows there is no `val_score`.
    return isinstance(record, dict) and all(
        type(record.get(key)) in (int, float) or (key == "val_score" and record.get(key) is None)
        for key in RECORD_KEYS
    )
