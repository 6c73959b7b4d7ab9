"""Lanes of a fit: logical workers with their own batch order, which sum over their rows.

A `Lane` computes gradients and statistics of its rows and counts its work for the reports.
`RowStates` holds arrays that a solver's statistics keep for a lane's rows between sums.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import MovedOnce
from daskml_dist.backends.namespace import is_host, zeros
from daskml_dist.backends.row_slices import Draw
from daskml_dist.data.batches import LaneRows, Segment
from daskml_dist.data.streamed_blocks import BlockStream
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.ledger import PassReport
from daskml_dist.ps.shard import Shard
from daskml_dist.solvers.base import RowState, Statistic, known_loss
from daskml_dist.training.callbacks import StepEnd
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.reader import (
    BatchReader,
    Blocks,
    LaneBatch,
    RowsInTurn,
    get_fit_backend,
)


class BlocksLane:
    """Whole blocks of a fit, for a user's function that runs on the trainers.

    Parameters
    ----------
    number : int
    rows : LaneRows
    blocks : mapping of int to Block
    """

    #: It makes no steps that the client could count.
    clock = reached = began_at = 0

    def __init__(self, number: int, rows: LaneRows, blocks: Mapping[int, Any]) -> None:
        self.number = number
        self.n_rows = rows.n_rows
        self.value_blocks = [blocks[segment.block] for segment in rows.segments if len(segment)]


class Lane:
    """Logical worker of a fit, used by one thread at a time.

    Parameters
    ----------
    number : int
    fit : FitSpec
    rows : LaneRows
        The lane's rows, and the order of its batches.
    blocks : mapping of int to ReadyBlock, or BlockStream
    reader : subclass of BatchReader, default=BatchReader
        Class that makes the batches.

    Attributes
    ----------
    clock : int
        Steps since the beginning of the fit, as the loop counts them.
    reached : int
        Clock after the last gradient, whether or not the servers have accepted it.
    began_at : int
        Clock of the last :meth:`seek`.
    """

    def __init__(
        self,
        number: int,
        fit: FitSpec,
        rows: LaneRows,
        blocks: Blocks,
        reader: type[BatchReader] = BatchReader,
    ) -> None:
        self.number = number
        self.clock = self.reached = self.began_at = 0
        self.backend: Backend = get_fit_backend(fit)
        self._on_host = self.backend.device == "cpu"
        self._fit = fit
        #: A `StepModel` if the lane makes steps.
        self._model: Any = fit.work.model
        self._rows = rows
        self._blocks: Any = blocks
        self.reader = reader(number, fit, rows, blocks, self.backend)
        self._drawn_ahead: tuple[list[Draw], list[int]] | None = None
        self._gradient_buffer: NDArray[Any] | None = None
        self._report = PassReport([self.number])
        self._busy = 0.0
        # Losses stay on the device until a report: reading one would wait for all queued kernels,
        # which takes longer than many steps do.
        self._last_loss: Any = 0.0
        self._loss: Any = 0.0
        #: Number by which the rows' weights were divided, and by which losses are multiplied again.
        self._weight_divisor = 1.0
        self._callbacks = fit.work.step_callbacks
        streaming = fit.rows.streaming
        self._states = RowStates(None if streaming is None else streaming.states)
        #: Whether the rows are known to be finite, by a check or by a finite sum over them.
        self._is_checked_finite = False

    @property
    def n_rows(self) -> int:
        """Return the number of training rows."""
        return self._rows.n_rows

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the ranges of the blocks' rows that belong to the lane."""
        return self._rows.segments

    def drop_streamed_blocks(self) -> None:
        """Drop streamed blocks from memory until the next :meth:`seek`."""
        if isinstance(self._blocks, BlockStream):
            self._blocks.close()

    def sum_weights(self) -> float:
        """Return the sum of the weights of the training rows, which are in memory."""
        return self.reader.sum_weights()

    def divide_weights(self, divisor: float) -> None:
        """Divide the weights of the training rows, before the first step; losses are not changed.

        A divisor of 0 or 1 changes nothing.
        """
        if divisor not in (0.0, 1.0):
            self.reader.divide_weights(divisor)
            self._weight_divisor = divisor

    def seek(self, clock: int) -> None:
        """Move to a clock: the next batch is that of step ``clock % n_steps``."""
        self.clock = self.reached = self.began_at = clock
        self._drawn_ahead = None
        self.reader.seek(clock)

    def skip(self, steps: int) -> None:
        """Count steps that the lane does not make, and continue after them."""
        self.reached += steps
        self._report.steps += steps
        self._drawn_ahead = None
        self.drop_streamed_blocks()
        self.reader.seek(self.reached)

    @property
    def keyed_blocks(self) -> list[Any]:
        """Return the blocks of a fit over keys, one per side."""
        return [self._blocks[number].X for number in self._rows.block_numbers]

    def draw_next_batch(self) -> LaneBatch:
        """Return the next batch; after the last pass, batches are empty.

        Its arrays are valid until the next call.
        """
        return self.reader.next(self.reached >= self.reader.steps_copied)

    @property
    def gather_when_ready(self) -> Any | None:
        """Return :attr:`gather`; None in the first steps, which do not justify compiling it."""
        return None if self.reached < self.reader.steps_copied else self.reader.gather

    @property
    def gather(self) -> Any | None:
        """Return the compiled loops that read batches in the blocks without a copy, or None."""
        return self.reader.gather

    def take_recorded_steps(self, recorded: Any, replica: Shard, count: int) -> None:
        """Take steps of a replica in one call of a compiled loop; count their rows and losses."""
        (draws, rows), since = self.draw_batch_runs(count), time.perf_counter()
        losses = recorded(draws, replica.next_steps(rows))
        self.count_made_steps(rows, losses, time.perf_counter() - since if self._on_host else 0.0)

    def draw_rows_ahead(self, count: int) -> None:
        """Draw the rows of the next `count` steps, for a later :meth:`draw_batch_runs`."""
        self._drawn_ahead = self.reader.draw_batch_runs(count)

    def draw_batch_runs(self, count: int) -> tuple[list[Draw], list[int]]:
        """Return the rows of the next batches, to be counted by :meth:`count_made_steps`."""
        drawn, self._drawn_ahead = self._drawn_ahead, None
        if drawn is None:
            return self.reader.draw_batch_runs(count)
        # Drawing advances the order of the rows, so it cannot be undone.
        assert len(drawn[1]) == count, "other steps than were drawn"
        return drawn

    def count_made_steps(self, rows: Sequence[int], losses: Any, seconds: float) -> None:
        """Count the steps of one call: the rows and loss of each, and the time of all."""
        self._busy += seconds
        if not len(rows):
            return
        if self._weight_divisor != 1:
            losses = losses * self._weight_divisor
        self._last_loss, self._loss = losses[-1], self._loss + losses.sum()
        self._report.rows += sum(rows)
        self._report.steps += len(rows)
        for step in range(len(rows) if self._callbacks else 0):
            self._call_step_callbacks(self.reached + step + 1, rows[step], losses[step])
        self.reached += len(rows)

    def add_gradient(self, w: Any, batch: LaneBatch, out: Any) -> None:
        """Add the gradient sum of a batch at `w` to `out`; count its rows and loss.

        `w` and `out` may be on the host or on the lane's device.
        """
        model, loss, since = self._model, 0.0, time.perf_counter()
        w = w if self._on_host else self.backend.to_device(w)
        # Sum on the lane's device, and move the sum once if the caller needs it on the host.
        is_in_place = self._on_host or not is_host(out)
        sums = out if is_in_place else zeros(out.shape, out.dtype, like=w)
        # Rows that are read in their blocks: the gather adds their gradient.
        if batch.add_gradient is not None:
            loss = batch.add_gradient(w, sums)
        # Rows that were copied: the model adds the gradient of each piece.
        for rows in batch.pieces:
            loss = loss + model.add_gradient(w, rows, sums, self.backend)
        if not is_in_place:
            out += self.backend.to_numpy(sums)
        self._add_busy_time(since, waited=self._on_host or not is_in_place)
        self._count_batch(batch.n_rows, loss)

    def take_row_steps(
        self, run: Callable[[list[RowsInTurn], Callable[[int], Any]], float], count: int = 1
    ) -> int:
        """Make each row of the next batches a step by calling `run`; return the number of rows.

        `run` gets the rows of each batch, and a function that returns a block by its number; it
        returns the sum of the losses. With step callbacks, `count` must be 1.
        """
        batches, since = self.reader.next_rows_in_turn(count), time.perf_counter()
        n_rows = sum(len(rows) for _, rows in batches)
        loss = run(batches, self.reader.block) if n_rows else 0.0
        self._add_busy_time(since)
        self._count_batch(n_rows, loss, count)
        return n_rows

    @property
    def calls_step_callbacks(self) -> bool:
        """Return whether there are step callbacks."""
        return bool(self._callbacks)

    def _count_batch(self, n_rows: int, loss: Any, steps: int = 1) -> None:
        """Count the rows and the loss of one or more steps."""
        if self._weight_divisor != 1:
            loss = loss * self._weight_divisor
        self._last_loss, self._loss = loss, self._loss + loss
        report = self._report
        report.rows += n_rows
        report.steps += steps
        self.reached += steps
        if self._callbacks:
            self._call_step_callbacks(self.reached, n_rows, loss)

    def _call_step_callbacks(self, clock: int, n_rows: int, loss: Any) -> None:
        """Call the step callbacks after one step."""
        end = StepEnd(self.number, clock, n_rows, float(loss))
        for callback in self._callbacks:
            callback.on_step_end(end)

    def _add_busy_time(self, since: float, waited: bool = True) -> None:
        """Count the time since `since`; zero if work was only queued on a device."""
        self._busy += time.perf_counter() - since if waited else 0.0

    @property
    def last_batch_loss(self) -> float:
        """Return the sum of the losses of the last batch."""
        return float(self._last_loss)

    def add_statistic(
        self, statistic: Statistic, sum_number: int, source_sum: int, out: NDArray[np.float64]
    ) -> tuple[float, int]:
        """Add a solver's statistic of all rows to `out`; return the summed loss and the rows.

        `sum_number` is the number of this sum, which seeds its random streams. `source_sum` is the
        number of the last sum that wrote the statistic's state of the rows.
        """
        model, loss, since = self._model, 0.0, time.perf_counter()
        sums = out if self._on_host else zeros(out.shape, out.dtype, like=self._any_on_device)
        # Rows are moved to a GPU only once for all statistics of this pass.
        backend: Any = self.backend if self._on_host else MovedOnce(self.backend)
        for block in self.reader.kept:
            block.prepare_for_statistic(statistic)
        if not statistic.shows_not_finite:
            self._check_finite_once()
        batch = self.draw_next_batch()
        for rows in batch.pieces:
            # Key of random streams: the same rows draw the same numbers on any worker.
            rows.key = (self._fit.work.seed, self.number, sum_number, rows.block, rows.first)
            with self._states.lend_state(
                statistic.state, source_sum, sum_number, model, rows, backend
            ):
                piece_loss = known_loss(statistic.add(model, rows, sums, backend))
                # A device's loss that is part of the sums is copied to the host with them.
                loss = loss if statistic.loss_is_first and sums is not out else loss + piece_loss
        if sums is not out:
            on_host = self.backend.to_numpy(sums)
            loss = on_host.flat[0] if statistic.loss_is_first else loss
            out += on_host
        # NaN in the rows makes most sums NaN, so the rows are only searched if a sum is not finite.
        if not (self._is_checked_finite or np.isfinite(out).all()):
            self._check_finite_once()
        self._is_checked_finite = True
        self._add_busy_time(since)
        self.reached += 1
        return float(loss), batch.n_rows

    @functools.cached_property
    def _any_on_device(self) -> Any:
        """Return an array on the lane's device, as a template for zeros."""
        return self.backend.to_device(np.zeros(1))

    def _check_finite_once(self) -> None:
        """Raise if the rows contain NaN or infinity; checked only once."""
        for block in () if self._is_checked_finite else self.reader.kept:
            block.check()
        self._is_checked_finite = True

    def compute_gradient(self, w: Any, batch: LaneBatch) -> Any:
        """Return the gradient sum of a batch at `w`, in a new array."""
        out = zeros(w.shape, w.dtype, like=w)
        self.add_gradient(w, batch, out)
        return out

    def own_gradient(self, w: Any, batch: LaneBatch) -> Any:
        """Return the gradient sum of a batch at `w`, in an array that the next call overwrites.

        A network's gradient is large, and the first write to each page of new memory is slow.
        """
        # Gradients of touched rows vary in size, so no array is reused.
        if batch.index is not None:
            return self.compute_gradient(w, batch)
        if (gradient := self._gradient_in_model_memory(w, batch)) is not None:
            return gradient
        # A device has its own memory pool.
        if not is_host(w):
            return self.compute_gradient(w, batch)
        if self._gradient_buffer is None or self._gradient_buffer.shape != w.shape:
            self._gradient_buffer = np.zeros_like(w)
        else:
            self._gradient_buffer[...] = 0
        self.add_gradient(w, batch, self._gradient_buffer)
        return self._gradient_buffer

    def _gradient_in_model_memory(self, w: Any, batch: LaneBatch) -> Any | None:
        """Return the gradient sum in an array that the model owns, or None if it has none."""
        pieces = batch.pieces if isinstance(batch.pieces, list) else []
        # Otherwise the parameters would have to be moved to the device, and the gradient back.
        is_local = self._on_host or not is_host(w)
        if not is_local or batch.add_gradient is not None or len(pieces) != 1:
            return None
        since = time.perf_counter()
        if (gradient_and_loss := self._model.own_gradient(w, pieces[0], self.backend)) is None:
            return None
        self._add_busy_time(since, waited=self._on_host)
        self._count_batch(batch.n_rows, gradient_and_loss[1])
        return gradient_and_loss[0]

    def held_out(self) -> Iterator[BatchRows]:
        """Yield the held-out rows, block by block."""
        return self.reader.held_out()

    def add_validation(self, sums: NDArray[np.float64]) -> None:
        """Add validation sums that were computed elsewhere to the next report."""
        self._report.add_validation(sums.tolist())

    def take_pass_report(self, w: Any | None) -> PassReport:
        """Return the sums since the last call; with `w`, the validation sums, too."""
        report, self._report = self._report, PassReport([self.number])
        report.busy, report.busy_steps, self._busy = [self._busy], [report.steps], 0.0
        report.loss, self._loss = float(self._loss), 0.0
        if w is not None:
            w = w if self._on_host else self.backend.to_device(w)
            for rows in self.held_out():
                sums = self._model.validation_sums(w, rows, self.backend)
                report.add_validation(sums.tolist())
        return report

    @property
    def sums(self) -> tuple[float, float, int]:
        """Return the loss, rows and steps since the last report."""
        return float(self._loss), self._report.rows, self._report.steps

    @sums.setter
    def sums(self, sums: tuple[float, float, int]) -> None:
        self._loss, self._report.rows, self._report.steps = sums


class RowStates:
    """Arrays that statistics keep for the rows of a lane, such as the rows' raw predictions.

    Each array is stored with the number of the sum that wrote it. If that is not the expected sum,
    the array is computed again. So states are right on a lane that has moved from another trainer,
    and after a solver has restarted, without being sent or saved.

    Parameters
    ----------
    max_bytes : int or None
        Most bytes that are kept; None: no limit.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._free_bytes = max_bytes
        self._state_arrays: dict[tuple[str, int, int], tuple[int, Any]] = {}

    @contextmanager
    def lend_state(
        self, state: RowState | None, source_sum: int, sum_number: int, model: Any, rows: BatchRows,
        backend: Any,
    ) -> Iterator[None]:  # fmt: skip
        """Pass the array of `source_sum` to `sum_number` as ``rows.state``, then store it."""
        if state is None:
            yield
            return
        key = (state.name, rows.block, rows.first)
        # Removed while the statistic writes it, so that an error never leaves a partially written
        # array.
        stored_number, array = self._state_arrays.pop(key, (0, None))
        if self._free_bytes is not None and array is not None:
            self._free_bytes += array.nbytes
        if array is None or stored_number != source_sum:
            array = state.make(model, rows, backend)
        rows.state = array
        yield
        if self._free_bytes is None or array.nbytes <= self._free_bytes:
            self._state_arrays[key] = sum_number, array
            self._free_bytes = None if self._free_bytes is None else self._free_bytes - array.nbytes
