"""Gradient boosting of trees over binned features, as in LightGBM and scikit-learn.

J. H. Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics
29, 2001; G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017.
Each iteration fits a tree (with several classes, one for each) to the gradients and hessians of the
loss at the current raw predictions; the tree's leaves take Newton steps, shortened by the learning
rate. The arithmetic is in `daskml_dist.solvers.gradient_boosting`.

`BaseBoosting` reads the inputs (categories, validation sets), plans the scores and the rule of
early stopping, and passes all settings to `GradientBoostingSolver`. The classifier and the
regressor choose the loss, and map raw predictions to probabilities and targets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from daskml_dist.backends.devices import DEVICES
from daskml_dist.backends.trees import sparse_rows_error
from daskml_dist.callbacks.eval_monitor import name_eval_sets, name_scores, record_keys
from daskml_dist.data.collection import Collection
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.row_checks import remember_dtypes
from daskml_dist.ensemble._boosting_inputs import (
    encode_categories,
    find_categorical_features,
    find_categories,
    resolve_interaction_cst,
    resolve_monotonic_cst,
    suggest_categories,
)
from daskml_dist.ensemble._boosting_validation import (
    JoinedRanges,
    ValidationSets,
    check_scoring,
    class_probabilities,
    draw_holdout,
    join_validation_sets,
    make_stopping_scorer,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.regressor import score_r2
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.estimators.trees import check_tree_size, is_count
from daskml_dist.inference.independent_rows import declare_independent_rows
from daskml_dist.inference.row_mapping import map_rows, write_in_place
from daskml_dist.losses import (
    AFT,
    AbsoluteError,
    Cox,
    Gamma,
    LogLoss,
    Loss,
    Poisson,
    Quantile,
    SquaredError,
    get_loss,
)
from daskml_dist.models.row_models import TreeRowsModel
from daskml_dist.models.trees import RawTrees, TreeLeaves, Trees
from daskml_dist.parameters.checks import (
    check_class_weight,
    check_count,
    check_flag,
    check_number,
    check_one_of,
    seed_of,
)
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.binning import HoldoutMask, TrailingRows
from daskml_dist.solvers.boosting_scores import (
    BoostLoss,
    RowBoostLoss,
    Scorer,
    StoppingRule,
    WatchedScores,
)
from daskml_dist.solvers.gradient_boosting import GradientBoostingSolver
from daskml_dist.solvers.risk_sets import CoxBoostLoss
from daskml_dist.solvers.row_sampling import GradientSampling, RowSampling, UniformSampling
from daskml_dist.solvers.tree_dropout import TreeDropout
from daskml_dist.solvers.tree_growth import TreeParams
from daskml_dist.training.dataset_info import DatasetInfo, balanced_weights
from daskml_dist.training.job import FitJob

#: Number of rows above which ``early_stopping="auto"`` is on, as in scikit-learn.
_AUTO_EARLY_STOPPING_ROWS = 10_000
#: Arguments of `fit` that hold the rows by which a fit stops early.
_VALIDATION_ARGUMENTS = ("X_val", "y_val", "sample_weight_val")


class BaseBoosting(BaseRounds):
    """Base class of gradient boosting of trees over binned features.

    Parameters
    ----------
    learning_rate : float, default=0.1
        Factor of the leaves' values.
    max_iter : int, default=100
        Most iterations, each of which adds a tree, or a tree for each of several classes.
    drop_rate : float, default=0.0
        Probability with which an earlier iteration is dropped before a new one is made (DART), from
        0 to 1; 0: no dropout.
    skip_drop : float, default=0.0
        Probability that an iteration drops none.
    max_drop : int or None, default=50
        Most iterations that are dropped at once; None: no limit.
    max_leaf_nodes : int or None, default=31
        Most leaves of a tree.
    max_depth : int or None, default=None
        Most edges from the root to a leaf.
    grow_policy : {"lossguide", "depthwise"}, default="lossguide"
        Whether the leaf with the largest gain is split first, or all leaves of a level before the
        next level, largest gains first.
    multi_strategy : {"one_output_per_tree", "multi_output_tree"}, default="one_output_per_tree"
        With several classes or targets, an iteration grows a tree for each; or one tree whose
        leaves have a value for each, with gains summed over them (vector leaves).
    min_samples_leaf : int, default=20
        Fewest rows of a leaf.
    l2_regularization : float, default=0.0
        Added to the sum of the hessians of a leaf.
    subsample : float, default=1.0
        Share of the rows from which the trees of an iteration are grown, in (0, 1], drawn for each
        iteration.
    sampling_method : {"uniform", "goss"}, default="uniform"
        How they are drawn: uniformly, a share `subsample` of them; or by one-side sampling (GOSS),
        the rows with the largest gradients and a draw from the others, which represents all of
        these.
    top_rate, other_rate : float, default=0.2, 0.1
        With "goss", share of the rows with the largest gradients, and share of all rows that is
        drawn from the others.
    colsample_bytree, colsample_bylevel : float, default=1.0
        Share of the features that a tree may use, and of these a level of it, in (0, 1].
    max_features : float, default=1.0
        Share of the remaining features that a split may use; drawn at each node.
    max_bins : int, default=255
        Most bins of a feature, from 2 to 255, in addition to the bin of missing values. Their edges
        come from a sample of 200,000 rows.
    categorical_features : array-like of bool, int or str, "from_dtype" or None
        Features whose values are categories: a mask, numbers, names, or "from_dtype": the columns
        of a dataframe with a categorical dtype. A category that was not in the fit counts as
        missing.
    monotonic_cst : array-like of int of shape (n_features,), dict or None, default=None
        1: predictions rise with the feature, -1: they fall, 0: free. Or a dict by names.
    interaction_cst : {"pairwise", "no_interactions"}, sequence of sequences of int, or None
        Groups of features that may occur together on a path from a root to a leaf.
    warm_start : bool, default=False
        Add to the trees of the last fit, in its bins and with its categorical features. The loss
        may be another one with the same link.
    early_stopping : "auto" or bool, default="auto"
        Stop once the score no longer improves; "auto": with more than 10,000 rows.
    scoring : str, callable or None, default="loss"
        Score that has to improve: ``"loss"``; a name of scikit-learn's scorers or a function of
        (estimator, X, y), applied to the held-out rows and about 10,000 of the others, gathered on
        one worker; None: the estimator's `score`.
    validation_fraction : float, int or None, default=0.1
        Share or number of rows that are held out for early stopping, stratified by class; None: the
        training rows are scored. Which rows are held out depends on `random_state` and the rank of
        a row among the rows of its class.
    n_iter_no_change : int, default=10
        Iterations without a better score after which the fit stops.
    tol : float, default=1e-7
        Least rise of the score that counts as better.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of held-out rows and of features.
    device : {"auto", "cpu", "gpu"}, default="auto"
        Resolved on each worker; on any device the trees are the same to the bit on any number of
        workers and lanes.

    Attributes
    ----------
    n_iter_ : int
        Number of iterations made.
    n_trees_per_iteration_ : int
        Number of trees of an iteration: 1, or 1 for each of several classes or targets.
    do_early_stopping_ : bool
    is_categorical_ : ndarray of bool of shape (n_features,), or None
        Mask of the categorical features; None if there are none.
    """

    loss: Any
    learning_rate: float
    max_iter: int
    drop_rate: float
    skip_drop: float
    max_drop: int | None
    max_leaf_nodes: int | None
    max_depth: int | None
    grow_policy: str
    #: A ranker has one output.
    multi_strategy: str = "one_output_per_tree"
    min_samples_leaf: int
    l2_regularization: float
    subsample: float
    sampling_method: str
    top_rate: float
    other_rate: float
    colsample_bytree: float
    colsample_bylevel: float
    max_features: float
    max_bins: int
    categorical_features: Any
    monotonic_cst: Any
    interaction_cst: Any
    warm_start: bool
    early_stopping: Any
    scoring: Any
    validation_fraction: Any
    n_iter_no_change: int
    tol: float
    verbose: int
    random_state: Any
    callbacks: Any
    n_iter_: int
    _trees: Trees
    _baseline: NDArray[np.float64]
    #: Mask of the categorical features, and the categories of a frame's columns.
    _is_category: NDArray[np.bool_] | None
    _categories: dict[Any, NDArray[Any]]
    #: Half of the memory budget is reserved for the bins made from rows.
    _made_share = 0.5
    #: During a fit: validation sets given with it, and their ranges among the joined rows.
    _given_sets: ValidationSets | None = None
    _joined_rows: JoinedRanges | None = None
    _is_encoded: bool = False
    #: Whether the rows of the fit are weighted; batches or columns may hold their weights.
    _fit_is_weighted: bool = False
    #: Whether rows were weighted; counts of nodes do not show it.
    _has_weights: bool = False
    #: Unit of the grid of leaf values, with dropout, needed by a warm start; 0: none.
    _value_unit: float = 0.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = False
        return tags

    @abstractmethod
    def _make_boosting_loss(self, rows: DatasetInfo) -> BoostLoss:
        """Return the loss to minimise; raise an error for targets outside its domain."""

    # -- categories ----------------------------------------------------------------------------

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        """Return the rows with encoded categories, and the validation sets appended to them."""
        X, y, sample_weight = self._prepare_inputs(X, y, sample_weight)
        self._fit_is_weighted = sample_weight is not None
        # A warm start keeps the categories and bins of the trees to which it adds.
        continues = self._continues_last_fit
        if continues:
            self._check_same_categories(X)
        else:
            self._find_categories(X)
        reset = reset and not continues
        rows = self._encode_categories(X, only_known=not continues), y, sample_weight
        if self._given_sets is not None:
            sets = [self._prepare_inputs(*inputs) for inputs in self._given_sets.inputs]
            # Categories that occur only in a validation set are missing values, as in predictions.
            inputs = tuple(
                (self._encode_categories(X_val), *y_and_weight) for X_val, *y_and_weight in sets
            )
            rows, self._joined_rows = join_validation_sets(
                rows, replace(self._given_sets, inputs=inputs)
            )
        self._is_encoded = True  # read by `_align_inputs`, which the base class calls
        try:
            collection = super()._make_collection(*rows, reset=reset)
        except InvalidDataError as error:
            error.args = (f"{error}{suggest_categories(X)}",)
            raise
        if reset and self._categories:
            remember_dtypes(self, X)  # the user's dtypes: the base class saw encoded columns
        return collection

    def _find_categories(self, X: Any) -> None:
        """Set the mask of categorical features, and the categories of a frame's columns."""
        X = _as_rows_or_columns(X)
        self._is_category, self._categories = None, {}
        if len(getattr(X, "shape", (0, 0))) != 2:
            return  # a wrong shape is reported when rows are checked
        self._is_category = find_categorical_features(X, self.categorical_features)
        if self._is_category is not None and is_dataframe_like(X):
            self._categories = find_categories(X, self._is_category, int(self.max_bins))

    def _check_same_categories(self, X: Any) -> None:
        """Raise if a warm start has other categorical features than the trees it adds to."""
        X, old_mask = _as_rows_or_columns(X), self._is_category
        if old_mask is None or getattr(X, "shape", (0, 0))[1:] != old_mask.shape:
            return  # a wrong shape is reported when rows are checked
        mask = find_categorical_features(X, self.categorical_features)
        # By dtype, a column of the same values without a categorical dtype is encoded all the same.
        by_dtype = isinstance(self.categorical_features, str)
        if mask is not None and ((mask & ~old_mask) | (old_mask & ~mask & (not by_dtype))).any():
            raise InvalidParameterError(
                f"categorical_features={self.categorical_features!r} with warm_start=True: these "
                f"are the features {np.flatnonzero(mask).tolist()}, and those of the fit before "
                f"were {np.flatnonzero(old_mask).tolist()}. Leave them as they were, or set "
                "warm_start=False."
            )

    def _align_inputs(self, X: Any, y: Any, sample_weight: Any) -> Collection:
        """Return inputs in blocks of the same rows, with categories encoded (once)."""
        X = X if self._is_encoded else self._encode_categories(X)
        return super()._align_inputs(X, y, sample_weight)

    def _encode_categories(self, X: Any, only_known: bool = False) -> Any:
        return encode_categories(_as_rows_or_columns(X), self._categories, only_known)

    @property
    def _continues_last_fit(self) -> bool:
        """Return whether a fit continues with the trees of the previous one."""
        return self.warm_start and "_trees" in vars(self)

    def _list_categories(self, rows: DatasetInfo) -> tuple[NDArray[np.float64] | None, ...]:
        """Return the categories of each feature: None for numbers, empty if not yet known."""
        mask = self._is_category
        if mask is None:
            return (None,) * rows.summary.n_features
        # A frame's categories are already encoded as 0, 1, .... Those of arrays are found while
        # features are binned.
        codes = [np.arange(float(len(values))) for values in self._categories.values()]
        categories = iter(codes or [np.empty(0)] * int(mask.sum()))
        return tuple(next(categories) if is_category else None for is_category in mask)

    # -- fitting -------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
        eval_set: Any = None,
        scoring: Any = None,
        client: Any = None,
    ) -> Self:
        """Fit an ensemble of boosted trees.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`, except that X is dense and may
            hold NaN, which is a missing value.
        X_val, y_val, sample_weight_val
            Rows whose score decides early stopping, in the same forms as those of the fit.
        eval_set : tuple of (X, y), or of (X, y, sample_weight), or list of these, or dict, optional
            Sets of rows that are scored after each iteration and not trained on, in the forms of X
            and y. A dict gives them names, a list the names ``"0"``, ``"1"``. The scores are in
            :attr:`history_` as ``eval_score_SET_SCORE``, and the first of all is ``eval_score``.
            Without `X_val` the last score of the last set decides early stopping.
        scoring : str, callable, list of str, or dict of str to these, optional
            Scores of these sets; by default the parameter `scoring`.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            An argument is invalid; the message names the remedy.
        TrainingError
            The fit cannot continue.
        """
        # Contradictions among the arguments, before any work is started.
        if (X_val is None) != (y_val is None):
            passed, missing = ("X_val", "y_val") if y_val is None else ("y_val", "X_val")
            raise InvalidDataError(
                f"{passed} is provided, but {missing} was not provided. Give both."
            )
        if X_val is not None and self.early_stopping is False:
            raise InvalidParameterError(
                "X_val and y_val are passed to fit while at the same time early_stopping is "
                'False. Set it to True or "auto".'
            )
        val = None if X_val is None else (X_val, y_val, sample_weight_val)
        self._given_sets = self._collect_given_sets(val, eval_set, scoring)
        try:
            self._clear_fitted()
            self._fit(X, y, sample_weight, client)
            self._has_weights |= self._fit_is_weighted
        finally:
            # Settings of this call only, which no later call and no pickle may see.
            self.__dict__.pop("_given_sets", None)
            self.__dict__.pop("_joined_rows", None)
            self.__dict__.pop("_is_encoded", None)
            self.__dict__.pop("_fit_is_weighted", None)
        return self

    def _collect_given_sets(self, val: Any, eval_set: Any, scoring: Any) -> ValidationSets | None:
        """Return the validation sets among the arguments of `fit`; None if there are none."""
        if eval_set is None:
            if scoring is not None:
                raise InvalidParameterError(
                    f"scoring={scoring!r} without eval_set: pass the rows to score, "
                    "eval_set=(X, y). What stops early is scored by the parameter of the "
                    f"constructor, {type(self).__name__}(scoring=...)."
                )
            return None if val is None else ValidationSets((val,), (_VALIDATION_ARGUMENTS,))
        # Every set of eval_set is scored by every scoring. X_val comes last: it stops the fit, and
        # its scores are not recorded.
        sets = name_eval_sets(eval_set)
        scores = self._name_watched_scores(scoring)
        inputs = tuple((*parts, None)[:3] for parts in sets.values())  # weights are None if omitted
        names = [f"eval_set[{name!r}]" if name else "eval_set" for name in sets]
        arguments = tuple((f"X of {n}", f"y of {n}", f"weights of {n}") for n in names)
        if val is not None:
            inputs, arguments = (*inputs, val), (*arguments, _VALIDATION_ARGUMENTS)
        keys = tuple(record_keys(sets, scores))
        return ValidationSets(inputs, arguments, keys, tuple(scores.values()), val is not None)

    def _name_watched_scores(self, scoring: Any) -> dict[str, Any]:
        """Return the scorings of the sets of `eval_set`, by name."""
        scores = name_scores(self.scoring if scoring is None else scoring)
        for score in scores.values():
            check_scoring(score)
        return scores

    def _clear_fitted(self) -> None:
        """Drop the trees of the last fit, unless this one adds to them."""
        if not self.warm_start:
            self.__dict__.pop("_trees", None)
            self.__dict__.pop("_has_weights", None)

    def _check_params(self) -> None:
        p = self._params()
        check_number("learning_rate", p["learning_rate"], lambda v: v > 0, "> 0")
        check_count("max_iter", p["max_iter"])
        check_tree_size(p)
        check_count("min_samples_leaf", p["min_samples_leaf"])
        check_number("l2_regularization", p["l2_regularization"])
        check_one_of("grow_policy", p["grow_policy"], ("lossguide", "depthwise"))
        check_one_of(
            "multi_strategy", self.multi_strategy, ("one_output_per_tree", "multi_output_tree")
        )
        for name in ("max_features", "subsample", "colsample_bytree", "colsample_bylevel"):
            check_number(name, p[name], lambda v: 0 < v <= 1, "of (0, 1]")
        self._check_sampling(p)
        for name in ("drop_rate", "skip_drop"):
            check_number(name, p[name], lambda v: 0 <= v <= 1, "from 0 to 1")
        if p["max_drop"] is not None:
            check_count("max_drop", p["max_drop"], "or None for no limit")
        check_flag("warm_start", p["warm_start"])
        if not (isinstance(p["early_stopping"], str) and p["early_stopping"] == "auto"):
            check_flag("early_stopping", p["early_stopping"])
        check_scoring(p["scoring"])
        self._check_validation_fraction(p["validation_fraction"])
        check_count("n_iter_no_change", p["n_iter_no_change"])
        check_number("tol", p["tol"])
        check_one_of("device", p["device"], DEVICES)

    def _check_sampling(self, p: dict[str, Any]) -> None:
        """Raise for sampling parameters that contradict each other."""
        check_one_of("sampling_method", p["sampling_method"], ("uniform", "goss"))
        for name in ("top_rate", "other_rate"):
            check_number(name, p[name], lambda v: 0 < v < 1, "of (0, 1)")
        if p["top_rate"] + p["other_rate"] > 1:
            raise InvalidParameterError(
                f"top_rate={p['top_rate']!r} and other_rate={p['other_rate']!r} are shares of the "
                "rows, and sum to more than 1. Lower them: top_rate=0.2, other_rate=0.1."
            )
        if p["sampling_method"] == "goss" and p["subsample"] != 1:
            raise InvalidParameterError(
                f"subsample={p['subsample']!r} with sampling_method='goss', which takes top_rate "
                "and other_rate of the rows. Set subsample=1.0, or sampling_method='uniform'."
            )

    def _check_validation_fraction(self, value: Any) -> None:
        if value is None or (is_count(value) and value >= 1):
            return
        check_number("validation_fraction", value, lambda v: 0 < v < 1, "of (0, 1)")

    def _dataset_info(
        self, job: FitJob, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        """Return the facts about the rows, with weights that are not scaled to mean 1."""
        sets, joined = self._given_sets, self._joined_rows
        # If any set has weights, all rows have: 1 if none are given (`join_validation_sets`).
        weighted |= sets is not None and any(weight is not None for _, _, weight in sets.inputs)
        rows = super()._dataset_info(job, classes, class_weight, weighted)
        if any(info.sparse for info in rows.summary.infos):
            raise sparse_rows_error()
        # Classes are balanced by only the rows of the fit, without the sets after them. Counting
        # these also raises an error for labels that occur only in a set.
        if joined is not None and rows.classes is not None:
            sums = joined.label_weights(rows.summary, rows.classes)
            if class_weight == "balanced":
                rows = replace(rows, class_weight=balanced_weights(sums))
        # Sums of hessians, which weights scale, have absolute bounds (l2_regularization).
        return rows if rows.weight_scale is None else replace(rows, weight_scale=1.0)

    def _make_growth_params(self, d: int, n_outputs: int) -> TreeParams:
        """Return the parameters by which trees are grown on `d` features."""
        p = self._params()
        signs = resolve_monotonic_cst(self, p["monotonic_cst"], d, n_outputs)
        if self._is_category is not None and (signs[self._is_category] != 0).any():
            raise InvalidParameterError(
                "Categorical features cannot have monotonic constraints: they have no order. Set "
                "those of monotonic_cst to 0."
            )
        return TreeParams(
            max_leaf_nodes=p["max_leaf_nodes"],
            max_depth=p["max_depth"],
            min_samples_leaf=int(p["min_samples_leaf"]),
            l2_regularization=float(p["l2_regularization"]),
            max_features=float(p["max_features"]),
            monotonic_signs=signs,
            interaction_groups=resolve_interaction_cst(p["interaction_cst"], d),
            by_level=p["grow_policy"] == "depthwise",
            tree_features=float(p["colsample_bytree"]),
            level_features=float(p["colsample_bylevel"]),
        )

    def _make_sampling(self, loss: BoostLoss) -> RowSampling | None:
        """Return the rule by which the rows of an iteration are drawn; None: all rows are used."""
        p = self._params()
        if p["sampling_method"] == "goss":
            if loss.quantile is not None:
                raise InvalidParameterError(
                    "sampling_method='goss' keeps the rows of the largest gradients, and those of "
                    "medians and quantiles have no sizes: each is one of two numbers. Take "
                    "subsample=0.5, sampling_method='uniform', or another loss."
                )
            return GradientSampling(float(p["top_rate"]), float(p["other_rate"]))
        return None if p["subsample"] == 1 else UniformSampling(float(p["subsample"]))

    def _make_dropout(self) -> TreeDropout | None:
        """Return the rule by which iterations are dropped; None: no dropout."""
        p = self._params()
        if not p["drop_rate"]:
            return None
        max_drop = None if p["max_drop"] is None else int(p["max_drop"])
        return TreeDropout(float(p["drop_rate"]), float(p["skip_drop"]), max_drop)

    def _problem(self, rows: DatasetInfo) -> tuple[Any, Any]:
        """Return the model, which holds binned rows, and the solver of a fit."""
        p, d = self._params(), rows.summary.n_features
        loss = self._make_boosting_loss(rows)
        has_vectors = self.multi_strategy == "multi_output_tree" and loss.n_outputs > 1
        if has_vectors:
            self._check_vector_leaves()
        # Trees of different targets are independent: a constraint on one holds for its prediction.
        is_independent = rows.classes is None and not has_vectors
        growth = self._make_growth_params(d, 1 if is_independent else loss.n_outputs)
        initial_state = self._resume_state(loss, rows, has_vectors)  # None: a new ensemble
        if initial_state is None:
            # A warm start keeps the seed, so that the same rows are held out again.
            self._seed = seed_of(self.random_state)
        stopping, held_out, watching = self._plan_scores(rows)
        solver = GradientBoostingSolver(
            loss=loss,
            learning_rate=float(p["learning_rate"]),
            max_iter=int(p["max_iter"]),
            growth=growth,
            max_bins=int(p["max_bins"]),
            categories=self._list_categories(rows),
            seed=self._seed,
            stopping=stopping,
            aside=held_out,
            watching=watching,
            begin=initial_state,
            sampling=self._make_sampling(loss),
            dropout=self._make_dropout(),
            vector_leaves=has_vectors,
        )
        return TreeRowsModel(d, joins_bounds=isinstance(self._survival_loss, AFT)), solver

    def _check_vector_leaves(self) -> None:
        """Raise for parameters that trees with several outputs do not support."""
        p, remedy = self._params(), 'multi_strategy="one_output_per_tree"'
        if p["drop_rate"]:
            raise InvalidParameterError(
                f"drop_rate={p['drop_rate']!r} with multi_strategy='multi_output_tree': trees of "
                f"several outputs are not dropped. Set drop_rate=0.0, or {remedy}."
            )
        if p["device"] == "gpu":
            raise InvalidParameterError(
                'device="gpu" with multi_strategy="multi_output_tree": CPUs alone grow trees of '
                f'several outputs. Use device="cpu" or "auto", or {remedy}.'
            )

    def _resume_state(
        self, loss: BoostLoss, rows: DatasetInfo, has_vectors: bool
    ) -> dict[str, NDArray[Any]] | None:
        """Return the state of the last fit if this one continues it (`warm_start`)."""
        if not self._continues_last_fit:
            return None
        trees = self._trees
        if self.max_iter < self.n_iter_:
            raise InvalidParameterError(
                f"max_iter={self.max_iter} must be larger than or equal to n_iter_={self.n_iter_} "
                "when warm_start==True. Raise it, or set warm_start=False."
            )
        # One tree per class and iteration: other classes would need other trees.
        classes_before = vars(self).get("classes_", np.empty(0))
        if len(self._baseline) != loss.n_outputs or (
            rows.classes is not None and not np.array_equal(classes_before, rows.classes)
        ):
            what = "targets" if rows.classes is None else "classes"
            raise InvalidDataError(
                f"warm_start=True goes on with the {what} of the fit before, and y has others. "
                "Set warm_start=False."
            )
        if (trees.n_per_iteration != loss.n_outputs) != has_vectors:
            raise InvalidParameterError(
                f"multi_strategy={self.multi_strategy!r} with warm_start=True: the fit before had "
                "the other one. Leave it as it was, or set warm_start=False."
            )
        row_loss = _find_row_loss(loss)
        if not _have_same_link(self._loss_of_fit, row_loss):
            raise InvalidParameterError(
                f"loss={self.loss!r} with warm_start=True: its raw predictions have another link "
                f"to the target than those of the fit before, by {self._loss_of_fit!r}, and the "
                "trees of both would be added. Leave the loss as it was, or set warm_start=False."
            )
        # Scores by another scorer or loss cannot be compared with the new ones.
        is_same_score = self._scored_by == (self._stop_scoring, row_loss)
        scores = {
            name: vars(self)[f"{name}_"] if is_same_score else np.empty(0)
            for name in ("train_score", "validation_score")
        }
        baseline_and_unit = {"baseline": self._baseline, "value_unit": np.array([self._value_unit])}
        return {**trees.packed(), **baseline_and_unit, **scores}

    def _plan_scores(
        self, rows: DatasetInfo
    ) -> tuple[StoppingRule | None, HoldoutMask | None, WatchedScores | None]:
        """Return the rule that stops the fit early, the held-out rows, and the watched scores."""
        p, given_sets = self._params(), self._given_sets
        ends = [rows.summary.n_rows]
        if self._joined_rows is not None:
            ends = self._joined_rows.count_row_ends(rows.summary)
        stops = p["early_stopping"]
        if isinstance(stops, str):  # "auto"
            stops = ends[0] > _AUTO_EARLY_STOPPING_ROWS
        self.do_early_stopping_ = bool(stops)
        held_out: HoldoutMask | None = None
        # The row range of the set that stops the fit; None: all held-out rows.
        watching, stopping_range = None, None
        if given_sets is not None:
            # Given sets come after the rows of the fit (`join_validation_sets`).
            held_out = TrailingRows(ends[0], rows.class_weight)
            ranges = list(pairwise(ends))
            for (first, end), (name, *_) in zip(ranges, given_sets.arguments, strict=True):
                if first == end:
                    raise InvalidDataError(f"{name} has no rows. Give it some, or leave it out.")
            watched = ranges[:-1] if given_sets.has_stopping_set else ranges
            if watched:
                scorers = tuple(self._make_scorer(scoring, rows) for scoring in given_sets.scorings)
                watching = WatchedScores(tuple(watched), scorers, given_sets.keys)
                stopping_range = ranges[-1]
        if not stops:
            return None, held_out, watching
        # Without given sets, a share of the fit's rows is held out. Without a share, the training
        # rows are scored.
        if given_sets is None and p["validation_fraction"] is not None:
            fraction = p["validation_fraction"]
            held_out = self._draw_holdout(rows, fraction)
        stopping = StoppingRule(
            int(p["n_iter_no_change"]), float(p["tol"]), held_out is not None,
            self._make_scorer(self._stop_scoring, rows), stopping_range,
        )  # fmt: skip
        return stopping, held_out, watching

    def _draw_holdout(self, rows: DatasetInfo, size: float) -> HoldoutMask:
        """Return the rows of the fit to hold out; `size` is their number or share."""
        return draw_holdout(rows.summary, rows.classes, size, self._seed)

    @property
    def _stop_scoring(self) -> Any:
        """Return the score that stops the fit: the parameter, or the last one of the last set."""
        sets = self._given_sets
        return self.scoring if sets is None or sets.has_stopping_set else sets.scorings[-1]

    def _make_scorer(self, scoring: Any, rows: DatasetInfo) -> Scorer | None:
        """Return the scorer of raw predictions for a scoring; None for "loss"."""
        # A regressor is scored by predicted targets, a classifier by probabilities or labels.
        if self._survival_loss is not None and not (isinstance(scoring, str) and scoring == "loss"):
            raise InvalidParameterError(
                f"scoring={scoring!r} with loss={self.loss!r}: scorers take targets, and times are "
                'known by bounds. Leave scoring="loss", the likelihood; the concordance index is '
                "what score() returns."
            )
        regressor: Any = self
        inverse_link = regressor._find_loss().inverse_link if rows.classes is None else None
        if rows.classes is not None and _is_own_loss(self.loss):
            inverse_link = self.loss.predict_proba
        return make_stopping_scorer(scoring, rows.classes, inverse_link)

    def _set_fitted(self, solution: Solution, model: TreeRowsModel, rows: DatasetInfo) -> None:
        state = solution.extra
        self._trees, self._baseline = Trees.unpacked(state), state["baseline"]
        self._value_unit = float(state["value_unit"][0])
        self.train_score_ = state["train_score"]
        self.validation_score_ = state["validation_score"]
        self._loss_of_fit = _find_row_loss(self._make_boosting_loss(rows))
        # A warm start continues these scores only if the same scoring stops it.
        self._scored_by = self._stop_scoring, self._loss_of_fit
        self.n_features_in_ = model.n_features
        categorical = self._trees.bins.categorical
        self.is_categorical_ = categorical if categorical.any() else None

    @property
    def n_trees_per_iteration_(self) -> int:
        """Number of trees of an iteration: 1, or 1 for each class or target."""
        self._check_fitted()
        return self._trees.n_per_iteration

    # -- functions of rows ---------------------------------------------------------------------

    def apply(self, X: Any) -> Any:
        """Return the number of the leaf that each row reaches, in each tree.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int64 of shape (n_rows, n_trees)
            Trees in the order in which they were grown; trees of the classes or targets of one
            iteration are consecutive.

        Raises
        ------
        NotFittedError, InvalidDataError
        """
        X = self._read_features(X)
        return map_rows(
            TreeLeaves(self._trees), X, dtype=np.int64,
            n_outputs=len(self._trees), name=type(self).__name__, row_shape=self._row_shape,
        )  # fmt: skip

    def _read_features(self, X: Any) -> Any:
        return encode_categories(super()._read_features(X), self._categories)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        # F_0 in Friedman's algorithm 1, a constant, plus the sum of the trees.
        return RawTrees(self._trees, self._baseline)

    def _iterate_stages(self) -> Iterator[Any]:
        """Yield the estimator as of each iteration."""
        fitted = dict(vars(self))  # a later fit must not change the stages
        for n in range(1, fitted["_trees"].n_iter + 1):
            # Shallow: all stages share the fitted attributes, except for the trees.
            stage = object.__new__(type(self))
            stage.__dict__.update(fitted, _trees=fitted["_trees"].first(n))
            yield stage


def _as_rows_or_columns(X: Any) -> Any:
    """Return rows that have a shape or columns; lists of delayed blocks stay lazy."""
    return X if hasattr(X, "shape") or is_dataframe_like(X) or is_dask(X) else np.asarray(X)


def _find_row_loss(loss: BoostLoss) -> Loss | None:
    """Return the loss of a raw prediction; None for a ranking, whose loss is that of queries."""
    return loss.loss if isinstance(loss, RowBoostLoss | CoxBoostLoss) else None


def _have_same_link(first: Loss | None, second: Loss | None) -> bool:
    """Return whether raw predictions by two losses mean the same targets or probabilities."""
    if first is None or second is None:
        return first is second
    names = ("inverse_link", "predict_proba", "write_proba")
    if any(getattr(type(first), name) is not getattr(type(second), name) for name in names):
        return False
    raw = np.linspace(-1.0, 1.0, 5)  # the same function may have other parameters (Tweedie)
    return np.array_equal(first.inverse_link(raw), second.inverse_link(raw))


def _is_own_loss(loss: Any) -> bool:
    """Return whether a loss is an object that is not available by name."""
    return isinstance(loss, Loss) and type(loss) is not LogLoss


class HistGradientBoostingClassifier(BaseClassifier, BaseBoosting):
    """Gradient boosting of classification trees over binned features.

    Rows are not moved, and take one byte per entry. Workers exchange histograms of integers, so the
    trees are the same on any number of workers, and after the loss of any. With at most 200,000
    rows they are scikit-learn's. With more than two classes an iteration grows a tree for each, or
    one for all (`multi_strategy`).

    Parameters
    ----------
    loss : "log_loss" or Loss, default="log_loss"
        Or, of two classes, an object of :mod:`daskml_dist.losses`, such as a
        :class:`~daskml_dist.losses.RowLoss` of your own.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, by which those of the rows are multiplied.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    train_score_, validation_score_ : ndarray of float64
        With early stopping, the score (minus the mean loss) before the first tree and after each
        iteration, of the training rows and of the held-out rows; otherwise empty.

    References
    ----------
    G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import HistGradientBoostingClassifier
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> model = HistGradientBoostingClassifier(max_iter=20).fit(X, X[:, 0] > 99)
    >>> model.predict(np.array([[10.0], [150.0]])).tolist()
    [False, True]
    """

    class_weight: Any

    def __init__(
        self,
        loss: Any = "log_loss",
        *,
        # Number of steps, and their length; shorter ones overfit less (Friedman 2001, section 5).
        learning_rate: float = 0.1,
        max_iter: int = 100,
        # Earlier trees that an iteration ignores (DART).
        drop_rate: float = 0.0,
        skip_drop: float = 0.0,
        max_drop: int | None = 50,
        # Growth of each tree, by the largest gain first or level by level.
        max_leaf_nodes: int | None = 31,
        max_depth: int | None = None,
        grow_policy: str = "lossguide",
        # For several outputs, a tree for each, or one with a value for each in its leaves.
        multi_strategy: str = "one_output_per_tree",
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        # Rows that an iteration uses, and features that a tree, a level and a node use.
        subsample: float = 1.0,
        sampling_method: str = "uniform",
        top_rate: float = 0.2,
        other_rate: float = 0.1,
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        max_features: float = 1.0,
        # Treatment of features: bins, categories, and the effects that trees may learn.
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        warm_start: bool = False,
        # Early stopping by a score on held-out rows or, without a fraction, on the training rows.
        early_stopping: bool | str = "auto",
        scoring: Any = "loss",
        validation_fraction: float | int | None = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        verbose: int = 0,
        random_state: Any = None,
        class_weight: Any = None,
        # Not in scikit-learn: where the fit runs, and how it is monitored.
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.loss = loss
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.drop_rate = drop_rate
        self.skip_drop = skip_drop
        self.max_drop = max_drop
        self.max_leaf_nodes = max_leaf_nodes
        self.max_depth = max_depth
        self.grow_policy = grow_policy
        self.multi_strategy = multi_strategy
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.subsample = subsample
        self.sampling_method = sampling_method
        self.top_rate = top_rate
        self.other_rate = other_rate
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.max_features = max_features
        self.max_bins = max_bins
        self.categorical_features = categorical_features
        self.monotonic_cst = monotonic_cst
        self.interaction_cst = interaction_cst
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.scoring = scoring
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.class_weight = class_weight
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        if isinstance(self.loss, Loss):
            get_loss(self.loss, "classification")
        else:
            check_one_of("loss", self.loss, ("log_loss",))
        check_class_weight(self.class_weight)
        super()._check_params()

    def _make_boosting_loss(self, rows: DatasetInfo) -> BoostLoss:
        assert rows.classes is not None
        n = len(rows.classes)
        if _is_own_loss(self.loss):
            if n > 2:
                raise InvalidParameterError(
                    f"loss={self.loss!r} is for two classes in boosting, and y has {n}. Take "
                    "loss='log_loss', or fit a classifier for each class "
                    "(sklearn.multiclass.OneVsRestClassifier)."
                )
            return RowBoostLoss(self.loss)
        # Friedman (2001): for two classes one tree per iteration, for the log odds of the second
        # (section 4.5); for K classes K trees, whose sums are the input of the softmax (section
        # 4.6).
        return RowBoostLoss(LogLoss(), 1 if n == 2 else n)

    def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
        assert rows.classes is not None
        self.classes_: NDArray[Any] = rows.classes
        super()._set_fitted(solution, model, rows)

    def predict_proba(self, X: Any) -> Any:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_classes)
        """
        self._check_fitted(X)
        n, loss = len(self.classes_), self._loss_of_fit
        if _is_own_loss(loss):
            return self._map_raw_predictions(loss.write_proba, X, np.float64, n)
        return self._map_raw_predictions(
            _write_two_shares if n == 2 else _write_shares, X, np.float64, n
        )

    def decision_function(self, X: Any) -> Any:
        """Return raw predictions: the log odds of the second of two classes, or a number per class.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,), or (n_rows, n_classes)
        """
        self._check_fitted(X)
        n = len(self.classes_)
        return self._map_raw_predictions(None, X, np.float64, None if n == 2 else n)

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Yield the labels after each iteration, as :meth:`predict`."""
        self._check_fitted(X)
        for stage in self._iterate_stages():
            yield stage.predict(X)

    def staged_predict_proba(self, X: Any) -> Iterator[Any]:
        """Yield the probabilities after each iteration, as :meth:`predict_proba`."""
        self._check_fitted(X)
        for stage in self._iterate_stages():
            yield stage.predict_proba(X)

    def staged_decision_function(self, X: Any) -> Iterator[Any]:
        """Yield raw predictions after each iteration, as :meth:`decision_function`."""
        self._check_fitted(X)
        for stage in self._iterate_stages():
            yield stage.decision_function(X)


@declare_independent_rows
def _write_two_shares(raw: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the probabilities of two classes; rows may be predicted in batches of any size.

    The softmax of several classes sums over an axis, whose order of summation NumPy may change with
    the number of rows.
    """
    _write_shares(raw, out)


def _write_shares(raw: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the probabilities of the classes of rows, given raw predictions."""
    out[...] = class_probabilities(raw)


#: Losses of the regressor by name.
_LOSSES_BY_NAME: dict[str, type[Loss]] = {
    loss.name: loss for loss in (SquaredError, AbsoluteError, Gamma, Poisson, Quantile)
}


class HistGradientBoostingRegressor(RegressorMixin, BaseBoosting):
    """Gradient boosting of regression trees over binned features.

    Rows are not moved, and take one byte per entry. Workers exchange histograms of integers, so the
    trees are the same on any number of workers, and after the loss of any. With at most 200,000
    rows they are scikit-learn's. y may have several columns: an iteration grows a tree for each, or
    one for all (`multi_strategy`).

    Parameters
    ----------
    loss : {"squared_error", "absolute_error", "gamma", "poisson", "quantile"} or Loss, \
    default="squared_error"
        ``"gamma"`` and ``"poisson"`` have a log link. Or an object of :mod:`daskml_dist.losses`,
        such as ``Huber(1.0)``, or a :class:`~daskml_dist.losses.RowLoss` of your own. With
        :class:`~daskml_dist.losses.AFT` and :class:`~daskml_dist.losses.Cox` y holds times, some of
        them censored.
    quantile : float or None, default=None
        Quantile that the loss ``"quantile"`` estimates, between 0 and 1, both excluded.

    Attributes
    ----------
    train_score_, validation_score_ : ndarray of float64
        With early stopping, the score (minus the mean loss) before the first tree and after each
        iteration, of the training rows and of the held-out rows; otherwise empty.

    References
    ----------
    G. Ke et al., "LightGBM: A highly efficient gradient boosting decision tree", NIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.ensemble import HistGradientBoostingRegressor
    >>> X = np.arange(200.0).reshape(-1, 1)
    >>> y = (X[:, 0] > 99).astype(float)
    >>> model = HistGradientBoostingRegressor(max_iter=50).fit(X, y)
    >>> model.predict(np.array([[10.0], [150.0]])).round(2).tolist()
    [0.0, 1.0]
    """

    quantile: float | None

    def __init__(
        self,
        loss: Any = "squared_error",
        *,
        quantile: float | None = None,
        # Number of steps, and their length; shorter ones overfit less (Friedman 2001, section 5).
        learning_rate: float = 0.1,
        max_iter: int = 100,
        # Earlier trees that an iteration ignores (DART).
        drop_rate: float = 0.0,
        skip_drop: float = 0.0,
        max_drop: int | None = 50,
        # Growth of each tree, by the largest gain first or level by level.
        max_leaf_nodes: int | None = 31,
        max_depth: int | None = None,
        grow_policy: str = "lossguide",
        # For several outputs, a tree for each, or one with a value for each in its leaves.
        multi_strategy: str = "one_output_per_tree",
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        # Rows that an iteration uses, and features that a tree, a level and a node use.
        subsample: float = 1.0,
        sampling_method: str = "uniform",
        top_rate: float = 0.2,
        other_rate: float = 0.1,
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        max_features: float = 1.0,
        # Treatment of features: bins, categories, and the effects that trees may learn.
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        warm_start: bool = False,
        # Early stopping by a score on held-out rows or, without a fraction, on the training rows.
        early_stopping: bool | str = "auto",
        scoring: Any = "loss",
        validation_fraction: float | int | None = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        verbose: int = 0,
        random_state: Any = None,
        # Not in scikit-learn: where the fit runs, and how it is monitored.
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.loss = loss
        self.quantile = quantile
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.drop_rate = drop_rate
        self.skip_drop = skip_drop
        self.max_drop = max_drop
        self.max_leaf_nodes = max_leaf_nodes
        self.max_depth = max_depth
        self.grow_policy = grow_policy
        self.multi_strategy = multi_strategy
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.subsample = subsample
        self.sampling_method = sampling_method
        self.top_rate = top_rate
        self.other_rate = other_rate
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.max_features = max_features
        self.max_bins = max_bins
        self.categorical_features = categorical_features
        self.monotonic_cst = monotonic_cst
        self.interaction_cst = interaction_cst
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.scoring = scoring
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        if isinstance(self.loss, Loss):
            get_loss(self.loss, "regression", censored=True)
        else:
            check_one_of("loss", self.loss, tuple(_LOSSES_BY_NAME))
        if self.loss == "quantile":
            if self.quantile is None:
                raise InvalidParameterError('loss="quantile" needs a quantile. Set quantile=0.5.')
            check_number("quantile", self.quantile, lambda v: 0 < v < 1, "between 0 and 1")
        super()._check_params()

    def _find_loss(self) -> Loss:
        """Return the loss as an object."""
        if isinstance(self.loss, Loss):
            return self.loss
        if self.loss == "quantile":
            assert self.quantile is not None
            return Quantile(float(self.quantile))
        return _LOSSES_BY_NAME[self.loss]()

    @property
    def _survival_loss(self) -> Any:
        return self.loss if isinstance(self.loss, AFT | Cox) else None

    def _prepare_inputs(
        self, X: Any, y: Any, sample_weight: Any, *, labels_stay: bool = False
    ) -> tuple[Any, Any, Any]:
        if self._is_encoded and self._survival_loss is not None:
            return X, y, sample_weight  # times are encoded once
        return super()._prepare_inputs(X, y, sample_weight, labels_stay=labels_stay)

    def _make_boosting_loss(self, rows: DatasetInfo) -> BoostLoss:
        loss, summary = self._find_loss(), rows.summary
        # For each block the smallest and the largest target: domains are ranges.
        loss.check_target(summary.target_range)
        if isinstance(loss, Poisson) and summary.targets.mean.min() <= 0:
            scope = "of a column of y" if summary.n_targets else "y"
            raise InvalidDataError(
                f"All targets {scope} are 0, and the loss 'poisson' takes the logarithm of their "
                "mean. Give some that are positive, or use another loss."
            )
        if isinstance(loss, AFT | Cox):
            loss.check_events(summary.targets.mean)
            return CoxBoostLoss(loss) if isinstance(loss, Cox) else RowBoostLoss(loss)
        n_targets = summary.n_targets or 1
        if n_targets > 1:
            self._check_several_targets(loss, n_targets)
        return RowBoostLoss(loss, n_targets)

    def _check_several_targets(self, loss: Loss, n_targets: int) -> None:
        """Raise for a loss, or a device, that supports only one target."""
        if loss.tree_kernel is None or loss.leaf_quantile is not None:
            raise InvalidParameterError(
                f"y has {n_targets} columns, and loss={self.loss!r} of boosting takes one. Take "
                'loss="squared_error", "poisson" or "gamma", or fit a model for each column '
                "(sklearn.multioutput.MultiOutputRegressor)."
            )
        if self.device == "gpu":
            raise InvalidParameterError(
                f'y has {n_targets} columns, and boosting with device="gpu" takes one. Use '
                'device="cpu" or "auto".'
            )

    _needs_target = True
    _multi_output = True
    score = score_r2

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the function that maps raw predictions to targets."""
        loss: Loss = self._loss_of_fit or self._find_loss()
        return loss.inverse_link

    def predict(self, X: Any) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows,), or (n_rows, n_targets)
        """
        self._check_fitted(X)
        n = len(self._baseline)
        return self._map_raw_predictions(
            write_in_place(self._inverse_link()), X, np.float64, n if n > 1 else None
        )

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Yield the predicted targets after each iteration.

        Parameters
        ----------
        X : as in :meth:`fit`

        Yields
        ------
        ndarray or lazy dask Array of float64 of shape (n_rows,), or (n_rows, n_targets)
        """
        self._check_fitted(X)
        for stage in self._iterate_stages():
            yield stage.predict(X)
