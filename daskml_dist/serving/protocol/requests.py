"""Requests of the protocol as they may be in full, in JSON and with raw bytes behind it."""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.serving.protocol.messages import Question, dtype_of

__all__ = [
    "BinaryParameters",
    "Output",
    "Request",
    "Tensor",
    "question_of",
    "read_general",
    "shaped",
    "wanted",
]


class BinaryParameters(msgspec.Struct):
    """Those of the binary extension; others are passed over."""

    binary_data: bool | None = None
    binary_data_size: int | None = None
    binary_data_output: bool | None = None


class Output(msgspec.Struct):
    """An output that is asked for."""

    name: str
    parameters: BinaryParameters | None = None


_NOTHING = msgspec.Raw()


class Tensor(msgspec.Struct):
    """An input; its values are here, or raw behind the JSON."""

    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = _NOTHING
    parameters: BinaryParameters | None = None


class Request(msgspec.Struct):
    """A request for inference."""

    inputs: list[Tensor]
    id: str | None = None
    outputs: list[Output] | None = None
    parameters: BinaryParameters | None = None


_REQUESTS = msgspec.json.Decoder(Request)
_ANYTHING = msgspec.json.Decoder()
_KINDS = {"i": int, "u": int, "f": (int, float, type(None)), "O": str}
_MOST_DIMENSIONS = 8


def read_general(body: bytes | memoryview) -> Request:
    """A body's JSON as a request."""
    try:
        request: Request = _REQUESTS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            f"The body is no request for inference ({error}): send "
            '{"inputs": [{"name": "rows", "shape": [1, 2], "datatype": "FP32", "data": [0, 1]}]}.'
        ) from None
    return request


def question_of(request: Request, raw: memoryview | None = None) -> Question:
    """A request, and the bytes that are raw behind it, as a question."""
    tensors, at = [], 0
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size if tensor.parameters else None
        if size is None:
            values = _listed(tensor)
        elif tensor.data != _NOTHING:
            raise RequestError(
                f"Input {tensor.name[:100]!r} has both data and binary_data_size: send one of them."
            )
        else:
            there = len(raw) - at if raw is not None else 0
            if not 0 <= size <= there:
                raise RequestError(
                    f"Input {tensor.name[:100]!r} says binary_data_size {size}, and {there} bytes "
                    "are left of the body: send Inference-Header-Content-Length and all bytes."
                )
            assert raw is not None
            values = _raw(tensor, raw[at : at + size])
            at += size
        tensors.append((tensor.name, shaped(values, tensor.shape, tensor.name)))
    if raw is not None and at != len(raw):
        raise RequestError(
            f"{len(raw) - at} bytes are left behind the inputs: give each its binary_data_size."
        )
    return Question(tensors, *wanted(request.id, request.outputs, request.parameters))


def wanted(
    identity: str | None, outputs: list[Output] | None, parameters: BinaryParameters | None
) -> tuple[tuple[str, ...], str | None, bool | frozenset[str]]:
    """Names of outputs that are asked for, the request's id, and which outputs go as raw bytes."""
    every = bool(parameters and parameters.binary_data_output)
    if not outputs:
        return (), identity, every
    raw = [
        one.name
        for one in outputs
        if (
            every
            if one.parameters is None or one.parameters.binary_data is None
            else one.parameters.binary_data
        )
    ]
    return tuple(dict.fromkeys(one.name for one in outputs)), identity, frozenset(raw)


def shaped(values: NDArray[Any], shape: list[int], name: str) -> NDArray[Any]:
    """Values in their shape."""
    try:
        return values.reshape(_checked(shape))
    except (ValueError, OverflowError):
        raise _misshapen(name, f"has {values.size} values", shape) from None


def _misshapen(name: str, found: str, shape: list[int]) -> RequestError:
    return RequestError(
        f"Input {name[:100]!r} {found}, its shape says {str(shape[:9])[:100]}: send as many values "
        "as the shape has entries, row after row."
    )


def _checked(shape: list[int]) -> list[int]:
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError
    return shape


def _listed(tensor: Tensor) -> NDArray[Any]:
    """Values that are given in JSON, nested or not."""
    dtype = dtype_of(tensor.datatype)
    if tensor.data == _NOTHING:
        raise RequestError(f"Input {tensor.name[:100]!r} has no data: send its values.")
    try:
        flat, nested = _unnested(_ANYTHING.decode(tensor.data))
        if not isinstance(flat, list) or not _of_kind(flat, dtype):
            raise TypeError
        values = np.empty(len(flat), dtype)
        with np.errstate(over="ignore"):
            values[:] = flat
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        raise RequestError(
            f"Input {tensor.name[:100]!r} has values that are no {tensor.datatype}: send a list "
            "of such values, or the datatype that they have."
        ) from None
    if nested is None or (len(nested) > 1 and nested != _wide(tensor.shape)):
        said = "unevenly" if nested is None else f"as {nested}"
        raise _misshapen(tensor.name, f"is nested {said}", tensor.shape)
    return values


def _unnested(values: Any) -> tuple[Any, list[int] | None]:
    """Values of nested lists, and the shape that these have, if one."""
    sizes = []
    while isinstance(values, list) and values and isinstance(values[0], list):
        sizes.append(len(values))
        size = len(values[0])
        if len(sizes) > _MOST_DIMENSIONS or not all(
            isinstance(one, list) and len(one) == size for one in values
        ):
            return [], None
        values = list(chain.from_iterable(values))
    if not sizes:
        return values, []
    return values, _wide([*sizes, size])


def _wide(shape: list[int]) -> list[int]:
    """A shape without its ones, which change no order of values."""
    return [size for size in shape if size != 1]


def _of_kind(flat: list[Any], dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return all(isinstance(value, int) and value in (0, 1) for value in flat)
    kinds: Any = _KINDS[dtype.kind]
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in flat)


def _raw(tensor: Tensor, raw: memoryview) -> NDArray[Any]:
    """Values that are given as bytes, copied: they are aligned then, and may be written to."""
    dtype = dtype_of(tensor.datatype)
    if dtype.kind == "O":
        return _strings(tensor.name, raw)
    if len(raw) % dtype.itemsize:
        raise RequestError(
            f"Input {tensor.name[:100]!r} has {len(raw)} bytes, no whole number of "
            f"{tensor.datatype}: send {dtype.itemsize} bytes a value, little-endian."
        )
    if dtype.kind == "b":
        return _booleans(tensor.name, raw)
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)


def _booleans(name: str, raw: memoryview) -> NDArray[Any]:
    """Booleans of bytes; NumPy would reckon with others than 0 and 1."""
    values = np.frombuffer(raw, np.uint8)
    if (values > 1).any():
        raise RequestError(f"Input {name[:100]!r} is no BOOL: send a byte 0 or 1 for each value.")
    return values.astype(bool)


def _strings(name: str, raw: memoryview) -> NDArray[Any]:
    """Strings, each behind its length in four bytes."""
    found, at = [], 0
    try:
        while at < len(raw):
            size = int.from_bytes(raw[at : at + 4], "little")
            if at + 4 + size > len(raw):
                raise ValueError
            found.append(str(raw[at + 4 : at + 4 + size], "utf-8"))
            at += 4 + size
    except ValueError:
        raise RequestError(
            f"Input {name[:100]!r} is no BYTES: send each string in UTF-8 behind its length in "
            "four bytes, little-endian."
        ) from None
    values = np.empty(len(found), object)
    values[:] = found
    return values
