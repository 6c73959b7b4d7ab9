"""Compression: pushes of fewer bytes, with error feedback so that nothing is lost for good.

A :class:`Compressor` is an immutable description that the user passes by object or by string. It
turns a vector into a few small arrays, from which the server makes an approximation of the vector.
The sender keeps the difference and adds it to its next push (:class:`Feedback`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.errors.suggestions import suggest_nearest

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "EightBit",
    "Feedback",
    "Float16",
    "FourBit",
    "Packed",
    "SignificantlyModified",
    "TopK",
    "get_compressor",
]


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
        For anything else, since it could not travel.

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
        plain = all(
            isinstance(a, np.ndarray) and a.ndim == 1 and a.dtype.kind in "biuf"
            for a in self.arrays
        )
        if not (plain and 1 <= len(self.arrays) <= 255):
            raise InvalidParameterError(
                "Packed takes a tuple of 1 to 255 arrays of numbers, each of one dimension: use "
                "np.atleast_1d and ravel() in your compressor's compress()."
            )

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)


class Compressor(NamedParameters, ABC):
    """Base class of the compressors: packs a vector, and unpacks an approximation of it.

    To make one of your own, write both methods; they must depend on their arguments alone, since
    trainer and server run them in different processes. The part that :meth:`compress` leaves out is
    added by the trainer to its next push.

    Attributes
    ----------
    name : str
        String by which it is chosen.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import Float16, Compressor
    >>> packed = Float16().compress(np.zeros(4, dtype=np.float32))
    >>> packed.nbytes
    12
    """

    name: ClassVar[str] = "custom"

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


@dataclass(frozen=True)
class Float16(Compressor):
    """Half precision: ``"fp16"``, 2 bytes an entry.

    The entries of a push are scaled together by a power of two, so that none overflows. Entries
    down to ``2**-28`` of the largest keep 11 significant bits.

    Choose it first: it costs next to nothing in accuracy.

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

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the scale, and the scaled entries rounded to half precision."""
        largest = np.max(np.abs(array), initial=0.0)
        # The largest entry comes to lie in [2**14, 2**15), below half precision's limit of 2**16.
        exponent = np.frexp(largest)[1] - 15 if np.isfinite(largest) else 0
        # The inverse of the scale must be a normal number too, so that scaling is exact.
        exponent = max(exponent, np.finfo(array.dtype).minexp)
        scale = np.ldexp(np.ones(1, array.dtype), exponent)
        return Packed((scale, (array * (1 / scale)).astype(np.float16)))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Multiply the entries by the scale."""
        scale, halves = packed.arrays
        np.multiply(halves, scale, out=out)


@dataclass(frozen=True)
class _Levels(Compressor):
    """Base class of linear quantisers: levels on both sides of 0, and a scale for each block.

    Attributes
    ----------
    n_levels : int
        Levels on each side of 0.
    """

    n_levels: ClassVar[int]
    block_size: int = 256

    def __post_init__(self) -> None:
        size = self.block_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidParameterError(
                f"{type(self).__name__}(block_size={size!r}): give an integer >= 1."
            )

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the scale of each block, and the level of each entry."""
        starts = np.arange(0, len(array), self.block_size)
        if not len(starts):
            return Packed((np.empty(0, array.dtype), self._pack_levels(np.empty(0, np.int8))))
        scales = np.maximum.reduceat(np.abs(array), starts) / array.dtype.type(self.n_levels)
        # Divided by infinity, all levels of a block are 0. That is for blocks of zeros, and for
        # blocks with NaN or infinity: their scale tells the server, which reports divergence.
        divisors = np.where(np.isfinite(scales) & (scales > 0), scales, np.inf)
        levels = np.rint(array / self._spread_over_entries(divisors, len(array)))
        levels = np.nan_to_num(np.clip(levels, -self.n_levels, self.n_levels))
        return Packed((scales, self._pack_levels(levels.astype(np.int8))))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Multiply levels by the scales of their blocks."""
        scales, levels = packed.arrays
        entries = self._unpack_levels(levels, len(out))
        np.multiply(entries, self._spread_over_entries(scales, len(out)), out=out)

    def _pack_levels(self, levels: NDArray[np.int8]) -> NDArray[Any]:
        """Return the levels as they travel."""
        return levels

    def _unpack_levels(self, packed: NDArray[Any], n: int) -> NDArray[np.int8]:
        """Return the levels of `n` entries."""
        return packed

    def _spread_over_entries(self, scales: NDArray[Any], n: int) -> NDArray[Any]:
        """Return the scale of each entry, given one scale for each block."""
        return np.repeat(scales, self.block_size)[:n]


@dataclass(frozen=True)
class EightBit(_Levels):
    """Linear quantisation to 8 bits: ``"8bit"``, a byte an entry and a scale a block.

    An entry becomes the nearest of 255 levels between minus and plus the largest of its block.
    Rounding is to the nearest and so the same at each run; the rounding error is added to the next
    push.

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
    """Linear quantisation to 4 bits: ``"4bit"``, half a byte an entry and a scale a block.

    As `EightBit`, with 15 levels and smaller blocks. Choose it for what lanes send when they meet
    seldom (``"local"``); the rounding error is added to what they send next.

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
        # Two entries a byte; an odd last one is followed by a 0.
        pairs = np.zeros(len(levels) + len(levels) % 2, np.uint8)
        pairs[: len(levels)] = levels + 8
        return pairs[::2] << 4 | pairs[1::2]

    def _unpack_levels(self, packed: NDArray[Any], n: int) -> NDArray[np.int8]:
        levels = np.empty(2 * len(packed), np.int8)
        levels[::2], levels[1::2] = packed >> 4, packed & 15
        return levels[:n] - np.int8(8)


@dataclass(frozen=True)
class TopK(Compressor):
    """Compressor that sends the largest entries alone: ``"topk"``, 4 bytes and a number for each.

    The others wait and add up until they are among the largest. A waiting entry arrives late and
    in one piece, so take a plain optimizer (``"sgd"``, ``"momentum"``; an adaptive one slows down)
    and, if the loss swings, a smaller learning rate.

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
        _check_share("TopK", "share", self.share)

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the largest entries by absolute value, and their positions."""
        n = len(array)
        k = min(n, int(np.ceil(self.share * n)))
        # Selection in linear time; the order of the chosen entries does not matter.
        chosen = np.zeros(n, dtype=bool)
        # NaN sorts as the largest, so that it reaches the server, which reports divergence.
        chosen[np.argpartition(np.abs(array), n - k)[n - k :] if k < n else slice(None)] = True
        return _pack_chosen_entries(array, chosen)

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Put the entries back; zeros elsewhere."""
        _unpack_chosen_entries(packed, out)


@dataclass(frozen=True)
class SignificantlyModified(Compressor):
    """Compressor that sends entries that have changed enough: ``"significant"`` (Li et al. 2014).

    An entry waits and adds up as long as it is below `threshold` times the largest entry of the
    push. (The paper's threshold is a number; a share of the largest suits gradients of any scale.)
    How much is sent depends on the gradient: little where a few entries dominate, and never more
    than all entries and a bit for each.

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
        _check_share("SignificantlyModified", "threshold", self.threshold)

    def compress(self, array: NDArray[Any]) -> Packed:
        """Return the entries of at least `threshold` times the largest, and their positions."""
        sizes = np.abs(array)
        least = self.threshold * np.max(sizes, initial=0.0)
        # "Not smaller" instead of "at least": NaN is chosen too, and reaches the server.
        return _pack_chosen_entries(array, ~(sizes < least) & (array != 0))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        """Put the entries back; zeros elsewhere."""
        _unpack_chosen_entries(packed, out)


def _check_share(owner: str, name: str, value: Any) -> None:
    """Raise InvalidParameterError for a value outside (0, 1]."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and 0 < value <= 1):
        raise InvalidParameterError(f"{owner}({name}={value!r}): give a number in (0, 1].")


def _pack_chosen_entries(array: NDArray[Any], chosen: NDArray[np.bool_]) -> Packed:
    """Pack chosen entries and their positions: 4 bytes each, or a bitmask where that is smaller."""
    places = np.flatnonzero(chosen)
    # In bits: 32 for each position, or 1 for each entry. The dtype tells the two forms apart.
    few = 32 * len(places) < len(array) < 2**32
    return Packed((places.astype(np.uint32) if few else np.packbits(chosen), array[places]))


def _unpack_chosen_entries(packed: Packed, out: NDArray[Any]) -> None:
    """Write packed entries to their positions in `out`, and zeros elsewhere."""
    places, values = packed.arrays
    if places.dtype == np.uint8:
        places = np.flatnonzero(np.unpackbits(places, count=len(out)))  # a bitmask of all entries
    out[:] = 0
    out[places] = values


class Feedback:
    """Error feedback: the part of a gradient that was not sent is added to the next push.

    So the sum of all that was sent plus the residual is the sum of all gradients.

    Parameters
    ----------
    compressor : Compressor
    shape : tuple of int
        Shape of the parameters that the pushes belong to.
    dtype : dtype

    Attributes
    ----------
    residual : ndarray of the shape of the parameters
        Sum of the parts that were not sent yet.

    References
    ----------
    F. Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014. S. P. Karimireddy et
    al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import Feedback, TopK
    >>> feedback = Feedback(TopK(share=0.5), (4,), np.float32)
    >>> packed = feedback.pack(np.array([1.0, -4.0, 0.5, 2.0], dtype=np.float32))
    >>> packed.nbytes > 0
    True
    """

    def __init__(self, compressor: Compressor, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._compressor = compressor
        self.residual: NDArray[Any] = np.zeros(shape, dtype=dtype)

    def pack(self, values: NDArray[Any], index: NDArray[np.int64] | None = None) -> Packed:
        """Return the packed form of `values`, the gradient sum of the rows `index` (None: all)."""
        # Karimireddy et al. 2019, algorithm 2: p = g + e is compressed, and e becomes p less what
        # the server makes of it. The sender decompresses too, so that both have the same numbers.
        # An overflow needs no warning here: the loss that follows is not finite and ends the fit.
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._add_residual(values, index)
            packed = self._compressor.compress(total.reshape(-1))
            sent = np.empty_like(total)
            self._compressor.decompress(packed, sent.reshape(-1))
            total -= sent
        self.residual[slice(None) if index is None else index] = total
        return packed

    def flush(self, values: NDArray[Any], index: NDArray[np.int64] | None = None) -> Any:
        """Return `values` plus the residual to send uncompressed, and the rows that they belong to.

        Returns
        -------
        values : ndarray
        index : ndarray of int64 or None
            The rows of `index` and all others with a residual.
        """
        waiting = self.residual
        self.residual = np.zeros_like(waiting)  # the whole residual is sent now
        if index is None:
            return values + waiting, None
        # Rows that this step does not touch may wait from earlier ones: they are sent along.
        waiting[index] += values
        rows = np.union1d(index, np.flatnonzero(waiting.any(axis=1)))
        return waiting[rows], rows

    def _add_residual(self, values: NDArray[Any], index: NDArray[np.int64] | None) -> NDArray[Any]:
        """Return `values` plus the residual of their rows, as a new array."""
        kept = self.residual if index is None else self.residual[index]
        total: NDArray[Any] = np.add(kept, values)
        return total


#: Compressors that ``Run(compression=...)`` may name.
COMPRESSORS: dict[str, type[Compressor]] = {
    compressor.name: compressor
    for compressor in (Float16, EightBit, FourBit, TopK, SignificantlyModified)
}


def get_compressor(compression: str | Compressor | None) -> Compressor | None:
    """Return the compressor that a string or an object names; None for none.

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
