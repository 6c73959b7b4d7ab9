"""`HistGradientBoostingClassifier`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ensemble._boosting import BaseBoosting
from daskml_dist.ensemble._scoring import shares
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.inference.each_row import rows_apart
from daskml_dist.parameters.checks import check_class_weight, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers import Solution
from daskml_dist.solvers.boosting_losses import BinomialBoostLoss, BoostLoss, MultinomialBoostLoss
from daskml_dist.training.plan import DatasetInfo

__all__ = ["HistGradientBoostingClassifier"]


class HistGradientBoostingClassifier(BaseClassifier, BaseBoosting):
    """Gradient boosting of classification trees over binned features.

    Rows stay where they are, a byte an entry; what travels is histograms of whole numbers, so that
    the trees are the same on any number of workers, and after any loss. With at most 200,000 rows
    they are scikit-learn's. Of more than two classes an iteration grows a tree for each.

    Parameters
    ----------
    loss : "log_loss", default="log_loss"
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
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, beside those of the rows.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
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
    >>> from daskml_dist.ensemble import HistGradientBoostingClassifier
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = HistGradientBoostingClassifier(max_iter=20).fit(X, X[:, 0] > 99)
    >>> model.predict(np.array([[10.0], [150.0]])).tolist()
    [False, True]
    """

    def __init__(
        self,
        loss: str = "log_loss",
        *,
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
        class_weight: Any = None,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.loss = loss
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
        self.class_weight = class_weight
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        check_one_of("loss", self.loss, ("log_loss",))
        check_class_weight(self.class_weight)
        super()._check_params()

    def _boost_loss(self, rows: DatasetInfo) -> BoostLoss:
        assert rows.classes is not None
        n = len(rows.classes)
        return BinomialBoostLoss() if n == 2 else MultinomialBoostLoss(n)

    def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
        assert rows.classes is not None
        self.classes_: NDArray[Any] = rows.classes
        super()._set_fitted(solution, model, rows)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_classes)
        """
        self._check_fitted(X)
        n = len(self.classes_)
        return self._map_raw_predictions(
            _write_two_shares if n == 2 else _write_shares, X, np.float64, n
        )

    def decision_function(self, X: Any) -> Any:
        """Raw predictions: the log odds of the second of two classes, or a number a class.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,), or (n_rows, n_classes)
        """
        self._check_fitted(X)
        n = len(self.classes_)
        return self._map_raw_predictions(None, X, np.float64, None if n == 2 else n)

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Most likely labels after each iteration, as :meth:`predict`."""
        self._check_fitted(X)
        for stage in self._stages():
            yield stage.predict(X)

    def staged_predict_proba(self, X: Any) -> Iterator[Any]:
        """Probabilities of the classes after each iteration, as :meth:`predict_proba`."""
        self._check_fitted(X)
        for stage in self._stages():
            yield stage.predict_proba(X)

    def staged_decision_function(self, X: Any) -> Iterator[Any]:
        """Raw predictions after each iteration, as :meth:`decision_function`."""
        self._check_fitted(X)
        for stage in self._stages():
            yield stage.decision_function(X)


@rows_apart
def _write_two_shares(raw: NDArray[Any], out: NDArray[Any]) -> None:
    _write_shares(raw, out)


def _write_shares(raw: NDArray[Any], out: NDArray[Any]) -> None:
    out[...] = shares(raw)
