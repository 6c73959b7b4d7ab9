"""Measurement of costs: tiny fits at a place, and the seconds of each operation behind them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from sklearn.base import clone

from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.planning.costs import Costs, Equation, Work, fit_cost_values
from daskml_dist.planning.families import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE

#: Bytes that are gathered from a worker, once, to measure the seconds of a byte.
_GATHERED_BYTES = 1 << 23
#: Stored entries of the fits to parts of sparse rows. All are above 2**17, up to which NumPy takes
#: the place of the compiled loops of large fits; no cache of a usual processor holds the last one.
_DRAWN_ENTRIES = (1 << 18, 1 << 19, 1 << 20)
#: Rows of such a part at least.
_MIN_DRAWN_ROWS = 200
#: Parameters of tiny fits: nothing is shown or saved, and the seed is fixed.
_QUIET = {"callbacks": None, "verbose": 0, "checkpoint": None, "random_state": 0}


def measure_costs(
    family: Family, estimator: Any, place: Place, source: str, dtype: str, several: bool,
    known: Mapping[str, float], policies: Sequence[str], sparse: RowsShape | None = None,
) -> Costs:  # fmt: skip
    """Return the costs at a place, measured by tiny fits with the estimator's own parameters.

    `known` are costs that are not measured again. `several` is whether there are more than two
    classes; `sparse` the shape of sparse rows, of which parts are fitted.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = _ProbeRunner(family, estimator, place, source, dtype, several, sparse)
        if sparse is None:
            probes = family.probes(estimator, place, several=several)
        else:
            probes = _make_sparse_probes(sparse, family.drawn_params(estimator, sparse, place))
        runner.run(probes[-1] if sparse else probes[0])  # loads compiled loops
        timings = [runner.fit(probe) for probe in probes]
        values = fit_cost_values([one for timing in timings for one in timing.equations], known)
        settled = median(timing.work.passes for timing in timings)
        if sparse is not None:  # the largest part needs about as many as all rows
            settled = timings[-1].work.passes
        costs = Costs(values, runner.gather() if source == "dask" else 0.0, settled)
        # A step under another policy is what its probe takes beyond the costs that are known now.
    for policy in policies:
        costs = costs.with_policy(policy, runner.fit(probes[0], policy).equations[-1])
    return costs


class _ProbeTiming:
    """Seconds of a tiny fit, with its counts and the equations between both."""

    def __init__(self, work: Work, seconds: float, equations: list[Equation]) -> None:
        self.work = work
        self.seconds = seconds
        self.equations = equations


class _ProbeRunner:
    """Runner of tiny fits at one place, of synthetic rows or of a part of sparse ones."""

    def __init__(
        self, family: Family, estimator: Any, place: Place, source: str, dtype: str, several: bool,
        sparse: RowsShape | None,
    ) -> None:  # fmt: skip
        self.family = family
        self.estimator = estimator
        self.place = place
        self.source = source
        self.dtype = dtype
        self.several = several
        self.sparse = sparse

    def fit(self, probe: Probe, policy: str | None = None) -> _ProbeTiming:
        """Run the fits of a probe, and return the quickest."""
        found = [self.run(probe, policy) for _ in range(probe.times)]
        return min(found, key=lambda timing: timing.seconds)

    def run(self, probe: Probe, policy: str | None = None) -> _ProbeTiming:
        """Run one fit of a probe."""
        family, fitted = self.family, _copy_for_probe(self.estimator, probe)
        if self.sparse is None:
            X, y = family.made_up(self.estimator, probe, self.dtype, self.several)
            shape = self._shape(probe)
        else:
            X, y = _draw_rows(self.sparse, probe.n_rows)
            shape = replace(self.sparse, n_rows=X.shape[0], entries=X.nnz / X.shape[0])
        client = self.place.client if self.place.name != INLINE else INLINE
        if self.source == "dask" and self.place.name != INLINE:
            X, y = self._persisted(X), self._persisted(y)
        more = {} if policy is None else {"policy": policy}
        start = time.perf_counter()
        fitted.fit(X, y, client=client, **more)
        seconds = time.perf_counter() - start
        records = [float(record["seconds"]) for record in fitted.history_]
        work = family.work(fitted, shape, self.place, self._passes(fitted))
        return _ProbeTiming(work, seconds, family.equations(work, fitted, seconds, records))

    def gather(self) -> float:
        """Return the seconds per byte that is brought to this process."""
        if self.place.client is None:
            return 0.0
        far = self.place.client.submit(np.ones, _GATHERED_BYTES // 8, pure=False)
        # The array is computed before the clock starts, so that the transfer alone is timed.
        self.place.client.submit(len, far).result()
        start = time.perf_counter()
        far.result()
        return (time.perf_counter() - start) / _GATHERED_BYTES

    def _passes(self, fitted: Any) -> float:
        """Return the passes that a fit made, or the number that its parameters fix."""
        least, most = self.family.passes(fitted, Costs({}))
        return most if least == most else float(len(fitted.history_))

    def _shape(self, probe: Probe) -> RowsShape:
        estimator = self.estimator
        classification = getattr(estimator, "_classification", False)
        n_classes = (probe.n_outputs if self.several else 2) * classification
        return self.family.made_shape(probe, n_classes, self.dtype)

    def _persisted(self, values: Any) -> Any:
        """Return the values as a Dask array that lies on the workers."""
        from distributed import wait

        if values is None or is_dask(values):
            return values
        chunk = -(-len(values) // self.place.trainers)
        rows = da.from_array(values, chunks=(chunk, *values.shape[1:]))
        rows = self.place.client.persist(rows)
        wait(rows)
        return rows


def _make_sparse_probes(rows: RowsShape, params: Mapping[str, Any]) -> list[Probe]:
    """Return fits to parts of sparse rows, the smallest first."""
    each = max(rows.row_entries, 1.0)
    sizes = {min(max(int(n / each), _MIN_DRAWN_ROWS), rows.n_rows) for n in _DRAWN_ENTRIES}
    return [Probe(n, rows.n_features, params=params, times=2) for n in sorted(sizes)]


def _draw_rows(rows: RowsShape, n: int) -> tuple[Any, Any]:
    """Return `n` rows of a sparse X, drawn without replacement, with their targets."""
    rng = np.random.default_rng(0)
    assert rows.collection is not None
    X, y, _ = rows.collection.inputs
    chosen = np.sort(rng.choice(rows.n_rows, n, replace=False))
    labels = np.asarray(copy_to_host(y)) if y is not None else rng.integers(0, 2, rows.n_rows)
    return X.tocsr()[chosen], labels[chosen]


def _copy_for_probe(estimator: Any, probe: Probe) -> Any:
    """Return an estimator with the same parameters for a tiny fit without callbacks."""
    own = estimator.get_params(deep=False)
    changed = {**_QUIET, **probe.params}
    made = clone(estimator)
    return made.set_params(**{name: value for name, value in changed.items() if name in own})
