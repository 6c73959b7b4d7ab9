"""Linear models trained by gradient steps: their base class, and scikit-learn's parameters.

With ``learning_rate="auto"`` a pilot on a sample of the rows finds initial parameters and a
learning rate (`daskml_dist.training.learning_rate_search`). Regressions are trained on targets
minus their mean or median (`LinearModel.centred`), so that steps need not move the intercept there
first.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.numpy_backend import has_few_entries
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.estimators.linear.base import BaseLinear
from daskml_dist.losses.base import Loss
from daskml_dist.losses.residual import EpsilonInsensitive, Huber, SquaredEpsilonInsensitive
from daskml_dist.models.base import StepModel
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import get_optimizer
from daskml_dist.optimizers.adagrad import NAG, Adagrad
from daskml_dist.parameters.checks import check_accepted, check_number
from daskml_dist.policies.base import Policy
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, InverseScaling
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import FitResult
from daskml_dist.training.in_parts import AdaptiveRate
from daskml_dist.training.job import FitJob
from daskml_dist.training.learning_rate_search import (
    calibrated,
    measure_row_size,
    rate_for_row_size,
)
from daskml_dist.training.plan import make_target_shift, measure_target_units
from daskml_dist.training.spec import FitSpec, Settings

#: Schedules that begin at the rate `eta0`.
_ETA0_SCHEDULES = ("auto", "constant", "invscaling", "adaptive")


class BaseSGD(BaseSteps, BaseLinear):
    """Base class of linear models trained by gradient steps.

    Parameters
    ----------
    penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
        ``"l1"`` makes coefficients exactly zero, about those that are zero at the optimum, with the
        optimizers ``"adagrad"``, ``"sgd"`` and ``"ftrl"``, which accumulate the pending penalty of
        each coefficient (McMahan 2011). Others take proximal steps, whose zeros are undone by the
        noise of the batches. There are few or no zeros with `average`, under ``"local"`` and
        ``"average"``, which average lanes, and ``"hogwild"``, whose lanes race.
    alpha : float, default=0.0001
        Strength of the penalty; the intercept is not penalised.
    l1_ratio : float or None, default=0.15
        Share of l1 in ``"elasticnet"``; None for other penalties.
    max_iter : int, default=20
        Passes over the data at most. With ``learning_rate="auto"`` most fits settle after six.
    tol : float or None, default=1e-3
        Stop once the training loss (or the validation score) has not improved by `tol` for
        `n_iter_no_change` passes; None always makes `max_iter` passes, and a fit that made them
        without stopping gives no ConvergenceWarning.
    random_state : int, RandomState or None, default=None
        Decides the order of the rows and the rows held out. With an int, ``"sync"``,
        ``"allreduce"``, ``"local"`` and ``"average"`` give the same coefficients at each run.
    average : bool or int, default=False
        Average the parameters over the steps (Polyak and Juditsky 1992); an int starts after that
        many rows.
    batch_size : int, "auto" or None, default="auto"
        Rows of one gradient of a lane. ``"auto"`` makes about 100 steps a pass with 32 to 256 rows;
        None takes all rows of the lane (full-batch gradient descent). Under ``"hogwild"``, sparse
        rows of many features are single updates with ``"auto"``.
    eta0 : float or None, default=None
        First rate of ``"constant"``, ``"invscaling"`` and ``"adaptive"``, in the unit of the
        optimizer; None is the optimizer's own. With ``"auto"`` a number is a constant rate, and
        there is no pilot. scikit-learn's steps are those of ``optimizer="sgd", batch_size=1``.
    """

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        coef_init: Any = None,
        intercept_init: Any = None,
        eval_set: Any = None,
        scoring: Any = None,
        policy: str | Policy | None = None,
        client: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : dask Array or DataFrame, array-like, pandas.DataFrame or scipy.sparse matrix
            Of shape (n_rows, n_features), float32 or float64 (other numbers become float64). Or
            a list of `dask.delayed.Delayed`, a block of rows each.
        y : str, dask Array or Series, or array-like, of shape (n_rows,)
            A string names a column of the dataframe X, which is then no feature.
            Labels of a classifier: strings, booleans or integers.
        sample_weight : like `y`, or a float, or None
            Weights of the rows, >= 0. In the mean they equal repeated rows; batches of a
            stochastic fit differ, so coefficients agree with repeated rows only for full batches.
        coef_init : array-like of the shape of `coef_`, optional
            Coefficients to start from, with a new optimizer state; also with `warm_start`.
        intercept_init : array-like of the shape of `intercept_`, optional
            Intercepts to start from.
        eval_set, scoring : tuple and str or callable, optional
            Rows of your own to score after each pass, (X, y) or (X, y, sample_weight), and how; or
            several; see :class:`daskml_dist.callbacks.EvalMonitor`.
        policy : str or Policy, optional
            For this fit only.
        client : distributed.Client, "inline" or "auto", optional
            Default: the current client. Without one, rows in memory are trained in this process and
            a Dask collection on a cluster inside it. ``"inline"`` trains rows in memory in this
            process even if there is a client; ``"auto"`` where that is faster, according to
            :meth:`plan`'s costs.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any step, naming the remedy (NaN and infinity: during the first pass).
        TrainingError
            When the fit cannot continue, for instance because a worker was lost.
        """
        given = coef_init is not None or intercept_init is not None
        start = (coef_init, intercept_init) if given else None
        settings = self._check_settings(policy)
        self._train(
            X, y, sample_weight, settings=settings, client=client, start=start,
            eval_set=eval_set, scoring=scoring,
        )  # fmt: skip
        return self

    def _params(self) -> dict[str, Any]:
        """Return every parameter, with a schedule in place of scikit-learn's name for one."""
        params = super()._params()
        if params["l1_ratio"] is None and params["penalty"] != "elasticnet":
            params["l1_ratio"] = 0.15  # a valid number, which the other penalties do not read
        rate, eta0 = params["learning_rate"], params.get("eta0")
        has_pilot = isinstance(rate, str) and rate == "auto" and eta0 is None
        if isinstance(rate, str) and rate in _ETA0_SCHEDULES and not has_pilot:
            if eta0 is None:
                eta0 = get_optimizer(params["optimizer"]).default_learning_rate
            params["learning_rate"] = (
                InverseScaling(float(eta0), float(params.get("power_t", 0.5)))
                if rate == "invscaling"
                else Constant(float(eta0))
            )
        return params

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        check_accepted(self)
        _check_sgd_params(super()._params())
        self._loss()  # raises for an invalid loss, or its parameters
        return super()._check_settings(policy)

    def _starting_state(
        self, start: Any, model: LinearModel, settings: Settings, rows: DatasetInfo
    ) -> ShardState | None:
        if start is None:
            return None
        dtype = settings.dtype_of(rows.summary)
        # The user's coefficients are for the original targets; training subtracts their centre.
        initial = model.uncentred(model.init(settings.seed, dtype))
        w = _join_starting_coefficients(model, initial, *start)
        return ShardState(model.centred(w), {})

    def _run_training(self, job: FitJob, fit: FitSpec) -> FitResult:
        if self._adapts:
            return job.train_steps(fit, adaptive_rate=AdaptiveRate())
        return super()._run_training(job, fit)

    @property
    def _adapts(self) -> bool:
        """Flag: the rate is divided whenever the loss stops improving ("adaptive")."""
        rate = self._all_params().get("learning_rate")
        return isinstance(rate, str) and rate == "adaptive"

    def _make_callbacks(
        self,
        max_iter: int | None,
        excluded_types: tuple[type, ...] = (),
        first: Sequence[object] = (),
    ) -> CallbackList:
        callbacks = super()._make_callbacks(max_iter, excluded_types, first)
        if self._adapts and callbacks.need_parameters:
            raise InvalidParameterError(
                'learning_rate="adaptive" runs one fit per rate, so eval_set and callbacks that '
                "need parameters are not supported. Leave them out, or use another rate."
            )
        return callbacks

    def _model(self, rows: DatasetInfo, last: LinearModel | None) -> LinearModel:
        params, summary = self._all_params(), rows.summary
        loss, fit_intercept = self._loss(), bool(params["fit_intercept"])
        privacy = params.get("privacy")
        if not self._classification:
            loss.check_target(summary.target_range)
        if self._survival_loss is not None:
            self._survival_loss.check_events(summary.targets.mean)
        # A continued fit keeps the shift of the first rows: its parameters are relative to it.
        shift = (
            make_target_shift(loss, fit_intercept, summary) if last is None else last.target_shift
        )
        first_intercept: float | tuple[float, ...] = 0.0
        # Bounds of times are two columns of one target.
        has_one = self._classification or self._survival_loss is not None
        n_targets = None if has_one else summary.n_targets
        if last is not None and last.n_targets != n_targets:
            was, now = _describe_columns(last.n_targets), _describe_columns(n_targets)
            raise InvalidDataError(
                f"Continuing needs the number of targets of the first fit, {was}; y has {now}. "
                "Set warm_start=False, or pass y as in the first fit."
            )
        # Losses without a centre (such as Poisson's, whose link is a logarithm) begin with the
        # intercept at the best constant prediction instead. Both are facts about the targets, which
        # a private fit would reveal without noise.
        if privacy is not None:
            shift = ()
        elif not self._classification and fit_intercept and not shift:
            means = summary.targets.mean[: n_targets or 1]
            first_intercept = tuple(loss.constant(float(mean)) for mean in means)
        return LinearModel(
            loss,
            summary.n_features,
            0 if rows.classes is None else len(rows.classes),
            fit_intercept,
            n_targets,
            target_shift=shift,
            first_intercept=first_intercept,
            # Noise changes all parameters.
            touches=summary.nonzeros_per_row if privacy is None else None,
            row_size=None if last is None else last.row_size,
            target_units=() if last is None else last.target_units,
            few_entries=has_few_entries(summary.n_rows, summary.n_features),
            row_clip=None if privacy is None else float(privacy.clip),
        )

    def _adapt_rate_to_rows(
        self, job: FitJob, settings: Settings, model: StepModel
    ) -> tuple[Settings, StepModel]:
        """Choose a rate by the scale of the first rows, stored by the model, if there is no pilot.

        That is the case in ``partial_fit`` and in streams. The unit of the first targets is stored
        by the model in any case, for calls that continue the fit: these may hold a single row.
        """
        assert isinstance(model, LinearModel)
        if settings.auto_rate and not model.target_units:
            units = measure_target_units(settings, model, job.rows.summary)
            if units and job.rows.summary.targets_differ:
                model = replace(model, target_units=units)
        by_rows = settings.auto_rate and settings.optimizer.rates_by_rows
        if settings.calibrates or settings.privacy is not None or not by_rows:
            return settings, model
        if model.row_size is None:
            model = replace(model, row_size=measure_row_size(job.engine, job.lanes, settings.seed))
        return replace(settings, own_rate=rate_for_row_size(model)), model

    def _calibrate_rates(self, job: FitJob, fit: FitSpec, settings: Settings) -> FitSpec:
        """Return the fit with the start and the rates that a pilot on a sample finds."""
        rarest_share = 1.0
        if job.rows.classes is not None:
            # With rare labels a sample must be larger.
            counts = job.rows.summary.label_weights(job.rows.classes)
            counts = counts[counts > 0]
            rarest_share = float(counts.min() / counts.sum()) if len(counts) else 1.0
        return calibrated(fit, settings, job.lanes, job.engine, rarest_share)

    def _settings_of_last_fit(self, settings: Settings) -> Settings:
        """Return the settings, with NAG for Adagrad if the last fit's pilot replaced it."""
        # Only NAG keeps the scale of each feature.
        was_replaced = type(settings.optimizer) is Adagrad and "scale" in self._state.opt_state
        if not (settings.auto_rate and was_replaced):
            return settings
        return replace(settings, optimizer=NAG())

    def _parameters_of_state(self, state: ShardState) -> NDArray[Any]:
        """Return the parameters to continue from, for the model's shifted targets."""
        # `coef_` is the average over steps, but steps continue from the last parameters.
        if state.average is not None:
            return state.w
        # A coef_ changed by the user is used; an unchanged one must not be rounded by shifting it
        # back and forth.
        w = self._join_coefficients()
        model = self._last_model
        return state.w if np.array_equal(w, model.uncentred(state.w)) else model.centred(w)

    def _set_parameters(self, w: NDArray[Any], model: LinearModel, rows: DatasetInfo) -> None:
        remedy = "Lower learning_rate, or scale the features (StandardScaler)."
        self._set_coef(model.uncentred(w), model, rows.classes, remedy)


def _check_sgd_params(params: Mapping[str, Any]) -> None:
    """Raise for invalid values of the parameters that only scikit-learn's SGD estimators have."""
    rate, eta0 = params["learning_rate"], params.get("eta0")
    if isinstance(rate, str) and rate in ("pa1", "pa2"):
        raise InvalidParameterError(
            f"learning_rate={rate!r}: passive-aggressive steps depend on a single row, but steps "
            'here use batches. Use loss="hinge" with learning_rate="optimal".'
        )
    if eta0 is not None:
        check_number("eta0", eta0, lambda v: v > 0, "> 0, or None for the optimizer's own rate")
        if not isinstance(rate, str):
            raise InvalidParameterError(
                f"eta0={eta0!r} with learning_rate={rate!r}: both set the rate. Leave eta0 out."
            )
    if "epsilon" in params:
        check_number("epsilon", params["epsilon"])
    power = params.get("power_t", 0.5)
    check_number("power_t", power, lambda v: True, "")
    if power < 0:
        if rate == "invscaling":
            raise InvalidParameterError(f"power_t={power!r}: use a number >= 0.")
        warnings.warn(
            "Negative values for `power_t` are deprecated: use a number >= 0.",
            FutureWarning,
            stacklevel=user_stack_level(),
        )
    if params["l1_ratio"] is None and params["penalty"] == "elasticnet":
        raise InvalidParameterError(
            "l1_ratio must be set when penalty is 'elasticnet'. Use a number from 0 to 1."
        )
    if rate == "adaptive" and params.get("checkpoint") is not None:
        raise InvalidParameterError(
            'learning_rate="adaptive" runs several fits, and a checkpoint holds only one. Use '
            "another learning_rate, or checkpoint=None."
        )


def set_loss_epsilon(loss: Loss, user_loss: Any, epsilon: float) -> Loss:
    """Return the loss with an estimator's `epsilon`, if `user_loss` is a name and it has one."""
    # A loss object given by the user has its own epsilon.
    if isinstance(user_loss, str) and isinstance(
        loss, Huber | EpsilonInsensitive | SquaredEpsilonInsensitive
    ):
        return replace(loss, epsilon=epsilon)
    return loss


def _join_starting_coefficients(
    model: LinearModel, initial: NDArray[Any], coef: Any, intercept: Any
) -> NDArray[Any]:
    """Return the `initial` parameters, replaced where the user gives `coef` or `intercept`."""
    w, d = initial.copy(), model.n_features
    if coef is not None:
        coef = _as_finite_array("coef_init", coef, w.dtype)
        shape = (model.width, d)
        # As scikit-learn, one row of coefficients may have one dimension.
        if coef.shape != shape and not (model.width == 1 and coef.shape == (d,)):
            raise InvalidDataError(
                f"Provided coef_init does not match dataset: it has shape {coef.shape}, but the "
                f"rows need {shape}. Pass the coef_ of a fit to rows like these."
            )
        w[:d] = coef.reshape(shape).T
    if intercept is None:
        return w
    intercept = np.ravel(_as_finite_array("intercept_init", intercept, w.dtype))
    if intercept.shape != (model.width,):
        raise InvalidDataError(
            f"Provided intercept_init does not match dataset: it has {len(intercept)} numbers, "
            f"but the rows need {model.width}. Pass the intercept_ of a fit to rows like these."
        )
    if model.fit_intercept:
        w[d] = intercept
    elif intercept.any():
        raise InvalidParameterError(
            "intercept_init with fit_intercept=False: there is no intercept to start from. Leave "
            "it out."
        )
    return w


def _as_finite_array(name: str, initial_values: Any, dtype: Any) -> NDArray[Any]:
    """Return finite real numbers as an array; raise for others, naming the argument."""
    # `sparsify` leaves a sparse coef_, which may be passed back here.
    values = np.asarray(
        initial_values.toarray() if sparse.issparse(initial_values) else initial_values
    )
    if values.dtype.kind in "biufO":
        try:
            converted = values.astype(dtype)
        except (TypeError, ValueError):
            converted = np.array(np.nan)
        if np.isfinite(converted).all():
            return converted
    raise InvalidDataError(
        f"{name} must be finite real numbers (its dtype is {values.dtype}). Pass the values of "
        "a fit."
    )


def _describe_columns(n_targets: int | None) -> str:
    """Return the number of columns in words; None: the targets have one dimension."""
    return "one column" if n_targets is None else f"{n_targets} columns"
