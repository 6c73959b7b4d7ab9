"""Searches over pipelines: those that differ in the last step alone are one stack a split.

Transformers are fitted to the training rows of a split once for all its candidates, and what they
make of the rows is made as a stack reads these. The cluster keeps the rows of the source meanwhile,
where its memory has room.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask.base import tokenize
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from daskml_dist.data.reduce import PassGenerator, run_computation, run_in_lock_step
from daskml_dist.diagnostics.works import reading, tell
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.transformer import fit_in_passes
from daskml_dist.model_selection._checks import has_columns, knows_dask
from daskml_dist.model_selection._stacking import stacked_fits, stacks
from daskml_dist.model_selection._validation import Fitted, Splits
from daskml_dist.models.batched import TRAIN

__all__ = ["fits_of_stacks", "pipelines_stack", "score_names", "stacked_pipelines"]


def pipelines_stack(estimators: Sequence[Any]) -> bool:
    """Return whether estimators are pipelines whose last steps can be fitted as stacks."""
    return all(map(_is_ours, estimators)) and stacks([e.steps[-1][1] for e in estimators])


def fits_of_stacks(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any,
) -> tuple[list[list[Fitted]], int] | None:
    """Fit and score estimators, or pipelines, by stacks; None where these are none.

    Scores count the weights of rows.
    """
    fit = stacked_pipelines if pipelines_stack(estimators) else stacked_fits
    try:
        return fit(
            estimators, splits, scoring, scorers, train_score=train_score, error_score=error_score
        )
    except (InvalidParameterError, InvalidDataError):
        if error_score == "raise":
            raise
        return None  # fits by themselves tell which of them have failed


def score_names(scoring: Any) -> dict[str, Any] | None:
    """Scores by their names; None where one is a function of several scores."""
    if scoring is None or isinstance(scoring, str):
        return {"score": scoring}
    if isinstance(scoring, dict):
        return dict(scoring)
    return {name: name for name in scoring} if isinstance(scoring, list | tuple | set) else None


def _is_ours(estimator: Any) -> bool:
    if not isinstance(estimator, Pipeline) or len(estimator.steps) < 2:
        return False
    return knows_dask(estimator) and estimator.memory is None


def stacked_pipelines(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any = np.nan,
) -> tuple[list[list[Fitted]], int] | None:
    """Fit and score pipelines by stacks of their last steps; None where these are none."""
    if splits.plain or splits.cut or not splits.by_roles or has_columns(splits.inputs[1]):
        return None  # arguments of steps, rows that play several parts, or several targets
    if not all(given is None or isinstance(given, str) for given in scoring.values()):
        return None  # a function of the whole pipeline
    options = {"train_score": train_score, "error_score": error_score}
    found: dict[int, list[Fitted]] = {}
    n_stacks = 0
    alike = _alike(estimators)
    with splits.kept() as splits:
        begin = time.perf_counter()
        heads, splits = _fitted_heads([estimators[numbers[0]] for numbers in alike], splits)
        seconds = (time.perf_counter() - begin) / (len(estimators) * splits.n_splits)
        for numbers, of_splits in zip(alike, heads, strict=True):
            for split, head in enumerate(of_splits):
                rows = splits.of_split(split, head.transform(splits.inputs[0]))
                last = [clone(estimators[number].steps[-1][1]) for number in numbers]
                of_split = stacked_fits(last, rows, scoring, scorers, **options)
                if of_split is None:
                    return None
                n_stacks += of_split[1]
                for number, (fit,) in zip(numbers, of_split[0], strict=True):
                    fit.fit_time += seconds
                    if fit.estimator is not None:
                        fit.estimator = _with_last(estimators[number], head, fit.estimator)
                    found.setdefault(number, []).append(fit)
    return [found[number] for number in range(len(estimators))], n_stacks


def _fitted_heads(
    pipelines: Sequence[Pipeline], splits: Splits
) -> tuple[list[list[Pipeline]], Splits]:
    """Return all steps but the last of each pipeline, fitted to the training rows of each split.

    Of Dask collections all are fitted at the same time, so that a pass reads each block once for
    all splits. What the splits train on is counted beside, and returned with these.
    """
    tell(f"fits of the transformers of {splits.n_splits} splits")
    heads = [[clone(Pipeline(p.steps[:-1])) for _ in range(splits.n_splits)] for p in pipelines]
    works: list[PassGenerator[Any]] = [
        splits.count_trained(pipelines[0].steps[-1][1]._classification)
    ]
    for split in range(splits.n_splits):
        X, y, _ = splits.side(split, TRAIN)
        for of_splits in heads:
            if splits.codes is None:
                works.append(fit_in_passes(of_splits[split], X, y))
            else:
                of_splits[split].fit(X, y)
    with reading("transformers"):
        trained, *_ = run_computation(run_in_lock_step(works))
    counted = copy.copy(splits)
    counted.trained = trained
    return heads, counted


def _alike(estimators: Sequence[Any]) -> list[list[int]]:
    """Numbers of pipelines, those of the same transformers together."""
    found: dict[str, list[int]] = {}
    for number, pipeline in enumerate(estimators):
        key = [
            (name, type(step), step if isinstance(step, str) else step.get_params())
            for name, step in pipeline.steps[:-1]
        ]
        found.setdefault(tokenize(key), []).append(number)
    return list(found.values())


def _with_last(pipeline: Any, head: Pipeline, last: Any) -> Any:
    """The pipeline of fitted steps."""
    made = clone(pipeline)
    made.steps = [*head.steps, (pipeline.steps[-1][0], last)]
    return made
