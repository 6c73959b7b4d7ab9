"""Base class of the compressors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from numpy.typing import DTypeLike, NDArray

from daskml_dist.compression.packed import Packed
from daskml_dist.compression.sums import CompressedSum, FeedbackSum
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.models.base import Parameters


class Compressor(NamedParameters, ABC):
    """Base class of the compressors: packs a vector, and unpacks an approximation of it.

    To make one of your own, write both methods; they must depend on their arguments alone, since
    sender and receiver run them in different processes. The part that :meth:`compress` leaves out
    is added by the sender to its next message.

    Attributes
    ----------
    name : str
        String by which it is chosen.
    keeps_all_entries : bool, default=False
        Whether each entry arrives to within a small share of the largest, so that a message that no
        other follows (``"average"``) is still of use.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import Float16, Compressor
    >>> packed = Float16().compress(np.zeros(4, dtype=np.float32))
    >>> packed.nbytes
    12
    """

    name: ClassVar[str] = "custom"
    keeps_all_entries: ClassVar[bool] = False

    @property
    def needs_allreduce(self) -> bool:
        """Return whether it is for whole gradients that all lanes sum at each step, alone."""
        return False

    def make_sum(
        self, lanes: Iterable[int], parameters: Parameters, dtype: DTypeLike
    ) -> CompressedSum:
        """Return a sum of all lanes' gradients, of which this process has some `lanes`."""
        return FeedbackSum(self, lanes, parameters, dtype)

    @abstractmethod
    def compress(self, array: NDArray[Any]) -> Packed:
        """Pack a vector.

        Parameters
        ----------
        array : ndarray of float32 or float64 of shape (n,)
            Part of a gradient sum; must not be changed, nor the result share its memory.
        """

    @abstractmethod
    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Fill `out` (shape and dtype of the vector that was packed) with what was packed."""
