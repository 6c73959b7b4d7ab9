"""Decision trees: each is a forest of one tree, grown on all rows.

Forests return their single trees as these estimators too (`BaseDecisionTree.from_forest`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.utils import Bunch

from daskml_dist.estimators.trees import BaseTrees, TreesClassifier, TreesRegressor
from daskml_dist.models.grown_tree import prune_weakest_links
from daskml_dist.models.tree_view import TreeView, make_tree_view
from daskml_dist.models.trees import Trees
from daskml_dist.parameters.checks import check_one_of
from daskml_dist.parameters.run import Run


class BaseDecisionTree(BaseTrees):
    """Base class of decision trees: a forest of one tree, grown on all rows.

    Parameters
    ----------
    splitter : {"best", "random"}, default="best"
        ``"random"``: for each feature, one threshold is drawn uniformly between the smallest and
        the largest value in the node.

    Attributes
    ----------
    tree_ : TreeView
        The nodes as arrays, under scikit-learn's names.
    max_features_ : int
    """

    splitter: str
    n_outputs_: int
    _n_trees = 1
    # `apply` of a single tree returns a one-dimensional array, as in scikit-learn.
    _n_leaf_columns = None

    def _check_params(self) -> None:
        check_one_of("splitter", self.splitter, ("best", "random"))
        super()._check_params()

    @property
    def _random_cuts(self) -> bool:
        return self.splitter == "random"

    @classmethod
    def from_forest(
        cls, trees: Trees, impurity: NDArray[Any], **attributes: Any
    ) -> BaseDecisionTree:
        """Return a fitted estimator that holds one tree of a forest."""
        # The caller sets the parameters; until then they have their defaults.
        tree = cls()
        tree._trees, tree._impurity = trees, impurity
        for name, value in attributes.items():
            setattr(tree, name, value)
        return tree

    @property
    def tree_(self) -> TreeView:
        """Nodes as arrays, under scikit-learn's names."""
        self._check_fitted()
        # The nodes of a regressor hold one value for each output, as if there were one class.
        n_classes = np.atleast_1d(getattr(self, "n_classes_", np.ones(self.n_outputs_, int)))
        return make_tree_view(self._trees, self._impurity, self.n_features_in_, n_classes.tolist())

    def get_depth(self) -> int:
        """Return the number of edges from the root to the deepest leaf."""
        self._check_fitted()
        return self._trees.tree(0).max_depth

    def get_n_leaves(self) -> int:
        """Return the number of leaves."""
        self._check_fitted()
        return self._trees.tree(0).n_leaves

    def cost_complexity_pruning_path(self, X: Any, y: Any, sample_weight: Any = None) -> Bunch:
        """Fit a tree, and compute its sequence of pruned trees for growing `ccp_alpha`.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        Bunch
            ``ccp_alphas``: ndarray of float64, the smallest `ccp_alpha` of each tree of the path;
            ``impurities``: ndarray of float64, the impurity of its leaves, weighted by their shares
            of the rows.
        """
        # Weakest-link pruning (Breiman et al. 1984, section 3.3): prune the node with the smallest
        # rise of the leaves' total cost per removed leaf; that rise is the next alpha. The path
        # starts from the unpruned tree. This estimator itself is not fitted.
        tree = clone(self).set_params(ccp_alpha=0.0).fit(X, y, sample_weight).tree_
        # R(t) in the book: a node's impurity times its share of the rows.
        cost = tree.impurity * tree.weighted_n_node_samples / tree.weighted_n_node_samples[0]
        leaves = tree.children_left < 0
        path = [(0.0, float(cost[leaves].sum()))]
        links = prune_weakest_links(tree.children_left, tree.children_right, cost)
        path += [(alpha, total) for alpha, _, total in links]
        alphas, impurities = np.array(path).T
        return Bunch(ccp_alphas=alphas, impurities=impurities)

    def decision_path(self, X: Any) -> csr_matrix:
        """Return the nodes on the path of each row.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        csr_matrix of int64 of shape (n_rows, n_nodes)
        """
        return self._find_paths(X)[0]


class DecisionTreeClassifier(TreesClassifier, BaseDecisionTree):
    """Classification tree.

    Grown on all rows, with features binned to one byte per entry. Splits depend only on sums of
    integers and on random draws hashed from the seed, so the tree is the same on any number of
    workers and lanes, for either `decomposition`, and after the loss of a worker.

    Parameters
    ----------
    class_weight : dict, list of dict, "balanced" or None, default=None
        Weights of the classes, multiplied by the weights of the rows; for several outputs a list
        with a dict for each, whose weights are multiplied too.

    Attributes
    ----------
    n_outputs_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    L. Breiman, J. Friedman, R. Olshen and C. Stone, "Classification and Regression Trees", 1984.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.tree import DecisionTreeClassifier
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = DecisionTreeClassifier(random_state=0).fit(X, X[:, 0] > 99)
    >>> model.predict(np.array([[10.0], [150.0]])).tolist()
    [False, True]
    """

    def __init__(
        self,
        *,
        # How a node is split, and which nodes remain leaves.
        criterion: str = "gini",
        splitter: str = "best",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = None,
        random_state: Any = None,
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        class_weight: Any = None,
        ccp_alpha: float = 0.0,
        monotonic_cst: Any = None,
        # Not in scikit-learn, except `verbose`: bins, and where and how the fit runs.
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
        self.class_weight = class_weight
        self.ccp_alpha = ccp_alpha
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.verbose = verbose
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks


class DecisionTreeRegressor(TreesRegressor, BaseDecisionTree):
    """Regression tree.

    Grown on all rows, with features binned to one byte per entry. Splits depend only on sums of
    integers and on random draws hashed from the seed, so the tree is the same on any number of
    workers and lanes, for either `decomposition`, and after the loss of a worker.

    Attributes
    ----------
    n_outputs_
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
        # How a node is split, and which nodes remain leaves.
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
        # Not in scikit-learn, except `verbose`: bins, and where and how the fit runs.
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
