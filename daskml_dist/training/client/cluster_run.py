"""One fit on a cluster: launch, watch, recover, gather, and leave nothing behind.

The client is the authority on who belongs to the run. It hears at once when a connection breaks
(`listening.listen`), takes the roll now and then (`membership.Membership`), and begins a new
generation (`generations.Generations`) whenever there is a reason (`reasons.Reasons`): a worker is
lost, leaves or joins.
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

from daskml_dist.dask_internals.cluster import retire
from daskml_dist.data.computing import Deadline
from daskml_dist.data.placement import Placement
from daskml_dist.errors import (
    DaskMLDistError,
    DivergedError,
    MessageError,
    SchedulerLostError,
    TrainingError,
    WorkerLostError,
    is_consequence,
)
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import whole
from daskml_dist.solvers import Solution
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.client.batch_jobs import BatchJobs
from daskml_dist.training.client.calls import call_workers, listen, stop_listening
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.lane_assignments import SeatLog
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.reasons import Reasons
from daskml_dist.training.client.recovery import RecoveryPoint
from daskml_dist.training.client.run_actors import Early, Host, RunActors, WorkerUnreachableError
from daskml_dist.training.engine import FitResult, RunView
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.control import (
    TOPIC,
    Alarm,
    abort_run,
    forget_run,
    say_farewell,
    to_alarm,
)
from daskml_dist.training.worker.host import Outcome
from daskml_dist.training.worker.servers import joined_left, joined_state, left_in, revived

__all__ = ["Ending", "GenerationEvent", "TrainingRun"]


#: Seconds between two looks at the fit: short at first, so that its first passes are told soon.
_FIRST_LOOK, _LOOK = 0.05, 0.2
#: Seconds between two roll calls.
_ROLL_CALL = 0.5
#: Seconds that a call to a worker may take.
_CALL = 3.0
#: Seconds that a fit must last before it gets standbys: a short one is sooner begun anew.
_STANDBY_AFTER = 0.25
#: Seconds between two times that the client gets snapshots, without and with standbys.
_SAVE, _SAVE_WITH_STANDBYS = 1.0, 5.0
#: The same, in times that getting the last ones took.
_SAVE_SHARE = 20
#: Generations without any progress after which a fit says so; after the timeout it is given up.
_MANY_FAILURES = 6
#: Such generations after which a fit is given up where somebody sends what nobody can read.
_MANY_GARBLED = 3
_TOO_MANY = (
    "Look at the workers' logs: do they run out of memory? Use smaller chunks, memory_budget, or "
    "workers with more memory."
)
#: Seconds that the end of all trainers after an error, a call to their workers, and the end of
#: the actors may take.
_WIND_DOWN, _END_CALL, _CLEAN = 15.0, 3.0, 2.0
#: Seconds between two looks at trainers that are to end, and to fetch an error of one that has.
_END_POLL = 0.2


@dataclass(frozen=True)
class GenerationEvent:
    """A new membership of a run, as callbacks and the history see it.

    Parameters
    ----------
    generation : int
    reason : str
    lost_versions : int
        Updates that are made again, as far as somebody that is still there knew of them: rounds
        where all lanes step together, else steps of all lanes.
    anew : bool
        Whether the fit began anew (from its checkpoint, where it has one).
    seconds : float
        From the moment the reason was known until all had their orders.
    from_pass : int, default=0
        Passes of earlier parts of the fit, whose state is saved (by its checkpoint, where it has
        one), so that they are not made again even where `anew` is true; 0: there are none.

    Examples
    --------
    >>> from daskml_dist.training.client.cluster_run import GenerationEvent
    >>> print(GenerationEvent(1, 'worker u was lost', 3, False, 0.1))
    generation 1 (worker u was lost): the fit goes on, 3 updates made again
    """

    generation: int
    reason: str
    lost_versions: int
    anew: bool
    seconds: float
    from_pass: int = 0

    def __str__(self) -> str:
        if not self.anew:
            what = f"goes on, {self.lost_versions} updates made again"
        elif self.from_pass:
            what = f"goes on from what was saved after pass {self.from_pass}"
        else:
            what = "begins anew"
        return f"generation {self.generation} ({self.reason}): the fit {what}"


class TrainingRun:
    """The client's side of one fit.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    placement : Placement
    rows : ClusterRows
    interrupts : Interrupts
    early : Early
    log : SeatLog
        Who runs the lanes, for the history.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        placement: Placement,
        rows: ClusterRows,
        interrupts: Interrupts,
        early: Early,
        log: SeatLog,
    ) -> None:
        self._client = client
        self._fit = fit
        self._rows = rows
        self._interrupts = interrupts
        self._id = early.run_id
        self._log = log
        self._awake = threading.Event()
        there = self._membership = rows.membership
        self._fleet = RunActors(client, fit, early, there.is_there, there.begins, self._awake.set)
        self._crew = Generations(client, fit, placement, rows, self._membership, self._fleet, early)
        self._reasons = Reasons(fit, rows, self._membership, self._fleet, self._crew)
        self._ending = Ending(
            client, fit, self._id, self._membership, self._fleet, self._crew, self._awake
        )
        self._jobs = BatchJobs()
        there.why_lost = self._jobs.told
        self._callbacks = CallbackList()
        self._stopping = False
        #: Generations since the fit last came further, and how far that was.
        self._failures, self._clocks = 0, 0
        #: Those in a row in which somebody sent a message without a meaning.
        self._garbled = 0
        self._losses = Deadline("an end of the losses of workers", fit.run.timeout, _TOO_MANY)
        self._events: list[GenerationEvent] = []
        #: Clock that each lane was seen to reach in the present generation.
        self._reached: dict[int, int] = {}
        #: Workers that are to be retired once the run needs them no more.
        self._to_retire: set[str] = set()
        self._saved_at = self._save_took = 0.0
        self._began = time.monotonic()
        self._trainer_addresses: list[str] = []
        self._server_addresses: list[str] = []
        self._view = RunView(
            self._id, fit, self._trainer_addresses, self._server_addresses, self._stop, client
        )
        self._made = Made(self._view)

    def run(self, callbacks: CallbackList) -> FitResult:
        """Run the fit to its end, or clean up and raise.

        An interrupted fit that has made a step returns what it had come to.
        """
        self._callbacks = callbacks
        self._crew.seating.dealt.update(self._membership.wait_for_any(self._fit.run.timeout))
        self._trainer_addresses += self._crew.seating.first_trainers
        self._server_addresses += self._crew.place_servers()
        try:
            callbacks.on_fit_begin(self._view)
            listen(self._client, TOPIC, self._id, self._on_event)
            self._begin("the fit begins")
            with self._interrupts.between_steps():
                result = self._watch()
            self._made.take_back(result.records)
            self._tell(result.records[self._made.n_passes :])
        except BaseException as error:
            with self._interrupts.held():
                cause, kept = self._ending.give_up(error, callbacks.has_raised(error))
            callbacks.on_fit_end(self._view, cause)
            if kept is not None:
                return self._with_events(kept)
            if cause is error:
                raise
            raise cause from error
        with self._interrupts.held():
            self._ending.let_go()
        callbacks.on_fit_end(self._view)
        return self._with_events(result)

    @property
    def visited(self) -> set[str]:
        """Workers that had a part in the run."""
        return self._crew.visited

    def _with_events(self, result: FitResult) -> FitResult:
        return replace(result, events=[asdict(event) for event in self._events])

    def _on_alarm(self, alarm: Alarm) -> None:
        if alarm.at_work is not None:
            self._membership.note_at_work(alarm.at_work)
            if alarm.job is not None:
                self._jobs.note(alarm.at_work, alarm.job)
            if alarm.trainer is not None:
                self._crew.begun.add(alarm.trainer)
            return
        for lane, clock in alarm.reached:
            self._reached[lane] = max(clock, self._reached.get(lane, 0))
        self._reasons.hear(alarm)
        self._awake.set()

    def _on_event(self, told: Any) -> None:
        if told["run"] == self._id:
            self._on_alarm(to_alarm(told))

    def _on_worker_event(self, address: str, told: Any) -> None:
        # Dask does not retire a worker that holds an actor; ours moves, and then it may go.
        if isinstance(told, dict) and told.get("action") == "could-not-retire":
            self._on_alarm(Alarm("cannot be retired yet", leaving=address))
            self._to_retire.add(address)

    # -- a generation --------------------------------------------------------------------------

    def _begin(self, reason: str, *, even: bool = False) -> None:
        """Begin the next generation, and again where it loses somebody on the way."""
        since, crew = time.monotonic(), self._crew
        members = crew.members
        self._callbacks.on_phase("placing")
        while True:
            if members:
                self._jobs.were_lost(members.difference(self._membership.call()))
            self._count_failure(reason)
            self._membership.wait_for_any(self._fit.run.timeout)
            try:
                go_on = crew.renew(even=even)
                if self._stopping:
                    self._fleet.ask(crew.servers[0].host, "stop")
                break
            except WorkerUnreachableError as gone:
                reason = f"{reason}; {self._note_gone(gone)}"
        self._began = time.monotonic()
        for address in crew.visited:
            handler = partial(self._on_worker_event, address)
            listen(self._client, address, self._id, handler)
        self._server_addresses[:] = [server.host.address for server in crew.servers]
        self._trainer_addresses[:] = list(dict.fromkeys(seat.address for seat in crew.seats))
        self._callbacks.on_phase("training")
        lanes = {lane.lane: seat.address for seat in crew.seats for lane in seat.lanes}
        self._view.lane_addresses = lanes
        self._log.note(crew.number, lanes, self._began - since)
        if crew.number == 0:
            self._fleet.ask_for_results(crew.seats)
            return
        if go_on is not None and sum(go_on.clocks.values()) > self._clocks:
            self._clocks, self._failures = sum(go_on.clocks.values()), 0
            self._garbled = 0
        again = self._made_again(go_on)
        anew = go_on is None
        if self._fit.work.replays and crew.kept:
            # The open sum alone is made again.
            again, anew = min(again, 1), False
        seconds = time.monotonic() - since
        # Slurm may take a moment to tell: all have their orders, so nobody waits.
        reason = self._jobs.name(reason, members.difference(self._membership.threads))
        from_pass = self._fit.work.first_pass
        event = GenerationEvent(crew.number, reason, again, anew, seconds, from_pass)
        self._events.append(event)
        if self._made.n_passes:
            with suppress(WorkerUnreachableError):  # the next generation is asked
                self._made.take_back(self._ask_first("records", 0))
        self._callbacks.on_generation(self._view, event)

    def _made_again(self, go_on: RecoveryPoint[Host] | None) -> int:
        """Steps that trainers, as far as they could still tell, had made beyond their clocks."""
        reached, self._reached = self._reached, {}
        first = self._fit.work.first_clock
        again = [
            clock - (first if go_on is None else go_on.clocks[lane])
            for lane, clock in reached.items()
        ]
        return max(0, *(again or [0])) if self._fit.work.lockstep else max(0, sum(again))

    def _count_failure(self, reason: str) -> None:
        """Give up once workers have been lost for long with no progress in between.

        And soon where it is not that: whoever sends what nobody can read will do so again.
        """
        self._failures += 1
        garbled = self._reasons.take_garbled()
        self._garbled = self._garbled + 1 if garbled else 0
        if self._garbled >= _MANY_GARBLED:
            raise MessageError(
                f"The fit was begun again {self._garbled} times with nobody lost, and came no "
                f"further: {garbled}"
            )
        if self._failures == 1:
            self._losses.renew()
        few = self._failures <= _MANY_FAILURES
        if few or self._losses.lasts(f"{_MANY_FAILURES} without any progress in between"):
            return
        raise WorkerLostError(
            f"The fit lost workers {self._failures - 1} times in {self._fit.run.timeout:g} s "
            f"without coming further in between ({reason}).{self._jobs.told()} {_TOO_MANY} "
            "Then fit again."
        )

    def _note_gone(self, gone: WorkerUnreachableError) -> str:
        """The reason for a new generation where a worker does not answer.

        It counts as lost, also where the scheduler does not yet know.
        """
        if not self._membership.begins(gone.address):
            return str(gone)  # it is only paused
        if gone.address in self._membership.call():
            self._membership.cast_out(gone.address)
        elif gone.address in self._crew.visited:
            return f"worker {gone.address} was lost"
        return str(gone)

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self) -> FitResult:
        look, roll_call = _FIRST_LOOK, time.monotonic()
        while True:
            even = False
            try:
                woken = self._pause_for(look)
                look = min(look * 1.5, _LOOK)
                reason = self._reasons.trouble()
                if reason is None and time.monotonic() - roll_call > _ROLL_CALL:
                    roll_call = time.monotonic()
                    reason = self._reasons.roll_call()
                    if reason is None and (reason := self._reasons.unevenness()):
                        even = True
                if reason is None:
                    if self._all_done():
                        with self._interrupts.at_once():
                            self._callbacks.on_phase("gathering")
                        if (result := self._ending.gather()) is not None:
                            return result
                        self._on_alarm(Alarm("a trainer ended early", 0, self._crew.number))
                    if not woken:  # the end of a trainer is seldom alone
                        self._tell(self._ask_first("records", self._made.n_passes))
                    if self._reasons.to_let_go:
                        self._let_go()
                    self._keep_safe()
            except WorkerUnreachableError as gone:
                reason = self._note_gone(gone)
            if reason is not None:
                with self._interrupts.at_once():
                    self._begin(reason, even=even)
                look = _FIRST_LOOK

    def _keep_safe(self) -> None:
        """See that what the servers hold is elsewhere too."""
        now = time.monotonic()
        if now - self._began < _STANDBY_AFTER or self._fit.work.replays:
            return
        self._crew.mind_standbys()
        pause = _SAVE_WITH_STANDBYS if self._crew.has_standbys else _SAVE
        if now - self._saved_at > max(pause, _SAVE_SHARE * self._save_took) and self._crew.may_save:
            self._crew.save()
            self._saved_at = time.monotonic()
            self._save_took = self._saved_at - now

    def _pause_for(self, seconds: float) -> bool:
        """Sleep until something happens, but no longer than so many seconds; whether it did."""
        woken = self._awake.wait(seconds)
        self._awake.clear()
        self._interrupts.rest()
        return woken

    def _ask_first(self, method: str, *args: Any) -> Any:
        return self._fleet.ask(self._crew.servers[0].host, method, *args)

    def _all_done(self) -> bool:
        return self._fleet.have_ended(self._crew.seats)

    def _let_go(self) -> None:
        """Let workers leave that the run needs no more, neither for its parts nor for rows."""
        for address in sorted(self._reasons.to_let_go - self._crew.members):
            if self._rows.only_at(address):
                continue
            self._reasons.to_let_go.discard(address)
            if address not in self._membership.call():
                continue
            call_workers(self._client, say_farewell, {address: (self._id,)}, _CALL)
            if address in self._to_retire:
                self._to_retire.discard(address)
                retire(self._client, address)

    def _tell(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self._reasons.note_progress()
            with self._interrupts.at_once():
                self._made.tell(record, self._callbacks)

    def _stop(self) -> None:
        self._stopping = True
        with suppress(WorkerUnreachableError):  # the next generation is told
            self._ask_first("stop")


class Made:
    """Records of the passes that are made and count, and how many callbacks were told of.

    Parameters
    ----------
    view : RunView
        Its `n_passes` is kept.
    """

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._first = view.n_passes
        self._records: list[dict[str, Any]] = []
        self._told = 0

    @property
    def n_passes(self) -> int:
        """Number of passes, of this run alone."""
        return len(self._records)

    def take_back(self, records: list[dict[str, Any]]) -> None:
        """Forget the passes that are no more among the run's, and all behind them.

        Parameters
        ----------
        records : list of dict
            As the server has them, from the first on.
        """
        # A pass that is made again takes another time; its loss may be the same, or NaN.
        now = [record["seconds"] for record in records]
        known = [record["seconds"] for record in self._records]
        kept = 0
        while kept < min(len(known), len(now)) and known[kept] == now[kept]:
            kept += 1
        del self._records[kept:]
        self._view.n_passes = self._first + kept

    def tell(self, record: dict[str, Any], callbacks: CallbackList) -> None:
        """Take the record of the next pass, and tell the callbacks."""
        self._records.append(record)
        self._view.n_passes = self._first + len(self._records)
        if len(self._records) > self._told:
            self._told += 1
            callbacks.on_pass_end(self._view, record)
        else:
            callbacks.on_pass_redone(self._view, record)


class Ending:
    """Ends a run, well or not.

    Parameters
    ----------
    client : Client
    fit : FitSpec
    run_id : str
    membership : Membership
    fleet : RunActors
    crew : Generations
    awake : threading.Event
        Set when a trainer ends.
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        run_id: str,
        membership: Membership,
        fleet: RunActors,
        crew: Generations,
        awake: threading.Event,
    ) -> None:
        self._client = client
        self._fit = fit
        self._id = run_id
        self._membership = membership
        self._fleet = fleet
        self._crew = crew
        self._awake = awake

    def gather(self) -> FitResult | None:
        """The result; None where a trainer ended before it heard of this generation.

        Raises
        ------
        Gone
            A worker was lost on the way.
        """
        servers = [server.host for server in self._crew.servers]
        told = self._fleet.begin_asking(servers, "outcome")
        results = self._fleet.results(self._crew.seats)
        if any(r.interrupted or r.generation != self._crew.number for r in results):
            return None
        outcomes: list[Outcome] = told()
        state = joined_state(self._fit, [outcome.state for outcome in outcomes], results)
        return self._result(state, outcomes[0])

    def give_up(
        self, error: BaseException, is_users: bool
    ) -> tuple[BaseException, FitResult | None]:
        """Stop all that runs, and clean up.

        Parameters
        ----------
        error : BaseException
            What ends the run.
        is_users : bool
            Whether a callback raised it.

        Returns
        -------
        BaseException
            The error to tell the user.
        FitResult or None
            What an interrupted fit had come to.
        """
        if isinstance(error, SchedulerLostError) and self._client.status != "running":
            # Nobody is there to clean up with; workers without a scheduler end what they hold.
            stop_listening(self._client, self._id)
            return error, None
        try:
            with suppress(SchedulerLostError):
                self._wind_down(error)
            cause = error if is_users else self._root_cause(error)
            if isinstance(cause, DivergedError) and cause.snapshot is None:
                cause.snapshot = self._before(cause.clock)
            kept = self._kept(error) if isinstance(error, KeyboardInterrupt) else None
        finally:
            self.clean_up()
        return cause, kept

    def let_go(self) -> None:
        """End a run that came to its end: what it has on the workers goes as soon as they hear it.

        The client only sends, and waits for nobody.
        """
        if not self._crew.let_go():
            self.clean_up()
            return
        stop_listening(self._client, self._id)

    def clean_up(self) -> None:
        """Leave no actor, task, socket or order behind."""
        stop_listening(self._client, self._id)
        with suppress(SchedulerLostError):  # it goes, and all that is left with it
            self._crew.close()
        deadline, pause = time.monotonic() + _CLEAN, 0.001
        with suppress(Exception):
            # Actors end in the background; whoever looks after the fit finds none.
            while any(self._on_workers(forget_run).values()) and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)

    def _result(
        self, state: ShardState | Solution, outcome: Outcome, rows: float = 0.0
    ) -> FitResult:
        """A state with what the first server knows; `rows` are those that it does not know of."""
        assert outcome.stopping is not None
        return FitResult(
            state,
            outcome.records,
            outcome.stopping,
            outcome.partial_rows + rows,
            outcome.dropped,
            self._crew.lost_rows,
        )

    def _kept(self, error: KeyboardInterrupt) -> FitResult | None:
        """Result of an interrupted fit as far as it came, from whoever can still tell."""
        for told in (self._told_by_workers, self._told_by_snapshots):
            with suppress(Exception):
                if (result := told()) is not None:
                    return replace(result, interrupted=error)
        return None

    def _before(self, clock: int | None) -> NDArray[Any] | None:
        """Parameters before a step, by snapshots, where each trainer held a part of them."""
        fit = self._fit
        if clock is None or clock <= fit.work.first_clock:
            return None
        with suppress(Exception):
            host = self._crew.servers[0].host
            place = max(at for at in self._fleet.ask(host, "kept") if at < clock)
            snapshot, _ = self._fleet.ask(host, "snapshot_at", place)
            (w,) = (s.shard.w for s in whole(snapshot.lanes).values() if s.shard is not None)
            return w
        return fit.start_state().w

    def _told_by_workers(self) -> FitResult | None:
        seats = [seat for seat in self._crew.seats if seat.future.status == "finished"]
        results = self._fleet.results(seats)
        servers = [server.host for server in self._crew.servers]
        outcomes: list[Outcome] = self._fleet.ask_all(servers, "outcome")
        left = joined_left(self._fit, [outcome.state for outcome in outcomes], results)
        return None if left is None else self._result(left.state, outcomes[0], left.rows)

    def _told_by_snapshots(self) -> FitResult | None:
        """The same from the snapshots that the client has, where workers are lost."""
        fit, saved = self._fit, self._crew.saved
        if not saved:
            return None
        servers, (snapshot, _) = revived(fit, saved), saved[0]
        states = [server.state() for server in servers]
        left = joined_left(fit, states, left_in(fit, snapshot.lanes))
        ledger = servers[0].ledger
        if left is None or ledger is None:
            return None
        partial = ledger.partial_rows + left.rows
        return FitResult(
            left.state, ledger.records, ledger.rule, partial, lost_rows=self._crew.lost_rows
        )

    def _wind_down(self, error: BaseException) -> None:
        """Stop all that runs."""
        # Trainers first: they are to hear it from their client.
        with suppress(Exception):
            self._on_workers(abort_run)
        for server in self._crew.servers:
            with suppress(Exception):
                server.host.proxy.abort(str(error)).result(timeout=2)
        patience = Deadline("the workers to end their part of the fit", _WIND_DOWN)
        while self._some_run() and patience.lasts():
            self._awake.wait(_END_POLL)
            self._awake.clear()

    def _some_run(self) -> bool:
        there = self._membership.call()
        return any(not s.future.done() and s.address in there for s in self._crew.seats)

    def _root_cause(self, error: BaseException) -> BaseException:
        if not isinstance(error, Exception) or (
            isinstance(error, DaskMLDistError) and not is_consequence(error)
        ):
            return error
        for seat in self._crew.seats:
            if seat.future.status == "error":
                own = seat.future.exception(timeout=_END_POLL)
                if isinstance(own, DaskMLDistError) and not is_consequence(own):
                    return own
        if isinstance(error, DaskMLDistError):
            return error
        return TrainingError(f"The fit failed on a worker: {error!r}. See the cause above.")

    def _on_workers(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Call a function of the run's name on all workers that had a part in it."""
        workers = self._crew.visited.intersection(self._membership.call())
        return call_workers(self._client, function, {w: (self._id,) for w in workers}, _END_CALL)
