"""Trials of Optuna that end early."""

from __future__ import annotations

from typing import Any

from daskml_dist.callbacks.base import FitCallback, measure_of, more_is_better
from daskml_dist.errors import DaskMLDistError, InvalidParameterError

__all__ = ["OptunaPruning"]


class OptunaPruning(FitCallback):
    """Callback that reports each pass to a trial of Optuna, and ends the fit where this is pruned.

    Needs ``pip install "daskml-dist[optuna]"``. The step of a report is its pass. A pruned fit
    raises ``optuna.TrialPruned``, which the study expects of its objective, and leaves nothing on
    the cluster. A trial is one fit: reports of a second one are ignored by Optuna, with a warning.

    Parameters
    ----------
    trial : optuna.trial.Trial
        Trial that the objective was called with. Copies of the callback share it.
    monitor : str, default="eval_score"
        A key of the history's records: ``"eval_score"`` (of the rows of ``fit(eval_set=...)``),
        ``"val_score"`` (of rows held out, with ``early_stopping=True``), of which a study is to
        maximise; or ``"loss"``, which it is to minimise.

    Raises
    ------
    InvalidParameterError
        `trial` is none, or its study seeks the other end of `monitor`; as the first pass ends: it
        has no such measure.
    DaskMLDistError
        As the fit begins: Optuna is not installed.

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
                "Optuna calls the objective with."
            )
        _check_direction(trial, monitor)
        self.trial = trial
        self.monitor = monitor
        self._pruned: type[Exception] = DaskMLDistError

    def on_fit_begin(self, run: Any) -> None:
        """Look for Optuna.

        Parameters
        ----------
        run : object
        """
        try:
            from optuna import TrialPruned
        except ImportError as error:
            raise DaskMLDistError(
                "The callback OptunaPruning needs Optuna: pip install 'daskml-dist[optuna]'; "
                "HyperbandSearchCV needs nothing."
            ) from error
        self._pruned = TrialPruned

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Report a pass, and end the fit where the pruner says so.

        Parameters
        ----------
        run : object
        record : dict
        """
        value = measure_of(record, self.monitor, "OptunaPruning")
        self.trial.report(value, record["pass"])
        if self.trial.should_prune():
            raise self._pruned(f"Pruned after pass {record['pass']}: {self.monitor} {value:.6g}.")


def _check_direction(trial: Any, monitor: str) -> None:
    """Refuse a study whose pruner would end the best trials."""
    directions = getattr(getattr(trial, "study", None), "directions", None)
    if directions is None:  # a trial of no study, as for trying an objective, is never pruned
        return
    if len(directions) != 1:
        raise InvalidParameterError(
            "OptunaPruning: pruners of Optuna know studies of one objective alone. Leave the "
            "callback out, or create the study with one direction."
        )
    wanted = "maximize" if more_is_better(monitor) else "minimize"
    if directions[0].name.lower() != wanted:
        raise InvalidParameterError(
            f"OptunaPruning(monitor={monitor!r}): the study is to {directions[0].name.lower()}, so "
            f"its pruner would end the best fits. Create it with direction={wanted!r}, or monitor "
            "another measure."
        )
