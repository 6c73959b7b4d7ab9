"""`RandomForestClassifier`."""

from __future__ import annotations

from typing import Any

from daskml_dist.ensemble._forest import BaseForest
from daskml_dist.estimators.trees.classifier import TreesClassifier
from daskml_dist.parameters.run import Run

__all__ = ["RandomForestClassifier"]


class RandomForestClassifier(TreesClassifier, BaseForest):
    """Random forest of classification trees.

    Each tree grows on rows of its own draw, each split looks at features of its own draw. Features
    are binned, a byte an entry, and what decides is sums of whole numbers and draws hashed from the
    seed: the trees are the same on any number of workers and lanes, under either `decomposition`,
    and after any loss.

    Parameters
    ----------
    n_estimators : int, default=100
        Trees.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        What a split is to lower: the Gini impurity, or Shannon's entropy.
    max_depth : int or None, default=None
        Edges from the root to a leaf at most; None: until leaves are pure or small.
    min_samples_split : int or float, default=2
        Rows of a node that is split at least; a float is a share of all rows.
    min_samples_leaf : int or float, default=1
        Rows of a leaf at least; a float is a share of all rows.
    min_weight_fraction_leaf : float, default=0.0
        Share of the weight of all rows of a tree that a leaf has at least.
    max_features : int, float, "sqrt", "log2" or None, default="sqrt"
        Features that are looked at for a split, drawn anew at each node; a float is a share of
        them. More are looked at while all of them are constant.
    max_leaf_nodes : int or None, default=None
        Leaves of a tree at most; those splits stay that growing by the largest gain first makes.
    min_impurity_decrease : float, default=0.0
        What a split lowers the impurity by at least, weighted by the share of its rows.
    bootstrap : bool, default=True
        Draw rows for each tree: how often a row is drawn is a Poisson number of mean 1, hashed from
        the seed, the tree and the row's number. False: each tree takes all rows.
    oob_score : bool or callable, default=False
        Score each row by the trees that did not draw it. A callable of targets and predictions
        takes the place of the accuracy, or of R^2.
    n_jobs : int or None, default=None
        There for scikit-learn's sake: a fit uses the threads of the workers that hold the rows.
    random_state : int, RandomState instance or None, default=None
        Of all draws.
    verbose : int, default=0
        Above 0: a line of progress.
    warm_start : bool, default=False
        Keep the trees of the fit before, and add those that `n_estimators` asks for beyond them, in
        the same bins.
    class_weight : dict, list of dict, "balanced", "balanced_subsample" or None, default=None
        Weights of the classes, beside those of the rows; of several outputs a dict each, which are
        multiplied. ``"balanced_subsample"``: balanced among the rows that each tree draws, of one
        output.
    ccp_alpha : float, default=0.0
        Of minimal cost-complexity pruning: subtrees that lower the impurity by less, a leaf, are
        cut.
    max_samples : int, float or None, default=None
        Rows that a tree is expected to draw; a float is a share of all rows. At most four times as
        many as there are. None: as many.
    monotonic_cst : array-like of int of shape (n_features,) or None, default=None
        1: the second class becomes likelier as the feature rises, -1: less likely, 0: free. For two
        classes.
    max_bins : int, default=255
        Bins of a feature at most, from 2 to 255, beside that of missing values. With no more
        distinct values than that, all cuts are looked at.
    decomposition : {"auto", "functional", "data"}, default="auto"
        ``"functional"``: every trainer gets the bins of all rows (a byte an entry), and grows trees
        of its own without messages. ``"data"``: rows stay where they are, and histograms are
        summed. Both grow the same trees. ``"auto"``: functional where the bins fit in memory.
    run, device, callbacks
        As in :class:`~daskml_dist.linear_model.SGDClassifier`; trees are the same on any device.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or a list of them
        Of several outputs, each output's.
    n_classes_ : int or list of int
    estimators_ : list of DecisionTreeClassifier
        The trees, made when they are asked for.
    estimators_samples_ : list of ndarray of int32
        Numbers of the rows that each tree drew, as often as it did.
    feature_importances_ : ndarray of float64 of shape (n_features,)
        Mean decrease of impurity by each feature; their sum is 1.
    oob_score_ : float
        With `oob_score`.
    oob_decision_function_ : ndarray of float64
        Of shape (n_rows, n_classes), or (n_rows, n_classes, n_outputs) of several: shares of the
        classes of each row by the trees that did not draw it; zeros where there are none. With
        `oob_score`.
    n_features_in_, n_outputs_, feature_names_in_, history_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    L. Breiman, "Random forests", Machine Learning 45, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import RandomForestClassifier
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = RandomForestClassifier(20, random_state=0).fit(X, X[:, 0] > 99)
    >>> model.predict(np.array([[10.0], [150.0]])).tolist()
    [False, True]
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = "sqrt",
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        bootstrap: bool = True,
        oob_score: Any = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
        class_weight: Any = None,
        ccp_alpha: float = 0.0,
        max_samples: int | float | None = None,
        monotonic_cst: Any = None,
        max_bins: int = 255,
        decomposition: str = "auto",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.ccp_alpha = ccp_alpha
        self.max_samples = max_samples
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks
