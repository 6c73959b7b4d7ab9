"""What the linear models trained by gradient steps share: settings, fits that go on from others."""

from __future__ import annotations

import dataclasses
import warnings
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist._checks import check_class_weight, check_count, seed_of
from daskml_dist._linear import BaseLinear
from daskml_dist._run import Run
from daskml_dist.compression import Compressor
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.losses import Loss, get_loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import Optimizer, get_optimizer
from daskml_dist.penalties import Penalty, get_penalty
from daskml_dist.policies import POLICIES, Policy, get_policy
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import get_schedule
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.engine import FitResult
from daskml_dist.training.history import History
from daskml_dist.training.in_parts import train_in_parts
from daskml_dist.training.interrupts import raise_interrupt
from daskml_dist.training.plan import Settings, make_fit, make_target_shift
from daskml_dist.training.rows import Rows
from daskml_dist.training.run import open_engine
from daskml_dist.training.survey import Survey

__all__ = ["BaseSGD"]


class BaseSGD(BaseLinear):
    """Parameters, fitting and prediction of the linear models trained by gradient steps."""

    _run_used = tuple(Run().get_params())

    # -- settings ------------------------------------------------------------------------------

    def _settings(self, policy: str | Policy | None) -> Settings:
        """Check every parameter, before any work is started."""
        params = self.get_params(deep=False)
        self._loss()
        self._check_numbers(params)
        early = params["early_stopping"]
        average = params["average"]
        policy = get_policy(params["policy"] if policy is None else policy)
        penalty, optimizer = _descent(params, policy)
        run = self._run_settings()
        _check_pushes(run.compression, policy)
        return Settings(
            penalty=penalty,
            optimizer=optimizer,
            schedule=get_schedule(
                params["learning_rate"],
                default=optimizer.default_learning_rate,
                alpha=params["alpha"],
                max_iter=params["max_iter"],
            ),
            policy=policy,
            max_iter=int(params["max_iter"]),
            tol=params["tol"],
            n_iter_no_change=int(params["n_iter_no_change"]),
            shuffle=bool(params["shuffle"]),
            batch_size=params["batch_size"],
            validation_fraction=float(params["validation_fraction"]) if early else 0.0,
            average=int(average) if average else None,
            class_weight=check_class_weight(params.get("class_weight")),
            seed=seed_of(params["random_state"]),
            auto_rate=isinstance(params["learning_rate"], str)
            and params["learning_rate"] == "auto",
            run=run,
        )

    def _check_numbers(self, params: dict[str, Any]) -> None:
        for name in ("max_iter", "n_iter_no_change"):
            check_count(name, params[name])
        if not isinstance(params["average"], bool | np.bool_):
            check_count("average", params["average"], also="True or False")
        for name in ("alpha", "l1_ratio"):
            if not isinstance(params[name], Real):
                raise InvalidParameterError(f"{name}={params[name]!r}: use a number.")
        batch_size = params["batch_size"]
        if batch_size is not None and batch_size != "auto":
            check_count("batch_size", batch_size, also='"auto", or None for full batches')
        fraction = params["validation_fraction"]
        if not (isinstance(fraction, float | np.floating) and 0 < fraction < 1):
            raise InvalidParameterError(
                f"validation_fraction={fraction!r}: use a number between 0 and 1."
            )
        tol = params["tol"]
        if tol is not None and not (isinstance(tol, int | float | np.number) and tol >= 0):
            raise InvalidParameterError(f"tol={tol!r}: use a number >= 0, or None.")
        checkpoint = params["checkpoint"]
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise InvalidParameterError(
                f"checkpoint={checkpoint!r}: use Checkpoint(path, every=1) from "
                "daskml_dist.training.checkpoint, or None."
            )

    # -- fitting -------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        settings: Settings,
        client: Any,
        classes: Any = None,
        go_on: bool,
    ) -> None:
        """Fit from zero, or go on from the last fit's state."""
        callbacks = self._callbacks(settings.max_iter)
        collection = self._collection(X, y, sample_weight, reset=not go_on)
        run = settings.run
        with open_engine(collection, client, run.memory_budget, run.device) as engine:
            survey = self._survey(engine, run.n_lanes)
            classes = self._labels(survey, classes) if self._classification else None
            rows = Rows.of(survey, classes, settings.class_weight, sample_weight is not None)
            initial = self._initial(survey, classes, settings.optimizer) if go_on else None
            # Parameters to go on from are relative to the same targets.
            model = self._model(rows, None if initial is None else self._last_model)
            lanes = engine.lanes(
                run.n_lanes,
                shared=settings.policy.uses_threads,
                passes=settings.max_iter,
            )
            scales = None
            if settings.optimizer.uses_scales:
                scales = engine.scales()
            fit = make_fit(settings, model, rows, lanes, initial, engine.streaming, scales)
            fit = fit.working(step_callbacks=callbacks.of_steps)
            checkpoint = self.get_params(deep=False)["checkpoint"]
            if checkpoint is None:
                result = engine.train(fit, callbacks)
            else:
                result = train_in_parts(engine, fit, callbacks, checkpoint)
            assert isinstance(result.state, ShardState)
            self._keep(model, result.state, classes)
            self.n_iter_ = len(result.records)
            rows = sum(record["rows"] for record in result.records) + result.partial_rows
            self.t_: float = rows if initial is None else self.t_ + rows
            self.history_ = History(
                result.records,
                extra={
                    "policy": settings.policy.name,
                    "n_lanes": len(lanes),
                    "n_servers": len(fit.work.layout.slices()) if fit.work.uses_shards else 0,
                    "partial_rows": result.partial_rows,
                    "streamed": fit.rows.streaming is not None,
                    "generations": result.events,
                    "dropped_pushes": result.dropped,
                    "compression": None
                    if fit.work.compression is None
                    else fit.work.compression.name,
                    "lost_rows": result.lost_rows,
                    **engine.facts,
                },
                interrupted=result.interrupted is not None,
            )
        if result.interrupted is not None:
            raise_interrupt(result.interrupted, self.n_iter_)
        self._warn(settings, result)

    def _warn(self, settings: Settings, result: FitResult) -> None:
        reached = len(result.records) >= settings.max_iter
        if settings.tol is not None and reached and not result.stopping.converged:
            warnings.warn(
                f"{type(self).__name__} made all max_iter={settings.max_iter} passes before its "
                "loss (or validation score) settled to tol. Increase max_iter, scale the features "
                "(StandardScaler), or set tol=None to ask for just so many passes.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _model(self, rows: Rows, last: LinearModel | None) -> LinearModel:
        """The model of these rows; of a fit that goes on, with the last one's origin."""
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
        )

    def _loss(self) -> Loss:
        kind: Literal["classification", "regression"]
        kind = "classification" if self._classification else "regression"
        return get_loss(self.get_params(deep=False)["loss"], kind)

    def _goes_on(self) -> bool:
        return bool(self.get_params(deep=False)["warm_start"]) and hasattr(self, "_state")

    def _one_pass(
        self, X: Any, y: Any, sample_weight: Any, policy: Any, client: Any, classes: Any
    ) -> None:
        """One pass that goes on from the last state (``partial_fit``)."""
        if self.get_params(deep=False)["early_stopping"]:
            raise InvalidParameterError(
                "partial_fit makes one pass and cannot stop early. Set early_stopping=False, or "
                "call fit."
            )
        settings = dataclasses.replace(self._settings(policy), max_iter=1, tol=None)
        state = getattr(self, "_state", None)
        if state is not None:
            # Another order of rows in each call.
            settings = dataclasses.replace(settings, seed=settings.seed + state.step)
        self._fit(
            X,
            y,
            sample_weight,
            settings=settings,
            client=client,
            classes=classes,
            go_on=state is not None,
        )

    def _initial(
        self, survey: Survey, classes: NDArray[Any] | None, optimizer: Optimizer
    ) -> ShardState | None:
        state: ShardState | None = getattr(self, "_state", None)
        if state is None:
            return None
        if survey.n_features != self.n_features_in_:
            raise InvalidDataError(
                f"X has {survey.n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input. Select the columns of the first fit."
            )
        if classes is not None and not np.array_equal(classes, self.classes_):
            raise InvalidDataError(
                f"Going on needs the classes of the first fit, {self.classes_.tolist()}; y holds "
                f"{classes.tolist()}. Set warm_start=False, or name all classes at first."
            )
        cast = {name: slot.astype(survey.dtype) for name, slot in state.slots.items()}
        w = self._parameters(state).astype(survey.dtype)
        slots = cast if cast.keys() == set(optimizer.slot_names) else {}
        if self.get_params(deep=False)["average"] is False:
            return ShardState(w, slots, state.step, state.rows)
        return dataclasses.replace(state, w=w, slots=slots)

    def _parameters(self, state: ShardState) -> NDArray[Any]:
        """Parameters to go on from, about the model's shift of the targets."""
        if state.average is not None:  # no place to go on from
            return state.w
        # The user may have changed coef_ meanwhile, and it counts; else no digit may be lost.
        w = self._matrix()
        model = self._last_model
        return state.w if np.array_equal(w, model.uncentred(state.w)) else model.centred(w)

    def _keep(self, model: LinearModel, state: ShardState, classes: NDArray[Any] | None) -> None:
        """Set the fitted attributes."""
        w = state.w if state.average is None else state.average
        if not all(np.isfinite(slot).all() for slot in state.slots.values()):
            raise DivergedError(
                "The squares of the gradients overflow, so that steps are zero. Scale the features "
                "(StandardScaler) and the targets."
            )
        remedy = "Lower learning_rate, or scale the features (StandardScaler)."
        self._set_coef(model.uncentred(w), model, classes, remedy)
        self._state, self._last_model = state, model


def _descent(params: dict[str, Any], policy: Policy) -> tuple[Penalty, Optimizer]:
    """The penalty, and the optimizer that goes with it."""
    penalty = get_penalty(params["penalty"], params["alpha"], params["l1_ratio"])
    optimizer = get_optimizer(params["optimizer"])
    # Threads that race would lose the account that is kept of the penalty.
    if penalty.l1 and not policy.uses_threads:
        optimizer = optimizer.under_l1()
    return penalty, optimizer


def _check_pushes(compressor: Compressor | None, policy: Policy) -> None:
    if compressor is None or policy.pushes_gradients:
        return
    names = [name for name, kind in POLICIES.items() if kind().pushes_gradients]
    raise InvalidParameterError(
        f"compression={compressor.name!r} is for pushes of gradients to servers, and the policy "
        f"{policy.name!r} makes none. Use one of the policies {names}, or compression=None."
    )
