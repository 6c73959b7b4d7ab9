"""`MatrixFactorization`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist._checks import check_count, check_flag, check_number
from daskml_dist._run import Run
from daskml_dist._steps import BaseSteps
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.collection import Collection
from daskml_dist.data.keyed.pairs import NumberedPairs, PairCollection
from daskml_dist.errors import DivergedError
from daskml_dist.losses import LOSSES, Loss, get_loss
from daskml_dist.models.rated_pairs import RatedPairs
from daskml_dist.optimizers import Optimizer
from daskml_dist.policies import Policy
from daskml_dist.recommender._base import BaseRecommender, predictions
from daskml_dist.schedules import Constant, Schedule
from daskml_dist.training.engine import Engine
from daskml_dist.training.plan import make_target_shift
from daskml_dist.training.rows import Rows
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.settings import Settings

__all__ = ["MatrixFactorization"]

_RUN_UNUSED = {"compute_dtype", "shard"}


class MatrixFactorization(BaseRecommender, BaseSteps):
    """Factors of users and items by distributed stochastic gradient descent.

    Attributes
    ----------
    """

    _tensors = True
    _run_used = tuple(name for name in Run().get_params() if name not in _RUN_UNUSED)

    def __init__(
        self,
        rank: int = 10,
        *,
        reg_param: float = 0.05,
        loss: str | Loss = "squared_error",
        biases: bool = True,
        max_iter: int = 20,
        tol: float | None = 1e-3,
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
        """Learn the factors."""
        super(BaseRecommender, self).fit(X, None, policy=policy, client=client)
        self._given = X
        return self

    def _loss(self) -> Loss:
        named = LOSSES.get(self.loss) if isinstance(self.loss, str) else self.loss
        return get_loss(self.loss, getattr(named, "kind", "regression"))

    def _settings(self, policy: str | Policy | None) -> Settings:
        check_count("rank", self.rank)
        check_number("reg_param", self.reg_param)
        check_flag("biases", self.biases)
        self._loss()
        return super()._settings(policy)

    def _collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        given = self._entries(X)
        return PairCollection.of(given.kind, given.sources, given.numbers, given.sides)

    def _rows(
        self, engine: Engine, run: RunSettings, classes: Any, class_weight: Any, weighted: bool
    ) -> Rows:
        pairs = engine.cut_keys(run.n_lanes)
        assert isinstance(pairs, NumberedPairs)
        self._ids = pairs.ids
        return super()._rows(engine, run, classes, class_weight, weighted)

    def _model(self, rows: Rows, last: RatedPairs | None) -> RatedPairs:
        loss, survey = self._loss(), rows.survey
        loss.check_target(survey.target_range)
        near = make_target_shift(loss, True, survey)
        offset = near[0] if near else loss.constant(float(survey.target_mean))
        n_users, n_items = map(len, self._ids)
        reg, biased = float(self.reg_param), bool(self.biases)
        return RatedPairs(n_users, n_items, int(self.rank), loss, reg, biased, offset)

    def _over_lanes(self, settings: Settings, rows: Rows, lanes: list[LaneSpec]) -> Settings:
        if not settings.auto_rate:
            return settings
        rate = settings.optimizer.default_learning_rate
        if settings.optimizer.adaptive and self._loss().in_target_units:
            rate *= rows.survey.target_spread**0.5
        return replace(settings, schedule=Constant(rate), auto_rate=False)

    def _set_row_shape(self, shape: tuple[int, ...]) -> None:
        """Nothing: pairs are no features."""

    def _set_parameters(self, w: NDArray[Any], model: RatedPairs, rows: Rows) -> None:
        if not np.isfinite(w).all():
            raise DivergedError("Factors overflow. Lower learning_rate, or set clip.")
        self.user_ids_, self.item_ids_ = self._ids
        del self._ids
        users, items = w[: model.n_users], w[model.n_users :]
        rank = model.rank
        self.user_factors_, self.item_factors_ = (
            np.ascontiguousarray(part[:, :rank]) for part in (users, items)
        )
        self.mean_ = model.offset
        for name in ("user_biases_", "item_biases_"):
            if hasattr(self, name):
                delattr(self, name)
        if model.biased:
            self.user_biases_, self.item_biases_ = users[:, rank].copy(), items[:, rank].copy()

    def _raw(self) -> Callable[[Any], NDArray[Any]]:
        return partial(predictions, self._fitted(), self._names)
