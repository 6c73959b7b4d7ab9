"""A fit in parts, with its state in a file between them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from daskml_dist.errors import DivergedError
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.checkpoint_files import Files
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.resuming import facts_of, most_bytes, resumed
from daskml_dist.training.spec import FitSpec

__all__ = ["OneFit", "train_in_parts"]


class OneFit(CallbackList):
    """View of the parts of a fit as one fit, for the user's callbacks.

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
        return self.view is not None and self.view.stopped

    def on_fit_begin(self, run: Any) -> None:
        first, self.view = self.view is None, run
        if first:
            super().on_fit_begin(run)

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if not self._holds:
            super().on_pass_end(run, record)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        if not self._holds:
            super().on_pass_redone(run, record)

    def has_raised(self, error: BaseException) -> bool:
        return super().has_raised(error) or self._of.has_raised(error)

    def on_part_end(self, records: list[dict[str, Any]], state: ShardState) -> None:
        """Tell of the passes of a part to whom is to see the parameters after them."""
        if self._holds:
            self.view.paused(state, self.fitted)
            for record in records:
                super().on_pass_end(self.view, record)

    def on_fit_end(self, run: Any, error: BaseException | None = None) -> None:
        if error is not None:
            super().on_fit_end(run, error)

    def finish(self, error: BaseException | None = None) -> None:
        """Tell the end, once; a fit that never began has none."""
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

    Parameters
    ----------
    engine : Engine
    fit : FitSpec
    callbacks : CallbackList
    checkpoint : Checkpoint or None
    settled : callable
        Whether a fit ends with the state that a part has come to.

    Raises
    ------
    CheckpointError
        Before the first step, where the file cannot be written, is damaged or belongs to another
        fit; later, where a checkpoint cannot be saved.
    """
    course = _Course.of(fit, checkpoint)
    watched = OneFit(callbacks)
    every = 1 if checkpoint is None else checkpoint.every
    length = 1 if callbacks.need_parameters else every
    began = course.fit.work.first_pass
    try:
        while course.interrupted is None and not course.is_over(watched):
            result = engine.train(course.part(length), watched)
            state = course.add(result)
            if course.interrupted is not None:
                break  # not at the end of a pass, where a fit could go on to the same digits
            watched.on_part_end(result.records, state)
            done = course.fit.work.first_pass
            if checkpoint is not None and (course.is_over(watched) or done % every == 0):
                checkpoint.save(state, facts_of(course.fit, course.records))
            if settled(state):
                course.fit.work.stopping.converged = True
    except BaseException as error:
        watched.finish(error)
        if not isinstance(error, KeyboardInterrupt) or course.fit.work.first_pass == began:
            raise
        course.interrupted = error  # what the parts before have found stays
    watched.finish(course.interrupted)
    if watched.view is not None and (w := watched.view.ending) is not None:
        course.end_with(w, checkpoint)
    return course.result()


@dataclass
class _Course:
    """Course of a fit over its parts: what is left of it, and what has been done.

    Parameters
    ----------
    fit : FitSpec
        What is left.
    records : list of dict
        Of the passes that were made.
    state : ShardState
        What it has come to.
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
        """The course of a fit, from its checkpoint on where there is one to go on from."""
        records: list[dict[str, Any]] = []
        if checkpoint is not None:
            checkpoint.check_writable()
            if checkpoint.resume and (found := _newest(fit, checkpoint)) is not None:
                fit, records = resumed(fit, checkpoint.path, *found)
        return cls(fit, records, fit.start_state())

    def is_over(self, watched: OneFit) -> bool:
        work = self.fit.work
        done = work.first_pass >= work.stopping.max_iter
        return done or work.stopping.converged or watched.stopped

    def part(self, length: int) -> FitSpec:
        """The next passes, so many at most."""
        work = self.fit.work
        last = min(work.first_pass + length, work.stopping.max_iter)
        return self.fit.working(stopping=dataclasses.replace(work.stopping, max_iter=last))

    def add(self, result: FitResult) -> ShardState:
        """Go on behind a part; the state that it came to."""
        state, work = result.state, self.fit.work
        assert isinstance(state, ShardState)
        _check_finite(state)
        self.state = state
        self.records = self.records + result.records
        self.events = self.events + result.events
        self.partial_rows += result.partial_rows
        self.dropped += result.dropped
        self.lost_rows += result.lost_rows
        self.interrupted = result.interrupted
        self.fit = self.fit.working(
            initial=state,
            stopping=dataclasses.replace(result.stopping, max_iter=work.stopping.max_iter),
            first_pass=work.first_pass + len(result.records),
        )
        return state

    def end_with(self, w: Any, checkpoint: Checkpoint | None) -> None:
        """Take other parameters than those of the last pass; so does the file."""
        self.state = self.state.ending_with(w)
        if checkpoint is not None and self.interrupted is None:
            checkpoint.save(self.state, facts_of(self.fit, self.records))

    def result(self) -> FitResult:
        return FitResult(
            self.state, self.records, self.fit.work.stopping, self.partial_rows, self.dropped,
            self.lost_rows, self.events, self.interrupted,
        )  # fmt: skip


def _newest(fit: FitSpec, checkpoint: Checkpoint) -> tuple[ShardState, dict[str, Any]] | None:
    files = Files.of(os.fspath(checkpoint.path), checkpoint.keep)
    return files.newest(most_bytes(fit))


def _check_finite(state: ShardState) -> None:
    if not np.isfinite(state.w).all():
        raise DivergedError(
            "The parameters became NaN or infinite. Lower learning_rate, or scale the features "
            "(StandardScaler). The last checkpoint is of an earlier pass."
        )
