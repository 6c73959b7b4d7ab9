"""Calls to the listener of another process of a run."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from daskml_dist.comm.base import Endpoint
from daskml_dist.comm.handshake import DOWN, NAME, PEER, UP, Deadline, Session, introduce, knock
from daskml_dist.comm.listener import ANSWER, CALLER, Channel, Credentials, shake, wrapped
from daskml_dist.comm.ring import Offer
from daskml_dist.comm.socket import close_socket, gone
from daskml_dist.errors import CommunicationError

__all__ = ["call_listener", "call_peer"]


class _Call:
    """Call of a listener: one socket, which has knocked; closed where anything fails."""

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, role: bytes, name: bytes
    ) -> None:
        self._endpoint, self._credentials = endpoint, credentials
        self._deadline = Deadline(credentials.patience)
        self._sock: socket.socket | None = None
        self._open: tuple[socket.socket, Session, Offer] | None = None
        with self._reaching():
            address = endpoint.host, endpoint.port
            self._sock = sock = socket.create_connection(address, timeout=credentials.patience)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if credentials.connect is not None:
                self._sock = sock = wrapped(sock, credentials.connect, host=endpoint.host)
                shake(sock, self._deadline)
            self._hello = knock(sock, self._deadline, role, name)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
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

    def answered(self) -> tuple[socket.socket, Session]:
        """The socket, to a listener that has proved itself."""
        assert self._sock is not None
        with self._reaching():
            secret, hello = self._credentials.secret, self._hello
            return self._sock, introduce(self._sock, self._deadline, secret, self._endpoint, hello)

    def offer(self) -> None:
        """Offer memory for the channel that it is to be, without waiting for the answer."""
        sock, session = self.answered()
        offer = Offer(self._credentials.shared_memory)
        self._open = sock, session, offer
        with self._connecting():
            session.say(CALLER, offer.data)

    def channel(self) -> Channel:
        """The channel that it is to be, once the offer is answered."""
        assert self._open is not None
        sock, session, offer = self._open
        try:
            with self._connecting():
                return Channel(sock, offer.taken(session.hear(ANSWER, Offer.ANSWER)))
        finally:
            offer.close()

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise CommunicationError(gone("connecting to", error)) from error

    def close(self) -> None:
        """Hang up."""
        if self._open is not None:
            self._open[2].close()
        if self._sock is not None:
            close_socket(self._sock)


def call_listener(endpoint: Endpoint, credentials: Credentials) -> tuple[Channel, Channel]:
    """Open a connection: the channel to send on, and the one to receive from."""
    name = secrets.token_bytes(NAME)
    with ExitStack() as failed:
        # Both say what they can before the first one waits for its answer.
        up = _Call(endpoint, credentials, UP, name)
        failed.callback(up.close)
        down = _Call(endpoint, credentials, DOWN, name)
        failed.callback(down.close)
        for call in (up, down):
            call.offer()
        channels = up.channel(), down.channel()
        failed.pop_all()
    return channels


def call_peer(endpoint: Endpoint, credentials: Credentials, rank: int) -> socket.socket:
    """Open the socket on which trainer `rank` sends to another."""
    sock, session = _Call(endpoint, credentials, PEER, rank.to_bytes(NAME, "big")).answered()
    try:
        session.say(CALLER)
    except OSError as error:
        close_socket(sock)
        raise CommunicationError(gone("connecting to", error)) from error
    return sock
