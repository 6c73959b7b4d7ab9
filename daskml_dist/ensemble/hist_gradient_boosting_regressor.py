"""`HistGradientBoostingRegressor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ensemble._boosting import BaseBoosting
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.regressor import BaseRegressor
from daskml_dist.inference.each_row import rows_apart
from daskml_dist.inference.predict import written
from daskml_dist.parameters.checks import check_number, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.boosting_losses import (
    AbsoluteErrorBoostLoss,
    BoostLoss,
    GammaBoostLoss,
    PinballBoostLoss,
    PoissonBoostLoss,
    SquaredErrorBoostLoss,
)
from daskml_dist.training.plan import DatasetInfo

__all__ = ["HistGradientBoostingRegressor"]

_LOSSES: dict[str, type[BoostLoss]] = {
    "squared_error": SquaredErrorBoostLoss,
    "absolute_error": AbsoluteErrorBoostLoss,
    "gamma": GammaBoostLoss,
    "poisson": PoissonBoostLoss,
    "quantile": PinballBoostLoss,
}
#: Those whose raw predictions are logarithms.
_LOG = ("gamma", "poisson")


class HistGradientBoostingRegressor(BaseRegressor, BaseBoosting):
    """Gradient boosting of regression trees over binned features.

    Rows stay where they are, a byte an entry; what travels is histograms of whole numbers, so that
    the trees are the same on any number of workers, and after any loss. With at most 200,000 rows
    they are scikit-learn's.

    Parameters
    ----------
    loss : {"squared_error", "absolute_error", "gamma", "poisson", "quantile"}, \
default="squared_error"
        ``"gamma"`` and ``"poisson"`` have a log link.
    quantile : float or None, default=None
        Of the loss ``"quantile"``, from 0 to 1.
    learning_rate : float, default=0.1
        Factor of the leaves' values.
    max_iter : int, default=100
        Iterations: trees, or trees of each class.
    max_leaf_nodes : int or None, default=31
        Leaves of a tree at most; the leaf of the largest gain is split first.
    max_depth : int or None, default=None
        Edges from the root to a leaf at most.
    min_samples_leaf : int, default=20
        Rows of a leaf at least.
    l2_regularization : float, default=0.0
        Added to the sum of the hessians of a leaf.
    max_features : float, default=1.0
        Share of the features that a split may use; drawn anew at each node.
    max_bins : int, default=255
        Bins of a feature at most, from 2 to 255, beside that of missing values. Their edges come
        from a sample of 200,000 rows.
    categorical_features : array-like of bool, int or str, "from_dtype" or None, \
default="from_dtype"
        Features whose values are categories: a mask, numbers, names, or those that a dataframe
        holds as such. A category that was not in the fit counts as missing.
    monotonic_cst : array-like of int of shape (n_features,), dict or None, default=None
        1: predictions rise with the feature, -1: they fall, 0: free. Or a dict of names.
    interaction_cst : {"pairwise", "no_interactions"}, sequence of sequences of int, or None, \
default=None
        Groups of features that may meet on a way from a root to a leaf.
    warm_start : bool, default=False
        Go on from the trees of the fit before, in its bins.
    early_stopping : "auto" or bool, default="auto"
        Stop where the score has not become better; "auto": with more than 10,000 rows.
    scoring : str, callable or None, default="loss"
        What tells whether it has: ``"loss"``; a name of scikit-learn's scorers or a function of
        (estimator, X, y), which see the rows held out and some 10,000 of the others, gathered to
        one worker; None: `score`.
    validation_fraction : float, int or None, default=0.1
        Rows held out for it, as a share or their number, of each class by its share; None: the
        rows trained on are scored. Which rows follows from `random_state` and the place of a row
        among those of its class.
    n_iter_no_change : int, default=10
        Iterations without a better score, after which it stops.
    tol : float, default=1e-7
        How much better is better.
    verbose : int, default=0
        Above 0: a line of progress.
    random_state : int, RandomState instance or None, default=None
        Of the rows held out and the features drawn.
    run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`. On any device the trees are
        the same to the bit on any number of workers and lanes.

    Attributes
    ----------
    n_iter_ : int
        Iterations that were made.
    n_trees_per_iteration_ : int
        Trees of an iteration: one, or one a class.
    train_score_, validation_score_ : ndarray of float64
        With early stopping, the score (minus the mean loss) before the first tree and after each
        iteration, of the rows trained on and of those held out; else empty.
    do_early_stopping_ : bool
    is_categorical_ : ndarray of bool of shape (n_features,), or None
    n_features_in_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import HistGradientBoostingRegressor
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> y = (X[:, 0] > 99).astype(float)
    >>> model = HistGradientBoostingRegressor(max_iter=50).fit(X, y)
    >>> model.predict(np.array([[10.0], [150.0]])).round(2).tolist()
    [0.0, 1.0]
    """

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        quantile: float | None = None,
        learning_rate: float = 0.1,
        max_iter: int = 100,
        max_leaf_nodes: int | None = 31,
        max_depth: int | None = None,
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        max_features: float = 1.0,
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        warm_start: bool = False,
        early_stopping: bool | str = "auto",
        scoring: Any = "loss",
        validation_fraction: float | int | None = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        verbose: int = 0,
        random_state: Any = None,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.loss = loss
        self.quantile = quantile
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.max_depth = max_depth
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.max_features = max_features
        self.max_bins = max_bins
        self.categorical_features = categorical_features
        self.monotonic_cst = monotonic_cst
        self.interaction_cst = interaction_cst
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.scoring = scoring
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        check_one_of("loss", self.loss, tuple(_LOSSES))
        if self.loss == "quantile":
            if self.quantile is None:
                raise InvalidParameterError('loss="quantile" needs a quantile. Set quantile=0.5.')
            check_number("quantile", self.quantile, lambda v: 0 <= v <= 1, "from 0 to 1")
        super()._check_params()

    def _boost_loss(self, rows: DatasetInfo) -> BoostLoss:
        least = rows.survey.target_range.min()
        if self.loss == "gamma" and least <= 0:
            raise InvalidDataError(
                "loss='gamma' requires strictly positive y. Drop rows whose target is not, or use "
                "another loss."
            )
        if self.loss == "poisson":
            if least < 0 or rows.survey.target_mean <= 0:
                raise InvalidDataError(
                    "loss='poisson' requires non-negative y and sum(y) > 0. Drop rows whose target "
                    "is negative, or use another loss."
                )
        if self.quantile is not None and self.loss == "quantile":
            return PinballBoostLoss(float(self.quantile))
        return _LOSSES[self.loss]()

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return np.exp if self.loss in _LOG else _same

    def _link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return self._inverse_link()

    def predict(self, X: Any) -> Any:
        """Predicted targets.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,)
        """
        self._check_fitted(X)
        return self._map_raw_predictions(written(self._inverse_link()), X, np.float64, None)

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Predicted targets after each iteration.

        Parameters
        ----------
        X : as in :meth:`fit`

        Yields
        ------
        ndarray or lazy dask Array of float64 of shape (n_rows,)
        """
        self._check_fitted(X)
        for stage in self._stages():
            yield stage.predict(X)


@rows_apart
def _same(raw: NDArray[Any]) -> NDArray[Any]:
    return raw
