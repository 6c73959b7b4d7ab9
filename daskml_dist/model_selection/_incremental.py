"""Search over candidates that are trained side by side, of which ever fewer go on."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.model_selection._brackets import Bracket, decaying_bracket
from daskml_dist.model_selection._hyperband import HyperbandSearchCV
from daskml_dist.parameters.checks import check_count, check_number

__all__ = ["IncrementalSearchCV"]


class IncrementalSearchCV(HyperbandSearchCV):
    """Search by passes: candidates are trained side by side, scored, and ever fewer go on.

    Each pass fewer candidates go on, by `decay_rate`; and one whose score has not risen for
    `patience` passes is stopped. How candidates are trained is told by
    :class:`HyperbandSearchCV`, which needs no such choice.

    Parameters
    ----------
    estimator : estimator
        Linear by gradient steps, or with ``partial_fit``, a call of which is a pass; not naive
        Bayes, which learns all in one pass.
    param_distributions : dict or list of dict
        Lists of values, or distributions, by parameter.
    n_initial_parameters : int, default=10
        Candidates, which are drawn.
    decay_rate : float or None, default=1.0
        After k scores ``n_initial_parameters * (1 + k)**-decay_rate`` candidates go on; None: all.
    patience : int or False, default=False
        Passes after which a candidate whose score has not risen is stopped.
    tol : float, default=0.001
        What a score must have risen by in `patience` passes.
    fits_per_score : int, default=1
        Passes from score to score.
    max_iter : int, default=100
        Passes of a candidate at most.
    scoring, cv, refit, random_state, error_score, return_train_score, verbose
        As in :class:`HyperbandSearchCV`.

    Attributes
    ----------
    cv_results_, best_estimator_, best_score_, best_params_, best_index_, scorer_, n_splits_, \
refit_time_, multimetric_, stacks_, metadata_, history_
        As in :class:`HyperbandSearchCV`; there is one bracket.

    Notes
    -----
    Names and meaning are those of ``dask_ml.model_selection.IncrementalSearchCV``, but that
    candidates are scored by cross-validation, not by one held-out part of the rows.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> from daskml_dist.model_selection import IncrementalSearchCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> clf, values = SGDClassifier(tol=None, random_state=0), {"alpha": loguniform(1e-6, 1e-1)}
    >>> search = IncrementalSearchCV(clf, values, max_iter=5, cv=3, random_state=0).fit(X, y)
    >>> [n for n, passes in search.metadata_["brackets"][0]["rungs"]]
    [10, 5, 4, 3, 2]
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_initial_parameters: int = 10,
        decay_rate: float | None = 1.0,
        patience: Any = False,
        tol: float = 0.001,
        fits_per_score: int = 1,
        max_iter: int = 100,
        scoring: Any = None,
        cv: Any = None,
        refit: Any = True,
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.n_initial_parameters = n_initial_parameters
        self.decay_rate = decay_rate
        self.patience = patience
        self.tol = tol
        self.fits_per_score = fits_per_score
        self.max_iter = max_iter
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.random_state = random_state
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.verbose = verbose

    def _brackets(self) -> list[Bracket]:
        for name in ("n_initial_parameters", "fits_per_score", "max_iter"):
            check_count(name, getattr(self, name))
        if self.decay_rate is not None:
            check_number("decay_rate", self.decay_rate)
        self._check_patience()
        if self.patience and self.patience < self.fits_per_score:
            raise InvalidParameterError(
                f"patience={self.patience} passes are less than there are from score to score, "
                f"fits_per_score={self.fits_per_score}. Raise it."
            )
        decay = 0.0 if self.decay_rate is None else float(self.decay_rate)
        return [
            decaying_bracket(
                int(self.n_initial_parameters),
                int(self.max_iter),
                decay,
                int(self.fits_per_score),
            )
        ]

    @property
    def _promoted_of(self) -> float | None:
        return None
