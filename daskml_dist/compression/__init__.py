"""Compression: smaller messages, with error feedback so that no information is lost for good.

A :class:`Compressor` is an immutable description, which the user passes as an object or a string.
It turns a vector into a few small arrays, from which the receiver computes an approximation of the
vector. The sender keeps the difference and adds it to its next message (:class:`Feedback`).

Without a server, lanes sum their gradients by a :class:`CompressedSum`, which a compressor makes:
also with error feedback (:class:`FeedbackSum`), unless the compressor has another method
(`PowerSGD`, `EF21`).
"""

from __future__ import annotations

from daskml_dist.compression.base import Compressor
from daskml_dist.compression.compressors import (
    EF21,
    EightBit,
    Float16,
    FourBit,
    OneBit,
    PowerSGD,
    SignificantlyModified,
    TopK,
)
from daskml_dist.compression.packed import Packed
from daskml_dist.compression.sums import CompressedSum, Feedback, FeedbackSum, LaneExchange
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest

__all__ = [
    "COMPRESSORS",
    "EF21",
    "CompressedSum",
    "Compressor",
    "EightBit",
    "Feedback",
    "FeedbackSum",
    "Float16",
    "FourBit",
    "LaneExchange",
    "OneBit",
    "Packed",
    "PowerSGD",
    "SignificantlyModified",
    "TopK",
    "get_compressor",
]

#: Compressors that ``Run(compression=...)`` may name.
COMPRESSORS: dict[str, type[Compressor]] = {
    compressor.name: compressor
    for compressor in (
        Float16, EightBit, FourBit, OneBit, TopK, SignificantlyModified, EF21, PowerSGD
    )
}  # fmt: skip


def get_compressor(compression: str | Compressor | None) -> Compressor | None:
    """Return the compressor for a string or an object; None for None.

    Parameters
    ----------
    compression : str, Compressor or None
        One of ``COMPRESSORS`` or an instance.

    Raises
    ------
    InvalidParameterError
        For anything else; the message lists the valid names.

    Examples
    --------
    >>> from daskml_dist.compression import get_compressor
    >>> get_compressor('fp16')
    Float16()
    """
    if compression is None or isinstance(compression, Compressor):
        return compression
    if isinstance(compression, str) and compression in COMPRESSORS:
        return COMPRESSORS[compression]()
    raise InvalidParameterError(
        f"Unknown compression {compression!r}. Use one of {sorted(COMPRESSORS)}, an object such as "
        f"TopK(share=0.05), or None.{suggest_nearest(compression, COMPRESSORS)}"
    )
