"""Base class of forests: draws of rows, trees kept and added to, scores of rows not drawn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.metrics import r2_score

from daskml_dist.ensemble._out_of_bag import accuracy, check_scored, shares_and_labels
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.outside import outside
from daskml_dist.estimators.trees.base import BaseTrees
from daskml_dist.estimators.trees.parameters import is_count, is_share
from daskml_dist.models.row_models import TreeRowsModel
from daskml_dist.models.trees import Trees
from daskml_dist.parameters.checks import check_count, check_flag
from daskml_dist.solvers import Solution
from daskml_dist.solvers.forest_growth import count_draws
from daskml_dist.training.plan import DatasetInfo
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor

__all__ = ["BaseForest"]

#: Draws of a row by a tree that may be expected.
_MOST_DRAWS = 4


class BaseForest(BaseTrees):
    """Base class of forests."""

    n_estimators: int
    bootstrap: bool
    oob_score: Any
    warm_start: bool
    max_samples: Any

    @property
    def _n_trees(self) -> int:
        return int(self.n_estimators)

    def _check_params(self) -> None:
        p = self._params()
        check_count("n_estimators", p["n_estimators"])
        check_flag("bootstrap", p["bootstrap"])
        check_flag("warm_start", p["warm_start"])
        if not callable(p["oob_score"]):
            check_flag("oob_score", p["oob_score"])
        if p["oob_score"] and not p["bootstrap"]:
            raise InvalidParameterError(
                "Out of bag estimation only available if bootstrap=True. Set it, or "
                "oob_score=False."
            )
        if p["max_samples"] is not None and not p["bootstrap"]:
            raise InvalidParameterError(
                "`max_sample` cannot be set if `bootstrap=False`. Either switch to "
                "`bootstrap=True` or set `max_sample=None`."
            )
        self._rate(2**62)
        super()._check_params()

    def _rate(self, n_rows: int) -> float | None:
        if not self.bootstrap:
            return None
        given = self.max_samples
        if given is None:
            return 1.0
        if is_count(given) and 1 <= given <= _MOST_DRAWS * n_rows:
            return int(given) / n_rows
        if is_share(given) and 0 < given <= _MOST_DRAWS:
            return max(int(n_rows * float(given)), 1) / n_rows
        raise InvalidParameterError(
            f"max_samples={given!r}: use an integer >= 1, a share of the rows above 0 (at most "
            f"{_MOST_DRAWS} times the rows), or None for as many as there are."
        )

    @property
    def estimators_samples_(self) -> list[NDArray[Any]]:
        """Numbers of the rows that each tree drew, as often as it did, made when asked for.

        A list of ndarray of int32 (int64 from 2**31 rows on).
        """
        self._check_fitted()
        n, rate, numbers = self._n_samples, self._drawn_rate, range(len(self))
        rows = np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)
        return [np.repeat(rows, count_draws(n, self._seed, t, rate)) for t in numbers]

    # -- fitting -------------------------------------------------------------------------------

    def _clear_fitted(self) -> None:
        if not self.warm_start:
            for name in ("_trees", "oob_score_", "oob_decision_function_", "oob_prediction_"):
                self.__dict__.pop(name, None)

    def _columns(self, rows: DatasetInfo) -> tuple[NDArray[Any], ...]:
        columns = super()._columns(rows)
        if self.oob_score:
            check_scored(columns)
        return columns

    def _begin(self, n_values: int) -> dict[str, NDArray[Any]] | None:
        trees: Trees | None = vars(self).get("_trees")
        if trees is None or not self.warm_start:
            return None
        if self.n_estimators < len(trees):
            raise InvalidParameterError(
                f"n_estimators={self.n_estimators} must be larger or equal to len(estimators_)="
                f"{len(trees)} when warm_start==True. Raise it, or set warm_start=False."
            )
        if self.n_estimators == len(trees):
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.",
                UserWarning,
                stacklevel=outside(),
            )
        if trees.nodes.value.shape[1] != n_values:
            raise InvalidDataError(
                "warm_start=True goes on with the classes and outputs of the fit before, and y has "
                "others. "
                "Set warm_start=False."
            )
        return {**trees.packed(), "impurity": self._impurity}

    def _set_fitted(self, solution: Solution, model: TreeRowsModel, rows: DatasetInfo) -> None:
        super()._set_fitted(solution, model, rows)
        self._n_samples = rows.survey.n_rows
        self._drawn_rate = self._rate(self._n_samples)
        if "oob_times" in solution.extra:
            self._set_oob(solution.extra)

    def _set_oob(self, found: Any) -> None:
        """Set the scores of rows by the trees that did not draw them."""
        times, y = found["oob_times"], found["oob_y"]
        if not times.all():
            warnings.warn(
                "Some inputs do not have OOB scores. This probably means too few trees were used "
                "to compute any reliable OOB estimates.",
                UserWarning,
                stacklevel=outside(),
            )
        answers = found["oob_sums"] / np.maximum(times, 1)[:, None]
        score: Any = self.oob_score
        if self._classification:
            shares, labels, y = shares_and_labels(answers, y, self.classes_)
            self.oob_decision_function_ = shares
            self.oob_score_ = float((score if callable(score) else accuracy)(y, labels))
        else:
            self.oob_prediction_ = answers if answers.shape[1] > 1 else answers[:, 0]
            scorer = score if callable(score) else r2_score
            self.oob_score_ = float(scorer(y, self.oob_prediction_))

    # -- trees ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of trees."""
        self._check_fitted()
        return len(self._trees)

    def __getitem__(self, number: int) -> Any:
        """One of the trees."""
        return self.estimators_[number]

    @property
    def estimators_(self) -> list[Any]:
        """The trees, each as an estimator of its own; of classes by their numbers."""
        self._check_fitted()
        kind = DecisionTreeClassifier if self._classification else DecisionTreeRegressor
        n_outputs = self.n_outputs_
        shared: dict[str, Any] = {"n_features_in_": self.n_features_in_, "n_outputs_": n_outputs}
        if self._classification:
            n = self.n_classes_
            numbers = [np.arange(of, dtype=np.float64) for of in np.atleast_1d(n)]
            shared |= {"classes_": numbers if n_outputs > 1 else numbers[0], "n_classes_": n}
        found, roots = [], self._trees.roots
        for k in range(len(self._trees)):
            tree = Trees.of([self._trees.tree(k)], 1, self._trees.bins)
            one = kind._of(tree, self._impurity[roots[k] : roots[k + 1]], **shared)
            of_forest = self._all_params()
            known = one.get_params(deep=False)
            found.append(one.set_params(**{n: v for n, v in of_forest.items() if n in known}))
        return found

    def decision_path(self, X: Any) -> tuple[csr_matrix, NDArray[np.int64]]:
        """Nodes that rows come through.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        csr_matrix of int64 of shape (n_rows, n_nodes)
            Of the trees behind each other.
        ndarray of int64 of shape (n_trees + 1,)
            First column of each tree, and their number.
        """
        return self._paths(X)
