"""One fit on a cluster: launch, watch, recover, gather, and leave nothing behind.

The client is the authority on who belongs to the run. It hears at once when a connection breaks
(`listening.listen`), takes the roll now and then (`membership.Membership`), and begins a new
generation (`generations.Generations`) whenever a worker is lost, leaves or joins.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from distributed import Client

from daskml_dist.comm.handshake import Secret
from daskml_dist.data.placement import Placement
from daskml_dist.data.waiting import Patience
from daskml_dist.errors import (
    WaitTimeoutError,
    WorkerLostError,
    is_consequence,
)
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.cluster_rows import ClusterRows
from daskml_dist.training.dask_internals import is_dasks, retire
from daskml_dist.training.ending import Ending
from daskml_dist.training.engine import FitResult, RunView
from daskml_dist.training.fleet import BUSY, Fleet, Gone, Host, call_workers
from daskml_dist.training.generations import Generations
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.listening import listen
from daskml_dist.training.membership import Membership
from daskml_dist.training.orders import (
    TOPIC,
    Alarm,
    say_farewell,
    to_alarm,
)
from daskml_dist.training.pace import Pace
from daskml_dist.training.recovery import GoOn
from daskml_dist.training.spec import FitSpec

__all__ = ["GenerationEvent", "TrainingRun"]

#: Seconds between two looks at the fit: short at first, so that short fits end at once.
_FIRST_LOOK, _LOOK = 0.01, 0.2
#: Seconds between two roll calls.
_ROLL_CALL = 0.5
#: Seconds after an alarm in which the scheduler is asked again who is gone.
_SOON = 0.3
#: Seconds that a call to a worker may take.
_CALL = 3.0
#: Seconds that a fit must last before it gets shadows: a short one is sooner begun anew.
_SHADOW_AFTER = 0.25
#: Seconds between two times that the client gets images, without and with shadows.
_SAVE, _SAVE_SHADOWED = 1.0, 5.0
#: The same, in times that getting the last ones took.
_SAVE_SHARE = 20
#: Seconds for which a new worker must be there before lanes move to it.
_SETTLED = 1.0
#: Generations without any progress after which a fit says so; after the timeout it is given up.
_MANY_FAILURES = 6


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
    """

    generation: int
    reason: str
    lost_versions: int
    anew: bool
    seconds: float

    def __str__(self) -> str:
        what = "begins anew" if self.anew else f"goes on, {self.lost_versions} updates made again"
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
    """

    def __init__(
        self,
        client: Client,
        fit: FitSpec,
        placement: Placement,
        rows: ClusterRows,
        interrupts: Interrupts,
    ) -> None:
        self._client = client
        self._fit = fit
        self._rows = rows
        self._interrupts = interrupts
        self._id = f"daskml-{uuid.uuid4().hex}"
        secret = Secret.make()
        self._awake = threading.Event()
        self._alarms: list[Alarm] = []
        self._membership = Membership(client)
        self._fleet = Fleet(
            client, fit, self._id, secret, self._is_there, self._begins, self._awake.set
        )
        self._crew = Generations(
            client, fit, placement, rows, self._membership, self._fleet, self._id, secret
        )
        self._ending = Ending(
            client, fit, self._id, self._membership, self._fleet, self._crew, self._awake
        )
        self._callbacks = CallbackList()
        self._told = 0
        self._stopping = False
        #: Generations since the fit last came further, and how far that was.
        self._failures, self._clocks = 0, 0
        self._losses = Patience("an end of the losses of workers", fit.timeout, _TOO_MANY)
        self._starts = Patience("workers to begin their parts", fit.timeout, BUSY)
        self._events: list[GenerationEvent] = []
        #: Clock that each lane was seen to reach in the present generation.
        self._reached: dict[int, int] = {}
        #: Workers that are let go once the run needs them no more, and those to retire then.
        self._to_let_go: set[str] = set()
        self._to_retire: set[str] = set()
        self._saved_at = self._save_took = 0.0
        self._pace = Pace(fit.lane_rows)
        #: When each worker that joined was first seen; workers that lanes were dealt to.
        self._joined_at: dict[str, float] = {}
        self._dealt: set[str] = set()
        self._began = time.monotonic()
        self._trainer_addresses: list[str] = []
        self._server_addresses: list[str] = []
        self._view = RunView(
            self._id, fit, self._trainer_addresses, self._server_addresses, self._stop
        )

    def run(self, callbacks: CallbackList) -> FitResult:
        """Run the fit to its end, or clean up and raise.

        An interrupted fit that has made a step returns what it had come to.
        """
        self._callbacks = callbacks
        self._dealt.update(self._membership.wait_for_any(self._fit.timeout))
        self._trainer_addresses += self._crew.seating.first_trainers
        self._server_addresses += self._crew.place_servers()
        try:
            callbacks.on_fit_begin(self._view)
            listen(self._client, TOPIC, self._id, self._on_event)
            self._begin("the fit begins")
            with self._interrupts.between_steps():
                result = self._watch()
            self._tell(result.records[self._told :])
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
            self._ending.clean_up()
        callbacks.on_fit_end(self._view)
        return self._with_events(result)

    def _with_events(self, result: FitResult) -> FitResult:
        return replace(result, events=[asdict(event) for event in self._events])

    def _on_alarm(self, alarm: Alarm) -> None:
        if alarm.at_work is not None:
            self._membership.note_at_work(alarm.at_work)
            if alarm.trainer is not None:
                self._crew.begun.add(alarm.trainer)
            return
        for lane, clock in alarm.reached:
            self._reached[lane] = max(clock, self._reached.get(lane, 0))
        self._alarms.append(alarm)
        self._awake.set()

    def _on_event(self, told: Any) -> None:
        if told["run"] == self._id:
            self._on_alarm(to_alarm(told))

    def _on_worker_event(self, address: str, told: Any) -> None:
        # Dask does not retire a worker that holds an actor; ours moves, and then it may go.
        if isinstance(told, dict) and told.get("action") == "could-not-retire":
            self._on_alarm(Alarm("cannot be retired yet", leaving=address))
            self._to_retire.add(address)

    def _is_there(self, address: str) -> bool:
        there = address in self._membership.call()
        return there and not self._membership.has_stopped(address)

    def _begins(self, address: str) -> bool:
        since = self._membership.paused.get(address)
        return since is None or time.monotonic() - since < _SETTLED

    # -- a generation --------------------------------------------------------------------------

    def _begin(self, reason: str, *, even: bool = False) -> None:
        """Begin the next generation, and again where it loses somebody on the way."""
        since, crew = time.monotonic(), self._crew
        while True:
            self._count_failure(reason)
            self._membership.wait_for_any(self._fit.timeout)
            try:
                go_on = crew.renew(even=even)
                if self._stopping:
                    self._fleet.ask(crew.servers[0].host, "stop")
                break
            except Gone as gone:
                self._note_gone(gone)
                reason = f"{reason}; {gone}"
        self._began = time.monotonic()
        for address in crew.visited:
            handler = partial(self._on_worker_event, address)
            listen(self._client, address, self._id, handler)
        self._server_addresses[:] = [server.host.address for server in crew.servers]
        self._trainer_addresses[:] = list(dict.fromkeys(seat.address for seat in crew.seats))
        if crew.number == 0:
            return
        if go_on is not None and sum(go_on.clocks.values()) > self._clocks:
            self._clocks, self._failures = sum(go_on.clocks.values()), 0
        again = self._made_again(go_on)
        anew = go_on is None
        if self._fit.policy.replays and crew.kept:
            # The open sum alone is made again.
            again, anew = min(again, 1), False
        event = GenerationEvent(crew.number, reason, again, anew, time.monotonic() - since)
        self._events.append(event)
        self._callbacks.on_generation(self._view, event)

    def _made_again(self, go_on: GoOn[Host] | None) -> int:
        """Steps that trainers, as far as they could still tell, had made beyond their clocks."""
        reached, self._reached = self._reached, {}
        first = self._fit.first_clock
        again = [
            clock - (first if go_on is None else go_on.clocks[lane])
            for lane, clock in reached.items()
        ]
        return max(0, *(again or [0])) if self._fit.policy.lockstep else max(0, sum(again))

    def _count_failure(self, reason: str) -> None:
        """Give up once workers have been lost for long with no progress in between."""
        self._failures += 1
        if self._failures == 1:
            self._losses.renew()
        few = self._failures <= _MANY_FAILURES
        if few or self._losses.lasts(f"{_MANY_FAILURES} without any progress in between"):
            return
        raise WorkerLostError(
            f"The fit lost workers {self._failures - 1} times in {self._fit.timeout:g} s without "
            f"coming further in between ({reason}). {_TOO_MANY} Then fit again."
        )

    def _note_gone(self, gone: Gone) -> None:
        """Count a worker that does not answer as lost, also where the scheduler does not yet."""
        if not self._begins(gone.address):
            return  # it is only paused
        if gone.address in self._membership.call():
            self._membership.cast_out(gone.address)

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self) -> FitResult:
        look, roll_call = _FIRST_LOOK, time.monotonic()
        while True:
            even = False
            try:
                self._pause_for(look)
                look = min(look * 1.5, _LOOK)
                reason = self._trouble()
                if reason is None and time.monotonic() - roll_call > _ROLL_CALL:
                    roll_call = time.monotonic()
                    reason = self._roll_call()
                    if reason is None and (reason := self._joined() or self._slow()):
                        even = True
                if reason is None:
                    if self._all_done():
                        if (result := self._ending.gather()) is not None:
                            return result
                        self._on_alarm(Alarm("a trainer ended early", 0, self._crew.number))
                    self._tell(self._ask_first("records", self._told))
                    if self._to_let_go:
                        self._let_go()
                    self._keep_safe()
            except Gone as gone:
                self._note_gone(gone)
                reason = str(gone)
            if reason is not None:
                with self._interrupts.at_once():
                    self._begin(reason, even=even)
                look = _FIRST_LOOK

    def _keep_safe(self) -> None:
        """See that what the servers hold is elsewhere too."""
        now = time.monotonic()
        if now - self._began < _SHADOW_AFTER or self._fit.policy.replays:
            return
        self._crew.mind_shadows()
        pause = _SAVE_SHADOWED if self._crew.is_shadowed else _SAVE
        if now - self._saved_at > max(pause, _SAVE_SHARE * self._save_took) and self._crew.may_save:
            self._crew.save()
            self._saved_at = time.monotonic()
            self._save_took = self._saved_at - now

    def _pause_for(self, seconds: float) -> None:
        """Sleep until something happens, but no longer than so many seconds."""
        self._awake.wait(seconds)
        self._awake.clear()
        self._interrupts.rest()

    def _ask_first(self, method: str, *args: Any) -> Any:
        return self._fleet.ask(self._crew.servers[0].host, method, *args)

    def _all_done(self) -> bool:
        return all(seat.future.status == "finished" for seat in self._crew.seats)

    def _trouble(self) -> str | None:
        """Why a new generation must begin, from what was heard; None: all is well."""
        for seat in self._crew.seats:
            if seat.future.status in {"lost", "cancelled"}:
                return self._who_is_gone() or f"worker {seat.address} lost a part of the fit"
            if seat.future.status == "error":
                error = seat.future.exception(timeout=_LOOK)
                if not is_consequence(error) and not is_dasks(error):
                    if seat.address in self._crew.not_begun and self._rows.missing():
                        return f"a block could not be made again: {error!r}"
                    raise error
                return self._who_is_gone() or f"a trainer stopped: {error}"
        alarms, self._alarms = self._alarms, []
        if not alarms:
            return None
        for address in {alarm.leaving for alarm in alarms if alarm.leaving}:
            self._membership.announce_leaving(address)
            self._to_let_go.add(address)
        if reason := self._who_is_leaving() or self._who_is_gone():
            return reason
        for alarm in alarms:
            if alarm.trainer is not None and alarm.generation == self._crew.number:
                return alarm.message
        for server in self._crew.servers:
            server.shadow_ships = False  # perhaps it was its connection that broke
        return None

    def _who_is_gone(self) -> str | None:
        """A closed connection is often seen before the scheduler notes the worker's loss."""
        deadline = time.monotonic() + _SOON
        while True:
            if gone := sorted(self._crew.members.difference(self._membership.call())):
                return f"worker {', '.join(gone)} was lost"
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _roll_call(self) -> str | None:
        """Why a new generation must begin, from who is there."""
        membership, members = self._membership, self._crew.members
        if gone := sorted(members.difference(membership.call())):
            return f"worker {', '.join(gone)} was lost"
        if stopped := [
            address for address in sorted(members) if self._membership.has_stopped(address)
        ]:
            return f"worker {', '.join(stopped)} stopped answering"
        if leaving := self._who_is_leaving():
            return leaving
        if self._rows.missing():
            return "rows were lost with a worker"
        self._rows.free()
        return self._in_vain()

    def _in_vain(self) -> str | None:
        """Why trainers that have not begun yet should be elsewhere; None: they may wait on."""
        waiting = self._crew.not_begun
        if paused := sorted(a for a in waiting if not self._begins(a)):
            if self._membership.ready:
                return f"worker {', '.join(paused)} is paused"
        if not waiting or not self._rows.are_there:
            self._starts.renew()
        elif not self._starts.lasts(f"{len(waiting)} of {len(self._crew.members)}"):
            raise WaitTimeoutError(
                f"Workers {', '.join(sorted(waiting))} did not begin their part of the fit within "
                f"{self._fit.timeout:g} s. {BUSY} Wait for these, or add workers, and fit again."
            )
        return None

    def _who_is_leaving(self) -> str | None:
        leaving = sorted(self._crew.members & self._membership.leaving)
        if leaving and not set(self._membership.ready) <= self._membership.leaving:
            return f"worker {', '.join(leaving)} is leaving"
        return None

    def _let_go(self) -> None:
        """Let workers leave that the run needs no more, neither for its parts nor for rows."""
        for address in sorted(self._to_let_go - self._crew.members):
            if self._rows.only_at(address):
                continue
            self._to_let_go.discard(address)
            if address not in self._membership.call():
                continue
            call_workers(self._client, say_farewell, {address: (self._id,)}, _CALL)
            if address in self._to_retire:
                self._to_retire.discard(address)
                retire(self._client, address)

    def _joined(self) -> str | None:
        """New workers that were there for a moment, and should take lanes over."""
        now = time.monotonic()
        fresh = [
            address
            for address in self._membership.ready
            if address not in self._dealt
            and now - self._joined_at.setdefault(address, now) > _SETTLED
        ]
        self._dealt.update(fresh)
        if not fresh or not self._crew.seating.would_even_out():
            return None
        return f"worker {', '.join(fresh)} joined"

    def _slow(self) -> str | None:
        """Workers that are persistently slow, and should give lanes to others."""
        passes, busy = self._ask_first("busy")
        slow = self._pace.look(passes, busy, self._crew.seating.workers)
        if not slow:
            return None
        self._crew.seating.speeds.update(slow)
        if not self._crew.seating.would_even_out():
            return None
        return f"worker {', '.join(sorted(slow))} is slow"

    def _tell(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self._told += 1
            self._starts.renew()
            with self._interrupts.at_once():
                self._callbacks.on_pass_end(self._view, record)

    def _stop(self) -> None:
        self._stopping = True
        with suppress(Gone):  # the next generation is told
            self._ask_first("stop")


_TOO_MANY = (
    "Look at the workers' logs: do they run out of memory? Use smaller chunks, memory_budget, or "
    "workers with more memory."
)
