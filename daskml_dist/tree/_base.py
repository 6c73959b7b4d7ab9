"""Base class of decision trees that stand alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.utils import Bunch

from daskml_dist.estimators.trees.base import BaseTrees
from daskml_dist.models.grown_tree import cut_weakest_links
from daskml_dist.models.row_models import TreeRowsModel
from daskml_dist.models.tree_view import TreeView, make_tree_view
from daskml_dist.models.trees import Trees
from daskml_dist.parameters.checks import check_one_of
from daskml_dist.solvers import Solution
from daskml_dist.training.dataset_info import DatasetInfo

__all__ = ["BaseDecisionTree"]


class BaseDecisionTree(BaseTrees):
    """Base class of decision trees: a forest of one tree, of all rows."""

    splitter: str
    n_outputs_: int

    def _check_params(self) -> None:
        check_one_of("splitter", self.splitter, ("best", "random"))
        super()._check_params()

    @property
    def _n_trees(self) -> int:
        return 1

    @property
    def _random_cuts(self) -> bool:
        return self.splitter == "random"

    def _set_fitted(self, solution: Solution, model: TreeRowsModel, rows: DatasetInfo) -> None:
        super()._set_fitted(solution, model, rows)
        self.max_features_ = self._features_of(model.n_features)

    @classmethod
    def _of(cls, trees: Trees, impurity: NDArray[Any], **attributes: Any) -> BaseDecisionTree:
        """Estimator of a tree of a forest."""
        tree = cls()
        tree._trees, tree._impurity = trees, impurity
        for name, value in attributes.items():
            setattr(tree, name, value)
        return tree

    @property
    def tree_(self) -> TreeView:
        """Nodes as arrays, by scikit-learn's names."""
        self._check_fitted()
        n_classes = np.atleast_1d(getattr(self, "n_classes_", np.ones(self.n_outputs_, int)))
        return make_tree_view(self._trees, self._impurity, self.n_features_in_, n_classes.tolist())

    def get_depth(self) -> int:
        """Edges from the root to the deepest leaf."""
        self._check_fitted()
        return self._trees.tree(0).max_depth

    def get_n_leaves(self) -> int:
        """Leaves."""
        self._check_fitted()
        return self._trees.tree(0).n_leaves

    def cost_complexity_pruning_path(self, X: Any, y: Any, sample_weight: Any = None) -> Bunch:
        """Fit a tree, and cut its subtrees one after the other as `ccp_alpha` does.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        Bunch
            ``ccp_alphas``: ndarray of float64, from which on each tree of the path is the best;
            ``impurities``: ndarray of float64, of the leaves of these trees, weighted by their
            shares of the rows.
        """
        tree = clone(self).set_params(ccp_alpha=0.0).fit(X, y, sample_weight).tree_
        cost = tree.impurity * tree.weighted_n_node_samples / tree.weighted_n_node_samples[0]
        leaves = tree.children_left < 0
        path = [(0.0, float(cost[leaves].sum()))]
        links = cut_weakest_links(tree.children_left, tree.children_right, cost)
        path += [(alpha, whole) for alpha, _, whole in links]
        alphas, impurities = np.array(path).T
        return Bunch(ccp_alphas=alphas, impurities=impurities)

    @property
    def _n_leaf_columns(self) -> None:
        return None

    def decision_path(self, X: Any) -> csr_matrix:
        """Nodes that rows come through.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        csr_matrix of int64 of shape (n_rows, n_nodes)
        """
        return self._paths(X)[0]
