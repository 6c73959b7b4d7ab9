"""Listener for the sockets of a run.

A connection is two channels, one a direction, since a TLS socket must not be read and written at
the same time. Every socket begins with a proof of both sides (`handshake`). For a channel the
caller then offers a ring of shared memory, which a listener of the same host and user takes up; the
socket then only shows that both sides live.

Whoever reaches the port may open a socket, so nothing before the proof can cost much: a handshake
has one deadline, few are under way at a time, and no failure of one ends the listening.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from daskml_dist.comm.base import Endpoint, Wait
from daskml_dist.comm.handshake import (
    PEER,
    UP,
    Deadline,
    greet,
)
from daskml_dist.comm.ring import Offer, Ring, RingInbox, RingOutbox, accept_offer
from daskml_dist.comm.socket import Inbox, Outbox, close_socket

__all__ = ["ANSWER", "CALLER", "Channel", "Credentials", "Listener", "shake", "wrapped"]

#: Words of the two sides after the handshake's first.
CALLER, ANSWER = b"caller", b"answer"
#: Sockets whose handshake is under way at a time.
_MOST_GREETED = 128
#: Seconds that a handshake has in any case; an older one gives way where there are too many.
_GRACE = 3.0
#: Seconds between two looks at what has expired.
_TICK = 1.0
#: Seconds to wait where the system has no descriptor or thread left.
_PAUSE = 0.05


@dataclass(frozen=True)
class Credentials:
    """Credentials of a socket: the run's secret, and TLS where the cluster has it.

    Parameters
    ----------
    secret : bytes
    listen, connect : ssl.SSLContext, optional
    shared_memory : bool
        Whether processes of one host may use it, instead of their sockets.
    patience : float
        Seconds that a whole handshake may take, TLS's included.
    """

    secret: bytes = field(repr=False)
    listen: ssl.SSLContext | None = None
    connect: ssl.SSLContext | None = None
    shared_memory: bool = True
    patience: float = 15.0


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


@dataclass(eq=False)
class _Guest:
    """A socket that came in; with TLS its wrapper takes its place."""

    sock: socket.socket
    since: float = field(default_factory=time.monotonic)
    is_evicted: bool = False


@dataclass(frozen=True)
class _Half:
    """The channel of a connection that came first."""

    role: bytes
    channel: Channel
    since: float = field(default_factory=time.monotonic)


class Listener:
    """Accepts the sockets of a run and hands on whole connections.

    Parameters
    ----------
    host : str
        Address to bind to; the port is the system's choice.
    credentials : Credentials
    on_pair : callable, optional
        Called in a thread of its own with the two channels (to read, to write) of a connection,
        which the listener closes with itself until the call returns.
    on_peer : callable, optional
        Called with (rank, socket) for the socket of another trainer, which is then the callee's.
    key : str, default=""
        Name of the listener, which its callers must know.
    announced : str, optional
        Host that callers are told; by default `host`.

    Attributes
    ----------
    endpoint : Endpoint
        What to tell callers; another one they cannot prove.
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
        self._server.settimeout(_TICK)
        self.port: int = self._server.getsockname()[1]
        self.endpoint = Endpoint(key, announced or host, self.port)
        self._credentials = credentials
        self._on_pair = on_pair
        self._on_peer = on_peer
        self._guests: dict[_Guest, None] = {}  # in the order in which they came
        self._half: dict[bytes, _Half] = {}
        self._open: set[socket.socket] = set()
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True, name="daskml-listen").start()

    # -- accepting -----------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            self._expire()
            self._make_room()
            try:
                sock, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                # No descriptor is left, or the caller is gone again: others can still come.
                self._pause()
                continue
            self._admit(sock)

    def _pause(self) -> None:
        with self._changed:
            if not self._closed:
                self._changed.wait(_PAUSE)

    def _admit(self, sock: socket.socket) -> None:
        guest = _Guest(sock)
        with self._changed:
            self._guests[guest] = None
        greeter = threading.Thread(
            target=self._greet, args=(guest,), daemon=True, name="daskml-serve"
        )
        try:
            greeter.start()
        except RuntimeError:  # no thread is left
            self._dismiss(guest)
            self._pause()

    def _make_room(self) -> None:
        """Wait until one more handshake may begin; the oldest one gives way after its grace."""
        with self._changed:
            while len(self._guests) >= _MOST_GREETED and not self._closed:
                oldest = next(iter(self._guests))
                left = oldest.since + _GRACE - time.monotonic()
                if left <= 0 and not oldest.is_evicted:
                    oldest.is_evicted = True
                    close_socket(oldest.sock)
                # An evicted guest counts until its thread has noticed, so that a burst of callers
                # cannot start threads faster than those of evicted guests end.
                self._changed.wait(None if oldest.is_evicted else left)

    def _dismiss(self, guest: _Guest) -> None:
        with self._changed:
            self._guests.pop(guest, None)
            close_socket(guest.sock)
            self._changed.notify_all()

    def _expire(self) -> None:
        """Close the channels whose other half does not come."""
        before = time.monotonic() - self._credentials.patience
        with self._changed:
            for name, half in list(self._half.items()):
                if half.since < before:
                    del self._half[name]
                    self._forget(half.channel)

    # -- one socket ----------------------------------------------------------------------------

    def _greet(self, guest: _Guest) -> None:
        try:
            role, name, channel = self._welcome(guest)
        except Exception:  # whoever it was does not speak as we do, and is no concern of others
            self._dismiss(guest)
            return
        with self._changed:
            # An evicted guest is closed already.
            known = not guest.is_evicted and not self._closed
            self._guests.pop(guest, None)
            self._changed.notify_all()
            pair = self._paired(role, name, channel) if known and role != PEER else None
        if not known:
            channel.close()
        elif role == PEER and self._on_peer is not None:
            self._on_peer(int.from_bytes(name, "big"), channel.sock)
        elif pair is not None and self._on_pair is not None:
            self._serve(*pair)
        elif role == PEER:
            channel.close()

    def _welcome(self, guest: _Guest) -> tuple[bytes, bytes, Channel]:
        """Pass the handshake; what the caller has proved."""
        credentials, deadline = self._credentials, Deadline(self._credentials.patience)
        guest.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if credentials.listen is not None:
            with self._changed:  # which also closes guests
                guest.sock = wrapped(guest.sock, credentials.listen, server_side=True)
            shake(guest.sock, deadline)
        role, name, session = greet(guest.sock, deadline, credentials.secret, self.endpoint)
        words = session.hear(CALLER, 0 if role == PEER else Offer.SIZE)
        ring = None
        if role != PEER:
            ring, answer = accept_offer(words, credentials.shared_memory)
            session.say(ANSWER, answer)
        return role, name, Channel(guest.sock, ring)

    def _paired(self, role: bytes, name: bytes, channel: Channel) -> tuple[Channel, Channel] | None:
        """The channels to read and to write, once both are there."""
        self._open.add(channel.sock)
        other = self._half.pop(name, None)
        if other is None:
            self._half[name] = _Half(role, channel)
            return None
        if other.role == role:  # one end of each direction, or nothing
            self._forget(channel, other.channel)
            return None
        return (channel, other.channel) if role == UP else (other.channel, channel)

    def _serve(self, up: Channel, down: Channel) -> None:
        assert self._on_pair is not None
        try:
            self._on_pair(up, down)
        finally:
            with self._changed:
                self._open.difference_update((up.sock, down.sock))

    def _forget(self, *channels: Channel) -> None:
        for channel in channels:
            self._open.discard(channel.sock)
            channel.close()

    def close(self) -> None:
        """Stop listening and close every socket that came in; may be called twice."""
        with self._changed:
            self._closed = True
            for sock in [self._server, *(guest.sock for guest in self._guests), *self._open]:
                close_socket(sock)
            self._guests.clear()
            self._half.clear()
            self._open.clear()
            self._changed.notify_all()


def wrapped(
    sock: socket.socket, context: ssl.SSLContext, *, server_side: bool = False, host: str = ""
) -> ssl.SSLSocket:
    """A socket under TLS, whose handshake is still to come."""
    return context.wrap_socket(
        sock,
        server_side=server_side,
        do_handshake_on_connect=False,
        server_hostname=None if server_side else host,
    )


def shake(sock: socket.socket, deadline: Deadline) -> None:
    """Make TLS's handshake."""
    assert isinstance(sock, ssl.SSLSocket)
    deadline.bound(sock)
    sock.do_handshake()
