"""Base class of the linear models trained by gradient steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist._linear import BaseLinear
from daskml_dist._steps import BaseSteps
from daskml_dist.data.batches import LaneSpec
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import NAG, Adagrad
from daskml_dist.policies import Policy
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.calibration import calibrated
from daskml_dist.training.engine import Engine
from daskml_dist.training.plan import make_target_shift
from daskml_dist.training.rows import Rows
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec

__all__ = ["BaseSGD"]


class BaseSGD(BaseSteps, BaseLinear):
    """Base class of linear models trained by gradient steps."""

    def _settings(self, policy: str | Policy | None) -> Settings:
        self._loss()
        return super()._settings(policy)

    def _model(self, rows: Rows, last: LinearModel | None) -> LinearModel:
        params, survey = self.get_params(deep=False), rows.survey
        loss, fit_intercept = self._loss(), bool(params["fit_intercept"])
        if not self._classification:
            loss.check_target(survey.target_range)
        shift = (
            make_target_shift(loss, fit_intercept, survey) if last is None else last.target_shift
        )
        first = 0.0
        if not self._classification and fit_intercept and not shift:
            first = loss.constant(float(survey.target_mean))
        return LinearModel(
            loss,
            survey.n_features,
            0 if rows.classes is None else len(rows.classes),
            fit_intercept,
            target_shift=shift,
            first_intercept=first,
            touches=survey.nonzeros_per_row,
        )

    def _calibrated(
        self, fit: FitSpec, settings: Settings, rows: Rows, lanes: list[LaneSpec], engine: Engine
    ) -> FitSpec:
        """The fit with the start and the rates that a pilot on a sample finds."""
        return calibrated(fit, settings, lanes, engine)

    def _as_before(self, settings: Settings) -> Settings:
        """Settings to go on by: in the units of each feature, where the fit before was so."""
        before = type(settings.optimizer) is Adagrad and "scale" in self._state.slots
        return replace(settings, optimizer=NAG()) if settings.auto_rate and before else settings

    def _parameters(self, state: ShardState) -> NDArray[Any]:
        """Parameters to go on from, about the model's shift of the targets."""
        if state.average is not None:  # no place to go on from
            return state.w
        # The user may have changed coef_ meanwhile, and it counts; else no digit may be lost.
        w = self._matrix()
        model = self._last_model
        return state.w if np.array_equal(w, model.uncentred(state.w)) else model.centred(w)

    def _set_parameters(self, w: NDArray[Any], model: LinearModel, rows: Rows) -> None:
        remedy = "Lower learning_rate, or scale the features (StandardScaler)."
        self._set_coef(model.uncentred(w), model, rows.classes, remedy)
