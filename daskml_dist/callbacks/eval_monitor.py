"""The score of rows of the user's own, after each pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from daskml_dist.callbacks.base import FitCallback
from daskml_dist.errors import InvalidParameterError
from daskml_dist.metrics import get_scorer

__all__ = ["EvalMonitor", "eval_monitors"]


class EvalMonitor(FitCallback):
    """Callback that scores the model on rows of one's own after each pass.

    ``fit(..., eval_set=(X, y), scoring=...)`` is the short way to it. The score is the record's
    ``eval_score``, in :attr:`history_`, for callbacks that come after, and for
    :class:`EarlyStopping`; the seconds that it took are ``eval_seconds``.

    Parameters
    ----------
    eval_set : tuple of (X, y), or of (X, y, sample_weight)
        Rows in memory or Dask collections, of which fits know nothing.
    scoring : str, callable or None, default=None
        A name of :func:`daskml_dist.metrics.get_scorer_names`, or a function of a fitted estimator,
        X and y (and ``sample_weight=``, where it is given). None: the estimator's ``score``. More
        is better.

    Raises
    ------
    InvalidParameterError
        `eval_set` is no such tuple, or `scoring` is unknown.
    """

    #: The parameters are brought to the client after each pass.
    needs_parameters = True

    def __init__(self, eval_set: Any, scoring: str | Callable[..., float] | None = None) -> None:
        if not isinstance(eval_set, tuple | list) or len(eval_set) not in (2, 3):
            raise InvalidParameterError(
                "eval_set is to be (X, y) or (X, y, sample_weight), such as eval_set=(X_val, "
                f"y_val); it is a {type(eval_set).__name__}."
            )
        if scoring is not None and not isinstance(scoring, str) and not callable(scoring):
            raise InvalidParameterError(
                f"scoring={scoring!r}: give one name, one function (estimator, X, y), or None."
            )
        self.eval_set = eval_set
        self.scoring = scoring
        self._score = get_scorer(scoring) if isinstance(scoring, str) else scoring

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Score the model as it is after a pass.

        Parameters
        ----------
        run : object
        record : dict
        """
        begin = time.perf_counter()
        estimator = run.estimator()
        X, y, *weights = self.eval_set
        given = {"sample_weight": weights[0]} if weights and weights[0] is not None else {}
        if self._score is None:
            score = estimator.score(X, y, **given)
        else:
            score = self._score(estimator, X, y, **given)
        record["eval_score"] = float(score)
        record["eval_seconds"] = time.perf_counter() - begin


def eval_monitors(eval_set: Any, scoring: Any) -> list[EvalMonitor]:
    """Callbacks that the arguments of a ``fit`` ask for.

    Raises
    ------
    InvalidParameterError
        There is a scoring, and nothing to score.
    """
    if eval_set is not None:
        return [EvalMonitor(eval_set, scoring)]
    if scoring is not None:
        raise InvalidParameterError(
            f"scoring={scoring!r} without eval_set: pass the rows to score, eval_set=(X, y)."
        )
    return []
