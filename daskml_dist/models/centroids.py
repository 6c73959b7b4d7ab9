"""Centroids of mini-batch k-means as a model of gradient steps.

The parameters of a centroid are the weight of its rows so far and their sum; the centroid is their
mean. Rows are added to the sums under any policy, so the learning rate of Sculley's algorithm, one
over the count, follows by itself. Centroids that have few rows are moved to other rows from time to
time, as in scikit-learn (`Reassignment`).

References
----------
D. Sculley, "Web-scale k-means clustering", WWW 2010. L. Bottou and Y. Bengio, "Convergence
properties of the k-means algorithms", NIPS 1995.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import arithmetic_dtype, cast, namespace, zeros
from daskml_dist.models.base import BatchRows, Parameters, Part, StepModel

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reassignment:
    """Rule that moves centroids of low counts to random rows.

    Each lane moves only centroids that are assigned to it: the lanes' changes are added, so two of
    them must not move the same one.

    Parameters
    ----------
    n_centroids : int
    ratio : float
        Share of the largest count below which a count is low.
    rows : ndarray of shape (m, n_features)
        Sampled rows minus the shift, among which new centroids are drawn.
    lanes : tuple of int
        Lanes that have rows.
    period : float
        Steps from one reassignment to the next; while a centroid has no row, each step is one.
    max_moved : int
        Most centroids that are moved at once: half the rows of a step.
    average_every : int or None, default=None
        Steps between two averagings of lanes that step alone; 0 if they are averaged only at the
        end; None if each step has the counts of all lanes.
    """

    n_centroids: int
    ratio: float
    rows: _Array
    lanes: tuple[int, ...]
    period: float
    max_moved: int
    average_every: int | None = None

    def is_due(self, clock: int, counts: _Array) -> bool:
        """Return whether the step of a clock begins with a reassignment of centroids."""
        n_since = 1
        if self.average_every is not None:
            # Between averagings a lane counts only its own rows, which may hardly have a cluster.
            if not self.average_every or clock % self.average_every:
                return False
            n_since = self.average_every
        # `period` may be fractional: the clock has passed a multiple of it.
        is_periodic = (clock + 1) // self.period > (clock + 1 - n_since) // self.period
        return clock > 0 and bool(is_periodic or (counts == 0).any())

    def find_low_centroids(self, counts: _Array) -> NDArray[np.bool_]:
        """Return a mask of the centroids that are to be reassigned, those of the lowest counts."""
        low: NDArray[np.bool_] = counts < min(self.ratio, 1.0) * counts.max()
        # If they are too many, only those of the lowest counts.
        if low.sum() > self.max_moved:
            low[np.argsort(counts)[self.max_moved :]] = False
        return low

    def of_lane(self, lane: int) -> NDArray[np.bool_]:
        """Return a mask of the centroids that a lane may reassign, distributed round-robin."""
        lane_mask: NDArray[np.bool_] = np.resize(self.lanes, self.n_centroids) == lane
        return lane_mask

    def changes(
        self, counts: _Array, sums: _Array, is_own: NDArray[np.bool_], rng: np.random.Generator
    ) -> tuple[_Array, _Array]:
        """Return the changes of counts and sums that move own low centroids to drawn rows."""
        low = self.find_low_centroids(counts)
        (reassigned,) = np.nonzero(low & is_own)
        count_changes, sum_changes = np.zeros_like(counts), np.zeros_like(sums)
        if len(reassigned):
            repeats = len(self.rows) < len(reassigned)
            chosen = self.rows[rng.choice(len(self.rows), len(reassigned), replace=repeats)]
            # The least count that is not low, as in scikit-learn: with a lower one the centroid
            # would be moved again at once.
            count = counts[~low].min()
            count_changes[reassigned] = count - counts[reassigned]
            sum_changes[reassigned] = count * chosen - sums[reassigned]
        return count_changes, sum_changes


@dataclass(frozen=True, eq=False)
class CentroidModel(StepModel):
    """Centroids, each the mean of all rows so far that were nearest to it at their step.

    A step thus moves a centroid towards its rows of the batch by their share in all of its rows so
    far (Sculley, algorithm 1). Sums do not depend on which lanes add to them, nor in which order.

    Parameters
    ----------
    first : ndarray of shape (k, n_features)
        Centroids until they have rows, minus the shift.
    shift : ndarray of shape (n_features,) or None
        Vector that is subtracted from dense rows; None for sparse ones.
    reassignment : Reassignment or None
    """

    first: _Array
    shift: _Array | None
    reassignment: Reassignment | None = None
    parameters: Parameters = field(init=False, repr=False)
    starts_threads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        k, n_features = self.first.shape
        parts = Part("counts", (k,), additive=True), Part("sums", (k, n_features), additive=True)
        object.__setattr__(self, "parameters", Parameters(parts))

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.first.shape[1])

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets unchanged; they are not used."""
        return y

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return the rows unchanged: only the sums are in the dtype of the fit."""
        return X

    def view_counts_and_sums(self, w: Any) -> tuple[Any, Any]:
        """Return counts and sums as views of parameters."""
        views = self.parameters.views(w)
        return views["counts"], views["sums"]

    def matrix(self, counts: _Array, sums: _Array) -> _Array:
        """Return the parameters, given counts and sums."""
        return np.concatenate([counts, sums.ravel()])[:, np.newaxis]

    def centroids(self, w: Any) -> _Array:
        """Return the centroids of parameters, minus the shift."""
        means: _Array = _compute_means(*self.view_counts_and_sums(w), self.first)
        return means

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Subtract the rows' counts and sums from `out`; return the sum of squared distances."""
        (counts, sums), (to_counts, to_sums) = (
            self.view_counts_and_sums(w),
            self.view_counts_and_sums(out),
        )
        # The "gradient" of an additive part is minus what is added to it.
        changes = self._reassign(counts, sums, rows, backend)
        if changes is not None:
            count_changes, sum_changes = (backend.to_device(array) for array in changes)
            counts, sums = counts + count_changes, sums + sum_changes
            to_counts -= cast(count_changes, out.dtype)
            to_sums -= cast(sum_changes, out.dtype)
        # Distances in the dtype of the rows, whose shift keeps its digits; sums in float64.
        dtype = arithmetic_dtype(rows.X)
        centroids = cast(_compute_means(counts, sums, backend.to_device(self.first)), dtype)
        shift = None if self.shift is None else cast(backend.to_device(self.shift), dtype)
        weight = None if rows.weight is None else cast(rows.weight, dtype)
        counts_and_sums = zeros(
            (centroids.shape[0], 1 + centroids.shape[1]), np.float64, like=centroids
        )
        with np.errstate(over="ignore", invalid="ignore"):  # the loss shows it
            inertia = backend.assign(rows.X, shift, centroids, weight, counts_and_sums)
        to_counts -= cast(counts_and_sums[:, 0], out.dtype)
        to_sums -= cast(counts_and_sums[:, 1:], out.dtype)
        return inertia

    def _reassign(
        self, counts: Any, sums: Any, rows: BatchRows, backend: Backend
    ) -> tuple[_Array, _Array] | None:
        """Return the changes that reassign centroids before this batch; None for no change."""
        rule = self.reassignment
        # The key is (seed, lane, step, position): once a batch, by its first piece.
        if rule is None or rows.key[3]:
            return None
        on_host = backend.to_numpy(counts)
        if not rule.is_due(rows.key[2], on_host):
            return None
        lane_mask = rule.of_lane(rows.key[1])
        return rule.changes(on_host, backend.to_numpy(sums), lane_mask, rows.draw())

    def identity(self) -> dict[str, Any]:
        """Return the number of centroids and of features."""
        return {"centres": list(self.first.shape)}


def _compute_means(counts: Any, sums: Any, first: Any) -> Any:
    """Return the mean of each centroid's rows, or its first position if it has no rows."""
    xp, has_rows = namespace(counts), counts > 0
    means = sums / xp.where(has_rows, counts, xp.ones_like(counts))[:, None]
    return xp.where(has_rows[:, None], means, first)
