"""One fit on a cluster: launch, supervise, recover, gather the result, and clean up.

The client decides which workers belong to the run. `TrainingRun` is notified immediately when a
connection breaks (`calls.listen_to_topic`), takes a roll call at intervals (`Membership`), and
starts a new generation (`Generations`) whenever there is a reason (`Reasons`): a worker is lost,
leaves or joins. `RunEnding` gathers the result, or stops everything after an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from distributed import Client
from numpy.typing import NDArray

from daskml_dist.dask_internals.cluster import finish_retirement
from daskml_dist.data.computing import Deadline
from daskml_dist.errors import (
    DaskMLDistError,
    DivergedError,
    SchedulerLostError,
    TrainingError,
    WorkerLostError,
    is_consequence,
)
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import join_lane_snapshots
from daskml_dist.solvers.base import Solution
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.client.batch_jobs import BatchJobs
from daskml_dist.training.client.calls import call_workers, listen_to_topic, stop_listening
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.lane_assignments import AssignmentLog, Placement
from daskml_dist.training.client.loss_counts import LossCounts
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.membership_changes import Reasons
from daskml_dist.training.client.recovery import RecoveryPoint
from daskml_dist.training.client.run_actors import (
    ActorHandle,
    EarlyHost,
    RunActors,
    WorkerUnreachableError,
)
from daskml_dist.training.engine import FitResult, RunView
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.control import (
    TOPIC,
    Alarm,
    abort_run,
    forget_run,
    parse_alarm,
    release_worker,
)
from daskml_dist.training.worker.host import ServerOutcome
from daskml_dist.training.worker.servers import (
    join_final_states,
    join_interrupted_states,
    results_from_snapshots,
    revive_servers,
)

#: Seconds between two checks of the fit: short at first, so that its first passes are reported
#: soon.
_FIRST_LOOK, _LOOK = 0.05, 0.2
#: Seconds between two roll calls.
_ROLL_CALL = 0.5
#: Seconds that a call to a worker may take.
_CALL_SECONDS = 3.0
#: Seconds after which lanes may be evened out although the fit has finished no pass since they were
#: moved: longer than a worker takes to begin its part.
_UNMOVED = 10.0
#: Seconds that a fit must last before it gets standbys; a shorter one is restarted faster.
_STANDBY_AFTER = 0.25
#: Seconds between two fetches of snapshots to the client, without and with standbys.
_SAVE, _SAVE_WITH_STANDBYS = 1.0, 5.0
#: Smallest interval of these fetches in durations of the last one, so that they take at most 5 % of
#: the time.
_SAVE_SHARE = 20
#: Seconds for all trainers to end after an error, for a call to their workers, and for the actors
#: to end.
_WIND_DOWN, _END_CALL, _CLEAN = 15.0, 3.0, 2.0
#: Seconds between two checks of trainers that should end, and to fetch the error of one that has.
_END_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class GenerationEvent:
    """Change of a run's membership, for callbacks and the history.

    Parameters
    ----------
    generation : int
    reason : str
    lost_versions : int
        Updates that are repeated, as far as remaining processes knew of them: rounds if all lanes
        step together, else steps of all lanes.
    restarted : bool
        Whether the fit started again from the beginning (or its checkpoint, if it has one).
    seconds : float
        Time from when the reason was known until all trainers had their orders.
    from_pass : int, default=0
        Passes of earlier parts of the fit, whose state is saved (by its checkpoint, if it has one),
        so that they are not repeated even if `restarted` is true; 0 if there are none.

    Examples
    --------
    >>> from daskml_dist.training.client.cluster_run import GenerationEvent
    >>> print(GenerationEvent(1, 'worker u was lost', 3, False, 0.1))
    generation 1 (worker u was lost): the fit continues, repeating 3 updates
    """

    generation: int
    reason: str
    lost_versions: int
    restarted: bool
    seconds: float
    from_pass: int = 0

    def __str__(self) -> str:
        if not self.restarted:
            outcome = f"continues, repeating {self.lost_versions} updates"
        elif self.from_pass:
            outcome = f"continues from the state saved after pass {self.from_pass}"
        else:
            outcome = "starts again"
        return f"generation {self.generation} ({self.reason}): the fit {outcome}"


class TrainingRun:
    """Client's side of one fit.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    placement : Placement
    rows : ClusterRows
    interrupts : Interrupts
    early : EarlyHost
    log : AssignmentLog
        Log of the workers that run the lanes, for the history.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        placement: Placement,
        rows: ClusterRows,
        interrupts: Interrupts,
        early: EarlyHost,
        log: AssignmentLog,
    ) -> None:
        self._client = client
        self._fit = fit
        self._rows = rows
        self._interrupts = interrupts
        self._id = early.run_id
        self._log = log
        self._awake = threading.Event()
        membership = self._membership = rows.membership
        self._actors = RunActors(client, fit, early, membership, self._awake.set)
        self._generations = Generations(
            client, fit, placement, rows, self._membership, self._actors, early
        )
        self._reasons = Reasons(fit, rows, self._membership, self._actors, self._generations)
        self._ending = RunEnding(
            client, fit, self._id, self._membership, self._actors, self._generations, self._awake
        )
        self._jobs = BatchJobs()
        membership.why_lost = self._jobs.describe_losses
        self._callbacks = CallbackList()
        self._stopping = False
        self._losses = LossCounts(fit.run.timeout)
        self._events: list[GenerationEvent] = []
        #: Number of times that a function was restarted after losses.
        self._n_restarts = 0
        #: Clock that each lane is known to have reached in the present generation.
        self._reached: dict[int, int] = {}
        #: Workers that will be retired once the run does not need them any more.
        self._to_retire: set[str] = set()
        self._saved_at = self._save_took = 0.0
        self._began = time.monotonic()
        self._passes_at_begin = 0
        self._trainer_addresses: list[str] = []
        self._server_addresses: list[str] = []
        self._view = RunView(
            self._id,
            fit,
            self._trainer_addresses,
            self._server_addresses,
            self._request_stop,
            client,
        )
        self._passes = PassRecords(self._view)

    def run(self, callbacks: CallbackList) -> FitResult:
        """Run the fit to its end, or clean up and raise.

        An interrupted fit that has made a step returns its present result.
        """
        try:
            return self._run(callbacks)
        finally:
            self._view.forget_run()

    def _run(self, callbacks: CallbackList) -> FitResult:
        """Run the fit, as :meth:`run`."""
        self._callbacks = callbacks
        # Workers that exist from the beginning need no test of readiness.
        self._generations.assignments.dealt.update(
            self._membership.wait_for_any_worker(self._fit.run.timeout)
        )
        self._trainer_addresses += self._generations.assignments.first_trainers
        self._server_addresses += self._generations.place_servers()
        try:
            callbacks.on_fit_begin(self._view)
            # Alarms arrive in another thread, which wakes the watching thread.
            listen_to_topic(self._client, TOPIC, self._id, self._on_event)
            self._begin_generation("the fit begins")
            with self._interrupts.between_steps():
                result = self._watch()
            self._passes.forget_repeated_passes(result.records)
            self._report_passes(result.records[self._passes.n_passes :])
        except BaseException as error:
            with self._interrupts.delay():
                cause, recovered = self._ending.stop_and_clean_up(
                    error, callbacks.has_raised(error)
                )
            callbacks.on_fit_end(self._view, cause)
            if recovered is not None:
                return self._add_events(recovered)
            if cause is error:
                raise
            raise cause from error
        with self._interrupts.delay():
            self._ending.release_run()
        callbacks.on_fit_end(self._view)
        return self._add_events(result)

    @property
    def visited_workers(self) -> set[str]:
        """Return the workers that had a part in the run."""
        return self._generations.visited_workers

    def _add_events(self, result: FitResult) -> FitResult:
        """Return a result with the changes of membership added."""
        return replace(result, events=[asdict(event) for event in self._events])

    def _on_alarm(self, alarm: Alarm) -> None:
        """Handle an alarm, in a thread of the client."""
        # Not an error: the worker only reports that it has begun.
        if alarm.at_work is not None:
            self._membership.note_work_begun(alarm.at_work)
            if alarm.job is not None:
                self._jobs.note(alarm.at_work, alarm.job)
            if alarm.trainer is not None:
                self._generations.begun_trainers.add(alarm.trainer)
            return
        for lane, clock in alarm.reached:
            self._reached[lane] = max(clock, self._reached.get(lane, 0))
        self._reasons.take_message(alarm)
        self._awake.set()

    def _on_event(self, event: Any) -> None:
        """Handle an event of the alarms' topic."""
        if event["run"] == self._id:
            self._on_alarm(parse_alarm(event))

    def _on_worker_event(self, address: str, event: Any) -> None:
        """Handle an event of a worker: Dask cannot retire it because of our actor."""
        # Dask does not retire a worker that holds an actor. Ours is moved; then the worker may
        # retire.
        if isinstance(event, dict) and event.get("action") == "could-not-retire":
            self._on_alarm(Alarm("cannot be retired yet", leaving=address))
            self._to_retire.add(address)

    # -- a generation --------------------------------------------------------------------------

    def _begin_generation(self, reason: str, *, rebalance: bool = False) -> None:
        """Begin the next generation, and another one if a worker is lost meanwhile."""
        since, generations = time.monotonic(), self._generations
        members = generations.members
        self._callbacks.on_phase("placing")
        if members and not rebalance:
            self._count_retry(reason)
        while True:
            if members:
                self._jobs.note_lost_workers(members.difference(self._membership.call()))
            self._losses.count(reason, self._reasons.take_garbled(), self._jobs.describe_losses())
            self._membership.wait_for_any_worker(self._fit.run.timeout)
            try:
                recovery_point = generations.renew(rebalance=rebalance)
                if self._stopping:
                    self._actors.call(generations.servers[0].host, "stop")
                break
            except WorkerUnreachableError as gone:
                reason = f"{reason}; {self._handle_unreachable(gone)}"
        self._began = time.monotonic()
        self._passes_at_begin = self._passes.n_passes
        for address in generations.visited_workers:
            handler = partial(self._on_worker_event, address)
            listen_to_topic(self._client, address, self._id, handler)
        self._server_addresses[:] = [server.host.address for server in generations.servers]
        self._trainer_addresses[:] = list(
            dict.fromkeys(trainer.address for trainer in generations.trainers)
        )
        self._callbacks.on_phase("training")
        lanes = {
            lane.lane: trainer.address for trainer in generations.trainers for lane in trainer.lanes
        }
        self._view.lane_addresses = lanes
        self._log.record_assignment(generations.generation, lanes, self._began - since)
        if generations.generation == 0:
            self._actors.request_results(generations.trainers)
            return
        self._note_progress(recovery_point)
        # For the history: the work that the loss cost.
        n_repeated = self._count_repeated_steps(recovery_point)
        restarted = recovery_point is None
        if self._fit.work.remembers_course and generations.n_kept_trainers:
            # Only the unfinished sum is computed again.
            n_repeated, restarted = min(n_repeated, 1), False
        seconds = time.monotonic() - since
        # Slurm may take a moment to answer; all trainers have their orders, so none waits for it.
        reason = self._jobs.name(reason, members.difference(self._membership.threads))
        from_pass = self._fit.work.first_pass
        event = GenerationEvent(
            generations.generation, reason, n_repeated, restarted, seconds, from_pass
        )
        self._events.append(event)
        if self._passes.n_passes:
            with suppress(WorkerUnreachableError):  # the next generation repeats it
                self._passes.forget_repeated_passes(self._call_first_server("records", 0))
        self._callbacks.on_generation(self._view, event)

    def _note_progress(self, recovery_point: RecoveryPoint[ActorHandle] | None) -> None:
        """Record the progress of the fit at a new generation."""
        if self._fit.work.remembers_course:
            self._losses.note_recovery(self._passes.n_passes)
        elif recovery_point is not None:
            self._losses.note_recovery(sum(recovery_point.clocks.values()))
        elif not self._fit.work.first_pass:  # else from its checkpoint
            self._losses.note_full_restart()

    def _count_repeated_steps(self, recovery_point: RecoveryPoint[ActorHandle] | None) -> int:
        """Return the steps that trainers had made after the clocks from which they continue."""
        reached, self._reached = self._reached, {}
        first = self._fit.work.first_clock
        n_repeated = [
            clock - (first if recovery_point is None else recovery_point.clocks[lane])
            for lane, clock in reached.items()
        ]
        return max(0, *(n_repeated or [0])) if self._fit.work.lockstep else max(0, sum(n_repeated))

    def _count_retry(self, reason: str) -> None:
        """Raise if a function has restarted more often than its user allows."""
        call = self._fit.work.call
        self._n_restarts += 1
        if call is not None and call.retries is not None and self._n_restarts > call.retries:
            raise WorkerLostError(
                f"{call.name} would have to start again after a loss for the "
                f"{self._n_restarts}. time ({reason}), but retries={call.retries}. Allow more "
                "retries, or check the workers' logs."
            )

    def _handle_unreachable(self, gone: WorkerUnreachableError) -> str:
        """Count an unreachable worker as lost; return the reason for a new generation.

        It counts as lost even if the scheduler does not know it yet.
        """
        if not self._membership.begins_new_work(gone.address):
            return str(gone)  # it is only paused
        if gone.address in self._membership.call():
            self._membership.count_as_lost(gone.address)
        elif gone.address in self._generations.visited_workers:
            return f"worker {gone.address} was lost"
        return str(gone)

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self) -> FitResult:
        """Supervise the run until its result is gathered."""
        interval, roll_call = _FIRST_LOOK, time.monotonic()
        while True:
            even = False
            try:
                # Alarms and ends of trainers wake the client immediately.
                has_event = self._sleep_until_event(interval)
                interval = min(interval * 1.5, _LOOK)
                reason = self._reasons.reason_from_alarms()
                # Losses without an alarm: missing heartbeats, paused or new workers.
                if reason is None and time.monotonic() - roll_call > _ROLL_CALL:
                    roll_call = time.monotonic()
                    reason = self._reasons.reason_from_roll_call()
                    if reason is None and self._is_settled:
                        reason = self._reasons.reason_to_even_out()
                        even = reason is not None
                if reason is None and not has_event:  # trainers usually end together
                    reason = self._reasons.reason_from_early_end()
                if reason is None:
                    if self._actors.have_trainers_ended(self._generations.trainers):
                        with self._interrupts.at_once():
                            self._callbacks.on_phase("gathering")
                        # None: a trainer ended in an earlier generation, so another one is needed.
                        if (result := self._ending.gather()) is not None:
                            return result
                    if not has_event:
                        self._report_passes(
                            self._call_first_server("records", self._passes.n_passes)
                        )
                    if self._reasons.to_release:
                        self._release_workers()
                    self._protect_state()
            except WorkerUnreachableError as gone:
                reason = self._handle_unreachable(gone)
            if reason is not None:
                with self._interrupts.at_once():
                    self._begin_generation(reason, rebalance=even)
                interval = _FIRST_LOOK

    @property
    def _is_settled(self) -> bool:
        """Return whether the generation has done some work, so that its lanes may be moved again.

        If workers come and go all the time, moving lanes each time would leave no time to work. In
        the first generation there is no such delay, since a cluster may still be growing: no lane
        was moved yet, and a function that ranks run together ends no pass.
        """
        if self._generations.generation == 0:
            return True
        has_come_further = self._passes.n_passes > self._passes_at_begin
        return has_come_further or time.monotonic() - self._began > _UNMOVED

    def _protect_state(self) -> None:
        """Keep copies of the servers' state on standbys and at the client."""
        now = time.monotonic()
        if now - self._began < _STANDBY_AFTER or self._fit.work.remembers_course:
            return
        self._generations.ensure_standbys()
        pause = _SAVE_WITH_STANDBYS if self._generations.has_standbys else _SAVE
        if (
            now - self._saved_at > max(pause, _SAVE_SHARE * self._save_took)
            and self._generations.may_save_at_client
        ):
            self._generations.save()
            self._saved_at = time.monotonic()
            self._save_took = self._saved_at - now

    def _sleep_until_event(self, seconds: float) -> bool:
        """Sleep until an event or for the given time; return whether there was an event."""
        has_event = self._awake.wait(seconds)
        self._awake.clear()
        self._interrupts.raise_pending()
        return has_event

    def _call_first_server(self, method: str, *args: Any) -> Any:
        """Call a method of the first server, which has the ledger."""
        return self._actors.call(self._generations.servers[0].host, method, *args)

    def _release_workers(self) -> None:
        """Release workers that the run does not need any more, for its parts or for rows."""
        for address in sorted(self._reasons.to_release - self._generations.members):
            if self._rows.is_only_holder(address):
                continue
            self._reasons.to_release.discard(address)
            if address not in self._membership.call():
                continue
            call_workers(self._client, release_worker, {address: (self._id,)}, _CALL_SECONDS)
            if address in self._to_retire:
                self._to_retire.discard(address)
                finish_retirement(self._client, address)

    def _report_passes(self, records: list[dict[str, Any]]) -> None:
        """Pass the records of finished passes to the callbacks."""
        for record in records:
            self._reasons.note_progress()
            with self._interrupts.at_once():
                self._passes.report(record, self._callbacks)

    def _request_stop(self) -> None:
        """End the fit with the open pass."""
        self._stopping = True
        with suppress(WorkerUnreachableError):  # the next generation passes it on
            self._call_first_server("stop")


class PassRecords:
    """Records of the passes that count, and the number of passes reported to callbacks.

    Parameters
    ----------
    view : RunView
        Its `n_passes` is updated.
    """

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._first = view.n_passes
        self._records: list[dict[str, Any]] = []
        self._n_reported = 0

    @property
    def n_passes(self) -> int:
        """Return the number of passes of this run."""
        return len(self._records)

    def forget_repeated_passes(self, records: list[dict[str, Any]]) -> None:
        """Forget passes that do not count any more, from the first difference on."""
        # Loss values cannot be compared: a repeated pass may have the same loss, or NaN.
        now = [record["seconds"] for record in records]
        times = [record["seconds"] for record in self._records]
        # Passes are recognised by their durations, since a repeated pass takes another time.
        n_kept = 0
        while n_kept < min(len(times), len(now)) and times[n_kept] == now[n_kept]:
            n_kept += 1
        del self._records[n_kept:]
        # Bytes of a final average are only known after the last pass was reported.
        if n_kept:
            self._records[-1].update(records[n_kept - 1])
        self._view.n_passes = self._first + n_kept

    def report(self, record: dict[str, Any], callbacks: CallbackList) -> None:
        """Record the next pass, and report it to the callbacks."""
        self._records.append(record)
        self._view.n_passes = self._first + len(self._records)
        if len(self._records) > self._n_reported:
            self._n_reported += 1
            callbacks.on_pass_end(self._view, record)
        else:
            callbacks.on_pass_redone(self._view, record)


class RunEnding:
    """End of a run, successful or not.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    run_id : str
    membership : Membership
    actors : RunActors
    generations : Generations
    awake : threading.Event
        Event that is set when a trainer ends.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        run_id: str,
        membership: Membership,
        actors: RunActors,
        generations: Generations,
        awake: threading.Event,
    ) -> None:
        self._client = client
        self._fit = fit
        self._id = run_id
        self._membership = membership
        self._actors = actors
        self._generations = generations
        self._awake = awake

    def gather(self) -> FitResult | None:
        """Return the result; None if a trainer ended without knowing of this generation."""
        servers = [server.host for server in self._generations.servers]
        collect_outcomes = self._actors.start_call_on_hosts(servers, "outcome")
        results = self._actors.collect_results(self._generations.trainers)
        if not all(result.is_whole(self._generations.generation) for result in results):
            return None
        outcomes: list[ServerOutcome] = collect_outcomes()
        state = join_final_states(self._fit, [outcome.state for outcome in outcomes], results)
        result = self._make_result(state, outcomes[0])
        # The bytes of a final average are counted in the last pass.
        pushed, pulled = (
            sum(trainer_result.moved[direction] for trainer_result in results)
            for direction in (0, 1)
        )
        if result.records and pushed + pulled:
            result.records[-1]["bytes_pushed"] += pushed
            result.records[-1]["bytes_pulled"] += pulled
        return result

    def stop_and_clean_up(
        self, error: BaseException, is_users: bool
    ) -> tuple[BaseException, FitResult | None]:
        """Stop everything, and clean up."""
        if isinstance(error, SchedulerLostError) and self._client.status != "running":
            # Without a scheduler there is nothing to clean up; the workers end their parts by
            # themselves.
            stop_listening(self._client, self._id)
            return error, None
        try:
            with suppress(SchedulerLostError):
                self._stop_everything(error)
            cause = error if is_users else self._find_root_cause(error)
            if isinstance(cause, DivergedError) and cause.snapshot is None:
                cause.snapshot = self._find_last_finite(cause.clock)
            recovered = (
                self._recover_interrupted(error) if isinstance(error, KeyboardInterrupt) else None
            )
        finally:
            self.clean_up()
        return cause, recovered

    def release_run(self) -> None:
        """Release a run that ended successfully; its workers clean up when they are notified.

        The client only sends messages, and does not wait.
        """
        # After several generations, or with standbys, the parts are ended one by one.
        if not self._generations.release_run():
            self.clean_up()
            return
        stop_listening(self._client, self._id)

    def clean_up(self) -> None:
        """Leave no actor, task, socket or order behind."""
        stop_listening(self._client, self._id)
        with suppress(SchedulerLostError):  # everything on the cluster ends with the scheduler
            self._generations.close()
        deadline, pause = time.monotonic() + _CLEAN, 0.001
        with suppress(Exception):
            # Actors end in the background; waiting ensures that none is visible after the fit.
            while any(self._call_on_workers(forget_run).values()) and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)

    def _make_result(
        self, state: ShardState | Solution, outcome: ServerOutcome, rows: float = 0.0
    ) -> FitResult:
        """Return the state with the first server's records, plus `rows` that it did not count."""
        assert outcome.stopping is not None
        return FitResult(
            state,
            outcome.records,
            outcome.stopping,
            outcome.partial_rows + rows,
            outcome.dropped,
            self._generations.lost_rows,
        )

    def _recover_interrupted(self, error: KeyboardInterrupt) -> FitResult | None:
        """Return the result of an interrupted fit from workers, or else from snapshots."""
        for recover in (self._recover_from_workers, self._recover_from_snapshots):
            with suppress(Exception):
                if (result := recover()) is not None:
                    return replace(result, interrupted=error)
        return None

    def _find_last_finite(self, clock: int | None) -> NDArray[Any] | None:
        """Return the parameters before a step, from snapshots of the trainers."""
        fit = self._fit
        if clock is None or clock <= fit.work.first_clock:
            return None
        with suppress(Exception):
            host = self._generations.servers[0].host
            last_step = max(step for step in self._actors.call(host, "kept") if step < clock)
            snapshot, _ = self._actors.call(host, "snapshot_at", last_step)
            (w,) = (
                s.shard.w
                for s in join_lane_snapshots(snapshot.lanes).values()
                if s.shard is not None
            )
            return w
        return fit.make_start_state().w

    def _recover_from_workers(self) -> FitResult | None:
        """Return the state of the servers and of the trainers that have ended."""
        trainers = [
            trainer for trainer in self._generations.trainers if trainer.future.status == "finished"
        ]
        results = self._actors.collect_results(trainers)
        servers = [server.host for server in self._generations.servers]
        outcomes: list[ServerOutcome] = self._actors.call_hosts(servers, "outcome")
        interrupted = join_interrupted_states(
            self._fit, [outcome.state for outcome in outcomes], results
        )
        return (
            None
            if interrupted is None
            else self._make_result(interrupted.state, outcomes[0], interrupted.rows)
        )

    def _recover_from_snapshots(self) -> FitResult | None:
        """Return the state in the client's snapshots, if workers are lost."""
        fit, saved = self._fit, self._generations.saved.get()
        if not saved:
            return None
        servers, (snapshot, _) = revive_servers(fit, saved), saved[0]
        states = [server.state() for server in servers]
        interrupted = join_interrupted_states(
            fit, states, results_from_snapshots(fit, snapshot.lanes)
        )
        ledger = servers[0].ledger
        if interrupted is None or ledger is None:
            return None
        partial = ledger.partial_rows + interrupted.rows
        return FitResult(
            interrupted.state,
            ledger.records,
            ledger.rule,
            partial,
            lost_rows=self._generations.lost_rows,
        )

    def _stop_everything(self, error: BaseException) -> None:
        """Stop trainers and servers, and wait until the trainers have ended."""
        # Trainers first, so that they learn of the end from their client.
        with suppress(Exception):
            self._call_on_workers(abort_run)
        for server in self._generations.servers:
            with suppress(Exception):
                server.host.proxy.abort(str(error)).result(timeout=2)
        # A trainer that has not begun would wait in its worker's queue as long as other tasks run.
        self._actors.discard_futures(
            trainer.future
            for trainer in self._generations.trainers_not_begun
            if not trainer.future.done()
        )
        patience = Deadline("the workers to end their part of the fit", _WIND_DOWN)
        while self._is_any_running() and patience.has_time_left():
            self._awake.wait(_END_POLL_SECONDS)
            self._awake.clear()

    def _is_any_running(self) -> bool:
        """Return whether a trainer is still running on a worker that exists."""
        membership = self._membership.call()
        return any(
            not s.future.done() and s.address in membership for s in self._generations.trainers
        )

    def _find_root_cause(self, error: BaseException) -> BaseException:
        """Return the error to raise: a trainer's own error if `error` is only its consequence."""
        if not isinstance(error, Exception) or (
            isinstance(error, DaskMLDistError) and not is_consequence(error)
        ):
            return error
        # A trainer's own error is the cause; errors about lost connections are consequences.
        for trainer in self._generations.trainers:
            if trainer.future.status == "error":
                trainer_error = trainer.future.exception(timeout=_END_POLL_SECONDS)
                if isinstance(trainer_error, DaskMLDistError) and not is_consequence(trainer_error):
                    return trainer_error
        if isinstance(error, DaskMLDistError):
            return error
        return TrainingError(f"The fit failed on a worker: {error!r}. See the cause above.")

    def _call_on_workers(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Call a function with the run's name on all workers that had a part in it."""
        workers = self._generations.visited_workers.intersection(self._membership.call())
        return call_workers(self._client, function, {w: (self._id,) for w in workers}, _END_CALL)
