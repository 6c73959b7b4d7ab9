"""Hostile peers on the ports of a fit: refused, in bounded time, while the fit's own get through.

All of it on the loopback interface.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Security

from daskml_dist.comm import handshake, wire
from daskml_dist.comm import listener as module
from daskml_dist.comm.allreduce import PeerGroup, PeerListener
from daskml_dist.comm.base import Endpoint, Wait
from daskml_dist.comm.bounds import Bounds
from daskml_dist.comm.handshake import NAME, PEER, UP, Deadline, Secret
from daskml_dist.comm.listener import Credentials, Listener, call_listener, call_peer
from daskml_dist.comm.packing import kinds, pack, pack_object, unpack, unpack_object
from daskml_dist.comm.remote import RemoteConnection, serve
from daskml_dist.comm.ring import Offer
from daskml_dist.comm.socket import close_socket
from daskml_dist.comm.wire import Reader, encode_call, encode_request
from daskml_dist.errors import CommunicationError, DaskMLDistError
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous
from daskml_dist.ps.image import SENT, LaneImage
from daskml_dist.ps.messages import Reply, Request
from daskml_dist.ps.server import ParameterServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardImage, ShardState
from daskml_dist.schedules import Constant
from tests.rules import one_group

pytestmark = pytest.mark.timeout(60)

HOST, KEY, SECRET = "127.0.0.1", "run-0-1", b"s" * 32
BOUNDS = Bounds("float64", 8, 1, 2)
#: Seconds that a handshake may take here.
PATIENCE = 1.0


@pytest.fixture(scope="module")
def contexts() -> dict[bool, dict[str, ssl.SSLContext]]:
    """TLS contexts of a cluster, and none, by whether there is TLS."""
    pytest.importorskip("cryptography")
    security = Security.temporary()
    listen = security.get_listen_args("worker")["ssl_context"]
    return {
        True: {
            "listen": listen,
            "connect": security.get_connection_args("worker")["ssl_context"],
        },
        False: {},
    }


@pytest.fixture(params=[False, True], ids=["tcp", "tls"])
def credentials(
    request: pytest.FixtureRequest, contexts: dict[bool, dict[str, ssl.SSLContext]]
) -> Credentials:
    """What the fit's own have; without shared memory, so that bytes go by the sockets."""
    return Credentials(SECRET, shared_memory=False, patience=PATIENCE, **contexts[request.param])


def make_server() -> ParameterServer:
    rule = one_group(get_optimizer("sgd"), Constant(1.0), Penalty(0, 0), 8, 1.0)
    return ParameterServer(
        Asynchronous(), [0, 1], Shard(rule, ShardState(np.zeros((8, 1)), {})), None, 1
    )


class Served:
    """A server at its listener, and the losses that it has noticed."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.losses = threading.Semaphore(0)
        answer = partial(serve, make_server(), bounds=BOUNDS, on_loss=self.losses.release)
        self.listener = Listener(HOST, credentials, on_pair=answer, key=KEY)
        self.endpoint = self.listener.endpoint

    def works(self) -> None:
        """See that a trainer of the fit is still served; a machine under load is slow at times."""
        for _ in range(20):
            with suppress(CommunicationError):
                return self._exchange()
        raise AssertionError("nobody is served")

    def _exchange(self) -> None:
        patient = replace(self.credentials, patience=20)
        connection = RemoteConnection(self.endpoint, patient, Wait(20), BOUNDS)
        connection.send(Request((0,), 0, 1))
        assert connection.receive(0).values is not None
        connection.close()

    def dial(self) -> socket.socket:
        """A socket of somebody who knows the address, under TLS where the fit has it."""
        sock = socket.create_connection((HOST, self.endpoint.port), timeout=20)
        if self.credentials.connect is not None:
            sock = self.credentials.connect.wrap_socket(sock, server_hostname=HOST)
        return sock


@pytest.fixture
def served(credentials: Credentials) -> Iterator[Served]:
    served = Served(credentials)
    yield served
    served.listener.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side closes a socket, whatever it says before."""
    sock.settimeout(20)
    with suppress(OSError):
        while sock.recv(1 << 16):
            pass
    return True


# -- those who know no secret ----------------------------------------------------------------------


_HELLO = handshake._HELLO.pack(handshake._PROTOCOL, UP, bytes(NAME), bytes(32))
GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100),
    os.urandom(1 << 16),
    b"daskml 2X" + bytes(100),
    _HELLO.replace(UP, PEER) + bytes(32),  # proofs of nothing
    _HELLO + bytes(Offer.SIZE + 32),
    pickle.dumps(print),
    *(_HELLO[:n] for n in (0, 5, len(_HELLO) - 1, len(_HELLO))),  # and then no more
]


def test_garbage_is_refused_and_others_are_served(served: Served) -> None:
    with ExitStack() as stack:
        socks = [stack.enter_context(closing(served.dial())) for _ in GARBAGE]
        for sock, words in zip(socks, GARBAGE, strict=True):
            with suppress(OSError):
                sock.sendall(words)
        served.works()
        assert all(map(is_closed, socks))
    served.works()


def test_a_byte_now_and_then_does_not_prolong_a_handshake(served: Served) -> None:
    with closing(socket.create_connection((HOST, served.endpoint.port), timeout=20)) as sock:
        since = time.monotonic()
        with suppress(OSError):
            for byte in bytes(10_000):
                sock.sendall(bytes([byte]))
                time.sleep(PATIENCE / 20)
        assert time.monotonic() - since < 10_000 * PATIENCE / 20 / 4


def test_the_listener_proves_itself_first() -> None:
    """A rogue on a port that a worker had gets a nonce, and nothing of the fit."""
    heard: list[bytes] = []

    def answer(server: socket.socket, words: bytes) -> None:
        sock, _ = server.accept()
        with sock:
            sock.settimeout(20)
            heard.append(sock.recv(1 << 16))
            sock.sendall(words)
            with suppress(OSError):
                heard.append(sock.recv(1 << 16))

    reply = wire._CALL.pack(wire.CALL, 1 << 30) + pickle.dumps(print)
    for words in (reply, bytes(64), os.urandom(64), b""):
        heard.clear()
        with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as pool:
            rogue = pool.submit(answer, server, words)
            endpoint = Endpoint(KEY, HOST, server.getsockname()[1])
            with pytest.raises(CommunicationError, match="another program may have its port"):
                call_listener(endpoint, Credentials(SECRET, patience=0.3))
            rogue.result(20)
        assert len(heard[0]) == handshake._HELLO.size
        assert not any(heard[1:])


def test_a_certificate_alone_is_not_enough(served: Served) -> None:
    """Nor is the secret alone, where the cluster has certificates."""
    others = [replace(served.credentials, secret=b"other")]
    if served.credentials.connect is not None:
        others.append(Credentials(SECRET, patience=PATIENCE))
    for other in others:
        with pytest.raises(CommunicationError, match="Cannot connect"):
            RemoteConnection(served.endpoint, other, Wait(20), BOUNDS)
    served.works()


def test_a_rogue_without_a_certificate_hears_nothing(
    contexts: dict[bool, dict[str, ssl.SSLContext]],
) -> None:
    heard: list[bytes] = []
    rogue = Listener(HOST, Credentials(SECRET, patience=PATIENCE), on_pair=lambda *_: None)
    relay = Relay(rogue.endpoint)
    try:
        endpoint = Endpoint("", HOST, relay.port)
        with pytest.raises(CommunicationError, match="Cannot connect"):
            call_peer(endpoint, Credentials(SECRET, patience=PATIENCE, **contexts[True]), 1)
        heard.append(relay.said)
    finally:
        rogue.close()
        relay.close()
    assert handshake._PROTOCOL not in heard[0]


def test_a_listener_that_says_nothing_is_left() -> None:
    with socket.create_server((HOST, 0)) as server:
        endpoint = Endpoint(KEY, HOST, server.getsockname()[1])
        with pytest.raises(CommunicationError, match="timed out"):
            call_peer(endpoint, Credentials(SECRET, patience=0.2), 0)


# -- those who can hear and repeat -----------------------------------------------------------------


class Relay:
    """Passes what it hears on to a listener, changed, and keeps it."""

    def __init__(self, target: Endpoint, change: Callable[[bytes], bytes] = bytes) -> None:
        self.said = b""
        self._target, self._change = target, change
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        self._pool = ThreadPoolExecutor(8)
        self._pool.submit(self._accept)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection((self._target.host, self._target.port))
                self._pool.submit(self._pass, near, far, True)
                self._pool.submit(self._pass, far, near, False)

    def _pass(self, source: socket.socket, sink: socket.socket, forth: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if forth:
                    data = self._change(data)
                    self.said += data
                sink.sendall(data)
        close_socket(source)
        close_socket(sink)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._pool.shutdown()


@contextmanager
def peer_listener(came: list[int], announced: str | None = None) -> Iterator[Listener]:
    """A listener for other trainers, and the ranks that came."""

    def take(rank: int, sock: socket.socket) -> None:
        came.append(rank)
        sock.close()

    listener = Listener(HOST, Credentials(SECRET), on_peer=take, key=KEY, announced=announced)
    with closing(listener):
        yield listener


def _as_rank(rank: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        fixed = len(handshake._PROTOCOL) + 1
        if not data.startswith(handshake._PROTOCOL):
            return data
        return data[:fixed] + rank.to_bytes(NAME, "big") + data[fixed + NAME :]

    return change


def _as_channel(data: bytes) -> bytes:
    return data.replace(handshake._PROTOCOL + PEER, handshake._PROTOCOL + UP)


@pytest.mark.parametrize("change", [_as_rank(7), _as_channel, bytes], ids=["rank", "role", "port"])
def test_a_relayed_proof_is_worth_nothing(change: Callable[[bytes], bytes]) -> None:
    """With another rank or role, or to another listener than the one that was called."""
    came: list[int] = []
    with peer_listener(came) as listener:
        relay = Relay(listener.endpoint, change)
        try:
            announced = Endpoint(KEY, HOST, relay.port)
            with pytest.raises(CommunicationError, match="Cannot connect"):
                call_peer(announced, Credentials(SECRET, patience=PATIENCE), 3)
        finally:
            relay.close()
        call_peer(listener.endpoint, Credentials(SECRET), 5).close()
        until(lambda: bool(came))
    assert came == [5]


def test_a_call_meant_for_another_listener_is_refused() -> None:
    """The same port, but a listener of another name: it was another rank's, or another run's."""
    came: list[int] = []
    with peer_listener(came) as listener:
        other = replace(listener.endpoint, key="run-0-2")
        with pytest.raises(CommunicationError, match="Cannot connect"):
            call_peer(other, Credentials(SECRET, patience=PATIENCE), 3)
    assert came == []


def test_a_replayed_handshake_is_refused() -> None:
    came: list[int] = []
    with peer_listener(came) as listener:
        # The caller is told the relay's address as the listener's own: it stands in the path.
        relay = Relay(listener.endpoint)
        listener.endpoint = replace(listener.endpoint, port=relay.port)
        try:
            call_peer(listener.endpoint, Credentials(SECRET), 3).close()
            until(lambda: came == [3])
            with closing(socket.create_connection((HOST, listener.port))) as sock:
                sock.sendall(relay.said)
                assert is_closed(sock)
        finally:
            relay.close()
    assert came == [3]


def test_reflected_proofs_are_refused() -> None:
    """What a caller says, or its own listener answers, is no proof of the side it faces."""

    def echo(server: socket.socket) -> None:
        sock, _ = server.accept()
        with sock:
            sock.settimeout(20)
            hello = sock.recv(1 << 16)
            # Its nonce as ours, and then whatever it says as ours.
            sock.sendall(hello[-32:] + hello[-32:])
            with suppress(OSError):
                sock.sendall(sock.recv(1 << 16))

    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as pool:
        mirror = pool.submit(echo, server)
        with pytest.raises(CommunicationError, match="secret"):
            call_peer(Endpoint(KEY, HOST, server.getsockname()[1]), Credentials(SECRET), 0)
        mirror.result(20)
    came: list[int] = []
    with peer_listener(came) as listener:
        with closing(socket.create_connection((HOST, listener.port), timeout=20)) as sock:
            sock.sendall(handshake._HELLO.pack(handshake._PROTOCOL, PEER, bytes(NAME), bytes(32)))
            answer = Deadline(20).receive(sock, 64)
            sock.sendall(answer[32:])  # the listener's proof as the caller's
            assert is_closed(sock)
    assert came == []


def test_a_listener_on_all_addresses_goes_by_the_name_that_is_announced() -> None:
    came: list[int] = []
    with peer_listener(came, announced="localhost") as listener:
        assert listener.endpoint.host == "localhost"
        call_peer(listener.endpoint, Credentials(SECRET), 4).close()
        until(lambda: came == [4])


def test_an_empty_secret_opens_nothing() -> None:
    with closing(Listener(HOST, Credentials(b""))) as listener:
        with pytest.raises(CommunicationError, match="Cannot connect"):
            call_peer(listener.endpoint, Credentials(b"", patience=PATIENCE), 4)
        with closing(socket.create_connection((HOST, listener.port), timeout=20)) as sock:
            sock.sendall(_HELLO)
            assert is_closed(sock)
    assert "ssss" not in repr(Credentials(SECRET))
    assert str(secret := Secret.make()) == repr(pickle.loads(pickle.dumps(secret))) == "Secret(...)"


# -- many, slow, and a system without means --------------------------------------------------------


def test_a_thousand_connections(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay, and say nothing: those of the fit come in nevertheless, and all is forgotten."""
    monkeypatch.setattr(module, "_GRACE", 0.1)
    threads = threading.active_count()
    with ExitStack() as stack:
        most = 0
        for i in range(1000):
            sock = socket.socket()
            stack.enter_context(closing(sock))
            sock.setblocking(False)
            sock.connect_ex((HOST, served.endpoint.port))
            if i % 100 == 0:
                most = max(most, threading.active_count())
        served.works()
        assert most <= threads + module._MOST_GREETED + 1
    listener = served.listener
    until(lambda: not listener._guests and not listener._open and not listener._half)


@pytest.mark.parametrize("fault", ["descriptors", "threads"])
def test_the_listener_outlives_what_the_system_lacks(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 5

    def lacks(start: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            nonlocal left
            mine = getattr(self, "name", "daskml-serve") == "daskml-serve"
            if left and mine:
                left -= 1
                raise error
            return start(self, *args)

        return call

    served = Served(Credentials(SECRET, shared_memory=False, patience=PATIENCE))
    try:
        if fault == "descriptors":
            no_file = OSError(errno.EMFILE, "Too many open files")
            monkeypatch.setattr(socket.socket, "accept", lacks(socket.socket.accept, no_file))
        else:
            no_thread = RuntimeError("can't start new thread")
            start = lacks(threading.Thread.start, no_thread)
            monkeypatch.setattr(threading.Thread, "start", start)
            for _ in range(5):
                with closing(served.dial()) as sock:
                    assert is_closed(sock)
        served.works()
        assert left == 0
    finally:
        served.listener.close()


def test_half_a_connection_expires(served: Served) -> None:
    listener = served.listener
    endpoint, credentials = served.endpoint, served.credentials
    up = module._open_channel(endpoint, credentials, UP, b"n" * NAME)
    try:
        until(lambda: bool(listener._half))
        until(lambda: not listener._half and not listener._open)
        assert is_closed(up.sock)
        # The other half that comes too late finds nothing.
        late = module._open_channel(endpoint, credentials, handshake.DOWN, b"n" * NAME)
        until(lambda: not listener._half and not listener._open)
        late.close()
    finally:
        up.close()
    served.works()


def test_two_channels_of_one_direction_are_no_connection(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            channel = module._open_channel(served.endpoint, served.credentials, UP, b"n" * NAME)
            stack.enter_context(closing(channel))
        assert is_closed(channel.sock)
    until(lambda: not served.listener._open)
    served.works()


def test_a_rank_comes_once() -> None:
    listener = PeerListener(HOST, Credentials(SECRET), KEY)
    first = call_peer(listener.endpoint, Credentials(SECRET), 1)
    inbox = listener.inbox(1, Wait(20))
    second = call_peer(listener.endpoint, Credentials(SECRET), 1)
    assert is_closed(second)
    first.sendall(b"x")
    got = bytearray(1)
    inbox.read_into(memoryview(got))
    assert got == b"x"
    for end in (first, second, listener):
        end.close()


def test_closed_connections_are_forgotten(served: Served) -> None:
    for _ in range(3):
        served.works()
    until(lambda: not served.listener._open and not served.listener._guests)


# -- those who are in, and send what has no meaning ------------------------------------------------


def _request(**changed: Any) -> bytes:
    return b"".join(bytes(b) for b in encode_request(Request((0,), 0, 1, **changed), {}))


def _head(**changed: Any) -> bytes:
    """A request's header with some of its numbers changed."""
    names = (
        "kind pull progress lanes generation clock version rows loss n n_index n_wanted n_packed"
    ).split()
    plain = [wire.REQUEST, True, False, 1, 0, 1, 0, 1.0, 0.0, -1, -1, -1, 0]
    values = {**dict(zip(names, plain, strict=True)), **changed}
    return wire._REQUEST.pack(*values.values()) + struct.pack("<q", 0)


def _text(tree: Any, arrays: Any = (), length: int | None = None) -> bytes:
    text = tree if isinstance(tree, bytes) else json.dumps([arrays, tree]).encode()
    return wire._CALL.pack(wire.CALL, len(text) if length is None else length) + text


def _call(**payload: Any) -> bytes:
    return b"".join(bytes(b) for b in encode_call(payload))


def _object(name: str, *rest: Any) -> Any:
    return {"dict": [["op", "keep"], ["blob", {"object": [name, *rest]}]]}


_LANE = "daskml_dist.ps.image.LaneImage"
MALFORMED = {
    "kind": b"\x09",
    "a reply": wire._REPLY.pack(wire.REPLY, 0, False, 0, 0, 0, -1),
    "no lanes": _head(lanes=0),
    "many lanes": _head(lanes=65535) + bytes(8 * 65535),
    "another lane": _head()[:-8] + struct.pack("<q", 9),
    "many rows": _head(n=1 << 50),
    "negative rows": _head(n=-7),
    "other rows": _head(n=3) + bytes(24),
    "no number of rows": _head(rows=float("nan")),
    "keys never pulled": _head(n=0, n_index=-2),
    "many keys": _head(n_wanted=1 << 40),
    "keys beyond": _request(pull_index=np.array([0, 99])),
    "negative keys": _request(pull_index=np.array([-1, 2])),
    "keys that repeat": _request(pull_index=np.array([2, 2])),
    "packed without end": _head(n_packed=255) + wire._ARRAY.pack(b"<f8", 1 << 50),
    "packed objects": _head(n_packed=1) + wire._ARRAY.pack(b"|O", 1) + bytes(8),
    "packed without compressor": _head(n_packed=1) + wire._ARRAY.pack(b"<f8", 1) + bytes(8),
    "much text": _text(b"", length=0xFFFFFFFF),
    "no text": _text(b"\xff\xfe"),
    "nested text": _text(b"[" * 100_000),
    "long number": _text(b"[[]," + b"9" * 10_000 + b"]"),
    "no call": _text([1, 2]),
    "no operation": _call(generation=0),
    "unknown operation": _call(op="__class__", generation=0),
    "no generation": _call(op="leave", lanes=[0]),
    "no lanes to leave": _call(op="leave", generation=0, lanes=5),
    "large array": _text({"array": 0}, [["<f8", [1 << 40]]]),
    "empty huge array": _text({"array": 0}, [["<f8", [0, 1 << 100]]]),
    "many arrays": _text({"array": 0}, [["<f8", [0]]] * 1000),
    "array of objects": _text({"array": 0}, [["|O", [1]]]) + bytes(8),
    "array that is none": _text({"dict": [["op", {"array": 3}]]}),
    "strange class": _text(_object("os.system", "x", 1)),
    "half a class": _text(_object(_LANE, "loss", 1.0)),
    "wrong values": _text(_object(_LANE, "loss", "rows", "steps", "shard", "x", 1.0, 1, None)),
    "a pickle": _text(pickle.dumps({"op": "keep"})),
}


@pytest.fixture(scope="module")
def inner() -> Iterator[Served]:
    """A server without TLS that all malformed frames share."""
    served = Served(Credentials(SECRET, shared_memory=False))
    yield served
    served.listener.close()


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=list(MALFORMED))
def test_a_frame_without_meaning_ends_its_connection_alone(inner: Served, frame: bytes) -> None:
    up, down = call_listener(inner.endpoint, inner.credentials)
    with closing(up), closing(down):
        with suppress(OSError):
            up.sock.sendall(frame)
        assert is_closed(down.sock)
    assert inner.losses.acquire(timeout=20)
    inner.works()


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_into(self, buffer: memoryview) -> None:
        if len(self._data) < len(buffer):
            raise CommunicationError("end of file")
        buffer[:] = self._data[: len(buffer)]
        self._data = self._data[len(buffer) :]


def _frames() -> list[bytes]:
    image = LaneImage(
        1.5,
        2.0,
        3,
        ShardImage(np.ones((8, 1)), {"m": np.ones((8, 1))}, 1, 0, 2.0, 0.5, None, None, 0),
    )
    return [
        _request(values=np.ones((8, 1)), rows=2.0),
        _request(values=np.ones((3, 1)), index=np.arange(3), pull_index=np.arange(4)),
        _call(op="store", clock=3, blob={0: image}),
    ]


def _fuzz(seed: int, count: int) -> None:
    """Frames with some bytes changed or cut off are read, or refused with an error of the tree."""
    rng, frames = np.random.default_rng(seed), _frames()
    for _ in range(count):
        data = bytearray(frames[rng.integers(len(frames))])
        for at in rng.integers(len(data), size=rng.integers(1, 4)):
            data[at] = rng.integers(256)
        with suppress(DaskMLDistError):
            Reader(_Bytes(bytes(data[: rng.integers(1, len(data) + 1)])), BOUNDS).read()
        packed = bytearray(pack([np.arange(4), np.ones((2, 3), np.float32)]))
        packed[rng.integers(len(packed))] = rng.integers(256)
        with suppress(DaskMLDistError):
            unpack(np.frombuffer(bytes(packed), np.uint8))


def test_changed_frames_are_refused_or_read() -> None:
    _fuzz(0, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_changed_frames(seed: int) -> None:
    _fuzz(seed, 20_000)


def test_images_travel_whole_and_as_data() -> None:
    reader = Reader(_Bytes(_frames()[2]), BOUNDS)
    found = reader.read()
    assert isinstance(found, dict)
    image = found["blob"][0]
    assert isinstance(image, LaneImage)
    assert image.shard is not None
    assert (image.loss, image.steps, image.shard.charged) == (1.5, 3, 0.5)
    np.testing.assert_array_equal(image.shard.slots["m"], np.ones((8, 1)))
    image.shard.w[0] = 5  # its own, to be written to
    thing = {"a": [1, (2.5, None)], "b": {3}, 4: np.arange(3), "inf": float("inf")}
    again = unpack_object(pack_object(thing, {}), {})
    np.testing.assert_array_equal(again.pop(4), thing.pop(4))
    assert again == thing
    with pytest.raises(TypeError, match="cannot travel"):
        pack_object(Path("x"), kinds(SENT))
    with pytest.raises(CommunicationError):
        unpack_object(pickle.dumps(thing), {})


@pytest.mark.parametrize("rows", [3, 9])
def test_an_answer_that_nobody_asked_for_ends_the_connection(rows: int) -> None:
    def answer(up: Any, down: Any) -> None:
        with suppress(CommunicationError):
            out = down.outbox(Wait(20))
            out.send(wire.encode_reply(Reply(0, values=np.zeros((rows, 1)))))
            up.inbox(Wait(20)).read_into(memoryview(bytearray(1000)))
        up.close()
        down.close()

    credentials = Credentials(SECRET, shared_memory=False)
    with closing(Listener(HOST, credentials, on_pair=answer)) as listener:
        connection = RemoteConnection(listener.endpoint, credentials, Wait(20), BOUNDS)
        connection.send(Request((0,), 0, 1))
        with pytest.raises(CommunicationError):
            connection.receive(0)
        connection.close()


@pytest.mark.parametrize("length", [-1, 1 << 60])
def test_a_trainer_that_announces_too_much(length: int) -> None:
    """Nothing is made room for before it has come."""
    credentials = Credentials(SECRET)
    listeners = [PeerListener(HOST, credentials, f"{KEY}-{rank}") for rank in range(2)]
    endpoints = [listener.endpoint for listener in listeners]
    with ThreadPoolExecutor(2) as pool:

        def meet(rank: int) -> PeerGroup:
            return PeerGroup(rank, endpoints, listeners[rank], credentials, Wait(20))

        groups = list(pool.map(meet, range(2)))
        gathering = pool.submit(groups[0].allgather, [np.ones(3)])
        groups[1]._out[0].send([struct.pack("<q", length), bytes(100)])
        groups[1].close()
        with pytest.raises(CommunicationError):
            gathering.result(20)
        groups[0].close()
