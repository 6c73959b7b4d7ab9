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
from daskml_dist.serving.protocol.arrow_sizes import unpacked_size
from daskml_dist.serving.protocol.messages import Answer, Question

__all__ = ["CONTENT_TYPES", "read", "write"]

CONTENT_TYPES = ("application/vnd.apache.arrow.stream",)

#: Bytes that a stream may become: so many, or so many times its own.
_UNPACKED, _TIMES = 2**24, 4
_HEADERS = ((b"content-type", CONTENT_TYPES[0].encode()),)


def read(body: bytes, headers: Mapping[bytes, bytes], predictor: Any) -> Question:
    """A stream as a question: a tensor a column, or one matrix where the model knows no names."""
    arrow = _library()
    try:
        table = _table(arrow, arrow.py_buffer(body))
        columns = [(name, _values(name, table[at])) for at, name in enumerate(table.column_names)]
    except (arrow.ArrowException, OSError, struct.error, UnicodeDecodeError) as error:
        raise RequestError(f"The body is no whole Arrow stream ({error}): send one.") from None
    if predictor.names is None and columns and all(v.dtype.kind in "biuf" for _, v in columns):
        return Question([("rows", np.column_stack([values for _, values in columns]))])
    return Question(columns)


def _table(arrow: Any, body: Any) -> Any:
    """The table of a stream, of which nothing reaches beyond the stream's own bytes.

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


def _values(name: str, column: Any) -> NDArray[Any]:
    arrow = _library()
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
        return _looked_up(column)
    return np.asarray(column.cast(kind).to_numpy())


def _looked_up(column: Any) -> NDArray[Any]:
    """Texts of a dictionary's column: rows share those of their entry, which may be long."""
    parts = [np.empty(0, object)]
    for chunk in column.chunks:
        entries = np.empty(len(chunk.dictionary) + 1, object)  # the last: what lacks
        entries[:-1] = chunk.dictionary.to_numpy(zero_copy_only=False)
        parts.append(entries[chunk.indices.cast("int64").fill_null(len(entries) - 1).to_numpy()])
    return np.concatenate(parts)


def write(answer: Answer, question: Question) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Headers and body of an answer: a column an output, a list a row where it has several."""
    arrow = _library()
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


def _library() -> Any:
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
