"""Lost and stopped workers: seconds until a fit resumes, repeated work, cost of standbys.

Times of different processes are compared, so this needs a clock that they share, as on Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from distributed import Client

from benchmarks._common import logistic_rows, markdown, persisted
from benchmarks._strikes import (
    JITTER,
    WORKERS,
    Strike,
    Until,
    Watch,
    all_there,
    lives_of_lanes,
    open_workers,
)
from benchmarks._subjects import LINEAR, ROWS, Subject, networks
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES

#: Seconds after the first pass at which a worker is killed; at 0, there is no standby yet.
LATER, AT_ONCE = 0.7, 0.0
KILLS = [("trainer", LATER), ("server", LATER), ("both", LATER)]
#: Number of fits started for one loss, since other work on the machine may delay the kill.
TRIES = 5
#: Seconds of an undisturbed fit, of a fit whose steps are counted, and until it has standbys.
FIT, TIMED, STANDBYS = 2.0, 1.2, 0.7
#: Features, rows and batch size of the models whose standbys are timed.
MODELS = [(28, 30_000, 64), (100_000, 96, 8)]
HOW = "`python -m benchmarks recovery`"


@dataclass(frozen=True)
class _Size:
    policies: list[str]
    fits: int
    stops: int
    models: list[tuple[int, int, int]]


_FULL = _Size(list(POLICIES), 5, 3, MODELS)
_TINY = _Size(["sync"], 1, 0, [(28, 3_000, 64)])


def run(tiny: bool = False) -> str:
    """Return the tables."""
    size = _TINY if tiny else _FULL
    return "\n\n".join([*_killed_and_stopped(size), _killed_networks(size), _standbys(size)])


def _killed_and_stopped(size: _Size) -> list[str]:
    with open_workers(WORKERS, __name__) as client:
        killed = _kill_table(client, LINEAR, size)
        stopping = ("sync", "async") if size.stops else ()
        stopped = [_stop_row(client, name, size.stops) for name in stopping]
    return [killed, _stopped_table(stopped, size.stops)]


def _killed_networks(size: _Size) -> str:
    """Return the same for networks, with `deterministic=True`."""
    with open_workers(WORKERS, __name__) as client:
        few = replace(size, fits=min(size.fits, 2))
        return "\n\n".join(_kill_table(client, subject, few) for subject in networks())


def _kill_table(client: Client, subject: Subject, size: _Size) -> str:
    client.register_plugin(Watch())
    rows = subject.lazy()
    subject.fit(*rows, "sync", 2)  # warms up
    found = [row for name in size.policies for row in _kill_rows(client, subject, rows, name, size)]
    return _killed_table(subject, found, size.fits)


# -- lost workers ----------------------------------------------------------------------------------


def _kill_rows(
    client: Client, subject: Subject, rows: tuple[Any, Any], policy: str, size: _Size
) -> list[list[Any]]:
    """Return rows by kind; kinds alternate, so that other load disturbs all of them equally."""
    calm = subject.fit(*rows, policy, 10**6, Until(FIT))
    passes = len(calm.history_.records)
    again = subject.fit(*rows, policy, passes)
    if (seconds := sum(record["seconds"] for record in again.history_)) < 0.8 * FIT:
        passes = round(passes * FIT / seconds)  # other work had slowed the machine
        calm = subject.fit(*rows, policy, passes)
    kinds = [*KILLS, ("server", AT_ONCE)] if policy == "sync" else KILLS
    if size.fits == 1:
        kinds = KILLS[1:2]
    found: dict[tuple[str, float], list[_Loss]] = {kind: [] for kind in kinds}
    nobody = [_Loss.between(subject.fit(*rows, policy, passes), calm)]
    for _ in range(size.fits):
        for who, after in kinds:
            found[who, after].append(_lose(client, subject, rows, calm, who, after))
    table = [_row(policy, "nobody", nobody)]
    for (who, after), losses in found.items():
        table.append(_row(policy, who if after else f"{who}, immediately", losses))
    return table


@dataclass
class _Loss:
    """Result of one fit with a loss, compared with an undisturbed one."""

    difference: float
    ratio: float
    whole: bool
    seconds: float | None = None
    lost: int = 0
    again: int = 0
    restarted: bool = False

    @classmethod
    def between(cls, clf: Any, calm: Any) -> _Loss:
        """Compare two fits."""
        records, others = clf.history_.records, calm.history_.records
        return cls(
            float(np.abs(Subject.weights(clf) - Subject.weights(calm)).max()),
            records[-1]["loss"] / others[-1]["loss"],
            len(records) == len(others) and all(r["rows"] == ROWS for r in records),
        )


def _lose(
    client: Client, subject: Subject, rows: tuple[Any, Any], calm: Any, who: str, after: float
) -> _Loss:
    for _ in range(TRIES):
        strike = Strike(client, all_there(client), who, after, signal.SIGKILL)
        clf = subject.fit(*rows, calm.policy, len(calm.history_.records), strike)
        if strike.struck():
            break
    else:
        raise SystemExit("Fits ended before a worker was killed: the machine is too busy.")
    loss = _Loss.between(clf, calm)
    loss.seconds, loss.again = _after(client, strike)
    # Later the workers are restarted and get lanes again, which loses nothing.
    events = [event for _, event in strike.events if "joined" not in event.reason]
    loss.lost = sum(event.lost_versions for event in events)
    loss.restarted = any(event.restarted for event in events)
    return loss


def _after(client: Client, strike: Strike) -> tuple[float | None, int]:
    """Return the seconds to the first new step, and the most gradients that a lane repeated.

    The step is one of a killed trainer's lanes, or of any lane if a server was lost.
    """
    lives = [life for lives in client.run(lives_of_lanes).values() for life in lives]
    before = {life.lane: life for life in lives if life.since < strike.at}
    # A step counts once the lane has begun the next one.
    new = [life for life in lives if life.since > strike.at and life.steps > 1]
    ours = [life for life in new if strike.who != "trainer" or life.lane in strike.lanes]
    first = min((life.since for life in ours), default=None)
    again = [
        before[life.lane].first_clock + before[life.lane].steps - life.first_clock
        for life in new
        if life.lane in before
    ]
    return None if first is None else first - strike.at, max([0, *again])


def _row(policy: str, killed: str, losses: list[_Loss]) -> list[Any]:
    seconds = [loss.seconds for loss in losses if loss.seconds is not None]
    median = f"{statistics.median(seconds):.3f}" if seconds else ""
    spread = f"{min(seconds):.3f} to {max(seconds):.3f}" if seconds else ""
    return [
        policy,
        killed,
        median,
        spread,
        f"{statistics.median(loss.lost for loss in losses):g}" if seconds else "",
        f"{statistics.median(loss.again for loss in losses):g}" if seconds else "",
        f"{sum(loss.restarted for loss in losses)} of {len(losses)}" if seconds else "",
        f"{max(loss.difference for loss in losses):.1e}",
        f"{max((loss.ratio for loss in losses), key=lambda ratio: abs(ratio - 1)):.6f}",
        "yes" if all(loss.whole for loss in losses) else "no",
    ]


def _killed_table(subject: Subject, rows: list[list[Any]], fits: int) -> str:
    columns = [
        "policy", "killed", "seconds to a new step", "range", "`lost_versions`",
        "gradients per lane repeated", "started from scratch", "difference of coefficients",
        "loss / undisturbed", "all rows",
    ]  # fmt: skip
    title = (
        f"kill -9 of workers about {LATER + JITTER / 2:g} s into a fit ({subject.name}), {WORKERS} "
        f"worker processes, medians of {fits} fits, worst differences and loss: {HOW}"
    )
    return markdown(title, columns, rows)


# -- stopped workers -------------------------------------------------------------------------------


def _stop_row(client: Client, policy: str, stops: int) -> list[Any]:
    seconds = [_stop(client, policy) for _ in range(stops)]
    return [
        policy,
        f"{statistics.median(seconds):.2f}",
        f"{min(seconds):.2f} to {max(seconds):.2f}",
    ]


def _stop(client: Client, policy: str) -> float:
    strike = Strike(client, all_there(client), "trainer", LATER, signal.SIGSTOP)
    try:
        LINEAR.fit(*LINEAR.lazy(), policy, 10**6, strike)
    finally:
        for address in strike.victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(strike.pids[address], signal.SIGKILL)
    return strike.events[0][0] - strike.at


def _stopped_table(rows: list[list[Any]], stops: int) -> str:
    title = (
        f"A trainer's process stopped (SIGSTOP), daskml_dist.lease of 3 s, {WORKERS} worker "
        f"processes, medians of {stops} fits: {HOW}"
    )
    return markdown(title, ["policy", "seconds to the next generation", "range"], rows)


# -- standbys --------------------------------------------------------------------------------------


def _standbys(size: _Size) -> str:
    rows = []
    with open_workers(WORKERS, __name__):
        for features, n_rows, batch in size.models:
            X, y = logistic_rows(n_rows, features)
            X, y = persisted(X, WORKERS), persisted(y, WORKERS)
            for policy in [
                name for name in ("sync", "allreduce", "async") if name in size.policies
            ]:
                rows.append([f"{features:,}", policy, *_rates(X, y, policy, batch, size.fits)])
    columns = ["features", "policy", "steps/s with", "steps/s without", "with / without"]
    title = (
        f"Cost of standbys: daskml_dist.standby_lag of 64 and of a billion, alternating, {WORKERS} "
        f"worker processes, float32, medians of {size.fits} fits: {HOW}"
    )
    return markdown(title, columns, rows)


def _rates(X: Any, y: Any, policy: str, batch: int, fits: int) -> list[str]:
    """Return steps per second with standbys and without."""
    rates: dict[int, list[float]] = {64: [], 10**9: []}
    for _ in range(fits):
        for lag, found in rates.items():
            with dask.config.set({"daskml_dist.standby_lag": lag}):
                found.append(_rate(X, y, policy, batch))
    with_, without = map(statistics.median, rates.values())
    return [f"{with_:,.0f}", f"{without:,.0f}", f"{with_ / without:.0%}"]


def _rate(X: Any, y: Any, policy: str, batch: int) -> float:
    """Return steps per second once there are standbys."""
    clf = SGDClassifier(
        policy=policy,
        batch_size=batch,
        tol=None,
        max_iter=10**6,
        random_state=0,
        callbacks=[Until(TIMED)],
    ).fit(X, y)
    records = clf.history_.records
    ends = np.cumsum([record["seconds"] for record in records])
    late = [record for record, end in zip(records, ends, strict=True) if end > STANDBYS]
    return sum(r["steps"] for r in late) / sum(r["seconds"] for r in late)
