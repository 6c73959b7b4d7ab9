"""Gradients of all rows as whole numbers, packed for histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import DivergedError
from daskml_dist.models.hashed import draws
from daskml_dist.solvers.bin_sample import SAMPLE
from daskml_dist.solvers.binned_rows import BinnedRows
from daskml_dist.solvers.boost_losses import BoostLoss
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["Gradients"]

Array = NDArray[Any]

#: Rows whose gradients are made at once, so that they stay in a cache.
_TILE = 15_000
#: Bits of a gradient and of a hessian: all digits of float32, or few of many rows.
_BITS, _FEW_BITS = (30, 24), (12, 12)
#: Mean square of gradients, and mean of hessians, in units of the last bit, for which few do.
_LEAST_SQUARE, _LEAST = 256, 4
#: Names this use of a seed.
_ROUNDING = 4


class Gradients:
    """Maker of the gradients that trees grow on, in ``extra["packed"]`` of each lane's rows.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of BinnedRows
        Of each own lane, with raw predictions in ``extra["raw"]``.
    loss : BoostLoss
    seed : int
    constant : bool
        Whether all hessians are 1.
    n_rows : int
        Rows of all trainers to train on.
    """

    def __init__(
        self, rows: OwnRows, rooms: Sequence[BinnedRows], loss: BoostLoss, seed: int,
        constant: bool, n_rows: int,
    ) -> None:  # fmt: skip
        self._rows, self._rooms, self._loss, self._seed = rows, rooms, loss, seed
        self._constant, self._n_rows = constant, n_rows

    def make(self, number: int) -> list[tuple[int, tuple[float, float]]]:
        """Make the gradients of all rows for some trees; how each output's are packed."""
        made = self._rows.map(self._gradients_of, self._rooms)
        largest = self._rows.largest(np.max([found for _, found in made], axis=0))
        if not np.isfinite(largest).all():
            raise DivergedError(
                "The gradients became NaN or infinite: the targets, or learning_rate, are too "
                "large. Scale the targets, or lower learning_rate."
            )
        units = largest.reshape(2, -1)
        given = [g_h for g_h, _ in made]
        return [self._packed(k, given, units[:, k], number + k) for k in range(units.shape[1])]

    def _packed(
        self, k: int, given: Sequence[tuple[Array, Array]], units: Array, number: int
    ) -> tuple[int, tuple[float, float]]:
        """Pack the gradients of an output, rounded where they are enough; how, and the units."""
        from daskml_dist.backends.tree_kernels import CONSTANT, EXACT, ROUNDED

        if not self._constant and self._n_rows > SAMPLE:
            squares, sums = self._pack(k, given, ROUNDED, units, _FEW_BITS, number)
            if squares >= _LEAST_SQUARE * self._n_rows and sums >= _LEAST * self._n_rows:
                return ROUNDED, _scales(units, _FEW_BITS)
        mode = CONSTANT if self._constant else EXACT
        self._pack(k, given, mode, units, _BITS, number)
        of_g, of_h = _scales(units, _BITS)
        return mode, (of_g, 1.0 if self._constant else of_h)

    def _pack(
        self, k: int, given: Sequence[tuple[Array, Array]], mode: int, units: Array,
        bits: tuple[int, int], number: int,
    ) -> list[int]:  # fmt: skip
        """Pack the gradients of an output; the squares of rounded ones, and rounded hessians."""
        from daskml_dist.backends.tree_kernels import ROUNDED, quantise

        key = np.uint32(draws([number], self._seed, _ROUNDING)[0] >> np.uint64(32))
        of_g, of_h = _scales(units, bits)

        def pack(i: int) -> Any:
            (g, h), room = given[i], self._rooms[i]
            h = h[k] if len(h) else g[k, :0]
            out = room.extra["packed"][k]
            return quantise(g[k], h, 1 / of_g, 1 / of_h, mode, room.salt, key, out)

        found = np.array(self._rows.map(pack, range(len(given))), np.int64).sum(axis=0)
        total: list[int] = (self._rows.sum(found) if mode == ROUNDED else found).tolist()
        return total

    def _gradients_of(self, room: BinnedRows) -> tuple[tuple[Array, Array], Array]:
        """Gradients and hessians in float32, and the largest of each output."""
        k, n = self._loss.n_outputs, room.n
        g, h = self._room_of(room)
        largest = np.zeros((2, k))
        for start in range(0, n, _TILE):
            at = slice(start, min(n, start + _TILE))
            g_at, h_at = self._loss.gradients(room.y[at], room.extra["raw"][:, at])
            if room.weight is not None:
                g_at = g_at * room.weight[at]
                h_at = np.broadcast_to(1.0 if h_at is None else h_at, g_at.shape) * room.weight[at]
            g[:, at] = g_at
            for end in (g[:, at].max(axis=1), -g[:, at].min(axis=1)):
                np.maximum(largest[0], end, out=largest[0])
            if not self._constant:
                h[:, at] = h_at
                np.maximum(largest[1], h[:, at].max(axis=1), out=largest[1])
        return (g, h), largest.ravel()

    def _room_of(self, room: BinnedRows) -> tuple[Array, Array]:
        """Room for gradients and hessians: pages that are new are dearer than what they hold."""
        shape = self._loss.n_outputs, room.n
        if "given" not in room.extra:
            of_h = (0, room.n) if self._constant else shape
            room.extra["given"] = room.room(shape, np.float32), room.room(of_h, np.float32)
        found: tuple[Array, Array] = room.extra["given"]
        return found


def _scales(units: Array, bits: tuple[int, int]) -> tuple[float, float]:
    """Units of gradients and hessians of so many bits, powers of two."""
    g, h = (float(np.ldexp(1.0, int(np.frexp(u)[1]) - b)) for u, b in zip(units, bits, strict=True))
    return g, h
