"""Nodes of one tree by scikit-learn's names, and the ways of rows through trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from daskml_dist.models.trees import Trees

__all__ = ["TreeView", "node_paths", "numbers_of", "view_of"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TreeView:
    """Nodes of a tree as arrays, by scikit-learn's names.

    Attributes
    ----------
    n_features, node_count, max_depth, n_leaves : int
    children_left, children_right : ndarray of int64 of shape (node_count,)
        -1 at a leaf.
    feature : ndarray of int64 of shape (node_count,)
        -2 at a leaf.
    threshold : ndarray of float64 of shape (node_count,)
        The largest value that goes left; -2 at a leaf.
    missing_go_to_left : ndarray of uint8 of shape (node_count,)
    impurity, weighted_n_node_samples : ndarray of float64 of shape (node_count,)
    n_node_samples : ndarray of int64 of shape (node_count,)
        Rows, each once however often it was drawn.
    value : ndarray of float64 of shape (node_count, 1, n_values)
        Shares of the classes, or the mean target.
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

    def compute_feature_importances(self, normalize: bool = True) -> Array:
        """Decrease of impurity by each feature, of shape (n_features,)."""
        inner = self.children_left >= 0
        whole = self.weighted_n_node_samples * self.impurity
        left, right = self.children_left[inner], self.children_right[inner]
        less = whole[inner] - whole[left] - whole[right]
        found = np.bincount(self.feature[inner], less, minlength=self.n_features)
        found = found / self.weighted_n_node_samples[0]
        return np.asarray(found / found.sum() if normalize and found.sum() > 0 else found)

    @property
    def n_outputs(self) -> int:
        """Targets: one."""
        return 1

    @property
    def n_classes(self) -> Array:
        """Values of a node, of each target."""
        return np.array([self.value.shape[2]])


def view_of(trees: Trees, impurity: Array, n_features: int) -> TreeView:
    """View of the first tree."""
    tree = trees.tree(0)
    number = numbers_of(trees)[: len(tree.feature)]
    order = np.argsort(number)
    leaf = tree.feature[order] < 0
    left = tree.left[order]
    right = np.minimum(left + 1, len(leaf) - 1)
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
        value=tree.value[order][:, None, :],
    )


def numbers_of(trees: Trees) -> Array:
    """Number of each node in its tree as users see it: a left child follows its parent."""
    from daskml_dist.backends.tree_order import depth_first

    found: Array = depth_first(trees.roots, trees.nodes.left)
    return found


def node_paths(trees: Trees, leaves: Array) -> csr_matrix:
    """Nodes that rows come through, as a matrix of shape (n_rows, n_nodes) of ones.

    Parameters
    ----------
    trees : Trees
    leaves : ndarray of int64 of shape (n_rows, n_trees)
        That rows end in, by their numbers in the tree.
    """
    nodes = trees.nodes
    inner = np.flatnonzero(nodes.feature >= 0)
    parent = np.full(len(nodes.feature), -1)
    parent[nodes.left[inner]] = parent[nodes.left[inner] + 1] = inner
    first = np.repeat(trees.roots[:-1], np.diff(trees.roots))
    column_of = numbers_of(trees) + first
    node_of = np.empty_like(column_of)
    node_of[column_of] = np.arange(len(column_of))
    at = node_of[leaves + trees.roots[:-1]]
    rows, columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for node in at.T:
        of = np.arange(len(node))
        while len(of):
            rows.append(of)
            columns.append(column_of[node])
            above = parent[node]
            of, node = of[above >= 0], above[above >= 0]
    row, column = np.concatenate(rows), np.concatenate(columns)
    shape = len(leaves), len(parent)
    found = csr_matrix((np.ones(len(row), np.int64), (row, column)), shape=shape)
    found.sort_indices()
    return found
