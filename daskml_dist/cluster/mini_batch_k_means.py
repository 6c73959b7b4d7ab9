"""`MiniBatchKMeans`."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.cluster._base import BaseCentroidEstimator
from daskml_dist.cluster._mini_batches import (
    OVERFLOW,
    Settled,
    begin_anew,
    choose_first,
    shift_of,
    step_rows,
)
from daskml_dist.cluster._streaming import LOOK, StreamedCentroids
from daskml_dist.data.batches import LaneSpec
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.models.base import StepModel
from daskml_dist.models.centroids import CentroidModel, Reassignment
from daskml_dist.parameters.checks import check_count, check_flag, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.policies import Policy
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers.k_means import InertiaSolver, RowSampleSolver
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import FitResult
from daskml_dist.training.job import FitJob
from daskml_dist.training.plan import count_lane_batch_rows
from daskml_dist.training.spec import FitSpec, Settings

__all__ = ["MiniBatchKMeans"]

_INITS = ("k-means||", "k-means++", "random")
#: Entries of the rows that first centres are drawn from, at most.
_ENTRIES = 1 << 21


class MiniBatchKMeans(StreamedCentroids, BaseCentroidEstimator, BaseSteps):
    """k-means by steps along small batches, under a policy.

    A step moves each centre towards its rows of the batch by the share that these are of all its
    rows so far. What rows add (how many there are, and their sum) is added up whatever the policy,
    so all of them find centres that are means of as many rows.

    Parameters
    ----------
    init : {"k-means||", "k-means++", "random"}, array-like of shape (n_clusters, n_features) or \
    callable, default="k-means||"
        First centres, chosen in `init_size` rows that are drawn by their weights: ``"k-means||"``
        has a k-means of these, ``"k-means++"`` rows far from each other, ``"random"`` any.
    max_iter : int, default=100
        Passes over the rows at most.
    batch_size : int, default=1024
        Rows of a step, of all lanes together; under a policy in which each push is a step of its
        own (``"async"``, ``"ssp"``, ``"hogwild"``), of each push.
    compute_labels : bool, default=True
        Find ``labels_``, and ``inertia_`` by one more look at all rows.
    tol : float, default=0.0
        Above 0: a fit ends where the squared way of all centres in a pass is at most so many times
        the mean variance of a feature, too.
    max_no_improvement : int or None, default=10
        A fit ends with a pass after so many steps in which the mean squared distance has not
        fallen by more than chance moves it. None: it does not end by that.
    init_size : int or None, default=None
        Rows that first centres are chosen in. None: ``3 * batch_size``, but
        ``3 * n_clusters`` where that is less than the clusters.
    n_init : int or "auto", default="auto"
        First centres that are tried; the best go on. ``"auto"``: 3 for ``init="random"``, else 1.
    reassignment_ratio : float, default=0.01
        Share of the rows of the largest cluster, below which a centre begins anew at a drawn row.
    policy : str or Policy, default="allreduce"
        Any, but for outer steps of :class:`~daskml_dist.policies.LocalSGD`.

    Attributes
    ----------
    cluster_centers_ : ndarray of float64 of shape (n_clusters, n_features)
    counts_ : ndarray of float64 of shape (n_clusters,)
        Weight of the rows that each centre is the mean of.
    labels_ : ndarray or lazy dask Array of int32 of shape (n_rows,)
        Number of each row's centre; lazy where X is, and then not pickled.
    inertia_ : float
        Sum of the squared distances of the rows to their centres, weighted; without
        `compute_labels` as the rows came, in the last pass.
    n_iter_ : int
        Passes.
    n_steps_ : int
        Steps.

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
        if settings.policy.outer_rate != 1 or settings.policy.outer_momentum != 0:
            raise InvalidParameterError(
                f"{settings.policy!r} goes further than the mean of the lanes, and centres are "
                "means of rows. Leave out outer_rate and outer_momentum."
            )
        # Sums of many rows need its digits; rows stay as they are.
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
        """Find the centres.

        Parameters
        ----------
        X, sample_weight, policy, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`. A row of weight k counts as k.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any step, naming the remedy (NaN and infinity: during the first pass).
        DivergedError
            The squares of the rows overflow.
        TrainingError
            When the fit cannot go on.
        """
        self._call_init(X)
        settings = self._check_settings(policy)
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
        """Make one step along more rows, as one batch, going on from the last state.

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
        survey = rows.survey
        self._sparse = survey.any_sparse
        if last is None:
            self._enough(rows)
            return CentroidModel(np.zeros((int(self.n_clusters), survey.n_features)), None)
        if len(last.first) != self.n_clusters:
            raise InvalidParameterError(
                f"n_clusters={self.n_clusters}, and the fit that this one goes on from has "
                f"{len(last.first)}. Set that, or call fit."
            )
        return dataclasses.replace(last, reassignment=None)

    def _dataset_info(
        self, job: FitJob, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        rows = super()._dataset_info(job, classes, class_weight, weighted)
        self._mean_weight = rows.weight_sum / rows.survey.n_rows
        # Weights count as they are: later batches have another mean.
        return rows if rows.weight_scale is None else dataclasses.replace(rows, weight_scale=1.0)

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        if settings.batch_size is None:
            return settings
        batch = min(int(self.batch_size), rows.survey.n_rows)
        return dataclasses.replace(
            settings, batch_size=count_lane_batch_rows(batch, settings, lanes)
        )

    def _ready(self, job: FitJob, fit: FitSpec) -> FitSpec:
        # Known once the fit has ended; callbacks may ask for the estimator before.
        self._loss = float("nan")
        if fit.steps.initial is not None:
            return fit
        n_rows = sum(fit.rows.lane_rows)
        drawn = job.solve_beside(fit, RowSampleSolver(self._sample_size(fit), fit.work.seed))
        shift = None if self._sparse else shift_of(drawn)
        near, init = drawn if shift is None else drawn - shift, self.init
        if not isinstance(init, str):
            self._warn_of_one_init()
            init = self._given_centres(drawn.shape[1], _INITS)
            init = init if shift is None else init - shift
        first, loss = choose_first(near, int(self.n_clusters), init, self._n_tries(), fit.work.seed)
        self._tolerance = float(self.tol) * float(near.var(axis=0).mean())
        # By so much of its size chance moves a mean of as many squares.
        chance = loss * self._mean_weight / math.sqrt(n_rows)
        model = CentroidModel(first, shift, self._reassignment(fit, near))
        return fit.replace_work(model=model, stopping=self._stopping(fit, chance))

    def _sample_size(self, fit: FitSpec) -> int:
        """Rows that first centres are chosen in."""
        k, some, n_rows = int(self.n_clusters), self.init_size, sum(fit.rows.lane_rows)
        if some is not None and some < k:
            warnings.warn(
                f"init_size={some} should be larger than n_clusters={k}. Setting it to "
                "min(3*n_clusters, n_samples)",
                RuntimeWarning,
                stacklevel=user_stack_level(),
            )
        some = 3 * step_rows(fit) if some is None else int(some)
        some = 3 * k if some < k else some
        model = fit.steps.model
        assert isinstance(model, CentroidModel)
        return min(max(min(some, _ENTRIES // model.n_features), 2 * k), n_rows)

    def _n_tries(self) -> int:
        if isinstance(self.init, str) and self.n_init != "auto":
            return int(self.n_init)
        return 3 if isinstance(self.init, str) and self.init == "random" else 1

    def _reassignment(self, fit: FitSpec, drawn: NDArray[np.float64]) -> Reassignment | None:
        """Rule by which centres of few rows begin anew."""
        if not self.reassignment_ratio:
            return None
        k, batch = int(self.n_clusters), step_rows(fit)
        lanes = tuple(n for n, rows in enumerate(fit.rows.lane_rows) if rows)
        ratio, every = float(self.reassignment_ratio), LOOK * k / batch
        return Reassignment(k, ratio, drawn, lanes, every, max(1, batch // 2))

    def _stopping(self, fit: FitSpec, chance: float) -> PassStoppingRule:
        """The end, where `chance` moves the mean squared distance so far."""
        rule = fit.work.stopping
        if self.max_no_improvement is None:
            return rule
        passes = max(1, -(-int(self.max_no_improvement) // fit.work.n_steps))
        return PassStoppingRule(rule.max_iter, max(chance, float(np.finfo(float).tiny)), passes)

    def _run_training(self, job: FitJob, fit: FitSpec) -> FitResult:
        model = fit.steps.model
        assert isinstance(model, CentroidModel)
        if self.tol and fit.work.stopping.max_iter > 1:
            result = job.train_steps(fit, has_settled=Settled(model, self._tolerance))
        else:
            result = super()._run_training(job, fit)
        losses = [record["loss"] for record in result.records]
        if losses and not np.isfinite(losses).all():
            raise DivergedError(OVERFLOW)
        state = result.state
        assert isinstance(state, ShardState)
        if fit.work.stopping.max_iter * fit.work.n_steps == 1:
            self._begin_anew(job, fit, state)
        if result.interrupted is None and self.compute_labels:
            look = InertiaSolver(model.centres(state.w), model.shift)
            self._loss = float(job.solve_beside(fit, look)[0])
        else:
            self._loss = losses[-1] * sum(fit.rows.lane_rows) if losses else float("inf")
        return result

    def _begin_anew(self, job: FitJob, fit: FitSpec, state: ShardState) -> None:
        """After a lone step, which ends before its lanes look, what they would do."""
        before = fit.make_start_state().w
        model, since = fit.steps.model, step_rows(fit)
        if fit.steps.initial is not None:
            since += self._n_since
        assert isinstance(model, CentroidModel)
        if since < LOOK * self.n_clusters and (model.parts(before)[0] > 0).all():
            self._n_since = since
            return
        self._n_since = 0
        rule = self._reassignment(fit, np.empty((0, model.n_features)))
        if rule is not None:
            begin_anew(job, fit, state, rule)

    def _set_parameters(self, w: NDArray[Any], model: CentroidModel, rows: DatasetInfo) -> None:
        centres = model.centres(w)
        self.cluster_centers_ = centres if model.shift is None else centres + model.shift
        self.counts_ = model.parts(w)[0].copy()
        self.inertia_ = self._loss
        self._shift = model.shift
        self.n_features_in_ = model.n_features
        self._n_features_out = len(centres)

    def _set_result(
        self, model: StepModel, result: FitResult, rows: DatasetInfo, more: bool
    ) -> None:
        super()._set_result(model, result, rows, more)
        steps = sum(record["steps"] for record in result.records)
        self.n_steps_ = steps + (self.n_steps_ if more else 0)

    @property
    def _counts(self) -> NDArray[np.float64]:
        """The name by which scikit-learn's own knows it."""
        return self.counts_
