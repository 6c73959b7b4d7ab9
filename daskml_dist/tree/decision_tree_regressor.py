"""`DecisionTreeRegressor`."""

from __future__ import annotations

from typing import Any

from daskml_dist.estimators.trees.base import TreesRegressor
from daskml_dist.parameters.run import Run
from daskml_dist.tree._base import BaseDecisionTree

__all__ = ["DecisionTreeRegressor"]


class DecisionTreeRegressor(TreesRegressor, BaseDecisionTree):
    """Regression tree.

    Grown on all rows. Features are binned, a byte an entry, and what decides is sums of whole
    numbers and draws hashed from the seed: the tree is the same on any number of workers and lanes,
    under either `decomposition`, and after any loss.

    Parameters
    ----------
    criterion : {"squared_error", "absolute_error", "poisson"}, default="squared_error"
        What a split is to lower: the variance; absolute errors from medians, for which a trainer
        needs the bins of all rows (not ``decomposition="data"``) and several times as long; or
        half of the Poisson deviance of targets >= 0. ``"friedman_mse"``, an old name, finds the
        splits of ``"squared_error"``.
    splitter : {"best", "random"}, default="best"
        ``"random"``: of each feature, one cut is drawn uniformly between a node's smallest and
        largest value.
    max_depth : int or None, default=None
        Edges from the root to a leaf at most; None: until leaves are pure or small.
    min_samples_split : int or float, default=2
        Rows of a node that is split at least; a float is a share of all rows.
    min_samples_leaf : int or float, default=1
        Rows of a leaf at least; a float is a share of all rows.
    min_weight_fraction_leaf : float, default=0.0
        Share of the weight of all rows of a tree that a leaf has at least.
    max_features : int, float, "sqrt", "log2" or None, default=None
        Features that are looked at for a split, drawn anew at each node; a float is a share of
        them. More are looked at while all of them are constant.
    random_state : int, RandomState instance or None, default=None
        Of all draws.
    max_leaf_nodes : int or None, default=None
        Leaves of a tree at most; those splits stay that growing by the largest gain first makes.
    min_impurity_decrease : float, default=0.0
        What a split lowers the impurity by at least, weighted by the share of its rows.
    ccp_alpha : float, default=0.0
        Of minimal cost-complexity pruning: subtrees that lower the impurity by less, a leaf, are
        cut.
    monotonic_cst : array-like of int of shape (n_features,) or None, default=None
        1: predictions rise with the feature, -1: they fall, 0: free.
    max_bins : int, default=255
        Bins of a feature at most, from 2 to 255, beside that of missing values. With no more
        distinct values than that, all cuts are looked at.
    verbose : int, default=0
        Above 0: a line of progress.
    decomposition : {"auto", "functional", "data"}, default="auto"
        ``"functional"``: every trainer gets the bins of all rows (a byte an entry), and grows trees
        of its own without messages. ``"data"``: rows stay where they are, and histograms are
        summed. Both grow the same trees. ``"auto"``: functional where the bins fit in memory.
    run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`; trees are the same on any device.

    Attributes
    ----------
    tree_ : TreeView
        The nodes as arrays, by scikit-learn's names.
    max_features_ : int
    feature_importances_ : ndarray of float64 of shape (n_features,)
        Mean decrease of impurity by each feature; their sum is 1.
    n_features_in_, n_outputs_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    L. Breiman, J. Friedman, R. Olshen and C. Stone, "Classification and Regression Trees", 1984.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.tree import DecisionTreeRegressor
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = DecisionTreeRegressor(random_state=0).fit(X, 1.0 * (X[:, 0] > 99))
    >>> model.predict(np.array([[10.0], [190.0]])).tolist()
    [0.0, 1.0]
    """

    def __init__(
        self,
        *,
        criterion: str = "squared_error",
        splitter: str = "best",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = None,
        random_state: Any = None,
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        ccp_alpha: float = 0.0,
        monotonic_cst: Any = None,
        max_bins: int = 255,
        verbose: int = 0,
        decomposition: str = "auto",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.criterion = criterion
        self.splitter = splitter
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.random_state = random_state
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.ccp_alpha = ccp_alpha
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.verbose = verbose
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks
