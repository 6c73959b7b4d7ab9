"""Fits by steps in parts: with checkpoints, pass by pass, or with a falling learning rate.

Each part is a fit that starts from the state of the one before. `resume_from_checkpoint` decides
whether a checkpoint is of this fit; `OneFit` makes the parts look like one fit to callbacks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from daskml_dist.errors import CheckpointError, DivergedError
from daskml_dist.models.base import StepModel
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import (
    Checkpoint,
    CheckpointFiles,
    is_count_fact,
    is_number_fact,
)
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.history import RECORD_KEYS
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.work import StepWork

__all__ = [
    "OneFit",
    "largest_checkpoint_bytes",
    "make_checkpoint_facts",
    "records_problem",
    "resume_from_checkpoint",
    "train_adaptively",
    "train_in_parts",
]


_Path = str | os.PathLike[str]
#: Most bytes of the facts of any fit, and of the record of one pass.
_FACTS, _PASS = 1 << 28, 1 << 12
#: Divisor of the rate, and the rate below which it falls no more, as in scikit-learn.
_FACTOR, _LEAST = 5.0, 1e-6


class OneFit(CallbackList):
    """Callbacks that see the parts of a fit as one fit.

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
        if not self._holds:
            super().on_pass_end(run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        """Tell the callbacks of a repeated pass, unless they wait for the parameters."""
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
    fit: FitSpec,
    callbacks: CallbackList,
    checkpoint: Checkpoint | None,
    settled: Callable[[ShardState], bool] = lambda state: False,
) -> FitResult:
    """Run a fit with a checkpoint every few passes, or pass by pass.

    It goes pass by pass also where a callback is to see the parameters after each.
    """
    # From the checkpoint on, where there is one of this fit.
    course = _PartsProgress.of(fit, checkpoint)
    watched = OneFit(callbacks)
    every = 1 if checkpoint is None else checkpoint.every
    # Callbacks that see the parameters of each pass need parts of one pass.
    length = 1 if callbacks.need_parameters else every
    began = course.fit.work.first_pass
    try:
        # A part ends at the end of a pass, so its state is whole under every policy.
        while course.interrupted is None and not course.is_over(watched):
            result = engine.train(course.part(length), watched)
            state = course.add(result)
            if course.interrupted is not None:
                break  # not at the end of a pass, where a fit could go on to the same digits
            watched.on_part_end(result.records, state)
            done = course.fit.work.first_pass
            if checkpoint is not None and (course.is_over(watched) or done % every == 0):
                checkpoint.save(state, make_checkpoint_facts(course.fit, course.records))
            # Some estimators stop by their own measure of convergence.
            if settled(state):
                course.fit.work.stopping.converged = True
    except BaseException as error:
        watched.finish(error)
        if not isinstance(error, KeyboardInterrupt) or course.fit.work.first_pass == began:
            raise
        course.interrupted = error  # the result of the earlier parts is kept
    watched.finish(course.interrupted)
    # A callback may choose other final parameters, such as the best of all passes.
    if watched.view is not None and (w := watched.view.ending) is not None:
        course.end_with(w, checkpoint)
    return course.result()


@dataclass
class _PartsProgress:
    """Progress of a fit over its parts: what was done, and the fit that remains.

    Parameters
    ----------
    fit : FitSpec
        The fit that remains to be made.
    records : list of dict
        Of the passes that were made.
    state : ShardState
        State after the last part.
    """

    fit: FitSpec
    records: list[dict[str, Any]]
    state: ShardState
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    partial_rows: float = 0.0
    dropped: int = 0
    lost_rows: int = 0
    interrupted: KeyboardInterrupt | None = None

    @classmethod
    def of(cls, fit: FitSpec, checkpoint: Checkpoint | None) -> Self:
        """Return the progress at the beginning, or as the newest checkpoint holds it."""
        records: list[dict[str, Any]] = []
        if checkpoint is not None:
            checkpoint.check_writable()
            if (
                checkpoint.resume
                and (found := _load_newest_checkpoint(fit, checkpoint)) is not None
            ):
                fit, records = resume_from_checkpoint(fit, checkpoint.path, *found)
        return cls(fit, records, fit.make_start_state())

    def is_over(self, watched: OneFit) -> bool:
        """Return whether no part is left to make."""
        work = self.fit.work
        done = work.first_pass >= work.stopping.max_iter
        return done or work.stopping.converged or watched.stopped

    def part(self, length: int) -> FitSpec:
        """Return the fit of the next `length` passes at most."""
        work = self.fit.work
        # A part is the same fit with an earlier last pass.
        last = min(work.first_pass + length, work.stopping.max_iter)
        return self.fit.replace_work(stopping=dataclasses.replace(work.stopping, max_iter=last))

    def add(self, result: FitResult) -> ShardState:
        """Add the result of a part; return the state that it came to."""
        state, work = result.state, self.fit.work
        assert isinstance(state, ShardState)
        _check_finite_state(state)
        self.state = state
        self.records = self.records + result.records
        self.events = self.events + result.events
        self.partial_rows += result.partial_rows
        self.dropped += result.dropped
        self.lost_rows += result.lost_rows
        self.interrupted = result.interrupted
        # The next part starts from this state, and its stopping rule remembers the best loss.
        self.fit = self.fit.replace_work(
            initial=state,
            stopping=dataclasses.replace(result.stopping, max_iter=work.stopping.max_iter),
            first_pass=work.first_pass + len(result.records),
        )
        return state

    def end_with(self, w: Any, checkpoint: Checkpoint | None) -> None:
        """Replace the final parameters, in the checkpoint too."""
        self.state = self.state.with_final_parameters(w)
        if checkpoint is not None and self.interrupted is None:
            checkpoint.save(self.state, make_checkpoint_facts(self.fit, self.records))

    def result(self) -> FitResult:
        """Return the result of the whole fit."""
        return FitResult(
            self.state, self.records, self.fit.work.stopping, self.partial_rows, self.dropped,
            self.lost_rows, self.events, self.interrupted,
        )  # fmt: skip


def _load_newest_checkpoint(
    fit: FitSpec, checkpoint: Checkpoint
) -> tuple[ShardState, dict[str, Any]] | None:
    """Return the state and facts of the newest whole checkpoint, if any."""
    files = CheckpointFiles.of(os.fspath(checkpoint.path), checkpoint.keep)
    return files.load_newest(largest_checkpoint_bytes(fit))


def _check_finite_state(state: ShardState) -> None:
    """Raise `DivergedError` before parameters that are not finite reach a checkpoint."""
    if not np.isfinite(state.w).all():
        raise DivergedError(
            "The parameters became NaN or infinite. Lower learning_rate, or scale the features "
            "(StandardScaler). The last checkpoint is of an earlier pass."
        )


def make_checkpoint_facts(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts that a checkpoint holds beside the state, as JSON can hold them."""
    return {**_fit_identity(fit), **_fit_progress(fit, records)}


def largest_checkpoint_bytes(fit: FitSpec) -> int:
    """Return the most bytes that a checkpoint of this fit can have."""
    # Parameters, average and the optimizer's state arrays are of equal size.
    n_arrays = 2 + len(fit.steps.rule.state_names)
    size = int(np.prod(fit.steps.shape)) * np.dtype(fit.rows.dtype).itemsize
    return n_arrays * size + _FACTS + _PASS * fit.work.stopping.max_iter


def resume_from_checkpoint(
    fit: FitSpec, path: _Path, state: ShardState, facts: dict[str, Any]
) -> tuple[FitSpec, list[dict[str, Any]]]:
    """Return the fit that continues from a state, and the records of its passes so far."""
    if (
        problem := _describe_difference(fit, facts)
        or _describe_state_mismatch(fit, state)
        or _describe_impossible_facts(state, facts)
    ):
        raise CheckpointError(
            f"{path} {problem}. Name another file, or set resume=False to begin anew."
        )
    if fit.steps.rule.average_after is None:  # an old average would stand for the parameters
        state = dataclasses.replace(state, average=None, n_averaged=0)
    # Shifts of the targets may differ between fits, so parameters are moved to the model's own.
    state = _move_to_origin(state, facts.get("origin"), fit.steps.model, path)
    stopping = dataclasses.replace(
        fit.work.stopping, best=facts["best"], stale_passes=facts["stale_passes"]
    )
    going_on = fit.replace_work(
        initial=state, stopping=stopping, seed=facts["seed"], first_pass=facts["passes"]
    )
    return going_on, facts["records"]


def _fit_identity(fit: FitSpec) -> dict[str, Any]:
    """Return the facts that must agree for a fit to continue, as JSON gives them back."""
    # Everything by which one fit differs from another; policy, lanes and workers may change.
    facts = {
        **fit.steps.model.identity(),
        "dtype": fit.rows.dtype,
        "optimizer": _join_distinct_names(group.optimizer.name for group in fit.steps.rule.groups),
        "classes": None if fit.rows.classes is None else fit.rows.classes.tolist(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=repr))
    return plain


def _join_distinct_names(names: Iterable[str]) -> str:
    """Join names without repetition, in order."""
    return " ".join(dict.fromkeys(names))


def _fit_progress(fit: FitSpec, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of how far a fit has come."""
    rule = fit.work.stopping
    return {
        "passes": fit.work.first_pass,
        "seed": fit.work.seed,
        "origin": fit.steps.model.origin(),
        "best": rule.best,
        "stale_passes": rule.stale_passes,
        "records": records,
    }


def _describe_difference(fit: FitSpec, facts: dict[str, Any]) -> str:
    """Return how a checkpoint's fit differs from this one, in words; empty where it does not."""
    for name, value in _fit_identity(fit).items():
        if facts.get(name) != value:
            return (
                f"is of another fit: its {name} is {reprlib.repr(facts.get(name))}, here it is "
                f"{reprlib.repr(value)}"
            )
    return ""


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
    if problem := records_problem(records):
        return problem
    if records and not state.step:
        return f"has records of {len(records)} passes, and no step"
    if len(records) != facts["passes"]:
        return f"says passes={facts['passes']}, and has records of {len(records)}"
    return ""


def records_problem(records: Any) -> str:
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
    return dataclasses.replace(state, w=w, average=average)


def train_adaptively(engine: Engine, fit: FitSpec, callbacks: CallbackList) -> FitResult:
    """Run a fit; where it makes no progress, go on with a fifth of the learning rate."""
    work = cast(StepWork, fit.work)
    rate = cast(Constant, work.rule.schedule).learning_rate
    max_iter, watched = work.stopping.max_iter, OneFit(callbacks)
    parts: list[FitResult] = []
    interrupted: KeyboardInterrupt | None = None
    try:
        while True:
            result = engine.train(fit, watched)
            # A part ends where the loss stopped improving, or at the last pass.
            parts.append(result)
            interrupted, state = result.interrupted, result.state
            done = fit.work.first_pass + len(result.records)
            stuck = result.stopping.converged and interrupted is None and not watched.stopped
            if not stuck or rate <= _LEAST or done >= max_iter:
                break
            # The next part continues from this state with a smaller rate, as in scikit-learn's
            # "adaptive".
            rate /= _FACTOR
            assert isinstance(state, ShardState)
            stopping = dataclasses.replace(result.stopping, stale_passes=0, converged=False)
            rule = dataclasses.replace(work.rule, schedule=Constant(rate))
            fit = fit.replace_work(initial=state, first_pass=done, stopping=stopping, rule=rule)
    except BaseException as error:
        watched.finish(error)
        if not isinstance(error, KeyboardInterrupt) or not parts:
            raise
        interrupted = error  # the result of the earlier parts is kept
    watched.finish(interrupted)
    return _join_part_results(parts, interrupted)


def _join_part_results(parts: list[FitResult], interrupted: KeyboardInterrupt | None) -> FitResult:
    """Return one result for all parts."""
    last = parts[-1]
    return FitResult(
        last.state,
        [record for part in parts for record in part.records],
        last.stopping,
        sum(part.partial_rows for part in parts),
        sum(part.dropped for part in parts),
        sum(part.lost_rows for part in parts),
        [event for part in parts for event in part.events],
        interrupted,
    )
