"""Handshakes that an eavesdropper relays, replays or reflects are refused."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from daskml_dist.comm import handshake
from daskml_dist.comm.base import Endpoint
from daskml_dist.comm.handshake import NAME_BYTES, PEER, UP, HandshakeDeadline
from daskml_dist.comm.listener import Credentials, Listener, call_peer
from daskml_dist.errors import CommunicationError
from tests.comm.attacks.relay import Relay
from tests.comm.attacks.served import HOST, KEY, PATIENCE, SECRET, is_closed, until


@contextmanager
def peer_listener(accepted_ranks: list[int], announced: str | None = None) -> Iterator[Listener]:
    """A listener for other trainers, and the ranks that came."""

    def take(rank: int, sock: socket.socket) -> None:
        accepted_ranks.append(rank)
        sock.close()

    listener = Listener(HOST, Credentials(SECRET), on_peer=take, key=KEY, announced=announced)
    with closing(listener):
        yield listener


def _as_rank(rank: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        fixed = len(handshake._PROTOCOL) + 1
        if not data.startswith(handshake._PROTOCOL):
            return data
        return data[:fixed] + rank.to_bytes(NAME_BYTES, "big") + data[fixed + NAME_BYTES :]

    return change


def _as_channel(data: bytes) -> bytes:
    return data.replace(handshake._PROTOCOL + PEER, handshake._PROTOCOL + UP)


@pytest.mark.parametrize("change", [_as_rank(7), _as_channel, bytes], ids=["rank", "role", "port"])
def test_a_relayed_proof_is_refused(change: Callable[[bytes], bytes]) -> None:
    """The proof is bound to rank, role and listener."""
    accepted_ranks: list[int] = []
    with peer_listener(accepted_ranks) as listener:
        relay = Relay(listener.endpoint, change)
        try:
            announced = Endpoint(KEY, HOST, relay.port)
            with pytest.raises(CommunicationError, match="Cannot connect"):
                call_peer(announced, Credentials(SECRET, patience=PATIENCE), 3)
        finally:
            relay.close()
        call_peer(listener.endpoint, Credentials(SECRET), 5).close()
        until(lambda: bool(accepted_ranks))
    assert accepted_ranks == [5]


def test_a_call_meant_for_another_listener_is_refused() -> None:
    """The port is right, but the listener's name is that of another rank or run."""
    accepted_ranks: list[int] = []
    with peer_listener(accepted_ranks) as listener:
        other = replace(listener.endpoint, key="run-0-2")
        with pytest.raises(CommunicationError, match="Cannot connect"):
            call_peer(other, Credentials(SECRET, patience=PATIENCE), 3)
    assert accepted_ranks == []


def test_a_replayed_handshake_is_refused() -> None:
    accepted_ranks: list[int] = []
    with peer_listener(accepted_ranks) as listener:
        # The caller is given the relay's address as the listener's: a man in the middle.
        relay = Relay(listener.endpoint)
        listener.endpoint = replace(listener.endpoint, port=relay.port)
        try:
            call_peer(listener.endpoint, Credentials(SECRET), 3).close()
            until(lambda: accepted_ranks == [3])
            with closing(socket.create_connection((HOST, listener.port))) as sock:
                sock.sendall(relay.forwarded)
                assert is_closed(sock)
        finally:
            relay.close()
    assert accepted_ranks == [3]


def test_reflected_proofs_are_refused() -> None:
    """Neither an echo of the caller's messages nor replies of its own listener prove the peer."""

    def echo(server: socket.socket) -> None:
        sock, _ = server.accept()
        with sock:
            sock.settimeout(20)
            hello = sock.recv(1 << 16)
            # Echo its nonce, and then all of its messages.
            sock.sendall(hello[-32:] + hello[-32:])
            with suppress(OSError):
                sock.sendall(sock.recv(1 << 16))

    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as pool:
        mirror = pool.submit(echo, server)
        with pytest.raises(CommunicationError, match="secret"):
            call_peer(Endpoint(KEY, HOST, server.getsockname()[1]), Credentials(SECRET), 0)
        mirror.result(20)
    accepted_ranks: list[int] = []
    with peer_listener(accepted_ranks) as listener:
        with closing(socket.create_connection((HOST, listener.port), timeout=60)) as sock:
            sock.sendall(
                handshake._HELLO.pack(handshake._PROTOCOL, PEER, bytes(NAME_BYTES), bytes(32))
            )
            answer = HandshakeDeadline(20).receive(sock, 64)
            sock.sendall(answer[32:])  # the listener's proof as the caller's
            assert is_closed(sock)
    assert accepted_ranks == []


def test_a_listener_on_all_addresses_uses_its_announced_name() -> None:
    accepted_ranks: list[int] = []
    with peer_listener(accepted_ranks, announced="localhost") as listener:
        assert listener.endpoint.host == "localhost"
        call_peer(listener.endpoint, Credentials(SECRET), 4).close()
        until(lambda: accepted_ranks == [4])
