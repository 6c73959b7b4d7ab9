"""Parameters and random draws of a forest's trees, and the growth of a tree on one trainer.

:class:`ForestContext` has what the growth of any tree of a forest needs; it draws a tree's rows
and grows the tree, or the part of a tree below a node, on rows that are all on this trainer.

A bootstrap sample of n rows draws each row a binomial number of times. Rows are drawn one by one
instead, a Poisson number of times with the same mean (N. C. Oza and S. Russell, "Online bagging and
boosting", AISTATS 2001): a number hashed from the seed, the tree and the row alone, so that no
trainer needs to know which rows others have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from daskml_dist.backends.forests import ForestFacts
from daskml_dist.backends.host_forests import draw_lane_lines
from daskml_dist.models.bins import Bins, draw_by_hash, hash_numbers
from daskml_dist.models.criteria import Criterion
from daskml_dist.models.grown_tree import GrownTree, TreeConverter
from daskml_dist.models.trees import Tree
from daskml_dist.solvers.forest_rows import FACTOR_BITS, ForestRows, ForestScales
from daskml_dist.solvers.own_rows import Array

#: Hashed with the seed, so that draws of rows and of nodes are independent of other kinds of draws.
_ROW_DRAWS, _NODE_DRAWS = 11, 12
#: Numbers of draws of a row (0, 1, ...) whose probabilities are tabulated: with a mean of 1, more
#: draws have a probability below 2**-64.
_MAX_DRAWS = 24


@dataclass(frozen=True, eq=False)
class ForestParams:
    """Parameters of the growth of a forest's trees; see `RandomForestClassifier`.

    Parameters
    ----------
    criterion : Criterion
    classes : tuple of int
        Number of classes of each output; empty in regression.
    n_outputs : int
    max_depth, max_leaf_nodes : int or None
    min_samples_split, min_samples_leaf : int
    min_weight_fraction_leaf : float
    max_features : int
    min_impurity_decrease, ccp_alpha : float
    rate : float or None
        Expected number of draws of a row; None: each row is taken once.
    random_cuts : bool
        Whether thresholds are drawn at random.
    monotonic_signs : ndarray of int8 of shape (n_features,)
        Signs of the monotonic constraints on the second class's share, or on the mean; 0: none.
    balanced : bool
        Whether the classes of each tree's sample are given equal weight.
    """

    criterion: Criterion
    classes: tuple[int, ...]
    n_outputs: int
    max_depth: int | None
    max_leaf_nodes: int | None
    min_samples_split: int
    min_samples_leaf: int
    min_weight_fraction_leaf: float
    max_features: int
    min_impurity_decrease: float
    ccp_alpha: float
    rate: float | None
    random_cuts: bool
    monotonic_signs: NDArray[np.int8]
    balanced: bool = False

    @property
    def n_sums(self) -> int:
        """Return the number of sums: one per class, or total weight and one per output."""
        return sum(self.classes) or 1 + self.n_outputs

    @property
    def n_values(self) -> int:
        """Return the number of values that a tree predicts."""
        return sum(self.classes) or self.n_outputs

    @property
    def n_line(self) -> int:
        """Return the length of a drawn row's line: index and weight, then `ForestRows.more`."""
        # Even for classes and odd in regression, by which the kernels distinguish them.
        return 2 + (self.n_outputs // 2 * 2 if self.classes else 2 * self.n_outputs + 1)


class ForestContext:
    """Settings, scales and draws that the growth of any tree of a forest needs.

    Parameters
    ----------
    growth : ForestParams
    bins : Bins
    scales : ForestScales
    low, high : ndarray of float64 of shape (n_features, 256)
        Smallest and largest value of each bin.
    seed : int
    """

    def __init__(
        self,
        growth: ForestParams,
        bins: Bins,
        scales: ForestScales,
        low: Array,
        high: Array,
        seed: int,
    ) -> None:
        self.growth, self.bins, self.scales = growth, bins, scales
        self.low, self.high = low, high
        self._seed = seed
        self.table = _draw_probabilities(growth.rate)
        self.bounded = bool(growth.monotonic_signs.any())
        weight = scales.weight * (2.0**FACTOR_BITS if growth.balanced else 1.0)
        self.shared = ForestFacts(
            self.table, scales.bits, growth.n_sums, growth.n_line, growth.n_outputs,
            bins.n_features, bins.max_bins, growth.monotonic_signs, self.bounded, low, high,
        )  # fmt: skip
        self.tree_converter = TreeConverter(
            growth.criterion, scales.bits, weight, scales.target, scales.term, scales.centre,
            growth.classes, growth.n_outputs,
        )  # fmt: skip

    def pack_settings(self, weight: int) -> tuple[NDArray[np.int64], float]:
        """Return settings for compiled loops, and the minimum gain, for a tree's integer weight."""
        growth = self.growth
        min_weight = int(np.ceil(growth.min_weight_fraction_leaf * weight))
        depth = 2**31 - 1 if growth.max_depth is None else growth.max_depth
        # In the order of the columns of `forest_cuts`.
        facts = [
            growth.criterion.kind, self.scales.bits, growth.min_samples_leaf, min_weight,
            int(growth.random_cuts), self.bins.max_bins, self.bins.n_features,
            growth.max_features, depth, growth.min_samples_split,
            growth.classes[0] if growth.classes else 1, growth.n_outputs,
        ]  # fmt: skip
        # An impurity decrease is a gain in integer units per weight of the tree. As scikit-learn
        # does, subtract a rounding error.
        unit = growth.criterion.unit(self.scales.target) / growth.n_outputs
        gain = (growth.min_impurity_decrease - np.finfo(np.float64).eps) * weight / unit
        return np.array(facts, np.int64), max(gain, 0.0)

    def pack_all_settings(
        self, totals: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return settings and least gains of several trees, given their roots' packed totals."""
        settings = [self.pack_settings(int(total) >> self.scales.bits) for total in totals]
        return np.array([facts for facts, _ in settings]), np.array([gain for _, gain in settings])

    def make_tree_keys(self, tree: int) -> tuple[np.uint64, np.uint64]:
        """Return the hash keys of a tree's draws of rows, and of the path to its root."""
        rows, nodes = (
            draw_by_hash([tree], self._seed, purpose)[0] for purpose in (_ROW_DRAWS, _NODE_DRAWS)
        )
        return rows, nodes

    def draw_lines(self, binned: ForestRows, tree: int, factor: Array | None = None) -> Array:
        """Return the lines of the rows that a tree draws, with `factor` on the classes' weights."""
        lines = np.empty((len(binned.numbers), self.growth.n_line), np.int64)
        return draw_lane_lines(binned, self.shared, self.make_tree_keys(tree)[0], factor, lines)

    def balance_classes(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the factors that give classes equal weight in each tree, given its root's sums."""
        weights = sums[:, :-2] >> self.scales.bits
        # total weight / (n_classes * the class's weight), in fixed point.
        tree_weight = weights.sum(axis=1, keepdims=True) << FACTOR_BITS
        return np.asarray(tree_weight // (weights.shape[1] * np.maximum(weights, 1)), np.int64)

    def root_bounds(self) -> NDArray[np.float64]:
        """Return the bounds of a root's predictions, and 1 if there are monotonic constraints."""
        return np.array([-np.inf, np.inf, float(self.bounded)])

    def grow_whole_tree(self, binned: ForestRows, tree: int) -> tuple[Tree, Array]:
        """Grow a tree on the rows of all lanes; return it with the impurity of its nodes."""
        from daskml_dist.backends.forest_kernels import add_node_sums

        lines = self.draw_lines(binned, tree)
        if self.growth.balanced:
            # class_weight="balanced_subsample": the weights depend on the classes drawn.
            sums = np.zeros((1, self.growth.n_sums + 2), np.int64)
            add_node_sums(lines, sums[0], np.zeros(2 * self.growth.n_outputs))
            lines = self.draw_lines(binned, tree, self.balance_classes(sums)[0])
        weight = int((lines[:, 1] >> self.scales.bits).sum())
        facts, gain = self.pack_settings(weight)
        tree_nodes = self.grow_tree_part(
            facts, gain, binned.rows, lines, self.make_tree_keys(tree)[1], 0, self.root_bounds()
        )
        return self.finish_tree(tree_nodes)

    def grow_tree_part(
        self, settings: Array, gain: float, rows: Array, lines: Array, path: np.uint64, depth: int,
        bounds: Array,
    ) -> GrownTree:  # fmt: skip
        """Return the part of a tree below a node, given the node's lines and their rows' bins.

        `settings` and `gain` are those of `pack_settings`; `lines` are reordered.
        """
        from daskml_dist.backends.forest_grow import grow_tree, make_growth_scratch

        # Most nodes: with a line in each leaf, and with all leaves at the greatest depth.
        n, growth = max(2 * len(lines) - 1, 1), self.growth
        scale = float(self.scales.target) if growth.criterion.needs_rows else None
        if growth.max_depth is not None and growth.max_depth - depth < 30:
            n = min(n, 2 ** (growth.max_depth - depth + 1) - 1)
        levels = len(lines) if growth.max_depth is None else max(growth.max_depth - depth, 0)
        nodes = GrownTree.empty(n, growth.n_sums, self.bounded)
        n_nodes = grow_tree(
            settings, scale, gain, rows, lines, np.empty_like(lines), path, depth, bounds,
            growth.monotonic_signs, self.low, self.high, *nodes.arrays,
            *make_growth_scratch(settings, growth.n_sums, len(lines), levels),
        )  # fmt: skip
        return nodes.first(n_nodes)

    def finish_tree(self, grown_tree: GrownTree) -> tuple[Tree, Array]:
        """Return the finished tree, pruned to the limits on leaves and cost, and its impurity."""
        growth = self.growth
        if growth.max_leaf_nodes is not None:
            grown_tree = grown_tree.limit_leaves(growth.max_leaf_nodes)
        if growth.ccp_alpha > 0:
            weight = grown_tree.sums[:, -2] >> self.scales.bits
            cost = self.tree_converter.means(grown_tree)[1] * weight / max(weight[0], 1)
            grown_tree = grown_tree.pruned(growth.ccp_alpha, cost)
        return self.tree_converter.convert(grown_tree, self.low, self.high)


def count_draws(n: int, seed: int, tree: int, rate: float | None) -> NDArray[np.int64]:
    """Return how often a tree draws each of `n` rows; `rate` is that of `ForestParams`."""
    if rate is None:
        return np.ones(n, np.int64)
    # Poisson counts by inversion: find a hashed 64-bit number among the cumulated probabilities.
    draw = hash_numbers(
        hash_numbers(np.arange(1, n + 1).astype(np.uint64)) + draw_by_hash([tree], seed, _ROW_DRAWS)
    )
    return np.searchsorted(_draw_probabilities(rate), draw, side="right").astype(np.int64)


def _draw_probabilities(rate: float | None) -> NDArray[np.uint64]:
    """Return cumulated Poisson probabilities in units of 2**-64; empty if rows are taken once."""
    if rate is None:
        return np.empty(0, np.uint64)
    k = np.arange(_MAX_DRAWS)
    # exp(-rate) rate^k / k!, in logarithms.
    cumulated = np.exp(k * np.log(rate) - rate - gammaln(k + 1)).cumsum()
    # 1 itself would overflow 64 bits.
    return np.array([int(p * 2.0**64) for p in cumulated if p < 1 - 1e-15], np.uint64)
