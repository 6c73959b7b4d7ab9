"""The end of a run: its result gathered, or all that runs stopped; nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from distributed import Client
from numpy.typing import NDArray

from daskml_dist.data.computing import Deadline
from daskml_dist.errors import (
    DaskMLDistError,
    DivergedError,
    SchedulerLostError,
    TrainingError,
    is_consequence,
)
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import whole
from daskml_dist.solvers import Solution
from daskml_dist.training.client.calls import call_workers
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.listening import stop_listening
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import RunActors
from daskml_dist.training.engine import FitResult
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.control import abort_run, forget_run
from daskml_dist.training.worker.host import Outcome
from daskml_dist.training.worker.servers import joined_left, joined_state, left_in, revived

__all__ = ["Ending"]

#: Seconds that the end of all trainers after an error, a call to their workers, and the end of
#: the actors may take.
_WIND_DOWN, _CALL, _CLEAN = 15.0, 3.0, 2.0
#: Seconds between two looks at trainers that are to end, and to fetch an error of one that has.
_LOOK = 0.2


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
            self._awake.wait(_LOOK)
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
                own = seat.future.exception(timeout=_LOOK)
                if isinstance(own, DaskMLDistError) and not is_consequence(own):
                    return own
        if isinstance(error, DaskMLDistError):
            return error
        return TrainingError(f"The fit failed on a worker: {error!r}. See the cause above.")

    def _on_workers(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Call a function of the run's name on all workers that had a part in it."""
        workers = self._crew.visited.intersection(self._membership.call())
        return call_workers(self._client, function, {w: (self._id,) for w in workers}, _CALL)
