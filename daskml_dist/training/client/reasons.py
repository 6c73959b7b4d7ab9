"""Reasons to begin a new generation: what was heard, and what a look at the cluster shows."""

from __future__ import annotations

import time

from daskml_dist.data.computing import TELL_OF_BEGINS, Deadline
from daskml_dist.errors import WaitTimeoutError, is_consequence
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.newcomers import Newcomers
from daskml_dist.training.client.pace import Pace
from daskml_dist.training.client.run_actors import BUSY, RunActors
from daskml_dist.training.dask_internals import is_dasks
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.control import Alarm

__all__ = ["Reasons"]

#: Seconds that the error of a trainer may take to come.
_FETCH = 0.2
#: Seconds after an alarm in which the scheduler is asked again who is gone.
_SOON = 0.3


class Reasons:
    """Reasons for a new generation of a run.

    Parameters
    ----------
    fit : FitSpec
    rows : ClusterRows
    membership : Membership
    fleet : RunActors
    crew : Generations
    """

    def __init__(
        self,
        fit: FitSpec,
        rows: ClusterRows,
        membership: Membership,
        fleet: RunActors,
        crew: Generations,
    ) -> None:
        #: Workers that are let go once the run needs them no more.
        self.to_let_go: set[str] = set()
        self._fit = fit
        self._rows = rows
        self._membership = membership
        self._fleet = fleet
        self._crew = crew
        self._alarms: list[Alarm] = []
        #: The last message without a meaning that was told of.
        self._garbled = ""
        self._starts = Deadline(
            "workers to begin their parts", fit.run.timeout, BUSY, tell_after=TELL_OF_BEGINS
        )
        self._pace = Pace(fit.rows.lane_rows)
        self._newcomers = Newcomers(membership, fleet)

    def hear(self, alarm: Alarm) -> None:
        """Take an alarm, in any thread."""
        self._alarms.append(alarm)

    def take_garbled(self) -> str:
        """Alarm of a message without a meaning since this was last asked; or an empty text."""
        told, self._garbled = self._garbled, ""
        return told

    def note_progress(self) -> None:
        """Note that the fit came further: trainers that have not begun may wait as long again."""
        self._starts.renew()

    def trouble(self) -> str | None:
        """Reason to begin a new generation, from what was heard; None: all is well."""
        if reason := self._who_ended():
            return reason
        alarms, self._alarms = self._alarms, []
        if not alarms:
            return None
        self._garbled = next((a.message for a in alarms if a.garbled), self._garbled)
        for address in {alarm.leaving for alarm in alarms if alarm.leaving}:
            self._membership.announce_leaving(address)
            self.to_let_go.add(address)
        if reason := self._who_is_leaving() or self._who_is_gone():
            return reason
        for alarm in alarms:
            if alarm.trainer is not None and alarm.generation == self._crew.number:
                return alarm.message
        for server in self._crew.servers:
            server.standby_ships = False  # perhaps it was its connection that broke
        return None

    def roll_call(self) -> str | None:
        """Reason to begin a new generation, from who is there; None: all is well."""
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

    def unevenness(self) -> str | None:
        """Reason to move lanes though nobody is lost; None: they are spread evenly enough."""
        return self._joined() or self._slow()

    def _joined(self) -> str | None:
        """New workers that are ready, and should take lanes over."""
        fresh = self._newcomers.ready(self._crew.seating.dealt)
        self._crew.seating.dealt.update(fresh)
        if not fresh or not self._crew.seating.would_even_out():
            return None
        return f"worker {', '.join(fresh)} joined"

    def _slow(self) -> str | None:
        """Workers that are persistently slow, and should give lanes to others."""
        passes, busy = self._fleet.ask(self._crew.servers[0].host, "busy")
        slow = self._pace.look(passes, busy, self._crew.seating.workers)
        if not slow:
            return None
        self._crew.seating.speeds.update(slow)
        if not self._crew.seating.would_even_out():
            return None
        return f"worker {', '.join(sorted(slow))} is slow"

    def _who_ended(self) -> str | None:
        """Reason to begin anew, from the tasks of trainers; None: they run, or have ended well."""
        for seat in self._crew.seats:
            if seat.future.status in {"lost", "cancelled"}:
                return self._who_is_gone() or f"worker {seat.address} lost a part of the fit"
            if seat.future.status == "error":
                error = seat.future.exception(timeout=_FETCH)
                return self._who_is_gone() or f"a trainer stopped: {error}"
        return None

    def _own_error(self) -> str | None:
        """Raise what a trainer raised that would come again in every generation.

        Returns
        -------
        str, or None where there is no such error
            Reason for a new generation, where its cause is that rows were lost.
        """
        for seat in self._crew.seats:
            if seat.future.status != "error":
                continue
            error = seat.future.exception(timeout=_FETCH)
            if is_consequence(error) or is_dasks(error):
                continue
            if seat.address in self._crew.not_begun and self._rows.missing():
                return f"a block could not be made again: {error!r}"
            raise error
        return None

    def _who_is_gone(self) -> str | None:
        """A closed connection is often seen before the scheduler notes the worker's loss.

        Or before it tells what the trainer at its other end has raised, which is raised here.
        """
        deadline = time.monotonic() + _SOON
        while True:
            if reason := self._own_error():
                return reason
            if gone := sorted(self._crew.members.difference(self._membership.call())):
                return f"worker {', '.join(gone)} was lost"
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _in_vain(self) -> str | None:
        """Reason to move trainers that have not begun yet; None: they may wait on."""
        waiting = self._crew.not_begun
        if paused := sorted(a for a in waiting if not self._membership.begins(a)):
            if self._membership.ready:
                return f"worker {', '.join(paused)} is paused"
        if not waiting or not self._rows.are_there:
            self._starts.renew()
        elif not self._starts.lasts(f"{len(waiting)} of {len(self._crew.members)}"):
            raise WaitTimeoutError(
                f"Workers {', '.join(sorted(waiting))} did not begin their part of the fit "
                f"within {self._fit.run.timeout:g} s. {BUSY} "
                "Wait for these, or add workers, and fit again."
            )
        return None

    def _who_is_leaving(self) -> str | None:
        leaving = sorted(self._crew.members & self._membership.leaving)
        if leaving and not set(self._membership.ready) <= self._membership.leaving:
            return f"worker {', '.join(leaving)} is leaving"
        return None
