"""Matrix factorisation by distributed stochastic gradient descent.

A rating r_ui is predicted by mu + b_u + c_i + x_u'y_i (Koren, Bell and Volinsky 2009, equation 4).
The parameters are one matrix with a row for each user and, after these, for each item; a step only
changes the rows of its batch's users and items. So factors are trained by the same steps, policies
and servers as linear models with sparse rows, and this module only defines the model, the learning
rate and the fitted attributes. The gradient is in `models/rated_pairs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.keyed.collection import NumberedPairs, PairCollection
from daskml_dist.data.keyed.cut import NumberedEntries
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import LOSSES, Loss
from daskml_dist.models.base import StepModel
from daskml_dist.models.rated_pairs import RatedPairs
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.parameters.checks import check_count, check_flag, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.recommender._base import (
    BaseRecommender,
    check_any_ratings,
    predict_pairs,
    score_ratings,
)
from daskml_dist.recommender._scores import FittedFactors, move_state_to_ids
from daskml_dist.recommender._streaming import StreamedFactors
from daskml_dist.schedules import Constant, Schedule
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.job import FitJob
from daskml_dist.training.plan import make_target_shift, take_first_target_unit
from daskml_dist.training.spec import Settings

#: Options of `Run` that have no meaning here: `dtype` determines the arithmetic, and pairs have no
#: features that could be divided.
_RUN_UNUSED = {"compute_dtype", "shard"}
#: Rank for which an adaptive optimizer's default rate is suitable, if ratings have a standard
#: deviation of 1.
_REFERENCE_RANK = 10
#: `tol` of early stopping if it is None: the smallest improvement of the score that counts.
_EARLY_STOPPING_TOL = 1e-4


class MatrixFactorization(StreamedFactors, BaseRecommender, BaseSteps):
    """Matrix factorisation of ratings by distributed stochastic gradient descent.

    A rating is predicted by the mean of all ratings, plus the biases of its user and its item, plus
    the product of their factors. Users and items are rows of one matrix, which servers hold by
    ranges; a batch pulls and pushes only the rows of its own users and items, and ratings stay on
    their workers. In a `stream`, new users and items get factors when they first occur.

    Parameters
    ----------
    rank : int, default=10
        Length of a vector of factors.
    reg_param : float, default=0.1
        Penalty of the squared factors and biases, times the number of ratings that a user or an
        item has: with the squared error the objective is that of
        :class:`~daskml_dist.recommender.ALS`. Beside ratings in a small unit it must be small, too:
        it is a thousand times as strong for factors of ratings in thousandths.
    loss : str or Loss, default="squared_error"
        Loss of a rating and its prediction: any of
        :class:`~daskml_dist.linear_model.SGDRegressor`; or one of
        :class:`~daskml_dist.linear_model.SGDClassifier`, such as ``"log_loss"``, which separates
        ratings above 0 from the others.
    biases : bool, default=True
        Learn a bias of each user and each item, in addition to the mean.
    implicit : bool, default=False
        Whether ratings are counts of users' actions, at least 0. For each, `negatives` items are
        drawn at random, with targets of 0, or of -1 for a loss of classification, which suits
        implicit ratings best: ``loss="log_loss"``.
    negatives : int, default=1
        Items to draw for each implicit rating.
    pairwise : bool, default=False
        The loss is of the difference between a chosen item and a drawn one: with ``"log_loss"``
        Bayesian personalised ranking (BPR). For implicit ratings only.
    max_iter : int, default=20
        Passes over the ratings.
    tol : float or None, default=None
        End once the loss, or the validation score, has not improved by `tol` for
        `n_iter_no_change` passes in a row; None: after `max_iter` passes, with `early_stopping`
        1e-4.
    shuffle, early_stopping, validation_fraction, n_iter_no_change, batch_size, optimizer
        As in :class:`~daskml_dist.linear_model.SGDClassifier`. The validation score is minus the
        root mean squared error, or the share of ratings on the right side of 0.
    warm_start : bool, default=False
        Continue the last fit. New users and items start as in a new fit, and those without a rating
        in this fit are dropped.
    learning_rate : float, str or Schedule, default="auto"
        ``"auto"`` is the optimizer's own rate; for an adaptive optimizer it is adjusted for factors
        of this rank and ratings of their standard deviation. See :mod:`daskml_dist.schedules`.
    clip : float or None, default=None
        Largest norm of a batch's mean gradient; with one server.
    dtype : {"float32", "float64"}, default="float32"
    user_col, item_col, rating_col : str, default="user", "item", "rating"
        As in :class:`~daskml_dist.recommender.ALS`.
    policy : str or Policy, default="sync"
        ``"sync"``, ``"ssp"`` and ``"async"`` keep the factors on servers. With ``"allreduce"``
        every trainer has all of them, and with ``"hogwild"`` trainers exchange all of them now and
        then. Policies that average the parameters of lanes are refused.
    random_state : int, RandomState instance or None, default=None
        The first factors follow from it and from the order of the ids, not from workers or chunks.

    Attributes
    ----------
    user_ids_, item_ids_ : ndarray of shape (n_users,), (n_items,)
        Sorted; of a sparse matrix, the rows and columns that have a rating.
    user_factors_, item_factors_ : ndarray of shape (n_users, rank), (n_items, rank)
    user_biases_, item_biases_ : ndarray of shape (n_users,), (n_items,)
        With `biases`.
    mean_ : float
        Prediction of a pair whose user and item are unknown, before any link of the loss: by
        default the mean of all ratings.
    n_features_in_, feature_names_in_
        Not set: rows are ratings.
    n_iter_ : int
        Passes.
    history_ : History
        A record a pass; its loss is the mean over the ratings without the penalty, half the squared
        error by default.
    t_ : float
        Ratings seen.

    References
    ----------
    Y. Koren, R. Bell and C. Volinsky, "Matrix factorization techniques for recommender systems",
    IEEE Computer 2009. S. Rendle et al., "BPR: Bayesian personalized ranking from implicit
    feedback", UAI 2009. M. Li et al., "Scaling distributed machine learning with the parameter
    server", OSDI 2014.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.recommender import MatrixFactorization
    >>> ratings = pd.DataFrame({
    ...     "user": ["ann", "ann", "bob", "bob", "eve"],
    ...     "item": ["tea", "milk", "tea", "milk", "tea"],
    ...     "rating": [5.0, 1.0, 4.0, 1.0, 5.0],
    ... })
    >>> model = MatrixFactorization(rank=2, reg_param=0.01, random_state=0).fit(ratings)
    >>> model.recommend(["eve"], n=1)["item"].tolist()
    ['milk']
    """

    _tensors = True
    _run_used = tuple(name for name in Run().get_params() if name not in _RUN_UNUSED)
    _row_shape = (2,)

    def __init__(
        self,
        rank: int = 10,
        *,
        reg_param: float = 0.1,
        loss: str | Loss = "squared_error",
        biases: bool = True,
        implicit: bool = False,
        negatives: int = 1,
        pairwise: bool = False,
        max_iter: int = 20,
        tol: float | None = None,
        shuffle: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        batch_size: int | str | None = "auto",
        optimizer: str | Optimizer = "adagrad",
        learning_rate: float | str | Schedule = "auto",
        clip: float | None = None,
        dtype: str = "float32",
        user_col: Any = "user",
        item_col: Any = "item",
        rating_col: Any = "rating",
        policy: str | Policy = "sync",
        random_state: Any = None,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
        checkpoint: Any = None,
    ) -> None:
        self.rank = rank
        self.reg_param = reg_param
        self.loss = loss
        self.biases = biases
        self.implicit = implicit
        self.negatives = negatives
        self.pairwise = pairwise
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.clip = clip
        self.dtype = dtype
        self.user_col = user_col
        self.item_col = item_col
        self.rating_col = rating_col
        self.policy = policy
        self.random_state = random_state
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks
        self.checkpoint = checkpoint

    def fit(  # type: ignore[override]
        self, X: Any, y: None = None, *, policy: str | Policy | None = None, client: Any = None
    ) -> Self:
        """Fit the factors to ratings.

        Parameters
        ----------
        X : dataframe or table of any kind, scipy.sparse matrix, or dask Array of such chunks
            As in :meth:`ALS.fit <daskml_dist.recommender.ALS.fit>`.
        y : ignored
        policy : str or Policy, optional
            For this fit only.
        client : distributed.Client, optional
            Default: the current client. Without one, ratings in memory are trained in this process
            and a Dask collection on a cluster inside it.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            The message names the remedy: a column is missing; there are no ratings; an id or a
            rating is missing, or infinite.
        DivergedError
            Factors overflow.
        TrainingError
            When the fit cannot continue.
        """
        X = convert_foreign(X)
        super(BaseRecommender, self).fit(X, None, policy=policy, client=client)
        self._given = X
        return self

    def score(self, X: Any, y: None = None) -> float:
        """Return the score of held-out ratings; higher is better.

        Parameters
        ----------
        X : as in :meth:`fit`
        y : ignored

        Returns
        -------
        float
            Minus the root mean squared error of :meth:`predict`; for a loss of classification, the
            share of ratings whose prediction has the same sign; for implicit ratings the
            :func:`~daskml_dist.metrics.ndcg_at_k` of ten recommendations to each user of items that
            the user has not rated in the fit.
        """
        self._check_fitted()
        if self.implicit or self._last_model.loss.kind != "classification":
            return super().score(X, y)
        n_right, n = self._reduce_entries(partial(_count_same_sign, self._fitted(), self._names), X)
        check_any_ratings(n.sum())
        return float(n_right.sum() / n.sum())

    # -- training -----------------------------------------------------------------------

    def _loss(self) -> Loss:
        """Return the loss of the parameter `loss`."""
        # Losses of both regression and classification are accepted by name; `get_loss` checks a
        # name within one kind.
        named_loss = LOSSES.get(self.loss) if isinstance(self.loss, str) else self.loss
        return get_loss(self.loss, getattr(named_loss, "kind", "regression"))

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        check_count("rank", self.rank)
        check_number("reg_param", self.reg_param)
        check_count("negatives", self.negatives)
        for name in ("biases", "implicit", "pairwise"):
            check_flag(name, getattr(self, name))
        if self.pairwise and not (self.implicit and self._loss().kind == "classification"):
            raise InvalidParameterError(
                f"pairwise=True with loss={self.loss!r} and implicit={self.implicit}: it "
                'compares chosen items with others. Set implicit=True and loss="log_loss" or '
                '"hinge".'
            )
        self._loss()  # raises for an unknown loss, before the other settings are checked
        settings = super()._check_settings(policy)
        if settings.policy.averages:
            raise InvalidParameterError(
                f"policy={settings.policy.name!r} averages the factors of lanes that train "
                "alone. Averaged factors need not fit together, and a user known to one lane "
                'would move by only a fraction of its steps. Use "sync", "allreduce", "ssp", '
                '"async" or "hogwild".'
            )
        if settings.validation_fraction and settings.tol is None:
            settings = replace(settings, tol=_EARLY_STOPPING_TOL)
        return settings

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        entries = self._entries(X)
        return PairCollection.from_sources(
            entries.kind, entries.sources, entries.number_entries, entries.sides
        )

    def _dataset_info(
        self, job: FitJob, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        # Ids become numbers on the workers, and ratings are distributed to the lanes; the client
        # gets the sorted ids.
        pairs = job.engine.cut_keys(job.run.n_lanes)
        assert isinstance(pairs, NumberedPairs)
        self._ids = pairs.ids
        return super()._dataset_info(job, classes, class_weight, weighted)

    def _model(self, rows: DatasetInfo, last: RatedPairs | None) -> RatedPairs:
        loss, summary = self._loss(), rows.summary
        loss.check_target(summary.target_range)
        if self.implicit:
            offset = 0.0  # most items are not chosen
        elif last is not None:
            offset = last.offset  # the last fit's factors are relative to it
        else:
            # The best constant prediction: the mean, on the loss's own scale.
            shift = make_target_shift(loss, True, summary)
            offset = shift[0] if shift else loss.constant(float(summary.target_mean))
        n_users, n_items = map(len, self._ids)
        reg, biased = float(self.reg_param), bool(self.biases)
        negatives_and_pairwise = (
            (int(self.negatives), bool(self.pairwise)) if self.implicit else (0, False)
        )
        model = RatedPairs(
            n_users, n_items, int(self.rank), loss, reg, biased, offset, *negatives_and_pairwise
        )
        return model if last is None else replace(model, target_unit=last.target_unit)

    def _adapt_rate_to_rows(
        self, job: FitJob, settings: Settings, model: StepModel
    ) -> tuple[Settings, StepModel]:
        """Choose a rate by the first ratings' standard deviation, stored by the model."""
        assert isinstance(model, RatedPairs)
        if not settings.auto_rate:  # the user's rate is that of factors in the unit of the ratings
            return settings, replace(model, target_unit=model.unit)
        optimizer = settings.optimizer
        rate = optimizer.sparse_learning_rate or optimizer.default_learning_rate
        spread, model = take_first_target_unit(model, job.rows.summary)
        if optimizer.adaptive:
            # First steps of an adaptive optimizer change each factor by the rate, so they change
            # the prediction of a pair by about rank * rate**2 units: scaled to the ratings'
            # standard deviation.
            rate *= (_REFERENCE_RANK * spread / self.rank) ** 0.5
        return replace(settings, schedule=Constant(rate), auto_rate=False), model

    def _last_state(self, rows: DatasetInfo, settings: Settings) -> ShardState | None:
        """Return the last fit's state in the order of this fit's ids; new ids start afresh."""
        state: ShardState | None = super()._last_state(rows, settings)
        if state is None:
            return None
        last = self._last_model
        model = self._model(rows, last)
        if model.parameters.width != last.parameters.width:
            raise InvalidParameterError(
                f"warm_start=True continues with rank={last.rank} and biases={last.biased}. Keep "
                "them, or set warm_start=False."
            )
        w = model.init(settings.seed, state.w.dtype)
        fresh = ShardState(w, settings.optimizer.init(w) if state.opt_state else {})
        return move_state_to_ids(state, fresh, (self.user_ids_, self.item_ids_), self._ids)

    # -- fitted attributes -----------------------------------------------------------------------

    def _set_parameters(self, w: NDArray[Any], model: RatedPairs, rows: DatasetInfo) -> None:
        if not np.isfinite(w).all():
            raise DivergedError(
                "Factors became NaN or infinite. Lower learning_rate, raise reg_param, or set clip."
            )
        self.user_ids_, self.item_ids_ = self._ids
        users, items = w[: model.n_users], w[model.n_users :]
        rank = model.rank
        self.user_factors_, self.item_factors_ = (
            part[:, :rank] * math.sqrt(model.unit) for part in (users, items)
        )
        self.mean_ = float(model.offset)
        # Remove the biases of an earlier fit.
        for name in ("user_biases_", "item_biases_"):
            if hasattr(self, name):
                delattr(self, name)
        if model.biased:
            self.user_biases_, self.item_biases_ = (
                part[:, rank] * model.unit for part in (users, items)
            )

    def _fitted(self) -> FittedFactors:
        fitted, loss = super()._fitted(), self._last_model.loss
        if fitted.user_biases is None:
            # `FittedFactors` adds the mean only if there are biases, and this model always has a
            # mean: so use biases of zero.
            users, items = (np.zeros(len(ids)) for ids in (fitted.user_ids, fitted.item_ids))
            fitted = replace(fitted, user_biases=users, item_biases=items)
        if loss.kind == "classification":
            return replace(fitted, link=partial(_probability, loss) if loss.proba else None)
        return replace(fitted, link=loss.inverse_link)

    def _set_row_shape(self, shape: tuple[int, ...]) -> None: ...  # pairs have no features

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return partial(predict_pairs, self._fitted(), self._names)


def _count_same_sign(
    fitted: FittedFactors, names: tuple[Any, Any], entries: NumberedEntries
) -> tuple[Any, Any]:
    """Return the number of ratings whose score has the same sign, and of all ratings."""
    values, scores = score_ratings(fitted, names, entries)
    return np.array([((values > 0) == (scores > 0)).sum()]), np.array([len(values)])


def _probability(loss: Loss, raw: NDArray[Any]) -> NDArray[Any]:
    """Return the probability of a rating above 0."""
    probability: NDArray[Any] = loss.predict_proba(raw)[:, 1]
    return probability
