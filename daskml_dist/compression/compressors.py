"""Compressors: fewer bits per number, only some entries, estimates, or matrices of low rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.compression.base import Compressor
from daskml_dist.compression.packed import Packed
from daskml_dist.compression.sums import CompressedSum, EstimateSum, LowRankSum
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import Parameters


@dataclass(frozen=True)
class Float16(Compressor):
    """Half precision: ``"fp16"``, 2 bytes per entry.

    The entries of a push are scaled together by a power of two, so that none overflows. Entries
    down to ``2**-28`` of the largest keep 11 significant bits.

    Choose it first: it costs almost no accuracy.

    References
    ----------
    P. Micikevicius et al., "Mixed Precision Training", ICLR 2018 (scaling).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import Float16
    >>> compressor = Float16()
    >>> packed = compressor.compress(np.array([1.0, -4.0, 0.01, 2.0], dtype=np.float32))
    >>> packed.nbytes > 0
    True
    """

    name = "fp16"
    keeps_all_entries = has_fixed_size = True

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the scale, and the scaled entries rounded to half precision."""
        largest = np.max(np.abs(array), initial=0.0)
        # The largest entry is scaled into [2**14, 2**15), below half precision's limit of 2**16.
        exponent = np.frexp(largest)[1] - 15 if np.isfinite(largest) else 0
        # The inverse of the scale must also be a normal number, so that scaling is exact.
        exponent = max(exponent, np.finfo(array.dtype).minexp)
        scale = np.ldexp(np.ones(1, array.dtype), exponent)
        return Packed((scale, (array * (1 / scale)).astype(np.float16)))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Multiply the entries by the scale."""
        scale, halves = packed.arrays
        np.multiply(halves, scale, out=out)


@dataclass(frozen=True)
class _Levels(Compressor):
    """Base class of linear quantisers: levels on both sides of 0, and one scale per block.

    Attributes
    ----------
    n_levels : int
        Levels on each side of 0.
    """

    keeps_all_entries = has_fixed_size = True
    n_levels: ClassVar[int]
    block_size: int = 256

    def __post_init__(self) -> None:
        _check_count(self, "block_size")

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the scale of each block, and the level of each entry."""
        starts = np.arange(0, len(array), self.block_size)
        if not len(starts):
            return Packed((np.empty(0, array.dtype), self._pack_levels(np.empty(0, np.int8))))
        scales = np.maximum.reduceat(np.abs(array), starts) / array.dtype.type(self.n_levels)
        # Divided by infinity, all levels of a block are 0. This applies to blocks of zeros, and to
        # blocks with NaN or infinity, whose scale shows the server that the fit diverges.
        divisors = np.where(np.isfinite(scales) & (scales > 0), scales, np.inf)
        levels = np.empty_like(array)
        _apply_by_block(np.divide, array, divisors, self.block_size, levels)
        np.clip(np.rint(levels, out=levels), -self.n_levels, self.n_levels, out=levels)
        levels[np.isnan(levels)] = 0
        return Packed((scales, self._pack_levels(levels.astype(np.int8))))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Multiply levels by the scales of their blocks."""
        scales, levels = packed.arrays
        entries = self._unpack_levels(levels, len(out))
        _apply_by_block(np.multiply, entries, scales, self.block_size, out)

    def _pack_levels(self, levels: NDArray[np.int8]) -> NDArray[Any]:
        """Return the levels in the form that is sent."""
        return levels

    def _unpack_levels(self, packed: NDArray[Any], n: int) -> NDArray[np.int8]:
        """Return the levels of `n` entries."""
        return packed


@dataclass(frozen=True)
class EightBit(_Levels):
    """Linear quantisation to 8 bits: ``"8bit"``, a byte per entry and a scale per block.

    An entry becomes the nearest of 255 levels between minus and plus the largest entry of its
    block. Rounding is to the nearest level, so it is the same in each run; the rounding error is
    added to the next push.

    Parameters
    ----------
    block_size : int, default=256
        Entries that share a scale.

    References
    ----------
    F. Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014. T. Dettmers, "8-Bit
    Approximations for Parallelism in Deep Learning", ICLR 2016. D. Alistarh et al., "QSGD", NIPS
    2017 (a scale for each block).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import EightBit
    >>> compressor = EightBit()
    >>> packed = compressor.compress(np.array([1.0, -4.0, 0.01, 2.0], dtype=np.float32))
    >>> packed.nbytes > 0
    True
    """

    name = "8bit"
    # Without int8's -128 the levels are symmetric, and 0 stays 0.
    n_levels = 127


@dataclass(frozen=True)
class FourBit(_Levels):
    """Linear quantisation to 4 bits: ``"4bit"``, half a byte per entry and a scale per block.

    Like `EightBit`, with 15 levels and smaller blocks. Choose it for lanes that communicate rarely
    (``"local"``); the rounding error is added to their next message.

    Parameters
    ----------
    block_size : int, default=64
        Entries that share a scale.

    References
    ----------
    A. Douillard et al., "Streaming DiLoCo with Overlapping Communication", 2025 (4 bits an entry
    of an outer gradient). S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes", ICML 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import FourBit
    >>> FourBit().compress(np.linspace(-1, 1, 64)).nbytes
    40
    """

    name = "4bit"
    n_levels = 7
    block_size: int = 64

    def _pack_levels(self, levels: NDArray[np.int8]) -> NDArray[Any]:
        # Two entries per byte; an odd last entry is followed by a 0.
        pairs = np.zeros(len(levels) + len(levels) % 2, np.uint8)
        pairs[: len(levels)] = levels + 8
        return pairs[::2] << 4 | pairs[1::2]

    def _unpack_levels(self, packed: NDArray[Any], n: int) -> NDArray[np.int8]:
        levels = np.empty(2 * len(packed), np.int8)
        levels[::2], levels[1::2] = packed >> 4, packed & 15
        return levels[:n] - np.int8(8)


@dataclass(frozen=True)
class OneBit(Compressor):
    """Compressor that sends only signs: ``"1bit"``, a bit per entry and a scale per block.

    An entry becomes plus or minus the mean absolute value of its block. So most of a gradient is
    deferred to later messages: choose it for a slow network and many steps, with the optimizers
    ``"sgd"`` or ``"momentum"``.

    Parameters
    ----------
    block_size : int, default=1024
        Entries that share a scale.
    momentum : float, default=0.0
        Under ``"allreduce"``: each lane sends the signs of an average of its gradients, in which
        the last gradient has weight ``1 - momentum``; the average is less noisy than each gradient.
        The optimizer then needs no momentum of its own.

    References
    ----------
    F. Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014. S. Zheng et al.,
    "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019
    (a scale for each block). H. Tang et al., "1-bit Adam", ICML 2021 (signs of the momentum).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import OneBit
    >>> OneBit().compress(np.linspace(-1, 1, 1024, dtype=np.float32)).nbytes
    132
    """

    name = "1bit"
    has_fixed_size = True
    block_size: int = 1024
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check_count(self, "block_size")
        _check_momentum(self, self.momentum)

    @property
    def needs_allreduce(self) -> bool:
        """Return True with momentum: lanes average their gradients, which servers cannot do."""
        return self.momentum != 0

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the mean absolute value of each block, and the sign of each entry."""
        starts = np.arange(0, len(array), self.block_size)
        if not len(starts):
            return Packed((np.empty(0, array.dtype), np.empty(0, np.uint8)))
        counts = np.diff(starts, append=len(array)).astype(array.dtype)
        # Divided before summing, so that the sum of large entries does not overflow. NaN or
        # infinity in a block makes its scale NaN or infinite; the receiver sees it and reports
        # divergence.
        shares = np.abs(array)
        _apply_by_block(np.divide, shares, counts, self.block_size, shares)
        return Packed((np.add.reduceat(shares, starts), np.packbits(array > 0)))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Multiply the signs of the entries by the scales of their blocks."""
        scales, bits = packed.arrays
        signs = np.unpackbits(bits, count=len(out)).view(np.int8)
        signs *= 2
        signs -= 1
        _apply_by_block(np.multiply, signs, scales, self.block_size, out)


class _SomeEntries(Compressor):
    """Base class of the compressors that send some entries exactly, and omit the others."""

    @abstractmethod
    def _choose(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which entries are sent."""

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the chosen entries, and their positions."""
        is_chosen = self._choose(array)
        positions = np.flatnonzero(is_chosen)
        # Positions take 32 bits each, a bitmask one bit per entry; the smaller form is sent. The
        # dtype distinguishes the two.
        as_positions = 32 * len(positions) < len(array) < 2**32
        return Packed(
            (
                positions.astype(np.uint32) if as_positions else np.packbits(is_chosen),
                array[positions],
            )
        )

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Write the entries to their positions; zeros elsewhere."""
        positions, values = packed.arrays
        if positions.dtype == np.uint8:
            positions = np.flatnonzero(np.unpackbits(positions, count=len(out)))  # a bitmask
        out[:] = 0
        out[positions] = values


@dataclass(frozen=True)
class TopK(_SomeEntries):
    """Compressor that sends only the largest entries: ``"topk"``, 4 bytes plus a value per entry.

    The other entries accumulate until they are among the largest. Such an entry arrives late and as
    a whole, so take a plain optimizer (``"sgd"``, ``"momentum"``; an adaptive one slows down) and,
    if the loss oscillates, a smaller learning rate.

    Choose it for large models on a slow network.

    Parameters
    ----------
    share : float, default=0.01
        Share of the entries that is sent, above 0 and at most 1; at least one entry.

    References
    ----------
    A. F. Aji and K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP
    2017. Y. Lin et al., "Deep Gradient Compression", ICLR 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import TopK
    >>> compressor = TopK(share=0.5)
    >>> packed = compressor.compress(np.array([1.0, -4.0, 0.01, 2.0], dtype=np.float32))
    >>> packed.nbytes > 0
    True
    """

    name = "topk"
    share: float = 0.01

    def __post_init__(self) -> None:
        _check_share(self, "share")

    def _choose(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which entries are the largest by absolute value."""
        n = len(array)
        k = min(n, int(np.ceil(self.share * n)))
        # Selection in linear time; the order of the chosen entries does not matter.
        is_chosen = np.zeros(n, dtype=bool)
        # NaN sorts as the largest value, so it reaches the server, which reports divergence.
        is_chosen[np.argpartition(np.abs(array), n - k)[n - k :] if k < n else slice(None)] = True
        return is_chosen


@dataclass(frozen=True)
class SignificantlyModified(_SomeEntries):
    """Compressor that sends entries that have changed enough: ``"significant"`` (Li et al. 2014).

    An entry accumulates as long as it is below `threshold` times the largest entry of the push.
    (The paper's threshold is an absolute number; a share of the largest entry suits gradients of
    any scale.) The size of a message depends on the gradient: small if a few entries dominate, and
    at most all entries plus one bit for each.

    Parameters
    ----------
    threshold : float, default=0.1
        Share of the largest entry, above 0 and at most 1.

    References
    ----------
    M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014
    ("significantly modified filter").

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import SignificantlyModified
    >>> compressor = SignificantlyModified(threshold=0.1)
    >>> packed = compressor.compress(np.array([1.0, -4.0, 0.01, 2.0], dtype=np.float32))
    >>> packed.nbytes > 0
    True
    """

    name = "significant"
    threshold: float = 0.1

    def __post_init__(self) -> None:
        _check_share(self, "threshold")

    def _choose(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which entries are at least `threshold` times the largest."""
        sizes = np.abs(array)
        min_size = self.threshold * np.max(sizes, initial=0.0)
        # "Not smaller" instead of "at least", so that NaN is chosen, too, and reaches the server.
        is_chosen: NDArray[np.bool_] = ~(sizes < min_size) & (array != 0)
        return is_chosen


@dataclass(frozen=True)
class EF21(TopK):
    """Estimates of the gradients, updated by their largest changes: ``"ef21"``, for all-reduce.

    Each lane keeps an estimate of its gradient, which all lanes know. It sends the largest entries
    of the difference, and steps follow the sum of the estimates. If each step uses all rows, it
    converges to the exact optimum, however much the lanes differ. Gradients of small batches vary
    more than their estimates can follow: for these choose ``"topk"``, or average them (`momentum`).

    Parameters
    ----------
    share : float, default=0.01
        Share of the entries that is sent, above 0 and at most 1; at least one entry.
    momentum : float, default=0.0
        The estimate follows an average of the gradients, in which the last one has weight ``1 -
        momentum``; 0.9 suits batches.

    References
    ----------
    P. Richtarik, I. Sokolov and I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and
    Practically Faster Error Feedback", NeurIPS 2021. I. Fatkhullin, A. Tyurin and P. Richtarik,
    "Momentum Provably Improves Error Feedback!", NeurIPS 2023.

    Examples
    --------
    >>> from daskml_dist import Run
    >>> from daskml_dist.compression import EF21
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy="allreduce", run=Run(compression=EF21(0.05, momentum=0.9))).run
    Run(compression=EF21(share=0.05, momentum=0.9))
    """

    name = "ef21"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_momentum(self, self.momentum)

    @property
    def needs_allreduce(self) -> bool:
        """Return True: all lanes must know each other's estimates."""
        return True

    def make_sum(
        self, lanes: Iterable[int], n_lanes: int, parameters: Parameters, dtype: DTypeLike
    ) -> CompressedSum:
        """Return a sum of estimates."""
        return EstimateSum(self, lanes, parameters, dtype, self.momentum)


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """Low-rank factors instead of each matrix: ``"powersgd"``, for all-reduce.

    The lanes' sum of an ``n x m`` gradient is approximated by a matrix of the given rank, for which
    ``rank * (n + m)`` numbers are sent: one power iteration per step, starting from the factor of
    the previous step. Factors are sums over lanes, so more lanes do not send more. Vectors, and
    matrices that would not become smaller, are sent unchanged: choose it for networks, whose layers
    are matrices. A convolution kernel counts as the matrix of its output channels.

    Parameters
    ----------
    rank : int, default=2

    References
    ----------
    T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression
    for Distributed Optimization", NeurIPS 2019.

    Examples
    --------
    >>> from daskml_dist import Run
    >>> from daskml_dist.compression import PowerSGD
    >>> from daskml_dist.neural_network import MLPClassifier
    >>> MLPClassifier(policy="allreduce", run=Run(compression=PowerSGD(rank=1))).run
    Run(compression=PowerSGD(rank=1))
    """

    name = "powersgd"
    sums_messages = True
    rank: int = 2

    def __post_init__(self) -> None:
        _check_count(self, "rank")

    @property
    def needs_allreduce(self) -> bool:
        """Return True: lanes project on a factor of their common sum."""
        return True

    def make_sum(
        self, lanes: Iterable[int], n_lanes: int, parameters: Parameters, dtype: DTypeLike
    ) -> CompressedSum:
        """Return a sum of matrices of low rank."""
        return LowRankSum(self.rank, lanes, parameters, dtype)

    def count_bytes(self, parameters: Parameters, dtype: DTypeLike) -> float:
        """Return the bytes of the factors, and of the parts that are sent unchanged."""
        sums = LowRankSum(self.rank, (), parameters, dtype)
        return float(sums.count_numbers() * np.dtype(dtype).itemsize)

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return a copy: vectors are sent unchanged."""
        return Packed((array.copy(),))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Copy the vector."""
        (out[:],) = packed.arrays


def _apply_by_block(
    operation: np.ufunc,
    entries: NDArray[Any],
    scales: NDArray[Any],
    block_size: int,
    out: NDArray[Any],
) -> None:
    """Fill `out` with an operation on the entries and the scales of their blocks."""
    # Whole blocks become rows of a matrix, which avoids an array with one scale per entry.
    n = len(entries) // block_size * block_size
    rows, filled = entries[:n].reshape(-1, block_size), out[:n].reshape(-1, block_size)
    operation(rows, scales[: len(rows), None], out=filled)
    if n < len(entries):
        operation(entries[n:], scales[-1:], out=out[n:])


def _check_count(owner: Any, name: str) -> None:
    """Raise InvalidParameterError for a parameter that is no integer >= 1."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidParameterError(
            f"{type(owner).__name__}({name}={value!r}): give an integer >= 1."
        )


def _check_momentum(owner: Any, value: Any) -> None:
    """Raise InvalidParameterError for a value outside [0, 1)."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and 0 <= value < 1):
        raise InvalidParameterError(
            f"{type(owner).__name__}(momentum={value!r}): give a number >= 0 and < 1."
        )


def _check_share(owner: Any, name: str) -> None:
    """Raise InvalidParameterError for a parameter outside (0, 1]."""
    value = getattr(owner, name)
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and 0 < value <= 1):
        raise InvalidParameterError(
            f"{type(owner).__name__}({name}={value!r}): give a number in (0, 1]."
        )
