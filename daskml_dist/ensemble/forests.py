"""Random forests and extremely randomised trees, grown over binned rows.

`BaseForest` adds to `BaseTrees` draws of rows for each tree, `warm_start` and out-of-bag scores.
The bootstrap of Breiman's forests draws n of n rows with replacement, so that a row is drawn a
binomial number of times, nearly Poisson of mean 1 for many rows. Here it is Poisson for each row,
independently of the others, and hashed from the seed, the tree and the row's number: each worker
draws its own rows, and the same rows are drawn on any worker. The total number of rows that a tree
draws therefore varies a little (by about sqrt(n)).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.metrics import r2_score

from daskml_dist.data.collection import Collection
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.trees import (
    BaseTrees,
    TreesClassifier,
    TreesRegressor,
    is_count,
    is_share,
)
from daskml_dist.models.row_models import TreeRowsModel
from daskml_dist.models.trees import Trees
from daskml_dist.parameters.checks import check_count, check_flag
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.forest_growth import count_draws
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor

Array = NDArray[Any]


def _check_oob_classes(columns: Sequence[Array]) -> None:
    """Raise scikit-learn's error for several outputs if any has more than two classes."""
    if len(columns) > 1 and max(map(len, columns)) > 2:
        raise InvalidDataError(
            "The type of target cannot be used to compute OOB estimates. Got "
            "multiclass-multioutput while only the following are supported: continuous, "
            "continuous-multioutput, binary, multiclass, multilabel-indicator. Set "
            "oob_score=False, or fit one output at a time."
        )


def _score_exact_matches(y: Array, labels: Array) -> float:
    """Return the share of rows whose labels are right in all outputs."""
    is_right = y == labels
    # Subset accuracy, which a classifier's `score` also returns for several outputs.
    return float(np.mean(is_right.all(axis=1) if is_right.ndim == 2 else is_right))


def _split_oob_shares(means: Array, y: Array, classes: Any) -> tuple[Array, Array, Array]:
    """Return shares of classes, and the most probable and the true labels, by output.

    `means` holds the shares of the classes of all outputs side by side, `y` positions of labels.
    """
    if not isinstance(classes, list):
        return means, classes[means.argmax(axis=1)], classes[y.astype(np.intp)]
    # As in scikit-learn, outputs are the last axis, each padded to the largest number of classes.
    ends = [0, *np.cumsum([len(labels) for labels in classes])]
    # The padding is 0 and comes last, so that `argmax`, which returns the first maximum, never
    # selects it: not even in a row of zeros, which all trees have drawn.
    shares = np.zeros((len(y), max(map(len, classes)), len(classes)))
    for k, (start, stop) in enumerate(pairwise(ends)):
        shares[:, : stop - start, k] = means[:, start:stop]
    predicted, true = (
        np.column_stack([labels[codes[:, k]] for k, labels in enumerate(classes)])
        for codes in (shares.argmax(axis=1), y.astype(np.intp))
    )
    return shares, predicted, true


#: Maximum mean number of draws of a row. The look-up table of draws ends at 24, which stands for
#: all higher numbers: at a mean of 4 these have a probability of 2e-12.
_MAX_EXPECTED_DRAWS = 4


class BaseForest(BaseTrees):
    """Base class of forests: draws of rows, warm starts, out-of-bag scores.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    bootstrap : bool
        Draw rows for each tree: how often a row is drawn is a Poisson number of mean 1, hashed from
        the seed, the tree and the row's number. False: each tree uses all rows.
    oob_score : bool or callable, default=False
        Score each row by the trees that did not draw it. A callable of targets and predictions
        replaces the accuracy, or R^2.
    n_jobs : int or None, default=None
        Ignored; present for compatibility with scikit-learn. A fit uses all threads of the workers
        that hold the rows.
    warm_start : bool, default=False
        Keep the trees of the last fit, and add trees until there are `n_estimators`, in the same
        bins.
    max_samples : int, float or None, default=None
        Number of rows that a tree is expected to draw; a float is a share of all rows. At most four
        times the number of rows. None: the number of rows.

    Attributes
    ----------
    estimators_samples_ : list of ndarray of int32
        Numbers of the rows that each tree drew, repeated as often as it drew them.
    oob_score_ : float
        Score of rows by the trees that did not draw them; with `oob_score`.
    """

    n_estimators: int
    bootstrap: bool
    oob_score: Any
    n_jobs: int | None
    warm_start: bool
    max_samples: Any

    @property
    def _n_trees(self) -> int:
        return int(self.n_estimators)

    def _check_params(self) -> None:
        """Raise scikit-learn's errors for parameters, before any pass over rows."""
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
        self._expected_draws(2**62)  # checks `max_samples`, for any number of rows
        super()._check_params()

    def _expected_draws(self, n_rows: int) -> float | None:
        """Return the mean number of draws of a row by a tree; None if trees use all rows."""
        if not self.bootstrap:
            return None
        max_samples = self.max_samples
        # A number is divided by the rows; a share is first rounded to a number of rows, as in
        # scikit-learn: a tree draws that many rows on average.
        if max_samples is None:
            return 1.0
        if is_count(max_samples) and 1 <= max_samples <= _MAX_EXPECTED_DRAWS * n_rows:
            return int(max_samples) / n_rows
        if is_share(max_samples) and 0 < max_samples <= _MAX_EXPECTED_DRAWS:
            return max(int(n_rows * float(max_samples)), 1) / n_rows
        raise InvalidParameterError(
            f"max_samples={max_samples!r}: use an integer >= 1, a share of the rows above 0 (at "
            f"most {_MAX_EXPECTED_DRAWS} times the rows), or None for all rows."
        )

    @property
    def estimators_samples_(self) -> list[NDArray[Any]]:
        """Numbers of the rows that each tree drew, repeated as often as it drew them.

        A list of ndarray of int32 (int64 from 2**31 rows on), recomputed at each access.
        """
        self._check_fitted()
        n, rate, numbers = self._n_samples, self._drawn_rate, range(len(self))
        rows = np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)
        # Nothing is stored for this: the hash of the seed, the tree and the row repeats the draws.
        return [np.repeat(rows, count_draws(n, self._seed, t, rate)) for t in numbers]

    # -- fitting -------------------------------------------------------------------------------

    def _clear_fitted(self) -> None:
        """Drop the results of the last fit, unless this one continues with its trees."""
        if not self.warm_start:
            # Scores too: a fit without `oob_score` would otherwise keep those of the last one.
            for name in ("_trees", "oob_score_", "oob_decision_function_", "oob_prediction_"):
                self.__dict__.pop(name, None)

    @property
    def _adds_trees(self) -> bool:
        """Return whether a fit adds to the trees of the last one."""
        return self.warm_start and "_trees" in vars(self)

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        # A warm start adds trees for the same columns.
        reset = reset and not self._adds_trees
        return super()._make_collection(X, y, sample_weight, reset=reset)

    def _labels_by_output(self, rows: DatasetInfo) -> tuple[NDArray[Any], ...]:
        """Return each output's labels; check that out-of-bag scores are possible if requested."""
        columns = super()._labels_by_output(rows)
        if columns and self._adds_trees:
            labels_before = self.classes_ if isinstance(self.classes_, list) else [self.classes_]
            if not (
                len(labels_before) == len(columns)
                and all(map(np.array_equal, labels_before, columns))
            ):
                raise _make_other_labels_error()
        if self.oob_score:
            _check_oob_classes(columns)
        return columns

    def _resume_state(self, n_values: int) -> dict[str, NDArray[Any]] | None:
        """Return the trees of the last fit, to which a fit with `warm_start` adds; else None."""
        if not self._adds_trees:
            return None
        trees = self._trees
        if self.n_estimators < len(trees):
            raise InvalidParameterError(
                f"n_estimators={self.n_estimators} must be larger or equal to len(estimators_)="
                f"{len(trees)} when warm_start==True. Raise it, or set warm_start=False."
            )
        if self.n_estimators == len(trees):
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.",
                UserWarning,
                stacklevel=user_stack_level(),
            )
        # Values of a leaf: one for each class, or output.
        if trees.nodes.value.shape[1] != n_values:
            raise _make_other_labels_error()
        # `Trees` has no impurities: predictions do not need them, but views of single trees do.
        return {**trees.packed(), "impurity": self._impurity}

    def _set_fitted(self, solution: Solution, model: TreeRowsModel, rows: DatasetInfo) -> None:
        super()._set_fitted(solution, model, rows)
        self._n_samples = rows.summary.n_rows
        # Stored for `estimators_samples_`: `set_params` may change `max_samples` after the fit.
        self._drawn_rate = self._expected_draws(self._n_samples)
        if "oob_times" in solution.extra:
            self._set_oob_attributes(solution.extra)

    def _set_oob_attributes(self, extra: Any) -> None:
        """Set the out-of-bag score, and predictions of rows by the trees that did not draw them."""
        # For each row: number of such trees, the sum of their predictions, and the target.
        times, sums, y = extra["oob_times"], extra["oob_sums"], extra["oob_y"]
        # At a mean of 1 draw, a tree leaves out a share of exp(-1) of the rows, 37%, so all of k
        # trees draw a row with a probability of 0.63^k: 1 row in 100 for 10 trees.
        if not times.all():
            warnings.warn(
                "Some inputs do not have OOB scores. This probably means too few trees were used "
                "to compute any reliable OOB estimates.",
                UserWarning,
                stacklevel=user_stack_level(),
            )
        means = sums / np.maximum(times, 1)[:, None]  # 0 where every tree drew the row
        score: Any = self.oob_score
        if self._classification:
            shares, labels, y = _split_oob_shares(means, y, self.classes_)
            self.oob_decision_function_ = shares
            # A user's function gets labels, not probabilities.
            self.oob_score_ = float((score if callable(score) else _score_exact_matches)(y, labels))
        else:
            self.oob_prediction_ = means if means.shape[1] > 1 else means[:, 0]
            scorer = score if callable(score) else r2_score
            self.oob_score_ = float(scorer(y, self.oob_prediction_))

    # -- trees ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of trees."""
        self._check_fitted()
        return len(self._trees)

    def __getitem__(self, index: int) -> Any:
        """Return the tree with this number."""
        return self.estimators_[index]

    @property
    def estimators_(self) -> list[Any]:
        """The trees, each as a separate estimator, whose labels are class numbers."""
        self._check_fitted()
        tree_class = DecisionTreeClassifier if self._classification else DecisionTreeRegressor
        n_outputs = self.n_outputs_
        shared: dict[str, Any] = {"n_features_in_": self.n_features_in_, "n_outputs_": n_outputs}
        if self._classification:
            # As in scikit-learn, trees predict the positions of labels among the forest's classes.
            n = self.n_classes_
            codes = [np.arange(count, dtype=np.float64) for count in np.atleast_1d(n)]
            shared |= {"classes_": codes if n_outputs > 1 else codes[0], "n_classes_": n}
        tree_params = tree_class().get_params(deep=False)
        # Without parameters that only forests have, such as `bootstrap`.
        params = {name: value for name, value in self._all_params().items() if name in tree_params}
        trees, roots = [], self._trees.roots
        for k in range(len(self._trees)):
            # Nodes of the tree are copied; the bins are shared by all trees.
            nodes = Trees.from_trees([self._trees.tree(k)], 1, self._trees.bins)
            impurity = self._impurity[roots[k] : roots[k + 1]]
            trees.append(tree_class.from_forest(nodes, impurity, **shared).set_params(**params))
        return trees

    def decision_path(self, X: Any) -> tuple[csr_matrix, NDArray[np.int64]]:
        """Return the nodes that each row passes in each tree, as an indicator matrix.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        csr_matrix of int64 of shape (n_rows, n_nodes)
            1 where a row passes a node; the nodes of the trees are side by side.
        ndarray of int64 of shape (n_trees + 1,)
            First column of each tree, and the number of columns.
        """
        return self._find_paths(X)


def _make_other_labels_error() -> InvalidDataError:
    """Return the error for a warm start with other targets than the last fit's."""
    return InvalidDataError(
        "warm_start=True continues with the classes and outputs of the previous fit, but y has "
        "others. Set warm_start=False."
    )


class RandomForestClassifier(TreesClassifier, BaseForest):
    """Random forest of classification trees.

    Each tree is grown on a draw of rows, and each split considers a draw of features. Features are
    binned, one byte per entry. Splits are decided by sums of integers and by draws that are hashed
    from the seed, so the trees are the same on any number of workers and lanes, under either
    `decomposition`, and after the loss of any worker.

    Attributes
    ----------
    estimators_ : list of DecisionTreeClassifier
        The trees, made at each access.
    oob_decision_function_ : ndarray of float64
        Of shape (n_rows, n_classes), or (n_rows, n_classes, n_outputs) for several outputs: for
        each row the mean probabilities of the classes by the trees that did not draw it; zeros if
        there are none. With `oob_score`.
    n_outputs_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    L. Breiman, "Random forests", Machine Learning 45, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import RandomForestClassifier
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = RandomForestClassifier(20, random_state=0).fit(X, X[:, 0] > 99)
    >>> model.predict(np.array([[10.0], [150.0]])).tolist()
    [False, True]
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        # Growth of each tree. A node that must not be split by a limit is a leaf.
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = "sqrt",
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        # Rows that each tree draws; Breiman's forests draw as many as there are rows.
        bootstrap: bool = True,
        oob_score: Any = False,
        # The others of scikit-learn's, in its order.
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
        class_weight: Any = None,
        ccp_alpha: float = 0.0,
        max_samples: int | float | None = None,
        monotonic_cst: Any = None,
        # Not scikit-learn's: bins, where the fit runs, and how its work is divided.
        max_bins: int = 255,
        decomposition: str = "auto",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.ccp_alpha = ccp_alpha
        self.max_samples = max_samples
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks


class RandomForestRegressor(TreesRegressor, BaseForest):
    """Random forest of regression trees.

    Each tree is grown on a draw of rows, and each split considers a draw of features. Features are
    binned, one byte per entry. Splits are decided by sums of integers and by draws that are hashed
    from the seed, so the trees are the same on any number of workers and lanes, under either
    `decomposition`, and after the loss of any worker.

    Attributes
    ----------
    estimators_ : list of DecisionTreeRegressor
        The trees, made at each access.
    oob_prediction_ : ndarray of float64 of shape (n_rows,) or (n_rows, n_outputs)
        For each row the mean prediction of the trees that did not draw it; 0 if there are none.
        With `oob_score`.
    n_outputs_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    L. Breiman, "Random forests", Machine Learning 45, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import RandomForestRegressor
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = RandomForestRegressor(20, random_state=0).fit(X, 1.0 * (X[:, 0] > 99))
    >>> model.predict(np.array([[10.0], [190.0]])).tolist()
    [0.0, 1.0]
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        # Growth of each tree. A node that must not be split by a limit is a leaf.
        criterion: str = "squared_error",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = 1.0,
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        # Rows that each tree draws; Breiman's forests draw as many as there are rows.
        bootstrap: bool = True,
        oob_score: Any = False,
        # The others of scikit-learn's, in its order.
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
        ccp_alpha: float = 0.0,
        max_samples: int | float | None = None,
        monotonic_cst: Any = None,
        # Not scikit-learn's: bins, where the fit runs, and how its work is divided.
        max_bins: int = 255,
        decomposition: str = "auto",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.ccp_alpha = ccp_alpha
        self.max_samples = max_samples
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks


class ExtraTreesClassifier(TreesClassifier, BaseForest):
    """Extremely randomised classification trees.

    Thresholds are drawn too, one for each feature, uniformly between its smallest and largest value
    in a node, and the best of them is used. Features are binned, one byte per entry. Splits are
    decided by sums of integers and by draws that are hashed from the seed, so the trees are the
    same on any number of workers and lanes, under either `decomposition`, and after the loss of any
    worker.

    Attributes
    ----------
    estimators_ : list of DecisionTreeClassifier
        The trees, made at each access.
    oob_decision_function_ : ndarray of float64
        Of shape (n_rows, n_classes), or (n_rows, n_classes, n_outputs) for several outputs: for
        each row the mean probabilities of the classes by the trees that did not draw it; zeros if
        there are none. With `oob_score`.
    n_outputs_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    P. Geurts, D. Ernst and L. Wehenkel, "Extremely randomized trees", Machine Learning 63, 2006.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import ExtraTreesClassifier
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = ExtraTreesClassifier(20, random_state=0).fit(X, X[:, 0] > 99)
    >>> model.predict(np.array([[10.0], [150.0]])).tolist()
    [False, True]
    """

    _random_cuts = True

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        # Growth of each tree. A node that must not be split by a limit is a leaf.
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = "sqrt",
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        # Rows that each tree draws; the trees of Geurts et al. use all rows.
        bootstrap: bool = False,
        oob_score: Any = False,
        # The others of scikit-learn's, in its order.
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
        class_weight: Any = None,
        ccp_alpha: float = 0.0,
        max_samples: int | float | None = None,
        monotonic_cst: Any = None,
        # Not scikit-learn's: bins, where the fit runs, and how its work is divided.
        max_bins: int = 255,
        decomposition: str = "auto",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.ccp_alpha = ccp_alpha
        self.max_samples = max_samples
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks


class ExtraTreesRegressor(TreesRegressor, BaseForest):
    """Extremely randomised regression trees.

    Thresholds are drawn too, one for each feature, uniformly between its smallest and largest value
    in a node, and the best of them is used. Features are binned, one byte per entry. Splits are
    decided by sums of integers and by draws that are hashed from the seed, so the trees are the
    same on any number of workers and lanes, under either `decomposition`, and after the loss of any
    worker.

    Attributes
    ----------
    estimators_ : list of DecisionTreeRegressor
        The trees, made at each access.
    oob_prediction_ : ndarray of float64 of shape (n_rows,) or (n_rows, n_outputs)
        For each row the mean prediction of the trees that did not draw it; 0 if there are none.
        With `oob_score`.
    n_outputs_
        As in :class:`~daskml_dist.linear_model.SGDClassifier`.

    References
    ----------
    P. Geurts, D. Ernst and L. Wehenkel, "Extremely randomized trees", Machine Learning 63, 2006.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import ExtraTreesRegressor
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = ExtraTreesRegressor(20, random_state=0).fit(X, 1.0 * (X[:, 0] > 99))
    >>> model.predict(np.array([[10.0], [190.0]])).tolist()
    [0.0, 1.0]
    """

    _random_cuts = True

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        # Growth of each tree. A node that must not be split by a limit is a leaf.
        criterion: str = "squared_error",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = 1.0,
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        # Rows that each tree draws; the trees of Geurts et al. use all rows.
        bootstrap: bool = False,
        oob_score: Any = False,
        # The others of scikit-learn's, in its order.
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
        ccp_alpha: float = 0.0,
        max_samples: int | float | None = None,
        monotonic_cst: Any = None,
        # Not scikit-learn's: bins, where the fit runs, and how its work is divided.
        max_bins: int = 255,
        decomposition: str = "auto",
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.ccp_alpha = ccp_alpha
        self.max_samples = max_samples
        self.monotonic_cst = monotonic_cst
        self.max_bins = max_bins
        self.decomposition = decomposition
        self.run = run
        self.device = device
        self.callbacks = callbacks
