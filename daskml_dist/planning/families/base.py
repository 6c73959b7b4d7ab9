"""Base class of cost models: the operation counts of the fits of a family of estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags

from daskml_dist.planning.costs import Costs, Equation, Work
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import (
    RowsShape,
    check_dense,
    measure_collection_shape,
    measure_shape,
)
from daskml_dist.policies import AllReduce
from daskml_dist.policies.base import Policy
from daskml_dist.training.job import INLINE

#: Parameters that do not change the cost of an operation, so they are not part of the key of kept
#: costs: if they have an effect, it is on the counts.
_PARAMS_OF_EQUAL_COST = (
    "callbacks", "verbose", "checkpoint", "random_state", "max_iter", "tol", "warm_start", "run",
    "device", "n_jobs", "batch_size",
)  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """A tiny fit of synthetic rows.

    Parameters
    ----------
    n_rows, n_features : int
    n_outputs : int, default=3
        Number of classes, if there are more than two.
    params : mapping of str to object
        Parameters for the estimator.
    times : int, default=1
        Number of fits; the fastest counts.
    """

    n_rows: int
    n_features: int
    n_outputs: int = 3
    params: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1


class Family(ABC):
    """Family of estimators whose fits consist of the same operations.

    The time of a fit is the sum of the counts of :meth:`work`, each times the seconds of one
    operation, which tiny fits measure. A module of this folder that defines a family is loaded
    automatically.
    """

    #: Description of the estimators.
    kind: ClassVar[str]
    #: Names of the estimator classes, whose derived classes are included.
    estimators: ClassVar[tuple[str, ...]]
    #: Operations that are pure computation: measured in this process, they are used for workers
    #: too.
    computing: ClassVar[frozenset[str]]
    #: Seconds of each operation on a usual processor, and of starts and synchronisation on a usual
    #: cluster. They are used to choose a place for small data while nothing has been measured.
    usual: ClassVar[Mapping[str, float]]
    usual_cluster_costs: ClassVar[Mapping[str, float]] = {"fit": 0.1, "read": 2e-9, "pass": 2e-3}
    #: Factor by which a range of seconds extends below and above the expected value, at each place.
    spread: ClassVar[Mapping[str, float]] = {INLINE: 1.5, "cluster": 1.7}
    #: Bytes of rows for each further thread of a fit in this process (4 MiB); 0: only one thread.
    bytes_per_thread: ClassVar[int] = 1 << 22
    #: Distinct rows of tiny fits; the others are repeats, since drawing takes longer than a fit.
    distinct: ClassVar[int] = 1000
    #: Tiny fits that measure the costs in this process, and on a cluster.
    inline_probes: ClassVar[tuple[Probe, ...]]
    cluster_probes: ClassVar[tuple[Probe, ...]]
    #: Whether there is a cost model for sparse rows, which counts their stored entries.
    takes_sparse: ClassVar[bool] = False

    # -- what a fit does -----------------------------------------------------------------------

    @abstractmethod
    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of a fit of `passes` passes."""

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return the fewest and the most passes that a fit is likely to make."""
        return 1.0, 1.0

    def probes(self, estimator: Any, place: Place, *, is_multiclass: bool) -> Sequence[Probe]:
        """Return tiny fits that measure the costs at a place, with several outputs or one."""
        return self.inline_probes if place.name == INLINE else self.cluster_probes

    def sparse_probe_params(
        self, estimator: Any, rows: RowsShape, place: Place
    ) -> Mapping[str, Any]:
        """Return the parameters of fits to parts of sparse rows."""
        return {}

    # -- parameters and rows ------------------------------------------------------------------

    def check(self, estimator: Any) -> None:
        """Check the parameters, and refuse those without a cost model."""
        estimator._check_params()

    def shape(self, estimator: Any, X: Any, y: Any) -> RowsShape:
        """Return the shape of the rows."""
        rows = measure_shape(estimator, X, y)
        if not self.takes_sparse:
            check_dense(rows, f"Sparse rows in {self.kind}")
        return rows

    def quick_shape(self, estimator: Any, collection: Any, X: Any) -> RowsShape:
        """Return the shape of rows in memory without reading many of them."""
        return measure_collection_shape(estimator, collection, quick=True)

    def lanes(self, estimator: Any) -> int | None:
        """Return the number of lanes that the user set, if any."""
        run = getattr(estimator, "run", None)
        return None if run is None else run.n_lanes

    def budget(self, estimator: Any) -> float | None:
        """Return the bytes of rows that the user allows on a worker, if set."""
        settings = getattr(estimator, "_run_settings", None)
        return None if settings is None else settings().memory_budget

    def key(self, estimator: Any) -> str:
        """Return a text of the parameters that the costs depend on."""
        params = estimator.get_params(deep=False).items()
        described = ", ".join(
            f"{k}={v!r}" for k, v in sorted(params) if k not in _PARAMS_OF_EQUAL_COST
        )
        return f"{type(estimator).__name__}({described}), {getattr(estimator, 'device', 'cpu')}"

    def policy(self, estimator: Any) -> Policy:
        """Return the policy of the estimator: it determines which trainers wait for each other."""
        return AllReduce()

    def policies(self, estimator: Any) -> list[str]:
        """Return the names of other policies under which the estimator can be trained."""
        return []

    def differs(self, estimator: Any, name: str, place: Place) -> bool:
        """Return True if steps under a policy differ from the steps under the user's policy."""
        return False

    def choice_policy(self, estimator: Any) -> str:
        """Return the name of the policy for the table of a plan."""
        return "rounds"

    def traffic(self, estimator: Any, name: str, place: Place, work: Work) -> float:
        """Return the bytes that a fit sends between processes."""
        if place.trainers == 1:
            return 0.0
        # In each synchronization, each trainer sends its message and receives one of the same size.
        return 2.0 * work.message * work.meetings * work.passes * place.trainers

    # -- how it is measured --------------------------------------------------------------------

    def make_probe_rows(
        self, estimator: Any, probe: Probe, dtype: str, is_multiclass: bool
    ) -> tuple[Any, Any]:
        """Return the synthetic rows and targets of a probe."""
        n_classes = (probe.n_outputs if is_multiclass else 2) * estimator._classification
        X, y = _make_rows(probe.n_rows, probe.n_features, n_classes, dtype, self.distinct)
        return X, y if get_tags(estimator).target_tags.required else None

    def make_probe_shape(self, probe: Probe, n_classes: int, dtype: str) -> RowsShape:
        """Return the shape of the rows of a probe."""
        return RowsShape(probe.n_rows, probe.n_features, n_classes, dtype)

    def equations(self, work: Work, seconds: float, records: Sequence[float]) -> list[Equation]:
        """Return equations of counts and seconds, from a fit and its passes."""
        # Two equations, to separate the costs of starts and passes. The median pass is used: the
        # first one may fill caches, and any one may be disturbed by other programs.
        pass_seconds = median(records)
        return [
            (work.setup, max(seconds - pass_seconds * work.passes, 0.0)),
            (work.one_pass, pass_seconds),
        ]


def _make_rows(
    n_rows: int, n_features: int, n_classes: int, dtype: str, distinct: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return rows with a learnable target.

    Some rows are repeated, since drawing takes longer than a fit.
    """
    rng = np.random.default_rng(0)
    # Drawn in float32, which is faster, for any dtype of the fit.
    distinct_rows = rng.standard_normal(
        (min(n_rows, distinct), n_features), dtype=np.float32
    ).astype(dtype)
    X = np.resize(distinct_rows, (n_rows, n_features))
    # Half of the target's variance is noise: on rows without noise the pilot, which searches for a
    # learning rate, would run too long.
    score = X[:, :8].sum(axis=1) / 8**0.5 + rng.standard_normal(n_rows).astype(dtype)
    if not n_classes:
        return X, np.abs(score)  # not negative, as losses for counts and amounts require
    # Classes of equal size, cut at quantiles of the score.
    bounds = np.quantile(score[:2000], np.linspace(0, 1, n_classes + 1)[1:-1])
    return X, np.digitize(score, bounds)
