"""Questions and answers: what a request asks for, whatever its encoding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError

__all__ = ["DATATYPES", "Answer", "Question", "datatype_of", "dtype_of", "plain"]

#: dtypes of the protocol's datatypes. BYTES are strings in UTF-8, as objects.
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

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


class Question(NamedTuple):
    """A request for inference."""

    tensors: list[tuple[str, NDArray[Any]]]
    """Inputs, with their names."""
    outputs: tuple[str, ...] = ()
    """Methods asked for; none: the predictor's own."""
    id: str | None = None
    """The client's name of the request, which the answer repeats."""
    binary: bool | frozenset[str] = False
    """Outputs that are wanted as raw bytes: all, none, or these."""


class Answer(NamedTuple):
    """Answer of a model to a question."""

    model: str
    version: str
    outputs: list[tuple[str, NDArray[Any]]]
    """Values by method."""


def dtype_of(datatype: str) -> np.dtype[Any]:
    """The dtype of a datatype of the protocol."""
    found = DATATYPES.get(datatype)
    if found is None:
        raise RequestError(
            f"The datatype {datatype[:40]!r} is not known here: send one of {', '.join(DATATYPES)}."
        )
    return found


def datatype_of(dtype: Any) -> str:
    """The datatype of values of a dtype; strings and objects are BYTES."""
    return _NAMES.get(np.dtype(dtype), "BYTES")


def plain(values: NDArray[Any]) -> list[Any]:
    """Values as what JSON has, row after row; float32 exactly, as float64."""
    listed: list[Any] = values.ravel().tolist()
    if datatype_of(values.dtype) == "BYTES":
        return [str(value) for value in listed]
    return listed
