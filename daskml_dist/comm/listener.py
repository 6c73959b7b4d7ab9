"""Where the sockets of a run come in, and how both sides prove that they belong to it.

A connection is two channels, one a direction, since a TLS socket must not be read and written at
the same time. Every socket begins with a challenge: the caller proves that it knows the run's
secret (HMAC-SHA256 of a nonce), then names its role and its pair. For a channel the caller also
offers a ring of shared memory, which a listener of the same host and user takes up; the socket
then only shows that both sides live.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

from daskml_dist.comm.base import Endpoint, Wait
from daskml_dist.comm.ring import Offer, Ring, RingInbox, RingOutbox, accept_offer
from daskml_dist.comm.socket import Inbox, Outbox, close_socket, gone
from daskml_dist.errors import CommunicationError

__all__ = ["Channel", "Credentials", "Listener", "call_listener", "call_peer"]

_NONCE, _DIGEST, _NAME = 16, 32, 16
_UP, _DOWN, _PEER = b"U", b"D", b"P"


@dataclass(frozen=True)
class Credentials:
    """What a socket of a run needs: the run's secret, and TLS where the cluster has it.

    Parameters
    ----------
    secret : bytes
    listen, connect : ssl.SSLContext, optional
    shared_memory : bool
        Whether processes of one host may use it, instead of their sockets.
    """

    secret: bytes
    listen: ssl.SSLContext | None = None
    connect: ssl.SSLContext | None = None
    shared_memory: bool = True


@dataclass(frozen=True)
class Channel:
    """One direction of a connection: a socket, and a ring where both are on one host."""

    sock: socket.socket
    ring: Ring | None = None

    def inbox(self, wait: Wait | None) -> Inbox:
        """The reading side; see `Inbox`."""
        if self.ring is None:
            return Inbox(self.sock, wait)
        return RingInbox(self.sock, wait, self.ring)

    def outbox(self, wait: Wait | None) -> Outbox:
        """The writing side; see `Outbox`."""
        if self.ring is None:
            return Outbox(self.sock, wait)
        return RingOutbox(self.sock, wait, self.ring)

    def close(self) -> None:
        """Close the socket, with which the ring ends too; may be called twice."""
        close_socket(self.sock)


class Listener:
    """Accepts the sockets of a run and hands on whole connections.

    Parameters
    ----------
    host : str
        Address to bind to; the port is the system's choice.
    credentials : Credentials
    on_pair : callable, optional
        Called in a thread of its own with the two channels (to read, to write) of a connection.
    on_peer : callable, optional
        Called with (rank, socket) for the socket of another trainer.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        *,
        on_pair: Callable[[Channel, Channel], None] | None = None,
        on_peer: Callable[[int, socket.socket], None] | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=512)
        self.port: int = self._server.getsockname()[1]
        self._credentials = credentials
        self._on_pair = on_pair
        self._on_peer = on_peer
        self._half: dict[bytes, tuple[bytes, Channel]] = {}
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
        ring = None
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
            if role != _PEER:
                offer = _recv_exactly(sock, Offer.SIZE)
                ring, answer = accept_offer(offer, self._credentials.shared_memory)
                sock.sendall(answer)
        except OSError:
            close_socket(sock)
            return
        self._sort(role, name, Channel(sock, ring))

    def _sort(self, role: bytes, name: bytes, channel: Channel) -> None:
        with self._lock:
            if self._closed:
                channel.close()
                return
            self._open.append(channel.sock)
            other = None
            if role != _PEER:
                other = self._half.pop(name, None)
                if other is None:
                    self._half[name] = (role, channel)
                    return
        if role == _PEER:
            if self._on_peer is not None:
                self._on_peer(int.from_bytes(name, "big"), channel.sock)
        elif self._on_pair is not None and other is not None:
            up, down = (channel, other[1]) if role == _UP else (other[1], channel)
            self._on_pair(up, down)

    def close(self) -> None:
        """Stop listening and close every socket that came in; may be called twice."""
        with self._lock:
            self._closed = True
            for sock in [self._server, *self._open]:
                close_socket(sock)
            self._open.clear()


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce, "sha256")


def _recv_exactly(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise ConnectionError("end of file in the handshake")
        data += part
    return data


def _connect(
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


def _open_channel(
    endpoint: Endpoint, credentials: Credentials, role: bytes, name: bytes
) -> Channel:
    sock = _connect(endpoint, credentials, role, name)
    offer = Offer(credentials.shared_memory)
    try:
        sock.sendall(offer.data)
        return Channel(sock, offer.taken(_recv_exactly(sock, Offer.ANSWER)))
    except OSError as error:
        close_socket(sock)
        raise CommunicationError(gone("connecting to", error)) from error
    finally:
        offer.close()


def call_listener(endpoint: Endpoint, credentials: Credentials) -> tuple[Channel, Channel]:
    """Open a connection: the channel to send on, and the one to receive from."""
    name = secrets.token_bytes(_NAME)
    up = _open_channel(endpoint, credentials, _UP, name)
    try:
        return up, _open_channel(endpoint, credentials, _DOWN, name)
    except BaseException:
        up.close()
        raise


def call_peer(endpoint: Endpoint, credentials: Credentials, rank: int) -> socket.socket:
    """Open the socket on which trainer `rank` sends to another."""
    return _connect(endpoint, credentials, _PEER, rank.to_bytes(_NAME, "big"))
