"""A connection to a host without cable: its silence is told of first, and it breaks much later."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from benchmarks._hosts import Host, HostNetwork, network_problem
from daskml_dist.comm.base import ConnectionSettings, WaitBound
from daskml_dist.comm.channels import Inbox, Outbox, tune_socket
from daskml_dist.errors import SilentPeerError

pytestmark = pytest.mark.slow

PORT = 8_001
#: Sends back what comes, byte for byte, once it has told that it listens.
ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("listening", flush=True)
    sock, _ = server.accept()
    while data := sock.recv(1 << 16):
        sock.sendall(data)
"""


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    """One host beside this one."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    with HostNetwork(1) as network:
        yield network


@contextmanager
def connected(host: Host, settings: ConnectionSettings) -> Iterator[socket.socket]:
    """A connection to a process on a host that echoes."""
    command = [sys.executable, "-c", ECHO, host.address, str(PORT)]
    process = subprocess.Popen(host.command(*command), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    try:
        with socket.create_connection((host.address, PORT)) as sock:
            tune_socket(sock, settings)
            yield sock
    finally:
        process.kill()
        process.communicate()


def read(inbox: Inbox, n: int) -> bytes:
    """Read so many bytes."""
    target = bytearray(n)
    inbox.read_into(memoryview(target))
    return bytes(target)


@pytest.mark.parametrize("sends", [False, True], ids=["idle", "sent before"])
def test_a_cable_that_comes_back_breaks_nothing(network: HostNetwork, sends: bool) -> None:
    """Whether nothing travelled, so that TCP probes, or what was sent is sent again."""
    (host,) = network.hosts
    told = threading.Event()

    def plug() -> None:
        """Plug the cable in as soon as its silence is told of."""
        network.plug(host)
        told.set()

    wait = WaitBound(120.0, on_silence=plug)
    with connected(host, ConnectionSettings(silence=0.5)) as sock:
        outbox, inbox = Outbox(sock, wait), Inbox(sock, wait)
        outbox.send([memoryview(b"before")])
        assert read(inbox, 6) == b"before"
        network.pull(host)

        def send() -> None:
            """Send at once, or once the cable is there again."""
            if sends or told.wait(60):
                outbox.send([memoryview(b"behind")])

        sender = threading.Thread(target=send)
        sender.start()
        assert read(inbox, 6) == b"behind"
        sender.join()
    assert told.is_set()


def test_who_sends_is_told_too(network: HostNetwork) -> None:
    """More is sent than the kernel's buffers hold."""
    (host,) = network.hosts
    wait = WaitBound(120.0, on_silence=partial(network.plug, host))
    with connected(host, ConnectionSettings(silence=0.5)) as sock:
        outbox, inbox = Outbox(sock, wait), Inbox(sock, WaitBound(120.0))
        network.pull(host)
        data = bytes(1 << 24)
        reader = threading.Thread(target=read, args=(inbox, len(data)))
        reader.start()
        outbox.send([memoryview(data)])
        reader.join()
        assert inbox.received == len(data)


def test_a_cable_that_stays_away_breaks_the_connection(network: HostNetwork) -> None:
    """Told of before."""
    (host,) = network.hosts
    told: list[bool] = []
    wait = WaitBound(120.0, on_silence=lambda: told.append(True))
    with connected(host, ConnectionSettings(silence=0.4)) as sock:
        outbox, inbox = Outbox(sock, wait), Inbox(sock, wait)
        network.pull(host)
        outbox.send([memoryview(b"lost")])
        with pytest.raises(SilentPeerError):
            read(inbox, 4)
    assert told == [True]
