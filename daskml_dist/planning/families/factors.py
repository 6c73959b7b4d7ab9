"""Factors of users and items by alternating least squares.

A half sweep solves a ridge regression of k unknowns for each user from its ratings (Zhou et al.
2008). The normal equations cost k**2 operations per rating; their solution costs k**3 per user, or
k**2 per step of conjugate gradients.
"""

from __future__ import annotations

from math import exp
from typing import Any, ClassVar

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.planning.costs import Costs, Work
from daskml_dist.planning.families.base import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE

#: Number of ratings whose ids are sampled to estimate the numbers of users and items.
_SAMPLE_SIZE = 1 << 16
#: Bytes of a rating: user and item as int64, and a float64 value.
_RATING_BYTES = 24
#: Parameters of tiny fits.
_FEW_SWEEPS = {"max_iter": 3, "tol": None}


class ALSFamily(Family):
    """Family of alternating least squares: a sweep solves for each user, then for each item."""

    kind = "ALS"
    estimators = ("ALS",)
    computing = frozenset({"cut", "entry", "square", "cube"})
    usual: ClassVar = {
        "fit": 5e-3, "cut": 8e-8, "pass": 1e-3, "entry": 2e-9, "square": 2e-10, "cube": 1e-9,
    }  # fmt: skip
    usual_cluster_costs: ClassVar = {"fit": 0.2, "send": 3e-8, "pass": 1e-2}
    spread: ClassVar = {INLINE: 1.7, "cluster": 2.0}
    #: Bytes of half a million ratings; each such amount is worth another thread.
    bytes_per_thread = (1 << 19) * _RATING_BYTES
    # The same number of ratings with 20 times the users and items separates "cube" from "entry" and
    # "square"; the higher rank separates "entry" from "square".
    cluster_probes = Probe(1000, 50, params=_FEW_SWEEPS), Probe(60_000, 1000, params=_FEW_SWEEPS)
    inline_probes = (
        Probe(1000, 50, params=_FEW_SWEEPS, times=2), Probe(60_000, 300, params=_FEW_SWEEPS),
        Probe(60_000, 6_000, params=_FEW_SWEEPS),
        Probe(60_000, 1000, params={**_FEW_SWEEPS, "rank": 32}),
    )  # fmt: skip

    def check(self, estimator: Any) -> None:
        """Check the parameters."""
        estimator._solver()

    def shape(self, estimator: Any, X: Any, y: Any) -> RowsShape:
        """Return the numbers of ratings, users and items, counted in memory."""
        return self.quick_shape(estimator, estimator._entries(X), X)

    def quick_shape(self, estimator: Any, collection: Any, X: Any) -> RowsShape:
        """Return the numbers of ratings, users and items, estimated from some ratings."""
        if is_dask(X) or collection.kind != "memory":
            raise InvalidDataError(
                "A plan for factors needs ratings in memory, since the numbers of users and "
                "items of lazy ones are unknown. Plan with a part, X.get_partition(0).compute()."
            )
        if is_dataframe_like(X):
            ids = X[estimator.user_col].to_numpy(), X[estimator.item_col].to_numpy()
            keys = _estimate_distinct(ids[0]), _estimate_distinct(ids[1])
        else:
            keys = float(X.shape[0]), float(X.shape[1])
        return RowsShape(
            collection.n_entries,
            3,
            0,
            "float64",
            collection,
            True,
            keys=keys,
            item_bytes=_RATING_BYTES,
        )

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of a fit of `passes` sweeps over both sides."""
        rank, keys = float(estimator.rank), sum(rows.keys)
        side_by_side = place.side_by_side(rows.nbytes, self.bytes_per_thread)
        share, solved = rows.n_rows / side_by_side, keys / side_by_side
        cubes = rank**2 * estimator.cg_steps if estimator.solver == "cg" else rank**3
        return Work(
            # `cut`: ratings are sorted by user and by item, and divided into ranges of both.
            {"fit": 1.0, "cut": share, "send": float(rows.n_rows)},
            # Both half sweeps read all ratings; together they solve for all users and items.
            {
                "pass": 1.0,
                "entry": 2 * share * rank,
                "square": 2 * share * rank**2,
                "cube": solved * cubes,
            },
            passes,
            2.0,
            # The factors of one side, 8 bytes each; on average half of those of both sides.
            keys * rank * 8 / 2,
        )

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return all sweeps, or a range if a tolerance may end them early."""
        max_passes = float(estimator.max_iter)
        return (max_passes if estimator.tol is None else max(max_passes / 3, 1.0)), max_passes

    def make_probe_rows(
        self, estimator: Any, probe: Probe, dtype: str, is_multiclass: bool
    ) -> tuple[Any, Any]:
        """Return ratings with as many users and items as the probe has features."""
        rng = np.random.default_rng(0)
        pairs = rng.integers(0, probe.n_features, (probe.n_rows, 2))
        ratings = 1.0 + pairs.sum(axis=1) % 5
        try:
            import pandas as pd
        except ImportError:  # without pandas, ratings are matrices
            return sparse.coo_array((ratings, tuple(pairs.T)), (probe.n_features,) * 2), None
        columns = (estimator.user_col, estimator.item_col)
        frame = pd.DataFrame(pairs, columns=pd.Index(columns))
        frame[estimator.rating_col] = ratings
        return frame, None

    def make_probe_shape(self, probe: Probe, n_classes: int, dtype: str) -> RowsShape:
        """Return the shape of the ratings of a probe."""
        keys = float(min(probe.n_features, probe.n_rows))
        return RowsShape(probe.n_rows, 3, 0, dtype, keys=(keys, keys), item_bytes=_RATING_BYTES)

    def choice_policy(self, estimator: Any) -> str:
        """Return the name that a plan shows for the synchronization: a sweep."""
        return "sweeps"


def _estimate_distinct(ids: NDArray[Any]) -> float:
    """Return the number of ids, estimated from some entries as if all ids were equally frequent."""
    sample = ids[:: max(1, len(ids) // _SAMPLE_SIZE)]
    n_seen, n_drawn = float(len(np.unique(sample))), float(len(sample))
    if n_drawn == len(ids) or n_seen >= n_drawn:
        return n_seen
    # Occupancy: n draws of k equally frequent ids give about k (1 - exp(-n/k)) distinct ones, which
    # increases with k. Solved for k by bisection: 50 halvings give the precision of a float.
    low, high = n_seen, float(len(ids))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if middle * (1 - exp(-n_drawn / middle)) < n_seen else (low, middle)
        )
    return low
