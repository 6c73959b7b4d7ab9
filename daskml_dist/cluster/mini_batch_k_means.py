"""`MiniBatchKMeans`: k-means by steps along mini-batches, under any policy.

The step itself is in `models/centroids.py`. This module has the parameters, the first centroids
(chosen in a sample), the stopping rules, and the work after the last step.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.cluster._base import BaseCentroidEstimator
from daskml_dist.cluster._mini_batches import (
    CentroidsSettled,
    choose_first_centroids,
    compute_shift,
    count_joint_step_rows,
    reassign_low_centroids,
)
from daskml_dist.cluster._streaming import ROWS_PER_REASSIGNMENT, StreamedCentroids
from daskml_dist.data.batches import LaneSpec
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.models.base import StepModel
from daskml_dist.models.centroids import CentroidModel, Reassignment
from daskml_dist.parameters.checks import check_count, check_flag, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers.k_means import InertiaSolver, RowSampleSolver
from daskml_dist.solvers.rows import check_squares_finite
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import FitResult
from daskml_dist.training.job import FitJob
from daskml_dist.training.plan import count_lane_batch_rows
from daskml_dist.training.spec import FitSpec, Settings

_INITS = ("k-means||", "k-means++", "random")
#: Largest number of entries (rows times features) of the sample for first centroids: 16 MiB.
_MAX_SAMPLE_ENTRIES = 1 << 21


class MiniBatchKMeans(StreamedCentroids, BaseCentroidEstimator, BaseSteps):
    """k-means by steps on mini-batches, under any policy.

    A step moves each centroid towards the mean of its rows in the batch, weighted by their share of
    all its rows so far. Counts and sums of rows are added, so under every policy each row counts
    once per pass.

    Parameters
    ----------
    init : {"k-means||", "k-means++", "random"}, array-like of shape (n_clusters, n_features) or \
    callable, default="k-means||"
        First centroids, chosen in a sample of `init_size` rows drawn with probabilities
        proportional to their weights: ``"k-means||"`` clusters the sample by k-means,
        ``"k-means++"`` draws rows far from each other, ``"random"`` random rows.
    max_iter : int, default=100
        Largest number of passes over the rows.
    batch_size : int, default=1024
        Number of rows in a step of all lanes together; under a policy in which each push is a
        separate step (``"async"``, ``"ssp"``, ``"hogwild"``), in each push.
    compute_labels : bool, default=True
        Whether to compute ``labels_``, and ``inertia_`` with one more pass over all rows.
    tol : float, default=0.0
        If above 0, a fit also ends when the sum of the centroids' squared movements in a pass is at
        most `tol` times the mean variance of the features.
    max_no_improvement : int or None, default=10
        A fit ends with the pass that completes this many steps in which the mean squared distance
        has not fallen by more than its sampling error. None: no such stopping rule.
    init_size : int or None, default=None
        Number of rows in the sample from which the first centroids are chosen. None: ``3 *
        batch_size``, or ``3 * n_clusters`` if that is less than `n_clusters`.
    n_init : int or "auto", default="auto"
        Number of sets of first centroids to try, of which the best is kept. ``"auto"``: 3 for
        ``init="random"``, else 1.
    reassignment_ratio : float, default=0.01
        A centroid with less than this share of the rows of the largest cluster is moved to a random
        row.
    policy : str or Policy, default="allreduce"
        Any policy, except :class:`~daskml_dist.policies.LocalSGD` with outer steps.

    Attributes
    ----------
    cluster_centers_ : ndarray of float64 of shape (n_clusters, n_features)
    counts_ : ndarray of float64 of shape (n_clusters,)
        Weight of the rows whose mean each centroid is.
    labels_ : ndarray or lazy dask Array of int32 of shape (n_rows,)
        Index of each row's centroid; lazy if X is lazy, and then not pickled.
    inertia_ : float
        Weighted sum of the squared distances of the rows to their centroids; without
        `compute_labels`, the sum over the last pass, with each distance taken before the row's
        step.
    n_iter_ : int
        Number of passes.
    n_steps_ : int
        Number of steps.

    References
    ----------
    D. Sculley, "Web-scale k-means clustering", WWW 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.cluster import MiniBatchKMeans
    >>> X = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> model = MiniBatchKMeans(n_clusters=2, random_state=0).fit(X)
    >>> sorted(model.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    """

    counts_: NDArray[np.float64]
    n_steps_: int
    _run_used = ("n_lanes", "n_servers", "deterministic", "memory_budget", "on_lost_data")

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means||",
        max_iter: int = 100,
        batch_size: int = 1024,
        verbose: int = 0,
        compute_labels: bool = True,
        random_state: Any = None,
        tol: float = 0.0,
        max_no_improvement: int | None = 10,
        init_size: int | None = None,
        n_init: int | str = "auto",
        reassignment_ratio: float = 0.01,
        policy: str | Policy = "allreduce",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.verbose = verbose
        self.compute_labels = compute_labels
        self.random_state = random_state
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.init_size = init_size
        self.n_init = n_init
        self.reassignment_ratio = reassignment_ratio
        self.policy = policy
        self.run = run
        self.device = device
        self.callbacks = callbacks

    # -- settings ------------------------------------------------------------------------------

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        for name in ("n_clusters", "batch_size"):
            check_count(name, getattr(self, name))
        if self.init_size is not None:
            check_count("init_size", self.init_size, "or None")
        if self.n_init != "auto":
            check_count("n_init", self.n_init, '"auto"')
        if self.max_no_improvement not in (None, 0):
            check_count("max_no_improvement", self.max_no_improvement, "0 or None")
        check_number("tol", self.tol)
        check_number("reassignment_ratio", self.reassignment_ratio)
        check_flag("compute_labels", self.compute_labels)
        self._check_init(_INITS)
        settings = super()._check_settings(policy)
        # Outer steps extrapolate; counts and sums would then not belong to any rows.
        if settings.policy.outer_optimizer is not None:
            raise InvalidParameterError(
                f"{settings.policy!r} steps beyond the mean of the lanes, but centres are means "
                "of rows. Leave out outer, outer_rate and outer_momentum."
            )
        # Counts and sums over many rows need float64 precision; the rows keep their dtype.
        return dataclasses.replace(settings, dtype="float64", tol=None)

    # -- fitting -------------------------------------------------------------------------------

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: None = None,
        sample_weight: Any = None,
        *,
        policy: str | Policy | None = None,
        client: Any = None,
    ) -> Self:
        """Find the centroids.

        Parameters
        ----------
        X, sample_weight, policy, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`. A row of weight k counts as k
            rows.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any step, naming the remedy (NaN and infinity: during the first pass).
        DivergedError
            If the squares of the rows overflow.
        TrainingError
            The fit cannot continue.
        """
        self._call_init(X)
        settings = self._check_settings(policy)
        # `_prepare_fit` chooses the first centroids, `_run_training` runs the steps.
        self._train(X, None, sample_weight, settings=settings, client=client, go_on=False)
        self._set_labels(X)
        return self

    def partial_fit(
        self,
        X: Any,
        y: None = None,
        sample_weight: Any = None,
        *,
        policy: str | Policy | None = None,
        client: Any = None,
    ) -> Self:
        """Take one step from the last state, with more rows as one batch.

        Parameters
        ----------
        X, y, sample_weight, policy, client
            As in :meth:`fit`.

        Returns
        -------
        self
        """
        state = getattr(self, "_state", None)
        self._call_init(X, None if state is None else self.cluster_centers_)
        settings = dataclasses.replace(self._check_settings(policy), max_iter=1, batch_size=None)
        self._train(
            X, None, sample_weight, settings=settings, client=client, go_on=state is not None
        )
        self._set_labels(X)
        return self

    def _model(self, rows: DatasetInfo, last: CentroidModel | None) -> CentroidModel:
        summary = rows.summary
        self._sparse = summary.any_sparse
        if last is None:
            self._check_n_rows(rows)
            # A placeholder with the right shape: `_prepare_fit` chooses the centroids.
            return CentroidModel(np.zeros((int(self.n_clusters), summary.n_features)), None)
        if len(last.first) != self.n_clusters:
            raise InvalidParameterError(
                f"n_clusters={self.n_clusters}, but the fit that is continued has "
                f"{len(last.first)}. Set that number, or call fit to start again."
            )
        return dataclasses.replace(last, reassignment=None)

    def _dataset_info(
        self, job: FitJob, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        rows = super()._dataset_info(job, classes, class_weight, weighted)
        self._mean_weight = rows.weight_sum / rows.summary.n_rows
        # Weights are not scaled to a mean of 1: counts are kept over calls, and the rows of a later
        # `partial_fit` may have another mean weight.
        return rows if rows.weight_scale is None else dataclasses.replace(rows, weight_scale=1.0)

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        if settings.batch_size is None:
            return settings
        # `batch_size` is the total over all lanes; each lane has its share of it.
        batch = min(int(self.batch_size), rows.summary.n_rows)
        return dataclasses.replace(
            settings, batch_size=count_lane_batch_rows(batch, settings, lanes)
        )

    def _prepare_fit(self, job: FitJob, fit: FitSpec) -> FitSpec:
        # The inertia is only known after the fit, but callbacks may read the estimator during it.
        self._loss = float("nan")
        if fit.steps.initial is not None:
            return fit
        n_rows = sum(fit.rows.lane_rows)
        # First centroids are chosen in a sample; Sculley (algorithm 1) uses random rows instead.
        sample = job.solve_beside(fit, RowSampleSolver(self._count_sample_rows(fit), fit.work.seed))
        shift = None if self._sparse else compute_shift(sample)
        shifted, init = sample if shift is None else sample - shift, self.init
        n_tries = 1
        if not isinstance(init, str):
            self._warn_of_one_init()
            init = self._resolve_given_centroids(sample.shape[1], _INITS)
            init = init if shift is None else init - shift
        elif self.n_init != "auto":
            n_tries = int(self.n_init)
        elif init == "random":
            n_tries = 3
        first, loss = choose_first_centroids(
            shifted, int(self.n_clusters), init, n_tries, fit.work.seed
        )
        self._tolerance = float(self.tol) * float(shifted.var(axis=0).mean())
        # Standard error of a mean of n_rows squared distances, if their deviation is about their
        # mean.
        sampling_error = loss * self._mean_weight / math.sqrt(n_rows)
        model = CentroidModel(first, shift, self._make_reassignment(fit, shifted))
        return fit.replace_work(model=model, stopping=self._make_stopping(fit, sampling_error))

    def _count_sample_rows(self, fit: FitSpec) -> int:
        """Return the number of rows of the sample in which first centroids are chosen."""
        k, size, n_rows = int(self.n_clusters), self.init_size, sum(fit.rows.lane_rows)
        if size is not None and size < k:
            warnings.warn(
                f"init_size={size} should be larger than n_clusters={k}. Setting it to "
                "min(3*n_clusters, n_samples)",
                RuntimeWarning,
                stacklevel=user_stack_level(),
            )
        size = 3 * count_joint_step_rows(fit) if size is None else int(size)
        size = 3 * k if size < k else size
        model = fit.steps.model
        assert isinstance(model, CentroidModel)
        # At least two rows per cluster to choose from, whatever the number of features.
        return min(max(min(size, _MAX_SAMPLE_ENTRIES // model.n_features), 2 * k), n_rows)

    def _make_reassignment(self, fit: FitSpec, sample: NDArray[np.float64]) -> Reassignment | None:
        """Return the rule that moves centroids of low counts to rows of the (shifted) sample."""
        if not self.reassignment_ratio:
            return None
        k, batch = int(self.n_clusters), count_joint_step_rows(fit)
        # Centroids are distributed among the lanes that have rows. At most half of a step's rows
        # become centroids, as in scikit-learn.
        lanes = tuple(n for n, rows in enumerate(fit.rows.lane_rows) if rows)
        ratio, interval = float(self.reassignment_ratio), ROWS_PER_REASSIGNMENT * k / batch
        policy = fit.steps.policy
        average_every = None
        if policy.averages and len(lanes) > 1:
            # Lanes that are drawn for a round are averaged at its end.
            average_every = fit.work.n_steps if policy.draws_lanes else policy.average_every
        return Reassignment(k, ratio, sample, lanes, interval, max(1, batch // 2), average_every)

    def _make_stopping(self, fit: FitSpec, tolerance: float) -> PassStoppingRule:
        """Return the rule that ends the fit when the mean squared distance stops falling."""
        rule = fit.work.stopping
        if self.max_no_improvement is None:
            return rule
        # Steps are counted in whole passes, rounded up; a tolerance of 0 would not end the fit.
        passes = max(1, -(-int(self.max_no_improvement) // fit.work.n_steps))
        return PassStoppingRule(rule.max_iter, max(tolerance, float(np.finfo(float).tiny)), passes)

    def _run_training(self, job: FitJob, fit: FitSpec) -> FitResult:
        model = fit.steps.model
        assert isinstance(model, CentroidModel)
        if self.tol and fit.work.stopping.max_iter > 1:
            result = job.train_steps(fit, has_settled=CentroidsSettled(model, self._tolerance))
        else:
            result = super()._run_training(job, fit)
        losses = [record["loss"] for record in result.records]
        check_squares_finite(losses)
        state = result.state
        assert isinstance(state, ShardState)
        if fit.work.stopping.max_iter * fit.work.n_steps == 1:
            self._reassign_after_single_step(job, fit, state)
        # During a pass the centroids move, so its losses are not the inertia: that takes one more
        # pass.
        if result.interrupted is None and self.compute_labels:
            inertia = InertiaSolver(model.centroids(state.w), model.shift)
            self._loss = float(job.solve_beside(fit, inertia)[0])
        else:
            self._loss = losses[-1] * sum(fit.rows.lane_rows) if losses else float("inf")
        return result

    def _reassign_after_single_step(self, job: FitJob, fit: FitSpec, state: ShardState) -> None:
        """Reassign low centroids after a fit of one step (a `partial_fit`), if that is due.

        Lanes reassign at the beginning of each step but the first, and such a fit has only one
        step.
        """
        start_w = fit.make_start_state().w
        model, n_since = fit.steps.model, count_joint_step_rows(fit)
        if fit.steps.initial is not None:
            n_since += self._n_since
        assert isinstance(model, CentroidModel)
        # Due after 10 rows per centroid, counted over calls, or while a centroid has no row.
        is_due = n_since >= ROWS_PER_REASSIGNMENT * self.n_clusters
        if not is_due and (model.view_counts_and_sums(start_w)[0] > 0).all():
            self._n_since = n_since
            return
        self._n_since = 0
        rule = self._make_reassignment(fit, np.empty((0, model.n_features)))
        if rule is not None:
            reassign_low_centroids(job, fit, state, rule)

    def _set_parameters(self, w: NDArray[Any], model: CentroidModel, rows: DatasetInfo) -> None:
        centroids = model.centroids(w)
        self.cluster_centers_ = centroids if model.shift is None else centroids + model.shift
        self.counts_ = model.view_counts_and_sums(w)[0].copy()
        self.inertia_ = self._loss
        self._shift = model.shift
        self.n_features_in_ = model.n_features
        self._n_features_out = len(centroids)

    def _set_result(
        self, model: StepModel, result: FitResult, rows: DatasetInfo, is_continued: bool
    ) -> None:
        super()._set_result(model, result, rows, is_continued)
        steps = sum(record["steps"] for record in result.records)
        self.n_steps_ = steps + (self.n_steps_ if is_continued else 0)

    @property
    def _counts(self) -> NDArray[np.float64]:
        """Return `counts_` under scikit-learn's name for it."""
        return self.counts_
