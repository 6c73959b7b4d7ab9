"""Reasons to begin a new generation, from alarms and from checks of the cluster.

`Newcomers` are workers that have joined and prepare to take lanes; `WorkerSpeeds` finds workers
that stay slow.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence

from distributed import Future

from daskml_dist.dask_internals.cluster import is_dask_error
from daskml_dist.data.computing import FIRST_TASK_NOTICE_SECONDS, Deadline
from daskml_dist.errors import WaitTimeoutError, is_consequence
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.membership import SETTLED, Membership
from daskml_dist.training.client.run_actors import BUSY, RunActors, TrainerTask
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.control import Alarm

#: Seconds that the error of a trainer may take to arrive.
_FETCH = 0.2
#: Seconds after an alarm during which the scheduler is checked for lost workers.
_SOON = 0.3
logger = logging.getLogger(__name__)
#: Speed, as a share of the median worker's, below which a worker is slow.
_SLOW = 0.4
#: Consecutive checks at which a worker must be slow to count as slow, and the least seconds that
#: these must span: over shorter ones, a process that waits for a core would seem slow.
_LOOKS, _SECONDS = 3, 2.0


class Reasons:
    """Reasons for a new generation of a run.

    Parameters
    ----------
    fit : FitSpec
    rows : ClusterRows
    membership : Membership
    actors : RunActors
    generations : Generations
    """

    def __init__(
        self,
        fit: FitSpec,
        rows: ClusterRows,
        membership: Membership,
        actors: RunActors,
        generations: Generations,
    ) -> None:
        #: Workers that are released once the run does not need them any more.
        self.to_release: set[str] = set()
        self._fit = fit
        self._rows = rows
        self._membership = membership
        self._actors = actors
        self._generations = generations
        self._alarms: list[Alarm] = []
        #: Trainers that have ended and completed their part in this generation.
        self._complete: set[TrainerTask] = set()
        #: Error of the last malformed message that was reported.
        self._garbled = ""
        self._starts = Deadline(
            "workers to begin their parts",
            fit.run.timeout,
            BUSY,
            tell_after=FIRST_TASK_NOTICE_SECONDS,
        )
        self._pace = WorkerSpeeds(fit.rows.lane_rows)
        self._newcomers = Newcomers(membership, actors)

    def take_message(self, alarm: Alarm) -> None:
        """Handle an alarm; callable in any thread."""
        if alarm.silent:
            self._membership.suspect_silence()
        self._alarms.append(alarm)

    def take_garbled(self) -> str:
        """Return the error of the last malformed message, once; else an empty text."""
        garbled, self._garbled = self._garbled, ""
        return garbled

    def note_progress(self) -> None:
        """Record progress of the fit, which renews the time limit of trainers yet to begin."""
        self._starts.renew()

    def reason_from_alarms(self) -> str | None:
        """Return a reason for a new generation from alarms; None if there is none."""
        # A trainer's own error comes first: it explains the consequences that others report.
        if reason := self._find_ended_trainer():
            return reason
        # Taken together, since new ones may arrive in another thread.
        alarms, self._alarms = self._alarms, []
        if not alarms:
            # Heartbeats that were in time when a silence was reported may be missing by now.
            return self._find_stopped_worker() if self._membership.has_suspicion else None
        self._garbled = next((a.message for a in alarms if a.garbled), self._garbled)
        for address in {alarm.leaving for alarm in alarms if alarm.leaving}:
            self._membership.announce_leaving(address)
            self.to_release.add(address)
        if any(alarm.silent for alarm in alarms) and (reason := self._find_stopped_worker()):
            return reason
        if reason := self._find_leaving() or self._find_lost_worker():
            return reason
        # No worker is gone, but a trainer waits for orders, or a standby's connection broke.
        for alarm in alarms:
            if alarm.trainer is not None and alarm.generation == self._generations.generation:
                return alarm.message
        if all(alarm.silent for alarm in alarms):  # a lost packet, but no connection broke
            return None
        # Servers are connected to their standbys again.
        for server in self._generations.servers:
            server.standby_ships = False  # its connection may be the broken one
        return None

    def reason_from_roll_call(self) -> str | None:
        """Return a reason for a new generation from a roll call; None if there is none."""
        membership, members = self._membership, self._generations.members
        # Workers that the scheduler has removed.
        if lost := sorted(members.difference(membership.call())):
            return f"worker {', '.join(lost)} was lost"
        if stopped := self._find_stopped_worker():
            return stopped
        if leaving_reason := self._find_leaving():
            return leaving_reason
        if self._rows.missing_blocks():
            return "rows were lost with a worker"
        self._rows.free_waiting_blocks()
        return self._find_stuck_trainer()

    def reason_from_early_end(self) -> str | None:
        """Return a reason if a trainer ended before its part did; the others wait for it.

        A trainer that ended just before a new generation began does not know of its part in it.
        """
        for trainer in self._generations.trainers:
            if trainer.future.status == "finished" and trainer not in self._complete:
                (result,) = self._actors.collect_results([trainer])
                if not result.is_whole(self._generations.generation):
                    return "a trainer ended early"
                self._complete.add(trainer)
        return None

    def reason_to_even_out(self) -> str | None:
        """Return a reason to move lanes or a server without a loss, or None."""
        return self._find_joined() or self._find_slow() or self._find_crowded()

    def _find_joined(self) -> str | None:
        """Return a reason to give lanes to new workers that are ready."""
        # New workers take lanes once they have imported the fit's modules.
        joined = self._newcomers.find_ready_workers(self._generations.assignments.dealt)
        self._generations.assignments.dealt.update(joined)
        if not joined or not self._generations.assignments.would_even_out():
            return None
        return f"worker {', '.join(joined)} joined"

    def _find_slow(self) -> str | None:
        """Return a reason to take lanes away from workers that stay slow."""
        passes, busy = self._actors.call(self._generations.servers[0].host, "lane_seconds")
        slow_workers = self._pace.record_pass(passes, busy, self._generations.assignments.workers)
        if not slow_workers:
            return None
        self._generations.assignments.speeds.update(slow_workers)
        if not self._generations.assignments.would_even_out():
            return None
        return f"worker {', '.join(sorted(slow_workers))} is slow"

    def _find_crowded(self) -> str | None:
        """Return a reason to move a server to a worker with fewer servers."""
        crowded_worker = self._generations.move_crowded_server()
        return (
            None
            if crowded_worker is None
            else f"worker {crowded_worker} has more servers than others"
        )

    def _find_ended_trainer(self) -> str | None:
        """Return a reason from the trainers' tasks; None if they run, or ended successfully."""
        for trainer in self._generations.trainers:
            if trainer.future.status in {"lost", "cancelled"}:
                return (
                    self._find_lost_worker() or f"worker {trainer.address} lost a part of the fit"
                )
            if trainer.future.status == "error":
                error = trainer.future.exception(timeout=_FETCH)
                return self._find_lost_worker() or f"a trainer stopped: {error}"
        return None

    def _raise_own_error(self) -> str | None:
        """Raise a trainer's error if it would occur again in every generation."""
        for trainer in self._generations.trainers:
            if trainer.future.status != "error":
                continue
            error = trainer.future.exception(timeout=_FETCH)
            if is_consequence(error) or is_dask_error(error):
                continue
            if trainer in self._generations.trainers_not_begun and self._rows.missing_blocks():
                return f"a block could not be recomputed: {error!r}"
            raise error
        return None

    def _find_lost_worker(self) -> str | None:
        """Return which worker was lost, once the scheduler knows; None after a moment.

        If a trainer has raised an error of its own, that error is raised instead.
        """
        deadline = time.monotonic() + _SOON
        while True:
            if reason := self._raise_own_error():
                return reason
            if lost := sorted(self._generations.members.difference(self._membership.call())):
                return f"worker {', '.join(lost)} was lost"
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _find_stopped_worker(self) -> str | None:
        """Return which members neither send heartbeats nor answer; None if there are none."""
        self._membership.call()
        stopped = self._membership.evict_stopped(sorted(self._generations.members))
        return f"worker {', '.join(stopped)} stopped answering" if stopped else None

    def _find_stuck_trainer(self) -> str | None:
        """Return a reason to move trainers that have not begun yet; None if they may wait."""
        waiting = {trainer.address for trainer in self._generations.trainers_not_begun}
        if paused := sorted(a for a in waiting if not self._membership.begins_new_work(a)):
            if self._membership.ready:
                return f"worker {', '.join(paused)} is paused"
        if not waiting or not self._rows.are_blocks_made:
            self._starts.renew()
        elif not self._starts.has_time_left(f"{len(waiting)} of {len(self._generations.members)}"):
            raise WaitTimeoutError(
                f"Workers {', '.join(sorted(waiting))} did not begin their part of the fit "
                f"within {self._fit.run.timeout:g} s. {BUSY} Wait until they are free, or add "
                "workers, and fit again."
            )
        return None

    def _find_leaving(self) -> str | None:
        """Return which members are about to leave, if others can replace them."""
        leaving = sorted(self._generations.members & self._membership.leaving)
        if leaving and not set(self._membership.ready) <= self._membership.leaving:
            return f"worker {', '.join(leaving)} is leaving"
        return None


class Newcomers:
    """Workers that have joined since lanes were assigned, and may soon take some.

    Each first imports the fit's modules, which takes seconds for PyTorch, in its own task;
    meanwhile the other workers continue to step.

    Parameters
    ----------
    membership : Membership
    actors : RunActors
    """

    def __init__(self, membership: Membership, actors: RunActors) -> None:
        self._membership = membership
        self._actors = actors
        #: Time at which each was first seen.
        self._since: dict[str, float] = {}
        #: Tasks of workers that are not ready yet.
        self._tasks: dict[str, Future[bool]] = {}
        #: Workers that are ready, and workers that cannot load the fit.
        self._ready_workers: set[str] = set()
        self._unfit: set[str] = set()

    def find_ready_workers(self, known_workers: set[str]) -> list[str]:
        """Return the unknown workers that have stayed for a moment and are ready."""
        now, newcomers = time.monotonic(), set(self._membership.ready) - known_workers
        for address in self._tasks.keys() - newcomers:
            self._actors.discard_futures([self._tasks.pop(address)])
        for address in sorted(newcomers - self._ready_workers - self._unfit):
            self._since.setdefault(address, now)
            self._check_newcomer(address)
        return sorted(a for a in newcomers & self._ready_workers if now - self._since[a] > SETTLED)

    def _check_newcomer(self, address: str) -> None:
        """Start, or check, the task that imports the fit's modules."""
        if address not in self._tasks:
            self._tasks[address] = self._actors.preload_fit(address)
        task = self._tasks[address]
        if task.status == "pending":
            return
        error = task.exception() if task.status == "error" else None
        self._actors.discard_futures([self._tasks.pop(address)])
        if error is not None and not is_dask_error(error):
            self._unfit.add(address)
            logger.warning(
                "New worker %s cannot join the running fit, since it cannot load it (%r). "
                "Install the packages and files of the other workers there.",
                address,
                error,
            )
        elif task.status == "finished":
            self._ready_workers.add(address)


class WorkerSpeeds:
    """Speeds of the workers of a run.

    Parameters
    ----------
    lane_rows : sequence of int
        Rows of each lane.
    """

    def __init__(self, lane_rows: Sequence[int]) -> None:
        self._rows = lane_rows
        self._n_passes_seen = 0
        self._looked = -math.inf
        #: For each lane, its seconds and steps at the last check, and the seconds per step between
        #: the last two checks between which it made steps.
        self._marks: dict[int, tuple[float, int]] = {}
        self._step_seconds: dict[int, float] = {}
        #: Worker of each lane at the last check.
        self._workers: dict[int, str] = {}
        #: Number of consecutive checks at which a worker was slow, and the time of the first of
        #: them.
        self._slow_looks: dict[str, tuple[int, float]] = {}

    def record_pass(
        self, passes: int, busy: Mapping[int, tuple[float, int]], workers: Mapping[int, str]
    ) -> dict[str, float]:
        """Record the progress of all lanes; return the speed of each worker that stays slow."""
        now = time.monotonic()
        if passes <= self._n_passes_seen or now - self._looked < _SECONDS / _LOOKS:
            return {}
        self._n_passes_seen, self._looked = passes, now
        self._note_lanes(busy, workers)
        speeds = self._compute_speeds(workers)
        if len(speeds) < 2:
            return {}
        median = statistics.median(speeds.values())
        # Relative to the median worker, so that equally slow workers are no reason.
        slow_workers = {worker: speed / median for worker, speed in speeds.items()}
        slow_workers = {worker: share for worker, share in slow_workers.items() if share < _SLOW}
        self._slow_looks = {
            worker: (
                self._slow_looks.get(worker, (0, now))[0] + 1,
                self._slow_looks.get(worker, (0, now))[1],
            )
            for worker in slow_workers
        }
        return {
            worker: share
            for worker, share in slow_workers.items()
            if self._slow_looks[worker][0] >= _LOOKS
            and now - self._slow_looks[worker][1] >= _SECONDS
        }

    def _note_lanes(
        self, busy: Mapping[int, tuple[float, int]], workers: Mapping[int, str]
    ) -> None:
        """Record each lane's seconds per step since the last check."""
        for lane, (seconds, steps) in busy.items():
            seconds_before, steps_before = self._marks.get(lane, (0.0, 0))
            self._marks[lane] = seconds, steps
            if workers.get(lane) != self._workers.get(lane):
                self._step_seconds.pop(lane, None)  # measured on another worker
            # A server that replaced a lost one counts from zero.
            elif steps > steps_before:
                self._step_seconds[lane] = (seconds - seconds_before) / (steps - steps_before)
        self._workers = dict(workers)

    def _compute_speeds(self, workers: Mapping[int, str]) -> dict[str, float]:
        """Return the rows per second of each worker."""
        rows: dict[str, float] = {}
        seconds: dict[str, float] = {}
        for lane, worker in workers.items():
            if (lane_seconds := self._step_seconds.get(lane, 0.0)) > 0:
                rows[worker] = rows.get(worker, 0) + self._rows[lane]
                seconds[worker] = seconds.get(worker, 0) + lane_seconds
        return {worker: rows[worker] / seconds[worker] for worker in rows}
