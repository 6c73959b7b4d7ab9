"""Callbacks that end a fit early: a time limit, Optuna's pruner, or no more improvement.

`TimeLimit` and `EarlyStopping` call ``run.stop()``; the fit then ends as if it had converged.
`OptunaPruning` raises, since Optuna does not use the value of a pruned trial.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

import numpy as np
from dask.utils import parse_timedelta

from daskml_dist.callbacks.base import FitCallback, find_measure, is_more_better
from daskml_dist.errors import DaskMLDistError, InvalidParameterError


class TimeLimit(FitCallback):
    """Callback that ends a fit before it takes longer than a limit.

    A fit ends after a whole pass: it stops when another pass, if it took as long as the longest so
    far, would exceed the limit. The first pass is always made. The estimator is fitted as if
    `max_iter` had been the number of passes made, without a warning about convergence.

    Parameters
    ----------
    limit : float, str or datetime.timedelta
        Seconds, or a duration in Dask's notation, such as ``"10 minutes"``; > 0. The time counts
        from the first step, after the data has been read.

    Raises
    ------
    InvalidParameterError
        `limit` is not a positive duration.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.callbacks import TimeLimit
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> limit = TimeLimit('10 minutes')
    >>> clf = SGDClassifier(max_iter=3, tol=None, callbacks=[limit], random_state=0)
    >>> clf.fit(X, y).n_iter_
    3
    """

    def __init__(self, limit: float | str | timedelta) -> None:
        self.limit = limit
        self._seconds = _parse_seconds(limit)
        # Monotonic times of the start of the fit and of the end of the last pass, and the duration
        # of the longest pass, in seconds.
        self._start_time = self._last = self._longest = 0.0

    def on_fit_begin(self, run: Any) -> None:
        """Start the clock.

        Parameters
        ----------
        run : object
        """
        self._start_time = self._last = time.monotonic()
        self._longest = 0.0

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """End the fit if another pass would exceed the limit.

        Parameters
        ----------
        run : object
        record : dict
        """
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        # Passes vary; the longest so far is the safer guess for the next one.
        if now + self._longest > self._start_time + self._seconds:
            run.stop()


def _parse_seconds(limit: Any) -> float:
    """Return a time limit in seconds; raise if it is not a duration > 0."""
    try:
        seconds = float(parse_timedelta(limit))
    except Exception:
        # Dask raises errors of several classes that do not name the parameter: a better one
        # follows.
        seconds = 0.0
    if isinstance(limit, bool) or not 0 < seconds < float("inf"):
        raise InvalidParameterError(
            f'TimeLimit(limit={limit!r}): give seconds > 0, or a time such as "10 minutes".'
        )
    return seconds


class OptunaPruning(FitCallback):
    """Callback that reports each pass to a trial of Optuna, and ends the fit if it is pruned.

    Needs ``pip install "daskml-dist[optuna]"``. The step of a report is the number of its pass. A
    pruned fit raises ``optuna.TrialPruned``, which the study expects from its objective, and leaves
    nothing on the cluster. Use one trial for one fit: Optuna ignores the reports of a second one,
    with a warning.

    Parameters
    ----------
    trial : optuna.trial.Trial
        Trial passed to the objective. Copies of the callback share it.
    monitor : str, default="eval_score"
        A key of the history's records: ``"eval_score"`` (on the rows of ``fit(eval_set=...)``) or
        ``"val_score"`` (on held-out rows, with ``early_stopping=True``), which the study must
        maximise; or ``"loss"``, which it must minimise.

    Raises
    ------
    InvalidParameterError
        `trial` is not a trial, or its study optimises `monitor` in the wrong direction. At the end
        of the first pass: the fit does not record `monitor`.
    DaskMLDistError
        At the start of the fit: Optuna is not installed.

    References
    ----------
    Akiba, T. et al. (2019). Optuna: a next-generation hyperparameter optimization framework. KDD,
    2623-2631.

    Examples
    --------
    >>> from daskml_dist.callbacks import OptunaPruning
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(callbacks=[OptunaPruning(trial)])  # doctest: +SKIP
    """

    def __init__(self, trial: Any, monitor: str = "eval_score") -> None:
        if not hasattr(trial, "report") or not hasattr(trial, "should_prune"):
            raise InvalidParameterError(
                f"OptunaPruning(trial=...): it is a {type(trial).__name__}. Give the trial that "
                "Optuna passes to the objective."
            )
        _check_direction(trial, monitor)
        self.trial = trial
        self.monitor = monitor
        # Optuna's own exception after `on_fit_begin` has imported it.
        self._pruned_error: type[Exception] = DaskMLDistError

    def on_fit_begin(self, run: Any) -> None:
        """Import Optuna's exception for pruned trials.

        Parameters
        ----------
        run : object
        """
        try:
            from optuna import TrialPruned
        except ImportError as error:
            raise DaskMLDistError(
                "The callback OptunaPruning needs Optuna: pip install 'daskml-dist[optuna]'; "
                "HyperbandSearchCV needs no extra package."
            ) from error
        self._pruned_error = TrialPruned

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Report a pass, and raise Optuna's exception if the pruner ends the trial.

        Parameters
        ----------
        run : object
        record : dict
        """
        value = find_measure(record, self.monitor, "OptunaPruning")
        self.trial.report(value, record["pass"])
        if self.trial.should_prune():
            raise self._pruned_error(
                f"Pruned after pass {record['pass']}: {self.monitor} {value:.6g}."
            )


def _check_direction(trial: Any, monitor: str) -> None:
    """Raise if a trial's study optimises in the wrong direction, and so would prune the best."""
    # Trials without a study, such as optuna.trial.FixedTrial, are never pruned.
    directions = getattr(getattr(trial, "study", None), "directions", None)
    if directions is None:
        return
    if len(directions) != 1:
        raise InvalidParameterError(
            "OptunaPruning: Optuna's pruners only support studies with one objective. Leave the "
            "callback out, or create the study with one direction."
        )
    direction = "maximize" if is_more_better(monitor) else "minimize"
    if directions[0].name.lower() != direction:
        raise InvalidParameterError(
            f"OptunaPruning(monitor={monitor!r}): the study is to {directions[0].name.lower()}, so "
            f"its pruner would end the best fits. Create it with direction={direction!r}, or "
            "monitor another measure."
        )


class EarlyStopping(FitCallback):
    """Callback that ends a fit once a measure stops improving.

    Under policies whose lanes run at their own pace, lanes finish a pass that they have already
    begun. An estimator's own `tol` and ``early_stopping=True`` also end a fit; set ``tol=None`` to
    use only this callback.

    Parameters
    ----------
    monitor : str, default="eval_score"
        A key of the history's records: ``"eval_score"`` (on the rows of ``fit(eval_set=...)``) or
        ``"val_score"`` (on held-out rows, with ``early_stopping=True``), of which larger values are
        better; or ``"loss"``, of which smaller values are better.
    patience : int, default=5
        Number of consecutive passes without an improvement after which the fit ends; >= 1.
    min_delta : float, default=0.0
        A pass is an improvement if it exceeds the best value so far by more than this; >= 0.
    restore_best : bool, default=False
        Whether the fit ends with the parameters of the best pass instead of the last pass. They are
        sent to the client after each pass. Only fits by gradient steps can do so.

    Raises
    ------
    InvalidParameterError
        A parameter is invalid. At the end of the first pass: the fit does not record `monitor`.

    References
    ----------
    Prechelt, L. (1998). Early stopping, but when? Neural Networks: Tricks of the Trade, 55-69.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.callbacks import EarlyStopping
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> stop = EarlyStopping(patience=2)
    >>> clf = SGDClassifier(tol=None, callbacks=[stop], random_state=0)
    >>> clf.fit(X, y, eval_set=(X, y)).n_iter_ < 20
    True
    """

    def __init__(
        self,
        monitor: str = "eval_score",
        patience: int = 5,
        min_delta: float = 0.0,
        restore_best: bool = False,
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InvalidParameterError(
                f"EarlyStopping(patience={patience!r}): give an integer >= 1, in passes."
            )
        if not 0 <= min_delta < math.inf:
            raise InvalidParameterError(
                f"EarlyStopping(min_delta={min_delta!r}): give a number >= 0."
            )
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.restore_best = restore_best
        # The best value so far (negated if smaller is better), the number of passes since then,
        # and, with restore_best, the parameters of that pass.
        self._best, self._stale = -math.inf, 0
        self._best_parameters: Any = None

    @property
    def needs_parameters(self) -> bool:
        """Return whether the fit must send its parameters to the client after each pass."""
        return self.restore_best

    def on_fit_begin(self, run: Any) -> None:
        """Reset the state of the last fit.

        Parameters
        ----------
        run : object
        """
        self._best, self._stale, self._best_parameters = -math.inf, 0, None

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """End the fit if the measure has not improved for `patience` passes.

        Parameters
        ----------
        run : object
        record : dict
        """
        value = find_measure(record, self.monitor, "EarlyStopping")
        signed = value if is_more_better(self.monitor) else -value
        # A comparison with NaN is False, so NaN is never an improvement.
        if signed > self._best + self.min_delta:
            self._best, self._stale = signed, 0
            # A copy, because the fit may continue in the same memory.
            if self.restore_best:
                self._best_parameters = np.copy(run.parameters())
            return
        self._stale += 1
        if self._stale >= self.patience:
            run.stop()

    def on_fit_end(self, run: Any) -> None:
        """Pass the best parameters to the fit.

        Parameters
        ----------
        run : object
        """
        best, self._best_parameters = self._best_parameters, None
        if best is not None:
            run.end_with(best)
