"""Gradients of all rows as whole numbers, packed for histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import CONSTANT, EXACT, ROUNDED, TreeRows
from daskml_dist.errors import DivergedError
from daskml_dist.models.hashed import draws
from daskml_dist.solvers.bin_sample import SAMPLE
from daskml_dist.solvers.boosting_losses import BoostLoss
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["Gradients"]

Array = NDArray[Any]

#: Bits of a gradient and of a hessian: all digits of float32, or few of many rows.
_BITS, _FEW_BITS = (30, 24), (12, 12)
#: Mean square of gradients, and mean of hessians, in units of the last bit, for which few do.
_LEAST_SQUARE, _LEAST = 256, 4
#: Names this use of a seed.
_ROUNDING = 4


class Gradients:
    """Maker of the gradients that trees grow on.

    Parameters
    ----------
    rows : OwnRows
    lanes : sequence of TreeRows
        The rows of each own lane.
    loss : BoostLoss
    seed : int
    constant : bool
        Whether all hessians are 1.
    n_rows : int
        Rows of all trainers to train on.
    """

    def __init__(
        self, rows: OwnRows, lanes: Sequence[TreeRows], loss: BoostLoss, seed: int,
        constant: bool, n_rows: int,
    ) -> None:  # fmt: skip
        self._rows, self._lanes, self._loss, self._seed = rows, lanes, loss, seed
        self._constant, self._n_rows = constant, n_rows

    def make(self, number: int) -> list[tuple[int, tuple[float, float]]]:
        """Make the gradients of all rows for some trees; how each output's are packed."""
        made = self._rows.map(lambda lane: lane.gradients(self._loss, self._constant), self._lanes)
        largest = self._rows.largest(np.max(made, axis=0).ravel())
        if not np.isfinite(largest).all():
            raise DivergedError(
                "The gradients became NaN or infinite: the targets, or learning_rate, are too "
                "large. Scale the targets, or lower learning_rate."
            )
        units = largest.reshape(2, -1)
        return [self._packed(k, units[:, k], number + k) for k in range(units.shape[1])]

    def _packed(self, k: int, units: Array, number: int) -> tuple[int, tuple[float, float]]:
        """Pack the gradients of an output, rounded where they are enough; how, and the units."""
        if not self._constant and self._n_rows > SAMPLE:
            squares, sums = self._pack(k, ROUNDED, units, _FEW_BITS, number)
            if squares >= _LEAST_SQUARE * self._n_rows and sums >= _LEAST * self._n_rows:
                return ROUNDED, _scales(units, _FEW_BITS)
        mode = CONSTANT if self._constant else EXACT
        self._pack(k, mode, units, _BITS, number)
        of_g, of_h = _scales(units, _BITS)
        return mode, (of_g, 1.0 if self._constant else of_h)

    def _pack(
        self, k: int, mode: int, units: Array, bits: tuple[int, int], number: int
    ) -> list[int]:
        """Pack the gradients of an output; the squares of rounded ones, and rounded hessians."""
        key = int(draws([number], self._seed, _ROUNDING)[0] >> np.uint64(32))
        of_g, of_h = _scales(units, bits)
        found = self._rows.map(
            lambda lane: lane.pack(k, mode, 1 / of_g, 1 / of_h, key), self._lanes
        )
        own = np.array(found, np.int64).sum(axis=0)
        total: list[int] = (self._rows.sum(own) if mode == ROUNDED else own).tolist()
        return total


def _scales(units: Array, bits: tuple[int, int]) -> tuple[float, float]:
    """Units of gradients and hessians of so many bits, powers of two."""
    g, h = (float(np.ldexp(1.0, int(np.frexp(u)[1]) - b)) for u, b in zip(units, bits, strict=True))
    return g, h
