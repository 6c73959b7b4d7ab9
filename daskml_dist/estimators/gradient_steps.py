"""Base class of the estimators trained by gradient steps: settings, and fits that continue others.

`BaseSteps._train` runs every such fit: check the inputs, open a `FitJob` over the rows, summarise
them, make the model, plan lanes and steps, train, and set the fitted attributes. Hooks in between
(`_adapt_rate_to_rows`, `_calibrate_rates`, `_prepare_fit`, ...) are for kinds of estimators that
adapt the plan to the rows. `stream` instead plans by the first rows that arrive, and learns call by
call.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.callbacks.eval_monitor import make_eval_monitor
from daskml_dist.compression import COMPRESSORS, Compressor
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.computing import check_client
from daskml_dist.data.row_checks import check_feature_names, check_row_shape
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import BaseOnRows, choose_client
from daskml_dist.models.base import StepModel
from daskml_dist.optimizers import get_optimizer
from daskml_dist.parameters.checks import check_class_weight, check_count, check_steps, seed_of
from daskml_dist.parameters.privacy import (
    check_privacy,
    make_private_settings,
    refuse_more_rows,
    refuse_weights,
)
from daskml_dist.parameters.run import Run
from daskml_dist.penalties import get_penalty
from daskml_dist.policies import POLICIES, get_policy
from daskml_dist.policies.base import Pipeline, Policy
from daskml_dist.privacy import PrivacySpent
from daskml_dist.ps.rule import OUTER_PREFIX, UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import get_schedule
from daskml_dist.streaming.drift import DriftWatch
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import FitResult
from daskml_dist.training.job import FitJob
from daskml_dist.training.plan import check_column_settings
from daskml_dist.training.spec import FitSpec, RunSettings, Settings

if TYPE_CHECKING:
    from daskml_dist.streaming.checkpoints import SavedStream
    from daskml_dist.streaming.drift import ProgressiveLoss
    from daskml_dist.streaming.session import Session
    from daskml_dist.streaming.start import StartedStream


class BaseSteps(BaseOnRows):
    """Base class of estimators trained by gradient steps under a policy.

    A subclass makes the model to train (:meth:`_model`) and sets fitted attributes from its
    parameters (:meth:`_set_parameters`). Its constructor takes any of the parameters in
    `_defaults`; the others keep their defaults.

    Parameters
    ----------
    shuffle : bool, default=True
        Visit the rows in a new order in each pass.
    early_stopping : bool, default=False
        Hold out rows and stop on their score.
    validation_fraction : float, default=0.1
        Share of rows held out with `early_stopping`.
    n_iter_no_change : int, default=5
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, by label.
    warm_start : bool, default=False
        Go on from the last fit instead of from zero.
    optimizer : str or Optimizer, default="adagrad"
        See :mod:`daskml_dist.optimizers`.
    policy : str or Policy, default="sync"
        How updates are combined; see :mod:`daskml_dist.policies`. ``fit(..., policy=...)``
        overrides it.
    checkpoint : Checkpoint or None, default=None
        Where and how often :meth:`fit` saves its state, see
        :class:`daskml_dist.training.checkpoint.Checkpoint`.
    privacy : DP or None, default=None
        Budget of a differentially private fit, see :class:`daskml_dist.DP` and :doc:`/privacy`.

    Attributes
    ----------
    t_ : float
        Rows that the parameters were trained on; of a private fit, the mean number.
    privacy_spent_ : PrivacySpent
        Privacy budget that the fit has spent; only for private fits.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.base import BaseSteps, Supervised
    >>> from daskml_dist.models import Parameters, Part, StepModel
    >>> class Constant(StepModel):
    ...     parameters = Parameters((Part("level", (1,)),))
    ...     def encode(self, y, classes, dtype):
    ...         return y.astype(dtype)
    ...     def add_gradient(self, w, rows, out, backend):
    ...         error = w[0, 0] - rows.y
    ...         out[0, 0] += error.sum()
    ...         return float(error @ error) / 2
    ...     def identity(self):
    ...         return {"model": "Constant"}
    >>> class Level(BaseSteps, Supervised):
    ...     def __init__(self, *, learning_rate=0.5, max_iter=20):
    ...         self.learning_rate = learning_rate
    ...         self.max_iter = max_iter
    ...     def _model(self, rows, last):
    ...         return Constant()
    ...     def _set_parameters(self, w, model, rows):
    ...         self.level_ = float(w[0, 0])
    >>> round(Level().fit(np.zeros((4, 1)), np.array([1.0, 2.0, 3.0, 6.0])).level_)
    3
    """

    _defaults = BaseOnRows._defaults | {
        "penalty": None,
        "alpha": 0.0,
        "l1_ratio": 0.15,
        "optimizer": "adam",
        "learning_rate": "auto",
        "policy": "allreduce",
        "max_iter": 20,
        "tol": None,
        "n_iter_no_change": 5,
        "batch_size": "auto",
        "micro_batch_size": None,
        "shuffle": True,
        "clip": None,
        "groups": None,
        "pipeline": None,
        "dtype": None,
        "average": False,
        "early_stopping": False,
        "validation_fraction": 0.1,
        "warm_start": False,
        "checkpoint": None,
        "privacy": None,
        "random_state": None,
    }
    _run_used = tuple(Run().get_params())
    #: Whether each call of a stream is one batch, whatever `batch_size`; its plan then uses the
    #: weights of the first rows.
    _whole_calls: ClassVar[bool] = False
    #: Policy of a stream in the calling process, which has one lane.
    _stream_policy: ClassVar[str] = "allreduce"
    #: Parameters and optimizer state of the last fit, from which a fit can continue.
    _state: ShardState
    _last_model: Any
    privacy_spent_: PrivacySpent

    @abstractmethod
    def _model(self, rows: DatasetInfo, last: Any) -> StepModel:
        """Return the model for these rows; `last` is that of the fit which this one continues."""

    @abstractmethod
    def _set_parameters(self, w: NDArray[Any], model: Any, rows: DatasetInfo) -> None:
        """Set the fitted attributes from a model's parameters."""

    def _starting_state(
        self, start: Any, model: Any, settings: Settings, rows: DatasetInfo
    ) -> ShardState | None:
        """Return the state for the user's `start` in `fit`; None: the model's own."""
        return None

    def _parameters_of_state(self, state: ShardState) -> NDArray[Any]:
        """Return the parameters to continue from, in the layout of the last model."""
        return state.w

    # -- settings ------------------------------------------------------------------------------

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        """Check every parameter, before any work is started; return the settings of the fit."""
        params = self._params()
        check_steps(params)
        check_privacy(params["privacy"])
        settings = make_step_settings(params, policy, self._run_settings())
        if settings.privacy is None:
            return settings
        # The user's values: a schedule may have replaced a rate by now.
        continues = self._continues_last_fit()
        return make_private_settings(settings, params | self._all_params(), goes_on=continues)

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
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`.

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
        settings = self._check_settings(policy)
        self._train(
            X, y, sample_weight, settings=settings, client=client, eval_set=eval_set,
            scoring=scoring,
        )  # fmt: skip
        return self

    def _train(
        self, X: Any, y: Any, sample_weight: Any, *, settings: Settings, client: Any,
        classes: Any = None, go_on: bool | None = None, start: Any = None, eval_set: Any = None,
        scoring: Any = None, one_pass: bool = False,
    ) -> None:  # fmt: skip
        """Fit from zero or from the user's parameters, or continue from the last state.

        With `go_on` of None, `warm_start` decides, unless there is a `start`. With `one_pass`, as
        in ``partial_fit``, weights are not divided by the mean of these rows: other calls have
        another, and the weight of a single row would have no effect.
        """
        self._check_no_stream("fit or partial_fit")
        if settings.privacy is not None and sample_weight is not None:
            raise refuse_weights()
        if go_on is None:
            go_on = start is None and self._continues_last_fit()
        # A pilot may have chosen another optimizer for the last fit, whose state is continued.
        if go_on:
            settings = self._settings_of_last_fit(settings)
        scored = eval_set is not None or scoring is not None
        monitors = [make_eval_monitor(eval_set, scoring)] if scored else []
        callbacks = self._make_callbacks(settings.max_iter, first=monitors)
        collection = self._make_collection(X, y, sample_weight, reset=not go_on)
        client = choose_client(self, client, collection)
        with FitJob(collection, client, settings.run, callbacks) as job:
            # Before the summary, which is then computed on blocks split by columns.
            if settings.run.shard == "features":
                job.engine.cut_columns(settings.run.n_lanes)
            weighted = collection.is_weighted  # batches may hold weights
            if settings.privacy is not None and weighted:
                raise refuse_weights()
            rows = job.rows = self._dataset_info(job, classes, settings.class_weight, weighted)
            model, initial = self._model_to_train(rows, settings, go_on, start)
            fit = self._plan_fit(job, settings, model, initial)
            # Several lanes that are averaged by their weights have a mean weight of 1 within each.
            if one_pass and not (fit.steps.policy.averages and len(fit.rows.lane_rows) > 1):
                fit = self._use_weights_unscaled(fit)
            fit = self._prepare_fit(job, fit.replace_work(step_callbacks=callbacks.step_callbacks))
            # Callbacks that score held-out rows request a fitted estimator after a pass.
            callbacks.fitted = partial(self._fitted_copy, fit.steps.model, rows)
            result = self._run_training(job, fit)
            self._set_result(
                fit.steps.model, result, rows, is_continued=go_on and initial is not None
            )
            if "privacy_spent_" in vars(self):
                del self.privacy_spent_
            if fit.work.privacy is not None and isinstance(result.state, ShardState):
                # The privacy budget of steps made by an interrupted fit is spent as well.
                self.privacy_spent_ = fit.work.privacy.spent(result.state.step)
            self.history_ = job.make_history(
                fit,
                result,
                policy=settings.policy.name,
                n_servers=len(fit.work.layout.slices()) if fit.work.uses_shards else 0,
                partial_rows=result.partial_rows,
                dropped_pushes=result.dropped,
                compression=None if fit.work.compression is None else fit.work.compression.name,
            )
        # After the attributes are set: an interrupted fit leaves a usable model.
        result.raise_if_interrupted(self.n_iter_)
        self._warn_not_converged(settings, result)

    def _model_to_train(
        self, rows: DatasetInfo, settings: Settings, go_on: bool, start: Any = None
    ) -> tuple[StepModel, ShardState | None]:
        """Return the model, and its initial state (None: the model's own)."""
        if go_on and (state := self._last_state(rows, settings)) is not None:
            # The last model is passed on: its parameters are relative to its shift of the targets.
            return self._model(rows, self._last_model), state
        model = self._model(rows, None)
        return model, self._starting_state(start, model, settings, rows)

    def _plan_fit(
        self, job: FitJob, settings: Settings, model: StepModel, initial: ShardState | None
    ) -> FitSpec:
        """Return the plan of the fit: its lanes, and steps suited to them and the rows."""
        # A lane that is a thread is worth it with few rows too; other lanes cost messages.
        threads = settings.policy.uses_threads
        job.lay_out_lanes(
            settings.max_iter,
            bytes_per_lane=1 if threads else None,
            by_block=settings.policy.draws_lanes,
        )
        settings = self._settings_for_lanes(settings, job.rows, job.row_lanes)
        settings, model = self._adapt_rate_to_rows(job, settings, model)
        fit = job.plan_steps(settings, model, initial)
        # A continued fit keeps its rates: a pilot would restart it.
        if settings.calibrates and settings.auto_rate and initial is None:
            return self._calibrate_rates(job, fit, settings)
        return fit

    def _adapt_rate_to_rows(
        self, job: FitJob, settings: Settings, model: StepModel
    ) -> tuple[Settings, StepModel]:
        """Return settings and model, adapted to the scale of the rows; unchanged by default."""
        return settings, model

    def _use_weights_unscaled(self, fit: FitSpec) -> FitSpec:
        """Return the fit with weights that are used as they are, not divided by their mean."""
        return dataclasses.replace(fit, rows=fit.rows.unscaled())

    def _calibrate_rates(self, job: FitJob, fit: FitSpec, settings: Settings) -> FitSpec:
        """Return the fit with a start and rates tuned to the rows; unchanged by default."""
        return fit

    def _settings_of_last_fit(self, settings: Settings) -> Settings:
        """Return settings with those of the last fit that must be kept; unchanged by default."""
        return settings

    def _prepare_fit(self, job: FitJob, fit: FitSpec) -> FitSpec:
        """Return the fit after another pass over the rows, if needed; unchanged by default."""
        return fit

    def _run_training(self, job: FitJob, fit: FitSpec) -> FitResult:
        """Return the result of the planned fit, which saves its state if `checkpoint` is set."""
        return job.train_steps(fit, self._params()["checkpoint"])

    def _fitted_copy(self, model: StepModel, rows: DatasetInfo, state: ShardState) -> Self:
        """Return a copy of this estimator, fitted with the parameters of a state."""
        fitted = copy.copy(self)
        fitted._set_learned(state, model, rows)
        return fitted

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        """Return the settings for these lanes; unchanged by default."""
        return settings

    def _set_result(
        self, model: StepModel, result: FitResult, rows: DatasetInfo, is_continued: bool
    ) -> None:
        """Set the fitted attributes; counts of rows go on from the last fit's if continued."""
        state = result.state
        assert isinstance(state, ShardState)
        # An infinite sum of squares makes steps of adaptive optimizers zero, and no NaN would show
        # it.
        if not all(np.isfinite(array).all() for array in state.opt_state.values()):
            raise DivergedError(
                f"Floating-point under-/overflow occurred at epoch #{len(result.records)}: the "
                "squares of the gradients overflow, so steps become zero. Scaling input data "
                "with StandardScaler or MinMaxScaler might help. Scale the features and the "
                "targets."
            )
        self._set_learned(state, model, rows)
        self.n_iter_ = len(result.records)
        n_rows = sum(record["rows"] for record in result.records) + result.partial_rows
        self.t_: float = self.t_ + n_rows if is_continued else n_rows

    def _set_learned(self, state: ShardState, model: StepModel, rows: DatasetInfo) -> None:
        """Set the fitted attributes from a state, and keep it for a fit that continues from it."""
        self._set_parameters(state.final, model, rows)
        self._set_row_shape(rows.summary.row_shape)
        self._state, self._last_model = state, model

    def _warn_not_converged(self, settings: Settings, result: FitResult) -> None:
        """Warn if a fit with a tolerance has made all its passes without reaching it."""
        reached_limit = len(result.records) >= settings.max_iter
        if settings.tol is not None and reached_limit and not result.stopping.converged:
            warnings.warn(
                f"{type(self).__name__} made all max_iter={settings.max_iter} passes before its "
                "loss (or validation score) settled to tol. Maximum number of iteration reached "
                "before convergence. Consider increasing max_iter to improve the fit, scale the "
                "features (StandardScaler), or set tol=None to ask for exactly max_iter passes.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )

    def _continues_last_fit(self) -> bool:
        """Return whether a fit continues the last one (`warm_start`)."""
        return bool(self._params()["warm_start"]) and hasattr(self, "_state")

    def _check_one_pass(self) -> None:
        """Raise if `early_stopping` is set, which needs several passes."""
        if self._params()["privacy"] is not None:
            raise refuse_more_rows()
        if self._params()["early_stopping"]:
            raise InvalidParameterError(
                "early_stopping should be False with partial_fit, which makes only one pass. "
                "Set early_stopping=False, or call fit."
            )

    def _fit_one_pass(
        self, X: Any, y: Any, sample_weight: Any, policy: Any, client: Any, classes: Any
    ) -> None:
        """Make one pass from the last state (``partial_fit``)."""
        self._check_one_pass()
        # No pilot for the learning rate: the first rows of a stream may not be representative.
        settings = dataclasses.replace(
            self._check_settings(policy), max_iter=1, tol=None, calibrates=False
        )
        state = getattr(self, "_state", None)
        if state is not None:
            # Each call shuffles its rows in a different order.
            settings = dataclasses.replace(settings, seed=settings.seed + state.step)
        self._train(
            X, y, sample_weight, settings=settings, client=client, classes=classes,
            go_on=state is not None, one_pass=True,
        )  # fmt: skip

    def _last_state(self, rows: DatasetInfo, settings: Settings) -> ShardState | None:
        """Return the last fit's state, checked against these rows; None without a last fit."""
        state: ShardState | None = getattr(self, "_state", None)
        if state is None:
            return None
        summary, classes = rows.summary, rows.classes
        check_row_shape(summary.row_shape, self._row_shape, type(self).__name__)
        if classes is not None and not np.array_equal(classes, self.classes_):
            raise InvalidDataError(
                f"Continuing needs the classes of the first fit, {self.classes_.tolist()}; y "
                f"holds {classes.tolist()}. Set warm_start=False, or name all classes in the "
                "first fit."
            )
        dtype = settings.dtype_of(summary)
        opt_state = {name: array.astype(dtype) for name, array in state.opt_state.items()}
        w = self._parameters_of_state(state).astype(dtype)
        # An optimizer whose state has other names starts without it. State of outer steps is
        # ignored here: it may be absent on either side.
        optimizer_names = {name for name in opt_state if not name.startswith(OUTER_PREFIX)}
        if optimizer_names != settings.state_names:
            opt_state = {}
        # Without `average` now, an average of the last fit is dropped.
        if self._params()["average"] is False:
            state = dataclasses.replace(state, average=None, n_averaged=0)
        return dataclasses.replace(state, w=w, opt_state=opt_state)

    # -- streams -------------------------------------------------------------------------------

    def stream(
        self,
        *,
        classes: Any = None,
        checkpoint: Checkpoint | None = None,
        checkpoint_seconds: float | None = None,
        on_checkpoint: Callable[[Any], Any] | None = None,
        drift: Any = None,
        on_drift: str | Callable[[Session], Any] | None = None,
        publish: Callable[[Any], Any] | None = None,
        publish_every: int = 1000,
        client: Any = None,
    ) -> Session:
        """Open a stream: rows are learned as they arrive, without setup between calls.

        The steps are those of ``partial_fit`` with the same batches and ``shuffle=False``; for
        dense rows the results have the same bits, but for the rounding of an `average`. With
        ``batch_size="auto"`` or None a call is one step; a number cuts the rows of a call into
        batches (a call of MiniBatchKMeans is always one). The rate is that of ``partial_fit``: with
        ``learning_rate="auto"`` the optimizer's own, there is no pilot, and values that depend on
        the rows (units of the targets, their mean) are computed from the first call's.

        Parameters
        ----------
        classes : array-like of shape (n_classes,), optional
            All labels that will ever occur; classifiers need it unless they are fitted.
        checkpoint : Checkpoint, optional
            Where the stream saves its parameters and its position, in one file, after every `every`
            calls, and at its end. With ``resume=True`` it continues from there: rows at or before
            the session's `position` are not learned again, so that each counts exactly once,
            wherever the process ended. This is independent of the estimator's parameter
            `checkpoint`, which is for fits.
        checkpoint_seconds : float, optional
            Save after this many seconds instead.
        on_checkpoint : callable, optional
            Called with the position that was saved, for instance to commit offsets.
        drift : object, optional
            Detector of drifts, which gets the mean loss of each call before it is learned:
            :class:`~daskml_dist.streaming.PageHinkley`, or one of River.
        on_drift : {"rate", "reset"} or callable, optional
            Action on a drift: the optimizer and the schedule restart (adaptive rates are large
            again), the parameters restart too, or a function of the session is called.
        publish : callable, optional
            Called with a fitted copy of the estimator, every `publish_every` calls and at the end.
        publish_every : int, default=1000
        client : distributed.Client, "inline" or None
            Client of the cluster whose workers learn the rows that this process provides, under the
            estimator's policy: in lock-step all lanes share each step, else steps go to lanes in
            turn and :meth:`~Session.learn` does not wait for each. The loss of a worker costs only
            time. "inline" or None: the calling process learns them itself.

        Returns
        -------
        Session
            For a ``with`` statement.

        Raises
        ------
        InvalidParameterError
            Parameters with no meaning in a stream, such as ``early_stopping``, or on a cluster,
            such as ``compression``.

        Examples
        --------
        >>> import numpy as np
        >>> from daskml_dist.linear_model import SGDClassifier
        >>> rng = np.random.default_rng(0)
        >>> clf = SGDClassifier(optimizer="sgd", learning_rate=1.0)
        >>> with clf.stream(classes=[0, 1]) as s:
        ...     for _ in range(100):
        ...         X = rng.standard_normal((100, 3))
        ...         loss = s.learn(X, (X[:, 0] > 0).astype(int))
        >>> s.n_rows, s.progressive_loss < 0.5
        (10000, True)
        """
        # Imported here: they load the training engine, which importing an estimator should not.
        from daskml_dist.streaming.checkpoints import SavingSchedule
        from daskml_dist.streaming.session import Session
        from daskml_dist.training.job import INLINE

        if self._survival_loss is not None:
            raise InvalidParameterError(
                f"loss={self._survival_loss!r} accepts times in several forms, which streams do "
                "not support. Learn batch by batch with partial_fit."
            )
        if client is not None and not (isinstance(client, str) and client == INLINE):
            check_client(client, "a stream", '"inline" or None for a stream in this process')
        else:
            client = None
        if publish is not None and not callable(publish):
            raise InvalidParameterError(
                f"publish={publish!r}: give a function of a fitted estimator, or None."
            )
        check_count("publish_every", publish_every)
        if checkpoint is None:
            # Otherwise offsets would never be committed, without a word.
            for name, value in (
                ("checkpoint_seconds", checkpoint_seconds), ("on_checkpoint", on_checkpoint)
            ):  # fmt: skip
                if value is not None:
                    raise InvalidParameterError(
                        f"{name}={value!r} without a checkpoint: the stream is never saved. Set "
                        f'checkpoint=Checkpoint("stream.npz"), or leave {name} out.'
                    )
        saving = None if checkpoint is None else SavingSchedule(checkpoint, checkpoint_seconds)
        return Session(
            self, classes=classes, saving=saving, on_checkpoint=on_checkpoint,
            watch=DriftWatch(drift, on_drift), publish=publish, publish_every=publish_every,
            client=client,
        )  # fmt: skip

    def _check_no_stream(self, method: str) -> None:
        """Raise if a stream is open: it would undo the changes of `method` to the parameters."""
        if vars(self).get("_stream") is not None:
            raise InvalidParameterError(
                f"{method} while this estimator learns from a stream, which would overwrite the "
                "result. Leave the stream's context first, or use a copy: copy.copy(estimator)."
            )

    # -- hooks that some kinds of estimators override --------------------------------------------

    def _stream_inputs(
        self, X: Any, y: Any, sample_weight: Any, is_continued: bool
    ) -> tuple[Any, ...]:
        """Return the inputs of a call, checked like a fit's; `is_continued`: not the first call."""
        inputs: tuple[Any, ...] = self._prepare_inputs(X, y, sample_weight)
        if is_continued:
            self._check_target(inputs[1])
            # A bare object with only the names: reading an attribute of the estimator itself would
            # set all fitted attributes from the stream.
            stand_in: Any = object.__new__(type(self))
            names = vars(self).get("feature_names_in_")
            vars(stand_in).update({} if names is None else {"feature_names_in_": names})
            check_feature_names(stand_in, inputs[0], reset=False)
        return inputs

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> StartedStream:
        """Return the stream, planned by its first rows; nothing is learned yet."""
        from daskml_dist.streaming.start import plan_stream

        return plan_stream(self, X, y, sample_weight, classes)

    def _resume_stream(self, saved: SavedStream, path: Any, classes: Any) -> StartedStream:
        """Return the stream that continues from its saved state."""
        from daskml_dist.streaming.start import plan_resumed_stream

        return plan_resumed_stream(self, saved, path, classes)

    def _rule_of_rows(self, rule: UpdateRule, n_rows: int) -> UpdateRule:
        """Return the rule of steps of `n_rows` rows; by default the same for any number."""
        return rule

    def _show_stream(
        self, started: StartedStream, state: ShardState, progress: ProgressiveLoss
    ) -> None:
        """Set the fitted attributes to the current state of a stream."""
        self._set_learned(state, started.fit.steps.model, started.rows)
        self.n_iter_ = 1  # a stream is one pass, as after `partial_fit`
        self.t_ = started.n_seen(progress)

    # Fitted attributes of an open stream are set when they are read: copying the parameters after
    # each call would often cost more than its step.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            session = vars(self).get("_stream")
            fitted = name.endswith("_") or name.startswith("_")
            if session is not None and fitted and not name.startswith("__"):
                session.show()
                if name in vars(self):
                    return vars(self)[name]
            # Raises again, with the error of a method that exists only for some losses.
            return super().__getattribute__(name)

    def __getstate__(self) -> Any:
        # A pickle or copy of an estimator with an open stream has the state learned so far, without
        # the session, which holds threads and connections.
        session = vars(self).get("_stream")
        if session is not None:
            session.show()
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_stream"}


def _check_compression(compressor: Compressor, policy: Policy) -> None:
    """Raise for a compressor that the policy does not use, or with which much would be lost."""
    argument = f"compression={compressor.name!r}"
    if not policy.compresses:
        names = [name for name, kind in POLICIES.items() if kind().compresses]
        # The residual of a compression waits for the next message, which a client may never send.
        shared = "threads write directly to shared parameters"
        reason = "drawn clients send whole parameters" if policy.draws_lanes else shared
        if policy.sums_within_hosts:
            reason = "hosts send whole parameters"
        raise InvalidParameterError(
            f"{argument} compresses gradients, or what lanes with their own steps send when they "
            f"synchronise. Under {policy.name!r} {reason}. Use one of the policies {names}, or "
            "compression=None."
        )
    if compressor.needs_allreduce and not policy.sums_gradients:
        raise InvalidParameterError(
            f"{argument}: {compressor!r} only works if all lanes sum their gradients at each step. "
            f"Use policy='allreduce', or another compression under {policy.name!r}, such as "
            "'8bit'."
        )
    # The residual of a lane waits for its next message, and there is none.
    if policy.averages and not policy.average_every and not compressor.keeps_all_entries:
        names = [name for name, kind in COMPRESSORS.items() if kind.keeps_all_entries]
        raise InvalidParameterError(
            f"{argument} under {policy.name!r}: lanes send only one message, at the end, and "
            f"compression would lose most of it. Use one of {names}, or policy='local'."
        )


def make_step_settings(
    params: dict[str, Any], policy: str | Policy | None, run: RunSettings
) -> Settings:
    """Return the settings of checked parameters; `policy` overrides theirs for one fit."""
    early, average, rate = (params[name] for name in ("early_stopping", "average", "learning_rate"))
    policy = get_policy(params["policy"] if policy is None else policy)
    penalty = get_penalty(params["penalty"], params["alpha"], params["l1_ratio"])
    optimizer = get_optimizer(params["optimizer"])
    # Optimizers for l1 keep a dual of the penalty for each parameter; threads that race on shared
    # parameters would lose updates of it.
    if penalty.l1 and not policy.uses_threads:
        optimizer = optimizer.under_l1()
    if run.compression is not None:
        _check_compression(run.compression, policy)
    schedule = get_schedule(
        rate,
        default=optimizer.default_learning_rate,
        alpha=params["alpha"],
        max_iter=params["max_iter"],
    )
    pipeline = params["pipeline"]
    if not (pipeline is None or isinstance(pipeline, Pipeline)):
        raise InvalidParameterError(
            f"pipeline={pipeline!r}: give a Pipeline, such as Pipeline(stages=2), or None."
        )
    settings = Settings(
        penalty=penalty,
        optimizer=optimizer,
        schedule=schedule,
        policy=policy,
        max_iter=int(params["max_iter"]),
        tol=params["tol"],
        n_iter_no_change=int(params["n_iter_no_change"]),
        shuffle=bool(params["shuffle"]),
        batch_size=params["batch_size"],
        validation_fraction=float(params["validation_fraction"]) if early else 0.0,
        average=int(average) if average else None,
        class_weight=check_class_weight(params["class_weight"]),
        seed=seed_of(params["random_state"]),
        auto_rate=isinstance(rate, str) and rate == "auto",
        calibrates=True,  # except for `partial_fit` and streams, which replace it
        run=run,
        clip=params["clip"],
        micro_batch=params["micro_batch_size"],
        groups=params["groups"],
        pipeline=pipeline,
        dtype=None if params["dtype"] is None else str(np.dtype(params["dtype"])),
        privacy=params["privacy"],
    )
    if run.shard == "features":
        check_column_settings(settings)
    return settings
