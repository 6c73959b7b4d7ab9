"""The codec of the binary extension: a header in JSON, followed by tensors as raw bytes.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/binary_data.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.serving.protocol.requests import (
    Answer,
    Question,
    decode_request,
    find_datatype,
    list_values,
    make_question,
)

CONTENT_TYPES = ("application/octet-stream",)

#: Header with the number of bytes of the JSON, which is followed by the raw values.
JSON_LENGTH_HEADER = b"inference-header-content-length"

_ENCODER = msgspec.json.Encoder()


def read(body: bytes, headers: Mapping[bytes, bytes], predictor: Any) -> Question:
    """Return a body as a question; without a JSON header, the whole body is rows for the model."""
    text = headers.get(JSON_LENGTH_HEADER, b"0").decode("latin-1")
    # `int` would also accept signs, spaces, underscores and digits of other alphabets.
    length = int(text) if text.isdecimal() and text.isascii() and len(text) < 12 else -1
    if not 0 <= length <= len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {text[:40]!r}, but the body has {len(body)} "
            "bytes: send the number of bytes of the JSON, or 0 if all are rows."
        )
    if length == 0:
        return Question([("rows", _read_bare_rows(body, predictor))], binary=True)
    # Views, since a body may be large.
    view = memoryview(body)
    return make_question(decode_request(view[:length]), view[length:])


def _read_bare_rows(body: bytes, predictor: Any) -> NDArray[Any]:
    """Return the rows of a body without JSON: row by row, in the dtype of the model's fit."""
    # No header describes the bytes, so the model must have a single float dtype.
    dtypes, n_features = set(predictor.dtypes or ["float64"]), predictor.n_features
    dtype = (
        np.dtype(dtypes.pop()) if dtypes <= {"float32", "float64"} and len(dtypes) == 1 else None
    )
    if dtype is None or not n_features:
        raise RequestError(
            "The dtype and number of features of this model's rows are not fixed: send a JSON "
            "header and Inference-Header-Content-Length."
        )
    if len(body) % (dtype.itemsize * n_features):
        raise RequestError(
            f"The body has {len(body)} bytes, which is not a whole number of rows: send "
            f"{n_features} values of {find_datatype(dtype)} a row, little-endian."
        )
    return np.frombuffer(body, dtype.newbyteorder("<")).astype(dtype).reshape(-1, n_features)


def write(answer: Answer, question: Question) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return headers and body of an answer."""
    # Raw values follow the JSON in the order of the outputs.
    outputs: list[dict[str, Any]] = []
    raw = []
    for name, values in answer.outputs:
        output: dict[str, Any] = {
            "name": name,
            "datatype": find_datatype(values.dtype),
            "shape": values.shape,
        }
        if question.binary is True or (question.binary and name in question.binary):
            raw.append(_encode_raw(values))
            output["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            output["data"] = list_values(values)
        outputs.append(output)
    head: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    if question.id is not None:
        head["id"] = question.id
    head["outputs"] = outputs
    header = _ENCODER.encode(head)
    return (
        (b"content-type", b"application/octet-stream"),
        (JSON_LENGTH_HEADER, str(len(header)).encode()),
    ), b"".join([header, *raw])


def _encode_raw(values: NDArray[Any]) -> bytes:
    """Return values as little-endian bytes, row by row; strings are preceded by their length."""
    if find_datatype(values.dtype) == "BYTES":
        strings = [str(value).encode() for value in values.ravel()]
        return b"".join(len(one).to_bytes(4, "little") + one for one in strings)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
