"""The `socket` transport: connections owned by the trainer's own threads.

A connection is two sockets, one a direction, since a TLS socket must not be read and written at
the same time. Every socket begins with a challenge: the caller proves that it knows the run's
secret (HMAC-SHA256 of a nonce), then names its role and its pair.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike

from daskml_dist.comm.base import SLICE, Endpoint, ServerConnection, Wait, check_status
from daskml_dist.comm.wire import (
    Buffers,
    Reader,
    encode_call,
    encode_reply,
    encode_request,
)
from daskml_dist.errors import (
    CommunicationError,
    DaskMLDistError,
    RunAbortedError,
    WaitTimeoutError,
)
from daskml_dist.ps.messages import Call, Reply, Request
from daskml_dist.ps.server import ParameterServer

__all__ = [
    "Credentials",
    "Inbox",
    "Listener",
    "Outbox",
    "SocketConnection",
    "connect",
    "connect_peer",
    "serve",
]

_NONCE, _DIGEST, _NAME = 16, 32, 16
_UP, _DOWN, _PEER = b"U", b"D", b"P"
_BUFFER = 1 << 16
_BYE = "bye"
#: Seconds that one send may take before the other side counts as gone.
_SEND_TIMEOUT = 60.0


@dataclass(frozen=True)
class Credentials:
    """What a socket of a run needs: the run's secret, and TLS where the cluster has it."""

    secret: bytes
    listen: ssl.SSLContext | None = None
    connect: ssl.SSLContext | None = None


class Outbox:
    """The sending direction. Thread-safe.

    Parameters
    ----------
    sock : socket
    wait : Wait or None
        Bound of each send; None: a minute.
    """

    def __init__(self, sock: socket.socket, wait: Wait | None = None) -> None:
        sock.settimeout(SLICE if wait else _SEND_TIMEOUT)
        self._sock = sock
        self._wait = wait
        self._lock = threading.Lock()
        self.sent = 0

    def send(self, buffers: Buffers) -> None:
        """Send all buffers as one frame."""
        size = sum(len(b) for b in buffers)
        try:
            with self._lock:
                if size <= _BUFFER:
                    self._send_all(buffers[0] if len(buffers) == 1 else b"".join(buffers))
                else:
                    for buffer in buffers:
                        self._send_all(buffer)
                self.sent += size
        except BaseException as error:
            # Half a frame may be out: what follows it could not be read.
            self.close()
            if isinstance(error, OSError) and not isinstance(error, DaskMLDistError):
                raise CommunicationError(_gone("sending to", error)) from error
            raise

    def _send_all(self, buffer: Any) -> None:
        if self._wait is None:
            self._sock.sendall(buffer)
            return
        rest, since = memoryview(buffer), time.monotonic()
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except TimeoutError:
                # The other side does not read: perhaps it is stopped, and replaced meanwhile.
                self._wait.check(since, "the other side of a connection")

    def close(self) -> None:
        """Close the socket; the other side reads an end of file."""
        _close(self._sock)


class Inbox:
    """The receiving direction. One reader.

    Parameters
    ----------
    sock : socket
    wait : Wait or None
        Bound of each read; None waits until the socket is closed.
    """

    def __init__(self, sock: socket.socket, wait: Wait | None) -> None:
        sock.settimeout(SLICE if wait else None)
        self._sock = sock
        self._wait = wait
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._end = 0
        self.received = 0

    def read_into(self, target: memoryview) -> None:
        """Fill `target`."""
        n = len(target)
        self.received += n
        have = min(n, self._end - self._start)
        if have:
            target[:have] = self._buffer[self._start : self._start + have]
            self._start += have
        while have < n:
            if n - have >= _BUFFER:
                have += self._recv(target[have:])
                continue
            self._start, self._end = 0, self._recv(self._buffer)
            take = min(n - have, self._end)
            target[have : have + take] = self._buffer[:take]
            self._start = take
            have += take

    def _recv(self, target: memoryview) -> int:
        since = time.monotonic()
        while True:
            try:
                count = self._sock.recv_into(target)
            except TimeoutError:
                if self._wait is not None:
                    self._wait.check(since, "the other side of a connection")
                continue
            except OSError as error:
                raise CommunicationError(_gone("receiving from", error)) from error
            if count == 0:
                raise CommunicationError(_gone("receiving from", "end of file"))
            return count

    def close(self) -> None:
        """Close the socket."""
        _close(self._sock)


def _gone(doing: str, error: object) -> str:
    return (
        f"Lost the connection while {doing} another worker of the fit ({error}). A worker was "
        "probably closed or killed; look at the workers' logs and fit again."
    )


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _recv_exactly(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise ConnectionError("end of file in the handshake")
        data += part
    return data


class Listener:
    """Accepts the sockets of a run and hands on whole connections.

    Parameters
    ----------
    host : str
        Address to bind to; the port is the system's choice.
    credentials : Credentials
    on_pair : callable, optional
        Called in a thread of its own with the two sockets (to read, to write) of a connection.
    on_peer : callable, optional
        Called with (rank, socket) for the socket of another trainer.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        *,
        on_pair: Callable[[socket.socket, socket.socket], None] | None = None,
        on_peer: Callable[[int, socket.socket], None] | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=512)
        self.port: int = self._server.getsockname()[1]
        self._credentials = credentials
        self._on_pair = on_pair
        self._on_peer = on_peer
        self._half: dict[bytes, tuple[bytes, socket.socket]] = {}
        self._open: list[socket.socket] = []
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True, name="daskml-listen").start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(
                target=self._greet, args=(sock,), daemon=True, name="daskml-serve"
            ).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._credentials.listen is not None:
                sock = self._credentials.listen.wrap_socket(sock, server_side=True)
            nonce = secrets.token_bytes(_NONCE)
            sock.sendall(nonce)
            proof = _recv_exactly(sock, _DIGEST)
            role, name = _recv_exactly(sock, 1), _recv_exactly(sock, _NAME)
            if not hmac.compare_digest(proof, _proof(self._credentials.secret, nonce)):
                raise ConnectionError("wrong secret")
        except OSError:
            _close(sock)
            return
        self._sort(role, name, sock)

    def _sort(self, role: bytes, name: bytes, sock: socket.socket) -> None:
        with self._lock:
            if self._closed:
                _close(sock)
                return
            self._open.append(sock)
            other = None
            if role != _PEER:
                other = self._half.pop(name, None)
                if other is None:
                    self._half[name] = (role, sock)
                    return
        if role == _PEER:
            if self._on_peer is not None:
                self._on_peer(int.from_bytes(name, "big"), sock)
        elif self._on_pair is not None and other is not None:
            up, down = (sock, other[1]) if role == _UP else (other[1], sock)
            self._on_pair(up, down)

    def close(self) -> None:
        """Stop listening and close every socket that came in; may be called twice."""
        with self._lock:
            self._closed = True
            for sock in [self._server, *self._open]:
                _close(sock)
            self._open.clear()


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce, "sha256")


def connect(
    endpoint: Endpoint, credentials: Credentials, role: bytes, name: bytes
) -> socket.socket:
    """Open one socket to a listener and pass its challenge."""
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if credentials.connect is not None:
            sock = credentials.connect.wrap_socket(sock, server_hostname=endpoint.host)
        nonce = _recv_exactly(sock, _NONCE)
        sock.sendall(_proof(credentials.secret, nonce) + role + name)
    except OSError as error:
        raise CommunicationError(
            f"Cannot connect to a worker of the fit at {endpoint.host}:{endpoint.port} ({error}). "
            "Trainers open connections of their own: allow TCP between the workers' hosts."
        ) from error
    return sock


def connect_peer(endpoint: Endpoint, credentials: Credentials, rank: int) -> socket.socket:
    """Open the socket on which trainer `rank` sends to another."""
    return connect(endpoint, credentials, _PEER, rank.to_bytes(_NAME, "big"))


class SocketConnection(ServerConnection):
    """A trainer thread's two sockets to a server in another process.

    Parameters
    ----------
    endpoint : Endpoint
    credentials : Credentials
    wait : Wait
    dtype : dtype of the parameters
    width : int
        Second dimension of the parameters.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials,
        wait: Wait,
        dtype: DTypeLike,
        width: int,
    ) -> None:
        super().__init__()
        name = secrets.token_bytes(_NAME)
        self._out = Outbox(connect(endpoint, credentials, _UP, name), wait)
        self._in = Inbox(connect(endpoint, credentials, _DOWN, name), wait)
        self._reader = Reader(self._in, dtype, width)

    def send(self, request: Request) -> None:
        """Send the request; its arrays are copied by the system."""
        self._out.send(encode_request(request))
        self.bytes_pushed = self._out.sent

    def _read(self) -> Any:
        message = self._reader.read()
        self.bytes_pulled = self._in.received
        return message

    def _next_reply(self) -> Reply:
        reply: Reply = self._read()
        return reply

    def call(self, op: str, payload: Call) -> Call:
        """Make a control call and wait for its answer; answers to pulls are kept meanwhile."""
        self._out.send(encode_call({"op": op, **payload}))
        while isinstance(answer := self._read(), Reply):
            self._keep(answer)
        check_status(answer["status"])
        return dict(answer)

    def close(self) -> None:
        """Say good-bye, so that nobody takes it for a loss, and close both sockets."""
        with contextlib.suppress(CommunicationError, RunAbortedError, WaitTimeoutError):
            self._out.send(encode_call({"op": _BYE}))
        self._out.close()
        self._in.close()


def serve(
    server: ParameterServer,
    up: socket.socket,
    down: socket.socket,
    dtype: DTypeLike,
    width: int,
    on_loss: Callable[[], None] = lambda: None,
) -> None:
    """Read frames of one connection until it ends; answers may be sent by any thread.

    `on_loss` is called where it ends without a good-bye.
    """
    out, reader = Outbox(down), Reader(Inbox(up, None), dtype, width)

    def send(message: Reply | Call) -> None:
        # A trainer that is gone does not matter here: its client sees the loss.
        with contextlib.suppress(CommunicationError):
            out.send(encode_reply(message) if isinstance(message, Reply) else encode_call(message))

    # Whoever reads must never wait for a send: the other side may be sending too, and not read.
    later: queue.SimpleQueue[Reply | Call | None] = queue.SimpleQueue()
    answer: Callable[[Any], None] = send
    if server.most_answer_bytes > _BUFFER:
        answer = later.put
        threading.Thread(
            target=_drain, args=(later, send), daemon=True, name="daskml-answer"
        ).start()
    try:
        while True:
            message = reader.read()
            if isinstance(message, Request):
                server.exchange(message, answer)
            elif isinstance(message, dict):
                if message["op"] == _BYE:
                    break
                server.call(message.pop("op"), message, answer)
    except ConnectionError:
        on_loss()
    finally:
        later.put(None)
        out.close()
        _close(up)


def _drain(messages: queue.SimpleQueue[Any], send: Callable[[Any], None]) -> None:
    for message in iter(messages.get, None):
        send(message)
