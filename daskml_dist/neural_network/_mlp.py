"""Base class of the multi-layer perceptrons, with scikit-learn's parameters and attributes.

One estimator has two ways of training: ``solver="adam"`` and ``"sgd"`` make steps along batches
(`BaseSteps`), and ``"lbfgs"`` is a round solver over sums of all rows (`BaseRounds`). `_params`
translates scikit-learn's parameters to those of `BaseSteps`. Details that affect the results follow
scikit-learn: initial weights from the seed, the penalty divided by the rows of a batch, and when a
fit counts as stale.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend
from daskml_dist.data.batches import LaneSpec
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.inference.independent_rows import multiply_each_row
from daskml_dist.losses.base import Loss
from daskml_dist.models.mlp import ACTIVATIONS, MLP
from daskml_dist.neural_network._base import BaseNetwork
from daskml_dist.optimizers.adam import Adam
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.optimizers.sgd import SGD, Momentum, Nesterov
from daskml_dist.parameters.checks import (
    check_count,
    check_flag,
    check_number,
    check_one_of,
    seed_of,
)
from daskml_dist.penalties import Penalty
from daskml_dist.policies.base import Policy
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant, InverseScaling, Schedule, get_schedule
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.lbfgs import LBFGS
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import FitResult
from daskml_dist.training.in_parts import AdaptiveRate
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import FitSpec, Settings

_SOLVERS = ("lbfgs", "sgd", "adam")
_RATES = ("constant", "invscaling", "adaptive")


class BaseMLP(BaseNetwork, BaseRounds):
    """Base class of multi-layer perceptrons, fitted by steps or by L-BFGS over sums.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Number of units of each hidden layer; ``()``: no hidden layer.
    activation : {"identity", "logistic", "tanh", "relu"}, default="relu"
        Activation function of the hidden layers.
    solver : {"adam", "sgd", "lbfgs"}, default="adam"
        The first two make steps along batches under a `policy`; ``"lbfgs"`` sums the loss and the
        gradient over all rows in each round, as Sandblaster L-BFGS does (Dean et al., NIPS 2012).
    batch_size : int, "auto" or None, default="auto"
        Number of rows in one step of the parameters, over all lanes: lanes that step together share
        them, while under ``"ssp"``, ``"async"`` and ``"hogwild"`` each push of a lane has
        `batch_size` rows. ``"auto"`` is 200, and at least 16 for each lane; None: all rows.
    learning_rate : {"constant", "invscaling", "adaptive"}, default="constant"
        Only with ``solver="sgd"``. ``"invscaling"`` divides `learning_rate_init` by the number of
        the step to the power of `power_t`; ``"adaptive"`` divides the rate by five each time the
        fit would otherwise end, and ends below 1e-6.
    learning_rate_init : float, default=0.001
    power_t : float, default=0.5
    max_iter : int, default=200
        Largest number of passes over the data; for ``"lbfgs"``, of iterations.
    random_state : int, RandomState or None, default=None
        Determines the initial parameters (an int gives those of scikit-learn), the order of the
        rows and the held-out rows.
    tol : float, default=1e-4
        The fit ends once the loss, or the validation score, has not improved by `tol` for more than
        `n_iter_no_change` passes. For ``"lbfgs"``, the largest component of the gradient.
    momentum : float, default=0.9
        Only with ``solver="sgd"``.
    nesterovs_momentum : bool, default=True
        Only with ``solver="sgd"`` and a momentum.
    early_stopping : bool, default=False
        Whether to hold out rows and stop on their score; the parameters are those of the last pass.
        Without effect for ``"lbfgs"``, as in scikit-learn.
    n_iter_no_change : int, default=10
        ``np.inf``: make all `max_iter` passes.
    max_fun : int, default=15000
        Largest number of evaluations for ``"lbfgs"``.
    optimizer : str or Optimizer, default=None
        Replaces the optimizer of the solver; see :mod:`daskml_dist.optimizers`.
    schedule : float, str or Schedule, default=None
        Replaces `learning_rate`; a schedule given by name starts from `learning_rate_init`. See
        :mod:`daskml_dist.schedules`.
    pipeline : Pipeline or None, default=None
        Layers spread over workers; see :class:`daskml_dist.policies.Pipeline`.

    Attributes
    ----------
    coefs_ : list of ndarray of shape (n_in, n_out)
        Weights of each layer.
    intercepts_ : list of ndarray of shape (n_out,)
    loss_ : float
        Mean loss of the rows in the last pass, without the penalty; for ``"lbfgs"`` with it.
    best_loss_ : float or None
        The minimum of `loss_curve_`; None with `early_stopping`. This attribute and the next three
        are not set for ``"lbfgs"``.
    loss_curve_ : list of float
        Mean loss in each pass, without the penalty.
    validation_scores_ : list of float, or None
        Score of the held-out rows after each pass; None without `early_stopping`.
    best_validation_score_ : float or None
    n_iter_ : int
        Number of passes; for ``"lbfgs"``, of iterations.
    n_layers_ : int
        Number of layers, including input and output.
    n_outputs_ : int
    out_activation_ : str
    t_ : float
        Number of rows that the parameters were trained on.
    """

    coefs_: list[NDArray[Any]]
    intercepts_: list[NDArray[Any]]

    def _loss(self) -> Loss:
        """Return the loss of raw outputs."""
        raise NotImplementedError

    def _n_outputs(self, rows: DatasetInfo) -> int:
        """Return the number of outputs of the last layer."""
        raise NotImplementedError

    # -- parameters ----------------------------------------------------------------------------

    @property
    def _by_rounds(self) -> bool:
        """Return whether a round solver is used, instead of steps along batches."""
        return bool(self._all_params()["solver"] == "lbfgs")

    @property
    def _run_used(self) -> tuple[str, ...]:  # type: ignore[override]
        return BaseRounds._run_used if self._by_rounds else BaseSteps._run_used

    def _params(self) -> dict[str, Any]:
        """Return every parameter, with scikit-learn's translated to those of `BaseSteps`."""
        params = super()._params()
        patience = params["n_iter_no_change"]
        patience = sys.maxsize if patience == np.inf else patience  # the rule needs an integer
        return params | {
            "penalty": "l2",
            "optimizer": _resolve_optimizer(params),
            "learning_rate": _resolve_schedule(params),
            "n_iter_no_change": patience,
        }

    def _check_params(self) -> None:
        params = self._all_params()
        check_one_of("solver", params["solver"], _SOLVERS)
        check_one_of("activation", params["activation"], sorted(ACTIVATIONS))
        check_one_of("learning_rate", params["learning_rate"], _RATES)
        for name in ("alpha", "tol", "power_t"):
            # With tol=None, steps make all max_iter passes; L-BFGS needs a tolerance.
            if not (name == "tol" and params[name] is None and not self._by_rounds):
                check_number(name, params[name])
        check_number("learning_rate_init", params["learning_rate_init"], lambda v: v > 0, "> 0")
        for name in ("max_iter", "max_fun"):
            check_count(name, params[name])
        for name in ("nesterovs_momentum", "early_stopping", "warm_start", "shuffle"):
            check_flag(name, params[name])
        _resolve_hidden_sizes(params["hidden_layer_sizes"])
        # An error, since the user would expect these parameters to have an effect.
        unused = [
            n for n in ("optimizer", "schedule", "pipeline", "privacy") if params[n] is not None
        ]
        if self._by_rounds and unused:
            raise InvalidParameterError(
                'solver="lbfgs" uses all rows in each iteration: it does not use '
                f'{unused[0]}={params[unused[0]]!r}. Leave that out, or use solver="adam".'
            )

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        self._check_params()
        settings = super()._check_settings(policy)
        # scikit-learn's networks stop after more than n_iter_no_change stale passes, our rule after
        # exactly that many.
        patience = min(settings.n_iter_no_change + 1, sys.maxsize)
        return dataclasses.replace(settings, seed=self._seed(), n_iter_no_change=patience)

    def _seed(self) -> int:
        """Return the seed; an int as the user gave it, for scikit-learn's initial weights."""
        seed = self._params()["random_state"]
        return int(seed) if isinstance(seed, Integral) and int(seed) >= 0 else seed_of(seed)

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        """Return settings with scikit-learn's penalty: `alpha` divided by the weight of a batch."""
        # scikit-learn's loss of a batch is its mean plus alpha / 2 * |w|^2 / (rows of the batch).
        mean_weight = rows.weight_sum / rows.summary.n_rows
        alpha = settings.penalty.l2 / (self._batch_rows(settings, lanes) * mean_weight)
        settings = super()._settings_for_lanes(settings, rows, lanes)
        return dataclasses.replace(settings, penalty=Penalty(0.0, alpha))

    def _use_weights_unscaled(self, fit: FitSpec) -> FitSpec:
        fit = super()._use_weights_unscaled(fit)
        # The penalty was divided by the weight of a batch. Gradients are now larger by the mean
        # weight, and so is the penalty beside them: `alpha` by the rows of a batch, as in streams.
        groups = tuple(
            dataclasses.replace(
                group, penalty=Penalty(0.0, group.penalty.l2 * fit.rows.mean_weight)
            )
            for group in fit.steps.rule.groups
        )
        return fit.replace_work(rule=dataclasses.replace(fit.steps.rule, groups=groups))

    def _check_one_pass(self) -> None:
        """Raise for parameters that are impossible with a single pass or a stream."""
        if self._by_rounds:
            raise InvalidParameterError(
                'solver="lbfgs" needs all rows, but a stream has no end. Use solver="adam" or '
                '"sgd".'
            )
        super()._check_one_pass()

    def _rule_of_rows(self, rule: UpdateRule, n_rows: int) -> UpdateRule:
        """Return the rule with scikit-learn's penalty for batches of `n_rows` rows."""
        # The batches of a stream are its calls, which may differ in size.
        penalty = Penalty(0.0, float(self._params()["alpha"]) / n_rows)
        return dataclasses.replace(
            rule, groups=tuple(dataclasses.replace(g, penalty=penalty) for g in rule.groups)
        )

    # -- fitting -------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        eval_set: Any = None,
        scoring: Any = None,
        policy: str | Policy | None = None,
        client: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X, y, sample_weight, eval_set, scoring, policy, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`; `y` may have columns.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any step, naming the remedy (NaN and infinity: during the first pass).
        TrainingError
            The fit cannot continue.
        """
        if self._is_adaptive and self._checkpoint() is not None:
            raise InvalidParameterError(
                'learning_rate="adaptive" runs several fits, and a checkpoint holds only one. '
                'Use checkpoint=None, or another learning_rate such as schedule="step".'
            )
        if not self._by_rounds:
            return super().fit(
                X, y, sample_weight, eval_set=eval_set, scoring=scoring, policy=policy,
                client=client,
            )  # fmt: skip
        if eval_set is not None or scoring is not None:
            raise InvalidParameterError(
                'solver="lbfgs" has no parameters to score before it finishes: leave eval_set '
                'and scoring out, or use solver="adam".'
            )
        if policy is not None:
            raise InvalidParameterError(
                'solver="lbfgs" does not use a policy. Leave it out, or use solver="adam".'
            )
        self._fit(X, y, sample_weight, client, reset=not self._continues_last_fit())
        return self

    @property
    def _is_adaptive(self) -> bool:
        """Return whether the rate is divided whenever the loss is stale ("adaptive")."""
        params = self._all_params()
        uses_solver = params["schedule"] is None and params["optimizer"] is None
        return uses_solver and (params["solver"], params["learning_rate"]) == ("sgd", "adaptive")

    def _run_training(self, job: FitJob, fit: FitSpec) -> FitResult:
        # Each new rate resets the count of stale passes, as in scikit-learn.
        if self._is_adaptive:
            return job.train_steps(fit, adaptive_rate=AdaptiveRate(restarts=True))
        return super()._run_training(job, fit)

    def _checkpoint(self) -> Checkpoint | None:
        # Fits by steps have a parameter `checkpoint`; fits by rounds find it among the callbacks.
        checkpoint: Checkpoint | None = self._params()["checkpoint"]
        return super()._checkpoint() if checkpoint is None else checkpoint

    def _model(self, rows: DatasetInfo, last: MLP | None) -> MLP:
        params = self._all_params()
        sizes = (
            rows.summary.n_features,
            *_resolve_hidden_sizes(params["hidden_layer_sizes"]),
            self._n_outputs(rows),
        )
        model = MLP(
            self._loss(),
            sizes,
            params["activation"],
            0 if rows.classes is None else len(rows.classes),
            rows.summary.n_targets is not None,
            None if params["privacy"] is None else float(params["privacy"].clip),
        )
        # Layers may have been changed by `set_params` between fits, or y may have other columns.
        if last is not None and last.sizes != model.sizes:
            raise InvalidParameterError(
                f"Continuing needs the layers of the first fit, {list(last.sizes)} units; this "
                f"network has {list(model.sizes)}. Set warm_start=False, or use a new estimator."
            )
        return model

    def _parameters_of_state(self, state: ShardState) -> NDArray[Any]:
        """Return the parameters to continue from: the present `coefs_` and `intercepts_`."""
        w = np.empty_like(state.w)
        for (weights, shift), *fitted in zip(
            self._last_model.arrays(w), self.coefs_, self.intercepts_, strict=True
        ):
            weights[...], shift[...] = fitted
        return w

    def _set_parameters(self, w: NDArray[Any], model: MLP, rows: DatasetInfo) -> None:
        if not np.isfinite(w).all():
            raise DivergedError(
                "The parameters became NaN or infinite. Lower learning_rate_init, or scale the "
                "features (StandardScaler) and the targets."
            )
        # Views of one copy: the user may write to them without changing the stored state.
        layers = model.arrays(w.copy())
        self.coefs_ = [weights for weights, _ in layers]
        self.intercepts_ = [shift for _, shift in layers]
        self.n_features_in_, self.n_outputs_ = model.sizes[0], model.n_outputs
        self.n_layers_ = len(model.sizes)
        self._loss_of_fit = model.loss
        self.out_activation_ = self._out_activation(model)
        if rows.classes is not None:
            self.classes_ = rows.classes

    def _out_activation(self, model: MLP) -> str:
        """Return scikit-learn's name of the function from raw outputs to predictions."""
        raise NotImplementedError

    # -- rounds --------------------------------------------------------------------------------

    def _problem(self, rows: DatasetInfo) -> tuple[MLP, Solver]:
        params = self._all_params()
        goes_on = self._continues_last_fit()
        if goes_on:
            self._check_same_classes(rows)
        model = self._model(rows, self._last_model if goes_on else None)
        # The objective is a mean, so alpha / 2 * |w|^2 of scikit-learn is divided by the weight of
        # all rows.
        penalty = Penalty(0.0, float(params["alpha"]) / rows.weight_sum)
        return model, LBFGS(
            penalty, int(params["max_iter"]), float(params["tol"]), int(params["max_fun"])
        )

    def _check_same_classes(self, rows: DatasetInfo) -> None:
        """Raise if a fit with `warm_start` has other classes than the last one."""
        if rows.classes is not None and not np.array_equal(rows.classes, self.classes_):
            raise InvalidDataError(
                "warm_start can only be used where `y` has the same classes as in the previous "
                f"call to fit. Previously got {self.classes_}, `y` has {rows.classes}. Set "
                "warm_start=False, or use a new estimator."
            )

    def _starting_parameters(self, model: MLP, rows: DatasetInfo) -> NDArray[Any] | None:
        if self._continues_last_fit():
            return self._parameters_of_state(self._state)
        # The initial weights, drawn in the same order as in scikit-learn.
        return model.init(self._seed(), rows.summary.dtype)

    def _set_fitted(self, solution: Solution, model: MLP, rows: DatasetInfo) -> None:
        w = solution.w.astype(rows.summary.dtype)
        goes_on = self._continues_last_fit()  # evaluated before `_state` is set
        self._set_parameters(w, model, rows)
        self._state, self._last_model = ShardState(w, {}), model
        # The mean loss with the penalty: the objective's last value.
        self.loss_ = float(solution.extra["value"])
        self.t_ = (self.t_ if goes_on else 0) + rows.summary.n_rows * solution.n_iter

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return _OutputFunction(self._last_model, self._parameters_of_state(self._state))


def steps_alone(estimator: BaseMLP) -> bool:
    """Return True if the solver makes steps along batches; otherwise raise an AttributeError."""
    # The condition of `available_if`, which converts the error into a missing method.
    if estimator._by_rounds:
        raise AttributeError(
            "partial_fit is only available for stochastic optimizers. lbfgs is not stochastic. Use "
            'solver="adam" or "sgd".'
        )
    return True


@dataclass(frozen=True, eq=False)
class _OutputFunction:
    """Picklable function from rows to the outputs of the last layer, before its activation.

    Parameters
    ----------
    model : MLP
    w : ndarray
        Parameters of the model.
    """

    model: MLP
    w: NDArray[Any]

    def __call__(self, X: Any) -> NDArray[Any]:
        outputs: NDArray[Any] = self.model.raw(self.w, X, get_backend("cpu"))
        return outputs

    def for_dtype(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the same function for few dense rows, with cached terms of the parameters."""
        return self.model.raw_of_few(self.w, get_backend("cpu"))

    def for_each_row(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return :meth:`for_dtype` such that a row's outputs do not depend on other rows."""
        return self.model.raw_of_few(self.w, get_backend("cpu"), multiply_each_row)

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], NDArray[Any]]:
        """Return the same function of rows on a device; only outputs are copied to the host."""
        w = backend.to_device(self.w)
        return lambda X: backend.to_numpy(self.model.raw(w, X, backend))


def _resolve_hidden_sizes(sizes: Any) -> tuple[int, ...]:
    """Return the sizes of the hidden layers, given a number or a sequence of numbers."""
    layers = [sizes] if isinstance(sizes, Integral) else sizes
    try:
        layers = list(layers)
    except TypeError:
        layers = [None]
    if not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0 for n in layers):
        raise InvalidParameterError(
            f"hidden_layer_sizes must be > 0, got {sizes}. Use integers, such as (64, 32)."
        )
    return tuple(map(int, layers))


def _resolve_optimizer(params: dict[str, Any]) -> str | Optimizer:
    """Return the given optimizer, or the one that corresponds to scikit-learn's solver."""
    if params["optimizer"] is not None:
        optimizer: str | Optimizer = params["optimizer"]
        return optimizer
    # D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2015. L-BFGS makes no
    # steps and ignores the optimizer.
    if params["solver"] != "sgd":
        return Adam(params["beta_1"], params["beta_2"], params["epsilon"])
    check_number("momentum", params["momentum"], lambda v: 0 <= v < 1, "from 0 up to, not with, 1")
    if params["momentum"] == 0:
        return SGD()
    # Momentum and its Nesterov form: I. Sutskever et al., "On the importance of initialization and
    # momentum in deep learning", 2013.
    return (Nesterov if params["nesterovs_momentum"] else Momentum)(params["momentum"])


def _resolve_schedule(params: dict[str, Any]) -> Schedule:
    """Return the given schedule, or the one that corresponds to scikit-learn's learning rate."""
    rate = params["learning_rate_init"]
    if params["schedule"] is not None:
        # Parameters are read before they are checked: an invalid alpha must not fail here.
        alpha = params["alpha"] if isinstance(params["alpha"], Real) else 0.0
        return get_schedule(
            params["schedule"], default=rate, alpha=float(alpha), max_iter=params["max_iter"]
        )
    # "adaptive" is a constant rate too; `_run_training` divides it.
    if params["solver"] == "sgd" and params["learning_rate"] == "invscaling":
        return InverseScaling(rate, params["power_t"])
    return Constant(rate)
