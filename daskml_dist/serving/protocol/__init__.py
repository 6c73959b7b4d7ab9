"""Codecs of requests, one module each, found by content type.

A codec has ``CONTENT_TYPES``, and two functions: ``read(body, headers, predictor)`` returns the
`Question` in a body, and ``write(answer, question)`` the headers and body of an `Answer`. The
protocol is the Open Inference Protocol, version 2:
https://github.com/kserve/open-inference-protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from daskml_dist.errors import RequestError
from daskml_dist.serving.protocol import arrow_stream, binary_tensors, json_tensors
from daskml_dist.serving.protocol.requests import Answer, Question

__all__ = ["CODECS", "Answer", "Question", "find_codec"]

#: Codec modules by content type.
CODECS: dict[str, ModuleType] = {
    kind: codec
    for codec in (json_tensors, binary_tensors, arrow_stream)
    for kind in codec.CONTENT_TYPES
}


def find_codec(headers: Mapping[bytes, bytes]) -> ModuleType:
    """Return the codec of a request, by its content type; raise 415 for an unknown one."""
    # Clients of the binary extension send this header, and need not send a content type.
    if binary_tensors.JSON_LENGTH_HEADER in headers:
        return binary_tensors
    # In most requests exactly a known type; else with parameters, or in capitals.
    kind = headers.get(b"content-type", b"application/json").decode("latin-1")
    found = CODECS.get(kind) or CODECS.get(kind.partition(";")[0].strip().lower())
    if found is None:
        raise RequestError(
            f"The content type {kind[:100]!r} is not supported: send one of {', '.join(CODECS)}.",
            415,
        )
    return found
