"""Fits in parts: with checkpoints, pass by pass, or with a falling learning rate.

Each part is a fit that starts where the one before ended. A `FitCourse` knows how far a fit has
come and which part is next: `StepsCourse` goes on from parameters and optimizer state,
`RoundsCourse` from the log of a solver. `train_in_parts` is the one loop over the parts, and
`OneFit` makes them look like one fit to callbacks. A checkpoint holds the course's state and facts;
the facts of its `identity` decide whether a file is of this fit.
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
from daskml_dist.solvers import Solution
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
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.work import OwnRowsWork, RoundWork
from daskml_dist.training.worker.loops.rounds import SolverPoint, SumLog

__all__ = [
    "FallingRate",
    "FitCourse",
    "OneFit",
    "RoundsCourse",
    "StepsCourse",
    "load_saved_seed",
    "make_checkpoint_facts",
    "resume_from_checkpoint",
    "train_in_parts",
]


_Path = str | os.PathLike[str]
_Log = NDArray[np.uint8]
#: Most bytes of the facts of any fit (labels and records apart from passes): 256 MiB.
MAX_FACTS_BYTES = 1 << 28
#: Most bytes of the JSON record of one pass.
MAX_RECORD_BYTES = 1 << 12


class OneFit(CallbackList):
    """Callbacks that see the parts of a fit as one fit, whose passes are numbered through.

    Parameters
    ----------
    callbacks : CallbackList
    with_parameters : bool, default=True
        Whether :meth:`on_part_end` tells of passes where a callback is to see the parameters.
        Otherwise each pass is told as it ends, and a callback that asks for parameters is refused.
    """

    def __init__(self, callbacks: CallbackList, *, with_parameters: bool = True) -> None:
        super().__init__(callbacks)
        self._of = callbacks
        self.view: Any = None
        #: Passes of earlier parts that the numbers of the present part's passes leave out.
        self.n_before = 0
        self._holds = with_parameters and callbacks.need_parameters

    @property
    def stopped(self) -> bool:
        """Return whether the user has stopped the fit."""
        return self.view is not None and self.view.stopped

    def on_fit_begin(self, run: Any) -> None:
        """Tell the callbacks of the first part's beginning only."""
        # Every part begins a run of its own; the user sees the first beginning.
        first, self.view = self.view is None, run
        if first:
            super().on_fit_begin(run)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Tell the callbacks of a pass, unless they wait for the parameters after it."""
        record["pass"] += self.n_before
        if not self._holds:
            super().on_pass_end(run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Tell the callbacks of a repeated pass, unless they wait for the parameters."""
        record["pass"] += self.n_before
        if not self._holds:
            super().on_pass_redone(run, record)

    def has_raised(self, error: BaseException) -> bool:
        """Return whether an error is the one that a callback of this fit raised first."""
        return super().has_raised(error) or self._of.has_raised(error)

    def on_part_end(self, records: list[dict[str, Any]], state: ShardState) -> None:
        """Tell callbacks that need parameters of the passes of a part."""
        if self._holds:
            self.view.paused(state, self.fitted)
            # Told late, once the parameters after these passes are with the client.
            for record in records:
                super().on_pass_end(self.view, record)

    def on_fit_end(self, run: Any, error: BaseException | None = None) -> None:
        """Tell the callbacks of an error; the end of a part is none of the fit."""
        if error is not None:
            super().on_fit_end(run, error)

    def finish(self, error: BaseException | None = None) -> None:
        """Tell the callbacks once that the fit ended, if it began."""
        if self.view is not None:
            super().on_fit_end(self.view, error)


def train_in_parts(
    engine: Engine,
    course: FitCourse,
    callbacks: CallbackList,
    checkpoint: Checkpoint | None = None,
) -> FitResult:
    """Run a fit part by part, from its checkpoint on where there is one of this fit.

    A part has as many passes as lie between two checkpoints, or one where a callback or the course
    is to see the parameters after each; else it ends where the course says.
    """
    if checkpoint is not None:
        # Fail before the first pass, not after hours.
        checkpoint.check_writable()
        if checkpoint.resume:
            course.resume(checkpoint)
    watched = OneFit(callbacks, with_parameters=course.shows_parameters)
    length = None if checkpoint is None else checkpoint.every
    if course.looks_at_each_pass or (course.shows_parameters and callbacks.need_parameters):
        length = 1
    try:
        # A part ends at the end of a pass, so its state is whole under every policy.
        while not course.is_over(watched.stopped):
            part = course.next_part(length, watched.stopped)
            watched.n_before = len(course.records) - part.work.first_pass
            result = engine.train(part, watched)
            course.add(result, watched.stopped)
            if course.interrupted is not None:
                break  # not at the end of a pass, where a fit could go on to the same digits
            watched.on_part_end(result.records, course.state)
            if checkpoint is not None and course.is_due(checkpoint.every, watched.stopped):
                checkpoint.save(*course.saved())
    except BaseException as error:
        watched.finish(error)
        if not (isinstance(error, KeyboardInterrupt) and course.can_end_early):
            raise
        course.interrupted = error  # the result of the earlier parts is kept
    watched.finish(course.interrupted)
    # A callback may choose other final parameters, such as the best of all passes.
    if watched.view is not None and (w := watched.view.ending) is not None:
        course.end_with(w, checkpoint)
    return course.result()


class FitCourse(ABC):
    """Course of a fit over its parts: what was done, and the fit that remains.

    Attributes
    ----------
    fit : FitSpec
        The fit that remains to be made.
    records : list of dict
        Of the passes that were made.
    state : ShardState or Solution
        State after the last part.
    interrupted : KeyboardInterrupt or None
    """

    #: Whether callbacks may see the parameters between two parts.
    shows_parameters: ClassVar[bool]
    #: Whether the course itself looks at the parameters after each pass.
    looks_at_each_pass = False
    state: Any

    def __init__(self, fit: FitSpec) -> None:
        self.fit = fit
        self.records: list[dict[str, Any]] = []
        self.interrupted: KeyboardInterrupt | None = None
        self._parts: list[FitResult] = []

    @abstractmethod
    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from the newest whole file of a checkpoint, if any; raise where it is not ours."""

    @abstractmethod
    def is_over(self, stopped: bool) -> bool:
        """Return whether no part is left to make; `stopped` says that the user ended the fit."""

    @abstractmethod
    def next_part(self, length: int | None, stopped: bool) -> FitSpec:
        """Return the fit of the next `length` passes at most."""

    def add(self, result: FitResult, stopped: bool) -> None:
        """Add the result of a part."""
        for number, record in enumerate(result.records, start=len(self.records) + 1):
            record["pass"] = number
        self._parts.append(result)
        self.records = self.records + result.records
        self.state, self.interrupted = result.state, result.interrupted

    def is_due(self, every: int, stopped: bool) -> bool:
        """Return whether a checkpoint is to be written after the last part."""
        return self.is_over(stopped) or len(self.records) % every == 0

    @abstractmethod
    def saved(self) -> tuple[Any, dict[str, Any]]:
        """Return the state and the facts of a checkpoint."""

    @property
    def can_end_early(self) -> bool:
        """Return whether the parts so far make a result, should the next one be interrupted."""
        return self.shows_parameters and bool(self._parts)

    def end_with(self, w: Any, checkpoint: Checkpoint | None) -> None:  # noqa: B027
        """Replace the final parameters, in the checkpoint too, where the fit has parameters."""

    @property
    def stopping(self) -> PassStoppingRule:
        """Return the stopping rule as the last pass left it."""
        return self._parts[-1].stopping

    def result(self) -> FitResult:
        """Return the result of the whole fit."""
        parts = self._parts
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
class FallingRate:
    """Learning rate that falls where the loss stops improving, as in scikit-learn's "adaptive".

    Parameters
    ----------
    starts_anew : bool
        Whether the stopping rule and the order of the rows begin anew with each rate.
    """

    starts_anew: bool = False
    #: Divisor of the rate, and the rate below which it falls no more; scikit-learn's.
    divisor: ClassVar[float] = 5.0
    smallest: ClassVar[float] = 1e-6


class StepsCourse(FitCourse):
    """Course of a fit by gradient steps, which goes on from parameters and optimizer state.

    Parameters
    ----------
    fit : FitSpec
    falling : FallingRate or None
        None: the schedule alone says the rate, and the fit ends where the loss stops improving.
    has_settled : callable, optional
        Tells of the parameters after a part whether the fit has converged by another measure.
    """

    shows_parameters = True
    state: ShardState

    def __init__(
        self,
        fit: FitSpec,
        falling: FallingRate | None = None,
        has_settled: Callable[[ShardState], bool] | None = None,
    ) -> None:
        super().__init__(fit)
        self.state = fit.make_start_state()
        self._falling, self._has_settled = falling, has_settled
        self.looks_at_each_pass = has_settled is not None
        #: Rule and seed that each rate begins with where it begins anew.
        self._first_rule, self._first_seed = replace(fit.work.stopping), fit.work.seed

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from the newest whole file of a checkpoint, if any; raise where it is not ours."""
        files = CheckpointFiles.of(os.fspath(checkpoint.path), checkpoint.keep)
        found = files.load_newest(_largest_checkpoint_bytes(self.fit))
        if found is not None:
            self.fit, self.records = resume_from_checkpoint(self.fit, checkpoint.path, *found)
            self.state = self.fit.make_start_state()

    def is_over(self, stopped: bool) -> bool:
        """Return whether all passes are made, the loss has settled, or the user ended the fit."""
        work = self.fit.work
        return work.first_pass >= work.stopping.max_iter or work.stopping.converged or stopped

    def next_part(self, length: int | None, stopped: bool) -> FitSpec:
        """Return the fit of the next `length` passes at most."""
        work = self.fit.work
        # A part is the same fit with an earlier last pass.
        last = work.stopping.max_iter
        if length is not None:
            last = min(work.first_pass + length, last)
        return self.fit.replace_work(stopping=replace(work.stopping, max_iter=last))

    def add(self, result: FitResult, stopped: bool) -> None:
        """Add the result of a part."""
        super().add(result, stopped)
        if self._falling is None:
            _check_finite_state(self.state)
        work = self.fit.work
        # The next part starts from this state, and its stopping rule remembers the best loss.
        self.fit = self.fit.replace_work(
            initial=self.state,
            stopping=replace(result.stopping, max_iter=work.stopping.max_iter),
            first_pass=work.first_pass + len(result.records),
        )
        if self.interrupted is not None or stopped:
            return
        if self._has_settled is not None and self._has_settled(self.state):
            self.fit.work.stopping.converged = True
        if self._falling is not None and self.fit.work.stopping.converged:
            self._lower_rate(self._falling)

    def _lower_rate(self, falling: FallingRate) -> None:
        """Let the fit go on with a smaller rate, unless it is over or the rate is small enough."""
        work = self.fit.steps
        rate = cast(Constant, work.rule.schedule).learning_rate
        if rate <= falling.smallest or work.first_pass >= work.stopping.max_iter:
            return
        self.fit = self.fit.replace_work(
            rule=replace(work.rule, schedule=Constant(rate / falling.divisor)),
            stopping=replace(work.stopping, stale_passes=0, converged=False),
        )
        if falling.starts_anew:
            done = len(self.records)
            self.fit = self.fit.replace_work(
                stopping=replace(self._first_rule, max_iter=self._first_rule.max_iter - done),
                seed=self._first_seed + done,
                first_pass=0,
            )

    def saved(self) -> tuple[ShardState, dict[str, Any]]:
        """Return the state and the facts of a checkpoint."""
        return self.state, make_checkpoint_facts(self.fit, self.records)

    def end_with(self, w: Any, checkpoint: Checkpoint | None) -> None:
        """Replace the final parameters, in the checkpoint too."""
        self.state = self.state.with_final_parameters(w)
        if checkpoint is not None and self.interrupted is None:
            checkpoint.save(*self.saved())

    @property
    def stopping(self) -> PassStoppingRule:
        """Return the stopping rule as the last pass left it."""
        return self.fit.work.stopping


class RoundsCourse(FitCourse):
    """Course of a fit by a round solver, or by a solver that trainers run on their own rows.

    A file holds the state that the solver kept, if any, and the sums since: the solver begins again
    and is given these, so that it ends with the digits of a fit without checkpoints. Sums that are
    too large to be remembered are not in it; where a solver neither keeps its state nor needs few
    sums (256 MB of them), the last file stays as it is. Of a solver that trainers run on their own
    rows (`RowSolver`) a file holds the state after its last iteration.

    Parameters
    ----------
    fit : FitSpec
    seed : int or None
        Seed that the fit draws from where the user gave no `random_state`; it goes into the file
        (:func:`load_saved_seed`).
    """

    shows_parameters = False
    state: Solution

    def __init__(self, fit: FitSpec, seed: int | None = None) -> None:
        # No trainer has the solver's whole state.
        if isinstance(fit.work, RoundWork) and fit.work.in_ranges:
            raise InvalidParameterError(
                "A fit whose trainers hold ranges of the vectors cannot be saved. Leave the "
                'Checkpoint out, or raise dask.config.set({"daskml_dist.ranges_from": parameters}).'
            )
        super().__init__(fit)
        self._seed = seed
        self._log: _Log | None = None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from the newest whole file of a checkpoint, if any; raise where it is not ours."""
        files = CheckpointFiles.of(os.fspath(checkpoint.path), checkpoint.keep)
        if (found := files.load_newest_by(decode_solver_log)) is None:
            return
        log, facts = found
        if problem := _describe_other_fit(
            _rounds_identity(self.fit), facts
        ) or _describe_impossible_log(self.fit, log, facts):
            raise CheckpointError(
                f"{checkpoint.path} {problem}. Name another file, or set resume=False to begin "
                "anew."
            )
        self._log, self.records = log, facts["records"]

    def is_over(self, stopped: bool) -> bool:
        """Return whether the solver has come to its end: one that pauses returns its log."""
        return bool(self._parts) and self._log is None

    def next_part(self, length: int | None, stopped: bool) -> FitSpec:
        """Return the fit that continues from the log and pauses after the next passes."""
        done = len(self.records)
        return self.fit.replace_work(
            log=self._log,
            first_pass=done,
            pause_at=None if stopped or length is None else done + length,
            is_stopped=stopped,
        )

    def add(self, result: FitResult, stopped: bool) -> None:
        """Add the result of a part."""
        super().add(result, stopped)
        self._log = self.state.extra.get("log")

    def is_due(self, every: int, stopped: bool) -> bool:
        """Return whether there is a log to be written."""
        return self._log is not None

    def saved(self) -> tuple[Any, dict[str, Any]]:
        """Return the log and the facts of a checkpoint."""
        facts = {"records": self.records, "drawn_seed": self._seed}
        return self._log, {**_rounds_identity(self.fit), **facts}


# -- checkpoints of fits by steps ------------------------------------------------------------------


def _check_finite_state(state: ShardState) -> None:
    """Raise `DivergedError` before parameters that are not finite reach a checkpoint."""
    if not np.isfinite(state.w).all():
        raise DivergedError(
            "The parameters became NaN or infinite. Lower learning_rate, or scale the features "
            "(StandardScaler). The last checkpoint is of an earlier pass."
        )


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


def _largest_checkpoint_bytes(fit: FitSpec) -> int:
    """Return the most bytes that a checkpoint of this fit can have."""
    # Parameters, average and the optimizer's state arrays are of equal size.
    n_arrays = 2 + len(fit.steps.rule.state_names)
    size = int(np.prod(fit.steps.shape)) * np.dtype(fit.rows.dtype).itemsize
    return n_arrays * size + MAX_FACTS_BYTES + MAX_RECORD_BYTES * fit.work.stopping.max_iter


def resume_from_checkpoint(
    fit: FitSpec, path: _Path, state: ShardState, facts: dict[str, Any]
) -> tuple[FitSpec, list[dict[str, Any]]]:
    """Return the fit that continues from a state, and the records of its passes so far."""
    if (
        problem := _describe_other_fit(_steps_identity(fit), facts)
        or _describe_state_mismatch(fit, state)
        or _describe_impossible_facts(state, facts)
    ):
        raise CheckpointError(
            f"{path} {problem}. Name another file, or set resume=False to begin anew."
        )
    if fit.steps.rule.average_after is None:  # an old average would stand for the parameters
        state = replace(state, average=None, n_averaged=0)
    # Shifts of the targets may differ between fits, so parameters are moved to the model's own.
    state = _move_to_origin(state, facts.get("origin"), fit.steps.model, path)
    stopping = replace(fit.work.stopping, best=facts["best"], stale_passes=facts["stale_passes"])
    going_on = fit.replace_work(
        initial=state, stopping=stopping, seed=facts["seed"], first_pass=facts["passes"]
    )
    return going_on, facts["records"]


def _steps_identity(fit: FitSpec) -> dict[str, Any]:
    """Return the facts that must agree for a fit by steps to continue."""
    # Everything by which one fit differs from another; policy, lanes and workers may change.
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
    """Return why the fit cannot continue from a state; empty where it can."""
    if state.w.shape != fit.steps.shape or state.w.dtype != fit.rows.dtype:
        return f"holds parameters of shape {state.w.shape} and dtype {state.w.dtype}"
    wanted = fit.steps.rule.init(np.zeros_like(state.w))
    if state.opt_state.keys() != wanted.keys():
        return (
            f"holds the optimizer state {sorted(state.opt_state)}, and {sorted(wanted)} is needed"
        )
    for name, array in state.opt_state.items():
        if array.shape != wanted[name].shape:
            return f"holds {name} in the shape {array.shape} instead of {wanted[name].shape}"
    return ""


def _describe_impossible_facts(state: ShardState, facts: dict[str, Any]) -> str:
    """Return which fact of the progress cannot be true; empty where all can."""
    for name in ("passes", "seed", "stale_passes"):
        if not is_count_fact(facts.get(name)):
            return f"says {name}={reprlib.repr(facts.get(name))}"
    if not is_number_fact(facts.get("best")):
        return f"says best={reprlib.repr(facts.get('best'))}"
    records: Any = facts.get("records")
    # Nothing of the file is believed before its identity, shapes and counts agree.
    if problem := _describe_wrong_records(records):
        return problem
    if records and not state.step:
        return f"has records of {len(records)} passes, and no step"
    if len(records) != facts["passes"]:
        return f"says passes={facts['passes']}, and has records of {len(records)}"
    return ""


def _move_to_origin(state: ShardState, origin: Any, model: StepModel, path: _Path) -> ShardState:
    """Return the state about the model's own origin; unchanged bits where it already is."""
    try:
        w, average = (
            None if values is None else model.moved(values, origin)
            for values in (state.w, state.average)
        )
    except ValueError as error:
        raise CheckpointError(
            f"{path} has an origin that no fit writes: {error}. "
            "Restore the file from a copy, or set resume=False to begin anew."
        ) from error
    assert w is not None
    return replace(state, w=w, average=average)


# -- checkpoints of fits by solvers ----------------------------------------------------------------


def load_saved_seed(checkpoint: Checkpoint) -> int | None:
    """Return the seed that the fit in a file drew for itself; None without a file or a seed."""
    files = CheckpointFiles.of(os.fspath(checkpoint.path), checkpoint.keep)
    found = files.load_newest_by(decode_solver_log)
    seed: Any = None if found is None else found[1].get("drawn_seed")
    return seed if is_count_fact(seed) and seed < 2**32 else None


def _rounds_identity(fit: FitSpec) -> dict[str, Any]:
    """Return the facts that must agree for a fit by a solver to continue."""
    rows = fit.rows
    # A fit that starts elsewhere takes another course.
    start = fit.work.start if isinstance(fit.work, RoundWork) else None
    of_solver, of_model = fit.rounds.solver.identity(), identity_of(fit.work.model)
    return _as_json(
        {
            "n_rows": sum(rows.lane_rows),
            "dtype": rows.dtype,
            "weight_scale": rows.weight_scale,
            "class_weight": None if rows.class_weight is None else rows.class_weight.tolist(),
            "classes": None if rows.classes is None else rows.classes.tolist(),
            **{f"solver's {name}": value for name, value in of_solver.items()},
            **{f"model's {name}": value for name, value in of_model.items()},
            "start": None if start is None else zlib.crc32(np.ascontiguousarray(start).data),
            "seed": fit.work.seed,
        }
    )


def _describe_impossible_log(fit: FitSpec, log: _Log, facts: dict[str, Any]) -> str:
    """Return why a saved log cannot be of this fit; empty where it can."""
    known: SolverPoint | SumLog
    try:
        if isinstance(fit.work, OwnRowsWork):
            known = SolverPoint.unpacked(log)
        else:
            known = SumLog(0)
            known.replace_by(log)
    except (CommunicationError, ValueError, TypeError):
        return "holds a state that cannot be read"
    if known.n_rows != sum(fit.rows.lane_rows):
        return f"holds a state of {known.n_rows} rows"
    if problem := _describe_wrong_records(facts.get("records")):
        return problem
    if len(facts["records"]) != len(known.reports):
        n_passes = len(facts["records"])
        return f"holds a state after {len(known.reports)} passes, and has records of {n_passes}"
    return ""


# -- checkpoints of both ---------------------------------------------------------------------------


def _as_json(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as JSON gives them back, so that they equal those of a file."""
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=repr))
    return plain


def _describe_other_fit(identity: dict[str, Any], facts: dict[str, Any]) -> str:
    """Return how a checkpoint's fit differs from this one, in words; empty where it does not."""
    for name, value in identity.items():
        if facts.get(name) != value:
            return (
                f"is of another fit: its {name} is {reprlib.repr(facts.get(name))}, here it is "
                f"{reprlib.repr(value)}"
            )
    return ""


def _describe_wrong_records(records: Any) -> str:
    """Return why something is not a list of records of the first passes; empty where it is."""
    if not (isinstance(records, list) and all(map(_is_pass_record, records))):
        return "has no records of its passes"
    if [record["pass"] for record in records] != list(range(1, len(records) + 1)):
        return "has records of other passes than the first ones"
    return ""


def _is_pass_record(record: Any) -> bool:
    """Return whether something is the record of a pass."""
    return isinstance(record, dict) and all(
        type(record.get(key)) in (int, float) or (key == "val_score" and record.get(key) is None)
        for key in RECORD_KEYS
    )
