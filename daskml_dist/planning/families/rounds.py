"""Solvers that iterate over sums of all rows: gradients, least squares, k-means.

A pass sums a statistic over all rows, each process over its share, and all processes synchronize
once: O(n d k) operations for n rows, d entries per row and k outputs. The families differ in k, in
the size of the message, and in the use of the sum. The number of passes depends on the rows, so a
range is planned if a tolerance ends the fit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from daskml_dist.planning.costs import Costs, Work
from daskml_dist.planning.families.base import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE


class _RoundSolverFamily(Family):
    """Family of solvers that sum over rows, which are divided among the processes."""

    computing = frozenset({"row", "entry", "square", "cube", "begin"})
    spread: ClassVar = {INLINE: 1.7, "cluster": 2.0}
    # Few rows measure the costs of a fit and a pass; two widths with the same number of rows
    # separate `row` from `entry`; the last ones are larger than the caches.
    cluster_probes = Probe(1000, 8, times=2), Probe(400_000, 16, times=2)
    inline_probes = (
        Probe(1000, 8, times=2), Probe(60_000, 8), Probe(60_000, 32), Probe(24_000, 256),
        Probe(300_000, 16),
    )  # fmt: skip

    @abstractmethod
    def width(self, estimator: Any, rows: RowsShape) -> float:
        """Return the number of outputs of each row."""

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts: a process's share of rows and entries, times outputs."""
        entries, width = rows.row_entries, self.width(estimator, rows)
        share = rows.n_rows / place.side_by_side(rows.nbytes, self.bytes_per_thread)
        # Not divided by the processes: this process reads, or sends, all rows.
        setup = {"fit": 1.0, "read": float(rows.n_rows * entries)}
        # `entry` is one multiplication and addition; `row` is the work done once per row, such as
        # its loss.
        one_pass = {"pass": 1.0, "row": share * width, "entry": share * entries * width}
        # A gradient: one float64 per feature, plus the intercept, for each output.
        message = float((rows.n_features + 1) * width * 8)
        return Work(setup, one_pass, passes, 1.0, message)


class GradientSolverFamily(_RoundSolverFamily):
    """Family of linear models that are minimised by gradients over all rows, pass after pass."""

    kind = "LogisticRegression and its like"
    estimators = (
        "LogisticRegression", "PoissonRegressor", "GammaRegressor", "TweedieRegressor",
        "HuberRegressor",
    )  # fmt: skip
    usual: ClassVar = {"fit": 2e-3, "read": 5e-10, "pass": 2e-4, "row": 4e-9, "entry": 3e-10}
    takes_sparse = True

    def width(self, estimator: Any, rows: RowsShape) -> float:
        """Return one column per class for more than two classes, else 1."""
        return float(rows.n_classes if rows.n_classes > 2 else 1)

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return about as many passes as synthetic rows took.

        The actual number depends on the rows.
        """
        # `max_iter` limits iterations; line searches make about half as many additional passes.
        return _make_range(costs.passes or 10.0, 1.5 * estimator.max_iter)


class LeastSquaresFamily(_RoundSolverFamily):
    """Estimators that sum the second moments of the features in one pass, and solve with them."""

    kind = "least squares, PCA"
    estimators = (
        "LinearRegression", "Ridge", "RidgeClassifier", "Lasso", "ElasticNet", "PCA",
    )  # fmt: skip
    usual: ClassVar = {
        "fit": 2e-3, "read": 5e-10, "pass": 1e-3, "entry": 3e-10, "square": 2e-11, "cube": 1e-9,
    }  # fmt: skip

    def width(self, estimator: Any, rows: RowsShape) -> float:
        """Return 1: a few target columns cost little compared to the products of all features."""
        return 1.0

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of products of all pairs of features, and of the solution."""
        work = super().work(estimator, rows, place, passes)
        d = rows.n_features
        # X'X costs n d**2 operations, in BLAS; its factorisation costs d**3, once, in one process.
        squares = rows.n_rows / place.side_by_side(rows.nbytes, self.bytes_per_thread) * d * d
        setup = {**work.setup, "cube": float(d**3)}
        # The message is the matrix of second moments in float64.
        return Work(setup, {**work.one_pass, "square": squares}, passes, 1.0, float(d * d * 8))


class KMeansFamily(_RoundSolverFamily):
    """Family of k-means: distances of each row to each centroid, in each pass."""

    kind = "KMeans"
    estimators = ("KMeans",)
    usual: ClassVar = {
        "fit": 3e-3, "read": 5e-10, "pass": 5e-4, "row": 1e-9, "entry": 3e-10, "begin": 2e-9,
    }  # fmt: skip

    def width(self, estimator: Any, rows: RowsShape) -> float:
        """Return the number of centroids."""
        return float(estimator.n_clusters)

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of a fit, including the search for the first centroids."""
        work = super().work(estimator, rows, place, passes)
        # Each row is compared with some candidates (k-means||): about the work of a pass.
        init_entries = work.one_pass["entry"]
        return Work({**work.setup, "begin": init_entries}, work.one_pass, passes, 1.0, work.message)

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return about twenty passes, as for clustered rows; all of them without a tolerance."""
        max_passes = float(estimator.max_iter)
        return (max_passes, max_passes) if not estimator.tol else _make_range(20.0, max_passes)

    def probes(self, estimator: Any, place: Place, *, is_multiclass: bool) -> Sequence[Probe]:
        """Return fits of a few passes, since synthetic rows have no clusters to converge to."""
        base_probes = super().probes(estimator, place, is_multiclass=is_multiclass)
        params = {"max_iter": 4, "tol": 0.0, "n_init": 1}
        rows = (min(probe.n_rows, 2_000_000 // probe.n_features, 60_000) for probe in base_probes)
        return [
            replace(base, n_rows=n, params=params)
            for base, n in zip(base_probes, rows, strict=True)
        ]


def _make_range(expected: float, max_passes: float) -> tuple[float, float]:
    """Return a range around a number of passes that is not known in advance."""
    max_passes = max(max_passes, 1.0)
    return max(min(expected / 1.5, max_passes), 1.0), min(expected * 1.5, max_passes)
