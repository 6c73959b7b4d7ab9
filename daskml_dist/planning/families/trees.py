"""Trees over binned features: boosting, forests, single trees.

A tree that is grown level by level reads each row's bins once per level, and adds them to
histograms of the row's node: n d log2(leaves) operations for n rows and d features, for any splits.
Splits are then found in the histograms, at a cost that depends on bins, not on rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any, ClassVar

from daskml_dist.planning.costs import Costs, Equation, Work
from daskml_dist.planning.families.base import Family, Probe
from daskml_dist.planning.places import Place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.training.job import INLINE

#: Numbers of 8 bytes in the histogram of a feature: a gradient and a hessian sum for 256 bins.
_HISTOGRAM_SIZE = 2 * 256
#: Parameters of tiny fits of boosting, and of forests.
_FEW_ITERATIONS = {"max_iter": 4, "early_stopping": False, "warm_start": False}
_FEW_TREES = {"n_estimators": 2, "warm_start": False, "oob_score": False}


class BoostingFamily(Family):
    """Gradient boosting: an iteration is one tree, or one tree per class.

    Counts: rows times outputs; entries times outputs and levels; bins of the histograms.
    """

    kind = "boosting"
    estimators = ("BaseBoosting",)
    computing = frozenset({"read", "row", "entry", "bin"})
    usual: ClassVar = {
        "fit": 2e-2, "read": 1.5e-8, "pass": 2e-3, "row": 1e-8, "entry": 1e-9, "bin": 4e-9,
    }  # fmt: skip
    usual_cluster_costs: ClassVar = {"fit": 0.15, "send": 2e-9, "pass": 1e-2, "met": 2e-9}
    spread: ClassVar = {INLINE: 1.7, "cluster": 2.0}

    #: Probes do not repeat rows: equal rows cannot be split, so trees would stop early.
    distinct = 1 << 17
    # Fits of few rows, of many rows, and of many features.
    cluster_probes = (
        Probe(2000, 8, params=_FEW_ITERATIONS), Probe(60_000, 16, params=_FEW_ITERATIONS),
        Probe(10_000, 64, params=_FEW_ITERATIONS),
    )  # fmt: skip
    inline_probes = (
        Probe(2000, 8, params=_FEW_ITERATIONS, times=2), Probe(40_000, 8, params=_FEW_ITERATIONS),
        Probe(40_000, 32, params=_FEW_ITERATIONS), Probe(5_000, 64, params=_FEW_ITERATIONS),
    )  # fmt: skip

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of a fit of `passes` iterations."""
        p = estimator._all_params()
        width = rows.n_classes if rows.n_classes > 2 else 1
        leaves = p["max_leaf_nodes"] or 2 ** (p["max_depth"] or 8)
        # No more leaves than the rows allow; as for a balanced tree, log2 of them levels.
        leaves = max(min(leaves, rows.n_rows // max(int(p["min_samples_leaf"]), 1)), 2)
        levels = min(log2(leaves), p["max_depth"] or 99)
        share = rows.n_rows / place.side_by_side(rows.nbytes, self.bytes_per_thread)
        # With sampling, histograms are made from the sampled rows only.
        uniform = p["sampling_method"] == "uniform"
        sampled = p["subsample"] if uniform else p["top_rate"] + p["other_rate"]
        # Few rows have fewer distinct values, and so fewer bins, than a histogram can have.
        bins = min(rows.n_rows, _HISTOGRAM_SIZE / 2) * rows.n_features
        # Binning reads each value once, in the processes; rows in memory are sent to them first.
        read = {"read": share * rows.n_features, "send": float(rows.n_rows * rows.n_features)}
        return Work(
            {"fit": 1.0, **read},
            {
                "pass": float(width),
                "row": share * width,
                "entry": share * sampled * rows.n_features * levels * width,
                "bin": bins * leaves * width,
                "met": 8.0
                * _HISTOGRAM_SIZE
                * rows.n_features
                * leaves
                * width
                * (place.trainers > 1),
            },
            passes,
            float(levels * width),
            float(rows.n_features * _HISTOGRAM_SIZE * 8 * leaves / levels),
        )

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return all iterations; with early stopping, a range from the fewest possible."""
        max_passes = float(estimator.max_iter)
        early = estimator.early_stopping is True
        return (
            min(max_passes, estimator.n_iter_no_change + 1.0) if early else max_passes
        ), max_passes


class ForestFamily(Family):
    """Random forests and single trees, grown to their leaves.

    Entries are counted times the features that a split searches and times the levels. If no depth
    is given, the number of levels grows with the logarithm of the rows.
    """

    kind = "trees and forests"
    estimators = ("BaseTrees",)
    computing = frozenset({"row", "entry", "node"})
    usual: ClassVar = {
        "fit": 2e-2, "pass": 2e-3, "row": 1e-8, "entry": 5e-9, "node": 1e-6,
    }  # fmt: skip
    usual_cluster_costs: ClassVar = {"fit": 0.15, "send": 2e-9, "pass": 1e-2}
    spread: ClassVar = {INLINE: 2.0, "cluster": 2.0}

    #: Probes do not repeat rows: equal rows cannot be split, so trees would stop early.
    distinct = 1 << 17
    # Fits of few rows, of many rows, and of many features.
    cluster_probes = Probe(2000, 8, params=_FEW_TREES), Probe(20_000, 16, params=_FEW_TREES)
    inline_probes = (
        Probe(2000, 8, params=_FEW_TREES, times=2), Probe(20_000, 8, params=_FEW_TREES),
        Probe(20_000, 32, params=_FEW_TREES), Probe(4_000, 64, params=_FEW_TREES),
    )  # fmt: skip

    def work(self, estimator: Any, rows: RowsShape, place: Place, passes: float) -> Work:
        """Return the operation counts of a fit of `passes` trees."""
        p = estimator._all_params()
        leaf = p["min_samples_leaf"]
        leaf = leaf if leaf >= 1 else leaf * rows.n_rows
        full = log2(max(rows.n_rows / max(leaf, 1.0), 2.0))
        # Trees are not balanced: a fifth deeper than a balanced tree with the same number of
        # leaves.
        depth = min(full * 1.2, p["max_depth"] or 1e9)
        # Noisy targets are split down to single rows: about one node for every three rows.
        nodes = min(2.0 ** min(depth, 60.0), rows.n_rows / 3, p["max_leaf_nodes"] or 1e12)
        share = rows.n_rows / place.side_by_side(rows.nbytes, self.bytes_per_thread)
        n_searched = float(estimator._resolve_max_features(rows.n_features))
        return Work(
            {"fit": 1.0, "send": float(rows.n_rows * rows.n_features)},
            {
                "pass": 1.0,
                "row": share * depth,
                "entry": share * n_searched * depth,
                "node": nodes * n_searched / place.side_by_side(rows.nbytes, self.bytes_per_thread),
            },
            passes,
            depth,  # one synchronization per level
            # Histograms of the nodes of a level, on average, in float64; for at most 4,096 nodes.
            float(min(nodes, 4096.0) * n_searched * _HISTOGRAM_SIZE * 8 / depth),
        )

    def passes(self, estimator: Any, costs: Costs) -> tuple[float, float]:
        """Return the number of trees."""
        return (float(estimator._n_trees),) * 2

    def equations(self, work: Work, seconds: float, records: Sequence[float]) -> list[Equation]:
        """Return one equation for the whole fit, since several trees grow together."""
        # The time of a single tree is unknown: the history has one record for all trees together.
        counts = {**work.setup, **{k: v * work.passes for k, v in work.one_pass.items()}}
        return [(counts, seconds)]
