"""Base class of the compressors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.compression.packed import Packed
from daskml_dist.compression.sums import (
    MIN_RANGED_ENTRIES,
    CompressedSum,
    FeedbackSum,
    RangeSum,
)
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.models.base import Parameters

#: Entries that are packed to count bytes.
_MEASURED_ENTRIES = 1 << 14


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
    has_fixed_size : bool, default=False
        Whether the lengths of packed arrays depend on that of the vector alone. Many lanes then sum
        ranges of their gradients in turn, and send less than if all got the message of each.
    sums_messages : bool, default=False
        Whether the lanes' messages are summed on their way, so that more lanes send no more.
    momentum : float, default=0.0
        In an all-reduce, the share that the average of a lane's earlier gradients has in what it
        sends; 0: it sends its gradients.

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
    has_fixed_size: ClassVar[bool] = False
    sums_messages: ClassVar[bool] = False
    momentum: float = 0.0

    @property
    def needs_allreduce(self) -> bool:
        """Return whether it only works for gradients that all lanes sum at each step."""
        return False

    def make_sum(
        self, lanes: Iterable[int], n_lanes: int, parameters: Parameters, dtype: DTypeLike
    ) -> CompressedSum:
        """Return a sum of the gradients of all `n_lanes`, of which this process has `lanes`."""
        if self.sums_ranges(parameters, n_lanes):
            return RangeSum(self, lanes, n_lanes, parameters, dtype, self.momentum)
        return FeedbackSum(self, lanes, parameters, dtype, self.momentum)

    def sums_ranges(self, parameters: Parameters, n_lanes: int) -> bool:
        """Return whether lanes sum ranges of their gradients in turn."""
        # With two lanes both ways send the same bytes, and ranges are rounded twice.
        return self.has_fixed_size and n_lanes > 2 and prod(parameters.shape) >= MIN_RANGED_ENTRIES

    def count_bytes(self, parameters: Parameters, dtype: DTypeLike) -> float:
        """Return the approximate size of a compressed gradient in bytes."""
        # Measured on noise, of which larger models have more.
        n = prod(parameters.shape)
        noise = np.random.default_rng(0).standard_normal(min(n, _MEASURED_ENTRIES)).astype(dtype)
        return self.compress(noise).nbytes * n / max(len(noise), 1)

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
