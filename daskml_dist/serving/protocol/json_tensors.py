"""The codec of JSON bodies.

Nearly all requests have flat lists of numbers in FP32 or FP64: msgspec decodes these straight into
lists of floats, checked by the types of `_Request`. A body in any other form fails to decode, and
is read again in the general way, by `requests.make_question`, which also reports errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from daskml_dist.errors import RequestError
from daskml_dist.serving.protocol import binary_tensors
from daskml_dist.serving.protocol.requests import (
    Answer,
    Output,
    Question,
    RequestParameters,
    decode_request,
    find_datatype,
    list_values,
    make_question,
    read_wanted_outputs,
    reshape_values,
)

CONTENT_TYPES = ("application/json",)

_HEADERS = ((b"content-type", b"application/json"),)


class _Numbers(msgspec.Struct):
    """Tensor whose values are a flat list of numbers."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class _Request(msgspec.Struct):
    """Request whose inputs are all flat lists of numbers."""

    inputs: list[_Numbers]
    id: str | None = None
    outputs: list[Output] | None = None
    parameters: RequestParameters | None = None


class _Values(msgspec.Struct):
    """Output of a response."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any]


class _Response(msgspec.Struct):
    """Response to a request without an id."""

    model_name: str
    model_version: str
    outputs: list[_Values]


class _ResponseWithId(msgspec.Struct):
    """Response to a request with an id."""

    model_name: str
    model_version: str
    id: str
    outputs: list[_Values]


_DECODER = msgspec.json.Decoder(_Request)
_ENCODER = msgspec.json.Encoder()
_NO_FLOATS = np.empty(0, np.float32)


def read(body: bytes, headers: Mapping[bytes, bytes], predictor: Any) -> Question:
    """Return a body as a question."""
    try:
        request = _DECODER.decode(body)
    # Nested lists, strings or null among the values: decode in the general form, which may raise.
    except msgspec.ValidationError:
        return make_question(decode_request(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON ({error}): send a JSON object.") from None
    tensors = []
    for tensor in request.inputs:
        if tensor.datatype == "FP32":
            # Numbers beyond float32 become infinity, which the model accepts or refuses. NumPy's
            # own cast would warn, and silencing it takes longer than the cast; `array` does not
            # warn. An empty buffer is an error of `frombuffer`.
            values = np.frombuffer(array("f", tensor.data) or _NO_FLOATS, np.float32)
        elif tensor.datatype == "FP64":
            values = np.array(tensor.data, np.float64)
        else:
            # Integers beyond 2**53 have lost digits as floats: decode them again, as integers.
            return make_question(decode_request(body))
        tensors.append((tensor.name, reshape_values(values, tensor.shape, tensor.name)))
    if request.outputs is None and request.parameters is None:
        return Question(tensors, (), request.id)
    return Question(tensors, *read_wanted_outputs(request.id, request.outputs, request.parameters))


def write(answer: Answer, question: Question) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return headers and body of an answer."""
    # Some outputs are requested as raw bytes, which follow the JSON.
    if question.binary:
        return binary_tensors.write(answer, question)
    outputs = [
        _Values(name, find_datatype(values.dtype), values.shape, list_values(values))
        for name, values in answer.outputs
    ]
    response: _Response | _ResponseWithId
    if question.id is None:
        response = _Response(answer.model, answer.version, outputs)
    else:
        response = _ResponseWithId(answer.model, answer.version, question.id, outputs)
    return _HEADERS, _ENCODER.encode(response)
