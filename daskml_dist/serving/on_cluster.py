"""Prediction of requests with many rows by the workers of a Dask cluster.

Two event loops take part. The server's loop decides which requests go to the cluster, and awaits
their futures; a loop in a separate thread has the Dask client, whose messages with many rows would
block other requests. `Cluster` has a section for each, and they communicate by
`run_coroutine_threadsafe` and `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
import uuid
import weakref
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError, RequestError
from daskml_dist.inference.request_rows import RequestRows, count_rows, join_request_rows
from daskml_dist.serving.batching import check_length

_LOG = logging.getLogger("daskml_dist.serving")
#: Seconds of prediction in process from which a request goes to the cluster: several times the
#: transfer time.
_MIN_CLUSTER_SECONDS = 0.1
#: Minimum rows of a request from which a model's speed is measured, and rows used for that.
_MIN_MEASURED_ROWS, _MEASURED_ROWS = 1000, 512
#: Times that a request is sent if the cluster loses it, for example when the scheduler restarts.
_MAX_TRIES = 3
#: Seconds: limit of a connection attempt, pause between attempts, interval of connection checks,
#: limit of closing.
_CONNECT, _RETRY_SECONDS, _CHECK_SECONDS, _CLOSE_SECONDS = 5.0, 1.0, 0.2, 5.0
#: Log messages.
_UNREAD = "Workers of %s cannot load model %s"
_AWAY = "No cluster at %s (%s: %s): large requests get status 503 until there is one"
_clock = time.perf_counter


class Cluster:
    """Dask cluster that predicts requests with many rows, with a client in a separate thread.

    A model is a Dask task that unpickles it, keyed by a hash of the pickle. So a worker that
    predicts with it holds it once for all processes of all servers; the scheduler recomputes it if
    a worker is lost, and forgets it once no server serves the version any more. A request is one
    task that contains its rows. Requests that the cluster cannot answer get status 503; other
    requests never wait for them.

    Parameters
    ----------
    address : str
        Address of the scheduler, such as ``tcp://10.0.0.1:8786``. With ``tls://`` the certificates
        are those of Dask's configuration (``distributed.comm.tls``), or of `security`.
    min_rows : int, optional
        Rows from which a request is predicted on the cluster. None: the number for which the model
        takes 0.1 s in process, measured with 512 rows of its first request of 1,000 rows or more.
    security : distributed.Security, optional
    within : float, default=60.0
        Seconds that a request may take on the cluster, including the start of workers.
    max_waiting : int, default=64
        Requests on the cluster at a time at most, since the rows of all are in memory.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.
    """

    def __init__(
        self,
        address: str,
        *,
        min_rows: int | None = None,
        security: Any = None,
        within: float = 60.0,
        max_waiting: int = 64,
    ) -> None:
        if "://" not in address:
            raise InvalidParameterError(
                f"scheduler={address!r}: use the address of a Dask scheduler, such as "
                "tcp://10.0.0.1:8786."
            )
        if min_rows is not None and min_rows < 1:
            raise InvalidParameterError(f"cluster_rows={min_rows}: use an integer >= 1.")
        self.address, self.min_rows = address, min_rows
        # Seconds that a row takes in process, by predictor.
        self._row_seconds: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._security, self._timeout, self._max_waiting = security, within, max_waiting
        self._waiting = 0
        self._metrics: Any = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._tried: asyncio.Event  # set after the first attempt to connect
        self._client: Any = None
        # Models on the cluster, by the predictor's `id`: a weak reference to the predictor, as
        # another object may have its `id` later; the future of the model, which keeps it there; and
        # the BLAS threads of this process. Only the thread's loop accesses it.
        self._held_models: dict[int, tuple[weakref.ref[Any], Any, int]] = {}

    # --- in the server's loop ------------------------------------------------------------------

    def start(self, metrics: Any) -> None:
        """Start the thread, which connects, and reconnects whenever the connection is lost."""
        connecting = threading.Event()
        self._metrics = metrics
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._stay_connected(connecting)),
            name="daskml_dist-cluster",
            daemon=True,
        )
        self._thread.start()
        connecting.wait()

    def close(self) -> None:
        """Release the models on the cluster and disconnect."""
        if self._thread is None:
            return
        self._call(self._stop.set)
        self._thread.join(3 * _CLOSE_SECONDS)
        self._thread = None

    def takes(self, predictor: Any, rows: RequestRows) -> bool:
        """Return whether rows are predicted on the cluster."""
        n_rows = count_rows(rows)
        if self.min_rows is not None:
            return n_rows >= self.min_rows
        if n_rows < _MIN_MEASURED_ROWS:
            return False
        seconds = self._row_seconds.get(predictor)
        if seconds is None:
            # Rows that the model refuses are reported by the prediction in process.
            try:
                seconds = self._row_seconds[predictor] = _measure_row_seconds(predictor, rows)
            except Exception:
                return False
        return n_rows * seconds >= _MIN_CLUSTER_SECONDS

    def ask(self, served: Any, method: Any, rows: RequestRows) -> asyncio.Future[NDArray[Any]]:
        """Send a request to the cluster; return the future of its answers.

        `method` is that of a predictor, or a function of the model that makes a predictor.
        """
        if self._waiting >= self._max_waiting:
            raise _try_later_error(
                f"{self._waiting} requests are already on the cluster: try again later.", 1
            )
        self._waiting += 1
        answer = asyncio.ensure_future(self._predict_and_observe(served, method, rows))
        answer.add_done_callback(self._forget)
        return answer

    async def _predict_and_observe(
        self, served: Any, method: Any, rows: RequestRows
    ) -> NDArray[Any]:
        """Return the cluster's answers, and record how long they took."""
        began = _clock()
        predicted = asyncio.run_coroutine_threadsafe(
            self._predict(served, method, rows), self._loop
        )
        answers: NDArray[Any] = await asyncio.wrap_future(predicted)
        check_length(answers, count_rows(rows))
        seconds = _clock() - began
        self._metrics.observe_cluster(served.name, str(served.version), seconds)
        return answers

    def _forget(self, answer: asyncio.Future[NDArray[Any]]) -> None:
        """Stop counting a request as waiting; retrieve its exception, or asyncio would log it."""
        self._waiting -= 1
        if not answer.cancelled():
            answer.exception()

    # --- in the thread's loop ------------------------------------------------------------------

    async def _stay_connected(self, started: threading.Event) -> None:
        """Connect, and reconnect after a loss, until `close`: the thread's main coroutine."""
        self._loop = asyncio.get_running_loop()
        self._stop, self._tried = asyncio.Event(), asyncio.Event()
        started.set()
        import dask

        # Only the first failure of a series of attempts is logged.
        has_failed = False
        # Dask warns of large graphs, but rows are used only once and so belong in their tasks.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            while not self._stop.is_set():
                client = await self._connect(quiet=has_failed)
                has_failed = client is None
                if client is not None:
                    await self._wait_until_lost(client)
                else:
                    await self._pause(_RETRY_SECONDS)

    async def _connect(self, quiet: bool) -> Any:
        """Return a client of the cluster; None if no attempt succeeds, logged unless `quiet`."""
        from distributed import Client

        client = None
        try:
            client = Client(
                self.address, asynchronous=True, set_as_default=False, security=self._security,
                timeout=_CONNECT, name="daskml_dist-serving",
            )  # fmt: skip
            await client
        except Exception as error:
            # Errors of many classes: sockets, TLS, incompatible versions of Dask.
            if not quiet:
                _LOG.warning(_AWAY, self.address, type(error).__name__, error)
            if client is not None:
                await _close_client(client)
            return None
        else:
            _LOG.info("Large requests are sent to %s", self.address)
            return client
        finally:
            self._client = client if client is not None and client.status == "running" else None
            self._tried.set()

    async def _wait_until_lost(self, client: Any) -> None:
        """Wait until the connection is lost or `close` is called; then drop client and models."""
        while client.status == "running" and not self._stop.is_set():
            await self._pause(_CHECK_SECONDS)
        self._client = None
        if not self._stop.is_set():
            _LOG.warning("Lost the cluster at %s; reconnecting", self.address)
        for number in list(self._held_models):
            self._release(number)
        await _close_client(client)

    async def _pause(self, seconds: float) -> None:
        """Wait some seconds, or until `close`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _predict(self, served: Any, method: Any, rows: Any) -> NDArray[Any]:
        """Return the workers' answers to the rows of a request; raise 503 without workers."""
        from daskml_dist.inference.request_rows import predict_on_worker

        # Requests may arrive before the first connection attempt has ended.
        await self._tried.wait()
        predictor = served.predictor
        for _ in range(_MAX_TRIES):
            client = self._client
            if client is None or client.status != "running":
                break
            model, n_threads = self._send_model(client, predictor)
            # A unique key: equal requests must not share a result.
            key = f"daskml_dist-predict-{uuid.uuid4().hex}"
            task = client.submit(predict_on_worker, model, method, rows, n_threads, key=key)
            try:
                async with asyncio.timeout(self._timeout) as limit:
                    answers: NDArray[Any] | Exception = await task
            except CancelledError:  # the cluster has forgotten it, or is lost
                self._release(id(predictor))
                await asyncio.sleep(_CHECK_SECONDS)
            except Exception as error:
                self._raise_if_lost(error, limit.expired(), served, model)
                raise  # of the model
            finally:
                task.release()
            if isinstance(answers, Exception):
                raise answers  # caused by these rows
            return answers
        raise _try_later_error(
            f"The cluster at {self.address} is not reachable, so large requests cannot be "
            "answered: try again later, or send fewer rows at a time.",
            5,
        )

    def _raise_if_lost(
        self, error: Exception, is_late: bool, served: Any, model_future: Any
    ) -> None:
        """Raise status 503 if the cluster made a request fail; return if its rows did."""
        from daskml_dist.dask_internals.cluster import is_killed_worker

        # A model that failed to load stays failed on the cluster: the next request sends it again.
        is_lost = model_future.status == "error"
        if is_lost:
            self._release(id(served.predictor))
        if is_late and isinstance(error, TimeoutError):
            message = (
                f"No worker of {self.address} answered within {self._timeout:g} s: try again "
                "later, send fewer rows at a time, or add workers."
            )
        elif is_killed_worker(error):
            message = (
                f"Workers of {self.address} died while predicting these rows ({error}): send "
                "fewer rows at a time, or give workers more memory."
            )
        elif is_lost:
            _LOG.error(_UNREAD, self.address, served.name, exc_info=error)
            message = (
                f"Workers of {self.address} cannot load the model ({type(error).__name__}): "
                "install the same packages as on this server, or send fewer rows at a time."
            )
        else:
            return
        raise _try_later_error(message, 30 if is_lost else 5) from error

    def _send_model(self, client: Any, predictor: Any) -> tuple[Any, int]:
        """Return the future of a model on the cluster, and this process's number of BLAS threads.

        Workers predict with the same number of threads, since the digits of products depend on it.
        """
        import cloudpickle

        from daskml_dist.inference.request_rows import WorkerModel, count_blas_threads

        number = id(predictor)
        entry = self._held_models.get(number)
        if entry is not None and entry[0]() is predictor:
            return entry[1], entry[2]
        data = cloudpickle.dumps(predictor.model)
        key = f"daskml_dist-model-{hashlib.sha256(data).hexdigest()[:32]}"
        model = client.submit(WorkerModel, data, key=key)

        # Called by the garbage collector, in any thread, once the version is no longer served.
        def release_later(ref: weakref.ref[Any]) -> None:
            self._call(self._release, number, ref)

        n_threads = count_blas_threads()
        self._held_models[number] = (weakref.ref(predictor, release_later), model, n_threads)
        return model, n_threads

    def _release(self, predictor_id: int, ref: weakref.ref[Any] | None = None) -> None:
        """Drop a model from the cluster; with `ref`, only if the reference still matches."""
        entry = self._held_models.get(predictor_id)
        if entry is not None and ref in (None, entry[0]):
            del self._held_models[predictor_id]
            entry[1].release()

    def _call(self, function: Any, *arguments: Any) -> None:
        """Call a function in the thread's loop; a closed loop has nothing left to do."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _measure_row_seconds(predictor: Any, rows: RequestRows) -> float:
    """Return the seconds that a row takes in process, by the faster of two calls."""
    # The first call may load libraries or compile.
    sample: RequestRows = (
        {name: values[:_MEASURED_ROWS] for name, values in rows.items()}
        if isinstance(rows, dict)
        else rows[:_MEASURED_ROWS]
    )
    fastest = float("inf")
    for _ in range(2):
        began = _clock()
        predictor(join_request_rows([sample], predictor))
        fastest = min(fastest, _clock() - began)
    return fastest / count_rows(sample)


async def _close_client(client: Any) -> None:
    """Close a client, whose cluster may be unreachable."""
    with suppress(Exception):
        await asyncio.wait_for(client.close(), _CLOSE_SECONDS)


def _try_later_error(message: str, seconds: int) -> RequestError:
    """Return an error of status 503 that tells clients to retry after some seconds."""
    return RequestError(message, 503, ((b"retry-after", str(seconds).encode()),))
