"""Base class of the compressors."""

from __future__ import annotations

from abc import abstractmethod
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
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.models.base import Parameters

#: Entries that are packed to estimate the size of messages.
_MEASURED_ENTRIES = 1 << 14


class Compressor(ParameterObject):
    """Base class of the compressors: packs a vector, and unpacks an approximation of it.

    To write your own, implement both methods. They may depend only on their arguments, since sender
    and receiver run them in different processes. The sender adds the part that :meth:`compress`
    leaves out to its next message.

    Attributes
    ----------
    name : str
        String that selects it.
    keeps_all_entries : bool, default=False
        Whether the error of each entry is a small share of the largest entry, so that even a
        message without a successor (``"average"``) is useful.
    has_fixed_size : bool, default=False
        Whether the lengths of packed arrays depend only on the length of the vector. With many
        lanes, each then sums one range of the gradients, and they send less than if every lane got
        the message of every other.
    sums_messages : bool, default=False
        Whether the lanes' messages are summed in transit, so that more lanes do not send more.
    momentum : float, default=0.0
        In an all-reduce, the weight of a lane's earlier gradients in the average that it sends; 0:
        it sends its gradients.

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
        """Return whether lanes sum ranges of their gradients, each its own range."""
        # With two lanes both methods send the same bytes, but ranges are rounded twice.
        return self.has_fixed_size and n_lanes > 2 and prod(parameters.shape) >= MIN_RANGED_ENTRIES

    def count_bytes(self, parameters: Parameters, dtype: DTypeLike) -> float:
        """Return the approximate size of a compressed gradient in bytes."""
        # Measured on noise, and scaled to the size of the model.
        n = prod(parameters.shape)
        noise = np.random.default_rng(0).standard_normal(min(n, _MEASURED_ENTRIES)).astype(dtype)
        return self.compress(noise).nbytes * n / max(len(noise), 1)

    @abstractmethod
    def compress(self, array: NDArray[Any]) -> Packed:
        """Pack a vector.

        Parameters
        ----------
        array : ndarray of float32 or float64 of shape (n,)
            Part of a gradient sum. It must not be changed, and the result must not share its
            memory.
        """

    @abstractmethod
    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Fill `out` (shape and dtype of the original vector) with the unpacked vector."""
