"""Costs for the simulator on this machine, measured on the package's own parts."""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks._common import logistic_rows
from benchmarks.simulator.server import make_server, run_server
from daskml_dist.comm.base import ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.channels import Inbox, Outbox
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import RemoteConnection
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.planning.simulator import OperationCosts
from daskml_dist.policies import Synchronous
from daskml_dist.ps.messages import ServerRequest

__all__ = ["measure", "step_seconds"]

_SMALL, _REPEATS, _IN_FLIGHT = 128, 5, 100


def measure(features: int, batch: int, large: int = 500_000) -> OperationCosts:
    """Measure costs of steps with `batch` rows and `features` float64 parameters, over loopback.

    Parameters
    ----------
    features, batch : int
    large : int
        Number of parameters with which costs per byte are measured.
    """
    latency, message, apply, bandwidth = _over_sockets(large)
    step = step_seconds(features, batch)
    return OperationCosts(step, message, apply, _add(large), _peer_seconds(), latency, bandwidth)


def _median(run: Callable[[], Any], count: int = 1) -> float:
    """Return the median seconds of one of the `count` operations that `run` performs."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def step_seconds(features: int, batch: int) -> float:
    """Return the seconds of a trainer's step without communication: batch, gradient, update."""
    X, y = logistic_rows(batch * 16, features, "float64")
    clf = SGDClassifier(
        policy="average", batch_size=batch, tol=None, max_iter=_REPEATS + 1, random_state=0
    ).fit(X, y)
    return float(statistics.median(r["seconds"] / r["steps"] for r in clf.history_.records[1:]))


def _add(n: int) -> float:
    """Return the seconds per byte to add one more push to the sum of a round."""

    def round_seconds(lanes: int) -> float:
        server, values = make_server(Synchronous(), lanes, n), np.ones((n, 1))
        clocks = iter(range(1, 100))

        def everyone() -> None:
            clock = next(clocks)
            for lane in range(lanes):
                request = ServerRequest((lane,), 0, clock, rows=1.0, values=values)
                server.exchange(request, lambda reply: None)

        everyone()
        return _median(everyone)

    return max(round_seconds(5) - round_seconds(1), 0.0) / 4 / n / 8


def _peer_seconds() -> float:
    """Return the seconds to send and read a small message, for the work on both ends."""
    left, right = socket.socketpair()
    out, inbox = Outbox(left, WaitBound()), Inbox(right, WaitBound())
    data, target = memoryview(bytes(1024)), memoryview(bytearray(1024))

    def messages() -> None:
        for _ in range(_IN_FLIGHT):
            out.send([data])
            inbox.read_into(target)

    try:
        return _median(messages, _IN_FLIGHT)
    finally:
        out.close()
        inbox.close()


# --- a server in another process -------------------------------------------------------------


@contextlib.contextmanager
def _connection(n: int) -> Iterator[RemoteConnection]:
    context, secret = multiprocessing.get_context("spawn"), secrets.token_bytes(16)
    ours, theirs = context.Pipe()
    process = context.Process(target=run_server, args=(theirs, secret, n, _IN_FLIGHT), daemon=True)
    process.start()
    try:
        if not ours.poll(60):
            raise TimeoutError("The server of the calibration did not start within a minute.")
        endpoint = Endpoint("", "127.0.0.1", ours.recv())
        credentials = Credentials(secret, settings=ConnectionSettings(False))
        connection = RemoteConnection(
            endpoint, credentials, WaitBound(60), MessageBounds("f8", n, 1, _IN_FLIGHT)
        )
        yield connection
        connection.close()
        ours.send("end")
        process.join(10)
    finally:
        process.kill()
        process.join(10)


def _over_sockets(n: int) -> tuple[float, float, float, float]:
    """Measure latency, a server's work per message and per byte of an update, and bytes/s."""
    with _connection(n) as connection:
        clock = iter(range(1, 100_000))
        few, every = np.ones((_SMALL, 1)), np.ones((n, 1))
        index = np.arange(_SMALL)

        def send(lane: int) -> None:
            connection.send(
                ServerRequest(
                    (lane,), 0, next(clock), rows=1.0, values=few, index=index, pull_index=index
                )
            )

        def alone() -> None:
            for _ in range(_IN_FLIGHT):
                send(0)
                connection.receive(0)

        def together() -> None:
            for lane in range(_IN_FLIGHT):
                send(lane)
            for lane in range(_IN_FLIGHT):
                connection.receive(lane)

        def pull() -> None:
            connection.send(ServerRequest((0,), 0, next(clock)))
            connection.receive(0)

        def push_and_pull() -> None:
            connection.send(ServerRequest((0,), 0, next(clock), rows=1.0, values=every))
            connection.receive(0)

        alone()
        there_and_back, message = _median(alone, _IN_FLIGHT), _median(together, _IN_FLIGHT)
        # The allocators of both processes settle after a few large arrays.
        for _ in range(_REPEATS):
            push_and_pull()
        pulled, both = _median(pull), _median(push_and_pull)
    one_way = max(pulled - there_and_back, 1e-6)
    apply = max(both - pulled - one_way, 0.0) / n / 8
    return max((there_and_back - message) / 2, 1e-6), message, apply, n * 8 / one_way
