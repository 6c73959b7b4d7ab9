"""Dask actor that hosts a server of a fit, and Dask task that runs a trainer.

The actor's methods are short and asynchronous. Pushes and pulls reach the server through the
listener's own threads, never through the worker's event loop. `SnapshotShipper` sends a server's
snapshots to its standby. `load_fit_on_worker` is a task that makes a new worker import the modules
that a trainer needs.
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

from daskml_dist.comm.base import ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.listener import Channel, Credentials, Listener
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import (
    ServerConnection,
    connect_to_server,
    publish_server,
    serve_connection,
)
from daskml_dist.dask_internals.cluster import (
    get_address_host,
    is_task_wanted,
    request_data,
    run_before_closing,
    shorten_lost_connections,
)
from daskml_dist.dask_internals.serialization import pickle
from daskml_dist.data.blocks import Block
from daskml_dist.data.streamed_blocks import BlockBundle, BlockRecipes, unpack_bundles
from daskml_dist.errors import (
    CommunicationError,
    MessageError,
    SilentPeerError,
    TrainingError,
    is_consequence,
)
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import AvailableSnapshots, ServerSnapshot, standby_generation
from daskml_dist.training.spec import FitSpec, TrainerResult, TrainerSpec
from daskml_dist.training.worker.control import (
    ClientLine,
    announce_beginning,
    announce_worker_leaving,
    count_working_trainer,
    forget_when_inactive,
    raise_alarm,
)
from daskml_dist.training.worker.notifications import publish_facts
from daskml_dist.training.worker.reader import get_fit_backend
from daskml_dist.training.worker.servers import make_server
from daskml_dist.training.worker.trainer import Trainer

#: Seconds that a trainer waits for orders after it lost its peers: longer than the client needs to
#: begin a generation.
_ORDER_TIMEOUT = 60.0
#: Seconds that a standby may take to answer.
_STANDBY_TIMEOUT = 10.0
#: Seconds between two checks that the server still exists.
_SHIPPER_POLL = 0.5


def credentials_of(worker: Any, secret: bytes, settings: ConnectionSettings) -> Credentials:
    """Return the run's secret, and the TLS contexts of the cluster's `Security`, if any."""
    # The run's sockets use the cluster's own certificates.
    listen = worker.security.get_listen_args("worker").get("ssl_context")
    connect = worker.security.get_connection_args("worker").get("ssl_context")
    return Credentials(secret, listen, connect, settings)


def find_reachable_host(worker: Any) -> str:
    """Return the address at which other processes reach a worker's process."""
    address = str(worker.address)
    return "127.0.0.1" if address.startswith("inproc") else str(get_address_host(address))


@dataclass(frozen=True)
class ServerOutcome:
    """Outcome of a fit on one server.

    Parameters
    ----------
    state : ShardState or None
        State of its shard.
    records : list of dict
        Records of the passes; only on the first server, which has the ledger.
    stopping : PassStoppingRule or None
        Stopping rule after the last pass; only on the first server.
    partial_rows : float
        Rows after the last whole pass; only on the first server.
    dropped : int
        Pushes that were dropped, since they were late or repeated.
    """

    state: ShardState | None
    records: list[dict[str, Any]]
    stopping: PassStoppingRule | None
    partial_rows: float
    dropped: int


class _CallerGate:
    """Gate behind a listener, at which callers wait until there is a server."""

    def __init__(self) -> None:
        self.server: ShardServer | None = None
        self._serve: Callable[[Channel, Channel], None] | None = None
        self._open = threading.Event()

    def open(self, server: ShardServer, serve: Callable[[Channel, Channel], None]) -> None:
        """Release the waiting callers."""
        self.server, self._serve = server, serve
        self._open.set()

    def answer(self, inbox: Channel, outbox: Channel) -> None:
        """Serve a caller, in a thread of its own."""
        if self._open.wait(_ORDER_TIMEOUT) and self._serve is not None:
            self._serve(inbox, outbox)

    def close(self) -> None:
        """Refuse all callers from now on."""
        if self.server is not None:
            self.server.abort("the fit is over")
        self._open.set()


class ServerHost:
    """Dask actor with one server, its listener, and the methods that the client calls.

    It may exist, and listen, before the fit is known; callers then wait until it has its part.

    Parameters
    ----------
    run_id, key : str
        The run, and the name by which trainers of the same process find the server.
    secret : bytes
    connections : ConnectionSettings
    *part
        Arguments of :meth:`begin`, if they are known already.
    """

    def __init__(
        self,
        run_id: str,
        key: str,
        secret: bytes,
        connections: ConnectionSettings,
        *begin_args: Any,
    ) -> None:
        # Dask creates actors on their worker, in one of its threads.
        worker = get_worker()
        self.run_id = run_id
        self._worker, self._key = worker, key
        self._credentials = credentials_of(worker, secret, connections)
        self._shipper: SnapshotShipper | None = None
        # The threads get the gate, not the actor: a reference would keep the actor alive for ever.
        self._door = gate = _CallerGate()
        listener = Listener(
            find_reachable_host(worker), self._credentials, on_pair=gate.answer, key=key
        )
        self._endpoint = listener.endpoint
        # The scheduler drops the actor when its client is gone; then no caller may keep waiting.
        # The garbage collector may run in any thread and under any lock, so the finalizer only puts
        # a token into a queue.
        end: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._end = weakref.finalize(self, end.put, None)
        threading.Thread(
            target=_close_at_end,
            args=(end, gate, listener, worker, run_id),
            daemon=True,
            name="daskml-end",
        ).start()
        if begin_args:
            self.begin(*begin_args)

    def begin(self, fit: FitSpec, server_index: int, n_trainers: int, generation: int) -> None:
        """Make the server once its part of the fit is known."""
        worker, run_id = self._worker, self.run_id
        # Used by the methods that the client calls later.
        self._fit, self._server_index = fit, server_index
        limit = worker.memory_manager.memory_limit
        self._server = make_server(
            fit, server_index, n_trainers, generation=generation, memory_limit=limit
        )
        # Trainers of the same process call the server directly, without a socket.
        publish_server(self._key, self._server)
        self._alarm = partial(raise_alarm, worker, run_id)
        announce_beginning(worker, run_id)
        run_before_closing(worker, run_id, partial(announce_worker_leaving, worker, run_id))
        serve_callers = partial(
            serve_connection,
            self._server,
            bounds=fit.bounds(server_index),
            on_loss=partial(_report_lost_connection, self._alarm, server_index),
        )
        self._door.open(self._server, serve_callers)

    async def endpoint(self) -> Endpoint:
        """Return the address at which trainers reach the server."""
        return self._endpoint

    async def records(self, start: int) -> list[dict[str, Any]]:
        """Return the records of the passes from number `start` (from 0) on."""
        ledger = self._server.ledger
        return [] if ledger is None else ledger.records[start:]

    async def lane_seconds(self) -> tuple[int, dict[int, tuple[float, int]]]:
        """Return the number of finished passes, and the seconds and steps of each lane."""
        ledger = self._server.ledger
        return (0, {}) if ledger is None else (len(ledger.records), dict(ledger.lane_seconds))

    async def outcome(self) -> ServerOutcome:
        """Return the outcome of the fit on this server, once its trainers have ended."""
        state, ledger, dropped = self._server.state(), self._server.ledger, self._server.dropped
        if ledger is None:
            return ServerOutcome(state, [], None, 0.0, dropped)
        return ServerOutcome(state, ledger.records, ledger.rule, ledger.partial_rows, dropped)

    async def rescale(self, largest: Any, norm: float) -> None:
        """Rescale the state for rows of larger values, given the largest per parameter row."""
        self._server.rescale(largest[self._fit.work.layout.slices()[self._server_index]], norm)

    async def stop(self) -> None:
        """End the fit with the open pass."""
        self._server.stop()

    # -- generations ---------------------------------------------------------------------------

    async def pause(self, generation: int) -> AvailableSnapshots:
        """Refuse messages of earlier generations; return the snapshots to recover from."""
        self._stop_shipping()
        # No more pushes are applied, so the last snapshot is the state that the standby gets.
        return self._server.pause(generation)

    async def keep_snapshots(self, interval: int) -> None:
        """Make a snapshot every `interval` updates, and keep the last ones here."""
        self._server.make_snapshots(None, interval)

    async def kept(self) -> dict[int, dict[int, int]]:
        """Return the lanes' clocks of each kept snapshot, by its place."""
        return self._server.get_snapshot_clocks()

    async def snapshot_at(self, position: int) -> tuple[ServerSnapshot, list[Any]] | None:
        """Return a kept snapshot with its records."""
        return self._server.snapshot_at(position)

    async def take(self, snapshot: ServerSnapshot, records: list[Any]) -> None:
        """Keep a snapshot that another server made."""
        self._server.take(snapshot, records)

    async def hand_over(self, generation: int) -> None:
        """Pause, and send the last state to the standby."""
        self._server.pause(generation)
        snapshot = self._server.last_snapshot()
        if self._shipper is not None and snapshot is not None:
            self._shipper(snapshot)
            while not self._shipper.is_idle:
                await asyncio.sleep(0.002)
        self._stop_shipping()

    async def renew(self, generation: int, n_trainers: int, position: int | None) -> None:
        """Begin a new generation."""
        self._server.renew(generation, range(len(self._fit.rows.lane_rows)), n_trainers, position)

    async def stand_by(self, generation: int) -> None:
        """Become a standby of the server of a new generation."""
        self._server.stand_by(generation)

    async def ship_to(self, standby: Endpoint, interval: int) -> None:
        """Send a snapshot to the standby now, and then one every `interval` updates."""
        self._stop_shipping()
        # The thread gets the server, not the actor: a reference would keep the actor alive.
        bounds = self._fit.bounds(self._server_index)
        connect = partial(_connect_to_standby, standby, self._server, bounds, self._credentials)
        self._shipper = SnapshotShipper(self._server, connect, self._alarm)
        self._server.make_snapshots(self._shipper, interval)

    def _stop_shipping(self) -> None:
        """Stop sending snapshots to the standby."""
        if self._shipper is not None:
            self._server.stop_shipping(self._shipper)
            self._shipper.close()
            self._shipper = None

    # -- the end -------------------------------------------------------------------------------

    async def abort(self, reason: str) -> None:
        """Refuse all messages from now on."""
        self._server.abort(reason)

    async def close(self) -> None:
        """Close the listener and all connections."""
        self._stop_shipping()
        self._end()


def _connect_to_standby(
    standby: Endpoint, server: ShardServer, bounds: MessageBounds, credentials: Credentials
) -> ServerConnection:
    """Open the connection to a standby."""
    wait = WaitBound(_STANDBY_TIMEOUT, is_aborted=lambda: server.is_over)
    return connect_to_server(standby, credentials, wait, bounds)


def _report_lost_connection(
    alarm: Callable[..., None], server_index: int, error: BaseException
) -> None:
    """Report to the client that a trainer's connection to a server broke."""
    is_described = isinstance(error, (MessageError, SilentPeerError))
    alarm(error if is_described else f"server {server_index}: a connection broke")


def _close_at_end(
    end: queue.SimpleQueue[None],
    door: _CallerGate,
    listener: Listener,
    worker: Any,
    run_id: str,
) -> None:
    """Wait for the actor's end, then close the gate and the listener."""
    end.get()
    door.close()
    listener.close()
    forget_when_inactive(worker, run_id)


def run_trainer(
    fit: FitSpec, spec: TrainerSpec, blocks: list[BlockBundle] | bytes
) -> TrainerResult:
    """Run a trainer on this worker, on bundles of blocks or packed recipes (a Dask task).

    It leaves the worker's thread pool before it waits for other trainers, so it never occupies a
    slot that they need: two simultaneous fits cannot deadlock.
    """
    worker = get_worker()
    # Needed later, to check whether the client still wants the result.
    key = worker.get_current_task()
    # Leave the thread pool first: trainers that wait must not occupy slots that other trainers
    # need.
    secede()
    shorten_lost_connections()
    announce_beginning(worker, spec.run_id, spec.name)
    # A worker that is asked to close waits until its lanes have moved.
    run_before_closing(worker, spec.run_id, partial(announce_worker_leaving, worker, spec.run_id))
    client_line = ClientLine(
        spec,
        partial(raise_alarm, worker, spec.run_id),
        partial(is_task_wanted, worker, key),
        min(_ORDER_TIMEOUT, fit.run.timeout),
    )
    silent_peer = SilentPeerError("The host of a worker of the fit does not acknowledge data.")
    tell_silence = partial(raise_alarm, worker, spec.run_id, silent_peer)
    wait = WaitBound(fit.run.timeout, client_line.is_aborted, client_line.is_renewed, tell_silence)
    threading.current_thread().name = f"daskml-trainer-{spec.name}"
    trainer = Trainer(
        fit,
        spec,
        wait,
        credentials_of(worker, spec.secret, fit.run.connections),
        find_reachable_host(worker),
        next_spec=client_line.next_spec,
        raise_if_stopped=client_line.raise_if_aborted,
    )
    publishing = publish_facts(worker, spec.run_id, spec.n_trainers, trainer.get_facts)
    with count_working_trainer(worker, spec.run_id), publishing:
        try:
            return trainer.run(_open_blocks(blocks, worker, wait))
        except TrainingError as error:
            # An abort ends the trainer without an error: it returns the present state of its lanes.
            if not (client_line.is_aborted() and is_consequence(error)):
                raise
            # Dask would log an exception on the worker, where notebooks show it.
            return trainer.interrupted()
        finally:
            trainer.close()


def _open_blocks(
    blocks: list[BlockBundle] | bytes, worker: Any, wait: WaitBound
) -> dict[int, Block] | Callable[[int], Block]:
    """Return the blocks, or a function that makes them from recipes."""
    if not isinstance(blocks, bytes):
        return unpack_bundles(blocks)
    recipes = BlockRecipes.unpack_recipes(blocks)
    fetch = _FetchHeldData(worker, wait) if recipes.held_keys else _raise_key_error
    return lambda number: recipes.make_block(number, fetch)


def _raise_key_error(key: Any) -> Any:
    """Raise `KeyError`: these recipes need no data from workers."""
    raise KeyError(key)


class _FetchHeldData:
    """Function that fetches data from workers; data of this worker are not copied."""

    def __init__(self, worker: Any, wait: WaitBound) -> None:
        self._worker = worker
        self._wait = wait
        # Only possible here: a task may request a client, its helper threads may not.
        self._client = get_client()

    def __call__(self, key: Any) -> Any:
        # Only the event loop may access the worker's memory.
        local_search = asyncio.run_coroutine_threadsafe(
            self._find_locally(key), self._worker.loop.asyncio_loop
        )
        is_local, value = local_search.result(timeout=self._wait.timeout)
        # Data of this worker itself: no copy, and no message.
        if is_local:
            return value
        future = request_data(self._client, key)
        try:
            return future.result(timeout=self._wait.timeout)
        except Exception as error:
            # The client decides whether the rows are computed again or are lost for good.
            raise CommunicationError(
                f"Rows that a worker held could not be fetched ({error!r}): it was probably lost. "
                "Fit again."
            ) from error
        finally:
            future.release()

    async def _find_locally(self, key: Any) -> tuple[bool, Any]:
        """Return whether this worker has a key in memory or on disk, and its value."""
        data = self._worker.data
        return (True, data[key]) if key in data else (False, None)


class SnapshotShipper:
    """Sender of snapshots to the standby, in its own thread. Call it with a snapshot.

    Parameters
    ----------
    server : ShardServer
        Server that makes the snapshots.
    connect : callable
        Opens the connection to the standby; called in the thread.
    on_failure : callable
        Takes the error that ended the shipping; the server continues without a standby.
    """

    def __init__(
        self,
        server: ShardServer,
        connect: Callable[[], ServerConnection],
        on_failure: Callable[[str], None],
    ) -> None:
        self._server = server
        self._connect = connect
        self._on_failure = on_failure
        self._generation = standby_generation(server.generation)
        self._snapshots: queue.SimpleQueue[ServerSnapshot | None] = queue.SimpleQueue()
        self._n_taken = self._n_sent = 0
        self._thread = threading.Thread(
            target=self._run_in_thread, daemon=True, name="daskml-standby"
        )
        self._thread.start()

    def __call__(self, snapshot: ServerSnapshot) -> None:
        self._n_taken += 1
        # The server's thread only adds to the queue; it must not wait for the network.
        self._snapshots.put(snapshot)

    @property
    def is_idle(self) -> bool:
        """Return whether the standby has all snapshots, or cannot get any more."""
        return self._n_sent >= self._n_taken or not self._thread.is_alive()

    def close(self) -> None:
        """Stop sending; return without waiting."""
        self._snapshots.put(None)

    def _run_in_thread(self) -> None:
        """Connect to the standby and send until closed; report an error to the client."""
        try:
            connection = self._connect()
            try:
                self._send_snapshots(connection)
            finally:
                connection.close()
        except TrainingError as error:
            self._server.stop_shipping(self)
            self._on_failure(f"standby: {error}")

    def _next_snapshot(self) -> ServerSnapshot | None:
        """Return the next snapshot; None once the server has ended."""
        # The end of the server ends the thread even if the shipper is never closed.
        while not self._server.is_over:
            with suppress(queue.Empty):
                return self._snapshots.get(timeout=_SHIPPER_POLL)
        return None

    def _send_snapshots(self, connection: ServerConnection) -> None:
        """Send snapshots one after the other, each with the new records."""
        # Records are only appended, so each is sent once: from the last snapshot's count on.
        first = 0
        while (snapshot := self._next_snapshot()) is not None:
            records, n_records = [], first
            if snapshot.ledger is not None and self._server.ledger is not None:
                n_records = snapshot.ledger.n_records
                records = self._server.ledger.records[first:n_records]
            payload = {"generation": self._generation, "first": first, "blob": (snapshot, records)}
            connection.call("keep", payload)
            first = n_records
            self._n_sent += 1
            self._server.shipped()


def pack_fit(fit: FitSpec) -> bytes:
    """Return a fit as bytes, which are unpacked in a task's own thread."""
    return bytes(pickle.dumps((run_trainer, fit)))


def load_fit_on_worker(fit: FitSpec | bytes) -> bool:
    """Load a fit and its backend, so that the worker imports their modules."""
    spec: FitSpec = pickle.loads(fit)[1] if isinstance(fit, bytes) else fit
    get_fit_backend(spec)
    if not spec.work.remembers_course:
        spec.make_start_state(slice(0, 1))  # the model's own imports
    return True
