"""Pass ledger: collects the lanes' reports of passes, makes records, and decides on the end.

Lanes at their own pace may be in different passes, so several passes may be open. A pass is closed
once every lane has reported it, in the order of passes. Its record is then complete, and the
stopping rule is applied to it. Rows and losses that servers apply are counted by the server; the
rest is in the lanes' reports (`PassReport`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

PassRecord = dict[str, Any]


@dataclass
class PassStoppingRule:
    """Stopping rule of scikit-learn: after `n_iter_no_change` passes without progress by `tol`.

    Parameters
    ----------
    max_iter : int
        Most passes.
    tol : float or None
        None: always make `max_iter` passes.
    n_iter_no_change : int
    use_score : bool
        Whether progress is measured by the validation score (early stopping) or the training loss.
    """

    max_iter: int
    tol: float | None
    n_iter_no_change: int = 5
    use_score: bool = False
    best: float = np.inf
    stale_passes: int = 0
    converged: bool = False

    def update(self, record: PassRecord) -> bool:
        """Take the record of a pass; return whether the fit ends with it."""
        if self.tol is not None:
            # Scores grow and losses fall as a fit progresses; negated scores are minimised like
            # losses.
            value = -record["val_score"] if self.use_score else record["loss"]
            self.stale_passes = self.stale_passes + 1 if value > self.best - self.tol else 0
            self.best = min(self.best, value)
            self.converged = self.stale_passes >= self.n_iter_no_change
        return self.converged or record["pass"] >= self.max_iter


@dataclass
class PassReport:
    """Report of some lanes on one pass; sums over these lanes, except for `busy`.

    Rows, losses and steps that were pushed to servers are not included: servers count them as they
    apply them, so that none is counted twice or lost with a trainer.
    """

    lanes: list[int]
    loss: float = 0.0
    rows: float = 0.0
    steps: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    #: For each lane, the seconds that it computed since its last report, and its steps in that
    #: time. A lane at its own pace may have made other steps than those of the pass.
    busy: list[float] = field(default_factory=list)
    busy_steps: list[int] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    #: The lanes that made steps, if each round draws some.
    clients: list[int] = field(default_factory=list)
    #: Scores of the model after the pass, if all lanes report together.
    scores: list[float] = field(default_factory=list)

    def add_validation(self, sums: list[float]) -> None:
        """Add the sums of further held-out rows; empty if there were no rows."""
        sums_so_far = self.validation or [0.0] * len(sums)
        self.validation = (
            [a + b for a, b in zip(sums_so_far, sums, strict=True)] if sums else sums_so_far
        )


@dataclass(slots=True)
class _PassSums:
    """Sums of a pass, either reported by lanes or applied by the server."""

    loss: float = 0.0
    rows: float = 0.0
    steps: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0

    @property
    def values(self) -> tuple[float, ...]:
        """Return the sums, in their order."""
        return self.loss, self.rows, self.steps, self.bytes_pushed, self.bytes_pulled


@dataclass(slots=True)
class _OpenPass:
    """Pass that some lanes have not reported yet.

    Lanes at their own pace may be hundreds of passes apart, and all these passes are open. So
    reports are added up as they arrive, and a snapshot holds only a few numbers per pass.
    """

    #: Bit mask of the lanes that have not reported it, by their positions in the ledger.
    missing: int
    reported: _PassSums = field(default_factory=_PassSums)
    counted: _PassSums = field(default_factory=_PassSums)
    #: Sums over held-out rows, one row per lane, so that they are added in lane order.
    validation: NDArray[np.float64] | None = None
    clients: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class OpenPassesSnapshot:
    """Copy of a ledger's open passes as a few arrays, since it is often sent to the standby.

    Parameters
    ----------
    pass_numbers : array of int64, of length n
    missing : list of int
        Bit masks of lanes.
    sums : array of shape (n, 10), float64
        Sums of the reports, then sums of the server.
    validation : array of shape (m, n_lanes, n_statistics), float64
        For the m passes that have validation sums.
    validated : list of int
        Numbers of these passes.
    clients, scores : dict of int to list
        For the passes that have some.
    """

    pass_numbers: NDArray[np.int64]
    missing: list[int]
    sums: NDArray[np.float64]
    validation: NDArray[np.float64]
    validated: list[int]
    clients: dict[int, list[int]]
    scores: dict[int, list[float]]

    @classmethod
    def copy(cls, passes: dict[int, _OpenPass]) -> OpenPassesSnapshot:
        """Return a copy of open passes, by their numbers."""
        sums = [(*p.reported.values, *p.counted.values) for p in passes.values()]
        validations = {n: p.validation for n, p in passes.items() if p.validation is not None}
        return cls(
            np.array(list(passes), np.int64), [p.missing for p in passes.values()],
            np.array(sums, np.float64).reshape(-1, 10),
            np.array(list(validations.values()), np.float64), list(validations),
            {n: list(p.clients) for n, p in passes.items() if p.clients},
            {n: list(p.scores) for n, p in passes.items() if p.scores},
        )  # fmt: skip

    def restore(self) -> dict[int, _OpenPass]:
        """Return the open passes, by their numbers."""
        open_passes = {}
        validations = dict(zip(self.validated, self.validation, strict=True))
        for number, missing, sums in zip(
            self.pass_numbers.tolist(), self.missing, self.sums, strict=True
        ):
            validation = validations.get(number)
            open_passes[number] = _OpenPass(
                missing, _make_sums(*sums[:5]), _make_sums(*sums[5:]),
                None if validation is None else validation.copy(),
                list(self.clients.get(number, [])), list(self.scores.get(number, [])),
            )  # fmt: skip
        return open_passes


def _make_sums(loss: float, rows: float, steps: float, pushed: float, pulled: float) -> _PassSums:
    """Return the sums of a pass from a row of floats."""
    return _PassSums(float(loss), float(rows), int(steps), int(pushed), int(pulled))


@dataclass(frozen=True)
class LedgerSnapshot:
    """Copy of a ledger at one moment; of its records it only has the number."""

    rule: PassStoppingRule
    n_records: int
    stopped: bool
    last_pass: int | None
    open: OpenPassesSnapshot
    elapsed: float
    staleness: list[int]


#: Classes of the objects in a ledger's snapshot, which may be sent between processes.
LEDGER_PARTS: tuple[type, ...] = (LedgerSnapshot, PassStoppingRule, OpenPassesSnapshot)


class PassLedger:
    """Ledger of passes. Not thread-safe: the server that owns it holds a lock.

    Parameters
    ----------
    lanes : list of int
    rule : PassStoppingRule
    lockstep : bool
        Whether the lanes step together; a step of all lanes then counts once.
    score : callable or None
        Computes the validation score from summed statistics; None without a validation set.
    on_record : callable
        Called with each record; must not block.
    first_pass : int, default=0
        Number of passes made before.
    score_names : tuple of str, default=()
        Keys of the scores in pass reports; the first is also ``eval_score``.
    describe_pass : callable or None
        Returns further entries of the record of a pass, by its number, which may replace others.
    mean_weight : float, default=1.0
        Mean weight of the rows, by which the mean loss of a pass is divided.
    """

    def __init__(
        self,
        lanes: list[int],
        rule: PassStoppingRule,
        *,
        lockstep: bool,
        score: Callable[[NDArray[np.float64]], float] | None = None,
        on_record: Callable[[PassRecord], None] = lambda record: None,
        first_pass: int = 0,
        score_names: tuple[str, ...] = (),
        describe_pass: Callable[[int], PassRecord] | None = None,
        mean_weight: float = 1.0,
    ) -> None:
        self.lanes = sorted(lanes)
        self._mean_weight = mean_weight
        self._places = {lane: place for place, lane in enumerate(self.lanes)}
        self._all_lanes = (1 << len(self.lanes)) - 1
        self._describe_pass = describe_pass
        self.rule = rule
        self.records: list[PassRecord] = []
        #: Seconds that each lane has computed, and the steps that it made in that time.
        self.lane_seconds: dict[int, tuple[float, int]] = {}
        self._first_pass = first_pass
        self._score_names = score_names
        self.stopped = False
        self._last_pass: int | None = None
        self._lockstep = lockstep
        self._score = score
        self._on_record = on_record
        self._open: dict[int, _OpenPass] = {}
        self._since = time.perf_counter()
        #: Staleness of pushes in versions: its sum, its largest value, and the numbers of pushes
        #: with staleness 0, 1, 2 to 3, 4 to 7, ...
        self._staleness: list[int] = [0, 0]

    def start_clock(self) -> None:
        """Start timing the first pass."""
        self._since = time.perf_counter()

    def observe_staleness(self, staleness: int) -> None:
        """Count a push by the number of versions that it was behind."""
        # A histogram by powers of two: bit_length() is 0 of 0, 1 of 1, 2 of 2 and 3, ...
        histogram, position = self._staleness, 2 + staleness.bit_length()
        histogram[0] += staleness
        histogram[1] = max(histogram[1], staleness)
        histogram.extend([0] * (position + 1 - len(histogram)))
        histogram[position] += 1

    def _open_pass(self, pass_number: int) -> _OpenPass:
        """Return an unclosed pass, opening it if necessary."""
        if pass_number not in self._open:
            self._open[pass_number] = _OpenPass(self._all_lanes)
        return self._open[pass_number]

    def count(self, pass_number: int, rows: float, loss: float, steps: int) -> None:
        """Count rows, losses and steps that a server applied in pass `pass_number`."""
        counted = self._open_pass(pass_number).counted
        counted.rows += rows
        counted.loss += loss
        counted.steps += steps

    def report(self, pass_number: int, report: PassReport, age: float = 0.0) -> None:
        """Take the report of some lanes on pass `pass_number` (from 1); ignore a repeated one."""
        if self.is_closed(pass_number):
            return
        entry = self._open_pass(pass_number)
        reporting = self._mask(report.lanes)
        # A report that was sent again after a loss is already counted.
        if not entry.missing & reporting:
            return
        entry.missing &= ~reporting
        self._add_report(entry, report)
        for lane, seconds, steps in zip(report.lanes, report.busy, report.busy_steps, strict=False):
            seconds_before, steps_before = self.lane_seconds.get(lane, (0.0, 0))
            self.lane_seconds[lane] = seconds_before + seconds, steps_before + steps
        # Passes close in order, although fast lanes may report later ones early.
        while (next_pass := self.n_passes + 1) in self._open and not self._open[next_pass].missing:
            self._close_pass(next_pass, self._open.pop(next_pass), age)

    def _mask(self, lanes: list[int]) -> int:
        """Return the bit mask of some lanes."""
        return sum(1 << self._places[lane] for lane in set(lanes) & self._places.keys())

    def _add_report(self, entry: _OpenPass, report: PassReport) -> None:
        """Add a report to the sums of an open pass."""
        sums = entry.reported
        sums.loss += report.loss
        sums.rows += report.rows
        sums.steps = self._join_steps(sums.steps, report.steps)
        sums.bytes_pushed += report.bytes_pushed
        sums.bytes_pulled += report.bytes_pulled
        if report.validation:
            if entry.validation is None:
                entry.validation = np.zeros((len(self.lanes), len(report.validation)))
            # In the row of the first of these lanes, so that the order of arrival does not affect
            # the last digit.
            entry.validation[self._places[min(report.lanes)]] = report.validation
        entry.clients += report.clients
        entry.scores = report.scores or entry.scores

    def _join_steps(self, first_steps: int, other_steps: int) -> int:
        """Return the steps of two parts of a pass; in lock-step, lanes make the same steps."""
        return max(first_steps, other_steps) if self._lockstep else first_steps + other_steps

    @property
    def partial_rows(self) -> float:
        """Return the rows after the last whole pass; fast lanes may have reported later passes."""
        return float(sum(p.reported.rows + p.counted.rows for p in self._open.values()))

    def renew(self) -> None:
        """Forget the reports of open passes: in lock-step, all lanes report them again."""
        if self._lockstep:
            for number, entry in self._open.items():
                self._open[number] = _OpenPass(self._all_lanes, counted=entry.counted)

    def snapshot(self) -> LedgerSnapshot:
        """Return a copy of everything but the records."""
        # The elapsed time of the pass, not its start: other machines have other clocks.
        elapsed = time.perf_counter() - self._since
        return LedgerSnapshot(
            replace(self.rule), len(self.records), self.stopped, self._last_pass,
            OpenPassesSnapshot.copy(self._open), elapsed, list(self._staleness),
        )  # fmt: skip

    def restore(self, snapshot: LedgerSnapshot) -> None:
        """Restore the ledger from a snapshot; later records are dropped."""
        del self.records[snapshot.n_records :]
        self.rule, self.stopped = replace(snapshot.rule), snapshot.stopped
        self._last_pass = snapshot.last_pass
        self._open = snapshot.open.restore()
        self._since = time.perf_counter() - snapshot.elapsed
        self._staleness = list(snapshot.staleness)

    def ends_with(self, pass_number: int) -> bool:
        """Return whether lanes that have made pass `pass_number` make no further one.

        In lock-step all lanes get the same answer, even if one asks again later. A lane that has
        been reset to an earlier pass makes the rest again, so that no lost lane's passes are
        missing.
        """
        if self._last_pass is None:
            return self.stopped and not self._lockstep
        return pass_number >= self._last_pass

    def is_closed(self, pass_number: int) -> bool:
        """Return whether every lane has reported pass `pass_number`."""
        return pass_number <= self.n_passes

    @property
    def n_passes(self) -> int:
        """Return the number of closed passes, with those before this fit."""
        return self._first_pass + len(self.records)

    def stop(self) -> None:
        """End the fit with the pass that is open."""
        self.stopped = True

    def _close_pass(self, pass_number: int, entry: _OpenPass, age: float) -> None:
        """Make the record of a pass that all lanes have reported; decide whether the fit ends."""
        closed_at = max(self._since, time.perf_counter() - age)
        reported, counted = entry.reported, entry.counted
        rows = reported.rows + counted.rows
        total, largest, *counts = self._staleness
        record: PassRecord = {
            "pass": pass_number,
            "loss": (
                (reported.loss + counted.loss) / (rows * self._mean_weight)
                if rows
                else float("nan")
            ),
            "rows": round(rows),
            "steps": self._join_steps(reported.steps, counted.steps),
            "seconds": closed_at - self._since,
            "bytes_pushed": reported.bytes_pushed,
            "bytes_pulled": reported.bytes_pulled,
            "staleness_mean": total / sum(counts) if counts else 0.0,
            "staleness_max": largest,
            "staleness_counts": counts,
            "val_score": self._score_validation(entry.validation),
        }
        if entry.clients:
            record["clients"] = sorted(entry.clients)
        record.update(zip(self._score_names, entry.scores, strict=False))
        if self._score_names:
            record["eval_score"] = record.get(self._score_names[0])
        if self._describe_pass is not None:
            record.update(self._describe_pass(pass_number))
        # The next pass is timed from here, and its staleness counted from zero.
        self._since, self._staleness = closed_at, [0, 0]
        self.records.append(record)
        if self.rule.update(record):
            self.stopped = True
        # The first pass that closes after the decision to stop is the last one for all lanes.
        if self.stopped and self._last_pass is None:
            self._last_pass = pass_number
        self._on_record(record)

    def _score_validation(self, sums: NDArray[np.float64] | None) -> float | None:
        """Return all lanes' validation score: None without validation, NaN without rows for it."""
        if self._score is None:
            return None
        return math.nan if sums is None else self._score(sums.sum(axis=0))
