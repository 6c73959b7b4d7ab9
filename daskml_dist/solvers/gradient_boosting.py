"""Gradient boosting of trees on the rows of all trainers: the same trees on any number of them.

Decisions follow from sums of integers, or from a row alone; random draws are hashed from the
row's number. Gradients of a tree are rounded to 31 bits and hessians to 24, in units that are
powers of two and follow from the largest of all rows. For more rows than bins are chosen from, 13
and 12 bits are enough: each number is rounded up or down at random, so that sums are right in the
mean, and histograms take half the time (Shi et al., "Quantized training of gradient boosting
decision trees", NeurIPS 2022).

Trees may be grown on a sample of the rows (`daskml_dist.solvers.row_sampling`); the rows that were
left out are then sent down the tree. Trees may be dropped for an iteration
(`daskml_dist.solvers.tree_dropout`).

References
----------
J. H. Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics
29(5), 2001. T. Chen and C. Guestrin, "XGBoost: A scalable tree boosting system", KDD 2016 (Newton
steps in the leaves).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import (
    CONSTANT,
    EXACT,
    ROUNDED,
    VECTOR,
    TreeRows,
    count_channels,
    open_tree_device,
)
from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.models.bins import Bins, draw_by_hash
from daskml_dist.models.trees import Tree, Trees
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.binning import SAMPLE_ROWS, BinnedRows, HoldoutMask, bin_rows, find_bins
from daskml_dist.solvers.boosting_scores import (
    BoostLoss,
    BoostScores,
    GroupedValues,
    SetGradients,
    SetScores,
    StoppingRule,
    WatchedScores,
    group_quantiles,
    sum_exactly,
)
from daskml_dist.solvers.own_rows import Array, OwnRows, RowSolver
from daskml_dist.solvers.ranking import RankingLoss
from daskml_dist.solvers.row_sampling import RowSampler, RowSampling
from daskml_dist.solvers.tree_dropout import TreeDropout, ValueGrid, sum_largest
from daskml_dist.solvers.tree_growth import Leaf, TreeGrower, TreeParams

#: Bits of a gradient and of a hessian: all digits of float32, or fewer if there are many rows.
_EXACT_BITS, _ROUNDED_BITS = (30, 24), (12, 12)
#: Mean squared gradient, and mean hessian, in units of the last bit, from which few bits suffice.
_MIN_MEAN_SQUARE, _MIN_MEAN_HESSIAN = 256, 4
#: Hashed with the seed, so that these draws are independent of other kinds of draws.
_ROUNDING_DRAW = 4
#: Marks rows whose raw predictions must be recomputed: an iteration dropped trees for them, and
#: they did not see its end.
_NO_SUCH_NUMBER = 2**62


@dataclass(frozen=True, eq=False)
class GradientBoostingSolver(RowSolver):
    """Solver of gradient boosting of trees.

    Parameters
    ----------
    loss : BoostLoss
    learning_rate : float
    max_iter : int
    growth : TreeParams
    max_bins : int
    categories : tuple of (ndarray of float64 or None)
        Sorted categories of each feature, empty if they are to be found in the rows; None for a
        numeric feature.
    seed : int
    stopping : StoppingRule or None
        None: all iterations are made.
    aside : HoldoutMask or None
        Rows that are held out, for early stopping or to be scored for the user.
    watching : WatchedScores or None
        Scores of held-out rows for the fit's history.
    begin : mapping of str to ndarray, or None
        State of a fit to continue (a warm start).
    sampling : RowSampling or None
        Rule by which the rows of each iteration are drawn; None: all rows are used.
    dropout : TreeDropout or None
        Rule by which earlier iterations are dropped; None: all are kept.
    vector_leaves : bool
        Whether an iteration grows one tree whose leaves have a value for each of several outputs,
        instead of a tree per output. Such trees have no dropout, and no monotonic constraints.
    """

    loss: BoostLoss
    learning_rate: float
    max_iter: int
    growth: TreeParams
    max_bins: int
    categories: tuple[NDArray[np.float64] | None, ...]
    seed: int
    stopping: StoppingRule | None = None
    aside: HoldoutMask | None = None
    watching: WatchedScores | None = None
    begin: Mapping[str, Array] | None = None
    sampling: RowSampling | None = None
    dropout: TreeDropout | None = None
    vector_leaves: bool = False

    @property
    def max_passes(self) -> int:
        """Return one pass an iteration."""
        return self.max_iter

    @property
    def score_names(self) -> tuple[str, ...]:
        """Return the keys of the scores that each iteration reports."""
        return () if self.watching is None else self.watching.names

    def solve(self, model: Any, rows: OwnRows) -> Solution:
        """Return the trees, packed into ``extra``."""
        return _BoostingRun(self, rows).run()


class _BoostingRun:
    """Boosting on one trainer's rows.

    A row's state (raw predictions, packed gradients, its place among the leaves) is in
    `BinnedRows.extra`, which survives a restart after the loss of another trainer.
    """

    def __init__(self, solver: GradientBoostingSolver, rows: OwnRows) -> None:
        self._solver, self._rows, self._loss = solver, rows, solver.loss
        k, on_host = self._loss.n_outputs, solver.vector_leaves or self._loss.n_targets > 1
        #: Outputs that each tree of an iteration predicts.
        self._outputs = [range(k)] if solver.vector_leaves else [range(i, i + 1) for i in range(k)]
        # GPU kernels support one target per row, and leaves with one value.
        self._device = open_tree_device("cpu" if on_host else rows.device)
        self._holdout = None if solver.aside is None else solver.aside.located(rows)
        snapshot = rows.kept or solver.begin
        self._initial_trees: list[Tree] = []
        bins, scores = None, dict[str, list[float]](train_score=[], validation_score=[])
        if snapshot is not None:
            trees = Trees.unpacked(snapshot)
            bins, self._initial_trees = trees.bins, [trees.tree(i) for i in range(len(trees))]
            scores = {name: snapshot[name].tolist() for name in scores}
        self._scores = BoostScores(
            rows, solver.stopping, solver.watching, self._loss, scores,
            self._make_set_scores if self._loss.of_sets else None,
        )  # fmt: skip
        self._binned_lanes, self._held_out_lanes = self._bin_own_rows(bins)
        self._check_row_counts()
        bins = self._binned_lanes[0].bins
        self._bins = bins
        # If all weights are 1 they are dropped, and hessians may then be constant.
        weights = [binned.weight for binned in self._binned_lanes if binned.weight is not None]
        weighted = float(any((weight != 1).any() for weight in weights))
        self._weighted = bool(rows.max_trainers(np.array([weighted]))[0])
        has_factors = solver.sampling is not None and solver.sampling.has_factors
        self._constant = self._loss.constant_hessian and not self._weighted and not has_factors
        self._missing = self._find_missing_features()
        self._baseline = self._initial_prediction() if snapshot is None else snapshot["baseline"]
        self._trees = self._initial_trees
        self._grid = ValueGrid()
        if solver.dropout is not None:
            self._start_dropout(snapshot)
        rows.map_lanes(self._update_predictions, [*self._binned_lanes, *self._held_out_lanes])

    # -- rows ----------------------------------------------------------------------------------

    def _bin_own_rows(self, bins: Bins | None) -> tuple[list[BinnedRows], list[BinnedRows]]:
        """Return the binned rows of the own lanes, and those held out."""
        rows, solver, aside = self._rows, self._solver, self._holdout
        binned_by_lane: dict[int, Any] = rows.memory.setdefault("bin_rows", {})
        if bins is None:
            bins = rows.memory.get("bins")
        # Finding bins is collective: if one trainer lacks them, since it is new, all find them.
        if rows.max_trainers(np.array([float(bins is None)]))[0]:
            n = float(rows.n_rows) if aside is None else aside.estimate_training_rows(rows.n_rows)
            bins = find_bins(rows, solver.max_bins, solver.categories, solver.seed, aside, n)
        assert bins is not None
        rows.memory["bins"] = bins
        # Forget lanes that went to other trainers after a loss.
        for lane in set(binned_by_lane) - set(rows.lanes):
            del binned_by_lane[lane]
        new_lanes = [lane for lane in rows.lanes if lane not in binned_by_lane]
        # Scorers get rows in the order of their numbers.
        stopping = solver.stopping
        numbered = solver.watching is not None or self._loss.of_sets
        if stopping is not None:
            numbered |= stopping.scorer is not None or stopping.within is not None
        n_targets = self._loss.n_targets
        binned = rows.map_lanes(
            lambda lane: bin_rows(rows, lane, bins, aside, numbered, n_targets), new_lanes
        )
        binned_by_lane.update(zip(new_lanes, binned, strict=True))
        training = [binned_by_lane[lane][0] for lane in rows.lanes]
        held_out = [
            binned_by_lane[lane][1] for lane in rows.lanes if binned_by_lane[lane][1] is not None
        ]
        return training, held_out

    def _check_row_counts(self) -> None:
        n = self._rows.sum_trainers(
            np.array([sum(r.n for r in self._binned_lanes), sum(r.n for r in self._held_out_lanes)])
        )
        self._n_train, self._n_held = n.tolist()
        if not self._n_train or (self._holdout is not None and not self._n_held):
            raise InvalidDataError(
                f"Early stopping leaves {self._n_train} rows to train on and {self._n_held} to "
                "validate with. Change validation_fraction, or set early_stopping=False."
            )

    def _find_sets(self) -> Any:
        """Return the training rows by set; None for a loss of single rows."""
        if not self._loss.of_sets:
            return None
        sets = self._loss.gather_sets(self._rows, self._binned_lanes)
        # Validation rows given by the user may belong to sets of the fit; held-out rows drawn from
        # it may not.
        if self._holdout is not None and not self._holdout.of_fit:
            self._loss.check_held_sets(self._rows, sets, self._held_out_lanes)
        return sets

    def _make_set_scores(
        self, binned_lanes: Sequence[BinnedRows], row_range: tuple[int, int] | None
    ) -> SetScores:
        """Return the scores of a set of rows that are not scored row by row."""
        # Training rows are gathered once for gradients and scores.
        sets = self._sets if binned_lanes is self._binned_lanes else None
        if sets is None:
            sets = self._loss.gather_sets(self._rows, binned_lanes, row_range)
        return self._loss.make_set_scores(sets, binned_lanes)

    def _find_missing_features(self) -> NDArray[np.uint8]:
        missing = np.max([binned.missing for binned in self._binned_lanes], axis=0)
        return np.asarray(self._rows.max_trainers(missing), np.uint8)

    def _update_predictions(self, binned: BinnedRows) -> None:
        """Bring the raw predictions of a lane's rows up to date with all trees so far."""
        k, extra = self._loss.n_outputs, binned.extra
        # New rows, or rows that include trees after the iteration from which the fit resumes: start
        # from the baseline.
        if "raw" not in extra or extra["n_trees"] > len(self._trees):
            extra["raw"] = binned.allocate_zeros((k, binned.n), np.float64)
            extra["raw"] += self._baseline[:, None]
            extra["n_trees"] = 0
            if self._solver.vector_leaves:
                width = count_channels(k, self._constant)
                extra["packed"] = binned.allocate_zeros((binned.n, width), np.int32)
            else:
                extra["packed"] = binned.allocate_zeros((k, binned.n), np.int64)
            extra["index"] = binned.allocate_zeros((binned.n,), np.int32)
            extra["spare"] = binned.allocate_zeros((binned.n,), np.int32)
        for number in range(extra["n_trees"], len(self._trees)):
            _add_tree_values(
                binned, self._trees[number], self._outputs[number % len(self._outputs)]
            )
        extra["n_trees"] = len(self._trees)

    # -- starts and leaves ---------------------------------------------------------------------

    def _initial_prediction(self) -> NDArray[np.float64]:
        """Return the raw prediction before any tree: the best constant."""
        if self._loss.quantile is not None:
            # All rows are one group.
            all_rows = [(r.y, np.zeros(r.n, np.int64), r.weight) for r in self._binned_lanes]
            return self._group_quantiles(all_rows, 1)

        def targets(binned: BinnedRows, row_slice: slice) -> list[Array]:
            weight = (
                np.ones(len(binned.y[row_slice]))
                if binned.weight is None
                else binned.weight[row_slice]
            )
            return [*(self._loss.of_target(binned.y[row_slice]) * weight[:, None]).T, weight]

        sums = sum_exactly(self._rows, self._binned_lanes, targets, self._loss.n_outputs + 1)
        if not sums[-1] > 0:
            raise InvalidDataError(
                "All weights of the rows to train on are zero, or too small for the dtype of the "
                "rows. Give some rows a positive weight, or pass sample_weight / "
                "sample_weight.max()."
            )
        return self._loss.start(sums[:-1] / sums[-1])

    def _group_quantiles(
        self, lane_values: Sequence[GroupedValues], n_groups: int
    ) -> NDArray[np.float64]:
        """Return the loss's quantile of the values of each group, over all trainers."""
        share = self._loss.quantile
        assert share is not None
        # As in scikit-learn, interpolated between two order statistics if rows have no weights.
        return group_quantiles(self._rows, lane_values, n_groups, share, middle=not self._weighted)

    def _residual_quantiles(self, leaves: Sequence[Leaf]) -> NDArray[np.float64]:
        """Return the quantile of the residuals of each leaf's rows."""
        lanes = self._grower.lanes

        def residuals_by_leaf(i: int) -> list[GroupedValues]:
            lanes[i].fetch_raw_predictions()
            # Rows that the tree was not grown on are a separate group.
            unchosen = slice(lanes[i].n_chosen, lanes[i].n)
            groups = lanes[i].find_row_leaves([*(leaf.row_ranges[i] for leaf in leaves), unchosen])
            return [
                (binned.y - binned.extra["raw"][0], groups_of_lane, binned.weight)
                for binned, groups_of_lane in zip(lanes[i].binned_rows, groups, strict=True)
            ]

        lane_residuals = self._rows.map_lanes(residuals_by_leaf, range(len(lanes)))
        parts = [part for lane_parts in lane_residuals for part in lane_parts]
        return self._group_quantiles(parts, len(leaves) + 1)[:-1]

    # -- iterations ----------------------------------------------------------------------------

    def run(self) -> Solution:
        """Make the iterations: a tree for each output or for all, then scores and a checkpoint."""
        solver, k = self._solver, self._loss.n_outputs
        n_trees = len(self._outputs)
        self._grower = grower = TreeGrower(
            self._rows, self._binned_lanes, self._bins, solver.growth, self._missing,
            self._constant, self._device, len(self._outputs[0]),
        )  # fmt: skip
        self._sets = self._find_sets()
        sampler = None
        if solver.sampling is not None:
            sampler = RowSampler(
                solver.sampling, self._rows, grower.lanes, solver.seed, self._n_train,
                isinstance(self._loss, RankingLoss),
            )  # fmt: skip
        gradients = _GradientPacker(
            self._rows, grower.lanes, self._loss, solver.seed, self._constant, self._n_train,
            self._sets, sampler, solver.vector_leaves,
        )  # fmt: skip
        n_iter = len(self._trees) // n_trees
        self._scores.start_scoring(
            self._binned_lanes, self._held_out_lanes, self._n_train, solver.seed
        )
        if not self._scores.scores["train_score"]:
            self._score_rows()
        # After a loss the last iteration may have been the one to stop at; a warm start makes at
        # least one more.
        stopped = self._rows.kept is not None and self._scores.is_finished()
        while n_iter < solver.max_iter and not stopped and not self._rows.should_stop:
            dropped = self._drop_trees(n_iter)
            # Gradients of all outputs first: the trees of an iteration do not depend on each other.
            packed = gradients.pack_gradients(n_iter * k)
            rate = solver.learning_rate / (len(dropped) + 1)
            trees = [
                self._grow_tree(outputs, packed[i], n_iter * n_trees + i, rate)
                for i, outputs in enumerate(self._outputs)
            ]
            if solver.dropout is not None:
                self._restore_trees(dropped, trees)
            self._trees = [*self._trees, *trees]
            n_iter += 1
            self._rows.map_lanes(self._update_predictions, self._held_out_lanes)
            self._score_rows()
            stopped = self._scores.is_finished()
            self._rows.keep(n_iter, self._state(), scores=self._scores.score_watched())
        return Solution(np.empty(0), n_iter, extra=self._state()())

    def _grow_tree(self, outputs: range, packed: Any, tree_index: int, rate: float) -> Tree:
        """Grow the next tree of some outputs, and add its leaf values to the raw predictions."""
        solver = self._solver
        mode, units = packed
        tree, leaves = self._grower.grow(outputs.start, mode, units, solver.seed, tree_index)
        numbers = [leaf.node_index for leaf in leaves]
        if self._loss.quantile is not None:
            # A quantile has no curvature for a Newton step: leaves take the quantile of their
            # residuals (Friedman, algorithm 3).
            tree.value[numbers, 0] = self._residual_quantiles(leaves)
        tree.value *= rate
        if solver.dropout is not None:
            if not self._grid.unit:
                self._choose_grid([tree])
            tree = self._grid.scale_tree(tree)
        # The grower knows the rows of each leaf: only rows that were left out are sent down the
        # tree.
        unchosen_ranges = None
        if solver.sampling is not None:
            unchosen_ranges = self._grower.place_rows(tree, only_unchosen=True)

        def add_leaf_values(i: int) -> None:
            lane = self._grower.lanes[i]
            for binned in lane.binned_rows:
                binned.extra["n_trees"] += 1
            ranges, values = [leaf.row_ranges[i] for leaf in leaves], tree.value[numbers]
            if unchosen_ranges is not None:
                ranges = [*ranges, *(unchosen_ranges[i][node] for node in numbers)]
                values = np.tile(values, (2, 1))
            for output, output_values in zip(outputs, values.T, strict=True):
                lane.add_leaf_values(output, ranges, output_values)

        self._rows.map_lanes(add_leaf_values, range(len(self._grower.lanes)))
        return tree

    # -- dropped trees -------------------------------------------------------------------------

    def _start_dropout(self, snapshot: Mapping[str, Array] | None) -> None:
        """Round the existing trees to the grid of values when a fit is continued."""
        unit = 0.0 if snapshot is None else float(snapshot.get("value_unit", np.zeros(1))[0])
        self._grid = ValueGrid(unit) if unit else ValueGrid.choose(self._trees, self._baseline)
        # Trees of a fit without dropout are rounded here; others are on the grid already.
        self._baseline = self._grid.round(self._baseline)
        self._trees = [self._grid.scale_tree(tree) for tree in self._trees]
        self._largest_sum = float(np.abs(self._baseline).max()) + sum_largest(self._trees)
        for binned in (*self._binned_lanes, *self._held_out_lanes):
            # Rows that are an iteration behind include the trees before rounding.
            if binned.extra.get("n_trees") != len(self._trees):
                binned.extra["n_trees"] = _NO_SUCH_NUMBER

    def _choose_grid(self, trees: Sequence[Tree]) -> None:
        """Choose the grid by the first trees, and round the start to it."""
        self._grid = ValueGrid.choose(trees, self._baseline)
        start = self._grid.round(self._baseline)
        # Earlier trees predict zero, and all raw predictions are the start: the difference of two
        # near numbers is exact, and so is the sum.
        moves, self._baseline = start - self._baseline, start
        for output, move in enumerate(moves):
            for lane in self._grower.lanes:
                lane.add_leaf_values(output, [slice(0, lane.n)], np.array([move]))
        for binned in self._held_out_lanes:
            binned.extra["raw"] += moves[:, None]

    def _drop_trees(self, n_iter: int) -> list[int]:
        """Draw iterations, subtract their trees from training rows' predictions; return them."""
        dropout = self._solver.dropout
        if dropout is None:
            return []
        # Changes from here on are undone or completed only at the end of the iteration.
        for binned in (*self._binned_lanes, *self._held_out_lanes):
            binned.extra["n_trees"] = _NO_SUCH_NUMBER
        dropped = dropout.draw(n_iter, self._solver.seed)
        for number in self._list_trees(dropped):
            self._grower.add_tree(self._trees[number], number % self._loss.n_outputs, -1.0)
        return dropped

    def _restore_trees(self, dropped: Sequence[int], new: Sequence[Tree]) -> None:
        """Add dropped trees back, scaled down to make room for the new ones."""
        trees, k = list(self._trees), self._loss.n_outputs
        for number in self._list_trees(dropped):
            old_tree, output = trees[number], number % k
            tree = self._grid.scale_tree(old_tree, len(dropped) / (len(dropped) + 1))
            trees[number] = tree
            self._grower.add_tree(tree, output)
            # Held-out rows still include the tree: they get the difference, which is on the grid
            # too.
            change = replace(tree, value=tree.value - old_tree.value)
            add_change = partial(_add_tree_values, tree=change, outputs=(output,))
            self._rows.map_lanes(add_change, self._held_out_lanes)
        self._trees = trees
        self._largest_sum += sum_largest(new)
        self._grid.check_sum(self._largest_sum)
        for binned in self._binned_lanes:
            binned.extra["n_trees"] = len(trees) + len(new)
        for binned in self._held_out_lanes:
            binned.extra["n_trees"] = len(trees)

    def _list_trees(self, iterations: Sequence[int]) -> list[int]:
        """Return the numbers of the trees of some iterations."""
        k = self._loss.n_outputs
        return [iteration * k + output for iteration in iterations for output in range(k)]

    def _state(self) -> Any:
        """Return a function that packs the current state, for a checkpoint."""
        scores = {name: list(values) for name, values in self._scores.scores.items()}
        return partial(
            _pack_boosting_state,
            self._trees,
            len(self._outputs),
            self._bins,
            self._baseline,
            scores,
            self._grid.unit,
        )

    def _score_rows(self) -> None:
        """Score the current predictions, for early stopping."""
        if self._solver.stopping is not None:
            self._rows.map_lanes(lambda lane: lane.fetch_raw_predictions(), self._grower.lanes)
            self._scores.score_for_stopping()


def _add_tree_values(binned: BinnedRows, tree: Tree, outputs: Sequence[int]) -> None:
    """Add a tree's values of some outputs to the raw predictions of binned rows."""
    from daskml_dist.backends.tree_predict import add_binned_values

    tables = np.stack([tree.goes_left(i, binned.bins) for i in range(len(tree.feature))])
    # With several outputs, rows are sent down the tree for each: acceptable for few, held-out rows.
    for output, values in zip(outputs, tree.value.T, strict=True):
        add_binned_values(
            binned.rows, tree.feature, tree.left, tables, np.ascontiguousarray(values),
            binned.extra["raw"][output],
        )  # fmt: skip


def _pack_boosting_state(
    trees: Sequence[Tree], k: int, bins: Bins, baseline: Array,
    scores: Mapping[str, Sequence[float]], value_unit: float,
) -> dict[str, Array]:  # fmt: skip
    return {
        **Trees.from_trees(trees, k, bins).packed(),
        "baseline": baseline,
        "value_unit": np.array([value_unit]),
        **{name: np.array(values, np.float64) for name, values in scores.items()},
    }


class _GradientPacker:
    """Packer of gradients and hessians into the integers from which trees are grown.

    Parameters
    ----------
    rows : OwnRows
    lanes : sequence of TreeRows
        The rows of each own lane.
    loss : BoostLoss
    seed : int
    constant : bool
        Whether all hessians are 1.
    n_rows : int
        Rows of all trainers to train on.
    sets : object
        These rows by set, for a loss of sets of rows; None for a loss of single rows.
    sampler : RowSampler or None
        Draws the rows from which trees are grown.
    vector : bool
        Whether a tree is grown from the gradients of all outputs together.
    """

    def __init__(
        self, rows: OwnRows, lanes: Sequence[TreeRows], loss: BoostLoss, seed: int,
        constant: bool, n_rows: int, sets: Any = None,
        sampler: RowSampler | None = None, vector: bool = False,
    ) -> None:  # fmt: skip
        self._rows, self._lanes, self._loss, self._seed = rows, lanes, loss, seed
        self._constant, self._n_rows, self._sampler = constant, n_rows, sampler
        self._vector = vector
        self._of_sets: SetGradients | None = None
        if sets is not None:
            self._of_sets = loss.make_set_gradients(sets, seed)

    def pack_gradients(self, tree_index: int) -> list[tuple[int, Any]]:
        """Compute and pack all rows' gradients for the trees of an iteration.

        `tree_index` is the iteration's times the number of outputs. Return, for each tree, how they
        are packed, and the units of gradients and hessians.
        """
        if self._of_sets is not None:
            gradients = self._of_sets.compute_gradients(self._lanes, tree_index)
        else:
            gradients = self._rows.map_lanes(
                lambda lane: lane.make_gradients(self._loss, self._constant), self._lanes
            )
        units = self._find_largest(gradients)
        if self._sampler is not None:
            multiplied = self._sampler.choose(tree_index // self._loss.n_outputs)
            if multiplied is not None:
                units = self._find_largest(multiplied)
        if self._vector:
            return [(VECTOR, self._pack_vectors(units))]
        return [self._choose_packing(k, units[:, k], tree_index + k) for k in range(units.shape[1])]

    def _find_largest(self, lane_maxima: Sequence[Array]) -> Array:
        """Return the largest gradients and hessians over all trainers, which give the units."""
        largest = self._rows.max_trainers(np.max(lane_maxima, axis=0).ravel())
        if not np.isfinite(largest).all():
            raise DivergedError(
                "The gradients became NaN or infinite: the targets, the weights, or learning_rate "
                f"are too large. {self._loss.overflow_remedy}"
            )
        return np.asarray(largest.reshape(2, -1))

    def _choose_packing(
        self, k: int, units: Array, tree_index: int
    ) -> tuple[int, tuple[float, float]]:
        """Pack the gradients of an output, into few bits if they suffice; return mode and units."""
        if not self._constant and self._n_rows > SAMPLE_ROWS:
            # Few bits are tried first; they suffice if gradients are many units on average, so that
            # rounding adds little to their variance.
            squares, sums = self._pack_output(k, ROUNDED, units, _ROUNDED_BITS, tree_index)
            if (
                squares >= _MIN_MEAN_SQUARE * self._n_rows
                and sums >= _MIN_MEAN_HESSIAN * self._n_rows
            ):
                return ROUNDED, _packing_units(units, _ROUNDED_BITS)
        mode = CONSTANT if self._constant else EXACT
        self._pack_output(k, mode, units, _EXACT_BITS, tree_index)
        of_g, of_h = _packing_units(units, _EXACT_BITS)
        return mode, (of_g, 1.0 if self._constant else of_h)

    def _pack_vectors(self, units: Array) -> Array:
        """Round the gradients of all outputs; return the units, of shape (2, n_outputs)."""
        unit_pairs = [_packing_units(of_output, _EXACT_BITS) for of_output in units.T]
        output_units = np.ascontiguousarray(np.transpose(unit_pairs))
        if self._constant:
            output_units[1] = 1.0
        self._rows.map_lanes(lambda lane: lane.pack_vectors(*(1 / output_units)), self._lanes)
        return output_units

    def _pack_output(
        self, k: int, mode: int, units: Array, bits: tuple[int, int], tree_index: int
    ) -> list[int]:
        """Pack the gradients of an output; return sums of squared gradients, and of hessians.

        Both are in units of the last bit, and of all trainers only if they are rounded.
        """
        key = int(draw_by_hash([tree_index], self._seed, _ROUNDING_DRAW)[0] >> np.uint64(32))
        g_unit, h_unit = _packing_units(units, bits)
        lane_sums = self._rows.map_lanes(
            lambda lane: lane.pack_output_gradients(k, mode, 1 / g_unit, 1 / h_unit, key),
            self._lanes,
        )
        own_sums = np.array(lane_sums, np.int64).sum(axis=0)
        total: list[int] = (
            self._rows.sum_trainers(own_sums) if mode == ROUNDED else own_sums
        ).tolist()
        return total


def _packing_units(units: Array, bits: tuple[int, int]) -> tuple[float, float]:
    """Return the units (powers of two) of gradients and hessians packed into some bits."""
    g, h = (float(np.ldexp(1.0, int(np.frexp(u)[1]) - b)) for u, b in zip(units, bits, strict=True))
    return g, h
