"""The Dask actor that hosts a server of a fit, and the Dask task that runs a trainer.

The actor's methods are short and asynchronous; pushes and pulls reach the server through the
listener's own threads, never through the worker's event loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import get_client, get_worker, secede

from daskml_dist.comm.base import Endpoint, ServerConnection, Wait
from daskml_dist.comm.bounds import Bounds
from daskml_dist.comm.listener import Channel, Credentials, Listener
from daskml_dist.comm.local import publish_server
from daskml_dist.comm.reach import reach
from daskml_dist.comm.remote import serve
from daskml_dist.dask_internals.cluster import (
    ask_for,
    before_closing,
    get_address_host,
    is_wanted,
    shorten_lost_connections,
)
from daskml_dist.dask_internals.serialization import pickle
from daskml_dist.data.blocks import Block
from daskml_dist.data.bundles import Bundle, unpack_bundles
from daskml_dist.data.streamed_blocks import BlockRecipes
from daskml_dist.errors import CommunicationError, MessageError, TrainingError, is_consequence
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.server import ParameterServer
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import AvailableSnapshots, ServerSnapshot, standby_of
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec
from daskml_dist.training.worker.control import (
    Line,
    at_work,
    raise_alarm,
    say_hello,
    take_leave,
    tidy,
)
from daskml_dist.training.worker.notifications import telling_facts
from daskml_dist.training.worker.ready_blocks import backend_of
from daskml_dist.training.worker.servers import make_server
from daskml_dist.training.worker.trainer import Trainer

__all__ = [
    "Outcome",
    "ServerHost",
    "credentials_of",
    "get_ready",
    "host_of",
    "packed",
    "run_trainer",
]


#: Seconds that a trainer waits for its orders after it lost the others.
_PATIENCE = 60.0
#: Seconds that a standby may take to answer.
_STANDBY_TIMEOUT = 10.0
#: Seconds between two looks at whether the server is still there.
_SLICE = 0.5


def credentials_of(worker: Any, secret: bytes, shared_memory: bool) -> Credentials:
    """The run's secret, and TLS contexts of the cluster's `Security`, where it has them."""
    listen = worker.security.get_listen_args("worker").get("ssl_context")
    connect = worker.security.get_connection_args("worker").get("ssl_context")
    return Credentials(secret, listen, connect, shared_memory)


def host_of(worker: Any) -> str:
    """Address at which others reach a worker's process."""
    address = str(worker.address)
    return "127.0.0.1" if address.startswith("inproc") else str(get_address_host(address))


@dataclass(frozen=True)
class Outcome:
    """Outcome of a fit, as one server knows it.

    Parameters
    ----------
    state : ShardState or None
        Of its shard.
    records : list of dict
        Of the passes; of the first server, which has the ledger.
    stopping : StoppingRule or None
        As the last pass left it; of the first server.
    partial_rows : float
        Rows after the last whole pass; of the first server.
    dropped : int
        Pushes that came too late or twice; none was applied.
    """

    state: ShardState | None
    records: list[dict[str, Any]]
    stopping: StoppingRule | None
    partial_rows: float
    dropped: int


class _Door:
    """Door behind a listener: callers wait here until there is a server behind it."""

    def __init__(self) -> None:
        self.server: ParameterServer | None = None
        self._serve: Callable[[Channel, Channel], None] | None = None
        self._open = threading.Event()

    def open(self, server: ParameterServer, serve: Callable[[Channel, Channel], None]) -> None:
        """Let callers in."""
        self.server, self._serve = server, serve
        self._open.set()

    def answer(self, inbox: Channel, outbox: Channel) -> None:
        """Serve a caller, in a thread of its own."""
        if self._open.wait(_PATIENCE) and self._serve is not None:
            self._serve(inbox, outbox)

    def close(self) -> None:
        """Refuse everything."""
        if self.server is not None:
            self.server.abort("the fit is over")
        self._open.set()


class ServerHost:
    """Actor: one server, its listener, and what the client asks of it.

    It may be there, and listen, before the fit is known; callers then wait until it has its part.

    Parameters
    ----------
    run_id, key : str
        The run, and the name under which trainers of the same process find the server.
    secret : bytes
    shared_memory : bool
        Whether processes of one host may talk through memory that they share.
    *part
        Arguments of :meth:`begin`, where they are known.
    """

    def __init__(
        self, run_id: str, key: str, secret: bytes, shared_memory: bool, *part: Any
    ) -> None:
        worker = get_worker()
        self.run_id = run_id
        self._worker, self._key = worker, key
        self._credentials = credentials_of(worker, secret, shared_memory)
        self._shipper: Shipper | None = None
        # Its threads must not hold the actor, which ends when nobody holds it.
        self._door = door = _Door()
        listener = Listener(host_of(worker), self._credentials, on_pair=door.answer, key=key)
        self._endpoint = listener.endpoint
        # The scheduler drops the actor when its client goes: then nobody may wait for it. The
        # garbage collector may run in any thread, whatever locks that holds, so it only says so.
        end: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._end = weakref.finalize(self, end.put, None)
        threading.Thread(
            target=_close_at_end,
            args=(end, door, listener, worker, run_id),
            daemon=True,
            name="daskml-end",
        ).start()
        if part:
            self.begin(*part)

    def begin(self, fit: FitSpec, number: int, n_trainers: int, generation: int) -> None:
        """Make the server.

        Parameters
        ----------
        fit : FitSpec
        number : int
            Which server of the fit.
        n_trainers : int
        generation : int
            That of `standby_of` for a standby.
        """
        worker, run_id = self._worker, self.run_id
        self._fit, self._number = fit, number
        self._server = make_server(fit, number, n_trainers, generation=generation)
        publish_server(self._key, self._server)
        self._alarm = partial(raise_alarm, worker, run_id)
        say_hello(worker, run_id)
        before_closing(worker, run_id, partial(take_leave, worker, run_id))
        serve_callers = partial(
            serve,
            self._server,
            bounds=fit.bounds(number),
            on_loss=partial(_tell_loss, self._alarm, number),
        )
        self._door.open(self._server, serve_callers)

    async def endpoint(self) -> Endpoint:
        """Address at which trainers reach it."""
        return self._endpoint

    async def records(self, start: int) -> list[dict[str, Any]]:
        """Records of the passes from number `start` (from 0) on."""
        ledger = self._server.ledger
        return [] if ledger is None else ledger.records[start:]

    async def busy(self) -> tuple[int, dict[int, float]]:
        """Passes that have ended, and the seconds that each lane computed in its last one."""
        ledger = self._server.ledger
        return (0, {}) if ledger is None else (len(ledger.records), dict(ledger.busy))

    async def outcome(self) -> Outcome:
        """Outcome of the fit here, once its trainers have ended."""
        state, ledger, dropped = self._server.state(), self._server.ledger, self._server.dropped
        if ledger is None:
            return Outcome(state, [], None, 0.0, dropped)
        return Outcome(state, ledger.records, ledger.rule, ledger.partial_rows, dropped)

    async def rescale(self, largest: Any, norm: float) -> None:
        """Go on with rows of larger values, by the largest of each row of the parameters."""
        self._server.rescale(largest[self._fit.work.layout.slices()[self._number]], norm)

    async def stop(self) -> None:
        """End the fit with the open pass."""
        self._server.stop()

    # -- generations ---------------------------------------------------------------------------

    async def pause(self, generation: int) -> AvailableSnapshots:
        """Refuse earlier generations; tell what could be gone on from."""
        self._end_shipping()
        return self._server.pause(generation)

    async def keep_snapshots(self, every: int) -> None:
        """Make a snapshot every so many updates, and keep the last ones here."""
        self._server.make_snapshots(None, every)

    async def kept(self) -> dict[int, dict[int, int]]:
        """Clocks at each snapshot that is kept, by its place."""
        return self._server.kept()

    async def snapshot_at(self, place: int) -> tuple[ServerSnapshot, list[Any]] | None:
        """A kept snapshot with its records."""
        return self._server.snapshot_at(place)

    async def take(self, snapshot: ServerSnapshot, records: list[Any]) -> None:
        """Keep a snapshot that another server made."""
        self._server.take(snapshot, records)

    async def hand_over(self, generation: int) -> None:
        """Pause, and give the standby the last state."""
        self._server.pause(generation)
        snapshot = self._server.last_snapshot()
        if self._shipper is not None and snapshot is not None:
            self._shipper(snapshot)
            while not self._shipper.is_idle:
                await asyncio.sleep(0.002)
        self._end_shipping()

    async def renew(self, generation: int, n_trainers: int, at: int | None) -> None:
        """Begin a new generation."""
        self._server.renew(generation, range(len(self._fit.rows.lane_rows)), n_trainers, at)

    async def stand_by(self, generation: int) -> None:
        """Go on as a standby, of the server of a new generation."""
        self._server.stand_by(generation)

    async def ship_to(self, standby: Endpoint, every: int) -> None:
        """Send a snapshot to the standby at once, and every so many updates."""
        self._end_shipping()
        # Its thread must not hold the actor, which ends when nobody holds it.
        bounds = self._fit.bounds(self._number)
        connect = partial(_connect_to, standby, self._server, bounds, self._credentials)
        self._shipper = Shipper(self._server, connect, self._alarm)
        self._server.make_snapshots(self._shipper, every)

    def _end_shipping(self) -> None:
        if self._shipper is not None:
            self._server.stop_shipping(self._shipper)
            self._shipper.close()
            self._shipper = None

    # -- the end -------------------------------------------------------------------------------

    async def abort(self, reason: str) -> None:
        """Refuse everything from now on."""
        self._server.abort(reason)

    async def close(self) -> None:
        """Close the listener and all connections."""
        self._end_shipping()
        self._end()


def _connect_to(
    standby: Endpoint, server: ParameterServer, bounds: Bounds, credentials: Credentials
) -> ServerConnection:
    wait = Wait(_STANDBY_TIMEOUT, is_aborted=lambda: server.is_over)
    return reach(standby, credentials, wait, bounds)


def _tell_loss(alarm: Callable[..., None], number: int, error: BaseException) -> None:
    garbled = isinstance(error, MessageError)
    alarm(error if garbled else f"server {number}: a connection broke")


def _close_at_end(
    end: queue.SimpleQueue[None],
    door: _Door,
    listener: Listener,
    worker: Any,
    run_id: str,
) -> None:
    end.get()
    door.close()
    listener.close()
    tidy(worker, run_id)


def run_trainer(fit: FitSpec, spec: TrainerSpec, blocks: list[Bundle] | bytes) -> TrainerResult:
    """Dask task: run a trainer on this worker, on bundles of blocks or packed recipes of blocks.

    It leaves the worker's thread pool before it waits for anyone, so that trainers never hold
    the slots that others wait for: two fits at once cannot deadlock.
    """
    worker = get_worker()
    key = worker.get_current_task()
    secede()
    shorten_lost_connections()
    say_hello(worker, spec.run_id, spec.name)
    before_closing(worker, spec.run_id, partial(take_leave, worker, spec.run_id))
    line = Line(
        spec,
        partial(raise_alarm, worker, spec.run_id),
        partial(is_wanted, worker, key),
        min(_PATIENCE, fit.run.timeout),
    )
    wait = Wait(fit.run.timeout, line.is_aborted, line.is_renewed)
    threading.current_thread().name = f"daskml-trainer-{spec.name}"
    trainer = Trainer(
        fit,
        spec,
        wait,
        credentials_of(worker, spec.secret, fit.run.shared_memory),
        host_of(worker),
        next_spec=line.next_spec,
        rest=line.rest,
    )
    told = telling_facts(worker, spec.run_id, spec.n_trainers, trainer.facts)
    with at_work(worker, spec.run_id), told:
        try:
            return trainer.run(_source(blocks, worker, wait))
        except TrainingError as error:
            if not (line.is_aborted() and is_consequence(error)):
                raise
        # What is raised, Dask would log on the worker, for all to see in a notebook.
        return trainer.interrupted()


def _source(
    blocks: list[Bundle] | bytes, worker: Any, wait: Wait
) -> dict[int, Block] | Callable[[int], Block]:
    if not isinstance(blocks, bytes):
        return unpack_bundles(blocks)
    recipes = BlockRecipes.unpack(blocks)
    fetch = _Fetch(worker, wait) if recipes.held else _nothing_held
    return lambda number: recipes.make(number, fetch)


def _nothing_held(key: Any) -> Any:
    raise KeyError(key)


class _Fetch:
    """Data that workers hold; this worker's own without a copy, from disk if spilled."""

    def __init__(self, worker: Any, wait: Wait) -> None:
        self._worker = worker
        self._wait = wait
        # Only here: a task may ask for a client, its helper threads may not.
        self._client = get_client()

    def __call__(self, key: Any) -> Any:
        # The worker's memory is the event loop's alone.
        here = asyncio.run_coroutine_threadsafe(self._local(key), self._worker.loop.asyncio_loop)
        found, value = here.result(timeout=self._wait.timeout)
        if found:
            return value
        future = ask_for(self._client, key)
        try:
            return future.result(timeout=self._wait.timeout)
        except Exception as error:
            # The client decides: they are made again, or are lost for good.
            raise CommunicationError(
                f"Rows that a worker held could not be fetched ({error!r}): it was probably lost. "
                "Fit again."
            ) from error
        finally:
            future.release()

    async def _local(self, key: Any) -> tuple[bool, Any]:
        data = self._worker.data
        return (True, data[key]) if key in data else (False, None)


class Shipper:
    """Sender of snapshots in a thread of its own, one after the other. Call it with a snapshot.

    Parameters
    ----------
    server : ParameterServer
        Whose snapshots these are.
    connect : callable
        Opens the connection to the standby; called in the thread.
    on_failure : callable
        Takes the error that ended the shipping; the server goes on without a standby.
    """

    def __init__(
        self,
        server: ParameterServer,
        connect: Callable[[], ServerConnection],
        on_failure: Callable[[str], None],
    ) -> None:
        self._server = server
        self._connect = connect
        self._on_failure = on_failure
        self._generation = standby_of(server.generation)
        self._snapshots: queue.SimpleQueue[ServerSnapshot | None] = queue.SimpleQueue()
        self._taken = self._sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="daskml-standby")
        self._thread.start()

    def __call__(self, snapshot: ServerSnapshot) -> None:
        self._taken += 1
        self._snapshots.put(snapshot)

    @property
    def is_idle(self) -> bool:
        """Whether the standby has all snapshots, or can have no more."""
        return self._sent >= self._taken or not self._thread.is_alive()

    def close(self) -> None:
        """Send no more; returns at once."""
        self._snapshots.put(None)

    def _run(self) -> None:
        try:
            connection = self._connect()
            try:
                self._send_all(connection)
            finally:
                connection.close()
        except TrainingError as error:
            self._server.stop_shipping(self)
            self._on_failure(f"standby: {error}")

    def _next(self) -> ServerSnapshot | None:
        while not self._server.is_over:
            with suppress(queue.Empty):
                return self._snapshots.get(timeout=_SLICE)
        return None

    def _send_all(self, connection: ServerConnection) -> None:
        first = 0
        while (snapshot := self._next()) is not None:
            # Records only grow, so each goes over once.
            records, n_records = [], first
            if snapshot.ledger is not None and self._server.ledger is not None:
                n_records = snapshot.ledger.n_records
                records = self._server.ledger.records[first:n_records]
            payload = {"generation": self._generation, "first": first, "blob": (snapshot, records)}
            connection.call("keep", payload)
            first = n_records
            self._sent += 1
            self._server.shipped()


def packed(fit: FitSpec) -> bytes:
    """A fit to be unpacked in a task's own thread; Dask does so in the worker's event loop."""
    return bytes(pickle.dumps((run_trainer, fit)))


def get_ready(fit: FitSpec | bytes) -> bool:
    """Load a fit and what it computes with."""
    found: FitSpec = pickle.loads(fit)[1] if isinstance(fit, bytes) else fit
    backend_of(found)
    if not found.work.replays:
        found.start_state(slice(0, 1))  # the model's own imports
    return True
