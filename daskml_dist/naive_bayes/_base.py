"""`GaussianNB`, and the base class of all naive Bayes classifiers.

A fit is one pass that sums the rows of each class. The sums are kept, so that `partial_fit` can add
the sums of more rows and then recompute the fitted parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.inference.row_mapping import write_in_place
from daskml_dist.models.naive_bayes import GaussianLogLikelihood, RowsByClass, merge_moments
from daskml_dist.parameters.checks import check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import SinglePassSolver, Solution, Statistic
from daskml_dist.solvers.naive_bayes import ClassMoments
from daskml_dist.training.dataset_info import DatasetInfo

Array = NDArray[np.float64]


class BaseNB(BaseClassifier, BaseRounds):
    """Base class of naive Bayes classifiers: one pass, whose sums are kept for more rows."""

    _min_classes = 1
    #: Whether a second ``partial_fit`` with the same rows counts them twice.
    _adds_up_rows = True
    #: Sums over all rows so far, with the user's weights; one row for each class.
    _sums: Array

    @abstractmethod
    def _statistic(self) -> Statistic:
        """Return the statistic that the pass sums."""

    @abstractmethod
    def _unscaled(self, total: Array, scale: float | None) -> Array:
        """Return sums with the user's weights, given sums with weights multiplied by `scale`."""

    @abstractmethod
    def _update(self, total: Array) -> None:
        """Set the fitted attributes, given the sums of all rows so far."""

    def _clear_fitted(self) -> None:
        self.__dict__.pop("_sums", None)

    def _set_n_iter(self, solution: Solution) -> None:
        """Set nothing: there are no iterations."""

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        client: Any = None,
    ) -> Self:
        """Add more rows; the result equals that of one fit on all rows so far.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), optional
            All labels that will ever occur; needed in the first call.

        Returns
        -------
        self
        """
        first = not hasattr(self, "_sums")
        classes = self._all_classes(classes, first)
        self._fit(X, y, sample_weight, client, classes=classes, reset=first)
        return self

    def _problem(self, rows: DatasetInfo) -> tuple[RowsByClass, SinglePassSolver]:
        assert rows.classes is not None
        n_features, n_classes = rows.summary.n_features, len(rows.classes)
        self._check_sizes(n_features, n_classes)
        return RowsByClass(n_features, n_classes), SinglePassSolver(self._statistic())

    def _check_sizes(self, n_features: int, n_classes: int) -> None:
        """Check the parameters that have an entry for each class or feature."""

    def _set_fitted(self, solution: Solution, model: RowsByClass, rows: DatasetInfo) -> None:
        # Each fit scales its weights to a mean of 1; sums of several fits use the user's weights.
        total = self._unscaled(solution.w.copy(), rows.weight_scale)
        if hasattr(self, "_sums"):
            self._statistic().merge(total, self._sums)
        assert rows.classes is not None
        self.classes_ = rows.classes
        self.n_features_in_ = model.n_features
        self._update(total)
        self._sums = total

    # -- prediction ----------------------------------------------------------------------------

    def predict_joint_log_proba(self, X: Any) -> Any:
        """Return the joint log-likelihood ``log P(x, c)`` of each row and class.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)
        """
        return self._map_classes(np.asarray, X)

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of :meth:`predict_proba`; same parameters and shape."""
        return self._map_classes(_compute_log_proba, X)

    def predict_proba(self, X: Any) -> Any:
        """Return each class's probability; parameters as in :meth:`predict_joint_log_proba`."""
        return self._map_classes(_compute_proba, X)

    def _map_classes(self, function: Any, X: Any) -> Any:
        """Return a function of the joint log-likelihoods of rows; lazy if X is lazy."""
        self._check_fitted(X)
        return self._map_raw_predictions(
            write_in_place(function), X, np.float64, len(self.classes_)
        )


def _compute_log_proba(raw: Array) -> Array:
    return np.asarray(log_softmax(raw, axis=1))


def _compute_proba(raw: Array) -> Array:
    # Bayes' theorem: P(c | x) is the softmax of log P(x, c). The result is equal, to the bit, to
    # that of `scipy.special.softmax`, which takes three times as long for one row.
    odds: Array = raw - np.maximum.reduce(raw, axis=1, keepdims=True)
    np.exp(odds, out=odds)
    odds /= np.add.reduce(odds, axis=1, keepdims=True)
    return odds


def check_priors(name: str, priors: Any, n_classes: int | None = None) -> Array:
    """Check prior probabilities and return them as an array; raise unless there are `n_classes`."""
    try:
        values = np.asarray([] if priors is None else priors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{name}={priors!r}: use a list of numbers.") from error
    if not (values >= 0).all() or values.ndim != 1:
        raise InvalidParameterError(
            f"Priors must be non-negative: {name}={priors!r}. Use a list of numbers >= 0."
        )
    if priors is not None and n_classes not in (None, len(values)):
        raise InvalidParameterError(
            f"Number of priors must match number of classes: {name} has {len(values)} entries, and "
            f"there are {n_classes} classes."
        )
    return values


class GaussianNB(BaseNB):
    """Naive Bayes with a normal distribution of each feature in each class.

    As in scikit-learn, except that :meth:`partial_fit` smooths with the variance of all rows so
    far, so that fits in parts give the same result as one fit. Variances are merged from those of a
    few rows at a time (Chan, Golub and LeVeque), so a large mean loses no digits. A fit reads only
    the stored entries of sparse rows; on a GPU, and to predict, they are made dense, a few at a
    time.

    Parameters
    ----------
    priors : array-like of shape (n_classes,), optional
        Prior probabilities of the classes; by default their shares of the rows.
    var_smoothing : float, default=1e-9
        Share of the largest variance of a feature; it is added to all variances.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    class_count_ : ndarray of float64 of shape (n_classes,)
        Weight of the rows of each class.
    class_prior_ : ndarray of float64 of shape (n_classes,)
    theta_, var_ : ndarray of float64 of shape (n_classes, n_features)
        Mean and variance of each feature in each class.
    epsilon_ : float
        Number added to all variances.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> GaussianNB().fit(X, y).score(X, y)
    0.96
    """

    theta_: Array
    var_: Array
    class_prior_: Array

    def __init__(
        self,
        *,
        priors: Any = None,
        var_smoothing: float = 1e-9,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.priors = priors
        self.var_smoothing = var_smoothing
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        check_number("var_smoothing", self.var_smoothing)
        if self.priors is not None:
            priors = check_priors("priors", self.priors)
            if not np.isclose(priors.sum(), 1.0):
                raise InvalidParameterError("The sum of the priors should be 1: divide by it.")

    def _check_sizes(self, n_features: int, n_classes: int) -> None:
        check_priors("priors", self.priors, n_classes)

    def _statistic(self) -> Statistic:
        return ClassMoments()

    def _unscaled(self, total: Array, scale: float | None) -> Array:
        # The last group holds all rows with weight 1, for the smoothing: scikit-learn uses the
        # unweighted variance of X.
        if scale is None:
            # Without weights the pass has left this group empty: it is merged from the classes.
            for group in total[:-1]:
                merge_moments(total[-1:], group[None])
            return total
        n_features = total.shape[1] // 2
        # Means do not depend on the scale of the weights.
        total[:-1, 0] /= scale
        total[:-1, 1 + n_features :] /= scale
        return total

    def _update(self, total: Array) -> None:
        # A row of `total` holds the weight, the means, and the sums of squared deviations.
        n_features = self.n_features_in_
        weight, squares = total[:, :1], total[:, 1 + n_features :]
        var = np.divide(squares, weight, out=np.zeros_like(squares), where=weight > 0)
        # Added to all variances, so that a feature that is constant in a class has a density.
        self.epsilon_ = float(self.var_smoothing * var[-1].max())
        self.class_count_ = weight[:-1, 0].copy()
        self.theta_ = total[:-1, 1 : 1 + n_features].copy()
        self.var_ = var[:-1] + self.epsilon_
        if self.priors is None:
            self.class_prior_ = self.class_count_ / self.class_count_.sum()
        else:
            self.class_prior_ = np.asarray(self.priors, dtype=np.float64)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        with np.errstate(divide="ignore"):
            log_prior = np.log(self.class_prior_)
        return GaussianLogLikelihood(self.theta_, self.var_, log_prior)
