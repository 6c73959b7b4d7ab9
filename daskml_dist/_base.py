"""What all estimators share: validation, one call into training, prediction over collections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from dask.utils import parse_bytes
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    column_or_1d,
)

from daskml_dist.backends.base import DEVICES, get_backend
from daskml_dist.data.blocks import check_finite_rows, make_block
from daskml_dist.data.collection import Collection, as_collection, take_columns
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.inference.predict import map_rows
from daskml_dist.losses import get_loss
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import get_penalty
from daskml_dist.policies import Policy, get_policy
from daskml_dist.ps.shard import ShardState
from daskml_dist.schedules import get_schedule
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import Checkpoint, train_in_parts
from daskml_dist.training.history import History
from daskml_dist.training.plan import Settings, Survey, make_fit
from daskml_dist.training.run import open_engine

__all__ = ["BaseSGD"]


class BaseSGD(BaseEstimator):
    """Parameters, fitting and prediction of the linear models trained by gradient steps."""

    _classification: ClassVar[bool]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # -- settings ------------------------------------------------------------------------------

    def _settings(self, policy: str | Policy | None) -> Settings:
        """Check every parameter, before any work is started."""
        params = self.get_params(deep=False)
        self._check_numbers(params)
        kind: Literal["classification", "regression"]
        kind = "classification" if self._classification else "regression"
        optimizer = get_optimizer(params["optimizer"])
        early = params["early_stopping"]
        average = params["average"]
        return Settings(
            loss=get_loss(params["loss"], kind),
            penalty=get_penalty(params["penalty"], params["alpha"], params["l1_ratio"]),
            optimizer=optimizer,
            schedule=get_schedule(
                params["learning_rate"],
                default=optimizer.default_learning_rate,
                alpha=params["alpha"],
                max_iter=params["max_iter"],
            ),
            policy=get_policy(params["policy"] if policy is None else policy),
            fit_intercept=bool(params["fit_intercept"]),
            max_iter=int(params["max_iter"]),
            tol=params["tol"],
            n_iter_no_change=int(params["n_iter_no_change"]),
            shuffle=bool(params["shuffle"]),
            batch_size=params["batch_size"],
            n_servers=int(params["n_servers"]),
            n_lanes=params["n_lanes"],
            deterministic=bool(params["deterministic"]),
            device=params["device"],
            validation_fraction=float(params["validation_fraction"]) if early else 0.0,
            average=int(average) if average else None,
            class_weight=_check_class_weight(params.get("class_weight")),
            seed=_seed(params["random_state"]),
            memory_budget=_check_budget(params["memory_budget"]),
            on_lost_data=params["on_lost_data"],
            auto_rate=isinstance(params["learning_rate"], str)
            and params["learning_rate"] == "auto",
        )

    def _check_numbers(self, params: dict[str, Any]) -> None:
        for name in ("max_iter", "n_iter_no_change", "n_servers"):
            _check_count(name, params[name])
        if params["n_lanes"] is not None:
            _check_count("n_lanes", params["n_lanes"])
        if not isinstance(params["average"], bool | np.bool_):
            _check_count("average", params["average"], also="True or False")
        for name in ("alpha", "l1_ratio"):
            if not isinstance(params[name], Real):
                raise InvalidParameterError(f"{name}={params[name]!r}: use a number.")
        batch_size = params["batch_size"]
        if batch_size is not None and batch_size != "auto":
            _check_count("batch_size", batch_size, also='"auto", or None for full batches')
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
        if params["on_lost_data"] not in ("raise", "skip"):
            raise InvalidParameterError(
                f'on_lost_data={params["on_lost_data"]!r}: use "raise" or "skip".'
            )
        if params["device"] not in DEVICES:
            raise InvalidParameterError(
                f"Unknown device {params['device']!r}. Use one of {list(DEVICES)}."
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
        callbacks = self._callbacks(settings)
        collection = self._collection(X, y, sample_weight, reset=not go_on)
        with open_engine(collection, client, settings.memory_budget) as engine:
            survey = Survey(engine.survey(self._classification))
            survey.check_devices()
            if survey.n_rows == 0:
                raise InvalidDataError(
                    "X holds 0 sample(s) in all its blocks, while a minimum of 1 is required. "
                    "Check the filter or the path that made the collection."
                )
            classes = self._labels(survey, classes) if self._classification else None
            if not self._classification:
                self._check_targets(settings, survey)
            initial = self._initial(survey, classes) if go_on else None
            lanes = engine.lanes(
                settings.n_lanes,
                shared=settings.policy.loop == "shared",
                passes=settings.max_iter,
            )
            weighted = sample_weight is not None
            scales = None
            if settings.optimizer.uses_scales:
                scales = engine.scales(self._classification)
            fit = make_fit(
                settings, survey, lanes, classes, weighted, initial, engine.streaming, scales
            )
            checkpoint = self.get_params(deep=False)["checkpoint"]
            if checkpoint is None:
                result = engine.train(fit, callbacks)
            else:
                result = train_in_parts(engine, fit, callbacks, checkpoint)
        self._keep(settings, fit.model, result.state, classes, survey.n_features)
        self.n_iter_ = len(result.records)
        rows = sum(record["rows"] for record in result.records) + result.partial_rows
        self.t_: float = rows if initial is None else self.t_ + rows
        self.history_ = History(
            result.records,
            extra={
                "policy": settings.policy.name,
                "n_lanes": len(lanes),
                "n_servers": len(fit.layout.slices()) if settings.policy.uses_shards else 0,
                "partial_rows": result.partial_rows,
                "streamed": fit.streaming is not None,
                "generations": result.events,
                "dropped_pushes": result.dropped,
                "lost_rows": result.lost_rows,
                **engine.facts,
            },
        )

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

    def _callbacks(self, settings: Settings) -> CallbackList:
        params = self.get_params(deep=False)
        given = params["callbacks"]
        callbacks = list(given) if isinstance(given, list | tuple) else [given]
        if params["verbose"]:
            callbacks.append(Progress(max_iter=settings.max_iter))
        return CallbackList([callback for callback in callbacks if callback is not None])

    def _collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        if y is None:
            raise InvalidDataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                "Pass fit(X, y)."
            )
        X, y, sample_weight = take_columns(X, y, sample_weight)
        if not is_dask(y):
            y = _as_column(y)
            if self._classification:
                _check_labels(y)
        collection = as_collection(X, y, sample_weight)
        if not is_dask(X):
            _check_feature_names(self, X, reset=reset)
            if not reset:
                _check_n_features(self, X, reset=False)
        elif reset:
            self.__dict__.pop("feature_names_in_", None)
            if collection.feature_names is not None:
                self.feature_names_in_ = collection.feature_names
        return collection

    def _labels(self, survey: Survey, classes: Any) -> NDArray[Any]:
        found = survey.classes
        if classes is not None:
            classes = np.unique(classes)
            strange = np.setdiff1d(found, classes)
            if len(strange):
                raise InvalidDataError(
                    f"y holds labels {strange.tolist()[:5]} that `classes` does not. Name every "
                    "class in the first call to partial_fit."
                )
            found = classes
        if found.dtype.kind == "f" and (found % 1).any():
            raise InvalidDataError(
                "Unknown label type: continuous. Use SGDRegressor for a continuous target."
            )
        if len(found) < 2:
            raise InvalidDataError(
                f"y holds one class only: {found.tolist()}. A classifier needs at least two "
                "classes; check how the rows were filtered."
            )
        return found

    def _check_targets(self, settings: Settings, survey: Survey) -> None:
        ends = [e for info in survey.infos for e in (info.y_min, info.y_max) if e is not None]
        settings.loss.check_target(np.array(ends))

    def _initial(self, survey: Survey, classes: NDArray[Any] | None) -> ShardState | None:
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
        # The user may have changed coef_ meanwhile, and it counts; an average is no place to go on.
        w = (self._matrix() if state.average is None else state.w).astype(survey.dtype)
        slots = cast if cast.keys() == self._slot_names() else {}
        if self.get_params(deep=False)["average"] is False:
            return ShardState(w, slots, state.step, state.rows)
        return dataclasses.replace(state, w=w, slots=slots)

    def _slot_names(self) -> Any:
        optimizer = get_optimizer(self.get_params(deep=False)["optimizer"])
        return optimizer.init(np.zeros((1, 1))).keys()

    def _keep(
        self,
        settings: Settings,
        model: LinearModel,
        state: ShardState,
        classes: NDArray[Any] | None,
        n_features: int,
    ) -> None:
        """Set the fitted attributes."""
        w = state.w if state.average is None else state.average
        if not np.isfinite(w).all():
            from daskml_dist.errors import DivergedError

            raise DivergedError(
                "The parameters became NaN or infinite. Lower learning_rate, or scale the "
                "features (StandardScaler)."
            )
        self._state = state
        self.n_features_in_ = n_features
        coef = w[:n_features].T
        intercept = w[n_features] if model.fit_intercept else np.zeros(model.width, dtype=w.dtype)
        if classes is None:
            self.coef_, self.intercept_ = coef[0].copy(), intercept.copy()
        else:
            self.classes_ = classes
            self.coef_, self.intercept_ = coef.copy(), intercept.copy()

    def _matrix(self) -> NDArray[Any]:
        """Parameters as one matrix of shape (n_features + fit_intercept, width)."""
        coef = np.atleast_2d(self.coef_).T
        if not self.get_params(deep=False)["fit_intercept"]:
            return coef
        return np.vstack([coef, np.reshape(self.intercept_, (1, -1))])

    # -- prediction ----------------------------------------------------------------------------

    def _check_fitted(self, X: Any = None) -> None:
        if not hasattr(self, "coef_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with "
                "appropriate arguments before using this estimator."
            )
        if X is not None and not is_dask(X):
            _check_feature_names(self, X, reset=False)

    def _raw(self) -> Callable[[Any], NDArray[Any]]:
        """A picklable function from rows to raw predictions."""
        return partial(_raw_prediction, self.coef_, self.intercept_)

    def _map(self, function: Callable[..., Any], X: Any, dtype: Any, n_outputs: int | None) -> Any:
        """Map `function(raw_prediction)` over the rows of X."""
        self._check_fitted(X)
        composed = partial(_compose, function, self._raw())
        return map_rows(
            composed, X, dtype=dtype, n_outputs=n_outputs, n_features=self.n_features_in_
        )

    def _score_sums(
        self, statistic: Callable[..., NDArray[np.float64]], X: Any, y: Any, sample_weight: Any
    ) -> NDArray[np.float64]:
        """Sum of ``statistic(y, raw, weight)`` over all blocks; one pass, nothing gathered."""
        X, y, sample_weight = take_columns(X, y, sample_weight)
        self._check_fitted(X)
        if not is_dask(y):
            y = _as_column(y)
        collection = as_collection(X, y, sample_weight)
        found = collection.n_features
        if found is not None and found != self.n_features_in_:
            raise InvalidDataError(
                f"X has {found} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        one = partial(_score_block, statistic, self._raw(), self._classification)
        return reduce_parts(collection, one, _total)


def _total(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.add.reduce(parts), dtype=np.float64)


def _raw_prediction(coef: NDArray[Any], intercept: NDArray[Any], X: Any) -> NDArray[Any]:
    raw = get_backend("cpu").dot(X, np.atleast_2d(coef).T)
    return np.asarray(raw + (intercept[0] if raw.ndim == 1 else intercept))


def _compose(outer: Callable[..., Any], inner: Callable[..., Any], X: Any) -> Any:
    return outer(inner(X))


def _score_block(
    statistic: Callable[..., NDArray[np.float64]],
    raw: Callable[[Any], NDArray[Any]],
    classification: bool,
    index: int,
    X: Any,
    y: Any,
    sample_weight: Any,
) -> NDArray[np.float64]:
    block = make_block(index, X, y, sample_weight, classification=classification)
    if block.n_rows == 0:
        return np.zeros(4)
    check_finite_rows(block.X, index)
    weight = np.ones(block.n_rows) if block.sample_weight is None else block.sample_weight
    return statistic(block.y, raw(block.X), weight.astype(np.float64))


def _check_count(name: str, value: Any, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        hint = f", {also}" if also else ""
        raise InvalidParameterError(f"{name}={value!r}: use an integer >= 1{hint}.")


def _check_class_weight(class_weight: Any) -> Any:
    if isinstance(class_weight, dict):
        valid = all(isinstance(w, Real) and 0 <= float(w) < np.inf for w in class_weight.values())
    else:
        valid = class_weight is None or class_weight == "balanced"
    if valid:
        return class_weight
    raise InvalidParameterError(
        f'class_weight={class_weight!r}: use "balanced", a dict from label to weight >= 0, or None.'
    )


def _check_budget(memory_budget: Any) -> int | None:
    """Bytes; None for "auto"."""
    if isinstance(memory_budget, str) and memory_budget == "auto":
        return None
    with suppress(ValueError, TypeError, AttributeError):
        if (budget := parse_bytes(memory_budget)) > 0:
            return int(budget)
    raise InvalidParameterError(
        f'memory_budget={memory_budget!r}: use "auto", a number of bytes, or a string such as '
        '"2 GiB".'
    )


def _seed(random_state: Any) -> int:
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InvalidParameterError(f"{error}: use an integer, a RandomState or None.") from error


def _as_column(y: Any) -> Any:
    """Targets in memory as one column, with scikit-learn's warning for a matrix of one."""
    if len(getattr(y, "shape", ())) == 2:
        try:
            return column_or_1d(y, warn=True)
        except ValueError as error:
            raise InvalidDataError(f"{error} Pass one column, for example y[:, 0].") from error
    return y


def _check_labels(y: Any) -> None:
    labels = np.asarray(y)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise InvalidDataError(f"{error} Use SGDRegressor for a continuous target.") from error
