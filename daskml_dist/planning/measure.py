"""Measurement of costs: tiny fits at a place, and the seconds per operation that explain them.

Each probe is a fit of the user's estimator, with few passes, to synthetic rows of a shape that
makes one operation dominate. Its time, and the times of its passes, are equations of the cost model
(`costs.py`), which are solved together. Sparse rows cannot be replaced by synthetic ones, since
their costs depend on the positions of the entries: parts of the rows themselves are fitted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from sklearn.base import clone

from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.lazy import is_dask
from daskml_dist.planning.costs import Costs, Equation, Work, fit_cost_values
from daskml_dist.planning.families.base import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE

#: Bytes that are gathered from a worker, once, to measure the seconds per byte (8 MiB): enough that
#: the latency of the request does not matter.
_GATHERED_BYTES = 1 << 23
#: Stored entries of the fits to parts of sparse rows. All are above 2**17, up to which NumPy
#: replaces the compiled loops of large fits; no cache of a usual processor holds the last one.
_DRAWN_ENTRIES = (1 << 18, 1 << 19, 1 << 20)
#: Fewest rows of such a part, so that a few long rows are not the whole sample.
_MIN_DRAWN_ROWS = 200
#: Parameters of tiny fits: no output, no checkpoints, and a fixed seed.
_QUIET = {"callbacks": None, "verbose": 0, "checkpoint": None, "random_state": 0}


def measure_costs(
    family: Family, estimator: Any, place: Place, source: str, dtype: str, is_multiclass: bool,
    known_values: Mapping[str, float], policies: Sequence[str], sparse: RowsShape | None = None,
) -> Costs:  # fmt: skip
    """Return the costs at a place, measured by tiny fits with the estimator's own parameters.

    `known_values` are costs that are not measured again. `is_multiclass` is whether there are more
    than two classes; `sparse` is the shape of sparse rows, parts of which are fitted.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = _ProbeRunner(family, estimator, place, source, dtype, is_multiclass, sparse)
        if sparse is None:
            probes = family.probes(estimator, place, is_multiclass=is_multiclass)
        else:
            probes = _make_sparse_probes(
                sparse, family.sparse_probe_params(estimator, sparse, place)
            )
        # Untimed: it loads or compiles the loops of all probes. For sparse rows the largest part is
        # used, whose loops the smaller ones share.
        runner.run(probes[-1] if sparse else probes[0])
        timings = [runner.fit(probe) for probe in probes]
        values = fit_cost_values(
            [equation for timing in timings for equation in timing.equations], known_values
        )
        # Passes until convergence: the median over synthetic rows; for sparse rows those of the
        # largest part, which needs about as many as all rows.
        passes = median(timing.work.passes for timing in timings)
        if sparse is not None:
            passes = timings[-1].work.passes
        costs = Costs(values, runner.gather() if source == "dask" else 0.0, passes)
    # The cost of a step under another policy is the time of its probe beyond the known costs.
    for policy in policies:
        costs = costs.with_policy(policy, runner.fit(probes[0], policy).equations[-1])
    return costs


class _ProbeTiming(NamedTuple):
    """Seconds of a tiny fit, with its counts and the equations between them."""

    work: Work
    seconds: float
    equations: list[Equation]


@dataclass(frozen=True)
class _ProbeRunner:
    """Runner of tiny fits at one place, to synthetic rows or to parts of sparse ones."""

    family: Family
    estimator: Any
    place: Place
    source: str
    dtype: str
    is_multiclass: bool
    sparse: RowsShape | None

    def fit(self, probe: Probe, policy: str | None = None) -> _ProbeTiming:
        """Run the fits of a probe, and return the fastest: the one that was disturbed least."""
        timings = [self.run(probe, policy) for _ in range(probe.times)]
        return min(timings, key=lambda timing: timing.seconds)

    def run(self, probe: Probe, policy: str | None = None) -> _ProbeTiming:
        """Run one fit of a probe."""
        family, fitted = self.family, _copy_for_probe(self.estimator, probe)
        if self.sparse is None:
            X, y = family.make_probe_rows(self.estimator, probe, self.dtype, self.is_multiclass)
            classification = getattr(self.estimator, "_classification", False)
            n_classes = (probe.n_outputs if self.is_multiclass else 2) * classification
            shape = family.make_probe_shape(probe, n_classes, self.dtype)
        else:
            X, y = _draw_rows(self.sparse, probe.n_rows)
            shape = replace(self.sparse, n_rows=X.shape[0], entries=X.nnz / X.shape[0])
        client = self.place.client if self.place.name != INLINE else INLINE
        # Dask rows are on workers before the clock starts: the time to compute their graph is not a
        # cost of the fit.
        if self.source == "dask" and self.place.name != INLINE:
            X, y = self._persist(X), self._persist(y)
        options = {} if policy is None else {"policy": policy}
        start = time.perf_counter()
        fitted.fit(X, y, client=client, **options)
        seconds = time.perf_counter() - start
        records = [float(record["seconds"]) for record in fitted.history_]
        # The number of passes that the parameters fix, or else the number that the fit recorded.
        min_passes, max_passes = family.passes(fitted, Costs({}))
        passes = max_passes if min_passes == max_passes else float(len(fitted.history_))
        work = family.work(fitted, shape, self.place, passes)
        return _ProbeTiming(work, seconds, family.equations(work, seconds, records))

    def gather(self) -> float:
        """Return the seconds per byte that is moved to this process."""
        if self.place.client is None:
            return 0.0
        remote_array = self.place.client.submit(np.ones, _GATHERED_BYTES // 8, pure=False)
        # The array is computed before the clock starts, so that only the transfer is timed.
        self.place.client.submit(len, remote_array).result()
        start = time.perf_counter()
        remote_array.result()
        return (time.perf_counter() - start) / _GATHERED_BYTES

    def _persist(self, values: Any) -> Any:
        """Return the values as a Dask array on the workers, one chunk per worker."""
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
    row_entries = max(rows.row_entries, 1.0)
    # A set, since with few rows several parts may have the same size.
    sizes = {min(max(int(n / row_entries), _MIN_DRAWN_ROWS), rows.n_rows) for n in _DRAWN_ENTRIES}
    return [Probe(n, rows.n_features, params=params, times=2) for n in sorted(sizes)]


def _draw_rows(rows: RowsShape, n: int) -> tuple[Any, Any]:
    """Return `n` rows of a sparse X, drawn without replacement, with their targets."""
    rng = np.random.default_rng(0)
    assert rows.collection is not None
    X, y, _ = rows.collection.inputs
    row_numbers = np.sort(rng.choice(rows.n_rows, n, replace=False))
    labels = np.asarray(copy_to_host(y)) if y is not None else rng.integers(0, 2, rows.n_rows)
    return X.tocsr()[row_numbers], labels[row_numbers]


def _copy_for_probe(estimator: Any, probe: Probe) -> Any:
    """Return an estimator with the same parameters for a tiny fit without callbacks."""
    own_params = estimator.get_params(deep=False)
    changed = {**_QUIET, **probe.params}
    cloned = clone(estimator)
    return cloned.set_params(
        **{name: value for name, value in changed.items() if name in own_params}
    )
