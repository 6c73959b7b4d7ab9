"""Looks at all rows before steps along batches and after, and what they decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin_min

from daskml_dist.errors import DivergedError
from daskml_dist.models.centroids import CentroidModel, Reassignment
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers.k_means import RowSampleSolver, choose_centroids
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import FitSpec

__all__ = ["OVERFLOW", "Settled", "begin_anew", "choose_first", "shift_of", "step_rows"]

_Array = NDArray[np.float64]

#: What is told of rows that are too large.
OVERFLOW = "The squares of the rows overflow. Scale the features (StandardScaler), or use float64."


def shift_of(drawn: _Array) -> _Array:
    """Place near which rows lie, that float32 holds too."""
    with np.errstate(over="ignore", invalid="ignore"):
        shift: _Array = drawn.mean(axis=0).astype(np.float32).astype(np.float64)
        if not np.isfinite(((drawn - shift) ** 2).sum()):
            raise DivergedError(OVERFLOW)
    return shift


def choose_first(
    sample: _Array, k: int, init: str | _Array, n_tries: int, seed: int
) -> tuple[_Array, float]:
    """The best of some first centres, and the mean squared distance of the sample to them."""
    rng = np.random.RandomState(seed % 2**32)
    best: tuple[_Array, float] | None = None
    for _ in range(n_tries):
        centres = _chosen(sample, k, init, rng)
        apart = pairwise_distances_argmin_min(sample, centres, metric="sqeuclidean")[1]
        if best is None or apart.mean() < best[1]:
            best = centres, float(apart.mean())
    assert best is not None
    return best


def _chosen(sample: _Array, k: int, init: Any, rng: np.random.RandomState) -> _Array:
    if not isinstance(init, str):
        return np.asarray(init, np.float64)
    few = min(k, len(sample))
    if init == "k-means||" and few == k:
        return choose_centroids(sample, np.ones(len(sample)), k, int(rng.randint(2**31 - 1)))
    if init == "random":
        centres = sample[rng.choice(len(sample), few, replace=False)]
    else:
        centres = kmeans_plusplus(sample, few, random_state=rng)[0]
    # The same ones again where there are no more rows.
    return np.resize(centres, (k, sample.shape[1]))


def step_rows(fit: FitSpec) -> int:
    """Rows of a step of all lanes."""
    return max(1, sum(fit.rows.lane_rows) // fit.work.n_steps)


def begin_anew(job: FitJob, fit: FitSpec, state: ShardState, rule: Reassignment) -> None:
    """Let centres of few rows begin anew, at rows of the fit that are drawn for them."""
    model, seed = fit.steps.model, fit.work.seed + state.step
    assert isinstance(model, CentroidModel)
    counts, sums = model.parts(state.w)
    if not (n_low := int(rule.low(counts).sum())):
        return
    drawn = job.solve_beside(fit, RowSampleSolver(n_low, seed))
    rule = replace(rule, rows=drawn if model.shift is None else drawn - model.shift)
    every = np.ones(len(counts), np.bool_)
    by_count, by_sum = rule.changes(counts, sums, every, np.random.default_rng(seed))
    state.w = model.matrix(counts + by_count, sums + by_sum)


class Settled:
    """Test of a pass in which centres have come no further than a squared way.

    Parameters
    ----------
    model : CentroidModel
    most : float
    """

    def __init__(self, model: CentroidModel, most: float) -> None:
        self._model = model
        self._before = model.first
        self._most = most

    def __call__(self, state: ShardState) -> bool:
        centres = self._model.centres(state.w)
        way, self._before = float(((centres - self._before) ** 2).sum()), centres
        return way <= self._most
