"""Gradient boosting of trees on the rows of all trainers: the same trees on any number of them.

Decisions follow from sums of integers, or from a row alone; random draws are hashed from the
row's number. Gradients of a tree are rounded to 31 bits and hessians to 24, in units that are
powers of two and follow from the largest of all rows. For more rows than bins are chosen from, 13
and 12 bits are enough: each number is rounded up or down at random, so that sums are right in the
mean, and histograms take half the time (Shi et al., "Quantized training of gradient boosting
decision trees", NeurIPS 2022).

References
----------
T. Chen and C. Guestrin, "XGBoost: A scalable tree boosting system", KDD 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import CONSTANT, EXACT, ROUNDED, TreeRows, open_tree_device
from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.models.bins import Bins, draw_by_hash
from daskml_dist.models.trees import Tree, Trees
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.binning import SAMPLE_ROWS, BinnedRows, HoldoutMask, bin_rows, find_bins
from daskml_dist.solvers.boosting_scores import (
    BoostLoss,
    BoostScores,
    GroupedValues,
    StoppingRule,
    WatchedScores,
    group_quantiles,
    sum_exactly,
)
from daskml_dist.solvers.own_rows import Array, OwnRows, RowSolver
from daskml_dist.solvers.tree_growth import Leaf, TreeGrower, TreeParams

#: Bits of a gradient and of a hessian: all digits of float32, or few where there are many rows.
_EXACT_BITS, _ROUNDED_BITS = (30, 24), (12, 12)
#: Mean squared gradient, and mean hessian, in units of the last bit, from which few bits suffice.
_MIN_MEAN_SQUARE, _MIN_MEAN_HESSIAN = 256, 4
#: Keys of these uses of the seed, so that draws do not repeat another use's.
_ROUNDING_DRAW, _FEATURE_DRAW = 4, 3


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
    categories : tuple of ndarray of float64, or None, a feature
        Sorted; empty where they are to be looked for. None: the feature is a number.
    seed : int
    stopping : StoppingRule or None
        None: all iterations are made.
    aside : HoldoutMask or None
        Rows that are held out, to stop early by or to be watched.
    watching : WatchedScores or None
        Scores of rows held out that the user watches.
    begin : mapping of str to ndarray, or None
        State of a fit to go on from.
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

    @property
    def max_passes(self) -> int:
        """Return one pass an iteration."""
        return self.max_iter

    @property
    def score_names(self) -> tuple[str, ...]:
        """Return the keys of the scores that each iteration reports."""
        return () if self.watching is None else self.watching.names

    def solve(self, model: Any, rows: OwnRows) -> Solution:
        """Boost."""
        return _BoostingRun(self, rows).run()


class _BoostingRun:
    """Boosting on one trainer's rows."""

    def __init__(self, solver: GradientBoostingSolver, rows: OwnRows) -> None:
        self._solver, self._rows, self._loss = solver, rows, solver.loss
        self._device = open_tree_device(rows.device)
        self._aside = None if solver.aside is None else solver.aside.located(rows)
        kept = rows.kept or solver.begin
        self._before: list[Tree] = []
        bins, scores = None, dict[str, list[float]](train_score=[], validation_score=[])
        if kept is not None:
            trees = Trees.unpacked(kept)
            bins, self._before = trees.bins, [trees.tree(i) for i in range(len(trees))]
            scores = {name: kept[name].tolist() for name in scores}
        self._scores = BoostScores(rows, solver.stopping, solver.watching, self._loss, scores)
        self._rooms, self._held = self._bin_own_rows(bins)
        self._check_row_counts()
        bins = self._rooms[0].bins
        self._bins = bins
        # Weights of 1 are as good as none. A trainer's rows may all be held out.
        weights = [room.weight for room in self._rooms if room.weight is not None]
        weighted = float(any((weight != 1).any() for weight in weights))
        self._weighted = bool(rows.max_trainers(np.array([weighted]))[0])
        self._constant = self._loss.constant_hessian and not self._weighted
        self._missing = self._find_missing_features()
        self._baseline = self._initial_prediction() if kept is None else kept["baseline"]
        self._trees = self._before
        rows.map_lanes(self._update_predictions, [*self._rooms, *self._held])

    # -- rows ----------------------------------------------------------------------------------

    def _bin_own_rows(self, bins: Bins | None) -> tuple[list[BinnedRows], list[BinnedRows]]:
        """Return the binned rows of the own lanes, and those held out."""
        rows, solver, aside = self._rows, self._solver, self._aside
        made: dict[int, Any] = rows.memory.setdefault("bin_rows", {})
        if bins is None:
            bins = rows.memory.get("bins")
        # Who has come after a loss knows none.
        if rows.max_trainers(np.array([float(bins is None)]))[0]:
            n = float(rows.n_rows) if aside is None else aside.n_left(rows.n_rows)
            bins = find_bins(rows, solver.max_bins, solver.categories, solver.seed, aside, n)
        assert bins is not None
        rows.memory["bins"] = bins
        # Forget lanes that went to other trainers after a loss.
        for lane in set(made) - set(rows.lanes):
            del made[lane]
        new = [lane for lane in rows.lanes if lane not in made]
        stopping = solver.stopping
        numbered = solver.watching is not None
        if stopping is not None:
            numbered |= stopping.scorer is not None or stopping.within is not None
        found = rows.map_lanes(lambda lane: bin_rows(rows, lane, bins, aside, numbered), new)
        made.update(zip(new, found, strict=True))
        own = [made[lane][0] for lane in rows.lanes]
        held = [made[lane][1] for lane in rows.lanes if made[lane][1] is not None]
        return own, held

    def _check_row_counts(self) -> None:
        n = self._rows.sum_trainers(
            np.array([sum(r.n for r in self._rooms), sum(r.n for r in self._held)])
        )
        self._n_train, self._n_held = n.tolist()
        if not self._n_train or (self._aside is not None and not self._n_held):
            raise InvalidDataError(
                f"Early stopping leaves {self._n_train} rows to train on and {self._n_held} to "
                "validate with. Change validation_fraction, or set early_stopping=False."
            )

    def _find_missing_features(self) -> NDArray[np.uint8]:
        missing = np.max([room.missing for room in self._rooms], axis=0)
        return np.asarray(self._rows.max_trainers(missing), np.uint8)

    def _update_predictions(self, room: BinnedRows) -> None:
        """Make what is kept of each row, as all trees so far leave it."""
        k, extra = self._loss.n_outputs, room.extra
        # Nothing is kept, or it is ahead of the iteration to go on from: start from the baseline.
        if "raw" not in extra or extra["n_trees"] > len(self._trees):
            extra["raw"] = room.room((k, room.n), np.float64)
            extra["raw"] += self._baseline[:, None]
            extra["n_trees"] = 0
            extra["packed"] = room.room((k, room.n), np.int64)
            extra["index"] = room.room((room.n,), np.int32)
            extra["spare"] = room.room((room.n,), np.int32)
        for number in range(extra["n_trees"], len(self._trees)):
            _add_tree_values(room, self._trees[number], number % k)
        extra["n_trees"] = len(self._trees)

    # -- starts and leaves ---------------------------------------------------------------------

    def _initial_prediction(self) -> NDArray[np.float64]:
        """Return the raw prediction of no tree."""
        if self._loss.quantile is not None:
            whole = [(r.y, np.zeros(r.n, np.int64), r.weight) for r in self._rooms]
            return self._group_quantiles(whole, 1)

        def targets(room: BinnedRows, at: slice) -> list[Array]:
            weight = _row_weights(room, at)
            return [*(self._loss.of_target(room.y[at]) * weight[:, None]).T, weight]

        sums = sum_exactly(self._rows, self._rooms, targets, self._loss.n_outputs + 1)
        if not sums[-1] > 0:
            raise InvalidDataError(
                "All weights of the rows to train on are zero. Give some rows a positive weight."
            )
        return self._loss.start(sums[:-1] / sums[-1])

    def _group_quantiles(
        self, given: Sequence[GroupedValues], n_groups: int
    ) -> NDArray[np.float64]:
        share = self._loss.quantile
        assert share is not None
        return group_quantiles(self._rows, given, n_groups, share, middle=not self._weighted)

    def _residual_quantiles(self, leaves: Sequence[Leaf]) -> NDArray[np.float64]:
        """Return the quantile of the residuals of each leaf's rows."""

        lanes = self._grower.lanes

        def of_lane(i: int) -> list[GroupedValues]:
            lanes[i].fetch_raw_predictions()
            groups = lanes[i].find_row_leaves([leaf.at[i] for leaf in leaves])
            return [
                (room.y - room.extra["raw"][0], of_room, room.weight)
                for room, of_room in zip(lanes[i].binned_rows, groups, strict=True)
            ]

        given = self._rows.map_lanes(of_lane, range(len(lanes)))
        return self._group_quantiles([part for parts in given for part in parts], len(leaves))

    # -- iterations ----------------------------------------------------------------------------

    def run(self) -> Solution:
        """Make the iterations."""
        solver, k = self._solver, self._loss.n_outputs
        self._grower = grower = TreeGrower(
            self._rows, self._rooms, self._bins, solver.growth, self._missing, self._constant,
            self._device,
        )  # fmt: skip
        gradients = GradientPacker(
            self._rows, grower.lanes, self._loss, solver.seed, self._constant, self._n_train
        )
        n_iter = len(self._trees) // k
        self._scores.start_scoring(self._rooms, self._held, self._n_train, solver.seed)
        if not self._scores.found["train_score"]:
            self._score_rows()
        # A fit that goes on from another makes an iteration at least.
        stopped = self._rows.kept is not None and self._scores.is_finished()
        while n_iter < solver.max_iter and not stopped and not self._rows.should_stop:
            # All outputs' gradients at the raw predictions so far.
            packed = gradients.make(n_iter * k)
            trees = [
                self._grow_tree(output, packed[output], n_iter * k + output) for output in range(k)
            ]
            self._trees = [*self._trees, *trees]
            n_iter += 1
            self._rows.map_lanes(self._update_predictions, self._held)
            self._score_rows()
            stopped = self._scores.is_finished()
            self._rows.keep(n_iter, self._state(), scores=self._scores.score_watched())
        return Solution(np.empty(0), n_iter, extra=self._state()())

    def _grow_tree(self, output: int, packed: Any, number: int) -> Tree:
        """Grow the next tree of an output, and add its leaf values to the raw predictions."""
        solver = self._solver
        tree, leaves = self._grower.grow(output, *packed, solver.seed, _FEATURE_DRAW, number)
        if self._loss.quantile is not None:
            numbers = [leaf.number for leaf in leaves]
            # Losses of quantiles: leaves take a quantile of residuals, not a Newton step.
            tree.value[numbers, 0] = self._residual_quantiles(leaves)
        tree.value *= solver.learning_rate
        self._add_leaf_values(tree, leaves, output)
        return tree

    def _state(self) -> Any:
        """Return a function that makes the checkpoint of this moment."""
        scores = {name: list(values) for name, values in self._scores.found.items()}
        return partial(
            _pack_boosting_state,
            self._trees,
            self._loss.n_outputs,
            self._bins,
            self._baseline,
            scores,
        )

    def _add_leaf_values(self, tree: Tree, leaves: Sequence[Leaf], output: int) -> None:
        """Add the leaves' values to the raw predictions of their rows."""
        values = tree.value[[leaf.number for leaf in leaves], 0]

        def add(i: int) -> None:
            lane = self._grower.lanes[i]
            for room in lane.binned_rows:
                # A fit that goes on from an earlier iteration makes the predictions anew.
                room.extra["n_trees"] += 1
            lane.add_leaf_values(output, [leaf.at[i] for leaf in leaves], values)

        self._rows.map_lanes(add, range(len(self._grower.lanes)))

    def _score_rows(self) -> None:
        """Score the rows as they are predicted now."""
        if self._solver.stopping is not None:
            self._rows.map_lanes(lambda lane: lane.fetch_raw_predictions(), self._grower.lanes)
            self._scores.score_for_stopping()


def _row_weights(room: BinnedRows, at: slice) -> Array:
    return np.ones(len(room.y[at])) if room.weight is None else room.weight[at]


def _add_tree_values(room: BinnedRows, tree: Tree, output: int) -> None:
    """Add a tree's values to the raw predictions of binned rows."""
    from daskml_dist.backends.tree_predict import add_binned_values

    tables = np.stack([tree.goes_left(i, room.bins) for i in range(len(tree.feature))])
    add_binned_values(
        room.rows, tree.feature, tree.left, tables, tree.value[:, 0], room.extra["raw"][output]
    )


def _pack_boosting_state(
    trees: Sequence[Tree], k: int, bins: Bins, baseline: Array,
    scores: Mapping[str, Sequence[float]],
) -> dict[str, Array]:  # fmt: skip
    return {
        **Trees.of(trees, k, bins).packed(),
        "baseline": baseline,
        **{name: np.array(values, np.float64) for name, values in scores.items()},
    }


class GradientPacker:
    """Maker of the integer gradients that trees are grown on.

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
    """

    def __init__(
        self, rows: OwnRows, lanes: Sequence[TreeRows], loss: BoostLoss, seed: int,
        constant: bool, n_rows: int,
    ) -> None:  # fmt: skip
        self._rows, self._lanes, self._loss, self._seed = rows, lanes, loss, seed
        self._constant, self._n_rows = constant, n_rows

    def make(self, number: int) -> list[tuple[int, tuple[float, float]]]:
        """Make the gradients of all rows for some trees; how each output's are packed."""
        made = self._rows.map_lanes(
            lambda lane: lane.make_gradients(self._loss, self._constant), self._lanes
        )
        # The largest gradient and hessian of all trainers give the units.
        largest = self._rows.max_trainers(np.max(made, axis=0).ravel())
        if not np.isfinite(largest).all():
            raise DivergedError(
                "The gradients became NaN or infinite: the targets, or learning_rate, are too "
                "large. Scale the targets, or lower learning_rate."
            )
        units = largest.reshape(2, -1)
        return [self._choose_packing(k, units[:, k], number + k) for k in range(units.shape[1])]

    def _choose_packing(self, k: int, units: Array, number: int) -> tuple[int, tuple[float, float]]:
        """Pack the gradients of an output, rounded where they are enough; how, and the units."""
        if not self._constant and self._n_rows > SAMPLE_ROWS:
            # Few bits are tried first; they are enough if gradients are many units on average.
            squares, sums = self._pack_output(k, ROUNDED, units, _ROUNDED_BITS, number)
            if (
                squares >= _MIN_MEAN_SQUARE * self._n_rows
                and sums >= _MIN_MEAN_HESSIAN * self._n_rows
            ):
                return ROUNDED, _packing_units(units, _ROUNDED_BITS)
        mode = CONSTANT if self._constant else EXACT
        self._pack_output(k, mode, units, _EXACT_BITS, number)
        of_g, of_h = _packing_units(units, _EXACT_BITS)
        return mode, (of_g, 1.0 if self._constant else of_h)

    def _pack_output(
        self, k: int, mode: int, units: Array, bits: tuple[int, int], number: int
    ) -> list[int]:
        """Pack the gradients of an output; the squares of rounded ones, and rounded hessians."""
        key = int(draw_by_hash([number], self._seed, _ROUNDING_DRAW)[0] >> np.uint64(32))
        of_g, of_h = _packing_units(units, bits)
        found = self._rows.map_lanes(
            lambda lane: lane.pack_output_gradients(k, mode, 1 / of_g, 1 / of_h, key), self._lanes
        )
        own = np.array(found, np.int64).sum(axis=0)
        total: list[int] = (self._rows.sum_trainers(own) if mode == ROUNDED else own).tolist()
        return total


def _packing_units(units: Array, bits: tuple[int, int]) -> tuple[float, float]:
    """Return the units, powers of two, of gradients and hessians packed into so many bits."""
    g, h = (float(np.ldexp(1.0, int(np.frexp(u)[1]) - b)) for u, b in zip(units, bits, strict=True))
    return g, h
