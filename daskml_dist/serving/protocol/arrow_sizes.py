"""Sizes that the messages of an Arrow stream say they take unpacked, before any is unpacked.

Arrow makes room for what a compressed buffer says that it holds, and fills it, so a body of some
kilobytes can take gigabytes. It reads a message whole, so these numbers are read from its metadata:
https://github.com/apache/arrow/blob/main/format/Message.fbs, tables of flatbuffers
(https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["unpacked_size"]

#: Numbers of fields: of a message its header; of a batch of a dictionary its rows; of rows their
#: buffers and their compression.
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_INT32, _UINT16, _UINT32 = struct.Struct("<i"), struct.Struct("<H"), struct.Struct("<I")
_INT64, _BUFFER = struct.Struct("<q"), struct.Struct("<qq")


def unpacked_size(body: Any, library: Any) -> int:
    """Bytes of the compressed buffers of a stream, once they are unpacked."""
    reader, total = library.ipc.MessageReader.open_stream(body), 0
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return total
        total += _unpacked(message)


def _unpacked(message: Any) -> int:
    table = memoryview(message.metadata)
    if message.type not in ("record batch", "dictionary") or message.body is None:
        return 0
    rows = _child(table, _UINT32.unpack_from(table, 0)[0], _HEADER)
    if message.type == "dictionary" and rows is not None:
        rows = _child(table, rows, _DATA)
    if rows is None or _child(table, rows, _COMPRESSION) is None:
        return 0
    held, total, at = memoryview(message.body), 0, _child(table, rows, _BUFFERS)
    for number in range(0 if at is None else _UINT32.unpack_from(table, at)[0]):
        assert at is not None
        offset, length = _BUFFER.unpack_from(table, at + 4 + _BUFFER.size * number)
        if length > 0:  # behind how long it is unpacked; -1: it is not compressed
            said = _INT64.unpack_from(held, offset)[0]
            total += length if said == -1 else max(0, said)
    return total


def _child(table: memoryview, at: int, field: int) -> int | None:
    """Place of what a field of a table refers to; None where the table has no such field."""
    known = at - _INT32.unpack_from(table, at)[0]
    entry = 4 + _UINT16.size * field
    if entry >= _UINT16.unpack_from(table, known)[0]:
        return None
    place = _UINT16.unpack_from(table, known + entry)[0]
    return None if place == 0 else at + place + _UINT32.unpack_from(table, at + place)[0]
