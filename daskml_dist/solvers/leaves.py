"""Leaves of a growing tree, the bounds of its growth, and the tree that is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.bins import Bins
from daskml_dist.models.trees import Tree

__all__ = ["Leaf", "TreeBuilder", "TreeParams"]

Array = NDArray[Any]
#: What was found of a node that is not split.
_NONE = [-1] * 7


@dataclass(frozen=True, eq=False)
class TreeParams:
    """Bounds of a tree's growth; see `HistGradientBoostingRegressor`.

    Parameters
    ----------
    max_leaf_nodes, max_depth : int or None
    min_samples_leaf : int
    l2_regularization : float
    max_features : float
        Share of the features that a split may use, drawn anew at each node.
    signs : ndarray of int8 of shape (n_features,)
        Of monotonic constraints.
    groups : tuple of tuple of int, or None
        Features that may meet on a way from the root to a leaf.
    min_hessian : float
    """

    max_leaf_nodes: int | None
    max_depth: int | None
    min_samples_leaf: int
    l2_regularization: float
    max_features: float
    signs: NDArray[np.int8]
    groups: tuple[tuple[int, ...], ...] | None = None
    min_hessian: float = 1e-3


@dataclass(eq=False, slots=True)
class Leaf:
    """Node of a growing tree.

    Parameters
    ----------
    depth : int
    at : list of slice
        Of the index of each of `Grower.lanes`, where its rows are.
    totals : ndarray of int64 of shape (3,)
        Sums of gradients, hessians and rows.
    value, low, high : float
        What it answers, and the bounds of what its children may.
    groups : tuple of int
        Which groups of features may still be used.
    path : int
        Number that its way from the root has.
    hist : ndarray of int64 of shape (m, n_bins, channels) or None
        Of the features whose owner this trainer is.
    gain : float
    found : list of int
        What `best_split` found.
    bitset : ndarray of uint64 of shape (4,) or None
        Categories that go left.
    children : tuple of Leaf
        Once they are made; they are part of the tree once it is split.
    may : list of bool
        Whether the children may be split.
    number : int
        Among the tree's nodes.
    """

    depth: int
    at: list[slice]
    totals: NDArray[np.int64]
    value: float
    low: float = -math.inf
    high: float = math.inf
    groups: tuple[int, ...] = ()
    path: int = 1
    hist: Array | None = None
    gain: float = -1.0
    found: list[int] = field(default_factory=list)
    bitset: NDArray[np.uint64] | None = None
    children: tuple[Leaf, ...] = ()
    may: list[bool] = field(default_factory=list)
    number: int = -1

    @property
    def smaller(self) -> int:
        """Number of the child that has fewer rows."""
        left, right = self.children
        return 0 if left.totals[2] < right.totals[2] else 1

    def __lt__(self, other: Leaf) -> bool:
        return (-self.gain, self.number) < (-other.gain, other.number)


class TreeBuilder:
    """Nodes of a growing tree, by the names of `Tree`."""

    def __init__(self, bins: Bins) -> None:
        self._bins = bins
        self._nodes: list[Leaf] = []
        self._left: list[int] = []
        self._value: list[float] = []

    def add(self, leaf: Leaf) -> None:
        """Add a node."""
        leaf.number = len(self._nodes)
        self._nodes.append(leaf)
        self._left.append(leaf.number)

    def split(self, leaf: Leaf) -> None:
        """Add the children of a node."""
        self._left[leaf.number] = len(self._nodes)
        for child in leaf.children:
            self.add(child)

    def made(self, leaves: Sequence[Leaf]) -> Tree:
        """The tree."""
        nodes, n = self._nodes, len(self._nodes)
        is_leaf = np.zeros(n, bool)
        is_leaf[[leaf.number for leaf in leaves]] = True
        inner = [None if a else leaf for a, leaf in zip(is_leaf, nodes, strict=True)]
        found = np.array([_NONE if leaf is None else leaf.found for leaf in inner]).T
        bitsets = [None if leaf is None else leaf.bitset for leaf in inner]
        given = [bitset for bitset in bitsets if bitset is not None]
        is_given = np.array([bitset is not None for bitset in bitsets])
        totals = np.array([leaf.totals for leaf in nodes])
        threshold_of = self._bins.threshold
        thresholds = [np.inf if leaf is None else threshold_of(*leaf.found[:2]) for leaf in inner]
        return Tree(
            feature=found[0].astype(np.int32),
            bin=found[1].astype(np.int32),
            threshold=np.array(thresholds),
            left=np.array(self._left, np.int32),
            missing_left=found[2] > 0,
            category=np.where(is_given, is_given.cumsum() - 1, -1).astype(np.int32),
            value=np.array([[leaf.value] for leaf in nodes]),
            gain=np.array([-1.0 if leaf is None else leaf.gain for leaf in inner]),
            count=totals[:, 2],
            weight=totals[:, 1].astype(np.float64),
            depth=np.array([leaf.depth for leaf in nodes], np.int32),
            bitsets=np.array(given, np.uint64).reshape(-1, 4),
        )
