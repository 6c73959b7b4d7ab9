"""Form in which a compressed vector is sent, and the protocol of its codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError


@dataclass(frozen=True)
class Packed:
    """A compressed vector.

    Parameters
    ----------
    arrays : tuple of ndarray of one dimension
        From 1 to 255 arrays of plain numbers, whose meaning only the compressor knows.

    Raises
    ------
    InvalidParameterError
        For other arrays, which could not be sent.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import Float16, Packed
    >>> packed = Float16().compress(np.zeros(4, dtype=np.float32))
    >>> packed.nbytes
    12
    """

    arrays: tuple[NDArray[Any], ...]

    def __post_init__(self) -> None:
        are_plain = all(
            isinstance(a, np.ndarray) and a.ndim == 1 and a.dtype.kind in "biuf"
            for a in self.arrays
        )
        if not (are_plain and 1 <= len(self.arrays) <= 255):
            raise InvalidParameterError(
                "Packed takes a tuple of 1 to 255 arrays of numbers, each of one dimension: use "
                "np.atleast_1d and ravel() in your compressor's compress()."
            )

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)


class Codec(Protocol):
    """Protocol of objects that pack and unpack vectors, such as every `Compressor`."""

    def compress(self, array: NDArray[Any]) -> Packed: ...

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None: ...
