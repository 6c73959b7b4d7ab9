"""Callback that scores the model after each pass, on rows that the fit does not learn from.

The scores are added to the pass's record, so later callbacks in the list (loggers, `EarlyStopping`)
can read them like any other measure. The key is ``eval_score``, followed by the names of the set
and of the score if there are several.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from daskml_dist.callbacks.base import FitCallback
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics import get_scorer
from daskml_dist.metrics._columns import find_all_labels


class EvalMonitor(FitCallback):
    """Callback that scores the model on given rows after each pass.

    ``fit(..., eval_set=(X, y), scoring=...)`` creates one. The score is the ``eval_score`` of the
    record in :attr:`history_`; later callbacks such as :class:`EarlyStopping` can read it. The
    seconds spent on scoring are ``eval_seconds``.

    With several sets of rows or several scores, each score also has its own key:
    ``eval_score_SET``, ``eval_score_SCORE`` or ``eval_score_SET_SCORE``. ``eval_score`` is the
    first of them.

    Parameters
    ----------
    eval_set : tuple of (X, y), or of (X, y, sample_weight), or list or dict of these
        Rows in memory or Dask collections, which the fit does not learn from. The sets of a list
        are named by position: ``"0"``, ``"1"``.
    scoring : str, callable, list of str, dict of str to these, or None, default=None
        A name of :func:`daskml_dist.metrics.get_scorer_names`, or a function of a fitted estimator,
        X and y (and ``sample_weight=`` if given). None: the estimator's ``score``. Larger is
        better.

    Raises
    ------
    InvalidParameterError
        `eval_set` has another form, or `scoring` is unknown.
    InvalidDataError
        After the first pass: none of a set's labels is a class of the classifier. If only some are
        not, a warning names them, since no prediction can equal them.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.callbacks import EvalMonitor
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> y = X[:, 0] > 0
    >>> monitor = EvalMonitor({"train": (X[50:], y[50:]), "held": (X[:50], y[:50])}, ["accuracy"])
    >>> clf = SGDClassifier(max_iter=2, tol=None, callbacks=monitor).fit(X[50:], y[50:])
    >>> [key for key in clf.history_.records[0] if key.startswith("eval_score")]
    ['eval_score_train_accuracy', 'eval_score', 'eval_score_held_accuracy']
    """

    #: The fit sends its parameters to the client after each pass: scores are computed there.
    needs_parameters = True

    def __init__(self, eval_set: Any, scoring: Any = None) -> None:
        scores = name_scores(scoring)
        for scorer in scores.values():
            if scorer is not None and not isinstance(scorer, str) and not callable(scorer):
                raise InvalidParameterError(_wrong_scoring(scoring))
        self.eval_set = eval_set
        self.scoring = scoring
        self._sets = name_eval_sets(eval_set)
        self._labels_are_checked = False
        self._scores = {n: get_scorer(s) if isinstance(s, str) else s for n, s in scores.items()}

    def on_fit_begin(self, run: Any) -> None:
        """Request a check of the labels of the sets after the first pass.

        Parameters
        ----------
        run : object
        """
        self._labels_are_checked = False

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """Score the model after a pass.

        Parameters
        ----------
        run : object
        record : dict
        """
        start = time.perf_counter()
        estimator = run.estimator()
        # Once per fit: the classes do not change, and the labels of a Dask collection must be
        # computed.
        if not self._labels_are_checked:
            for name, (_, y, *_) in self._sets.items():
                _check_labels(estimator, name, y)
            self._labels_are_checked = True
        for set_name, (X, y, *weights) in self._sets.items():
            # Scorers that take no weights are called without them.
            weighted = {"sample_weight": weights[0]} if weights and weights[0] is not None else {}
            for score_name, score in self._scores.items():
                with _explain_pipelines():
                    if score is None:
                        value = estimator.score(X, y, **weighted)
                    else:
                        value = score(estimator, X, y, **weighted)
                record[_record_key(set_name, score_name)] = float(value)
                # The first score of the first set, which callbacks monitor by default.
                record.setdefault("eval_score", float(value))
        record["eval_seconds"] = time.perf_counter() - start


def name_eval_sets(
    eval_set: Any, optional_arrays: str = "sample_weight"
) -> dict[str, tuple[Any, ...]]:
    """Return the sets of an argument `eval_set` by their names; a single set has the name "".

    `optional_arrays` lists the arrays that may follow X and y in a set.
    """
    names = optional_arrays.split(", ")
    # A list of tuples is several sets, as in XGBoost; a list [X, y] is one.
    if isinstance(eval_set, dict):
        sets = eval_set
    elif isinstance(eval_set, list) and all(isinstance(entry, tuple) for entry in eval_set):
        sets = {str(number): entry for number, entry in enumerate(eval_set)}
    else:
        sets = {"": eval_set}
    for entry in sets.values():
        if not isinstance(entry, tuple | list) or not 2 <= len(entry) <= 2 + len(names):
            raise InvalidParameterError(
                f"eval_set must be (X, y) or (X, y, {optional_arrays}), such as eval_set=(X_val, "
                f"y_val), or a dict or a list of these; it is a {type(entry).__name__}."
            )
    if not sets:
        raise InvalidParameterError("eval_set is empty: give at least one set of rows.")
    return {str(name): tuple(entry) for name, entry in sets.items()}


def name_scores(scoring: Any) -> dict[str, Any]:
    """Return the scores of an argument `scoring` by their names; a single score has the name ""."""
    scores = scoring if isinstance(scoring, dict) else {"": scoring}
    # Names of a list become keys of the record, so each must be a str, without duplicates.
    if isinstance(scoring, list | tuple):
        scores = {name: name for name in scoring if isinstance(name, str)}
        if len(scores) < len(scoring):
            raise InvalidParameterError(_wrong_scoring(scoring))
    if not scores:
        raise InvalidParameterError("scoring is empty: give at least one score.")
    for name, score in scores.items():
        # None (the estimator's own score) is only valid alone, without a name.
        if not isinstance(name, str) or (score is None and name):
            raise InvalidParameterError(_wrong_scoring(scoring))
    return scores


def record_keys(sets: Iterable[str], scores: Iterable[str]) -> list[str]:
    """Return the record's keys of each score of each set, with the scores of a set adjacent."""
    names = list(scores)
    return [_record_key(set_name, score_name) for set_name in sets for score_name in names]


def _record_key(set_name: str, score_name: str) -> str:
    """Return the key of a score in the record of a pass; empty names are left out."""
    return "_".join(name for name in ("eval_score", set_name, score_name) if name)


def _wrong_scoring(scoring: Any) -> str:
    """Return the message about an invalid argument `scoring`."""
    return (
        f"scoring={scoring!r}: give a name, a function (estimator, X, y), None, a list of names, "
        "each once, or a dict of names and functions."
    )


def _check_labels(estimator: Any, name: str, y: Any) -> None:
    """Raise if no label of a set is a class of the classifier; warn if some are not."""
    # Regressors have no classes, and classifiers with several outputs have a list of arrays.
    classes = getattr(estimator, "classes_", None)
    if not isinstance(classes, np.ndarray) or len(np.shape(y)) != 1:
        return
    # Compare Python values: NumPy would convert the number 1 to the string "1" first.
    labels, class_set = find_all_labels(y).tolist(), set(classes.tolist())
    unknown = [label for label in labels if label not in class_set]
    if not unknown:
        return
    message = (
        f"eval_set{name and f'[{name!r}]'} has labels that were not in the training rows: "
        f"{unknown[:5]}"
    )
    if len(unknown) == len(labels):
        raise InvalidDataError(
            f"{message}, and none that it knows: {classes.tolist()[:5]}. Encode the labels of "
            "both sets with the same encoder."
        )
    warnings.warn(
        f"{message}. The model can never predict them: leave their rows out of eval_set, or fit "
        "to rows of these classes too.",
        stacklevel=user_stack_level(),
    )


def make_eval_monitor(eval_set: Any, scoring: Any) -> EvalMonitor:
    """Return the callback for the arguments `eval_set` and `scoring` of a ``fit``."""
    if eval_set is None:
        raise InvalidParameterError(
            f"scoring={scoring!r} without eval_set: pass the rows to score, eval_set=(X, y)."
        )
    return EvalMonitor(eval_set, scoring)


@contextmanager
def _explain_pipelines() -> Iterator[None]:
    """Add to data errors the hint that a pipeline does not transform the rows of `eval_set`.

    The last step of a pipeline gets the training rows transformed, but `eval_set` unchanged.
    """
    try:
        yield
    except InvalidDataError as error:
        error.args = (
            f"eval_set: {error}\nRows of eval_set are not transformed by a pipeline. Apply its "
            "earlier steps first: pipeline[:-1].transform(X_val).",
        )
        raise
