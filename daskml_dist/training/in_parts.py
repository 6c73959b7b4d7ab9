"""A fit in parts, with its state in a file between them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

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
    """View of the parts of a fit as one fit, for the user's callbacks."""

    def __init__(self, callbacks: CallbackList) -> None:
        super().__init__(callbacks)
        self._of = callbacks
        self.view: Any = None
        self._holds = callbacks.need_parameters

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
    max_iter, partial, dropped, lost = fit.work.stopping.max_iter, 0.0, 0, 0
    records: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    if checkpoint is not None:
        checkpoint.check_writable()
        if checkpoint.resume and (found := _newest(fit, checkpoint)) is not None:
            fit, records = resumed(fit, checkpoint.path, *found)
    watched = OneFit(callbacks)
    every = 1 if checkpoint is None else checkpoint.every
    length = 1 if callbacks.need_parameters else every
    result = FitResult(fit.start_state(), [], fit.work.stopping, 0.0)
    began = fit.work.first_pass
    interrupted: KeyboardInterrupt | None = None
    try:
        while (
            fit.work.first_pass < max_iter
            and not fit.work.stopping.converged
            and not watched.stopped
        ):
            last = min(fit.work.first_pass + length, max_iter)
            part = fit.working(stopping=dataclasses.replace(fit.work.stopping, max_iter=last))
            result = engine.train(part, watched)
            state = result.state
            assert isinstance(state, ShardState)
            _check_finite(state)
            records = records + result.records
            partial += result.partial_rows
            dropped, lost = dropped + result.dropped, lost + result.lost_rows
            events = events + result.events
            fit = fit.working(
                initial=state,
                stopping=dataclasses.replace(result.stopping, max_iter=max_iter),
                first_pass=fit.work.first_pass + len(result.records),
            )
            if (interrupted := result.interrupted) is not None:
                break  # not at the end of a pass, where a fit could go on to the same digits
            watched.on_part_end(result.records, state)
            done = fit.work.first_pass
            ends = done >= max_iter or fit.work.stopping.converged or watched.stopped
            if checkpoint is not None and (ends or done % every == 0):
                checkpoint.save(state, facts_of(fit, records))
            if settled(state):
                fit.work.stopping.converged = True
    except BaseException as error:
        watched.finish(error)
        if not isinstance(error, KeyboardInterrupt) or fit.work.first_pass == began:
            raise
        interrupted = error  # what the parts before have found stays
    watched.finish(interrupted)
    state = result.state
    if watched.view is not None and (w := watched.view.ending) is not None:
        assert isinstance(state, ShardState)
        state = state.ending_with(w)
        if checkpoint is not None and interrupted is None:  # the file has what the fit ends with
            checkpoint.save(state, facts_of(fit, records))
    return FitResult(state, records, fit.work.stopping, partial, dropped, lost, events, interrupted)


def _newest(fit: FitSpec, checkpoint: Checkpoint) -> tuple[ShardState, dict[str, Any]] | None:
    files = Files.of(os.fspath(checkpoint.path), checkpoint.keep)
    return files.newest(most_bytes(fit))


def _check_finite(state: ShardState) -> None:
    if not np.isfinite(state.w).all():
        raise DivergedError(
            "The parameters became NaN or infinite. Lower learning_rate, or scale the features "
            "(StandardScaler). The last checkpoint is of an earlier pass."
        )
