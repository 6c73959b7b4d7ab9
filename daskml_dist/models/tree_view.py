"""The nodes of a tree under scikit-learn's names (``tree_``), and paths of rows through trees.

Nodes are numbered depth-first here, as users know them from scikit-learn. Within `Trees` they are
in the order of growth, with siblings adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from daskml_dist.models.trees import ForestLeaves, Trees, number_depth_first

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TreeView:
    """Nodes of a tree as arrays under scikit-learn's names.

    Attributes
    ----------
    n_features, node_count, max_depth, n_leaves : int
    children_left, children_right : ndarray of int64 of shape (node_count,)
        -1 at a leaf.
    feature : ndarray of int64 of shape (node_count,)
        -2 at a leaf.
    threshold : ndarray of float64 of shape (node_count,)
        Largest value that goes left; -2 at a leaf.
    missing_go_to_left : ndarray of uint8 of shape (node_count,)
    impurity, weighted_n_node_samples : ndarray of float64 of shape (node_count,)
    n_node_samples : ndarray of int64 of shape (node_count,)
        Rows, each counted once however often a bootstrap sample has it.
    value : ndarray of float64 of shape (node_count, n_outputs, n_values)
        Shares of the classes (padded with zeros for outputs with fewer classes), or mean targets.
    n_classes : ndarray of int64 of shape (n_outputs,)
        1 in regression.
    trees : Trees
        The tree itself, for predictions.
    """

    n_features: int
    node_count: int
    max_depth: int
    n_leaves: int
    children_left: Array
    children_right: Array
    feature: Array
    threshold: Array
    missing_go_to_left: Array
    impurity: Array
    n_node_samples: Array
    weighted_n_node_samples: Array
    value: Array
    n_classes: Array
    trees: Trees

    def compute_feature_importances(self, normalize: bool = True) -> Array:
        """Return the total decrease of impurity by each feature (Breiman et al. 1984)."""
        # Impurities are weighted by the rows that reach a node; splits of a feature are summed.
        inner = self.children_left >= 0
        weighted_impurity = self.weighted_n_node_samples * self.impurity
        left, right = self.children_left[inner], self.children_right[inner]
        decrease = weighted_impurity[inner] - weighted_impurity[left] - weighted_impurity[right]
        importances = np.bincount(self.feature[inner], decrease, minlength=self.n_features)
        importances = importances / self.weighted_n_node_samples[0]
        return np.asarray(
            importances / importances.sum() if normalize and importances.sum() > 0 else importances
        )

    @property
    def n_outputs(self) -> int:
        """Number of targets."""
        return len(self.n_classes)

    @property
    def max_n_classes(self) -> int:
        """Largest number of classes of an output."""
        return int(self.n_classes.max())

    @property
    def capacity(self) -> int:
        """Capacity for nodes, equal to their number."""
        return self.node_count

    def apply(self, X: Any) -> Array:
        """Return the index of the leaf of each row."""
        return ForestLeaves(self.trees)(X)[:, 0]

    def decision_path(self, X: Any) -> csr_matrix:
        """Return the nodes on each row's path, as a matrix of ones of shape (n, node_count)."""
        return node_paths(self.trees, self.apply(X)[:, None])

    def predict(self, X: Any) -> Array:
        """Return the `value` of the leaves, of shape (n, n_values) or (n, n_outputs, n_values)."""
        values = self.value[self.apply(X)]
        return values[:, 0] if self.n_outputs == 1 else values


def make_tree_view(
    trees: Trees, impurity: Array, n_features: int, n_classes: Sequence[int] = (1,)
) -> TreeView:
    """Return a view of the first tree, given the number of classes of each output (or 1)."""
    tree = trees.tree(0)
    # Depth-first index of each node, and its inverse permutation.
    number = number_depth_first(trees)[: len(tree.feature)]
    order = np.argsort(number)
    leaf = tree.feature[order] < 0
    # The right child is stored after the left one. A leaf refers to itself, so its right child
    # would be past the end for the last node: such numbers are not used.
    left = tree.left[order]
    right = np.minimum(left + 1, len(leaf) - 1)
    # Values of all outputs are stored side by side: they become a separate dimension.
    value = np.zeros((len(leaf), len(n_classes), max(n_classes)))
    for k, output_values in enumerate(
        np.split(tree.value[order], np.cumsum(n_classes)[:-1], axis=1)
    ):
        value[:, k, : output_values.shape[1]] = output_values
    return TreeView(
        n_features=n_features,
        node_count=len(leaf),
        max_depth=tree.max_depth,
        n_leaves=tree.n_leaves,
        children_left=np.where(leaf, -1, number[left]),
        children_right=np.where(leaf, -1, number[right]),
        feature=np.where(leaf, -2, tree.feature[order]).astype(np.int64),
        threshold=np.where(leaf, -2.0, tree.threshold[order]),
        missing_go_to_left=tree.missing_left[order].astype(np.uint8),
        impurity=impurity[order],
        n_node_samples=tree.count[order],
        weighted_n_node_samples=tree.weight[order],
        value=value,
        n_classes=np.array(n_classes),
        trees=trees,
    )


def node_paths(trees: Trees, leaves: Array) -> csr_matrix:
    """Return the nodes on the path of each row, as a matrix of ones of shape (n_rows, n_nodes).

    `leaves` are the rows' leaves in each tree, of shape (n_rows, n_trees), by depth-first index.
    """
    nodes = trees.nodes
    inner = np.flatnonzero(nodes.feature >= 0)
    parent = np.full(len(nodes.feature), -1)
    parent[nodes.left[inner]] = parent[nodes.left[inner] + 1] = inner
    # Columns are depth-first indices, tree after tree.
    first = np.repeat(trees.roots[:-1], np.diff(trees.roots))
    column_of = number_depth_first(trees) + first
    node_of = np.empty_like(column_of)
    node_of[column_of] = np.arange(len(column_of))
    leaf_nodes = node_of[leaves + trees.roots[:-1]]
    # With an empty array, in case there are no trees or rows.
    rows, columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for node in leaf_nodes.T:
        # All rows climb from their leaves together, one level per iteration, until each is past the
        # root.
        climbing = np.arange(len(node))
        while len(climbing):
            rows.append(climbing)
            columns.append(column_of[node])
            above = parent[node]
            climbing, node = climbing[above >= 0], above[above >= 0]
    row, column = np.concatenate(rows), np.concatenate(columns)
    shape = len(leaves), len(parent)
    paths = csr_matrix((np.ones(len(row), np.int64), (row, column)), shape=shape)
    paths.sort_indices()
    return paths
