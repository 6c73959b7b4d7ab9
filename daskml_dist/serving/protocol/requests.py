"""Requests of the protocol in general, with values in JSON or as raw bytes after the JSON.

`decode_request` parses the JSON into `Request`, in which the values of each input stay unparsed;
`make_question` converts these to arrays (a `Question`). `json_tensors` has a faster way for the
requests that nearly all clients send. Values are checked, since NumPy would convert "1", None or
nested lists of odd lengths to arrays that a model may accept.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError

#: dtypes by the protocol's datatypes. BYTES are strings in UTF-8, as objects.
DATATYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("float32"),
    "FP64": np.dtype("float64"),
    "INT64": np.dtype("int64"),
    "INT32": np.dtype("int32"),
    "INT16": np.dtype("int16"),
    "INT8": np.dtype("int8"),
    "UINT64": np.dtype("uint64"),
    "UINT32": np.dtype("uint32"),
    "UINT16": np.dtype("uint16"),
    "UINT8": np.dtype("uint8"),
    "FP16": np.dtype("float16"),
    "BOOL": np.dtype("bool"),
    "BYTES": np.dtype("object"),
}

_DATATYPE_OF = {dtype: name for name, dtype in DATATYPES.items()}


class Question(NamedTuple):
    """A request for inference."""

    tensors: list[tuple[str, NDArray[Any]]]
    """Inputs, with their names."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs that are asked for, which are methods; empty: the predictor's own."""
    id: str | None = None
    """The client's name of the request, which the answer repeats."""
    binary: bool | frozenset[str] = False
    """Whether the outputs are wanted as raw bytes: all of them, none, or the ones named."""
    contributions: bool = False
    """Whether the contributions of the features are wanted too."""


class Answer(NamedTuple):
    """Answer of a model to a question."""

    model: str
    version: str
    outputs: list[tuple[str, NDArray[Any]]]
    """Values by method."""


def _find_dtype(datatype: str) -> np.dtype[Any]:
    """Return the dtype of a datatype of the protocol."""
    found = DATATYPES.get(datatype)
    if found is None:
        raise RequestError(
            f"The datatype {datatype[:40]!r} is not supported: send one of {', '.join(DATATYPES)}."
        )
    return found


def find_datatype(dtype: Any) -> str:
    """Return the datatype of values of a dtype; strings and objects are BYTES."""
    return _DATATYPE_OF.get(np.dtype(dtype), "BYTES")


def list_values(values: NDArray[Any]) -> list[Any]:
    """Return values as a flat list for JSON, row by row; a float32 as the equal float64."""
    listed: list[Any] = values.ravel().tolist()
    if find_datatype(values.dtype) == "BYTES":
        return [str(value) for value in listed]
    return listed


class BinaryParameters(msgspec.Struct):
    """Parameters of the protocol's binary extension; other parameters of a request are ignored."""

    binary_data: bool | None = None
    binary_data_size: int | None = None
    binary_data_output: bool | None = None


class RequestParameters(BinaryParameters):
    """Parameters of a request."""

    contributions: bool | None = None


class Output(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: BinaryParameters | None = None


#: Value of `data` for an input without values.
_NOTHING = msgspec.Raw()


class Tensor(msgspec.Struct):
    """An input; its values are in `data`, or raw after the JSON."""

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
    parameters: RequestParameters | None = None


_REQUEST_DECODER = msgspec.json.Decoder(Request)
_VALUE_DECODER = msgspec.json.Decoder()
#: Types of JSON values by the kind of NumPy's dtypes; null is NaN, which JSON cannot express.
_JSON_TYPES = {"i": int, "u": int, "f": (int, float, type(None)), "O": str}
#: Maximum dimensions of a tensor: more than any model needs, and few enough for NumPy (32 or 64).
_MAX_DIMENSIONS = 8


def decode_request(body: bytes | memoryview) -> Request:
    """Return a body's JSON as a request, whose values are not parsed yet."""
    try:
        request: Request = _REQUEST_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            f'The body is not an inference request ({error}): send {{"inputs": [{{"name": '
            '"rows", "shape": [1, 2], "datatype": "FP32", "data": [0, 1]}]}.'
        ) from None
    return request


def make_question(request: Request, raw: memoryview | None = None) -> Question:
    """Return a request, with the raw bytes after its JSON, as a question."""
    # Raw values of the inputs are concatenated in the inputs' order, each of its stated size; `at`
    # is the beginning of the next one.
    tensors, at = [], 0
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size if tensor.parameters else None
        if size is None:
            values = _read_json_values(tensor)
        elif tensor.data != _NOTHING:
            raise RequestError(
                f"Input {tensor.name[:100]!r} has both data and binary_data_size: send one of them."
            )
        else:
            n_left = len(raw) - at if raw is not None else 0
            if not 0 <= size <= n_left:
                raise RequestError(
                    f"Input {tensor.name[:100]!r} says binary_data_size {size}, and {n_left} "
                    "bytes of the body are left: send Inference-Header-Content-Length and all "
                    "bytes."
                )
            assert raw is not None
            values = _read_raw_values(tensor, raw[at : at + size])
            at += size
        tensors.append((tensor.name, reshape_values(values, tensor.shape, tensor.name)))
    if raw is not None and at != len(raw):
        raise RequestError(
            f"{len(raw) - at} bytes follow the last input: give each input its binary_data_size."
        )
    return Question(tensors, *read_wanted_outputs(request.id, request.outputs, request.parameters))


def read_wanted_outputs(
    identity: str | None, outputs: list[Output] | None, parameters: RequestParameters | None
) -> tuple[tuple[str, ...], str | None, bool | frozenset[str], bool]:
    """Return the parts of a `Question` after its tensors."""
    # The request's binary_data_output is the default for all outputs; an output's own binary_data
    # overrides it.
    every = bool(parameters and parameters.binary_data_output)
    explained = bool(parameters and parameters.contributions)
    if not outputs:
        return (), identity, every, explained
    raw = [
        one.name
        for one in outputs
        if (
            every
            if one.parameters is None or one.parameters.binary_data is None
            else one.parameters.binary_data
        )
    ]
    names = tuple(dict.fromkeys(one.name for one in outputs))
    if every and explained and "contributions" not in names:
        raw.append("contributions")
    return names, identity, frozenset(raw), explained


def reshape_values(values: NDArray[Any], shape: list[int], name: str) -> NDArray[Any]:
    """Return values in the shape stated by a request."""
    # NumPy would infer a size of -1.
    try:
        if len(shape) > _MAX_DIMENSIONS or min(shape, default=0) < 0:
            raise ValueError
        return values.reshape(shape)
    except (ValueError, OverflowError):
        raise _wrong_shape(name, f"has {values.size} values", shape) from None


def _wrong_shape(name: str, description: str, shape: list[int]) -> RequestError:
    """Return the error for an input whose values do not have the stated shape."""
    return RequestError(
        f"Input {name[:100]!r} {description}, its shape says {str(shape[:9])[:100]}: send as many "
        "values as the shape has entries, row after row."
    )


def _read_json_values(tensor: Tensor) -> NDArray[Any]:
    """Return values given in JSON, as nested or flat lists."""
    dtype = _find_dtype(tensor.datatype)
    if tensor.data == _NOTHING:
        raise RequestError(f"Input {tensor.name[:100]!r} has no data: send its values.")
    try:
        flat, nested = _flatten_nested(_VALUE_DECODER.decode(tensor.data))
        if not isinstance(flat, list) or not _are_of_kind(flat, dtype):
            raise TypeError
        # Numbers beyond float32 become infinity, which the model accepts or refuses; integers
        # beyond their dtype raise OverflowError.
        values = np.empty(len(flat), dtype)
        with np.errstate(over="ignore"):
            values[:] = flat
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        raise RequestError(
            f"Input {tensor.name[:100]!r} has values that are not {tensor.datatype}: send such "
            "values, or change the datatype."
        ) from None
    # Nested values must have the stated shape; for flat ones, or those with only one dimension
    # above 1, only their number is checked.
    if nested is None or (len(nested) > 1 and nested != _drop_ones(tensor.shape)):
        nesting = "unevenly" if nested is None else f"as {nested}"
        raise _wrong_shape(tensor.name, f"is nested {nesting}", tensor.shape)
    return values


def _flatten_nested(values: Any) -> tuple[Any, list[int] | None]:
    """Return the values of nested lists, and their shape (None if it is irregular)."""
    # Each iteration joins the lists of one level, which must all have the first one's length.
    sizes = []
    while isinstance(values, list) and values and isinstance(values[0], list):
        sizes.append(len(values))
        size = len(values[0])
        if len(sizes) > _MAX_DIMENSIONS or not all(
            isinstance(one, list) and len(one) == size for one in values
        ):
            return [], None
        values = list(chain.from_iterable(values))
    if not sizes:
        return values, []
    return values, _drop_ones([*sizes, size])


def _drop_ones(shape: list[int]) -> list[int]:
    """Return a shape without its ones, which do not change the order of values."""
    return [size for size in shape if size != 1]


def _are_of_kind(flat: list[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether all values of JSON match a dtype's kind; NumPy would convert others."""
    if dtype.kind == "b":
        return all(isinstance(value, int) and value in (0, 1) for value in flat)
    # Booleans are integers in Python, but not numbers in JSON.
    kinds: Any = _JSON_TYPES[dtype.kind]
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in flat)


def _read_raw_values(tensor: Tensor, raw: memoryview) -> NDArray[Any]:
    """Return values given as little-endian bytes, copied: aligned, and writable for the model."""
    dtype = _find_dtype(tensor.datatype)
    if dtype.kind == "O":
        return _read_strings(tensor.name, raw)
    if len(raw) % dtype.itemsize:
        raise RequestError(
            f"Input {tensor.name[:100]!r} has {len(raw)} bytes, which is not a whole number of "
            f"{tensor.datatype} values: send {dtype.itemsize} bytes a value, little-endian."
        )
    if dtype.kind == "b":
        return _read_booleans(tensor.name, raw)
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)


def _read_booleans(name: str, raw: memoryview) -> NDArray[Any]:
    """Return booleans from bytes that are 0 or 1: NumPy would not check for other bytes."""
    values = np.frombuffer(raw, np.uint8)
    if (values > 1).any():
        raise RequestError(f"Input {name[:100]!r} is not BOOL: send one byte, 0 or 1, per value.")
    return values.astype(bool)


def _read_strings(name: str, raw: memoryview) -> NDArray[Any]:
    """Return strings in UTF-8, each preceded by its length (four bytes, little-endian)."""
    found, at = [], 0
    try:
        while at < len(raw):
            size = int.from_bytes(raw[at : at + 4], "little")
            # A slice beyond the end would be truncated without an error.
            if at + 4 + size > len(raw):
                raise ValueError
            found.append(str(raw[at + 4 : at + 4 + size], "utf-8"))
            at += 4 + size
    except ValueError:
        raise RequestError(
            f"Input {name[:100]!r} is not BYTES: send each string as its length in four bytes "
            "(little-endian), then UTF-8."
        ) from None
    values = np.empty(len(found), object)
    values[:] = found
    return values
