"""Label sets with guaranteed coverage of a row's label: LAC, APS, RAPS and top-k."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.frozen import FrozenEstimator

from daskml_dist.conformal._held_out import CALIBRATION_SHARE, ConformalPredictor
from daskml_dist.conformal._score_tables import (
    ScoreKey,
    ScoreTable,
    find_conformal_rank,
    iterate_groups,
)
from daskml_dist.conformal._scores import LABEL_SCORES, LabelScore, take_label_scores
from daskml_dist.data.conversion import as_column
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.meta_estimators.block_predictions import OnBlocks
from daskml_dist.meta_estimators.members import count_labels
from daskml_dist.model_selection import ShuffleSplit
from daskml_dist.model_selection._out_of_fold import predict_all_classes
from daskml_dist.parameters.checks import (
    check_count,
    check_flag,
    check_number,
    check_one_of,
    seed_of,
)

Floats = NDArray[np.float64]
#: Value of `group_by` that covers each class.
_BY_CLASS = "class"


@dataclass(frozen=True, eq=False)
class _ScoredLabels:
    """Score of a row's label by a fit's probabilities; picklable."""

    score: LabelScore
    classes: NDArray[Any]

    def __call__(self, fit: Any, X: Any, y: NDArray[Any]) -> Floats:
        codes = np.searchsorted(self.classes, y)
        # A label above all classes would be looked up behind the last one.
        codes = np.minimum(codes, len(self.classes) - 1)
        if (self.classes[codes] != y).any():
            unknown = np.unique(y[self.classes[codes] != y])[:5].tolist()
            raise InvalidDataError(
                f"y holds labels that the classifier has not learned: {unknown}. Drop these "
                "rows, or fit it to rows with all labels."
            )
        return take_label_scores(self.score_all(fit, X), codes)

    def score_all(self, fit: Any, X: Any) -> Floats:
        """Return the scores of all labels, of shape (n, n_classes)."""
        return self.score(np.asarray(predict_all_classes(fit, "predict_proba", X, self.classes)))


class _LabelSetClassifier(ClassifierMixin, ConformalPredictor):
    """Base class of the classifier, for rows in memory: labels and probabilities."""

    classes_: NDArray[Any]
    _labels = True

    def predict(self, X: Any) -> Any:
        """Return the most likely labels, by the estimator alone."""
        return self.estimator_.predict(self._read_rows(X))

    def predict_proba(self, X: Any) -> Any:
        """Return the estimator's probabilities, a column for each of `classes_`."""
        return predict_all_classes(
            self.estimator_, "predict_proba", self._read_rows(X), self.classes_
        )


class ConformalClassifier(OnBlocks, _LabelSetClassifier):
    """Classifier that predicts sets of labels with a guaranteed coverage.

    Any classifier with probabilities, of this package, of scikit-learn or like these, is calibrated
    on rows that it has not seen. The set of a new row then holds its label with a probability of at
    least ``1 - alpha``, however wrong the probabilities are.

    Parameters
    ----------
    estimator : classifier
        With ``predict_proba``. A `FrozenEstimator` is not fitted again: all rows calibrate it.
    alpha : float, default=0.1
        Share of new rows whose set may miss the label.
    conformity : {"lac", "aps", "raps", "top_k"}, default="lac"
        ``"lac"``: labels whose probability is large enough, the smallest sets on average, and empty
        ones for rows unlike all others. ``"aps"``: the most likely labels up to a total
        probability, larger sets for harder rows. ``"raps"``: the same with a penalty on long sets.
        ``"top_k"``: the same number of labels for all rows.
    randomized : bool, default=True
        Whether ``"aps"`` and ``"raps"`` leave out a set's last label at random, so that coverage is
        not larger than requested. The random number is hashed from a row's probabilities and the
        seed.
    raps_weight, raps_size : float, int, default=0.01, 1
        Penalty of ``"raps"`` for each label beyond the first `raps_size`.
    allow_empty : bool, default=True
        Whether sets may be empty; False adds the most likely label.
    cv : int, splitter, iterable or None, default=None
        None: one split, with a quarter of the rows for calibration. Several splits use all rows for
        both (CV+ of Romano et al. 2020), with a guaranteed coverage of at least ``1 - 2 * alpha``
        and about ``1 - alpha`` in practice.
    group_by : str, int, callable or None, default=None
        Groups that are each covered (Mondrian): a column of X by name or position, a function of
        rows to labels, or ``"class"``: the rows of each class are covered.
    likelihood_ratio : callable, classifier or None, default=None
        As in :class:`ConformalRegressor`.
    random_state : int, RandomState instance or None, default=None
        Seed of the split that ``cv=None`` makes, and of the random shares.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    estimator_ : classifier
        Fitted to the training rows of the only split, or to all rows if there are several.
    fold_estimators_ : list of classifier, or None
        Fits of several splits.
    n_splits_ : int
    tables_ : ScoreTables
        Distributions of the calibration scores.

    References
    ----------
    M. Sadinle, J. Lei and L. Wasserman, "Least ambiguous set-valued classifiers with bounded error
    levels", JASA 114 (2019). Y. Romano, M. Sesia and E. Candes, "Classification with valid and
    adaptive coverage", NeurIPS (2020). A. Angelopoulos et al., "Uncertainty sets for image
    classifiers using conformal prediction", ICLR (2021).

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.conformal import ConformalClassifier
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, size=2000)
    >>> X = rng.normal(size=(2000, 2)) + y[:, None]
    >>> model = ConformalClassifier(GaussianNB(), random_state=0).fit(X[:1000], y[:1000])
    >>> sets = model.predict_set(X[1000:])
    >>> bool(0.85 < sets[np.arange(1000), y[1000:]].mean() < 0.95)
    True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        alpha: float = 0.1,
        conformity: str = "lac",
        randomized: bool = True,
        raps_weight: float = 0.01,
        raps_size: int = 1,
        allow_empty: bool = True,
        cv: Any = None,
        group_by: Any = None,
        likelihood_ratio: Any = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.alpha = alpha
        self.conformity = conformity
        self.randomized = randomized
        self.raps_weight = raps_weight
        self.raps_size = raps_size
        self.allow_empty = allow_empty
        self.cv = cv
        self.group_by = group_by
        self.likelihood_ratio = likelihood_ratio
        self.random_state = random_state

    def _check_params(self) -> None:
        check_one_of("conformity", self.conformity, LABEL_SCORES)
        check_flag("randomized", self.randomized)
        check_flag("allow_empty", self.allow_empty)
        check_number("raps_weight", self.raps_weight)
        check_count("raps_size", self.raps_size, min_value=0)
        if not hasattr(self.estimator, "predict_proba"):
            raise InvalidParameterError(
                f"{type(self.estimator).__name__} has no predict_proba. Calibrate it first: "
                "CalibratedClassifierCV(estimator)."
            )
        # Kept for predictions, whose random shares must be those of the calibration's draw.
        self._seed = seed_of(self.random_state)

    def _prepare_target(self, X: Any, y: Any) -> Any:
        # A frozen classifier may know classes that no calibration row has.
        if is_frozen := isinstance(self.estimator, FrozenEstimator):
            check_fitted(self.estimator)
        self.classes_ = np.asarray(self.estimator.classes_) if is_frozen else count_labels(y)[0]
        if len(self.classes_) < 2:
            raise InvalidDataError(
                f"y holds {len(self.classes_)} class, but prediction sets need at least two. "
                "Pass rows of several classes."
            )
        return y

    def _make_splitter(self) -> Any:
        return ShuffleSplit(1, test_size=CALIBRATION_SHARE, random_state=self._seed)

    def _make_groups(self) -> Callable[..., NDArray[Any]] | None:
        if isinstance(self.group_by, str) and self.group_by == _BY_CLASS:
            return _group_by_class
        return super()._make_groups()

    def _score(self) -> Callable[[Any, Any, Any], Floats]:
        return self._scored_labels()

    def _scored_labels(self) -> _ScoredLabels:
        score = LabelScore(
            self.conformity, bool(self.randomized), float(self.raps_weight), int(self.raps_size),
            self._seed,
        )  # fmt: skip
        return _ScoredLabels(score, self.classes_)

    def predict_set(self, X: Any, alpha: float | None = None) -> Any:
        """Predict sets of labels that contain the true one for a share ``1 - alpha`` of new rows.

        Parameters
        ----------
        X : as in :meth:`fit`
        alpha : float, optional
            That of the constructor by default.

        Returns
        -------
        ndarray, or lazy dask Array where X is a Dask collection
            Boolean, of shape (n_rows, n_classes): whether a set contains each of `classes_`.

        Raises
        ------
        InvalidDataError
            The calibration rows are too few for `alpha`; a row is of a group that none of them has.
        """
        no_rows = np.empty((0, len(getattr(self, "classes_", ()))), bool)
        lazy = self._map_block_method("predict_set", X, alpha, no_rows)
        if lazy is not None:
            return lazy
        X = self._read_rows(X)
        level = float(self.alpha if alpha is None else alpha)
        if self.n_splits_ > 1:
            sets = self._join_sets(X, level)
        else:
            scores = self._scored_labels().score_all(self.estimator_, X)
            sets = scores <= self._list_limits(X, level)
        if not self.allow_empty:
            # One more label can only raise the coverage.
            p = np.asarray(self.predict_proba(X))
            empty = np.flatnonzero(~sets.any(axis=1))
            sets[empty, p[empty].argmax(axis=1)] = True
        return sets

    def _list_limits(self, X: Any, alpha: float) -> Floats:
        """Return the largest score in a set, by row or label; broadcast to both."""
        tables, n, ratios = self.tables_, X.shape[0], self._ratios_of(X)
        if self._make_groups() is _group_by_class:
            # The label of a new row is not known: each label has the limit of its own class.
            by_key = tables.tables
            columns = [
                _list_label_limits(by_key.get(ScoreKey(0, label, 0)), alpha, ratios, n)
                for label in self.classes_.tolist()
            ]
            return np.column_stack(columns)
        limits = tables.limits_of_rows(0, alpha, self._groups_of(X), ratios, n)
        return limits[:, None]

    def _join_sets(self, X: Any, alpha: float) -> NDArray[np.bool_]:
        """Return the sets of CV+: labels that conform at least as well as enough held-out rows."""
        by_key, fit_groups, scored = self.tables_.tables, self.tables_.groups, self._scored_labels()
        scores = [scored.score_all(fit, X) for fit in self.fold_estimators_]
        by_class = self._make_groups() is _group_by_class
        groups = None if by_class else self._groups_of(X)
        sets = np.empty(scores[0].shape, bool)
        for group, rows in iterate_groups(groups, fit_groups):
            for column, label in enumerate(self.classes_.tolist()):
                keys = [
                    ScoreKey(fold, label if by_class else group, 0) for fold in range(len(scores))
                ]
                fold_tables = [by_key.get(key) for key in keys]
                n_rows = sum(table.weight for table in fold_tables if table is not None)
                # A row of fold k is compared with the new one by the fit of fold k, which was
                # trained on neither: the label stays unless too many of them conform better (Romano
                # et al. 2020).
                n_below = sum(
                    (
                        table.count_below(score[rows, column])
                        for table, score in zip(fold_tables, scores, strict=True)
                        if table is not None
                    ),
                    start=np.zeros(len(scores[0][rows])),
                )
                sets[rows, column] = n_below < find_conformal_rank(n_rows, alpha)
        return sets


def _list_label_limits(
    table: ScoreTable | None, alpha: float, ratios: Floats | None, n_rows: int
) -> Floats:
    """Return the largest score of a label in sets; infinite without calibration rows."""
    if table is None:
        return np.full(n_rows, np.inf)
    if ratios is not None:
        return table.weighted_quantiles(alpha, ratios)
    return np.full(n_rows, table.quantile(alpha))


def _group_by_class(X: Any, y: Any = None) -> NDArray[Any]:
    """Return the labels of rows as their groups."""
    return as_column(y, name="y")
