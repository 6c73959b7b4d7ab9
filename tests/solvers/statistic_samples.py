"""Samples of every statistic: a model, the statistic, and encoded targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from daskml_dist.losses import LOSSES
from daskml_dist.models.batched import TEST, TRAIN, BatchedLinear, FoldAssignment
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.naive_bayes import RowsByClass
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.solvers import Statistic
from daskml_dist.solvers.batched_gradients import (
    BatchedGradient,
    BatchedHessian,
    PerSplitStatistic,
    SplitLabelWeights,
    SplitWeights,
)
from daskml_dist.solvers.batched_scores import (
    BatchedClassRanks,
    BatchedRanks,
    BatchedScores,
    RoleCounts,
)
from daskml_dist.solvers.bisecting_k_means import LeafAssignment, LeafErrors, LeafStatistic
from daskml_dist.solvers.em import DrawnMoments, ExpectedMoments, NearestMoments
from daskml_dist.solvers.k_means import (
    CandidateWeights,
    CentroidAssignment,
    FarthestRows,
    SeedSample,
)
from daskml_dist.solvers.latent_dirichlet import DocumentBounds, TopicWords
from daskml_dist.solvers.lbfgs import HuberSums
from daskml_dist.solvers.least_squares import SecondMoments
from daskml_dist.solvers.lock_step import PerTargetStatistic
from daskml_dist.solvers.naive_bayes import (
    CategoryCounts,
    ClassCounts,
    ClassMoments,
    LargestCategory,
)
from daskml_dist.solvers.newton import LossHessian, RoundedTube
from daskml_dist.solvers.nmf import (
    EntryTotals,
    LeastSquaresWeights,
    MultiplicativeStep,
    SignedNorms,
    StepWeights,
)
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.parallel_coordinate_boosting import Correlations, LongestRow
from daskml_dist.solvers.penalty_paths import LeaveOneOutErrors, PathErrorSums, PathHits
from daskml_dist.solvers.principal_components import GramProducts, ScatterStatistic

N_ROWS, N_FEATURES = 60, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_ROWS, N_FEATURES)) + 1
CODES = RNG.integers(0, 3, N_ROWS)
SIGNS = np.where(RNG.random(N_ROWS) < 0.5, -1.0, 1.0)
NUMBERS = RNG.normal(size=N_ROWS)
WEIGHT = RNG.random(N_ROWS) * 2
#: Cases of linear models: classes, columns of the target, and the encoded target.
TASKS: dict[str, tuple[int, int | None, Any]] = {
    "two": (2, None, SIGNS),
    "three": (3, None, CODES.astype(np.int32)),
    "number": (0, None, NUMBERS),
    "numbers": (0, 2, RNG.normal(size=(N_ROWS, 2))),
}

#: A model, a statistic and the targets that it sums.
Sample = tuple[Any, Statistic, Any]


def _linear(
    make: Callable[[Any], Statistic], losses: dict[str, list[str]]
) -> Iterator[tuple[str, Sample]]:
    """Return samples with and without an intercept; `make` gets the parameters."""
    for task, names in losses.items():
        n_classes, n_targets, y = TASKS[task]
        for name in names:
            for intercept in (True, False):
                model = LinearModel(LOSSES[name](), N_FEATURES, n_classes, intercept, n_targets)
                w = np.random.default_rng(1).normal(size=model.shape) / 3
                yield f"{name}-{task}-{'intercept' if intercept else 'plain'}", (model, make(w), y)


def _moments() -> Iterator[tuple[str, Sample]]:
    for task in ("number", "numbers"):
        _, n_targets, y = TASKS[task]
        model = LinearModel(LOSSES["squared_error"](), N_FEATURES, 0, True, n_targets)
        y_shift, x_shift = RNG.normal(size=n_targets or 1), RNG.normal(size=N_FEATURES)
        transform = RNG.normal(size=(N_FEATURES, N_FEATURES))
        yield f"{task}-plain", (model, SecondMoments(y_shift), y)
        yield f"{task}-shifted", (model, SecondMoments(y_shift, x_shift), y)
        yield f"{task}-transformed", (model, SecondMoments(y_shift, x_shift, transform), y)


def _by_class(**statistics: Statistic) -> Iterator[tuple[str, Sample]]:
    for n_classes in (2, 3):
        for name, statistic in statistics.items():
            model = RowsByClass(N_FEATURES, n_classes)
            yield f"{name}-{n_classes}", (model, statistic, np.minimum(CODES, n_classes - 1))


def _of_leaves() -> dict[type[Statistic], dict[str, Sample]]:
    """Return sums over one leaf of three."""
    rng, model = np.random.default_rng(2), Unlabelled(N_FEATURES)
    pairs, split = rng.normal(size=(2, 2, N_FEATURES)) + 1, np.array([0, 1])
    trees = {
        "near": LeafAssignment(split, pairs, pairs.mean(axis=1)),
        "there": LeafAssignment(split, pairs, None),
    }
    sums_by_kind = {
        "sums": CentroidAssignment(pairs[0], None),
        "seeds": SeedSample(3, (pairs[0],), None, 0, 1),
        "farthest": FarthestRows(3, pairs[0], None),
    }
    return {
        LeafStatistic: {
            f"{name}-{what}": (model, LeafStatistic(sums, tree, 2), None)
            for name, tree in trees.items()
            for what, sums in sums_by_kind.items()
        },
        LeafErrors: {name: (model, LeafErrors(tree), None) for name, tree in trees.items()},
    }


def _of_centres(statistic: type[Statistic], **more: Any) -> dict[str, Sample]:
    """Return samples near the origin, and near the rows."""
    centres, model = np.random.default_rng(1).normal(size=(4, N_FEATURES)), Unlabelled(N_FEATURES)
    shifts = {"near": X.mean(axis=0), "there": None}
    drawn = statistic in (SeedSample, CandidateWeights)
    where: dict[str, Any] = (
        {"groups": (centres[:1], centres[1:])} if drawn else {"centroids": centres}
    )
    return {
        name: (model, statistic(shift=shift, **where, **more), None)
        for name, shift in shifts.items()
    }


def _of_documents() -> dict[type[Statistic], dict[str, Sample]]:
    topics, model = np.random.default_rng(1).random((N_FEATURES, 3)), Unlabelled(N_FEATURES)
    how: dict[str, Any] = {"prior": 0.5, "max_iter": 5, "tol": 0.0, "signed": True}
    words = TopicWords(topics=topics, seed=0, round=1, batch=1, n_batches=2, **how)
    bounds = DocumentBounds(log_topics=np.log(topics), **how)
    return {
        TopicWords: {"half": (model, words, None)},
        DocumentBounds: {"all": (model, bounds, None)},
    }


def _of_parts() -> dict[type[Statistic], dict[str, Sample]]:
    """Return sums of non-negative factorisations; rows on a GPU, and few rows, begin equally."""
    across, model = np.random.default_rng(1).random((N_FEATURES, 3)), Unlabelled(N_FEATURES)
    vectors = np.random.default_rng(2).normal(size=(N_FEATURES, 3))
    exact: dict[str, Any] = {"sweeps": 9, "tol": 0.0, "l1": 0.1, "l2": 0.2}
    steps = {
        f"{beta}-{'drawn' if spread else 'vectors'}": MultiplicativeStep(
            across,
            StepWeights(
                3, None if spread else vectors, 0.3, spread, beta=beta, history=(across,), l1=0.1
            ),
            recomputes=bool(spread),
            looks=True,
        )
        for beta, spread in ((2.0, 0.5), (2.0, 0.0), (1.0, 0.0), (1.0, 0.5))
    }
    return {
        EntryTotals: {"all": (model, EntryTotals(counts=True, signed=True), None)},
        SignedNorms: {"all": (model, SignedNorms(vectors), None)},
        LeastSquaresWeights: {
            "sums": (model, LeastSquaresWeights(across, **exact), None),
            "error": (model, LeastSquaresWeights(across, **exact, only_error=True), None),
        },
        MultiplicativeStep: {name: (model, step, None) for name, step in steps.items()},
    }


def _of_components(statistic: type[Statistic], **more: Any) -> dict[str, Sample]:
    """Return samples of full covariances, and of variances."""
    rng, model = np.random.default_rng(1), Unlabelled(N_FEATURES)
    means, factors = rng.normal(size=(3, N_FEATURES)), rng.normal(size=(3, N_FEATURES, N_FEATURES))
    found = {}
    for whole in (True, False):
        options = (
            dict(more, factors=factors if whole else factors[0, :3])
            if "constants" in more
            else more
        )
        name = "whole" if whole else "diagonal"
        found[name] = model, statistic(means, X.mean(axis=0), whole, **options), None
    return found


#: Samples of each statistic. A new statistic needs a line here.
SAMPLES: dict[type[Statistic], dict[str, Sample]] = {
    LossGradient: dict(
        _linear(
            LossGradient,
            {
                "two": ["log_loss"],
                "three": ["log_loss", "hinge"],
                "number": ["poisson"],
                "numbers": ["squared_error"],
            },
        )
    ),
    LossHessian: {
        **dict(
            _linear(
                LossHessian,
                {
                    "two": ["log_loss"],
                    "three": ["log_loss"],
                    "number": ["poisson"],
                    "numbers": ["squared_error"],
                },
            )
        ),
        **{
            f"tube-{epsilon}-{name}": sample
            for epsilon in (0.0, 0.3)
            for name, sample in _linear(
                lambda w, epsilon=epsilon: LossHessian(w, RoundedTube(epsilon, 0.5)),
                {"number": ["epsilon_insensitive"]},
            )
        },
    },
    HuberSums: dict(_linear(lambda w: HuberSums(w, 0.7, 1.35), {"number": ["squared_error"]})),
    LongestRow: dict(_linear(lambda w: LongestRow(), {"two": ["log_loss"]})),
    Correlations: dict(_linear(Correlations, {"two": ["log_loss"], "three": ["log_loss"]})),
    SecondMoments: dict(_moments()),
    ClassCounts: dict(_by_class(plain=ClassCounts(), over=ClassCounts(threshold=1.0))),
    ClassMoments: dict(_by_class(plain=ClassMoments())),
    LargestCategory: dict(_by_class(plain=LargestCategory(signed=True))),
    CategoryCounts: dict(_by_class(plain=CategoryCounts((3, 1, 2, 2, 4)))),
    CentroidAssignment: _of_centres(CentroidAssignment),
    FarthestRows: _of_centres(FarthestRows, n_rows=3),
    SeedSample: _of_centres(SeedSample, n_rows=3, seed=0, round=1),
    CandidateWeights: _of_centres(CandidateWeights),
    **_of_leaves(),
    **_of_documents(),
    **_of_parts(),
    ExpectedMoments: _of_components(ExpectedMoments, constants=np.log([0.2, 0.3, 0.5])),
    NearestMoments: _of_components(NearestMoments),
    DrawnMoments: _of_components(DrawnMoments, seed=0, run=1),
    ScatterStatistic: {
        name: (Unlabelled(N_FEATURES), ScatterStatistic(double), None)
        for name, double in (("own", False), ("double", True))
    },
    GramProducts: {
        name: (
            Unlabelled(N_FEATURES),
            GramProducts(RNG.normal(size=(N_FEATURES, m)), shift, not bare, bare),
            None,
        )
        for name, m, shift, bare in (
            ("two", 2, None, False),
            ("shifted", 2, X.mean(axis=0), False),
            ("one", 1, None, False),
            ("bare", 2, None, True),
        )
    },
}


class _Thirds(FoldAssignment):
    """Fold assignment whose splits each hold out a third of the rows."""

    n_splits = 3

    def assign_roles(self, codes: Any, split: int) -> Any:
        return np.where(codes == split, TEST, TRAIN).astype(np.int8)


def _stacked(make: Callable[[Any, Any], Statistic], *tasks: str) -> dict[str, Sample]:
    """Return samples of seven columns; `make` gets their parameters and splits."""
    found = {}
    for task in tasks or ("two", "three", "number"):
        n_classes, n_targets, y = TASKS[task]
        loss = LOSSES["log_loss" if n_classes else "squared_error"]()
        each = LinearModel(loss, N_FEATURES, n_classes, True, n_targets)
        splits = np.array([0, 0, 1, 1, 1, 2, 2])
        w = np.random.default_rng(1).normal(size=(len(splits), *each.shape)) / 3
        codes = (y > 0) * 1 if task == "two" else y
        stacked = BatchedLinear(each, _Thirds(), np.arange(n_classes) if n_classes else None)
        targets = stacked.encode(np.c_[codes, CODES + 1], None, np.float64)
        found[task] = stacked, make(w, splits), targets
    return found


def _of_paths(make: Callable[[Any], Statistic], task: str = "numbers") -> dict[str, Sample]:
    """Return samples of three penalties per split; `make` gets their parameters."""
    return _stacked(lambda w, splits: make(np.stack([w[:3], w[2:5], w[4:]])), task)


def _left_out() -> dict[str, Sample]:
    found, rng = {}, np.random.default_rng(2)
    for task in ("number", "numbers"):
        _, n_targets, y = TASKS[task]
        model = LinearModel(LOSSES["squared_error"](), N_FEATURES, 0, True, n_targets)
        w, basis = rng.normal(size=(3, *model.shape)), rng.normal(size=(N_FEATURES, 4))
        shrunk = rng.random((3, 4)) / 1_000
        found[task] = model, LeaveOneOutErrors(w, X.mean(axis=0), basis, shrunk, 1 / N_ROWS), y
    return found


def _of_targets() -> dict[str, Sample]:
    """Return samples of both targets, and of one of them."""
    _, n_targets, y = TASKS["numbers"]
    model = LinearModel(LOSSES["huber"](), N_FEATURES, 0, True, n_targets)
    w = np.random.default_rng(1).normal(size=model.shape) / 3
    each = tuple(LossGradient(w[:, k : k + 1]) for k in range(2))
    return {
        "both": (model, PerTargetStatistic(each, (0, 1)), y),
        "one": (model, PerTargetStatistic(each[1:], (1,)), y),
    }


SAMPLES |= {
    PerTargetStatistic: _of_targets(),
    LeaveOneOutErrors: _left_out(),
    PathErrorSums: {
        f"{task}-{'absolute' if absolute else 'squared'}": sample
        for absolute in (False, True)
        for name in ("number", "numbers")
        for task, sample in _of_paths(lambda w, a=absolute: PathErrorSums(w, TEST, a), name).items()
    },
    PathHits: {
        task: sample
        for name in ("number", "numbers")
        for task, sample in _of_paths(lambda w: PathHits(w, TEST), name).items()
    },
    SplitLabelWeights: _stacked(lambda w, splits: SplitLabelWeights(), "two", "three"),
    BatchedGradient: _stacked(BatchedGradient),
    BatchedHessian: _stacked(lambda w, splits: BatchedHessian(w, splits, 1)),
    RoleCounts: _stacked(lambda w, splits: RoleCounts(TEST)),
    BatchedClassRanks: _stacked(
        lambda w, splits: BatchedClassRanks(w, splits, TEST, N_ROWS), "three"
    ),
    BatchedRanks: _stacked(lambda w, splits: BatchedRanks(w, splits, TEST, N_ROWS), "two"),
    BatchedScores: _stacked(
        lambda w, splits: BatchedScores(w, splits, TEST, pairs=True, places=True)
    ),
    SplitWeights: _stacked(lambda w, splits: SplitWeights()),
    PerSplitStatistic: _stacked(lambda w, splits: PerSplitStatistic(LossGradient(w[0]), (0, 2))),
}
