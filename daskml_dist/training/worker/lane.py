"""A lane at work: its batches and their gradients."""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.draws import Draw
from daskml_dist.backends.moved_once import MovedOnce
from daskml_dist.backends.namespace import is_host, zeros
from daskml_dist.data.batches import LaneRows, Runs
from daskml_dist.data.stream import BlockStream
from daskml_dist.models.base import BatchRows
from daskml_dist.ps.ledger import PassReport
from daskml_dist.ps.shard import Shard
from daskml_dist.solvers import Statistic
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.ready_blocks import ReadyBlock, backend_of, device_memory

__all__ = ["Batch", "Lane"]


#: Bytes of a large batch's rows that are gathered together.
_PIECE = 1 << 20


@dataclass(slots=True)
class Batch:
    """Rows of one gradient.

    Parameters
    ----------
    pieces : iterable of (X, y, weight)
        Read one by one where the batch is large.
    n_rows : int
    index : ndarray of int64 or None
        Rows of the parameters that it touches (coordinates only).
    """

    pieces: Iterable[tuple[Any, Any, Any]]
    n_rows: int
    index: NDArray[np.int64] | None


class Lane:
    """One logical worker: the order of its batches, its clock and its sums. Used by one thread.

    Parameters
    ----------
    number : int
    fit : FitSpec
    rows : LaneRows
    blocks : mapping of int to ReadyBlock, or BlockStream
    """

    def __init__(
        self,
        number: int,
        fit: FitSpec,
        rows: LaneRows,
        blocks: Mapping[int, ReadyBlock] | BlockStream[ReadyBlock],
    ) -> None:
        self.number = number
        self.clock = 0
        #: Steps that it has made gradients of, whether they counted or not.
        self.reached = 0
        self.backend: Backend = backend_of(fit)
        self._on_host = self.backend.device == "cpu"
        self._fit = fit
        self._blocks = blocks
        self._rows = rows
        self._draws: Iterator[list[tuple[int, Any]]] = iter(())
        self._chosen: deque[Batch] = deque()
        self._room = _Room()
        # A batch of whole blocks stays where it is, and sparse rows touch columns of their own.
        self._in_arrays = fit.n_steps > 1 and not fit.rule.coordinates
        self._report = PassReport([self.number])
        self._busy = 0.0
        # On a device until somebody asks: to wait for a number takes longer than many a step.
        self._last_loss: Any = 0.0
        self._loss: Any = 0.0

    @property
    def n_rows(self) -> int:
        """Training rows."""
        return self._rows.n_rows

    def seek(self, clock: int) -> None:
        """Go on from a clock: the next batch is that of step ``clock % n_steps``."""
        self.clock = self.reached = clock
        self._draws = self._from(clock)
        self._chosen.clear()

    def _from(self, clock: int) -> Iterator[list[tuple[int, Any]]]:
        passes, step = divmod(clock, self._fit.n_steps)
        if isinstance(self._blocks, BlockStream):
            self._blocks.seek(passes + 1)
        while passes < self._fit.stopping.max_iter:
            yield from self._rows.batches(passes + 1, step)
            passes, step = passes + 1, 0
        # Loops gather a batch ahead, and after the last pass too.
        while True:
            yield []

    def next_batch(self) -> Batch:
        """The next batch; passes follow each other, after the last one batches are empty.

        Its arrays are good until the next batch is asked for.
        """
        chooser = self.ready_chooser if self._in_arrays else None
        if chooser is None:
            return self._batch(next(self._draws))
        if not self._chosen:
            draws = [next(self._draws) for _ in range(chooser.most)]
            pieces = chooser([_runs(draw) for draw in draws])
            for draw, piece in zip(draws, pieces, strict=True):
                n_rows = _count(draw)
                self._chosen.append(Batch([piece] if n_rows else [], n_rows, None))
        return self._chosen.popleft()

    def _batch(self, rows: list[tuple[int, Any]]) -> Batch:
        n_rows = _count(rows)
        if self._fit.n_steps == 1 and self._fit.streaming is not None:
            return Batch(_Pieces(self, rows), n_rows, None)
        rows = [(number, at.numbers if isinstance(at, Runs) else at) for number, at in rows]
        blocks = [(self._blocks[number], at) for number, at in rows]
        if self._in_arrays and all(isinstance(b.X, np.ndarray) for b, _ in blocks):
            return Batch(self._room.gather(blocks, n_rows), n_rows, None)
        pieces = [self._piece(block, at) for block, at in blocks]
        return Batch(pieces, n_rows, self._touched(pieces))

    @functools.cached_property
    def chooser(self) -> Any | None:
        """What chooses the rows of batches without a copy of them, or None."""
        if isinstance(self._blocks, BlockStream) or not self.n_rows or self._fit.n_steps == 1:
            return None
        # The host knows the columns that a sparse batch touches, unless a kernel makes whole steps.
        rule = self._fit.rule
        if rule.coordinates and (self._on_host or not rule.steps_alone):
            return None
        numbers = itertools.chain.from_iterable(self._rows.blocks(1))
        ready = {n: self._blocks[n] for n in sorted(set(numbers))}
        blocks = {n: (block.X, block.y, block.weight) for n, block in ready.items()}
        model, most = self._fit.step_model, self._most_rows
        with device_memory(self.backend, f"What chooses batches of {most:,} rows"):
            return self.backend.chooser(model.loss, model.shape, blocks, most)

    @property
    def ready_chooser(self) -> Any | None:
        """The chooser, once it is worth having: the host gathers the rows of first steps."""
        return None if self.reached < self._steps_gathered else self.chooser

    @functools.cached_property
    def _steps_gathered(self) -> int:
        return self.backend.steps_gathered(self._most_rows * self._fit.step_model.n_features)

    @property
    def _most_rows(self) -> int:
        """Rows of a batch at most."""
        return -(-self.n_rows // self._fit.n_steps)

    def take_steps(self, recorded: Any, replica: Shard, count: int) -> None:
        """Take steps of a replica that are made at once, and count their rows and losses.

        Parameters
        ----------
        recorded : RecordedSteps or BatchSteps
            Of the lane's chooser and the replica.
        replica : Shard
        count : int
        """
        draws, since = [next(self._draws) for _ in range(count)], time.perf_counter()
        rows = [_count(draw) for draw in draws]
        losses = recorded([_runs(draw) for draw in draws], replica.next_steps(rows))
        self._worked(since, waited=self._on_host)
        self._last_loss, self._loss = losses[-1], self._loss + losses.sum()
        self._report.rows += sum(rows)
        self._report.steps += count
        self.reached += count

    def _piece(self, block: ReadyBlock, at: Any) -> tuple[Any, Any, Any]:
        rows, at = self.backend.rows, self.backend.row_numbers(at)
        y, weight = (None if a is None else rows(a, at) for a in (block.y, block.weight))
        return rows(block.X, at), y, weight

    def _touched(self, pieces: list[tuple[Any, Any, Any]]) -> NDArray[np.int64] | None:
        if not self._fit.rule.coordinates or self._fit.single_rows:
            return None
        model = self._fit.step_model
        columns = (
            self.backend.columns([X for X, _, _ in pieces]) if pieces else np.empty(0, np.int64)
        )
        return np.append(columns, model.n_features) if model.fit_intercept else columns

    def add_gradient(self, w: Any, batch: Batch, out: Any) -> None:
        """Add the gradient SUM of a batch at `w` to `out`; count its rows and loss.

        `w` and `out` are on the host or on the lane's device.
        """
        report, model = self._report, self._fit.step_model
        loss, since = 0.0, time.perf_counter()
        w = w if self._on_host else self.backend.to_device(w)
        stays = self._on_host or not is_host(out)
        sums = out if stays else zeros(out.shape, out.dtype, like=w)
        for X, y, weight in batch.pieces:
            loss = loss + model.add_gradient(w, X, y, weight, sums, self.backend)
        if not stays:
            out += self.backend.to_numpy(sums)
        self._worked(since, waited=self._on_host or not stays)
        self._last_loss, self._loss = loss, self._loss + loss
        report.rows += batch.n_rows
        report.steps += 1
        self.reached += 1

    def _worked(self, since: float, waited: bool = True) -> None:
        """Count time; none where a device was only told what to do."""
        self._busy += time.perf_counter() - since if waited else 0.0

    @property
    def last_loss(self) -> float:
        """Sum of the losses of the last batch."""
        return float(self._last_loss)

    def add_statistic(
        self, statistic: Statistic, number: int, out: NDArray[np.float64]
    ) -> tuple[float, int]:
        """Add a solver's statistic of all rows to `out`; the sum of the losses, and the rows.

        `number` is that of the sum; random streams follow from it.
        """
        model, loss, since = self._fit.model, 0.0, time.perf_counter()
        sums = out if self._on_host else self.backend.to_device(np.zeros_like(out))
        backend: Any = self.backend if self._on_host else MovedOnce(self.backend)
        whole = next(self._draws)
        for block, at in whole:
            key = (self._fit.seed, self.number, number, block, at.start)
            rows = BatchRows(*self._piece(self._blocks[block], at), key, block, at.start)
            loss = loss + statistic.add(model, rows, sums, backend)
        if sums is not out:
            out += self.backend.to_numpy(sums)
        self._worked(since)
        self.reached += 1
        return float(loss), _count(whole)

    def add_row_steps(self, run: Callable[[Any], float], batch: Batch) -> None:
        """Step along the rows of a batch by `run`, which returns their loss; count them."""
        report, since = self._report, time.perf_counter()
        self._last_loss = run(batch.pieces) if batch.n_rows else 0.0
        self._worked(since)
        self._loss += self._last_loss
        report.rows += batch.n_rows
        report.steps += 1
        self.reached += 1

    def new_gradient(self, w: Any, batch: Batch) -> Any:
        """The gradient SUM of a batch at `w`, in a new array like `w`."""
        out = zeros(w.shape, w.dtype, like=w)
        self.add_gradient(w, batch, out)
        return out

    def take_report(self, w: Any | None) -> PassReport:
        """Sums since the last call; with `w`, the validation sums of the held-out rows too."""
        report, self._report = self._report, PassReport([self.number])
        report.busy, self._busy = [self._busy], 0.0
        report.loss, self._loss = float(self._loss), 0.0
        if w is not None:
            w = w if self._on_host else self.backend.to_device(w)
            report.validation = self._validation(w).tolist()
        return report

    def _validation(self, w: Any) -> NDArray[np.float64]:
        total = np.zeros(4)
        for number, at in self._rows.held_out:
            blocks = self._blocks
            block = blocks.aside(number) if isinstance(blocks, BlockStream) else blocks[number]
            X, y, weight = self._piece(block, at)
            total += self._fit.step_model.validation_stats(w, X, y, weight, self.backend)
        return total

    @property
    def sums(self) -> tuple[float, float, int]:
        """Loss, rows and steps since the last report."""
        return float(self._loss), self._report.rows, self._report.steps

    @sums.setter
    def sums(self, sums: tuple[float, float, int]) -> None:
        self._loss, self._report.rows, self._report.steps = sums


def _count(rows: list[tuple[int, Any]]) -> int:
    """Rows of a batch."""
    return sum(at.stop - at.start if isinstance(at, slice) else len(at) for _, at in rows)


def _runs(rows: list[tuple[int, Any]]) -> Draw:
    """Rows of a batch, as runs of neighbours."""
    return [
        (number, at.starts, at.counts) if isinstance(at, Runs) else (number, at, None)
        for number, at in rows
    ]


class _Room:
    """Where a lane gathers the dense rows of its batches, the same memory for all of them."""

    def __init__(self) -> None:
        self._arrays: tuple[Any, Any, Any] | None = None

    def gather(self, blocks: list[tuple[ReadyBlock, Any]], n_rows: int) -> Iterable[Any]:
        """One piece of all rows; of a large batch, pieces that a cache holds, as they are read."""
        if n_rows == 0:
            return []
        X = blocks[0][0].X
        most = max(1, _PIECE // (X.shape[1] * X.itemsize))
        if n_rows <= most:
            return [self._fill(blocks, n_rows)]
        return _Cuts(self._fill, blocks, most)

    def _fill(self, blocks: list[tuple[ReadyBlock, Any]], n_rows: int) -> tuple[Any, Any, Any]:
        if self._arrays is None or len(self._arrays[0]) < n_rows:
            first = blocks[0][0]
            self._arrays = tuple(  # type: ignore[assignment]
                None if a is None else np.empty((n_rows, *a.shape[1:]), a.dtype)
                for a in (first.X, first.y, first.weight)
            )
        assert self._arrays is not None
        X, y, weight = self._arrays
        start = 0
        for block, at in blocks:
            stop = start + len(at)
            # These are NumPy's; out of range is checked for where the mode is not "clip".
            block.X.take(at, axis=0, out=X[start:stop], mode="clip")
            block.y.take(at, axis=0, out=y[start:stop], mode="clip")
            if weight is not None:
                assert block.weight is not None
                block.weight.take(at, axis=0, out=weight[start:stop], mode="clip")
            start = stop
        return X[:n_rows], y[:n_rows], None if weight is None else weight[:n_rows]


class _Cuts:
    """Rows of a large batch, some at a time: copied to memory at once, they cost thrice the way."""

    def __init__(
        self,
        fill: Callable[[list[tuple[ReadyBlock, Any]], int], tuple[Any, Any, Any]],
        blocks: list[tuple[ReadyBlock, Any]],
        most: int,
    ) -> None:
        self._fill = fill
        self._blocks = blocks
        self._most = most

    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        for block, at in self._blocks:
            for start in range(0, len(at), self._most):
                cut = at[start : start + self._most]
                yield self._fill([(block, cut)], len(cut))


class _Pieces:
    """The blocks of a full batch, one at a time."""

    def __init__(self, lane: Lane, rows: list[tuple[int, Any]]) -> None:
        self._lane = lane
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        for number, at in self._rows:
            yield self._lane._piece(self._lane._blocks[number], at)
