"""Frames: the byte format of requests, replies and control calls.

A push of the rows that its lane pulled last does not send their numbers again: both ends remember
the keys of the last pull (key caching; Li et al., "Scaling Distributed Machine Learning with the
Parameter Server", OSDI 2014, section 3.4).

Frames contain only data, and their contents are not trusted: every length is checked against the
`MessageBounds` of the connection before memory is allocated.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Container
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.comm.packing import (
    MessageBounds,
    check_array_layout,
    join_object,
    make_malformed_error,
    name_classes,
    split_object,
    view_bytes,
)
from daskml_dist.compression import Packed
from daskml_dist.errors import CommunicationError
from daskml_dist.ps.messages import CallPayload, ServerReply, ServerRequest, ServerStatus
from daskml_dist.ps.snapshots import SNAPSHOT_CLASSES

#: First byte of a frame: its kind.
REQUEST, REPLY, CALL = 1, 2, 3

# kind, pull, lanes, generation, clock, version, rows, loss; then the lengths of progress (-1:
# none), values, index (-1: none, -2: the rows pulled last) and pull_index (-1: none), and the
# number of arrays in `packed` (0: none)
_REQUEST = struct.Struct("<B?HqqqddqqqqB")
# dtype and length of an array of `packed`
_ARRAY = struct.Struct("<8sq")
# kind, status, stop, lane, version, clock, values (-1: none), steps to the next push
_REPLY = struct.Struct("<BB?qqqqI")
# kind, length of the JSON text: dtype and shape of each array, and the tree that names them
_CALL = struct.Struct("<BI")

#: Special numbers of rows: there is no such array; the rows of the lane's last pull.
_NO_ROWS, _PULLED_LAST = -1, -2
#: Most clocks at which a push may report a lane's progress: one per pass, so there are few.
_MOST_CLOCKS = 1 << 16
#: Classes that a call may contain besides plain values.
_CALL_CLASSES = name_classes(SNAPSHOT_CLASSES)

Buffers = list[Any]
#: The rows that each lane pulled last; each end of a connection has one such table.
PulledKeys = dict[int, NDArray[np.int64]]


class _ByteSource(Protocol):
    """Source from which an exact number of bytes can be read."""

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer."""


def _count_rows(array: NDArray[Any] | None) -> int:
    """Return the number of rows for a header; `_NO_ROWS` for None."""
    return _NO_ROWS if array is None else len(array)


def encode_request(request: ServerRequest, keys: PulledKeys) -> Buffers:
    """Return the buffers of a request, header first; updates the sender's `keys`."""
    values, index, pull_index = request.values, request.index, request.pull_index
    n_index, lane = _count_rows(index), request.lanes[0]
    # Key caching: the reader already has the rows of the lane's last pull.
    if index is not None and lane in keys and np.array_equal(index, keys[lane]):
        index, n_index = None, _PULLED_LAST
    if pull_index is not None:
        keys[lane] = pull_index.copy()
    header = _REQUEST.pack(
        REQUEST, request.pull, len(request.lanes),
        request.generation, request.clock, request.version, request.rows, request.loss,
        _count_rows(request.progress), _count_rows(values), n_index, _count_rows(pull_index),
        0 if request.packed is None else len(request.packed.arrays),
    )  # fmt: skip
    arrays: list[NDArray[Any] | None] = [request.progress, values, index, pull_index]
    buffers: Buffers = [header + np.array(request.lanes, dtype="<i8").tobytes()]
    buffers += [view_bytes(a) for a in arrays if a is not None and a.size]
    for array in () if request.packed is None else request.packed.arrays:
        buffers.append(_ARRAY.pack(array.dtype.str.encode(), len(array)))
        buffers += [view_bytes(array)] if array.size else []
    return buffers


def encode_reply(reply: ServerReply) -> Buffers:
    """Return the buffers of a reply, header first."""
    rows = _count_rows(reply.values)
    header = _REPLY.pack(
        REPLY, int(reply.status), reply.stop, reply.lane, reply.version, reply.clock, rows,
        reply.n_steps,
    )  # fmt: skip
    if reply.values is None or rows == 0:
        return [header]
    return [header, view_bytes(reply.values)]


def encode_call(message: CallPayload) -> Buffers:
    """Return the buffers of a control call or answer: plain values, arrays and snapshots."""
    # Layout of a call: header, JSON text of all dtypes, shapes and the tree, then the bytes of the
    # arrays.
    tree, arrays = split_object(message, _CALL_CLASSES)
    text = json.dumps([[(a.dtype.str, a.shape) for a in arrays], tree]).encode()
    return [_CALL.pack(CALL, len(text)) + text, *(view_bytes(a) for a in arrays if a.size)]


class FrameReader:
    """Reader of frames from a source.

    Parameters
    ----------
    source : object with ``read_into(memoryview)``
    bounds : MessageBounds
        Bounds of the frames' contents.
    kinds : container of int
        Kinds of frames that the other side may send.
    """

    def __init__(
        self,
        source: _ByteSource,
        bounds: MessageBounds,
        kinds: Container[int] = (REQUEST, REPLY, CALL),
    ) -> None:
        self._source = source
        self._bounds = bounds
        self._dtype = np.dtype(bounds.dtype)
        self._kinds = kinds
        self._keys: PulledKeys = {}
        self._kind = bytearray(1)
        self._heads = {
            REQUEST: (_REQUEST, bytearray(_REQUEST.size)),
            REPLY: (_REPLY, bytearray(_REPLY.size)),
            CALL: (_CALL, bytearray(_CALL.size)),
        }

    def _read_array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Read an array whose size was checked before."""
        array = np.empty(shape, dtype=dtype)
        if array.size:
            self._source.read_into(array.data.cast("B"))
        return array

    def _read_header(self, kind: int) -> tuple[Any, ...]:
        """Read the rest of a header, after its kind, and unpack it."""
        layout, buffer = self._heads[kind]
        buffer[0] = kind
        self._source.read_into(memoryview(buffer)[1:])
        return layout.unpack(buffer)

    def read_frame(self) -> ServerRequest | ServerReply | CallPayload:
        """Read one frame of any allowed kind."""
        self._source.read_into(memoryview(self._kind))
        kind = self._kind[0]
        if kind not in self._kinds:
            raise make_malformed_error(f"a frame of unknown kind {kind}")
        try:
            if kind == REQUEST:
                return self._read_request()
            return self._read_reply() if kind == REPLY else self._read_call()
        except CommunicationError:
            raise
        except (ValueError, TypeError, LookupError, RecursionError, MemoryError) as error:
            raise make_malformed_error(f"a frame that cannot be read ({error!r})") from error

    def _read_bytes(self, length: int) -> bytearray:
        """Read bytes whose number was checked before."""
        data = bytearray(length)
        self._source.read_into(memoryview(data))
        return data

    def _read_call(self) -> CallPayload:
        """Read a control call or its answer."""
        (_, length) = self._read_header(CALL)
        if length > self._bounds.most_text:
            raise make_malformed_error(f"{length} bytes of text")
        announced, tree = json.loads(self._read_bytes(length))
        if len(announced) > self._bounds.most_arrays:
            raise make_malformed_error(f"{len(announced)} arrays")
        # Every announced array is checked before memory is allocated for any.
        for dtype, shape in announced:
            check_array_layout(dtype, shape, self._bounds.most_array)
        arrays = [self._read_array(tuple(shape), dtype) for dtype, shape in announced]
        message = join_object(tree, arrays, _CALL_CLASSES)
        if not isinstance(message, dict):
            raise make_malformed_error("an invalid call")
        return message

    def _check_row_count(self, n: int) -> int | None:
        """Return an announced number of rows, None if there is no array; raise if too large."""
        if not _NO_ROWS <= n <= self._bounds.most_rows:
            raise make_malformed_error(f"{n} rows of {self._bounds.most_rows}")
        return None if n == _NO_ROWS else n

    def _read_request(self) -> ServerRequest:
        """Read a push, a pull or both."""
        (
            _, pull, n_lanes, generation, clock, version, rows, loss,
            n_progress, n, n_index, n_pull_index, n_packed,
        ) = self._read_header(REQUEST)  # fmt: skip
        if not (1 <= n_lanes <= self._bounds.n_lanes and 0 <= rows < math.inf):
            raise make_malformed_error(f"a push of {n_lanes} lanes and {rows} rows")
        # The header's counts are within bounds, so memory for the lanes may be allocated.
        lanes = tuple(self._read_array((n_lanes,), "<i8").tolist())
        if not 0 <= min(lanes) <= max(lanes) < self._bounds.n_lanes:
            raise make_malformed_error(f"a push of the lanes {lanes[:5]}")
        progress = self._read_progress(n_progress, n_lanes)
        n_values = self._check_row_count(n)
        values = None if n_values is None else self._read_matrix(n_values)
        index = self._keys[lanes[0]] if n_index == _PULLED_LAST else self._read_index(n_index)
        pull_index = self._read_index(n_pull_index)
        if pull_index is not None:
            self._keys[lanes[0]] = pull_index
        packed = self._read_packed(n_packed) if n_packed else None
        # Values that do not match their rows would be applied to other rows.
        if values is not None and len(values) != self._count_pushed_rows(index):
            raise make_malformed_error(
                f"{len(values)} rows of values for {self._count_pushed_rows(index)}"
            )
        return ServerRequest(
            lanes, generation, clock, version, rows, values, index, pull, pull_index, loss,
            progress, owned=True, packed=packed,
        )  # fmt: skip

    def _read_progress(self, n: int, n_lanes: int) -> NDArray[np.float64] | None:
        """Read the progress of lanes, or of one lane clock by clock; None if it is not reported."""
        if n == _NO_ROWS:
            return None
        if n != n_lanes and not (n_lanes == 1 and 2 <= n <= _MOST_CLOCKS):
            raise make_malformed_error(f"progress of {n} parts")
        return self._read_array((n, 3), np.float64)

    def _count_pushed_rows(self, index: NDArray[np.int64] | None) -> int:
        """Return the number of parameter rows that a push covers."""
        return self._bounds.n_rows if index is None else len(index)

    def _read_matrix(self, n_rows: int) -> NDArray[Any]:
        """Read rows of the parameters."""
        return self._read_array((n_rows, self._bounds.width), self._dtype)

    def _read_index(self, n: int) -> NDArray[np.int64] | None:
        """Read row numbers of the shard, which must be sorted and unique."""
        length = self._check_row_count(n)
        if length is None:
            return None
        index = self._read_array((length,), np.int64)
        if length and not (
            0 <= index[0] and index[-1] < self._bounds.n_rows and (index[1:] > index[:-1]).all()
        ):
            raise make_malformed_error("rows that the server has not")
        return index

    def _read_packed(self, n_arrays: int) -> Packed:
        """Read a compressed push, whose arrays have a common bound."""
        arrays, bytes_left = [], self._bounds.most_packed
        for _ in range(n_arrays):
            dtype, length = _ARRAY.unpack(self._read_bytes(_ARRAY.size))
            checked_dtype, size = check_array_layout(
                dtype.rstrip(b"\0").decode(), (length,), bytes_left
            )
            bytes_left -= size
            arrays.append(self._read_array((length,), checked_dtype))
        return Packed(tuple(arrays))

    def _read_reply(self) -> ServerReply:
        """Read the answer to a pull."""
        _, status, stop, lane, version, clock, rows, n_steps = self._read_header(REPLY)
        n_values = self._check_row_count(rows)
        values = None
        if n_values is not None:
            values = self._read_matrix(n_values)
            # As from a server in the same process, where lanes share the arrays that they pull.
            values.flags.writeable = False
        return ServerReply(lane, ServerStatus(status), stop, version, clock, values, n_steps)
