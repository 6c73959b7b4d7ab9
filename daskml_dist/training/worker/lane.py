"""A lane: batches of some blocks, and the gradients made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.draws import Draw
from daskml_dist.backends.moved_once import MovedOnce
from daskml_dist.backends.namespace import is_host, zeros
from daskml_dist.data.batches import LaneRows, Segment
from daskml_dist.data.streamed_blocks import BlockStream
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.ledger import PassReport
from daskml_dist.ps.shard import Shard
from daskml_dist.solvers import RowState, Statistic
from daskml_dist.training.callbacks import StepEnd
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.reader import Batch, Blocks, Reader, RowsInTurn
from daskml_dist.training.worker.ready_blocks import backend_of

__all__ = ["Lane", "RowStates"]


class Lane:
    """One logical worker: the order of its batches, its clock and its sums. Used by one thread.

    Parameters
    ----------
    number : int
    fit : FitSpec
    rows : LaneRows
    blocks : mapping of int to ReadyBlock, or BlockStream
    """

    def __init__(self, number: int, fit: FitSpec, rows: LaneRows, blocks: Blocks) -> None:
        self.number = number
        self.clock = 0
        #: Steps that it has made gradients of, whether they counted or not.
        self.reached = 0
        #: Where it went on from last.
        self.began_at = 0
        self.backend: Backend = backend_of(fit)
        self._on_host = self.backend.device == "cpu"
        self._fit = fit
        #: A `StepModel` where it makes steps.
        self._model: Any = fit.work.model
        self._rows = rows
        self._blocks: Any = blocks
        self._reader = Reader(number, fit, rows, blocks, self.backend)
        self._drawn: tuple[list[Draw], list[int]] | None = None
        self._own: NDArray[Any] | None = None
        self._report = PassReport([self.number])
        self._busy = 0.0
        # On a device until somebody asks: to wait for a number takes longer than many a step.
        self._last_loss: Any = 0.0
        self._loss: Any = 0.0
        self._told = fit.work.step_callbacks
        streaming = fit.rows.streaming
        self._states = RowStates(None if streaming is None else streaming.states)
        #: Whether NaN was looked for in the rows, or a sum of them has shown that there is none.
        self._looked = False

    @property
    def n_rows(self) -> int:
        """Training rows."""
        return self._rows.n_rows

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Rows and blocks that it has."""
        return self._rows.segments

    def put_away(self) -> None:
        """Drop streamed blocks that are in memory, until the next :meth:`seek`."""
        if isinstance(self._blocks, BlockStream):
            self._blocks.close()

    def seek(self, clock: int) -> None:
        """Go on from a clock: the next batch is that of step ``clock % n_steps``."""
        self.clock = self.reached = self.began_at = clock
        self._drawn = None
        self._reader.seek(clock)

    @property
    def keyed_blocks(self) -> list[Any]:
        """The blocks of a fit over keys, one a side."""
        return [self._blocks[number].X for number in self._rows.numbers]

    def next_batch(self) -> Batch:
        """The next batch; passes follow each other, after the last one batches are empty.

        Its arrays are good until the next batch is asked for.
        """
        return self._reader.next(self.reached >= self._reader.steps_copied)

    @property
    def ready_gather(self) -> Any | None:
        """The gather, once it is worth having: the host copies the rows of first steps."""
        return None if self.reached < self._reader.steps_copied else self._reader.gather

    @property
    def gather(self) -> Any | None:
        """Gather of the rows of batches, which copies none of them, or None."""
        return self._reader.gather

    def take_steps(self, recorded: Any, replica: Shard, count: int) -> None:
        """Take steps of a replica that are made at once, and count their rows and losses.

        Parameters
        ----------
        recorded : RecordedSteps or BatchSteps
            Of the lane's gather and the replica.
        replica : Shard
        count : int
        """
        (draws, rows), since = self.draws(count), time.perf_counter()
        losses = recorded(draws, replica.next_steps(rows))
        self.count_steps(rows, losses, time.perf_counter() - since if self._on_host else 0.0)

    def draw_ahead(self, count: int) -> None:
        """Draw the rows of steps that are then made at once, as many."""
        self._drawn = self._reader.draws(count)

    def draws(self, count: int) -> tuple[list[Draw], list[int]]:
        """Rows of the next batches, for steps of which :meth:`count_steps` hears."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return self._reader.draws(count)
        assert len(drawn[1]) == count, "other steps than were drawn"
        return drawn

    def count_steps(self, rows: Sequence[int], losses: Any, seconds: float) -> None:
        """Count steps that were made at once: the rows and loss of each, and the time in all."""
        self._busy += seconds
        if not len(rows):
            return
        self._last_loss, self._loss = losses[-1], self._loss + losses.sum()
        self._report.rows += sum(rows)
        self._report.steps += len(rows)
        for at in range(len(rows) if self._told else 0):
            self._tell(self.reached + at + 1, rows[at], losses[at])
        self.reached += len(rows)

    def add_gradient(self, w: Any, batch: Batch, out: Any) -> None:
        """Add the gradient SUM of a batch at `w` to `out`; count its rows and loss.

        `w` and `out` are on the host or on the lane's device.
        """
        model, loss, since = self._model, 0.0, time.perf_counter()
        w = w if self._on_host else self.backend.to_device(w)
        stays = self._on_host or not is_host(out)
        sums = out if stays else zeros(out.shape, out.dtype, like=w)
        if batch.add_gradient is not None:
            loss = batch.add_gradient(w, sums)
        for rows in batch.pieces:
            loss = loss + model.add_gradient(w, rows, sums, self.backend)
        if not stays:
            out += self.backend.to_numpy(sums)
        self._worked(since, waited=self._on_host or not stays)
        self._count(batch.n_rows, loss)

    def take_row_steps(
        self, run: Callable[[list[RowsInTurn], Callable[[int], Any]], float], count: int = 1
    ) -> int:
        """Step along the rows of the next batches by `run`; count them, and return how many.

        `run` takes the rows of each batch and what finds a block by its number; it returns the sum
        of their losses. Callbacks hear of one batch at a time alone.
        """
        batches, since = self._reader.rows_in_turn(count), time.perf_counter()
        n_rows = sum(len(rows) for _, rows in batches)
        loss = run(batches, self._reader.block) if n_rows else 0.0
        self._worked(since)
        self._count(n_rows, loss, count)
        return n_rows

    @property
    def tells(self) -> bool:
        """Whether callbacks hear of each step."""
        return bool(self._told)

    def _count(self, n_rows: int, loss: Any, steps: int = 1) -> None:
        self._last_loss, self._loss = loss, self._loss + loss
        report = self._report
        report.rows += n_rows
        report.steps += steps
        self.reached += steps
        if self._told:
            self._tell(self.reached, n_rows, loss)

    def _tell(self, clock: int, n_rows: int, loss: Any) -> None:
        """Tell the callbacks of steps of one."""
        end = StepEnd(self.number, clock, n_rows, float(loss))
        for callback in self._told:
            callback.on_step_end(end)

    def _worked(self, since: float, waited: bool = True) -> None:
        """Count time; none where a device was only told what to do."""
        self._busy += time.perf_counter() - since if waited else 0.0

    @property
    def last_loss(self) -> float:
        """Sum of the losses of the last batch."""
        return float(self._last_loss)

    def add_statistic(
        self, statistic: Statistic, number: int, left: int, out: NDArray[np.float64]
    ) -> tuple[float, int]:
        """Add a solver's statistic of all rows to `out`; the sum of the losses, and the rows.

        `number` is that of the sum, from which random streams follow, and `left` that of the sum
        which left the statistic's state as it is to be found.
        """
        model, loss, since = self._model, 0.0, time.perf_counter()
        sums = out if self._on_host else self.backend.to_device(np.zeros_like(out))
        backend: Any = self.backend if self._on_host else MovedOnce(self.backend)
        for block in self._reader.kept:
            block.meet(statistic)
        if not statistic.shows_not_finite:
            self._look_for_nan()
        batch = self.next_batch()
        for rows in batch.pieces:
            rows.key = (self._fit.work.seed, self.number, number, rows.block, rows.first)
            with self._states.lent(statistic.state, left, number, model, rows, backend):
                loss = loss + statistic.add(model, rows, sums, backend)
        if sums is not out:
            out += self.backend.to_numpy(sums)
        if not (self._looked or np.isfinite(out).all()):
            self._look_for_nan()
        self._looked = True
        self._worked(since)
        self.reached += 1
        return float(loss), batch.n_rows

    def _look_for_nan(self) -> None:
        """Raise where the rows hold NaN or infinity; blocks are shared with other lanes."""
        for block in () if self._looked else self._reader.kept:
            block.check()
        self._looked = True

    def new_gradient(self, w: Any, batch: Batch) -> Any:
        """The gradient SUM of a batch at `w`, in a new array like `w`."""
        out = zeros(w.shape, w.dtype, like=w)
        self.add_gradient(w, batch, out)
        return out

    def own_gradient(self, w: Any, batch: Batch) -> Any:
        """The gradient SUM of a batch at `w`, in an array of the lane's; good until the next one.

        A process pays for each page of a new array, of which a network's gradient has many.
        """
        if batch.index is not None or not is_host(w):
            return self.new_gradient(w, batch)
        if (found := self._models_gradient(w, batch)) is not None:
            return found
        if self._own is None or self._own.shape != w.shape:
            self._own = np.zeros_like(w)
        else:
            self._own[...] = 0
        self.add_gradient(w, batch, self._own)
        return self._own

    def _models_gradient(self, w: Any, batch: Batch) -> Any | None:
        """The same in an array of the model's, where it has one."""
        pieces = batch.pieces if isinstance(batch.pieces, list) else []
        if not self._on_host or batch.add_gradient is not None or len(pieces) != 1:
            return None
        since = time.perf_counter()
        if (found := self._model.own_gradient(w, pieces[0], self.backend)) is None:
            return None
        self._worked(since)
        self._count(batch.n_rows, found[1])
        return found[0]

    def held_out(self) -> Iterator[BatchRows]:
        """The held-out rows, block by block."""
        return self._reader.held_out()

    def add_validation(self, sums: NDArray[np.float64]) -> None:
        """Add the validation sums of some held-out rows to the next report."""
        self._report.add_validation(sums.tolist())

    def take_report(self, w: Any | None) -> PassReport:
        """Sums since the last call; with `w`, the validation sums of the held-out rows too."""
        report, self._report = self._report, PassReport([self.number])
        report.busy, self._busy = [self._busy], 0.0
        report.loss, self._loss = float(self._loss), 0.0
        if w is not None:
            w = w if self._on_host else self.backend.to_device(w)
            for rows in self.held_out():
                sums = self._model.validation_sums(w, rows, self.backend)
                report.add_validation(sums.tolist())
        return report

    @property
    def sums(self) -> tuple[float, float, int]:
        """Loss, rows and steps since the last report."""
        return float(self._loss), self._report.rows, self._report.steps

    @sums.setter
    def sums(self, sums: tuple[float, float, int]) -> None:
        self._loss, self._report.rows, self._report.steps = sums


class RowStates:
    """Arrays of the rows of a lane, for as long as it is at work.

    Each is held with the number of the sum that left it; whatever a sum is not to find is made
    anew. So a lane that comes from another trainer, or has answered only some of the questions
    since a solver began again, needs nothing of those before.

    Parameters
    ----------
    most : int or None
        Bytes that are held at most; None: all.
    """

    def __init__(self, most: int | None) -> None:
        self._left = most
        self._held: dict[tuple[str, int, int], tuple[int, Any]] = {}

    @contextmanager
    def lent(
        self, state: RowState | None, left: int, number: int, model: Any, rows: BatchRows,
        backend: Any,
    ) -> Iterator[None]:  # fmt: skip
        """Let sum `number` have as ``rows.state`` what sum `left` left; hold what it leaves."""
        if state is None:
            yield
            return
        key = (state.name, rows.block, rows.first)
        # Not held while it is written: what is written half is nothing.
        found, array = self._held.pop(key, (0, None))
        self._free(array)
        if array is None or found != left:
            array = state.make(model, rows, backend)
        rows.state = array
        yield
        if self._left is None or array.nbytes <= self._left:
            self._held[key] = number, array
            self._left = None if self._left is None else self._left - array.nbytes

    def _free(self, array: Any | None) -> None:
        if self._left is not None and array is not None:
            self._left += array.nbytes
