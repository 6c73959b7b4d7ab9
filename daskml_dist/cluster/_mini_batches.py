"""Mini-batch k-means apart from its steps: before, after a single step, and after each pass.

Before a fit the first centroids are chosen; after a fit of a single step, centroids with low counts
are reassigned; after each pass, a test decides whether the centroids have settled. Steps of longer
fits reassign centroids themselves (`CentroidModel`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin_min

from daskml_dist.models.centroids import CentroidModel, Reassignment
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers.k_means import RowSampleSolver, choose_centroids, round_to_float32
from daskml_dist.solvers.rows import check_squares_finite
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import FitSpec

_Array = NDArray[np.float64]


def compute_shift(sample: _Array) -> _Array:
    """Return the mean of the sampled rows, rounded to float32, to be subtracted from all rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Rounded, so that float32 and float64 rows are shifted by the same vector.
        shift: _Array = round_to_float32(sample.mean(axis=0))
        check_squares_finite(((sample - shift) ** 2).sum())
    return shift


def choose_first_centroids(
    sample: _Array, k: int, init: str | _Array, n_tries: int, seed: int
) -> tuple[_Array, float]:
    """Return the best of `n_tries` sets of centroids, and the sample's mean squared distance."""
    rng = np.random.RandomState(seed % 2**32)
    best: tuple[_Array, float] | None = None
    for _ in range(n_tries):
        centroids = _draw_centroids(sample, k, init, rng)
        squares = pairwise_distances_argmin_min(sample, centroids, metric="sqeuclidean")[1]
        if best is None or squares.mean() < best[1]:
            best = centroids, float(squares.mean())
    assert best is not None
    return best


def _draw_centroids(sample: _Array, k: int, init: Any, rng: np.random.RandomState) -> _Array:
    """Return one set of `k` centroids by the method `init`, or the array `init` itself."""
    if not isinstance(init, str):
        return np.asarray(init, np.float64)
    n_drawn = min(k, len(sample))
    if init == "k-means||" and n_drawn == k:
        # The last stage of k-means||, with all sampled rows as candidates of equal weight.
        return choose_centroids(sample, np.ones(len(sample)), k, int(rng.randint(2**31 - 1)))
    if init == "random":
        centroids = sample[rng.choice(len(sample), n_drawn, replace=False)]
    else:
        centroids = kmeans_plusplus(sample, n_drawn, random_state=rng)[0]
    # A sample may have fewer than k rows: its rows are then repeated.
    return np.resize(centroids, (k, sample.shape[1]))


def count_joint_step_rows(fit: FitSpec) -> int:
    """Return the number of rows in one step of every lane, whatever the policy."""
    return max(1, sum(fit.rows.lane_rows) // fit.work.n_steps)


def reassign_low_centroids(
    job: FitJob, fit: FitSpec, state: ShardState, rule: Reassignment
) -> None:
    """Move centroids with low counts to rows drawn from the fit, by changing `state`.

    Used after a fit of one step (`partial_fit`, a call of a stream). In longer fits all steps but
    the first reassign at their beginning.
    """
    model, seed = fit.steps.model, fit.work.seed + state.step
    assert isinstance(model, CentroidModel)
    counts, sums = model.view_counts_and_sums(state.w)
    if not (n_low := int(rule.find_low_centroids(counts).sum())):
        return
    drawn = job.solve_beside(fit, RowSampleSolver(n_low, seed))
    rule = replace(rule, rows=drawn if model.shift is None else drawn - model.shift)
    # In a step each lane reassigns only its own centroids; here no lane runs, so all are
    # reassigned.
    every_centroid = np.ones(len(counts), np.bool_)
    by_count, by_sum = rule.changes(counts, sums, every_centroid, np.random.default_rng(seed))
    state.w = model.matrix(counts + by_count, sums + by_sum)


class CentroidsSettled:
    """Stopping test after each pass: whether the centroids moved by at most a tolerance.

    The first pass is compared with the initial centroids of the fit.

    Parameters
    ----------
    model : CentroidModel
    tolerance : float
        Tolerance on the sum of the centroids' squared movements.
    """

    def __init__(self, model: CentroidModel, tolerance: float) -> None:
        self._model = model
        self._last_centroids = model.first
        self._tolerance = tolerance

    def __call__(self, state: ShardState) -> bool:
        centroids = self._model.centroids(state.w)
        movement = float(((centroids - self._last_centroids) ** 2).sum())
        self._last_centroids = centroids
        return movement <= self._tolerance
