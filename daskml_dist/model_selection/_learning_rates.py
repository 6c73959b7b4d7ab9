"""Range test of learning rates: short fits to a sample of the rows, one for each rate.

After L. N. Smith, "Cyclical learning rates for training neural networks", WACV 2017, section 3.3,
except that rates do not rise within a single fit, in which each step starts from the result of all
smaller rates. Here each rate starts from the same parameters. Short fits of linear models are
columns of one batched fit, whose passes train all rates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import as_collection
from daskml_dist.diagnostics.plots.searches import learning_rates
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.estimators.batched_fits.gradient_steps import (
    BatchedSteps,
    StepCandidate,
    group_step_estimators,
)
from daskml_dist.estimators.batched_fits.solver_rounds import NotBatchableError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.models.batched import AllRowsAssignment
from daskml_dist.parameters.run import Run
from daskml_dist.training.job import FitJob
from daskml_dist.training.learning_rate_search import count_step_rows, draw_sample_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rates that are tried by default: three in each power of ten, from 1e-7 to 100.
_DEFAULT_RATES = np.logspace(-7, 2, 28)
#: Minimum number of steps of each short fit: passes over the sample are added until it is reached.
_MIN_STEPS = 32
#: Smallest decrease of the loss, as a share of the loss at the smallest rate, for any suggestion.
_LEAST_GAIN = 1e-3
#: Share of the best decrease of the loss that is enough: the smallest rate with it is suggested,
#: since it is farther from the rates that diverge.
_GAIN_SHARE = 0.9
#: Parameter of most estimators; those with scikit-learn's `learning_rate_init` use this name for
#: the schedule.
_RATE_PARAMETER = "learning_rate"


@dataclass(frozen=True, eq=False)
class LearningRates:
    """Result of a learning-rate range test: losses of short fits by learning rate.

    Attributes
    ----------
    rates : ndarray of float64 of shape (n_rates,)
        In ascending order.
    losses : ndarray of float64 of shape (n_rates,)
        Mean training loss of the last pass over the sample, with each batch's loss before its step;
        infinite if the fit diverged.
    suggestion : float or None
        Smallest rate whose loss is below that of the smallest rate by nine tenths of the best
        difference. None if no loss is below it by a thousandth of it.
    parameter : str
        Name of the estimator's parameter for the rate.
    batch_size, n_rows : int
        Number of rows of a step, as in a fit to all rows, and of the sample.

    Examples
    --------
    >>> from daskml_dist.model_selection import learning_rate_range
    >>> found = learning_rate_range(clf, X, y)  # doctest: +SKIP
    >>> found.suggestion  # doctest: +SKIP
    """

    rates: NDArray[np.float64]
    losses: NDArray[np.float64]
    suggestion: float | None
    parameter: str
    batch_size: int
    n_rows: int

    def __repr__(self) -> str:
        suggestion = "none" if self.suggestion is None else f"{self.suggestion:.3g}"
        span = f"{self.rates[0]:.3g} to {self.rates[-1]:.3g}"
        return f"<LearningRates: {len(self.rates)} from {span}, suggestion {suggestion}>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the losses; see :func:`daskml_dist.diagnostics.plots.learning_rates`.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None

        Returns
        -------
        matplotlib.axes.Axes
        """
        return learning_rates(self, ax=ax)


@suggest_arguments
def learning_rate_range(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    rates: Any = None,
    n_rows: int = 8192,
    client: Any = None,
) -> LearningRates:
    """Try learning rates on a sample of the rows, and suggest one.

    The client gets a random sample of all rows. Each rate then has a separate short fit, from the
    same initial parameters and over the same batches, whose size is that of a step of the fit to
    all rows. (Smith raises the rate within one fit, in which each step starts from the result of
    smaller rates; separate fits show the effect of each rate alone.) Fits of linear models are
    batched if possible, with the same losses.

    Parameters
    ----------
    estimator : estimator trained by gradient steps
        `SGDClassifier`, `SGDRegressor`, `MLPClassifier`, `TorchClassifier`, ... It is not fitted.
    X, y, sample_weight
        As for its ``fit``.
    rates : array-like of shape (n_rates,), or None
        Rates to try, > 0. None: three in each power of ten from 1e-7 to 100.
    n_rows : int, default=8192
        Most rows of the sample; >= 1.
    client : distributed.Client or "inline", optional
        As for ``fit``: reads the rows.

    Returns
    -------
    LearningRates
        With ``rates``, ``losses``, ``suggestion`` and ``plot()``.

    Raises
    ------
    InvalidParameterError
        The estimator is not trained by gradient steps on rows and targets, or an argument is
        invalid.
    InvalidDataError
        The estimator could not be fitted to these rows.

    References
    ----------
    Smith, L. N. (2017). Cyclical learning rates for training neural networks. WACV, 464-472
    (arXiv:1506.01186), section 3.3.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> from daskml_dist.model_selection import learning_rate_range
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> found = learning_rate_range(SGDClassifier(random_state=0), X, y)
    >>> clf = SGDClassifier(learning_rate=found.suggestion, random_state=0).fit(X, y)
    """
    if not (isinstance(estimator, BaseSteps) and estimator._needs_target):
        raise InvalidParameterError(
            f"{type(estimator).__name__} has no learning rate to find: give an estimator trained "
            "by gradient steps on X and y, such as SGDClassifier or MLPRegressor."
        )
    if isinstance(n_rows, bool) or not isinstance(n_rows, int | np.integer) or n_rows < 1:
        raise InvalidParameterError(f"n_rows={n_rows!r}: give a number of rows, >= 1.")
    tried_rates = _check_rates(_DEFAULT_RATES if rates is None else rates)
    block, batch, seed = _draw_sample(clone(estimator), X, y, sample_weight, int(n_rows), client)
    name = (
        "learning_rate_init" if "learning_rate_init" in estimator.get_params() else _RATE_PARAMETER
    )
    batch = min(batch, block.n_rows)
    passes = math.ceil(_MIN_STEPS / max(1, block.n_rows // batch))
    short_fits = [
        _make_short_fit(estimator, name, rate, batch, passes, seed) for rate in tried_rates
    ]
    with _ignore_fit_warnings():
        losses = _fit_batched_to_losses(short_fits, block, passes)
    if losses is None:
        losses = np.array([_fit_to_loss(short, block) for short in short_fits])
    return LearningRates(
        tried_rates, losses, _suggest_rate(tried_rates, losses), name, batch, block.n_rows
    )


# --- the sample, and short fits on it ----------------------------------------------------------


def _check_rates(user_rates: Any) -> NDArray[np.float64]:
    """Return the sorted rates, which must be positive numbers."""
    try:
        rates = np.sort(np.asarray(user_rates, dtype=np.float64))
    except (TypeError, ValueError):
        rates = np.empty(0)
    if rates.ndim != 1 or not len(rates) or not (np.isfinite(rates).all() and rates[0] > 0):
        raise InvalidParameterError(f"rates={user_rates!r}: give a sequence of numbers > 0.")
    return rates


def _draw_sample(
    estimator: Any, X: Any, y: Any, sample_weight: Any, max_rows: int, client: Any
) -> tuple[Block, int, int]:
    """Return a sample of the rows, the rows of a step of the fit to all rows, and its seed."""
    # Without a search of the rate, which is the first part of a fit with learning_rate="auto".
    settings = replace(estimator._check_settings(None), auto_rate=False)
    collection = estimator._make_collection(X, y, sample_weight, reset=True)
    with FitJob(collection, client, settings.run) as job:
        weighted = collection.is_weighted
        rows = job.rows = estimator._dataset_info(job, None, settings.class_weight, weighted)
        # Planned, but not trained: the plan contains the number of rows of a step of the fit.
        fit = estimator._plan_fit(job, settings, estimator._model(rows, None), None)
        job.lay_out_lanes(1)
        block = draw_sample_rows(job.engine, job.lanes, max_rows, settings.seed, 0.0)
        return block, count_step_rows(fit), settings.seed


def _make_short_fit(
    estimator: Any, name: str, rate: float, batch: int, passes: int, seed: int
) -> Any:
    """Return an unfitted estimator of a short fit by a rate: one lane, plain steps, no stopping."""
    # Replaced are parameters that would change the rate during the fit, stop it early, or give
    # other batches to each rate, if the estimator has them.
    fixed_params = {
        "batch_size": batch, "max_iter": passes, "random_state": seed, "run": Run(n_lanes=1),
        "policy": "sync", "pipeline": None, "warm_start": False, "early_stopping": False,
        "average": False, "callbacks": None, "verbose": 0, "checkpoint": None, "schedule": None,
        "n_iter_no_change": passes + 1, "eta0": None,
    }  # fmt: skip
    fixed_params[name] = float(rate)
    if name != _RATE_PARAMETER:
        fixed_params[_RATE_PARAMETER] = "constant"
    params = estimator.get_params(deep=False)
    return clone(estimator).set_params(**{k: v for k, v in fixed_params.items() if k in params})


def _fit_to_loss(estimator: Any, block: Block) -> float:
    """Return the mean training loss of a short fit's last pass; infinite if it diverged."""
    try:
        with _ignore_fit_warnings():
            estimator.fit(block.rows, block.y, block.sample_weight, client="inline")
    except DivergedError:
        return math.inf
    return _replace_nonfinite(float(estimator.history_.records[-1]["loss"]))


def _replace_nonfinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


@contextmanager
def _ignore_fit_warnings() -> Iterator[None]:
    """Ignore warnings of convergence and overflow, which fits by far too large rates raise."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _suggest_rate(rates: NDArray[np.float64], losses: NDArray[np.float64]) -> float | None:
    """Return the smallest rate with nearly the best decrease of the loss; None without any."""
    # Measured from the smallest rate's loss, at which a short fit hardly changes.
    gains = losses[0] - losses
    if not (np.isfinite(losses[0]) and gains.max() > _LEAST_GAIN * abs(losses[0])):
        return None
    return float(rates[np.argmax(gains >= _GAIN_SHARE * gains.max())])


# --- short fits as one -------------------------------------------------------------------------


def _fit_batched_to_losses(
    shorts: Sequence[Any], block: Block, passes: int
) -> NDArray[np.float64] | None:
    """Return the losses of short fits made as one batch; None if they cannot be batched."""
    batches = group_step_estimators(shorts)
    if batches is None or len(batches) != 1 or block.y is None or block.y.ndim > 1:
        return None
    classes, y = None, block.y
    if shorts[0]._classification:
        classes, y = np.unique(y, return_inverse=True)
    targets = np.column_stack([y, np.ones(len(y))]).astype(np.float64)  # 1: the code 0, plus 1
    collection = as_collection(block.rows, targets, block.sample_weight, multi_output=True)
    # With a tolerance a batch would be trained pass by pass, for the stopping rules.
    batch = BatchedSteps(
        [short.set_params(tol=None) for short in shorts], AllRowsAssignment(), classes
    )
    try:
        with batch.open_candidates(collection, client="inline") as columns:
            # The last pass is made separately, so that only its losses are recorded.
            batch.advance(columns, passes - 1)
            batch.advance(columns, passes)
    except NotBatchableError:
        return None
    return np.array([_read_last_loss(column, passes) for column in columns])


def _read_last_loss(column: StepCandidate, passes: int) -> float:
    """Return the mean training loss of the last pass; infinite if the fit diverged."""
    state = [column.w, *column.opt_state.values()]
    if column.n_iter < passes or not all(a is not None and np.isfinite(a).all() for a in state):
        return math.inf
    return _replace_nonfinite(float(column.records[-1]["loss"]))
