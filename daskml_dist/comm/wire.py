"""Frames: how requests, replies and control calls look as bytes.

A push of the rows that its lane pulled last does not name them again: both ends remember the keys
of the last pull (key caching; Li et al., "Scaling Distributed Machine Learning with the Parameter
Server", OSDI 2014, section 3.4).
"""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.compression import Packed
from daskml_dist.errors import CommunicationError
from daskml_dist.ps.messages import Call, Reply, Request, Status

__all__ = [
    "CALL",
    "REPLY",
    "REQUEST",
    "Keys",
    "Reader",
    "encode_call",
    "encode_reply",
    "encode_request",
]

REQUEST, REPLY, CALL = 1, 2, 3

# kind, pull, whether progress follows, lanes, generation, clock, version, rows, loss; then the
# lengths of values, index (-1: none, -2: what was pulled last) and pull_index (-1: none), and how
# many arrays `packed` has (0: none)
_REQUEST = struct.Struct("<B??HqqqddqqqB")
# dtype and length of an array of `packed`
_ARRAY = struct.Struct("<8sq")
# kind, status, stop, lane, version, clock, values (-1: none)
_REPLY = struct.Struct("<BB?qqqq")
# kind, length of the JSON text, length of the pickled object (-1: none)
_CALL = struct.Struct("<BIq")

_PULLED_LAST = -2

Buffers = list[Any]
#: The rows that each lane pulled last; one of each connection at either end.
Keys = dict[int, NDArray[np.int64]]


class _Source(Protocol):
    """Whatever bytes can be read from exactly."""

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer."""


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


def _length(array: NDArray[Any] | None) -> int:
    return -1 if array is None else len(array)


def encode_request(request: Request, keys: Keys) -> Buffers:
    """Buffers of a request, header first; `keys` are the sender's, and are kept up."""
    values, index, wanted = request.values, request.index, request.pull_index
    n_index, lane = _length(index), request.lanes[0]
    if index is not None and lane in keys and np.array_equal(index, keys[lane]):
        index, n_index = None, _PULLED_LAST
    if wanted is not None:
        keys[lane] = wanted.copy()
    header = _REQUEST.pack(
        REQUEST, request.pull, request.progress is not None, len(request.lanes),
        request.generation, request.clock, request.version, request.rows, request.loss,
        _length(values), n_index, _length(wanted),
        0 if request.packed is None else len(request.packed.arrays),
    )  # fmt: skip
    arrays: list[NDArray[Any] | None] = [request.progress, values, index, wanted]
    buffers: Buffers = [header + np.array(request.lanes, dtype="<i8").tobytes()]
    buffers += [_bytes_of(a) for a in arrays if a is not None and a.size]
    for array in () if request.packed is None else request.packed.arrays:
        buffers.append(_ARRAY.pack(array.dtype.str.encode(), len(array)))
        buffers += [_bytes_of(array)] if array.size else []
    return buffers


def encode_reply(reply: Reply) -> Buffers:
    """Buffers of a reply, header first."""
    rows = _length(reply.values)
    header = _REPLY.pack(
        REPLY, int(reply.status), reply.stop, reply.lane, reply.version, reply.clock, rows
    )
    if reply.values is None or rows == 0:
        return [header]
    return [header, _bytes_of(reply.values)]


def encode_call(message: Call) -> Buffers:
    """Buffers of a control call or its answer; both sides have proved that they know the secret."""
    blob = message.get("blob")
    text = json.dumps({k: v for k, v in message.items() if k != "blob"}).encode()
    if blob is None:
        return [_CALL.pack(CALL, len(text), -1) + text]
    data = pickle.dumps(blob, protocol=pickle.HIGHEST_PROTOCOL)
    return [_CALL.pack(CALL, len(text), len(data)) + text, data]


class Reader:
    """Reads frames from a source.

    Parameters
    ----------
    source : object with ``read_into(memoryview)``
    dtype : dtype of the parameters
    width : int
        Second dimension of the parameters.
    """

    def __init__(self, source: _Source, dtype: DTypeLike, width: int) -> None:
        self._source = source
        self._dtype = np.dtype(dtype)
        self._width = width
        self._keys: Keys = {}
        self._kind = bytearray(1)
        self._heads = {
            REQUEST: (_REQUEST, bytearray(_REQUEST.size)),
            REPLY: (_REPLY, bytearray(_REPLY.size)),
            CALL: (_CALL, bytearray(_CALL.size)),
        }

    def _array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        array = np.empty(shape, dtype=dtype)
        if array.size:
            self._source.read_into(array.data.cast("B"))
        return array

    def _header(self, kind: int) -> tuple[Any, ...]:
        layout, buffer = self._heads[kind]
        buffer[0] = kind
        self._source.read_into(memoryview(buffer)[1:])
        return layout.unpack(buffer)

    def read(self) -> Request | Reply | Call:
        """Read one frame, whatever it is."""
        self._source.read_into(memoryview(self._kind))
        kind = self._kind[0]
        if kind == REQUEST:
            return self._request()
        if kind == REPLY:
            return self._reply()
        if kind != CALL:
            raise CommunicationError(
                f"A frame of unknown kind {kind} came in. Is something else connecting to the "
                "workers' ports? Fit again."
            )
        (_, length, size) = self._header(CALL)
        message: Call = json.loads(self._bytes(length))
        if size >= 0:
            message["blob"] = pickle.loads(self._bytes(size))
        return message

    def _bytes(self, length: int) -> bytearray:
        data = bytearray(length)
        self._source.read_into(memoryview(data))
        return data

    def _request(self) -> Request:
        (
            _, pull, has_progress, n_lanes, generation, clock, version, rows, loss,
            n, n_index, n_wanted, n_packed,
        ) = self._header(REQUEST)  # fmt: skip
        lanes = tuple(self._array((n_lanes,), "<i8").tolist())
        progress = self._array((n_lanes, 3), np.float64) if has_progress else None
        values = self._array((n, self._width), self._dtype) if n >= 0 else None
        index = self._array((n_index,), np.int64) if n_index >= 0 else None
        if n_index == _PULLED_LAST:
            index = self._keys[lanes[0]]
        wanted = self._array((n_wanted,), np.int64) if n_wanted >= 0 else None
        if wanted is not None:
            self._keys[lanes[0]] = wanted
        packed = Packed(tuple(self._packed() for _ in range(n_packed))) if n_packed else None
        return Request(
            lanes, generation, clock, version, rows, values, index, pull, wanted, loss, progress,
            owned=True, packed=packed,
        )  # fmt: skip

    def _packed(self) -> NDArray[Any]:
        dtype, length = _ARRAY.unpack(self._bytes(_ARRAY.size))
        return self._array((length,), dtype.rstrip(b"\0").decode())

    def _reply(self) -> Reply:
        _, status, stop, lane, version, clock, rows = self._header(REPLY)
        values = None
        if rows >= 0:
            values = self._array((rows, self._width), self._dtype)
            values.flags.writeable = False
        return Reply(lane, Status(status), stop, version, clock, values)
