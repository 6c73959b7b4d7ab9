"""Decision trees as flat arrays: of one tree, and of all trees of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.bins import Bins

__all__ = ["Tree", "Trees", "goes_left", "number_depth_first"]

Array = NDArray[Any]


@dataclass(eq=False)
class Tree:
    """Nodes of a tree, in the order in which they were made; the root is the first.

    Parameters
    ----------
    feature : ndarray of int32 of shape (n_nodes,)
        That a node asks for; -1 at a leaf.
    bin : ndarray of int32 of shape (n_nodes,)
        The last bin that goes left.
    threshold : ndarray of float64 of shape (n_nodes,)
        The largest value that goes left.
    left : ndarray of int32 of shape (n_nodes,)
        Number of the left child; the right one follows it. A leaf's is its own.
    missing_left : ndarray of bool of shape (n_nodes,)
        Whether missing values go left.
    category : ndarray of int32 of shape (n_nodes,)
        Which of `bitsets` tells the categories that go left; -1 where the feature is a number.
    value : ndarray of float64 of shape (n_nodes, n_values)
        What a leaf answers; of other nodes, what they would.
    gain : ndarray of float64 of shape (n_nodes,)
    count : ndarray of int64 of shape (n_nodes,)
        Rows of the fit.
    weight : ndarray of float64 of shape (n_nodes,)
        Sum of their weights (forests), or of their hessians (boosting).
    depth : ndarray of int32 of shape (n_nodes,)
    bitsets : ndarray of uint64 of shape (n_categorical_splits, 4)
        Bit `b`: category number `b` goes left.
    """

    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    missing_left: NDArray[np.bool_]
    category: NDArray[np.int32]
    value: NDArray[np.float64]
    gain: NDArray[np.float64]
    count: NDArray[np.int64]
    weight: NDArray[np.float64]
    depth: NDArray[np.int32]
    bitsets: NDArray[np.uint64]

    @property
    def n_leaves(self) -> int:
        """Leaves."""
        return int((self.feature < 0).sum())

    @property
    def max_depth(self) -> int:
        """Edges from the root to the deepest leaf."""
        return int(self.depth.max())

    def goes_left(self, node: int, bins: Bins) -> NDArray[np.uint8]:
        """Return for each of 256 bins of a node's feature 1 if its rows go left, else 0."""
        return goes_left(
            int(self.bin[node]),
            bool(self.missing_left[node]),
            None if self.category[node] < 0 else self.bitsets[self.category[node]],
            bins.max_bins,
        )


def goes_left(
    last: int, missing_left: bool, bitset: NDArray[np.uint64] | None, missing: int
) -> NDArray[np.uint8]:
    """Return for each of 256 bins 1 if its rows go left, else 0."""
    if bitset is None:
        table = (np.arange(256) <= last).astype(np.uint8)
    else:
        table = np.unpackbits(bitset.view(np.uint8), bitorder="little")
    table[missing] = missing_left
    return table


@dataclass(eq=False)
class Trees:
    """All trees of an ensemble, one behind the other.

    Parameters
    ----------
    roots : ndarray of int64 of shape (n_trees + 1,)
        Number of the first node of each tree, and of all nodes.
    nodes : Tree
        All nodes; `left` and `category` count from the ensemble's first.
    n_per_iteration : int
        Trees whose values belong to the columns of a raw prediction in turn (one a class).
    bins : Bins
    """

    roots: NDArray[np.int64]
    nodes: Tree
    n_per_iteration: int
    bins: Bins

    @classmethod
    def of(cls, trees: Sequence[Tree], n_per_iteration: int, bins: Bins) -> Trees:
        """Put trees together."""
        roots = np.concatenate([[0], np.cumsum([len(tree.feature) for tree in trees])])
        bitsets = np.concatenate([[0], np.cumsum([len(tree.bitsets) for tree in trees])])
        parts = {f.name: [getattr(tree, f.name) for tree in trees] for f in fields(Tree)}
        parts["left"] = [a + at for a, at in zip(parts["left"], roots, strict=False)]
        parts["category"] = [
            np.where(a < 0, a, a + at) for a, at in zip(parts["category"], bitsets, strict=False)
        ]
        nodes = Tree(**{name: np.concatenate(arrays) for name, arrays in parts.items()})
        nodes.left = nodes.left.astype(np.int32)
        nodes.category = nodes.category.astype(np.int32)
        return cls(roots.astype(np.int64), nodes, n_per_iteration, bins)

    def __len__(self) -> int:
        """Return the number of trees."""
        return len(self.roots) - 1

    @property
    def n_iter(self) -> int:
        """Iterations of boosting."""
        return len(self) // self.n_per_iteration

    def tree(self, number: int) -> Tree:
        """Return one of the trees, its nodes counted from its own root."""
        at = slice(*self.roots[number : number + 2])
        parts = {f.name: getattr(self.nodes, f.name)[at] for f in fields(Tree)[:-1]}
        used = parts["category"][parts["category"] >= 0]
        parts["left"] = (parts["left"] - at.start).astype(np.int32)
        first = int(used.min()) if len(used) else 0
        parts["category"] = np.where(parts["category"] < 0, -1, parts["category"] - first)
        parts["category"] = parts["category"].astype(np.int32)
        return Tree(**parts, bitsets=self.nodes.bitsets[first : first + len(used)])

    def first(self, n_iter: int) -> Trees:
        """Return the trees of the first iterations."""
        n = n_iter * self.n_per_iteration
        return Trees.of([self.tree(i) for i in range(n)], self.n_per_iteration, self.bins)

    # -- as arrays alone -----------------------------------------------------------------------

    def packed(self) -> dict[str, NDArray[Any]]:
        """Return all trees as arrays by name, for sending and saving."""
        bins = self.bins
        return {
            **{f.name: getattr(self.nodes, f.name) for f in fields(Tree)},
            "roots": self.roots,
            "edges": np.concatenate([np.empty(0), *bins.edges]),
            "n_edges": bins.n_edges,
            "categorical": bins.categorical,
            "facts": np.array([self.n_per_iteration, bins.max_bins]),
        }

    @classmethod
    def unpacked(cls, arrays: Mapping[str, NDArray[Any]]) -> Trees:
        """Return the trees of the arrays that :meth:`packed` made."""
        n_per_iteration, max_bins = arrays["facts"].tolist()
        edges = np.split(arrays["edges"], arrays["n_edges"].cumsum()[:-1])
        bins = Bins(tuple(edges), max_bins, arrays["categorical"].astype(bool))
        nodes = Tree(**{f.name: arrays[f.name] for f in fields(Tree)})
        return cls(arrays["roots"], nodes, n_per_iteration, bins)


def number_depth_first(trees: Trees) -> Array:
    """Return the number of each node in its tree in depth-first order, as users see it."""
    from daskml_dist.backends.tree_predict import depth_first

    found: Array = depth_first(trees.roots, trees.nodes.left)
    return found
