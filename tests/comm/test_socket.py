"""The socket transport: several lanes on one connection, large frames, refusals."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributed import Security

from daskml_dist.comm.base import ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.channels import EagerOutbox, Inbox, Outbox, tune_socket
from daskml_dist.comm.listener import Credentials, Listener
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import RemoteConnection, serve_connection
from daskml_dist.errors import CommunicationError, SilentPeerError, WaitTimeoutError
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous
from daskml_dist.ps.messages import ServerRequest
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from tests.comm.ranks import PATIENCE, Ranks
from tests.rules import one_group

HOST, SECRET = "127.0.0.1", b"s" * 32
BOUNDS = MessageBounds("float64", 1, 1, 1)


def _server(n_rows: int, n_lanes: int) -> ShardServer:
    rule = one_group(get_optimizer("sgd"), Constant(1.0), Penalty(0, 0), n_rows, 1.0)
    shard = Shard(rule, ShardState(np.zeros((n_rows, 1)), {}))
    return ShardServer(Asynchronous(), list(range(n_lanes)), shard, None, 1)


def test_large_simultaneous_sends_do_not_deadlock() -> None:
    """Parameters exceed the socket buffers, in both directions simultaneously."""
    n_rows, n_lanes = 1_000_000, 4
    server = _server(n_rows, n_lanes)
    bounds = MessageBounds("float64", n_rows, 1, n_lanes)
    answer = partial(serve_connection, server, bounds=bounds)
    listener = Listener(HOST, Credentials(SECRET), on_pair=answer)
    endpoint = Endpoint("", HOST, listener.port)
    connection = RemoteConnection(endpoint, Credentials(SECRET), WaitBound(20), bounds)
    try:
        for clock in (1, 2):
            for lane in range(n_lanes):
                push = np.full((n_rows, 1), -1.0)
                connection.send(ServerRequest((lane,), 0, clock, rows=1.0, values=push))
            pulled = [connection.receive(lane) for lane in range(n_lanes)]
            assert all(reply.values is not None for reply in pulled)
            assert max(reply.version for reply in pulled) == clock * n_lanes
    finally:
        connection.close()
        listener.close()
    assert server.shard is not None
    np.testing.assert_array_equal(server.shard.w, np.full((n_rows, 1), 2.0 * n_lanes))


def test_a_wrong_secret_is_refused() -> None:
    listener = Listener(HOST, Credentials(SECRET), on_pair=lambda up, down: None)
    endpoint = Endpoint("", HOST, listener.port)
    try:
        with pytest.raises(CommunicationError, match="does not know this run's secret"):
            RemoteConnection(endpoint, Credentials(b"other"), WaitBound(10), BOUNDS)
    finally:
        listener.close()


def test_a_refused_connection_names_the_remedy() -> None:
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(CommunicationError, match="allow TCP between"):
        RemoteConnection(Endpoint("", HOST, port), Credentials(SECRET), WaitBound(5), BOUNDS)


class Failing:
    """Socket whose reads and writes fail with an error of the kernel."""

    def __init__(self, number: int | None) -> None:
        self.number = number

    def settimeout(self, seconds: float | None) -> None:
        pass

    def shutdown(self, how: int) -> None:
        pass

    def close(self) -> None:
        pass

    def fail(self, data: Any) -> int:
        raise OSError(self.number, "as the kernel says")

    send = recv_into = sendall = fail


@pytest.mark.parametrize(
    ("number", "silent"),
    [(errno.ETIMEDOUT, True), (errno.EHOSTUNREACH, True), (errno.ECONNRESET, False)],
)
def test_errors_distinguish_a_silent_host_from_a_closed_process(number: int, silent: bool) -> None:
    sock: Any = Failing(number)
    for act in (
        lambda: Inbox(sock, WaitBound(10)).read_into(memoryview(bytearray(8))),
        lambda: Outbox(sock, WaitBound(10)).send([memoryview(bytearray(8))]),
        lambda: EagerOutbox(sock, WaitBound(10)).begin_sending([memoryview(bytearray(8))]),
    ):
        with pytest.raises(CommunicationError) as caught:
            act()
        assert isinstance(caught.value, SilentPeerError) == silent


@pytest.fixture
def eager() -> Iterator[tuple[EagerOutbox, Inbox]]:
    """Provide both ends of a socket that buffers some 100 KB."""
    one, other = socket.socketpair()
    outbox, inbox = EagerOutbox(one, WaitBound(20)), Inbox(other, WaitBound(20))
    yield outbox, inbox
    outbox.close()
    inbox.close()


def _draw_frame(n_bytes: int) -> bytes:
    return np.random.default_rng(n_bytes).bytes(n_bytes)


def test_frames_begin_without_waiting_for_a_reader(eager: tuple[EagerOutbox, Inbox]) -> None:
    """A partially sent frame is completed before frames of other threads, in order."""
    outbox, inbox = eager
    frames = [_draw_frame(n) for n in (10, 40_000, 5_000_000, 3_000_000, 100, 70_000)]
    assert outbox.begin_sending([frames[0][:4], frames[0][4:]])
    assert outbox.begin_sending([frames[1]])
    assert not outbox.begin_sending([frames[2][:2_000_000], b"", frames[2][2_000_000:]])
    assert not outbox.begin_sending([frames[3]])
    assert outbox.bytes_sent == sum(map(len, frames[:4]))

    def finish() -> None:
        outbox.send([frames[4]])
        outbox.finish()
        outbox.begin_sending([frames[5]])
        outbox.finish()

    sender = threading.Thread(target=finish)
    sender.start()
    for frame in frames:
        received = bytearray(len(frame))
        inbox.read_into(memoryview(received))
        assert bytes(received) == frame
    sender.join()


def test_ranks_add_large_arrays_under_tls() -> None:
    """TLS records are sent whole, so both sides must read while they send."""
    pytest.importorskip("cryptography")
    security = Security.temporary()
    ranks = Ranks(
        [False] * 3,
        WaitBound(PATIENCE),
        None,
        listen=security.get_listen_args("worker")["ssl_context"],
        connect=security.get_connection_args("worker")["ssl_context"],
    )
    try:
        for size in (3, 2_000, 20_000, 2_000_000):
            arrays = np.random.default_rng(size).integers(0, 9, (3, size)).astype(float)
            total = arrays.sum(axis=0)
            for found in ranks.each(lambda group, parts=arrays: group.allreduce(parts[group.rank])):
                np.testing.assert_array_equal(found, total)
    finally:
        ranks.close()


def test_the_rest_of_a_frame_times_out_without_a_reader(eager: tuple[EagerOutbox, Inbox]) -> None:
    outbox, inbox = eager
    assert not outbox.begin_sending([_draw_frame(5_000_000)])
    inbox.close()
    with pytest.raises(CommunicationError, match="Lost the connection while sending"):
        outbox.finish()
    with pytest.raises(CommunicationError, match="Lost the connection while sending"):
        outbox.begin_sending([b"more"])


def test_an_error_of_a_wait_is_raised_unchanged() -> None:
    """An error that is its own cause would loop forever when causes are followed."""
    one, other = socket.socketpair()
    full, ended = EagerOutbox(one, WaitBound(20)), EagerOutbox(other, WaitBound(0.0))
    full.begin_sending([_draw_frame(5_000_000)])
    ended.begin_sending([_draw_frame(5_000_000)])
    with pytest.raises(WaitTimeoutError) as caught:
        ended.finish()
    assert caught.value.__cause__ is not caught.value
    full.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone has it")
def test_connections_are_probed() -> None:
    """While the peer's kernel acknowledges keepalive probes, no timeout is raised."""
    reports: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    tune_socket(sock, ConnectionSettings(silence=0.05))
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 500
    wait = WaitBound(0.5, on_silence=lambda: reports.append(True))
    with pytest.raises(WaitTimeoutError):
        Inbox(sock, wait).read_into(memoryview(bytearray(8)))
    assert not reports
    sock.close()
    other.close()
