"""The codec of Arrow streams: a table of named columns in, a table of answers out.

https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.serving.protocol.requests import Answer, Question

#: Numbers of fields: of a message its header; of a batch of a dictionary its rows; of rows their
#: buffers and their compression.
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_INT32, _UINT16, _UINT32 = struct.Struct("<i"), struct.Struct("<H"), struct.Struct("<I")
_INT64, _BUFFER = struct.Struct("<q"), struct.Struct("<qq")


def unpacked_size(body: Any, library: Any) -> int:
    """Return the bytes that the compressed buffers of a stream take once unpacked."""
    reader, total = library.ipc.MessageReader.open_stream(body), 0
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return total
        total += _unpacked_message_size(message)


def _unpacked_message_size(message: Any) -> int:
    table = memoryview(message.metadata)
    if message.type not in ("record batch", "dictionary") or message.body is None:
        return 0
    rows = _find_field(table, _UINT32.unpack_from(table, 0)[0], _HEADER)
    if message.type == "dictionary" and rows is not None:
        rows = _find_field(table, rows, _DATA)
    if rows is None or _find_field(table, rows, _COMPRESSION) is None:
        return 0
    held, total, at = memoryview(message.body), 0, _find_field(table, rows, _BUFFERS)
    for number in range(0 if at is None else _UINT32.unpack_from(table, at)[0]):
        assert at is not None
        offset, length = _BUFFER.unpack_from(table, at + 4 + _BUFFER.size * number)
        if length > 0:  # behind how long it is unpacked; -1: it is not compressed
            said = _INT64.unpack_from(held, offset)[0]
            total += length if said == -1 else max(0, said)
    return total


def _find_field(table: memoryview, at: int, field: int) -> int | None:
    """Return the place that a field of a table refers to; None where it has no such field."""
    known = at - _INT32.unpack_from(table, at)[0]
    entry = 4 + _UINT16.size * field
    if entry >= _UINT16.unpack_from(table, known)[0]:
        return None
    place = _UINT16.unpack_from(table, known + entry)[0]
    return None if place == 0 else at + place + _UINT32.unpack_from(table, at + place)[0]


CONTENT_TYPES = ("application/vnd.apache.arrow.stream",)

#: Bytes that a stream may become: so many, or so many times its own.
_UNPACKED, _TIMES = 2**24, 4
_HEADERS = ((b"content-type", CONTENT_TYPES[0].encode()),)


def read(body: bytes, headers: Mapping[bytes, bytes], predictor: Any) -> Question:
    """Return a stream as a question: a tensor a column, or one matrix where names are unknown."""
    arrow = _load_pyarrow()
    try:
        table = _read_table(arrow, arrow.py_buffer(body))
        columns = [
            (name, _convert_column(name, table[at])) for at, name in enumerate(table.column_names)
        ]
    except (arrow.ArrowException, OSError, struct.error, UnicodeDecodeError) as error:
        raise RequestError(f"The body is no whole Arrow stream ({error}): send one.") from None
    if predictor.names is None and columns and all(v.dtype.kind in "biuf" for _, v in columns):
        return Question([("rows", np.column_stack([values for _, values in columns]))])
    return Question(columns)


def _read_table(arrow: Any, body: Any) -> Any:
    """Return the table of a stream, none of whose buffers reaches beyond the stream's bytes.

    Arrow believes the offsets, indices and numbers of rows of a stream until it is told to check
    them; and compressed buffers, and columns that share theirs, may become far more than was sent.
    """
    most = max(_UNPACKED, _TIMES * body.size)
    if (size := unpacked_size(body, arrow)) <= most:
        with arrow.ipc.open_stream(body) as stream:
            table = stream.read_all()
        table.validate()  # or even its size may not be asked for
        if (size := table.nbytes) <= most:
            table.validate(full=True)
            return table
    raise RequestError(
        f"The stream of {body.size} bytes holds {size}: send fewer rows at a time, in one batch, "
        "uncompressed.",
        413,
    )


def _convert_column(name: str, column: Any) -> NDArray[Any]:
    arrow = _load_pyarrow()
    kind = column.type
    is_dictionary = arrow.types.is_dictionary(kind)
    if is_dictionary:
        kind = kind.value_type
    is_text = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
    known = (
        arrow.types.is_integer(kind)
        or arrow.types.is_floating(kind)
        or arrow.types.is_boolean(kind)
        or is_text
    )
    if not known:
        raise RequestError(
            f"Column {name[:100]!r} is {kind}: send numbers, booleans or strings, or cast it."
        )
    if is_dictionary and is_text:
        return _decode_dictionary(column)
    return np.asarray(column.cast(kind).to_numpy())


def _decode_dictionary(column: Any) -> NDArray[Any]:
    """Return texts of a dictionary's column: rows share the text of their entry."""
    parts = [np.empty(0, object)]
    for chunk in column.chunks:
        entries = np.empty(len(chunk.dictionary) + 1, object)  # the last: what lacks
        entries[:-1] = chunk.dictionary.to_numpy(zero_copy_only=False)
        parts.append(entries[chunk.indices.cast("int64").fill_null(len(entries) - 1).to_numpy()])
    return np.concatenate(parts)


def write(answer: Answer, question: Question) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return headers and body: a column for each output, of lists where rows have several."""
    arrow = _load_pyarrow()
    columns = {}
    for name, values in answer.outputs:
        if values.ndim == 1:
            columns[name] = arrow.array(values)
            continue
        width = int(np.prod(values.shape[1:]))
        flat = arrow.array(np.ascontiguousarray(values).ravel())
        columns[name] = arrow.FixedSizeListArray.from_arrays(flat, width)
    table = arrow.table(columns)
    told = {"model_name": answer.model, "model_version": answer.version, "id": question.id or ""}
    table = table.replace_schema_metadata(told)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return _HEADERS, sink.getvalue().to_pybytes()


def _load_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise RequestError(
            "This server has no pyarrow: send application/json, or install "
            "daskml-dist[dataframe] there.",
            415,
        ) from None
    import pyarrow.ipc

    return pyarrow
