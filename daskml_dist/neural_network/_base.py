"""Base classes of neural networks: batches over all lanes, and loss curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from daskml_dist.data.batches import LaneSpec
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.estimators.regressor import score_r2
from daskml_dist.inference.row_mapping import write_in_place
from daskml_dist.models.base import StepModel
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import FitResult
from daskml_dist.training.plan import count_lane_batch_rows
from daskml_dist.training.spec import Settings, count_training_rows

#: Number of rows in an automatic batch, as in scikit-learn.
_AUTO_BATCH_ROWS = 200
#: Smallest number of rows in a lane's share of an automatic batch.
_MIN_LANE_ROWS = 16


class BaseNetwork(BaseSteps):
    """Base class of neural networks: one batch over all lanes, and loss curves.

    `batch_size` counts the rows of one step of the parameters, so that the best learning rate does
    not depend on the number of lanes: lanes that step together share a batch, and under policies in
    which each push is a separate step, each push has `batch_size` rows.

    A subclass sets ``n_outputs_`` together with the parameters: the number of raw predictions per
    row. If it is 1, raw predictions are one-dimensional.
    """

    _needs_target = True
    _multi_output = True
    n_outputs_: int

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        batch = self._batch_rows(settings, lanes)
        return dataclasses.replace(
            settings, batch_size=count_lane_batch_rows(batch, settings, lanes)
        )

    def _batch_rows(self, settings: Settings, lanes: list[LaneSpec]) -> int:
        """Return the number of rows of one step of the parameters."""
        # Rows held out for early stopping do not count; no batch is larger than the rest.
        n_rows = sum(count_training_rows(lanes, settings.validation_fraction))
        if settings.batch_size is None:
            return n_rows
        if isinstance(settings.batch_size, str):
            return min(n_rows, max(_AUTO_BATCH_ROWS, _MIN_LANE_ROWS * len(lanes)))
        return min(n_rows, settings.batch_size)

    def _set_result(
        self, model: StepModel, result: FitResult, rows: DatasetInfo, is_continued: bool
    ) -> None:
        super()._set_result(model, result, rows, is_continued)
        losses = [float(record["loss"]) for record in result.records]
        scores = [record["val_score"] for record in result.records]
        self._set_curves(losses, scores if self._params()["early_stopping"] else None, is_continued)

    def _show_stream(self, started: Any, state: ShardState, progress: Any) -> None:
        super()._show_stream(started, state, progress)
        # A stream counts as one pass; its loss is the mean loss of each row before the row's step.
        self._set_curves([progress.mean], None, is_continued=False)

    def _set_curves(
        self, losses: list[float], scores: list[Any] | None, is_continued: bool
    ) -> None:
        """Set scikit-learn's attributes for the losses (and scores) of passes.

        With `is_continued`, losses are appended to those of the last fit; scores are only those of
        this fit.
        """
        earlier_losses = getattr(self, "loss_curve_", []) if is_continued else []
        self.loss_curve_: list[float] = [*earlier_losses, *losses]
        self.loss_ = self.loss_curve_[-1] if self.loss_curve_ else np.inf
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None
        self.best_loss_: float | None = None
        # As in scikit-learn: `best_loss_` or the validation scores are set, never both.
        if scores is None:
            self.best_loss_ = min(self.loss_curve_, default=np.inf)
            return
        self.validation_scores_ = [float(score) for score in scores]
        self.best_validation_score_ = max(self.validation_scores_, default=-np.inf)


class NetworkRegressor(RegressorMixin, BaseNetwork):
    """Base class of networks for regression, of one target or several."""

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return _return_raw

    score = score_r2

    def predict(self, X: Any) -> Any:
        """Return the predicted targets.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,), or (n_rows, n_targets)
        """
        self._check_fitted(X)
        n_outputs = self.n_outputs_ if self.n_outputs_ > 1 else None
        return self._map_raw_predictions(
            write_in_place(self._inverse_link()), X, self._state.w.dtype, n_outputs
        )


def _return_raw(raw: NDArray[Any]) -> NDArray[Any]:
    """Return raw predictions unchanged; a function at module level, so that it can be pickled."""
    return raw
