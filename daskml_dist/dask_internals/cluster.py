"""Clients, schedulers and workers of distributed: functions that use undocumented parts of them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dask._expr import LLGExpr
from dask._task_spec import Task, parse_input
from dask.base import annotate
from distributed import Actor, Client, Future, Worker, WorkerPlugin, wait
from distributed.comm.addressing import get_address_host
from distributed.scheduler import KilledWorker
from distributed.spans import SpanMetadata
from distributed.system import MEMORY_LIMIT

from daskml_dist.errors import SchedulerLostError

__all__ = [
    "MEMORY_LIMIT",
    "LoopbackWorker",
    "count_actors",
    "evict_worker",
    "find_actor",
    "find_failed_task",
    "find_in_memory",
    "find_unmet_demands",
    "finish_retirement",
    "flush_client",
    "forget_before_closing",
    "forget_closed_nodes",
    "get_address_host",
    "is_client_of_worker",
    "is_dask_error",
    "is_killed_worker",
    "is_process_busy",
    "is_task_wanted",
    "is_unread_graph",
    "list_workers",
    "make_actor_proxy",
    "measure_memory",
    "release_stuck_tasks",
    "renew_client_timers",
    "renew_scheduler_timers",
    "renew_timers",
    "request_data",
    "run_before_closing",
    "shorten_lost_connections",
    "silence_batch_timeouts",
    "submit_tasks",
    "wait_for_actor",
    "wait_until_connected",
    "wait_until_made",
]

#: Seconds that a nanny may take to kill its worker.
_NANNY_SECONDS = 2.0
#: Seconds after which a worker is removed even if its nanny has not answered yet.
_NANNY_HEAD_START = 0.2
#: Seconds between a nanny's two measurements of its worker's process, and CPU seconds in between
#: from which the process counts as busy: two kernel ticks.
_LOOKS_APART, _BUSY_CPU_SECONDS = 0.2, 0.02
#: Seconds for which a retirement is retried.
_RETIRE_SECONDS = 5.0

#: Seconds that a client may take to connect, and between two looks.
_CONNECT_SECONDS, _CONNECT_LOOK_SECONDS = 10.0, 0.01

#: States of a task that a worker has run.
_ENDED_STATES = {"memory", "error"}
#: Seconds between two checks of the tasks, and the same as a share of the seconds waited so far.
_SHORTEST_LOOK_SECONDS, _LOOK_SHARE = 0.0003, 0.05


def is_dask_error(error: BaseException) -> bool:
    """Return whether an error is Dask's own, caused by a lost worker or task."""
    return type(error).__module__.startswith("distributed")


def is_unread_graph(error: BaseException) -> bool:
    """Return whether the scheduler could not unpickle tasks, as without a module that they name."""
    return "deserialization of the task graph" in str(error)


def is_killed_worker(error: BaseException | None) -> bool:
    """Return whether Dask gave up a task because several workers that had it died.

    The task need not be the cause of their death.
    """
    return isinstance(error, KilledWorker)


def wait_until_connected(client: Any) -> None:
    """Wait until a client that another thread is making has connected.

    The tasks of a worker share one client, which the first of them makes; the others may get it
    before it has connected.
    """
    end = time.monotonic() + _CONNECT_SECONDS
    while client.status in {"newly-created", "connecting"} and time.monotonic() < end:
        time.sleep(_CONNECT_LOOK_SECONDS)


def list_workers(client: Any) -> dict[str, dict[str, Any]]:
    """Return facts of each worker that the scheduler knows, by address.

    `Client.scheduler_info` has the same facts, but may return the result of a concurrent request by
    a callback of the client: a list without workers.
    """
    # A client that reconnects would wait for the scheduler, which then has no record of its tasks.
    if client.status != "running":
        raise SchedulerLostError(
            "The connection to the Dask scheduler was lost, so the fit cannot continue. Start "
            "the cluster again and fit again; with Checkpoint(path, resume=True) it resumes "
            "from the last checkpoint."
        )
    identity: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
    return dict(identity["workers"])


class _BeforeClosing(WorkerPlugin):
    """Plugin that runs a coroutine when its worker begins to close but can still run tasks."""

    def __init__(self, prepare: Callable[[], Awaitable[None]]) -> None:
        self._prepare = prepare

    async def teardown(self, worker: Any) -> None:
        if worker.status.name in {"closing", "closing_gracefully"}:
            await self._prepare()


def run_before_closing(worker: Any, name: str, prepare: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine before a worker closes, by itself or on request, but not if it is killed."""

    async def add() -> None:
        if name not in worker.plugins and worker.status.name == "running":
            await worker.plugin_add(_BeforeClosing(prepare), name=name)

    worker.loop.add_callback(add)


class LoopbackWorker(Worker):
    """Worker whose HTTP server only this machine can reach; by default, any host can."""

    def start_http_server(
        self, routes: Any, dashboard_address: Any, *args: Any, **options: Any
    ) -> None:
        start: Any = super().start_http_server
        start(routes, "127.0.0.1:0", *args, **options)


def count_actors(worker: Any, run_id: str) -> int:
    """Return the number of actors of a run on this worker."""
    actors = list(worker.state.actors.values())
    return sum(getattr(actor, "run_id", None) == run_id for actor in actors)


async def forget_before_closing(worker: Any, name: str) -> None:
    """Undo :func:`run_before_closing`."""
    if name in worker.plugins:
        await worker.plugin_remove(name)


def is_task_wanted(worker: Any, key: Any) -> bool:
    """Return whether the result of a task that runs on this worker is still needed.

    A running task cannot be stopped, but its client may have cancelled it or disconnected.
    """
    task = worker.state.tasks.get(key)
    return task is not None and task.state in {"executing", "long-running"}


def find_in_memory(worker: Any, keys: list[Any]) -> dict[Any, Any]:
    """Return the data of those keys that a worker has in memory."""
    # With spilling, the worker's data is a buffer with two levels, `fast` and `slow`.
    data = getattr(worker.data, "fast", worker.data)
    return {key: data[key] for key in keys if key in data}


def find_actor(worker: Any, key: Any) -> Any:
    """Return the actor object that a worker holds under a key; None if there is none."""
    return worker.state.actors.get(key)


async def wait_until_made(worker: Any, keys: Collection[Any], seconds: float) -> None:
    """Wait until a worker has run some tasks, which may not have reached it yet.

    Dask reports the end of a task in batches, through the scheduler; the worker's own state is
    immediate.
    """
    since = time.monotonic()
    while (waited := time.monotonic() - since) < seconds:
        tasks = [worker.state.tasks.get(key) for key in keys]
        if all(task is not None and task.state in _ENDED_STATES for task in tasks):
            return
        await asyncio.sleep(_SHORTEST_LOOK_SECONDS + _LOOK_SHARE * waited)


def is_client_of_worker(client: Any) -> bool:
    """Return whether a worker of this process created a client for its tasks."""
    return client in Worker._initialized_clients


def request_data(client: Any, key: Any) -> Any:
    """Return a future for data that some worker holds, by its key.

    `Future(key)` alone sends nothing to the scheduler, and would wait for ever.
    """
    future: Future[Any] = Future(key, client)
    client._send_to_scheduler({"op": "client-desires-keys", "keys": [key], "client": client.id})
    return future


def wait_for_actor(client: Any, future: Any, cls: type, address: str, timeout: float) -> Any:
    """Return the proxy of an actor that was submitted to a worker, once it is there.

    The result of its future is the same, but needs two more messages.
    """
    with client.as_current():
        wait([future], timeout=timeout)
        if future.status != "finished":
            return future.result()
    return make_actor_proxy(client, future.key, cls, address)


def make_actor_proxy(client: Any, key: Any, cls: type, address: str) -> Any:
    """Return the proxy of an actor that is known to be on a worker."""
    with client.as_current():
        return Actor(cls, address, key)


def submit_tasks(
    client: Any,
    tasks: Mapping[Any, tuple[Callable[..., Any], Iterable[Any]]],
    workers: Mapping[Any, str | None],
    actors: Collection[Any] = (),
) -> dict[Any, Any]:
    """Submit tasks that do not depend on each other, in one message.

    `Client.submit` sends one message per task, and the scheduler forwards them to each worker in
    batches of 5 ms.
    """
    graph = {key: Task(key, f, *map(parse_input, args)) for key, (f, args) in tasks.items()}
    if not graph:
        return {}
    # An empty list of workers means any worker.
    pins = {key: [] if (worker := workers.get(key)) is None else [worker] for key in graph}
    # If the value is callable, the scheduler calls it with each key.
    with annotate(workers=pins.__getitem__):
        futures: dict[Any, Any] = client._graph_to_futures(
            LLGExpr(graph, _determ_token=uuid.uuid4().hex),
            list(graph),
            internal_priority={key: number for number, key in enumerate(graph)},
            actors=tuple(actors) or None,
            span_metadata=SpanMetadata(collections=[{"type": "Future"}]),
        )
    return futures


def evict_worker(client: Any, address: str) -> None:
    """Make the scheduler remove a worker that does not answer; return at once.

    The scheduler does so by itself only after minutes (``distributed.scheduler.worker-ttl``). Until
    then all data of this worker counts as available, and tasks that need it wait.
    """

    async def kill(dask_worker: Any) -> None:  # on the nanny, which then starts a new worker
        await dask_worker.process.process.kill()

    async def ask_nanny() -> None:
        call = client.run(kill, workers=[address], nanny=True, on_error="return")
        await asyncio.wait_for(call, _NANNY_SECONDS)

    async def remove(dask_scheduler: Any) -> None:
        # "Expected", so that its tasks are not suspected of having killed it.
        await dask_scheduler.remove_worker(
            address, stimulus_id="daskml-dist-lease-ran-out", expected=True, close=False
        )

    async def ask_and_remove() -> None:
        # The nanny's address is known only while the worker is listed. The nanny of an unreachable
        # host never answers, but until the worker is removed, tasks are still assigned to it and
        # the fit waits.
        asking = asyncio.ensure_future(ask_nanny())
        await asyncio.wait({asking}, timeout=_NANNY_HEAD_START)
        with suppress(Exception):
            removing: Any = client.run_on_scheduler(remove)  # a coroutine in the client's loop
            await removing
        with suppress(Exception):
            await asking

    def run() -> None:
        with suppress(Exception):
            client.sync(ask_and_remove)

    threading.Thread(target=run, daemon=True, name="daskml-evict").start()


async def is_process_busy(client: Any, address: str) -> bool:
    """Return whether a worker's process computes, or waits for a core or a disk, by its nanny.

    False if it is stopped, asleep or gone, or if no nanny answers. Call this in the client's event
    loop.
    """

    # Pickled by value, since the nanny's process may not have loaded this package.
    async def look(dask_worker: Any) -> bool:
        import psutil  # a dependency of distributed

        if not dask_worker.pid:
            return False
        with suppress(psutil.Error):
            process = psutil.Process(dask_worker.pid)
            start_seconds = sum(process.cpu_times()[:2])
            await asyncio.sleep(_LOOKS_APART)
            if sum(process.cpu_times()[:2]) - start_seconds >= _BUSY_CPU_SECONDS:
                return True
            # On a busy machine the process may wait longer than that for a core. Linux shows this
            # per thread: the main thread sleeps while another one holds Python's lock. A thread in
            # disk sleep (D) waits for a slow file system, or for memory that was swapped out.
            for thread in Path(f"/proc/{process.pid}/task").glob("*/stat"):
                with suppress(OSError):  # a thread that has just ended
                    if thread.read_text().rpartition(")")[2].split()[0] in ("R", "D"):
                        return True
        return False

    answers: dict[str, bool] = {}
    with suppress(Exception):
        running: Any = client.run(look, workers=[address], nanny=True)
        answers = await running
    return answers.get(address, False)


def find_failed_task(client: Any, key: Any) -> Any | None:
    """Return the key of the task whose exception ended another, according to the scheduler."""

    def blamed(dask_scheduler: Any) -> Any | None:
        task = dask_scheduler.tasks.get(key)
        # A task that failed because another one did has the other one's key.
        blame = task and (task.exception_blame or task)
        return blame and blame.key

    with suppress(Exception):  # the scheduler is gone, or of another version
        return client.run_on_scheduler(blamed)
    return None


def release_stuck_tasks(
    client: Any,
    keys: list[Any],
    killed: list[Any] | None = None,
    *,
    moves_pinned_tasks: bool = True,
) -> None:
    """Let tasks start on other workers if theirs do not start them, and retry some failed tasks.

    A task waits for ever if it is pinned to workers that left or are paused, or if it is assigned
    to a paused worker.
    """

    def is_begun(worker: Any, ts: Any) -> bool:
        return ts in worker.executing or ts in worker.long_running

    def free(dask_scheduler: Any) -> None:
        stimulus = "daskml-dist-free-tasks"
        tasks, running = dask_scheduler.tasks, dask_scheduler.running
        running_addresses = {worker.address for worker in running}
        moves: dict[Any, str] = {}
        # The tasks and all their dependencies that are not in memory.
        stack, visited = [tasks[key] for key in keys if key in tasks], set()
        while stack:
            ts = stack.pop()
            if ts in visited or ts.state == "memory":
                continue
            visited.add(ts)
            stack.extend(ts.dependencies)
            if (
                moves_pinned_tasks
                and ts.worker_restrictions
                and not running_addresses.intersection(ts.worker_restrictions)
            ):
                dask_scheduler.set_restrictions({ts.key: None})
                if ts.state == "no-worker":
                    moves[ts.key] = "processing"
            worker = ts.processing_on
            # A paused worker still finishes the tasks that it has started.
            if worker and worker not in running and not is_begun(worker, ts):
                moves[ts.key] = "released"
        dask_scheduler.transitions(moves, stimulus)
        # Tasks that were assigned to workers that died are suspected; after `allowed-failures` Dask
        # gives them up. Resetting the count lets them be retried.
        erred = [key for key in killed or () if key in tasks and tasks[key].state == "erred"]
        if erred:
            for ts in visited:
                ts.suspicious = 0
            dask_scheduler.stimulus_retry(erred)

    if keys:
        with suppress(OSError):  # the scheduler is gone: the next membership check reports it
            client.run_on_scheduler(free)


def find_unmet_demands(client: Any, keys: list[Any]) -> str:
    """Return what tasks ask for that no worker offers, as text; empty while some of them run.

    Tasks ask for resources and workers by `dask.annotate`, and Dask waits for these for ever.
    """

    def find(dask_scheduler: Any) -> str:
        tasks, demands = dask_scheduler.tasks, set()
        if not dask_scheduler.unrunnable:
            return ""
        # The tasks and all their dependencies that are not in memory.
        stack, visited = [tasks[key] for key in keys if key in tasks], set()
        while stack:
            ts = stack.pop()
            if ts in visited or ts.state == "memory":
                continue
            if ts.processing_on:
                return ""
            visited.add(ts)
            stack.extend(ts.dependencies)
            if ts not in dask_scheduler.unrunnable:
                continue
            demanded = ts.resource_restrictions or {}
            allowed = {*(ts.worker_restrictions or ()), *(ts.host_restrictions or ())}
            if not any(
                all(worker.resources.get(name, 0) >= demanded[name] for name in demanded)
                for worker in dask_scheduler.workers.values()
            ):
                demands.add(f"no worker has the resources {dict(demanded)}")
            elif allowed and not dask_scheduler.valid_workers(ts):
                demands.add(f"no worker is one of {sorted(allowed)}")
        return ", and ".join(sorted(demands))

    with suppress(Exception):  # the scheduler is gone, or of another version
        return str(client.run_on_scheduler(find))
    return ""


def shorten_lost_connections() -> None:
    """Make this process log the loss of a scheduler in one line, from now on.

    By default Dask logs fifty lines, for a worker whose heartbeat fails while its cluster closes,
    and for a client that is closed while it reconnects. Repeated calls have no effect.
    """
    for name in ("distributed.worker", "distributed.client"):
        logging.getLogger(name).addFilter(_shorten_record)


#: Start of a worker's log message for a failed heartbeat.
HEARTBEAT_FAILED = "Failed to communicate with scheduler during heartbeat"


def _shorten_record(record: logging.LogRecord) -> bool:
    """Remove the traceback from a record of a lost connection; drop that of a cancelled attempt."""
    error = record.exc_info[1] if record.exc_info else None
    if record.name == "distributed.client":
        return not isinstance(error, asyncio.CancelledError)
    if isinstance(error, OSError) and record.getMessage().startswith(HEARTBEAT_FAILED):
        record.msg, record.args = f"{HEARTBEAT_FAILED}: the scheduler is gone.", ()
        record.exc_info = record.exc_text = None
    return True


def forget_closed_nodes() -> None:
    """Free the schedulers and workers of this process that were closed.

    A cache of distributed holds a method of each of them, and with it half a megabyte, for ever.
    """
    with suppress(ImportError, AttributeError):  # another version of distributed
        from distributed.core import _expects_comm

        _expects_comm.cache_clear()


def silence_batch_timeouts(loop: Any) -> None:
    """Let our own loop end while batched streams of messages wait for their deadlines.

    If the loop ends in the same iteration in which a deadline expires, asyncio would report it to
    the user.
    """

    def handle(asyncio_loop: Any, context: dict[str, Any]) -> None:
        is_wait = type(context.get("future")) is asyncio.Future  # rather than a task
        if not (is_wait and isinstance(context.get("exception"), TimeoutError)):
            asyncio_loop.default_exception_handler(context)

    loop.asyncio_loop.set_exception_handler(handle)


def flush_client(client: Any) -> None:
    """Send the client's pending messages to the scheduler at once; Dask sends them every 10 ms."""

    def send() -> None:
        with suppress(AttributeError):
            stream = client.scheduler_comm
            stream.next_deadline = None
            stream.waker.set()

    client.loop.add_callback(send)


def renew_timers(node: Any) -> int:
    """Restart the timers of a worker, a scheduler or a client whose clock was set back.

    Tornado's periodic callbacks, including heartbeats, and Dask's batches of messages wait for a
    time of the wall clock. If the clock is set back, they wait longer by that amount, perhaps
    longer than the scheduler waits for a heartbeat. Call this in the node's event loop; it returns
    the number of restarted timers.
    """
    now, n_renewed = time.time(), 0
    # A client stores its timers under a private name.
    timers = node._periodic_callbacks if isinstance(node, Client) else node.periodic_callbacks
    for timer in list(timers.values()):
        delay = getattr(timer, "_next_timeout", now) - now
        # The next call of a timer is at most one interval in the future.
        if timer.is_running() and delay > 2 * timer.callback_time / 1e3:
            timer.stop()
            timer.start()
            n_renewed += 1
    for stream in _list_message_streams(node):
        if (stream.next_deadline or now) - now > 2 * stream.interval:
            stream.next_deadline = None
            stream.waker.set()
            n_renewed += 1
    return n_renewed


def _list_message_streams(node: Any) -> list[Any]:
    """Return the streams in which a worker, a scheduler or a client sends messages in batches."""
    if isinstance(node, Client):
        streams = [node.scheduler_comm]
    elif isinstance(node, Worker):
        streams = [node.batched_stream]
    else:
        streams = [*node.stream_comms.values(), *node.client_comms.values()]
    return [stream for stream in streams if stream is not None]


def renew_client_timers(client: Any) -> None:
    """Restart the timers of a client whose clock was set back; return at once."""
    client.loop.add_callback(renew_timers, client)


def renew_scheduler_timers(client: Any) -> None:
    """Restart the timers of the scheduler, whose clock was set back."""

    def renew(dask_scheduler: Any) -> None:
        renew_timers(dask_scheduler)

    with suppress(OSError):  # the scheduler is gone: the next membership check reports it
        client.run_on_scheduler(renew)


def finish_retirement(client: Any, address: str) -> None:
    """Finish a retirement that one of our actors prevented; return at once."""

    def run() -> None:
        deadline = time.monotonic() + _RETIRE_SECONDS
        with suppress(Exception):
            # The actor ends in the background.
            while not client.retire_workers([address]) and time.monotonic() < deadline:
                time.sleep(0.1)

    threading.Thread(target=run, daemon=True, name="daskml-retire").start()


def measure_memory(worker: Any) -> tuple[int, int]:
    """Return the bytes that a worker's process has in memory, and that Dask has spilled to disk."""
    memory = worker.monitor.get_process_memory()
    spilled = getattr(getattr(worker.data, "spilled_total", None), "disk", 0)
    return int(memory), int(spilled)
