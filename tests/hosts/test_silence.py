"""A connection to a disconnected host: its silence is reported first, and it breaks much later."""

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
#: Script that echoes all bytes after it has reported to listen.
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
    """Provide a host besides this one."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    with HostNetwork(1) as network:
        yield network


@contextmanager
def connected(host: Host, settings: ConnectionSettings) -> Iterator[socket.socket]:
    """Connect to an echo process on a host."""
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
    """Read `n` bytes."""
    target = bytearray(n)
    inbox.read_into(memoryview(target))
    return bytes(target)


@pytest.mark.parametrize("sends", [False, True], ids=["idle", "sent before"])
def test_a_reconnected_host_keeps_its_connections(network: HostNetwork, sends: bool) -> None:
    """Either the connection was idle, so that TCP probes, or data are retransmitted."""
    (host,) = network.hosts
    reported = threading.Event()

    def plug() -> None:
        """Reconnect the host as soon as its silence is reported."""
        network.plug(host)
        reported.set()

    wait = WaitBound(120.0, on_silence=plug)
    with connected(host, ConnectionSettings(silence=0.5)) as sock:
        outbox, inbox = Outbox(sock, wait), Inbox(sock, wait)
        outbox.send([memoryview(b"before")])
        assert read(inbox, 6) == b"before"
        network.pull(host)

        def send() -> None:
            """Send immediately, or after the reconnection."""
            if sends or reported.wait(60):
                outbox.send([memoryview(b"behind")])

        sender = threading.Thread(target=send)
        sender.start()
        assert read(inbox, 6) == b"behind"
        sender.join()
    assert reported.is_set()


def test_the_sender_also_gets_reports_of_silence(network: HostNetwork) -> None:
    """The data exceed the kernel's buffers."""
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


def test_a_permanently_disconnected_host_breaks_the_connection(network: HostNetwork) -> None:
    """After its silence was reported."""
    (host,) = network.hosts
    reports: list[bool] = []
    wait = WaitBound(120.0, on_silence=lambda: reports.append(True))
    with connected(host, ConnectionSettings(silence=0.4)) as sock:
        outbox, inbox = Outbox(sock, wait), Inbox(sock, wait)
        network.pull(host)
        outbox.send([memoryview(b"lost")])
        with pytest.raises(SilentPeerError):
            read(inbox, 4)
    assert reports == [True]
