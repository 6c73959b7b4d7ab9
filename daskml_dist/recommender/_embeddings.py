"""Base classes of models over ids whose rows of parameters are made when the ids come.

The parameters are a growing table on servers (`ps/growing_shard.py`), of which a batch pulls and
pushes the rows of its own ids. This module says what the model and the learning rate are, and looks
ids up in the table that a fit ends with. Gradients are in `models/embeddings.py`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.devices import get_backend
from daskml_dist.data.batches import LaneSpec
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.estimators.classifier import BaseClassifier, partial_fit
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.losses import get_loss
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import BatchRows, GrowingTable
from daskml_dist.models.embeddings import INTERCEPT_ID, EmbeddingModel, to_id_rows
from daskml_dist.parameters.checks import check_count, check_number, seed_of
from daskml_dist.parameters.run import Run
from daskml_dist.policies.base import Policy
from daskml_dist.ps.growing_shard import draw_initial_rows
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.plan import make_target_shift
from daskml_dist.training.spec import Settings

#: Options of `Run` without a meaning here.
_RUN_UNUSED = {"shard", "compute_dtype"}


class BaseEmbeddings(BaseSteps):
    """Base class of models over ids: a weight and a vector for each, made when it first comes."""

    _needs_target = True
    _run_used = tuple(name for name in Run().get_params() if name not in _RUN_UNUSED)
    _stream_policy = "sync"

    rank: int
    alpha: float
    init_scale: float
    loss: str | Loss
    admit_after: int
    expire_after: int | None
    max_rows: int | None
    ids_: NDArray[np.int64]
    weights_: NDArray[Any]
    vectors_: NDArray[Any]
    intercept_: float

    @abstractmethod
    def _terms(self, rows: DatasetInfo) -> dict[str, Any]:
        """Return the parameters of the `EmbeddingModel` that say which terms it has."""

    def _loss(self) -> Loss:
        """Return the loss of the parameter `loss`."""
        return get_loss(self.loss, "classification" if self._classification else "regression")

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        check_count("rank", self.rank)
        check_number("alpha", self.alpha)
        check_number("init_scale", self.init_scale)
        check_count("admit_after", self.admit_after)
        for name in ("expire_after", "max_rows"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        self._loss()  # raises for a loss that does not exist, before the other settings
        settings = super()._check_settings(policy)
        # The penalty is of what each row touches, and part of the model.
        return replace(settings, penalty=replace(settings.penalty, l1=0.0, l2=0.0))

    def _model(self, rows: DatasetInfo, last: EmbeddingModel | None) -> EmbeddingModel:
        loss, summary = self._loss(), rows.summary
        if rows.classes is not None and len(rows.classes) > 2:
            raise InvalidDataError(
                f"{type(self).__name__} separates two classes, and y holds {len(rows.classes)}. "
                "Wrap it in sklearn.multiclass.OneVsRestClassifier."
            )
        if rows.classes is None:
            loss.check_target(summary.target_range)
        rank = int(self.rank)
        table = GrowingTable(
            (0.0, *[float(self.init_scale)] * rank),
            # Ids that come later begin as they would have begun in the first fit.
            seed_of(self._params()["random_state"]) if last is None else last.table.seed,
            self.admit_after,
            self.expire_after,
            self.max_rows,
        )
        offset = self._best_constant(loss, rows) if last is None else last.offset
        model = EmbeddingModel(
            loss, rank, float(self.alpha), table, offset, touches=_count_ids(rows),
            **self._terms(rows),
        )  # fmt: skip
        if last is not None and model.identity() != last.identity():
            raise InvalidParameterError(
                "Going on needs the rank, layers and loss of the last fit. Leave them as they "
                "were, or set warm_start=False."
            )
        return model

    def _best_constant(self, loss: Loss, rows: DatasetInfo) -> float:
        """Return the best prediction by one number, from which training sets out."""
        if rows.classes is not None:
            # The log odds; of other losses 0, between the classes.
            first, second = rows.summary.label_weights(rows.classes)
            return math.log(second / first) if loss.proba and first and second else 0.0
        shift = make_target_shift(loss, True, rows.summary)
        return shift[0] if shift else loss.constant(float(rows.summary.target_mean))

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        if not settings.auto_rate or not settings.optimizer.adaptive:
            return settings
        # First steps of an adaptive optimizer are as large as the rate in each entry. A row of m
        # ids moves by m * rate, and by rank * rate**2 for each pair of them: the largest rate by
        # which it moves no further than the targets' spread.
        m = _count_ids(rows)
        spread = rows.summary.target_spread if self._loss().in_target_units else 1.0
        pairs = max(self.rank * m * (m - 1) / 2, 1e-6)
        rate = (math.sqrt(m * m + 4 * pairs * spread) - m) / (2 * pairs)
        most = settings.optimizer.sparse_learning_rate or settings.optimizer.default_learning_rate
        return replace(settings, schedule=Constant(min(rate, most * spread)), auto_rate=False)

    # -- fitted attributes -----------------------------------------------------------------------

    def _set_learned(self, state: ShardState, model: Any, rows: DatasetInfo) -> None:
        assert state.ids is not None
        self._learned_ids = state.ids
        super()._set_learned(state, model, rows)

    def _set_parameters(self, w: NDArray[Any], model: EmbeddingModel, rows: DatasetInfo) -> None:
        if not np.isfinite(w).all():
            raise DivergedError(
                "Weights or vectors became NaN or infinite. Lower learning_rate, or raise alpha."
            )
        ids = self._learned_ids
        # Layers and intercept are rows of the table, too.
        is_own = np.isin(ids, model.own_ids)
        self.ids_, self.weights_, self.vectors_ = ids[~is_own], w[~is_own, 0], w[~is_own, 1:]
        self.intercept_ = model.offset
        if len(ids) and ids[-1] == INTERCEPT_ID:
            self.intercept_ += float(w[-1, 0])
        self.n_features_in_ = rows.summary.n_features
        if rows.classes is not None:
            self.classes_ = rows.classes

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return TablePrediction(self._last_model, self._learned_ids, self._state.w)


def _count_ids(rows: DatasetInfo) -> float:
    """Return the mean number of ids of a row, with the intercept's."""
    return 1.0 + float(rows.summary.nonzeros_per_row or rows.summary.n_features)


@dataclass(frozen=True, eq=False)
class TablePrediction:
    """Picklable function from rows to raw predictions, by the rows of a table.

    Parameters
    ----------
    model : EmbeddingModel
    ids : ndarray of int64 of shape (n_ids,)
        Sorted.
    w : ndarray of shape (n_ids, 1 + rank)
    """

    model: EmbeddingModel
    ids: NDArray[np.int64]
    w: NDArray[Any]

    def __call__(self, X: Any) -> NDArray[Any]:
        backend = get_backend("cpu")
        piece = BatchRows(to_id_rows(X, self.w.dtype), np.empty(0))
        index = self.model.touched([piece], backend)
        return self.model.predict(self._look_up(index), piece.X, backend)

    def _look_up(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of sorted ids; those that are not known are as in their first step."""
        at = np.searchsorted(self.ids, index)
        known = at < len(self.ids)
        known[known] = self.ids[at[known]] == index[known]
        found = np.empty((len(index), self.w.shape[1]), self.w.dtype)
        found[known] = self.w[at[known]]
        found[~known] = draw_initial_rows(index[~known], self.model.table, found.dtype)
        return found


class EmbeddingClassifier(BaseClassifier, BaseEmbeddings):
    """Base class of classifiers of two classes over ids."""

    partial_fit = partial_fit

    loss: str | Loss

    def decision_function(self, X: Any) -> Any:
        """Return the raw predictions, positive for the second class.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,)
        """
        self._check_fitted(X)
        return self._map_raw_predictions(None, X, self.weights_.dtype, None)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, 2)
        """
        self._check_fitted(X)
        return self._map_raw_predictions(self._loss().write_proba, X, self.weights_.dtype, 2)
