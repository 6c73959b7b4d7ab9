"""Listener for the sockets of a run, and calls to the listener of another process.

A connection has two channels, one per direction, since a TLS socket must not be read and written at
the same time. On every socket both sides first prove themselves (`handshake`). For a channel the
caller then offers a ring of shared memory, which a listener of the same host and user accepts; the
socket then only shows that both sides are alive.

Any process that reaches the port may open a socket, so work before the proof must be cheap: a
handshake has one deadline, few run at a time, and a failed one never stops the listener.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from daskml_dist.comm.base import ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.channels import (
    Inbox,
    Outbox,
    Ring,
    RingInbox,
    RingOffer,
    RingOutbox,
    accept_ring_offer,
    close_socket,
    describe_lost_connection,
    tune_socket,
)
from daskml_dist.comm.handshake import (
    DOWN,
    NAME_BYTES,
    PEER,
    UP,
    HandshakeDeadline,
    HandshakeSession,
    receive_hello,
    send_hello,
    verify_listener,
)
from daskml_dist.errors import CommunicationError

#: Senders of the messages after the basic handshake, which make the proofs of the two sides differ.
CALLER, ANSWER = b"caller", b"answer"
#: Most sockets in a handshake at a time, each with a thread: enough for a burst of real trainers,
#: and few enough that unknown callers cannot exhaust the process.
_MAX_HANDSHAKES = 128
#: Seconds that every handshake is allowed, far more than a real one takes; older ones are evicted
#: if there are too many.
_GRACE_SECONDS = 3.0
#: Seconds between two checks for expired half connections.
_EXPIRY_SECONDS = 1.0
#: Seconds to wait if the system has no descriptor or thread left.
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Credentials:
    """Credentials of a socket: the run's secret, and TLS where the cluster has it.

    Parameters
    ----------
    secret : bytes
    listen, connect : ssl.SSLContext, optional
    settings : ConnectionSettings
        Behaviour of the connections once they are open.
    patience : float
        Seconds that a whole handshake may take, including TLS.
    """

    secret: bytes = field(repr=False)
    listen: ssl.SSLContext | None = None
    connect: ssl.SSLContext | None = None
    settings: ConnectionSettings = field(default_factory=ConnectionSettings)
    patience: float = 15.0


@dataclass(frozen=True)
class Channel:
    """One direction of a connection: a socket, and a ring if both sides are on one host."""

    sock: socket.socket
    ring: Ring | None = None

    def open_inbox(self, wait: WaitBound | None) -> Inbox:
        """Return the reading side."""
        if self.ring is None:
            return Inbox(self.sock, wait)
        return RingInbox(self.sock, wait, self.ring)

    def open_outbox(self, wait: WaitBound | None) -> Outbox:
        """Return the writing side."""
        if self.ring is None:
            return Outbox(self.sock, wait)
        return RingOutbox(self.sock, wait, self.ring)

    def close(self) -> None:
        """Close the socket, which also ends the ring; may be called twice."""
        close_socket(self.sock)


@dataclass(eq=False)
class _PendingSocket:
    """Accepted socket that has not proved itself; with TLS, its wrapper replaces it."""

    sock: socket.socket
    since: float = field(default_factory=time.monotonic)
    is_evicted: bool = False


@dataclass(frozen=True)
class _HalfConnection:
    """Channel of a connection whose other channel has not arrived yet."""

    role: bytes
    channel: Channel
    since: float = field(default_factory=time.monotonic)


class Listener:
    """Listener that accepts the sockets of a run and passes on complete connections.

    Parameters
    ----------
    host : str
        Address to bind to; the system chooses the port.
    credentials : Credentials
    on_pair : callable, optional
        Called in a thread of its own with the two channels (to read, to write) of a connection.
        Until the call returns, closing the listener closes both.
    on_peer : callable, optional
        Called with (rank, socket) for the socket of another trainer, which the callee then owns.
    key : str, default=""
        Name of the listener, which its callers must know.
    announced : str, optional
        Host name that callers are given; by default `host`.

    Attributes
    ----------
    endpoint : Endpoint
        Endpoint that callers must use; the handshake fails for any other.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        *,
        on_pair: Callable[[Channel, Channel], None] | None = None,
        on_peer: Callable[[int, socket.socket], None] | None = None,
        key: str = "",
        announced: str | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=512)
        # accept() returns regularly, so that expired half connections are closed without another
        # thread.
        self._server.settimeout(_EXPIRY_SECONDS)
        self.port: int = self._server.getsockname()[1]
        self.endpoint = Endpoint(key, announced or host, self.port)
        self._credentials = credentials
        self._on_pair = on_pair
        self._on_peer = on_peer
        #: Sockets in a handshake, the oldest first.
        self._pending: dict[_PendingSocket, None] = {}
        #: Channels that wait for their other half, by the connection's name.
        self._half_connections: dict[bytes, _HalfConnection] = {}
        #: Sockets of channels, which :meth:`close` closes.
        self._open: set[socket.socket] = set()
        self._closed = False
        #: Guards all four; notified when a handshake has ended.
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True, name="daskml-listen").start()

    # -- accepting -----------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept sockets until the listener is closed; the body of its thread."""
        while not self._closed:
            self._close_expired()
            self._await_free_handshake()
            try:
                sock, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                # No descriptor is left, or the caller has disconnected: later callers may still
                # succeed.
                self._pause()
                continue
            self._start_handshake(sock)

    def _pause(self) -> None:
        """Wait until the system may have descriptors and threads again, or the listener closes."""
        with self._changed:
            if not self._closed:
                self._changed.wait(_PAUSE_SECONDS)

    def _start_handshake(self, sock: socket.socket) -> None:
        """Start the handshake of an accepted socket in a thread of its own."""
        pending = _PendingSocket(sock)
        with self._changed:
            self._pending[pending] = None
        handshake_thread = threading.Thread(
            target=self._handle_socket, args=(pending,), daemon=True, name="daskml-serve"
        )
        try:
            handshake_thread.start()
        except RuntimeError:  # no thread is left
            self._drop_socket(pending)
            self._pause()

    def _await_free_handshake(self) -> None:
        """Wait until another handshake may begin; evict the oldest one after its grace period."""
        with self._changed:
            while len(self._pending) >= _MAX_HANDSHAKES and not self._closed:
                oldest = next(iter(self._pending))
                # Real callers finish within the grace period, so a flood of silent ones cannot keep
                # them out.
                seconds_left = oldest.since + _GRACE_SECONDS - time.monotonic()
                if seconds_left <= 0 and not oldest.is_evicted:
                    oldest.is_evicted = True
                    close_socket(oldest.sock)
                # An evicted socket counts until its thread has noticed, so that a burst of callers
                # cannot start threads faster than the threads of evicted sockets end.
                self._changed.wait(None if oldest.is_evicted else seconds_left)

    def _drop_socket(self, pending: _PendingSocket) -> None:
        """Close a socket whose handshake failed."""
        with self._changed:
            self._pending.pop(pending, None)
            close_socket(pending.sock)
            self._changed.notify_all()

    def _close_expired(self) -> None:
        """Close the channels whose other half did not arrive in time."""
        oldest_allowed = time.monotonic() - self._credentials.patience
        with self._changed:
            for name, half in list(self._half_connections.items()):
                if half.since < oldest_allowed:
                    del self._half_connections[name]
                    self._close_channels(half.channel)

    # -- one socket ----------------------------------------------------------------------------

    def _handle_socket(self, pending: _PendingSocket) -> None:
        """Perform the handshake of a socket, and pass on the connection that it completes."""
        try:
            role, name, channel = self._authenticate(pending)
        except Exception:  # an unknown or disconnected caller does not affect the others
            self._drop_socket(pending)
            return
        with self._changed:
            # An evicted socket is closed already.
            is_accepted = not pending.is_evicted and not self._closed
            self._pending.pop(pending, None)
            self._changed.notify_all()
            pair = (
                self._pair_channels(role, name, channel) if is_accepted and role != PEER else None
            )
        if not is_accepted:
            channel.close()
        elif role == PEER and self._on_peer is not None:
            self._on_peer(int.from_bytes(name, "big"), channel.sock)
        elif pair is not None and self._on_pair is not None:
            self._serve(*pair)
        elif role == PEER:
            channel.close()

    def _authenticate(self, pending: _PendingSocket) -> tuple[bytes, bytes, Channel]:
        """Perform the handshake; return the role, name and channel of the proven caller."""
        credentials, deadline = self._credentials, HandshakeDeadline(self._credentials.patience)
        tune_socket(pending.sock, credentials.settings)
        if credentials.listen is not None:
            with self._changed:  # close() and eviction use pending.sock, too
                pending.sock = wrap_in_tls(pending.sock, credentials.listen, server_side=True)
            do_tls_handshake(pending.sock, deadline)
        role, name, session = receive_hello(
            pending.sock, deadline, credentials.secret, self.endpoint
        )
        offer = session.receive_words(CALLER, 0 if role == PEER else RingOffer.SIZE)
        ring = None
        # Trainers set up shared memory together (`choosing_communicators`), not per socket.
        if role != PEER:
            ring, answer = accept_ring_offer(offer, credentials.settings.shared_memory)
            session.send_words(ANSWER, answer)
        return role, name, Channel(pending.sock, ring)

    def _pair_channels(
        self, role: bytes, name: bytes, channel: Channel
    ) -> tuple[Channel, Channel] | None:
        """Return the channels to read and to write once both have arrived, else None."""
        self._open.add(channel.sock)
        # The two channels of a connection arrive as two sockets of one name, in any order.
        half = self._half_connections.pop(name, None)
        if half is None:
            self._half_connections[name] = _HalfConnection(role, channel)
            return None
        if half.role == role:  # a connection needs one channel per direction
            self._close_channels(channel, half.channel)
            return None
        return (channel, half.channel) if role == UP else (half.channel, channel)

    def _serve(self, up: Channel, down: Channel) -> None:
        """Pass a connection on, in this thread, and forget its sockets afterwards."""
        assert self._on_pair is not None
        try:
            self._on_pair(up, down)
        finally:
            with self._changed:
                self._open.difference_update((up.sock, down.sock))

    def _close_channels(self, *channels: Channel) -> None:
        """Close channels that were not passed on."""
        for channel in channels:
            self._open.discard(channel.sock)
            channel.close()

    def close(self) -> None:
        """Stop listening and close every accepted socket; may be called twice."""
        with self._changed:
            self._closed = True
            for sock in [self._server, *(pending.sock for pending in self._pending), *self._open]:
                close_socket(sock)
            self._pending.clear()
            self._half_connections.clear()
            self._open.clear()
            self._changed.notify_all()


def wrap_in_tls(
    sock: socket.socket, context: ssl.SSLContext, *, server_side: bool = False, host: str = ""
) -> ssl.SSLSocket:
    """Return a TLS socket that has not performed its handshake yet."""
    return context.wrap_socket(
        sock,
        server_side=server_side,
        do_handshake_on_connect=False,
        server_hostname=None if server_side else host,
    )


def do_tls_handshake(sock: socket.socket, deadline: HandshakeDeadline) -> None:
    """Perform the TLS handshake."""
    assert isinstance(sock, ssl.SSLSocket)
    deadline.limit_next_call(sock)
    sock.do_handshake()


class _ListenerCall:
    """Call to a listener on one socket, which has sent its hello; closed if a step fails.

    Its steps are :meth:`verify`, :meth:`offer` and :meth:`channel`. They are separate so that the
    two calls of a connection wait for their answers at the same time.
    """

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, role: bytes, name: bytes
    ) -> None:
        self._endpoint, self._credentials = endpoint, credentials
        self._deadline = HandshakeDeadline(credentials.patience)
        self._sock: socket.socket | None = None
        self._open: tuple[socket.socket, HandshakeSession, RingOffer] | None = None
        with self._reaching():
            address = endpoint.host, endpoint.port
            self._sock = sock = socket.create_connection(address, timeout=credentials.patience)
            tune_socket(sock, credentials.settings)
            if credentials.connect is not None:
                self._sock = sock = wrap_in_tls(sock, credentials.connect, host=endpoint.host)
                do_tls_handshake(sock, self._deadline)
            self._hello = send_hello(sock, self._deadline, role, name)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Close the call on an error, and report that the listener cannot be reached."""
        try:
            yield
        except OSError as error:
            self.close()
            host, port = self._endpoint.host, self._endpoint.port
            raise CommunicationError(
                f"Cannot connect to a worker of the fit at {host}:{port} ({error}). Trainers open "
                "connections of their own: allow TCP between the workers' hosts. If the worker "
                "there is gone, another program may have its port; fit again."
            ) from error

    def verify(self) -> tuple[socket.socket, HandshakeSession]:
        """Return the socket and the session once the listener has proved itself."""
        assert self._sock is not None
        with self._reaching():
            secret, hello = self._credentials.secret, self._hello
            return self._sock, verify_listener(
                self._sock, self._deadline, secret, self._endpoint, hello
            )

    def offer(self) -> None:
        """Offer shared memory for the channel, without waiting for the answer."""
        sock, session = self.verify()
        offer = RingOffer(self._credentials.settings.shared_memory)
        self._open = sock, session, offer
        with self._connecting():
            session.send_words(CALLER, offer.data)

    def channel(self) -> Channel:
        """Return the channel once the offer has been answered."""
        assert self._open is not None
        sock, session, offer = self._open
        try:
            with self._connecting():
                return Channel(
                    sock, offer.accept_answer(session.receive_words(ANSWER, RingOffer.ANSWER))
                )
        finally:
            offer.close()

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Close the call on an error, and report that a proven listener was lost."""
        try:
            yield
        except OSError as error:
            self.close()
            raise CommunicationError(describe_lost_connection("connecting to", error)) from error

    def close(self) -> None:
        """Close the socket and the offer."""
        if self._open is not None:
            self._open[2].close()
        if self._sock is not None:
            close_socket(self._sock)


def call_listener(endpoint: Endpoint, credentials: Credentials) -> tuple[Channel, Channel]:
    """Return the two channels of a new connection: one to send on, one to receive from."""
    name = secrets.token_bytes(NAME_BYTES)
    with ExitStack() as failed:
        # Each step is made on both channels before waiting for an answer: one round trip for both.
        up = _ListenerCall(endpoint, credentials, UP, name)
        failed.callback(up.close)
        down = _ListenerCall(endpoint, credentials, DOWN, name)
        failed.callback(down.close)
        for call in (up, down):
            call.offer()
        channels = up.channel(), down.channel()
        failed.pop_all()
    return channels


def call_peer(endpoint: Endpoint, credentials: Credentials, rank: int) -> socket.socket:
    """Return a new socket on which trainer `rank` sends to another trainer."""
    sock, session = _ListenerCall(
        endpoint, credentials, PEER, rank.to_bytes(NAME_BYTES, "big")
    ).verify()
    try:
        session.send_words(CALLER)
    except OSError as error:
        close_socket(sock)
        raise CommunicationError(describe_lost_connection("connecting to", error)) from error
    return sock
