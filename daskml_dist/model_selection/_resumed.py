"""Candidates that are trained on from where they were: columns of stacks, or models by passes."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.gradient_steps import (
    BatchedSteps,
    StepCandidate,
    group_step_estimators,
)
from daskml_dist.estimators.batched_fits.solver_rounds import NotBatchableError
from daskml_dist.model_selection._failures import safe
from daskml_dist.model_selection._roles import TEST, TRAIN
from daskml_dist.model_selection._stacking import (
    ScoresOfStacks,
    fits_of_columns,
    looks_of,
    of_sums,
    targets_of,
)
from daskml_dist.model_selection._validation import Fitted, Splits, score_sides
from daskml_dist.solvers.batched_scores import ScoreParts

__all__ = [
    "ByPasses",
    "ResumableModel",
    "Resumed",
    "Stacks",
    "failed",
    "pass_over",
    "resumed_stacks",
]


class Resumed(ABC):
    """Base class of candidates in training; each is fitted to the training rows of every split."""

    @abstractmethod
    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train some up to a pass; the passes that were made in one split."""

    @abstractmethod
    def scored(self, candidates: Sequence[int]) -> list[list[Fitted]]:
        """Scores of some, of each one a split."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027 (not all hold rows)
        """Let go of the rows."""


class Stacks(Resumed):
    """Candidates as columns of stacks.

    Parameters
    ----------
    stacks : sequence of (list of int, BatchedSteps)
        With the candidates of each.
    given : tuple
        Collection, and whether it has weights.
    scored : ScoresOfStacks
    train_score : bool
        Whether training rows are scored too.
    looks : ScoreParts
    """

    def __init__(
        self, stacks: Sequence[tuple[list[int], BatchedSteps]], given: tuple[Any, bool],
        scored: ScoresOfStacks, train_score: bool, looks: ScoreParts,
    ) -> None:  # fmt: skip
        self._stacks, self._given = stacks, given
        self._scored, self._summed = scored, (train_score, looks)
        self._open = ExitStack()
        self._columns: dict[int, tuple[BatchedSteps, list[StepCandidate]]] = {}

    @property
    def n_stacks(self) -> int:
        """Number of stacks."""
        return len(self._stacks)

    def open(self) -> None:
        """Hold the rows, until the end of a ``with`` statement."""
        with ExitStack() as opened:
            for numbers, stack in self._stacks:
                columns = opened.enter_context(stack.opened(*self._given))
                n = len(columns) // len(numbers)
                for k, number in enumerate(numbers):
                    self._columns[number] = stack, columns[k * n : (k + 1) * n]
            self._open = opened.pop_all()

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)  # type: ignore[arg-type]

    def advance(self, candidates: Sequence[int], last: int) -> int:
        """As in :class:`Resumed`."""
        before = sum(max(c.n_iter for c in self._columns[i][1]) for i in candidates)
        for stack, some in self._by_stack(candidates):
            stack.advance([column for i in some for column in self._columns[i][1]], last)
        return sum(max(c.n_iter for c in self._columns[i][1]) for i in candidates) - before

    def scored(self, candidates: Sequence[int]) -> list[list[Fitted]]:
        """As in :class:`Resumed`."""
        found: dict[int, list[Fitted]] = {}
        for stack, some in self._by_stack(candidates):
            columns = [column for i in some for column in self._columns[i][1]]
            fits = fits_of_columns(stack, columns, *self._summed)
            n = len(columns) // len(some)
            for k, i in enumerate(some):
                found[i] = list(map(self._scored, fits[k * n : (k + 1) * n], range(n)))
        return [found[i] for i in candidates]

    def _by_stack(self, candidates: Sequence[int]) -> list[tuple[BatchedSteps, list[int]]]:
        asked = set(candidates)
        found = [(stack, [i for i in numbers if i in asked]) for numbers, stack in self._stacks]
        return [(stack, some) for stack, some in found if some]


def resumed_stacks(
    estimators: Sequence[Any], splits: Splits, scoring: Mapping[str, Any],
    scorers: Mapping[str, Any], *, train_score: bool, error_score: Any,
) -> Stacks | None:  # fmt: skip
    """Candidates as columns of stacks, open; None where they are none."""
    if not splits.for_stacks or (of_steps := group_step_estimators(estimators)) is None:
        return None
    collection, classes = targets_of(splits, estimators[0]._classification)
    known = {name: of_sums(estimators[0], given) for name, given in scoring.items()}
    stacks = [
        (numbers, BatchedSteps([estimators[i] for i in numbers], splits.roles, classes))
        for numbers in of_steps
    ]
    scored = ScoresOfStacks(splits, collection, known, scorers, train_score, error_score)
    given = collection, collection.parts[0][2] is not None
    found = Stacks(stacks, given, scored, train_score, looks_of(known))
    try:
        found.open()
    except NotBatchableError:
        return None
    return found


@dataclass(eq=False)
class ResumableModel:
    """A model in training, and how far it came.

    Parameters
    ----------
    estimator : estimator
    passes : int
    seconds : float
    error : Exception or None
        Why it goes no further.
    """

    estimator: Any
    passes: int = 0
    seconds: float = 0.0
    error: Exception | None = None


def pass_over(
    model: ResumableModel, X: Any, y: Any, params: dict[str, Any], classes: Any, last: int
) -> int:
    """Train a model by ``partial_fit``, a call a pass, up to the last; the calls made."""
    begin, before = time.perf_counter(), model.passes
    named = {} if classes is None else {"classes": classes}
    try:
        while model.error is None and model.passes < last:
            model.estimator.partial_fit(X, y, **named, **params)
            model.passes += 1
    except Exception as error:
        model.error = error
    model.seconds += time.perf_counter() - begin
    return model.passes - before


def failed(
    model: ResumableModel, names: Sequence[str], train_score: bool, error_score: Any
) -> Fitted:
    """Scores of a model that failed."""
    assert model.error is not None
    if error_score == "raise":
        raise model.error
    scores = dict.fromkeys(names, float(error_score))
    text = (
        f"A fit of {type(model.estimator).__name__} failed, and its scores are {error_score}. "
        f"error_score='raise' shows where. ({type(model.error).__name__}: {model.error})"
    )
    warnings.warn(text, FitFailedWarning, stacklevel=user_stack_level())
    return Fitted(scores, dict(scores) if train_score else {}, model.seconds, error=text)


class ByPasses(Resumed):
    """Candidates with ``partial_fit``, one after the other: each on the whole cluster.

    Parameters
    ----------
    estimators : sequence of estimator
    splits : Splits
    scorers : mapping of str to callable
    classes : ndarray or None
        All labels.
    train_score : bool
    error_score : "raise" or float
    """

    def __init__(
        self, estimators: Sequence[Any], splits: Splits, scorers: Mapping[str, Any],
        classes: NDArray[Any] | None, *, train_score: bool, error_score: Any,
    ) -> None:  # fmt: skip
        n = splits.n_splits
        self._models = [
            [ResumableModel(clone(estimator)) for _ in range(n)] for estimator in estimators
        ]
        self._sides = [
            [_kept(splits.side(split, role)) for role in (TRAIN, TEST)] for split in range(n)
        ]
        self._scorers, self._classes = safe(scorers, error_score), classes
        self._train_score, self._error_score = train_score, error_score

    def advance(self, candidates: Sequence[int], last: int) -> int:
        """As in :class:`Resumed`."""
        made = 0
        for i in candidates:
            calls = [
                pass_over(model, *train, self._classes, last)
                for model, (train, _) in zip(self._models[i], self._sides, strict=True)
            ]
            made += max(calls)
        return made

    def scored(self, candidates: Sequence[int]) -> list[list[Fitted]]:
        """As in :class:`Resumed`."""
        return [
            [self._scored(m, *sides) for m, sides in zip(self._models[i], self._sides, strict=True)]
            for i in candidates
        ]

    def _scored(self, model: ResumableModel, train: Any, test: Any) -> Fitted:
        if model.error is not None:
            return failed(model, list(self._scorers), self._train_score, self._error_score)
        begin = time.perf_counter()
        found = score_sides(self._scorers, model.estimator, *test, weigh=True)
        taken = time.perf_counter() - begin
        trained = {}
        if self._train_score:
            trained = score_sides(self._scorers, model.estimator, *train, weigh=True)
        return Fitted(found, trained, model.seconds, taken, model.estimator)


def _kept(side: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]]:
    """One side of a split, whose lazy rows stay on the workers while candidates take turns."""
    X, y, params = side
    lazy = [value for value in (X, y, *params.values()) if is_dask(value)]
    if not lazy:
        return side
    from dask.base import persist

    # Unoptimised: fused tasks would bear keys that the blocks of fits and scores have unfused, and
    # the scheduler keeps tasks of a key that comes with two graphs.
    kept = iter(persist(*lazy, optimize_graph=False))
    take = [next(kept) if is_dask(value) else value for value in (X, y, *params.values())]
    return take[0], take[1], dict(zip(params, take[2:], strict=True))
