"""Rankings by the scores of several labels: a run for each label, or a score for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskml_dist.metrics._columns import Columns, ScoredRows, called
from daskml_dist.metrics._indicators import read_indicators
from daskml_dist.metrics._means import mean_of_blocks
from daskml_dist.metrics._ovr import average_scores, merge_each, runs_of
from daskml_dist.metrics._readers import check_not_negative, read_scores
from daskml_dist.metrics._runs import ScoreRun

__all__ = ["INDICATED", "IndicatorScores"]

INDICATED = Columns(read_indicators, read_scores, "y_score", several=True)


@dataclass(frozen=True, eq=False)
class IndicatorScores:
    """Scores of indicators.

    Parameters
    ----------
    metric : callable
        Of `sklearn.metrics`, which takes `average`.
    average : {"macro", "weighted", "micro", "samples"} or None
    limit : int or None
        Entries of a run at most.
    """

    metric: Callable[..., Any]
    average: Any
    limit: int | None

    def score(
        self,
        of_one: Callable[[ScoreRun], tuple[float, float]],
        y_true: Any,
        y_score: Any,
        sample_weight: Any,
        options: dict[str, Any],
    ) -> tuple[Any, Any]:
        """Score, and bound of its error."""
        two = np.eye(2, dtype=np.int64)
        each = partial(self.metric, average=self.average, **options)
        called(each, two, two)  # tells of bad options before there is work
        if self.average == "samples":
            means = mean_of_blocks(each, INDICATED, y_true, y_score, sample_weight)
            return float(means[0]), 0.0
        collection = INDICATED.align(y_true, y_score, sample_weight)
        summarise = partial(_runs, limit=self.limit)
        runs = INDICATED.reduce(summarise, partial(merge_each, limit=self.limit), collection)
        if self.average == "weighted" and not any(_positive(run) for run in runs):
            return 0.0, 0.0  # as scikit-learn has it
        return average_scores(runs, self.average, of_one)


def _runs(rows: ScoredRows, limit: int | None) -> list[ScoreRun]:
    check_not_negative(rows.weights)
    return runs_of(rows.y_true, rows, limit)


def _positive(run: ScoreRun) -> float:
    return float(run.weights[:, run.labels].sum())
