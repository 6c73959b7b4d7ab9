"""Searches over pipelines: those that differ in the last step alone are one stack a split.

Transformers are fitted to the training rows of a split once for all its candidates, and what they
make of the rows is made as a stack reads these. The cluster keeps the rows of the source meanwhile,
where its memory has room.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.sizeof import sizeof
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.inference.share import current_client
from daskml_dist.model_selection._checks import knows_dask
from daskml_dist.model_selection._stacking import stacked_fits, stacks
from daskml_dist.model_selection._validation import Fitted, Splits
from daskml_dist.models.stacked import TRAIN

__all__ = ["fits_of_stacks", "pipelines_stack", "score_names", "stacked_pipelines"]

#: Share of the workers' memory that rows of a search may take beside those of its fits, which
#: keep up to 0.4 of it (`Run.memory_budget`).
_KEPT_SHARE = 0.2


def pipelines_stack(estimators: Sequence[Any]) -> bool:
    """Whether estimators are pipelines whose last steps can be fitted as stacks."""
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

    Parameters
    ----------
    estimators, splits, scoring, scorers, train_score, error_score
        As in :func:`~daskml_dist.model_selection._stacking.stacked_fits`.

    Returns
    -------
    tuple of (list of list of Fitted, int), or None
        As of :func:`stacked_pipelines`.
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
    """Fit and score pipelines by stacks of their last steps; None where these are none.

    Parameters
    ----------
    estimators : sequence of Pipeline
        Unfitted, of which :func:`pipelines_stack`.
    splits, scoring, scorers, train_score, error_score
        As in :func:`~daskml_dist.model_selection._stacking.stacked_fits`.

    Returns
    -------
    tuple of (list of list of Fitted, int), or None
        Of each pipeline, one a split; and the number of stacks.
    """
    if splits.plain or splits.cut or not splits.by_roles:
        return None  # arguments of steps, or rows that play several parts
    if not all(given is None or isinstance(given, str) for given in scoring.values()):
        return None  # a function of the whole pipeline
    options = {"train_score": train_score, "error_score": error_score}
    found: dict[int, list[Fitted]] = {}
    n_stacks = 0
    with _kept_source(splits) as splits:
        for numbers in _alike(estimators):
            pipelines = [estimators[number] for number in numbers]
            for split in range(splits.n_splits):
                begin = time.perf_counter()
                X, y, _ = splits.side(split, TRAIN)
                head = clone(Pipeline(pipelines[0].steps[:-1])).fit(X, y)
                rows = splits.of_split(split, head.transform(splits.inputs[0]))
                seconds = (time.perf_counter() - begin) / len(numbers)
                last = [clone(pipeline.steps[-1][1]) for pipeline in pipelines]
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


@contextmanager
def _kept_source(splits: Splits) -> Iterator[Splits]:
    """Persist lazy rows on the cluster for the search, where they fit beside those of its fits.

    The transformers and the stack of each split read all rows, which would be read from the source
    some four times a split.
    """
    client = None if splits.codes is not None else current_client()
    if client is None:
        yield splits
        return
    # Whoever only imports a search does without distributed.
    from distributed.client import futures_of

    from daskml_dist.training.dask_internals import list_workers

    if futures_of(splits.inputs[0]):  # the user has persisted the rows
        yield splits
        return
    with reading("the rows"):
        n_bytes = reduce_parts(splits.rows.columns, _count_bytes, _add_counts)
    limits = [float(facts["memory_limit"] or np.inf) for facts in list_workers(client).values()]
    if n_bytes > _KEPT_SHARE * sum(limits):
        yield splits
        return
    kept = splits.persisted()
    futures = futures_of((kept.inputs, kept.rows.columns.parts))
    try:
        yield kept
    finally:
        # At once, since Python may collect what the search leaves behind much later.
        for future in futures:
            future.release()


def _count_bytes(index: int, X: Any, *others: Any) -> int:
    return int(sizeof(X))


def _add_counts(counts: list[int]) -> int:
    return sum(counts)


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
