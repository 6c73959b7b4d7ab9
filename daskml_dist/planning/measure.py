"""Tiny fits that tell what the parts of a fit cost at a place."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from daskml_dist.models.linear import LinearModel
from daskml_dist.planning.costs import Costs, Timing, fitted_costs
from daskml_dist.planning.places import Place, work_of
from daskml_dist.training.run import INLINE
from daskml_dist.training.settings import Settings

__all__ = ["measured_costs", "timing_of"]

#: Rows for each lane, features, rows of a batch and outputs beyond two classes of the tiny fits.
_SHAPES = ((20000, 8, 64, 3), (20000, 8, 512, 3), (20000, 64, 256, 3), (4000, 1000, 256, 10))
#: Rows and features of fits of one pass, which tell what a fit costs beside its passes: of next to
#: no rows, and of so many that the pilot's sample is a small part of them.
_EMPTY, _MANY = (1000, 8), (400_000, 16)
#: Lanes from which on a lane's share of the tiny fits' rows gets smaller.
_MOST_LANES = 8
#: Passes after the early steps, and passes at most.
_LATE, _MOST_PASSES = 4, 80
#: Bytes that are brought to this process once.
_BROUGHT = 1 << 23


def measured_costs(
    estimator: Any, settings: Settings, place: Place, source: str, dtype: str, several: bool,
    policies: Sequence[str],
) -> Costs:  # fmt: skip
    """Costs at a place, of an estimator's own parameters.

    Parameters
    ----------
    estimator : estimator
        Left as it is.
    settings : Settings
        Of its fits.
    place : Place
    source : {"memory", "dask"}
        Where the rows are before the fit.
    dtype : str
    several : bool
        Whether there are several outputs.
    policies : sequence of str
        Others whose steps are measured.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        share = min(1.0, _MOST_LANES / place.lanes)
        shapes = [(int(rows * share), *shape) for rows, *shape in _SHAPES]
        bench = _Bench(estimator, settings, place, source, dtype, several)
        bench.fit(*shapes[0])  # loads compiled loops
        timings = [bench.fit(*shape) for shape in shapes]
        for rows, features in (_EMPTY, _MANY):
            few = -(-rows // place.lanes)
            alike = [bench.fit(few, features, rows, 3, passes=1) for _ in range(2)]
            timings.append(min(alike, key=lambda timing: timing.setup))
        costs = fitted_costs(timings, bench.gather() if source == "dask" else 0.0)
        for policy in policies:
            costs = costs.with_policy(policy, bench.fit(*shapes[0], policy=policy))
    return costs


class _Bench:
    """Fits of made-up rows at one place."""

    def __init__(
        self, estimator: Any, settings: Settings, place: Place, source: str, dtype: str,
        several: bool,
    ) -> None:  # fmt: skip
        self.estimator = estimator
        self.settings = settings
        self.place = place
        self.source = source
        self.dtype = dtype
        self.several = several

    def fit(
        self,
        rows: int,
        n_features: int,
        batch: int,
        n_outputs: int,
        *,
        passes: int | None = None,
        policy: str | None = None,
    ) -> Timing:
        """Seconds of a fit of so many rows a lane."""
        n_rows = rows * self.place.lanes
        n_classes = (n_outputs if self.several else 2) * self.estimator._classification
        model = LinearModel(self.estimator._loss(), n_features, n_classes, True)
        settings = replace(self.settings, batch_size=batch, validation_fraction=0.0)
        work = work_of(self.place, settings, model, n_rows, 1)
        if passes is None:
            passes = min(-(-work.early_steps // work.steps) + _LATE, _MOST_PASSES)
        X, y = _made_up(n_rows, n_features, n_classes, self.dtype)
        fitted = _alike(self.estimator, batch, passes)
        client = self.place.client if self.place.name != INLINE else INLINE
        if self.source == "dask" and self.place.name != INLINE:
            X, y = self._persisted(X), self._persisted(y)
        more = {} if policy is None else {"policy": policy}
        start = time.perf_counter()
        fitted.fit(X, y, client=client, **more)
        seconds = time.perf_counter() - start
        work = replace(work, passes=passes)
        return timing_of(work, seconds, [record["seconds"] for record in fitted.history_])

    def gather(self) -> float:
        """Seconds of a byte that is brought to this process."""
        if self.place.client is None:
            return 0.0
        far = self.place.client.submit(np.ones, _BROUGHT // 8, pure=False)
        # Once it is there, what is left is the way.
        self.place.client.submit(len, far).result()
        start = time.perf_counter()
        far.result()
        return (time.perf_counter() - start) / _BROUGHT

    def _persisted(self, values: NDArray[Any]) -> Any:
        from distributed import wait

        chunk = -(-len(values) // self.place.trainers)
        rows = da.from_array(values, chunks=(chunk, *values.shape[1:]))
        rows = self.place.client.persist(rows)
        wait(rows)
        return rows


def timing_of(work: Any, seconds: float, passes: Sequence[float]) -> Timing:
    """Timing of a fit of so many seconds, whose passes took so long each."""
    n, early = work.steps, work.early_steps
    # The first pass loads what later ones find in the processor's caches.
    before = [s for i, s in enumerate(passes) if i and n * (i + 1) <= early]
    after = [s for i, s in enumerate(passes) if n * i >= early]
    return Timing(
        work,
        max(seconds - sum(passes), 0.0),
        fmean(before) if before else float("nan"),
        median(after) if after else float("nan"),
    )


def _alike(estimator: Any, batch: int, passes: int) -> Any:
    """An estimator of the same parameters for a tiny fit, which tells nobody of it."""
    own = estimator.get_params(deep=False)
    changed = {
        "batch_size": batch, "max_iter": passes, "tol": None, "callbacks": None, "verbose": 0,
        "checkpoint": None, "early_stopping": False, "warm_start": False, "class_weight": None,
        "random_state": 0,
    }  # fmt: skip
    made = clone(estimator)
    return made.set_params(**{name: value for name, value in changed.items() if name in own})


def _made_up(
    n_rows: int, n_features: int, n_classes: int, dtype: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and targets that can be learned; repeated, since drawing all takes longer than a fit."""
    rng = np.random.default_rng(0)
    some = rng.standard_normal((min(n_rows, 1000), n_features), dtype=np.float32).astype(dtype)
    X = np.resize(some, (n_rows, n_features))
    # Half of it is noise: the pilot of rows without any would look for no end.
    score = X[:, :8].sum(axis=1) / 8**0.5 + rng.standard_normal(n_rows).astype(dtype)
    if not n_classes:
        return X, np.abs(score)
    bounds = np.quantile(score[:2000], np.linspace(0, 1, n_classes + 1)[1:-1])
    return X, np.digitize(score, bounds)
