"""The codec for Arrow streams: a table of named columns in, a table of outputs out.

https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format

pyarrow trusts the sizes and offsets in a stream, which may be forged. So the expanded size of
compressed buffers is read from the stream's messages before pyarrow expands them, and the table is
validated in full before any of its values is used. The messages are FlatBuffers
(https://flatbuffers.dev/internals): a table begins with the signed distance back to its vtable,
whose 16-bit entries, after two sizes, are the offsets of the table's fields, 0 where a field is
absent; offsets to other objects are unsigned 32-bit distances forward.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.serving.protocol.requests import Answer, Question

#: Field numbers in Arrow's Message.fbs: of the header in Message; of the data (a RecordBatch) in
#: DictionaryBatch; of the buffers and their compression in RecordBatch.
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_INT32, _UINT16, _UINT32 = struct.Struct("<i"), struct.Struct("<H"), struct.Struct("<I")
_INT64, _BUFFER = struct.Struct("<q"), struct.Struct("<qq")


def _unpacked_size(buffer: Any, library: Any) -> int:
    """Return the bytes of a stream's compressed buffers after decompression."""
    reader, total = library.ipc.MessageReader.open_stream(buffer), 0
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return total
        total += _unpacked_message_size(message)


def _unpacked_message_size(message: Any) -> int:
    """Return the decompressed bytes of a message's buffers; 0 for an uncompressed message."""
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
        # A compressed buffer begins with its decompressed size, or -1 if it is stored uncompressed.
        if length > 0:
            size = _INT64.unpack_from(held, offset)[0]
            total += length if size == -1 else max(0, size)
    return total


def _find_field(table: memoryview, table_start: int, field: int) -> int | None:
    """Return the position of the object in a FlatBuffers table's field; None if absent.

    `table_start` is the position of the table; see the module's docstring.
    """
    vtable = table_start - _INT32.unpack_from(table, table_start)[0]
    entry = 4 + _UINT16.size * field
    # A writer of an older version, which lacks later fields, makes shorter vtables.
    if entry >= _UINT16.unpack_from(table, vtable)[0]:
        return None
    place = _UINT16.unpack_from(table, vtable + entry)[0]
    return (
        None
        if place == 0
        else table_start + place + _UINT32.unpack_from(table, table_start + place)[0]
    )


CONTENT_TYPES = ("application/vnd.apache.arrow.stream",)

#: Decompressed bytes allowed for any stream, and the multiple of its own bytes allowed for larger
#: ones.
_MIN_EXPANDED_BYTES, _MAX_EXPANSION = 2**24, 4
_HEADERS = ((b"content-type", CONTENT_TYPES[0].encode()),)


def read(body: bytes, headers: Mapping[bytes, bytes], predictor: Any) -> Question:
    """Return a stream as a question: a tensor for each column, or one matrix.

    It is a matrix if the model has no feature names and all columns are numbers.
    """
    arrow = _load_pyarrow()
    try:
        table = _read_table(arrow, arrow.py_buffer(body))
        columns = [
            (name, _convert_column(name, table[at])) for at, name in enumerate(table.column_names)
        ]
    except (arrow.ArrowException, OSError, struct.error, UnicodeDecodeError) as error:
        raise RequestError(
            f"The body is not a complete Arrow stream ({error}): send one."
        ) from None
    if predictor.names is None and columns and all(v.dtype.kind in "biuf" for _, v in columns):
        return Question([("rows", np.column_stack([values for _, values in columns]))])
    return Question(columns)


def _read_table(arrow: Any, buffer: Any) -> Any:
    """Return the table of a stream, after checking that no buffer exceeds the stream's bytes.

    Arrow trusts the offsets, indices and row counts of a stream unless it is told to check them;
    and compressed buffers, or columns that share buffers, may expand to far more than was sent.
    """
    most = max(_MIN_EXPANDED_BYTES, _MAX_EXPANSION * buffer.size)
    if (size := _unpacked_size(buffer, arrow)) <= most:
        with arrow.ipc.open_stream(buffer) as stream:
            table = stream.read_all()
        # Cheap checks first: `nbytes` may read beyond the buffers of a table that fails them.
        table.validate()
        if (size := table.nbytes) <= most:
            table.validate(full=True)
            return table
    raise RequestError(
        f"The stream of {buffer.size} bytes holds {size}: send fewer rows at a time, in one batch, "
        "uncompressed.",
        413,
    )


def _convert_column(name: str, column: Any) -> NDArray[Any]:
    """Return a column as an array; raise unless it holds numbers, booleans or strings."""
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
    # A cast would make an object for the text of each row.
    if is_dictionary and is_text:
        return _decode_dictionary(column)
    return np.asarray(column.cast(kind).to_numpy())


def _decode_dictionary(column: Any) -> NDArray[Any]:
    """Return the texts of a dictionary-encoded column: rows share the object of their entry."""
    parts = [np.empty(0, object)]
    for chunk in column.chunks:
        # The last entry, None, stands for null indices.
        entries = np.empty(len(chunk.dictionary) + 1, object)
        entries[:-1] = chunk.dictionary.to_numpy(zero_copy_only=False)
        parts.append(entries[chunk.indices.cast("int64").fill_null(len(entries) - 1).to_numpy()])
    return np.concatenate(parts)


def write(answer: Answer, question: Question) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return headers and body: one column per output, of lists if rows have several values."""
    arrow = _load_pyarrow()
    columns = {}
    for name, values in answer.outputs:
        if values.ndim == 1:
            columns[name] = arrow.array(values)
            continue
        # Columns of Arrow are one-dimensional: several values per row are a list of fixed size.
        width = int(np.prod(values.shape[1:]))
        flat = arrow.array(np.ascontiguousarray(values).ravel())
        columns[name] = arrow.FixedSizeListArray.from_arrays(flat, width)
    table = arrow.table(columns)
    # Model, version and id, which JSON has beside the outputs, are in the schema's metadata.
    facts = {"model_name": answer.model, "model_version": answer.version, "id": question.id or ""}
    table = table.replace_schema_metadata(facts)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return _HEADERS, sink.getvalue().to_pybytes()


def _load_pyarrow() -> Any:
    """Return pyarrow with its IPC; raise 415 if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise RequestError(
            "This server has no pyarrow: send application/json, or install "
            "daskml-dist[dataframe] on the server.",
            415,
        ) from None
    import pyarrow.ipc

    return pyarrow
