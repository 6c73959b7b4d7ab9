"""Bounds of a message, so that no length is believed before it was looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.errors import MessageError

__all__ = ["Bounds", "array_layout", "malformed"]

#: Arrays that may travel: plain numbers in this machine's order of bytes.
_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?efdbhiqBHIQ"}
#: Arrays of the snapshot of one lane or server at most: parameters, optimizer state, sums.
_ARRAYS = 16
#: Entries of an array along one dimension at most, so that NumPy can count them.
_LONGEST = 1 << 48
#: Bytes of a message whatever the size of the fit.
_SMALL = 1 << 12


@dataclass(frozen=True)
class Bounds:
    """Bounds of the frames of a connection, as the fit's layout says.

    Parameters
    ----------
    dtype : str or dtype
        Of the parameters.
    n_rows, width : int
        Shape of the server's parameters; where trainers hold them, of all parameters.
    n_lanes : int
        Lanes of the fit.
    """

    dtype: Any
    n_rows: int
    width: int
    n_lanes: int

    #: Bytes of JSON: the records of some 200,000 passes.
    most_text = 1 << 26

    @property
    def most_packed(self) -> int:
        """Bytes of a compressed push: twice those of the values."""
        itemsize: int = np.dtype(self.dtype).itemsize
        return 2 * self.n_rows * self.width * itemsize + _SMALL

    @property
    def most_arrays(self) -> int:
        """Arrays of a control call: the snapshots of all lanes."""
        return _ARRAYS * self.n_lanes

    @property
    def most_array(self) -> int:
        """Bytes of an array of a control call: one number for each parameter."""
        return 8 * self.n_rows * self.width + _SMALL


def array_layout(dtype: Any, shape: Sequence[Any], most: int) -> tuple[np.dtype[Any], int]:
    """The dtype and the bytes of an array that is announced.

    Parameters
    ----------
    dtype : str
    shape : sequence of int
    most : int
        Bytes that it may have.

    Raises
    ------
    CommunicationError
        It is no array of plain numbers, or larger.
    """
    found = _DTYPES.get(dtype)
    if found is None:
        raise malformed(f"an array of dtype {str(dtype)[:20]!r}")
    if len(shape) > 8 or not all(type(n) is int and 0 <= n < _LONGEST for n in shape):
        raise malformed("an array without a shape")
    size = found.itemsize * math.prod(shape)
    if size > most:
        raise malformed(f"an array of {size} bytes where {most} are the most")
    return found, size


def malformed(what: object) -> MessageError:
    """The error of a message that this version would not have sent."""
    return MessageError(
        f"Another worker of the fit sent {what}. Have all workers the same version of "
        "daskml_dist, and does nothing else speak to their ports? Fit again."
    )
