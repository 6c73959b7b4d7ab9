"""Tiny fits that tell what the parts of a fit cost at a place."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from sklearn.base import clone

from daskml_dist.data.lazy import is_dask
from daskml_dist.planning.costs import Costs, Equation, Work, fitted_values
from daskml_dist.planning.families import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.run import INLINE

__all__ = ["measured_costs"]

#: Bytes that are brought to this process once.
_BROUGHT = 1 << 23
#: Parameters that tell somebody of a fit, or keep it.
_QUIET = {"callbacks": None, "verbose": 0, "checkpoint": None, "random_state": 0}


def measured_costs(
    family: Family, estimator: Any, place: Place, source: str, dtype: str, several: bool,
    known: Mapping[str, float], policies: Sequence[str],
) -> Costs:  # fmt: skip
    """Costs at a place, of an estimator's own parameters.

    Parameters
    ----------
    family : Family
        That of the estimator.
    estimator : estimator
        Left as it is.
    place : Place
    source : {"memory", "dask"}
        Where the rows are before the fit.
    dtype : str
    several : bool
        Whether there are several outputs.
    known : mapping of str to float
        What computing costs, where it is known from this process.
    policies : sequence of str
        Others whose steps are measured.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bench = _Bench(family, estimator, place, source, dtype, several)
        probes = family.probes(estimator, place, several=several)
        bench.run(probes[0])  # loads compiled loops
        timings = [bench.fit(probe) for probe in probes]
        values = fitted_values([one for timing in timings for one in timing.equations], known)
        settled = median(timing.work.passes for timing in timings)
        costs = Costs(values, bench.gather() if source == "dask" else 0.0, settled)
        for policy in policies:
            costs = costs.with_policy(policy, bench.fit(probes[0], policy).equations[-1])
    return costs


class _Timing:
    """Findings of a tiny fit."""

    def __init__(self, work: Work, seconds: float, equations: list[Equation]) -> None:
        self.work = work
        self.seconds = seconds
        self.equations = equations


class _Bench:
    """Fits of made-up rows at one place."""

    def __init__(
        self, family: Family, estimator: Any, place: Place, source: str, dtype: str, several: bool
    ) -> None:
        self.family = family
        self.estimator = estimator
        self.place = place
        self.source = source
        self.dtype = dtype
        self.several = several

    def fit(self, probe: Probe, policy: str | None = None) -> _Timing:
        """The quickest of a probe's fits."""
        found = [self.run(probe, policy) for _ in range(probe.times)]
        return min(found, key=lambda timing: timing.seconds)

    def run(self, probe: Probe, policy: str | None = None) -> _Timing:
        """A fit of a probe."""
        family, fitted = self.family, _alike(self.estimator, probe)
        X, y = family.made_up(self.estimator, probe, self.dtype, self.several)
        client = self.place.client if self.place.name != INLINE else INLINE
        if self.source == "dask" and self.place.name != INLINE:
            X, y = self._persisted(X), self._persisted(y)
        more = {} if policy is None else {"policy": policy}
        start = time.perf_counter()
        fitted.fit(X, y, client=client, **more)
        seconds = time.perf_counter() - start
        records = [float(record["seconds"]) for record in fitted.history_]
        work = family.work(fitted, self._shape(probe), self.place, self._passes(fitted))
        return _Timing(work, seconds, family.equations(work, fitted, seconds, records))

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

    def _passes(self, fitted: Any) -> float:
        """Passes of a fit that has ended; of trees, those that were asked for."""
        least, most = self.family.passes(fitted, Costs({}))
        return most if least == most else float(len(fitted.history_))

    def _shape(self, probe: Probe) -> RowsShape:
        estimator = self.estimator
        classification = getattr(estimator, "_classification", False)
        n_classes = (probe.n_outputs if self.several else 2) * classification
        return self.family.made_shape(probe, n_classes, self.dtype)

    def _persisted(self, values: Any) -> Any:
        from distributed import wait

        if values is None or is_dask(values):
            return values
        chunk = -(-len(values) // self.place.trainers)
        rows = da.from_array(values, chunks=(chunk, *values.shape[1:]))
        rows = self.place.client.persist(rows)
        wait(rows)
        return rows


def _alike(estimator: Any, probe: Probe) -> Any:
    """An estimator of the same parameters for a tiny fit, which tells nobody of it."""
    own = estimator.get_params(deep=False)
    changed = {**_QUIET, **probe.params}
    made = clone(estimator)
    return made.set_params(**{name: value for name, value in changed.items() if name in own})
