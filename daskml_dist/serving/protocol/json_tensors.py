"""The codec of JSON bodies."""

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
    BinaryParameters,
    Output,
    Question,
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
    """A tensor whose values float64 holds: nearly all requests have one."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class _Request(msgspec.Struct):
    inputs: list[_Numbers]
    id: str | None = None
    outputs: list[Output] | None = None
    parameters: BinaryParameters | None = None


class _Values(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any]


class _Response(msgspec.Struct):
    model_name: str
    model_version: str
    outputs: list[_Values]


class _Named(msgspec.Struct):
    """The answer to a request with an id."""

    model_name: str
    model_version: str
    id: str
    outputs: list[_Values]


_REQUESTS = msgspec.json.Decoder(_Request)
_ENCODER = msgspec.json.Encoder()
_NONE = np.empty(0, np.float32)


def read(body: bytes, headers: Mapping[bytes, bytes], predictor: Any) -> Question:
    """Return a body as a question."""
    try:
        request = _REQUESTS.decode(body)
    except msgspec.ValidationError:  # nested lists, strings, null: the general way, or its error
        return make_question(decode_request(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is no JSON ({error}): send a JSON object.") from None
    tensors = []
    for tensor in request.inputs:
        if tensor.datatype == "FP32":
            # What is too large is infinity, which the model refuses, or takes; NumPy's own cast
            # warns of it, and to keep it quiet takes longer than the cast.
            values = np.frombuffer(array("f", tensor.data) or _NONE, np.float32)
        elif tensor.datatype == "FP64":
            values = np.array(tensor.data, np.float64)
        else:  # whole numbers beyond 2^53
            return make_question(decode_request(body))
        tensors.append((tensor.name, reshape_values(values, tensor.shape, tensor.name)))
    if request.outputs is None and request.parameters is None:
        return Question(tensors, (), request.id)
    return Question(tensors, *read_wanted_outputs(request.id, request.outputs, request.parameters))


def write(answer: Answer, question: Question) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Return headers and body of an answer."""
    if question.binary:
        return binary_tensors.write(answer, question)
    outputs = [
        _Values(name, find_datatype(values.dtype), values.shape, list_values(values))
        for name, values in answer.outputs
    ]
    told: _Response | _Named
    if question.id is None:
        told = _Response(answer.model, answer.version, outputs)
    else:
        told = _Named(answer.model, answer.version, question.id, outputs)
    return _HEADERS, _ENCODER.encode(told)
