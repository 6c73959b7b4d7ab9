"""Malformed frames of authenticated peers, and snapshots sent as data without pickles."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm import wire
from daskml_dist.comm.base import ConnectionSettings, WaitBound
from daskml_dist.comm.listener import Credentials, Listener, call_listener
from daskml_dist.comm.packing import (
    name_classes,
    pack_arrays,
    pack_object,
    unpack_arrays,
    unpack_object,
)
from daskml_dist.comm.server_connections import RemoteConnection
from daskml_dist.comm.socket_group import PeerGroup, PeerListener
from daskml_dist.comm.wire import FrameReader, encode_call, encode_request
from daskml_dist.errors import CommunicationError, DaskMLDistError
from daskml_dist.ps.messages import ServerReply, ServerRequest
from daskml_dist.ps.shard_state import ShardSnapshot
from daskml_dist.ps.snapshots import SNAPSHOT_CLASSES, LaneSnapshot
from tests.comm.attacks.served import BOUNDS, HOST, KEY, SECRET, Served, is_closed


def _request(**changed: Any) -> bytes:
    return b"".join(bytes(b) for b in encode_request(ServerRequest((0,), 0, 1, **changed), {}))


def _head(**changed: Any) -> bytes:
    """A request's header with some of its numbers changed."""
    names = (
        "kind pull lanes generation clock version rows loss n_progress n n_index n_wanted n_packed"
    ).split()
    plain = [wire.REQUEST, True, 1, 0, 1, 0, 1.0, 0.0, -1, -1, -1, -1, 0]
    values = {**dict(zip(names, plain, strict=True)), **changed}
    return wire._REQUEST.pack(*values.values()) + struct.pack("<q", 0)


def _text(tree: Any, arrays: Any = (), length: int | None = None) -> bytes:
    text = tree if isinstance(tree, bytes) else json.dumps([arrays, tree]).encode()
    return wire._CALL.pack(wire.CALL, len(text) if length is None else length) + text


def _call(**payload: Any) -> bytes:
    return b"".join(bytes(b) for b in encode_call(payload))


def _object(name: str, *rest: Any) -> Any:
    return {"dict": [["op", "keep"], ["blob", {"object": [name, *rest]}]]}


_LANE = "daskml_dist.ps.snapshots.LaneSnapshot"
MALFORMED = {
    "kind": b"\x09",
    "a reply": wire._REPLY.pack(wire.REPLY, 0, False, 0, 0, 0, -1, 0),
    "no lanes": _head(lanes=0),
    "many lanes": _head(lanes=65535) + bytes(8 * 65535),
    "another lane": _head()[:-8] + struct.pack("<q", 9),
    "many rows": _head(n=1 << 50),
    "negative rows": _head(n=-7),
    "other rows": _head(n=3) + bytes(24),
    "many clocks": _head(n_progress=1 << 20),
    "a negative number of clocks": _head(n_progress=-2),
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
    served = Served(Credentials(SECRET, settings=ConnectionSettings(False)))
    yield served
    served.listener.close()


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_frame_closes_only_its_connection(inner: Served, frame: bytes) -> None:
    up, down = call_listener(inner.endpoint, inner.credentials)
    with closing(up), closing(down):
        with suppress(OSError):
            up.sock.sendall(frame)
        assert is_closed(down.sock)
    assert inner.losses.acquire(timeout=200)
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
    snapshot = LaneSnapshot(
        1.5,
        2.0,
        3,
        ShardSnapshot(np.ones((8, 1)), {"m": np.ones((8, 1))}, 1, 0, 2.0, 0.5, None, None, 0),
    )
    return [
        _request(values=np.ones((8, 1)), rows=2.0),
        _request(values=np.ones((3, 1)), index=np.arange(3), pull_index=np.arange(4)),
        _call(op="store", clock=3, blob={0: snapshot}),
    ]


def _fuzz(seed: int, count: int) -> None:
    """Frames with changed or missing bytes are read, or refused with an error of the package."""
    rng, frames = np.random.default_rng(seed), _frames()
    for _ in range(count):
        data = bytearray(frames[rng.integers(len(frames))])
        for at in rng.integers(len(data), size=rng.integers(1, 4)):
            data[at] = rng.integers(256)
        with suppress(DaskMLDistError):
            FrameReader(_Bytes(bytes(data[: rng.integers(1, len(data) + 1)])), BOUNDS).read_frame()
        packed = bytearray(pack_arrays([np.arange(4), np.ones((2, 3), np.float32)]))
        packed[rng.integers(len(packed))] = rng.integers(256)
        with suppress(DaskMLDistError):
            unpack_arrays(np.frombuffer(bytes(packed), np.uint8))


def test_changed_frames_are_refused_or_read() -> None:
    _fuzz(0, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_changed_frames(seed: int) -> None:
    _fuzz(seed, 20_000)


def test_snapshots_are_sent_unchanged_and_as_data() -> None:
    reader = FrameReader(_Bytes(_frames()[2]), BOUNDS)
    found = reader.read_frame()
    assert isinstance(found, dict)
    snapshot = found["blob"][0]
    assert isinstance(snapshot, LaneSnapshot)
    assert snapshot.shard is not None
    assert (snapshot.loss, snapshot.steps, snapshot.shard.rate_sum) == (1.5, 3, 0.5)
    np.testing.assert_array_equal(snapshot.shard.opt_state["m"], np.ones((8, 1)))
    snapshot.shard.w[0] = 5  # a writable copy
    thing = {"a": [1, (2.5, None)], "b": {3}, 4: np.arange(3), "inf": float("inf")}
    unpacked = unpack_object(pack_object(thing, {}), {})
    np.testing.assert_array_equal(unpacked.pop(4), thing.pop(4))
    assert unpacked == thing
    with pytest.raises(TypeError, match="cannot be sent"):
        pack_object(Path("x"), name_classes(SNAPSHOT_CLASSES))
    with pytest.raises(CommunicationError):
        unpack_object(pickle.dumps(thing), {})


@pytest.mark.parametrize("rows", [3, 9])
def test_an_unrequested_reply_closes_the_connection(rows: int) -> None:
    def answer(up: Any, down: Any) -> None:
        with suppress(CommunicationError):
            out = down.open_outbox(WaitBound(20))
            out.send(wire.encode_reply(ServerReply(0, values=np.zeros((rows, 1)))))
            up.open_inbox(WaitBound(20)).read_into(memoryview(bytearray(1000)))
        up.close()
        down.close()

    credentials = Credentials(SECRET, settings=ConnectionSettings(False))
    with closing(Listener(HOST, credentials, on_pair=answer)) as listener:
        connection = RemoteConnection(listener.endpoint, credentials, WaitBound(20), BOUNDS)
        connection.send(ServerRequest((0,), 0, 1))
        with pytest.raises(CommunicationError):
            connection.receive(0)
        connection.close()


@pytest.mark.parametrize("length", [-1, 1 << 60])
def test_announced_sizes_do_not_allocate_memory(length: int) -> None:
    """Memory is allocated only for bytes that have arrived."""
    credentials = Credentials(SECRET)
    listeners = [PeerListener(HOST, credentials, f"{KEY}-{rank}") for rank in range(2)]
    endpoints = [listener.endpoint for listener in listeners]
    with ThreadPoolExecutor(2) as pool:

        def meet(rank: int) -> PeerGroup:
            return PeerGroup(rank, endpoints, listeners[rank], credentials, WaitBound(20))

        groups = list(pool.map(meet, range(2)))
        gathering = pool.submit(groups[0].allgather, [np.ones(3)])
        groups[1]._out[0].send([struct.pack("<q", length), bytes(100)])
        groups[1].close()
        with pytest.raises(CommunicationError):
            gathering.result(20)
        groups[0].close()
