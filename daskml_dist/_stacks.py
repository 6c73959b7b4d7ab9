"""Stacks: fits of linear estimators that differ in numbers alone, and in their rows, as one fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist._base import BaseOnRows
from daskml_dist._linear import BaseLinear
from daskml_dist._rounds import _SHARE, BaseRounds
from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.collection import Collection
from daskml_dist.data.spread import Spread
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.stacked import TEST, TRAIN, Roles, StackedLinear
from daskml_dist.solvers import Solution, Solver
from daskml_dist.solvers.by_class import OnePass
from daskml_dist.solvers.stacked import CodeWeights, Column, StackedSolver
from daskml_dist.solvers.stacked_scores import SCORES, StackedScores
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import Engine
from daskml_dist.training.rows import Rows
from daskml_dist.training.run import open_engine
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.solver_plan import make_solver_fit
from daskml_dist.training.survey import Survey

__all__ = ["Asked", "StackedFit", "TargetSurvey", "can_stack", "fit_stack"]

#: Columns of one stack: each has a thread that waits.
_MOST_COLUMNS = 512
#: Parameters that must be alike in a stack, since they lay out its one fit.
_ALIKE = ("run", "device", "callbacks", "verbose", "class_weight", "warm_start")


@dataclass(eq=False)
class StackedFit:
    """A candidate, fitted to the training rows of a split.

    Parameters
    ----------
    estimator : estimator
    sums : dict of int to ndarray
        Sums of its scores by role.
    seconds : float
        Its share of the stack's.
    """

    estimator: Any
    sums: dict[int, NDArray[np.float64]]
    seconds: float

    def score(self, name: str, role: int) -> float:
        """A score by scikit-learn's name."""
        kind = "classifier" if self.estimator._classification else "regressor"
        return float(SCORES[kind][name](self.sums[role][None, :])[0])

    def pairs(self, role: int) -> NDArray[np.float64]:
        """Weights of the rows by true and predicted label, of shape (n_classes, n_classes)."""
        k = len(self.estimator.classes_)
        return self.sums[role][-k * k :].reshape(k, k)


def can_stack(estimators: Sequence[Any]) -> bool:
    """Whether estimators can be fitted as one stack."""
    first = estimators[0]
    if not all(isinstance(e, BaseLinear) and isinstance(e, BaseRounds) for e in estimators):
        return False
    if any(type(e) is not type(first) for e in estimators):
        return False
    params = [e._params() for e in estimators]
    alike = all(repr(p.get(n)) == repr(params[0].get(n)) for p in params for n in _ALIKE)
    plain = all(params[0].get(name) is None for name in ("callbacks", "class_weight"))
    return alike and plain and not params[0].get("warm_start")


def fit_stack(
    estimators: Sequence[Any], collection: Collection, roles: Roles, classes: Any, weighted: bool,
    train_score: bool, pairs: bool = False,
) -> list[list[StackedFit]]:  # fmt: skip
    """Fit clones of estimators to the training rows of each split, and score them.

    Parameters
    ----------
    estimators : sequence of estimator
        Unfitted, of which :func:`can_stack`; they are fitted no further than that they are cloned.
    collection : Collection
        Targets have two columns: the targets (codes of the classes), and codes of rows from 1 on.
    roles : Roles
        What the codes mean.
    classes : ndarray or None
        Labels of the codes.
    weighted : bool
        Whether rows have weights.
    train_score : bool
        Whether training rows are scored too.
    pairs : bool, default=False
        Whether true and predicted labels of a classifier are counted.

    Returns
    -------
    list of list of StackedFit
        Of each estimator, one a split.
    """
    scored = (TEST, TRAIN) if train_score else (TEST,)
    return _Stack(estimators, roles, classes, scored, pairs).fitted(collection, weighted)


class _Stack(BaseOnRows):
    """The rounds of a stack."""

    _multi_output = True

    def __init__(
        self, estimators: Sequence[Any], roles: Roles, classes: Any, scored: tuple[int, ...],
        pairs: bool,
    ) -> None:  # fmt: skip
        first, self.scored, self.pairs = estimators[0], scored, pairs
        self.estimators, self.roles, self.classes = estimators, roles, classes
        self.run, self.device, self.verbose = first.run, first.device, first.verbose
        self._run_used = type(first)._run_used  # type: ignore[misc]

    def _raw(self) -> Any:
        raise NotImplementedError

    def _params(self) -> dict[str, Any]:
        return dict(self._defaults)

    def fitted(self, collection: Collection, weighted: bool) -> list[list[StackedFit]]:
        """Fit and score all columns."""
        for estimator in self.estimators:
            estimator._check_params()
        run = self._run_settings()
        begin = time.perf_counter()
        with open_engine(collection, None, run.memory_budget, run.device) as engine:
            rows = self._rows(engine, run, None, None, weighted)
            lanes = engine.lanes(run.n_lanes, share=_SHARE, passes=100)
            asked = Asked(engine, lanes, rows, run)
            of_rows = replace(rows, survey=TargetSurvey(rows.survey.infos), classes=self.classes)
            some, _ = self.estimators[0]._problem(of_rows)
            weights = asked(StackedLinear(some, self.roles, self._codes), OnePass(CodeWeights())).w
            found = self._columns(asked, of_rows, weights)
        seconds = (time.perf_counter() - begin) / len(found)
        n_splits = self.roles.n_splits
        for fit in found:
            fit.seconds = seconds
        return [found[i : i + n_splits] for i in range(0, len(found), n_splits)]

    @property
    def _codes(self) -> NDArray[Any] | None:
        return None if self.classes is None else np.arange(len(self.classes))

    def _columns(self, asked: Asked, rows: Rows, weights: NDArray[np.float64]) -> list[StackedFit]:
        """Fits in the order of the estimators, and of their splits."""
        problems: list[tuple[LinearModel, Column, Rows]] = []
        for estimator in self.estimators:
            for split, weight in enumerate(weights):
                infos = rows.survey.infos
                of_split = replace(rows, survey=TargetSurvey(infos, float(weight)))
                model, solver = estimator._problem(of_split)
                start = estimator._start(model, of_split)
                problems.append((model, Column(split, solver, float(weight), start), of_split))
        found: dict[int, StackedFit] = {}
        left = list(range(len(problems)))
        while left:
            model = problems[left[0]][0]
            some = [i for i in left if problems[i][0] == model][:_MOST_COLUMNS]
            stacked = StackedLinear(model, self.roles, self._codes)
            columns = tuple(problems[i][1] for i in some)
            solution = asked(stacked, StackedSolver(columns))
            sums = self._scored(asked, stacked, solution.w, columns)
            for k, i in enumerate(some):
                n_splits = self.roles.n_splits
                estimator = type(self.estimators[0])(
                    **self.estimators[i // n_splits].get_params(deep=False)
                )
                n_iter, converged, message, extra = solution.extra["columns"][k]
                one = Solution(solution.w[k], n_iter, converged, message, extra)
                estimator._set_fitted(one, model, problems[i][2])
                estimator._set_n_iter(one)
                estimator._warn(one)
                found[i] = StackedFit(estimator, {r: s[k] for r, s in sums.items()}, 0.0)
            left = [i for i in left if i not in found]
        return [found[i] for i in range(len(problems))]

    def _scored(
        self, asked: Asked, model: StackedLinear, w: NDArray[np.float64],
        columns: Sequence[Column],
    ) -> dict[int, NDArray[np.float64]]:  # fmt: skip
        splits = np.array([column.split for column in columns])
        order = np.argsort(splits, kind="stable")
        found = {}
        for role in self.scored:
            scores = StackedScores(w[order], splits[order], role, self.pairs)
            sums = asked(model, OnePass(scores)).w
            found[role] = np.empty_like(sums)
            found[role][order] = sums
        return found


class Asked:
    """Fits of several solvers to the same rows."""

    def __init__(self, engine: Engine, lanes: list[LaneSpec], rows: Rows, run: RunSettings) -> None:
        self._engine, self._lanes, self._rows, self._run = engine, lanes, rows, run

    def __call__(self, model: Any, solver: Solver) -> Solution:
        fit = make_solver_fit(
            model, solver, self._rows, self._lanes, None, self._engine.streaming, self._run
        )
        solution = self._engine.train(fit, CallbackList([])).state
        assert isinstance(solution, Solution)
        return solution


@dataclass(frozen=True)
class TargetSurvey(Survey):
    """A survey of targets alone, without the codes beside them.

    Parameters
    ----------
    weight : float or None
        Rows of a split, counted by their weights; None: all rows.
    """

    weight: float | None = None

    @property
    def n_rows(self) -> Any:
        """Rows, or their weight in a split."""
        return sum(i.n_rows for i in self.infos) if self.weight is None else self.weight

    @property
    def n_targets(self) -> None:
        """None: targets have one dimension."""
        return None

    @property
    def targets(self) -> Spread:
        """Of the first column."""
        both = Survey(self.infos).targets
        return replace(
            both, origin=both.origin[:1], offset=both.offset[:1], squares=both.squares[:1]
        )
