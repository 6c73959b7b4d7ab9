"""Error feedback, and sums over lanes of compressed gradients.

`Feedback` serves one sender, whose messages a server or the other lanes unpack. In an all-reduce,
lanes sum their gradients by a `CompressedSum`, which a compressor makes: one lane at a time, with
error feedback (`FeedbackSum`); by estimates that all lanes know (`EstimateSum`); or by matrices of
low rank (`LowRankSum`).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from daskml_dist.compression.packed import Codec, Packed
from daskml_dist.models.base import Parameters


class Feedback:
    """Error feedback: the part of a gradient that was not sent is added to the next push.

    So the sum of all messages plus the residual equals the sum of all gradients.

    Parameters
    ----------
    compressor : Compressor
    shape : tuple of int
        Shape of the parameters to which the pushes belong.
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

    def __init__(self, compressor: Codec, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._compressor = compressor
        self.residual: NDArray[Any] = np.zeros(shape, dtype=dtype)

    def pack(self, values: NDArray[Any], index: NDArray[np.int64] | None = None) -> Packed:
        """Return the packed gradient sum `values` of the rows `index` (None: all rows)."""
        # Karimireddy et al. 2019, algorithm 2: p = g + e is compressed, and e becomes p minus the
        # decompressed message. The sender decompresses it, too, so that both sides have the same
        # numbers. An overflow needs no warning here: the resulting loss is not finite and ends the
        # fit.
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._add_residual(values, index)
            packed = self._compressor.compress(total.reshape(-1))
            decompressed = np.empty_like(total)
            self._compressor.decompress(packed, decompressed.reshape(-1))
            total -= decompressed
        self.residual[slice(None) if index is None else index] = total
        return packed

    def flush(self, values: NDArray[Any], index: NDArray[np.int64] | None = None) -> Any:
        """Return `values` plus the residual, to send uncompressed, and the rows that they cover.

        Returns
        -------
        values : ndarray
        index : ndarray of int64 or None
            The rows of `index` and all other rows with a residual.
        """
        residual = self.residual
        self.residual = np.zeros_like(residual)  # the whole residual is sent now
        if index is None:
            return values + residual, None
        # Rows that this step does not touch may have a residual of earlier steps, which is sent as
        # well.
        residual[index] += values
        rows = np.union1d(index, np.flatnonzero(residual.any(axis=1)))
        return residual[rows], rows

    def _add_residual(self, values: NDArray[Any], index: NDArray[np.int64] | None) -> NDArray[Any]:
        """Return `values` plus the residual of their rows, as a new array."""
        residual = self.residual if index is None else self.residual[index]
        total: NDArray[Any] = np.add(residual, values)
        return total


Arrays = list[NDArray[Any]]
#: Bytes by sending lane and receiving lane.
_BytesByLanes = dict[int, dict[int, NDArray[np.uint8]]]

#: Fewest entries for which more than two lanes sum ranges of the parameters: with fewer, a second
#: message takes longer than the bytes that it saves.
MIN_RANGED_ENTRIES = 1 << 14
#: Most ranges: each lane packs each of them separately, and a call takes about 50 microseconds.
_MAX_RANGES = 16


@dataclass(frozen=True)
class LaneExchange:
    """Communication between lanes that step together.

    Parameters
    ----------
    gather : callable
        Takes arrays of each of this process's lanes, by lane; returns those of all lanes, in the
        order of their numbers.
    add : callable
        Takes an array of each of this process's lanes; returns the sum over all lanes.
    scatter : callable
        Takes bytes of each of this process's lanes for each range owner, by both; returns the bytes
        that all lanes have for this process's lanes, by receiving and sending lane. All lanes send
        bytes of the same length to a lane.
    map : callable
        Applies a function to each item, possibly in several threads; returns the list of results.

    Examples
    --------
    >>> from daskml_dist.compression import LaneExchange
    >>> alone = LaneExchange(dict, add=lambda own: sum(own.values()), scatter=dict)
    >>> alone.add({0: 1.5, 1: 2.0})
    3.5
    """

    gather: Callable[[dict[int, Arrays]], dict[int, Arrays]]
    add: Callable[[dict[int, NDArray[Any]]], NDArray[Any]]
    scatter: Callable[[_BytesByLanes], _BytesByLanes]
    map: Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]] = lambda f, some: [
        f(one) for one in some
    ]


class CompressedSum(ABC):
    """Base class of the sums over lanes of compressed gradients.

    Every process makes the same calls. Running means and sums of a model (``Part(buffer=True)``,
    ``Part(additive=True)``) are not gradients, and are sent uncompressed.

    Parameters
    ----------
    lanes : iterable of int
        The lanes of this process.
    parameters : Parameters
    dtype : dtype
    momentum : float, default=0.0
        Weight of a lane's previous average in the next average of its gradients; 0: no average.

    Attributes
    ----------
    kept : dict of int to (dict of str to ndarray)
        Named arrays that each of this process's lanes keeps between steps.
    common : dict of str to ndarray
        Named arrays that are the same on all processes.

    Examples
    --------
    >>> from daskml_dist.compression import PowerSGD
    >>> from daskml_dist.models import Parameters, Part
    >>> layer = Parameters((Part("weights", (100, 50)),))
    >>> sums = PowerSGD(rank=2).make_sum([0, 1], 2, layer, "float32")
    >>> sums.common["right"].shape, sums.snapshot(1)["residual"].shape
    ((100,), (5000, 1))
    """

    def __init__(
        self, lanes: Iterable[int], parameters: Parameters, dtype: DTypeLike, momentum: float = 0.0
    ) -> None:
        is_plain = np.zeros(parameters.shape[0], bool)
        for part in parameters.parts:
            is_plain[parameters.rows[part.name]] = part.buffer or part.additive
        # A slice gives views instead of copies if all rows are compressed.
        self._coded: Any = np.flatnonzero(~is_plain) if is_plain.any() else slice(None)
        self._plain: NDArray[np.int64] | None = np.flatnonzero(is_plain) if is_plain.any() else None
        self._shape = int((~is_plain).sum()), parameters.width
        self._dtype = np.dtype(dtype)
        self._momentum = momentum
        names = ["residual", *(["momentum"] if momentum else [])]
        self.kept: dict[int, dict[str, NDArray[Any]]] = {
            lane: {name: np.zeros(self._shape, dtype) for name in names} for lane in lanes
        }
        self.common: dict[str, NDArray[Any]] = {}

    def add_up(
        self, own: dict[int, NDArray[Any]], exchange: LaneExchange, *, last: bool = False
    ) -> NDArray[Any]:
        """Return the sum over all lanes of their gradients, in a new array.

        Parameters
        ----------
        own : dict of int to ndarray
            Gradient of each of this process's lanes.
        exchange : LaneExchange
        last : bool, default=False
            Whether this is the last step: all residuals are then sent with it, uncompressed.
        """
        # An overflow needs no warning here: the resulting loss is not finite and ends the fit.
        with np.errstate(over="ignore", invalid="ignore"):
            values = {n: self._average(n, gradient[self._coded]) for n, gradient in own.items()}
            coded = self._flush(values, exchange) if last else self._add(values, exchange)
            if self._plain is None:
                return coded
            total = np.empty((len(self._plain) + len(coded), coded.shape[1]), coded.dtype)
            total[self._coded] = coded
            plain_parts = exchange.gather({n: [g[self._plain]] for n, g in own.items()})
            total[self._plain] = _add_in_order(plain_parts.values())
            return total

    def _average(self, lane: int, gradient: NDArray[Any]) -> NDArray[Any]:
        """Return the average of a lane's gradients with this one; without momentum, this one."""
        if not self._momentum:
            return gradient
        average = self.kept[lane]["momentum"]
        average *= self._momentum
        average += (1 - self._momentum) * gradient
        return average

    @abstractmethod
    def _add(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        """Return the sum over all lanes of the compressed part of their values."""

    def _flush(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        """Return the sum over all lanes of their values and residuals."""
        lane_rests = {}
        for lane, gradient in values.items():
            residual = self.kept[lane]["residual"]
            lane_rests[lane] = [gradient + residual]
            residual[...] = 0
        return _add_in_order(exchange.gather(lane_rests).values())

    def snapshot(self, lane: int) -> dict[str, NDArray[Any]]:
        """Return a copy of a lane's arrays; for lane 0, with the arrays that all share."""
        arrays = self.kept[lane] | (self.common if lane == 0 else {})
        return {name: array.copy() for name, array in arrays.items()}

    def restore(self, lanes: Mapping[int, Mapping[str, NDArray[Any]]]) -> None:
        """Continue from the snapshots of all lanes."""
        for lane, lane_arrays in self.kept.items():
            for name, array in lane_arrays.items():
                array[...] = lanes[lane][name]
        for name, array in self.common.items():
            array[...] = lanes[0][name]


def _add_in_order(lane_arrays: Iterable[Arrays]) -> NDArray[Any]:
    """Return the sum of the first array of each list, in order, as a new array."""
    total: NDArray[Any] | None = None
    for array, *_ in lane_arrays:
        total = array.copy() if total is None else np.add(total, array, out=total)
    assert total is not None, "a fit has a lane"
    return total


class _CodecSum(CompressedSum):
    """Base class of the sums in which each lane packs its own vector.

    Parameters
    ----------
    compressor : Compressor
    lanes, parameters, dtype, momentum
        See `CompressedSum`.
    """

    def __init__(
        self,
        compressor: Codec,
        lanes: Iterable[int],
        parameters: Parameters,
        dtype: DTypeLike,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(lanes, parameters, dtype, momentum)
        self._compressor = compressor


class FeedbackSum(_CodecSum):
    """Sum of gradients that are compressed one lane at a time, with error feedback.

    So the result does not depend on which process has which lanes. The messages of all lanes plus
    their residuals equal the sum of all gradients.

    Parameters
    ----------
    compressor : Compressor
    lanes, parameters, dtype, momentum
        See `CompressedSum`.

    References
    ----------
    S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    ICML 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.compression import FeedbackSum, LaneExchange, TopK
    >>> from daskml_dist.models import Parameters, Part
    >>> alone = LaneExchange(dict, add=lambda own: sum(own.values()), scatter=dict)
    >>> sums = FeedbackSum(TopK(0.5), [0, 1], Parameters((Part("w", (2,)),)), "float64")
    >>> sums.add_up({0: np.array([[1.0], [8.0]]), 1: np.array([[2.0], [3.0]])}, alone).ravel()
    array([ 0., 11.])
    """

    def pack(
        self, lane: int, values: NDArray[Any], index: NDArray[np.int64] | None = None
    ) -> Packed:
        """Return a lane's packed gradient of the rows `index` (None: all rows)."""
        return self._feedback(lane).pack(values, index)

    def flush(
        self, lane: int, values: NDArray[Any], index: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the gradient of some rows plus the lane's residual, and the rows of both."""
        feedback, residual = self._feedback(lane), self.kept[lane]["residual"]
        feedback.residual = residual.copy()
        residual[...] = 0
        total, rows = feedback.flush(values, index)
        assert rows is not None
        return total, rows

    def unpack(self, packed: Packed, out: NDArray[Any]) -> NDArray[Any]:
        """Return `out`, filled with the unpacked vector."""
        self._compressor.decompress(packed, out.reshape(-1))
        return out

    def _feedback(self, lane: int) -> Feedback:
        """Return the error feedback of a lane, which uses the lane's residual."""
        feedback = Feedback(self._compressor, (0,), self._dtype)
        feedback.residual = self.kept[lane]["residual"]
        return feedback

    def _add(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        packed = exchange.map(lambda n: list(self.pack(n, values[n]).arrays), values)
        gathered = exchange.gather(dict(zip(values, packed, strict=True)))
        total = np.zeros(self._shape, self._dtype)
        decompressed = np.empty_like(total)
        for arrays in gathered.values():
            total += self.unpack(Packed(tuple(arrays)), decompressed)
        return total


class RangeSum(FeedbackSum):
    """Sum with error feedback, in which each of the first lanes sums one range for all others.

    A lane sends each range only to its owner, which packs the sum and keeps the residual of that.
    So a process sends two messages of the size of all parameters, however many lanes there are.

    Parameters
    ----------
    compressor : Compressor
        Its arrays' lengths must depend only on the length of the vector.
    lanes : iterable of int
    n_lanes : int
        Number of lanes of all processes.
    parameters, dtype, momentum
        See `CompressedSum`.

    References
    ----------
    H. Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass
    Error-Compensated Compression", ICML 2019.
    """

    def __init__(
        self,
        compressor: Codec,
        lanes: Iterable[int],
        n_lanes: int,
        parameters: Parameters,
        dtype: DTypeLike,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(compressor, lanes, parameters, dtype, momentum)
        size, n_ranges = prod(self._shape), min(n_lanes, _MAX_RANGES)
        bounds = [size * k // n_ranges for k in range(n_ranges + 1)]
        #: Entries of each range, which the lane of that number owns.
        self._ranges = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        for lane, lane_arrays in self.kept.items():
            if lane < n_ranges:
                own_range = self._ranges[lane]
                lane_arrays["range_residual"] = np.zeros(own_range.stop - own_range.start, dtype)

    def _add(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        packed = exchange.map(lambda n: self._pack_ranges(n, values[n]), values)
        received = exchange.scatter(dict(zip(values, packed, strict=True)))
        summed = exchange.map(lambda n: self._sum_range(n, received[n]), received)
        gathered = exchange.gather(dict(zip(received, summed, strict=True)))
        total = np.empty(self._shape, self._dtype)
        flat = total.reshape(-1)
        for lane, arrays in gathered.items():
            self._compressor.decompress(Packed(tuple(arrays)), flat[self._ranges[lane]])
        return total

    def _pack_ranges(self, lane: int, gradient: NDArray[Any]) -> dict[int, NDArray[np.uint8]]:
        """Return the bytes of each range of a lane's gradient, and keep the residual."""
        residual = self.kept[lane]["residual"].reshape(-1)
        residual += gradient.reshape(-1)
        packed_bytes = {}
        for owner, part in enumerate(self._ranges):
            packed = self._pack(residual[part])
            packed_bytes[owner] = np.concatenate([array.view(np.uint8) for array in packed.arrays])
        return packed_bytes

    def _pack(self, vector: NDArray[Any]) -> Packed:
        """Return the packed form of a vector, which is overwritten by its residual."""
        packed = self._compressor.compress(vector)
        decompressed = np.empty_like(vector)
        self._compressor.decompress(packed, decompressed)
        vector -= decompressed
        return packed

    def _sum_range(self, owner: int, received: Mapping[int, NDArray[np.uint8]]) -> Arrays:
        """Return the packed sum of a range over all lanes, and keep its residual."""
        total = self.kept[owner]["range_residual"]
        decompressed = np.empty_like(total)
        # The arrays in the bytes have the same lengths and types for any vector of this length.
        templates = self._compressor.compress(np.zeros_like(total)).arrays
        ends = np.cumsum([0, *(array.nbytes for array in templates)])
        for lane in sorted(received):
            parts = (
                received[lane][a:b].view(array.dtype)
                for array, (a, b) in zip(templates, itertools.pairwise(ends), strict=True)
            )
            self._compressor.decompress(Packed(tuple(parts)), decompressed)
            total += decompressed
        return list(self._pack(total).arrays)

    def _flush(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        for lane, lane_arrays in self.kept.items():
            if (range_residual := lane_arrays.get("range_residual")) is not None:
                lane_arrays["residual"].reshape(-1)[self._ranges[lane]] += range_residual
                range_residual[...] = 0
        return super()._flush(values, exchange)


class EstimateSum(_CodecSum):
    """Sum of the lanes' gradient estimates, which follow the gradients (EF21, algorithm 2).

    Parameters
    ----------
    compressor : Compressor
    lanes, parameters, dtype, momentum
        See `CompressedSum`.
    """

    def __init__(
        self,
        compressor: Codec,
        lanes: Iterable[int],
        parameters: Parameters,
        dtype: DTypeLike,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(compressor, lanes, parameters, dtype, momentum)
        for lane_arrays in self.kept.values():
            lane_arrays["estimate"] = lane_arrays.pop("residual")
        self.common = {"total": np.zeros(self._shape, dtype), "n_steps": np.zeros(1, np.int64)}

    def _average(self, lane: int, gradient: NDArray[Any]) -> NDArray[Any]:
        if self._momentum and not self.common["n_steps"][0]:
            self.kept[lane]["momentum"][...] = gradient  # the average of a single gradient
        return super()._average(lane, gradient)

    def _add(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        total, decompressed = self.common["total"], np.empty(self._shape, self._dtype)
        # The first estimates are the first gradients themselves.
        if not self.common["n_steps"][0]:
            for lane, gradient in values.items():
                self.kept[lane]["estimate"][...] = gradient
            gathered = exchange.gather({n: [gradient] for n, gradient in values.items()})
            total[...] = _add_in_order(gathered.values())
        else:
            packed = exchange.map(lambda n: self._follow(n, values[n]), values)
            gathered = exchange.gather(dict(zip(values, packed, strict=True)))
            for arrays in gathered.values():
                self._compressor.decompress(Packed(tuple(arrays)), decompressed.reshape(-1))
                total += decompressed
        self.common["n_steps"] += 1
        return total.copy()

    def _follow(self, lane: int, gradient: NDArray[Any]) -> Arrays:
        """Return the compressed change of a lane's estimate towards its gradient, and apply it."""
        estimate = self.kept[lane]["estimate"]
        packed = self._compressor.compress((gradient - estimate).reshape(-1))
        change = np.empty(self._shape, self._dtype)
        self._compressor.decompress(packed, change.reshape(-1))
        estimate += change
        return list(packed.arrays)

    def _flush(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        # No residuals are pending, so the last step is like all others.
        return self._add(values, exchange)


class LowRankSum(CompressedSum):
    """Sum of gradients whose matrices are projected on few directions (PowerSGD, algorithm 1).

    Parameters
    ----------
    rank : int
    lanes, parameters, dtype
        See `CompressedSum`.
    """

    def __init__(
        self, rank: int, lanes: Iterable[int], parameters: Parameters, dtype: DTypeLike
    ) -> None:
        super().__init__(lanes, parameters, dtype)
        self._rank = rank
        #: First entry, rows and columns of each compressed matrix among the gradient entries.
        self._matrices: list[tuple[int, int, int]] = []
        start = 0
        for part in parameters.parts:
            if part.buffer or part.additive:
                continue
            size = prod(part.shape)
            n = part.shape[0] if len(part.shape) > 1 else 1
            m = size // max(n, 1)
            if rank * (n + m) < size:
                self._matrices.append((start, n, m))
            start += size
        self._uncompressed = np.ones(start, bool)
        for first, n, m in self._matrices:
            self._uncompressed[first : first + n * m] = False
        # The same on all processes: first drawn with a constant seed, later sums over all lanes.
        draws = np.random.default_rng(0)
        right = [draws.standard_normal((m, rank)).ravel() for _, _, m in self._matrices]
        self.common = {"right": np.concatenate([np.empty(0), *right]).astype(dtype)}

    def _add(self, values: dict[int, NDArray[Any]], exchange: LaneExchange) -> NDArray[Any]:
        # Residual plus gradient of each lane, computed in the residual's memory.
        residuals = {}
        for lane, gradient in values.items():
            residuals[lane] = self.kept[lane]["residual"].reshape(-1)
            residuals[lane] += gradient.reshape(-1)
        right_factors = self._factors(self.common["right"], [m for _, _, m in self._matrices])

        def project(lane: int) -> NDArray[Any]:
            """Return the left factors of a lane, and all entries outside the matrices."""
            left_factors = [
                matrix @ factor
                for matrix, factor in zip(self._views(residuals[lane]), right_factors, strict=True)
            ]
            return np.concatenate(
                [*(f.ravel() for f in left_factors), residuals[lane][self._uncompressed]]
            )

        results = exchange.map(project, residuals)
        summed = exchange.add(dict(zip(residuals, results, strict=True)))
        n_left = self._rank * sum(n for _, n, _ in self._matrices)
        # Copied before the next exchange, which may reuse the memory of this result.
        total = np.zeros(self._shape, self._dtype)
        flat = total.reshape(-1)
        flat[self._uncompressed] = summed[n_left:]
        if not self._matrices:  # everything was sent uncompressed
            for lane in residuals:
                residuals[lane][:] = 0
            return total
        left_factors = [
            np.linalg.qr(factor)[0]
            for factor in self._factors(summed[:n_left], [n for _, n, _ in self._matrices])
        ]

        def leave_rest(lane: int) -> NDArray[Any]:
            """Return the right factors of a lane, and keep the residual."""
            factors = []
            for matrix, basis in zip(self._views(residuals[lane]), left_factors, strict=True):
                factors.append(matrix.T @ basis)
                matrix -= basis @ factors[-1].T
            residuals[lane][self._uncompressed] = 0
            return np.concatenate([np.empty(0, self._dtype), *(f.ravel() for f in factors)])

        results = exchange.map(leave_rest, residuals)
        self.common["right"][...] = exchange.add(dict(zip(residuals, results, strict=True)))
        right_factors = self._factors(self.common["right"], [m for _, _, m in self._matrices])
        for matrix, basis, factor in zip(
            self._views(flat), left_factors, right_factors, strict=True
        ):
            matrix[...] = basis @ factor.T
        return total

    def count_numbers(self) -> int:
        """Return the numbers that are sent in a step."""
        factors = self._rank * sum(n + m for _, n, m in self._matrices)
        n_plain = 0 if self._plain is None else len(self._plain) * self._shape[1]
        return factors + int(self._uncompressed.sum()) + n_plain

    def _views(self, flat: NDArray[Any]) -> Arrays:
        """Return the matrices as views of all entries."""
        return [flat[offset : offset + n * m].reshape(n, m) for offset, n, m in self._matrices]

    def _factors(self, flat: NDArray[Any], rows: list[int]) -> Arrays:
        """Return the factors, which are stored one after the other."""
        ends = np.cumsum([0, *rows]) * self._rank
        return [flat[a:b].reshape(-1, self._rank) for a, b in itertools.pairwise(ends)]
