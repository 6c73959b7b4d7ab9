"""A lane at work: its batches and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend, get_backend
from daskml_dist.data.batches import LaneRows, LaneSpec
from daskml_dist.data.blocks import Block, check_finite
from daskml_dist.ps.ledger import PassReport
from daskml_dist.training.spec import FitSpec

__all__ = ["Batch", "Lane", "ReadyBlock", "prepare_block"]


@dataclass(frozen=True)
class ReadyBlock:
    """A block as the steps want it: on the device, targets encoded, weights scaled."""

    X: Any
    y: Any
    weight: Any | None


@dataclass(slots=True)
class Batch:
    """Rows of one gradient.

    Parameters
    ----------
    pieces : list of (X, y, weight)
    n_rows : int
    index : ndarray of int64 or None
        Rows of the parameters that it touches (coordinates only).
    """

    pieces: list[tuple[Any, Any, Any]]
    n_rows: int
    index: NDArray[np.int64] | None


def prepare_block(block: Block, fit: FitSpec) -> ReadyBlock:
    """Check a block for NaN and infinity, encode its targets and make its row weights."""
    check_finite(block)
    backend = get_backend(fit.device)
    assert block.y is not None
    y = fit.model.encode(block.y, fit.classes, fit.dtype)
    weight = None
    if fit.weight_scale is not None:
        weight = np.full(len(y), fit.weight_scale)
        if block.sample_weight is not None:
            weight *= block.sample_weight
        if fit.class_weight is not None and fit.classes is not None:
            weight *= fit.class_weight[np.searchsorted(fit.classes, block.y)]
        weight = backend.to_device(weight.astype(fit.dtype))
    X = block.X.astype(fit.dtype, copy=False)
    return ReadyBlock(backend.to_device(X), backend.to_device(y), weight)


class Lane:
    """One logical worker: the order of its batches, its clock and its sums. Used by one thread.

    Parameters
    ----------
    spec : LaneSpec
    fit : FitSpec
    blocks : mapping of int to ReadyBlock
    """

    def __init__(self, spec: LaneSpec, fit: FitSpec, blocks: Mapping[int, ReadyBlock]) -> None:
        self.number = spec.lane
        self.clock = 0
        self.backend: Backend = get_backend(fit.device)
        self._fit = fit
        self._blocks = blocks
        self._rows = LaneRows(spec, fit.n_steps, fit.seed, fit.shuffle, fit.validation_fraction)
        self._batches: Iterator[Batch] = iter(())
        self._report = PassReport([self.number])
        self._last_loss = 0.0

    @property
    def n_rows(self) -> int:
        """Training rows."""
        return self._rows.n_rows

    def seek(self, clock: int) -> None:
        """Go on from a clock: the next batch is that of step ``clock % n_steps``."""
        self.clock = clock
        self._batches = self._from(clock)

    def _from(self, clock: int) -> Iterator[Batch]:
        passes, step = divmod(clock, self._fit.n_steps)
        while True:
            for rows in self._rows.batches(passes + 1, step):
                yield self._batch(rows)
            passes, step = passes + 1, 0

    def next_batch(self) -> Batch:
        """The next batch; passes follow each other without end."""
        return next(self._batches)

    def _batch(self, rows: list[tuple[int, Any]]) -> Batch:
        pieces = []
        n_rows = 0
        for number, at in rows:
            block = self._blocks[number]
            X = self.backend.rows(block.X, at)
            weight = None if block.weight is None else block.weight[at]
            pieces.append((X, block.y[at], weight))
            n_rows += X.shape[0]
        return Batch(pieces, n_rows, self._touched(pieces))

    def _touched(self, pieces: list[tuple[Any, Any, Any]]) -> NDArray[np.int64] | None:
        if not self._fit.rule.coordinates:
            return None
        model = self._fit.model
        columns = (
            self.backend.columns([X for X, _, _ in pieces]) if pieces else np.empty(0, np.int64)
        )
        return np.append(columns, model.n_features) if model.fit_intercept else columns

    def add_gradient(self, w: Any, batch: Batch, out: Any) -> None:
        """Add the gradient SUM of a batch at `w` to `out`; count its rows and loss."""
        report = self._report
        self._last_loss = 0.0
        for X, y, weight in batch.pieces:
            self._last_loss += self._fit.model.add_gradient(w, X, y, weight, out, self.backend)
        report.loss += self._last_loss
        report.rows += batch.n_rows
        report.steps += 1

    def new_gradient(self, w: Any, batch: Batch) -> NDArray[Any]:
        """The gradient SUM of a batch at `w`, in a new array of the shape of `w`."""
        out = np.zeros(w.shape, dtype=w.dtype)
        self.add_gradient(w, batch, out)
        return out

    def uncount(self, batch: Batch) -> None:
        """Take back the last batch, whose push came too late to count."""
        self._report.rows -= batch.n_rows
        self._report.loss -= self._last_loss

    def take_report(self, w: Any | None) -> PassReport:
        """Sums since the last call; with `w`, the validation sums of the held-out rows too."""
        report, self._report = self._report, PassReport([self.number])
        if w is not None:
            report.validation = self._validation(w).tolist()
        return report

    def _validation(self, w: Any) -> NDArray[np.float64]:
        total = np.zeros(4)
        for number, at in self._rows.held_out:
            block = self._blocks[number]
            weight = None if block.weight is None else block.weight[at]
            X = self.backend.rows(block.X, at)
            total += self._fit.model.validation_stats(w, X, block.y[at], weight, self.backend)
        return total

    @property
    def unreported_rows(self) -> float:
        """Rows stepped on since the last report."""
        return self._report.rows
