"""Base classes of decision trees and forests: parameters, the solver of a fit, functions of rows.

Trees are CART's (L. Breiman et al., "Classification and regression trees", 1984), grown over binned
features, so that growth only needs sums of statistics by bin. `BaseTrees` turns the parameters into
a `ForestSolver` and holds the grown trees; the mixins `TreesClassifier` and `TreesRegressor`
precede it in a class, and turn the values of leaves into labels, probabilities or numbers.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil, log2, sqrt
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import RegressorMixin

from daskml_dist.backends.devices import DEVICES
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.regressor import score_r2
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.inference.independent_rows import declare_independent_rows
from daskml_dist.inference.row_mapping import map_rows
from daskml_dist.models.criteria import (
    AbsoluteErrorCriterion,
    Criterion,
    EntropyCriterion,
    GiniCriterion,
    PoissonCriterion,
    SquaredErrorCriterion,
)
from daskml_dist.models.row_models import TreeRowsModel
from daskml_dist.models.tree_view import node_paths
from daskml_dist.models.trees import ForestLeaves, RawForest, Trees
from daskml_dist.parameters.checks import check_class_weight, check_number, check_one_of, seed_of
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.forest import ForestSolver
from daskml_dist.solvers.forest_growth import ForestParams
from daskml_dist.training.dataset_info import (
    DatasetInfo,
    DataSummary,
    balanced_weights,
    named_weights,
)
from daskml_dist.training.job import FitJob

#: Split criteria by their names in scikit-learn; some are synonyms.
_CRITERIA: dict[str, Criterion] = {
    "gini": GiniCriterion(),
    "entropy": EntropyCriterion(),
    "log_loss": EntropyCriterion(),
    "squared_error": SquaredErrorCriterion(),
    "friedman_mse": SquaredErrorCriterion(),
    "poisson": PoissonCriterion(),
    "absolute_error": AbsoluteErrorCriterion(),
}


def _check_tree_params(p: Mapping[str, Any], classification: bool) -> None:
    """Check the parameters of trees and forests, before any work is started."""
    names = [name for name, c in _CRITERIA.items() if c.of_classes == classification]
    check_one_of("criterion", p["criterion"], names)
    if p["criterion"] == "friedman_mse":
        warnings.warn(
            'Value "friedman_mse" for `criterion` is deprecated: it makes the splits of '
            '"squared_error". Use that.',
            FutureWarning,
            stacklevel=user_stack_level(),
        )
    # A criterion that needs all rows of a node in one process rules out histograms of sums.
    if _CRITERIA[p["criterion"]].needs_rows:
        reason = f"criterion={p['criterion']!r} needs medians of the targets, which are not sums"
        if p["device"] == "gpu":
            raise InvalidParameterError(
                f'{reason}, and only the CPU computes them. Use device="cpu" or "auto", or '
                'criterion="squared_error".'
            )
        if p["decomposition"] == "data":
            raise InvalidParameterError(
                f'{reason}: a trainer needs the bins of all rows. Use decomposition="functional" '
                'or "auto", or criterion="squared_error".'
            )
    check_tree_size(p)
    _check_count_or_share("min_samples_split", p["min_samples_split"], 2, 1.0)
    # A leaf of all rows, a share of 1, would allow no split.
    _check_count_or_share("min_samples_leaf", p["min_samples_leaf"], 1, float(np.nextafter(1.0, 0)))
    check_number(
        "min_weight_fraction_leaf", p["min_weight_fraction_leaf"], lambda v: 0 <= v <= 0.5,
        "of [0, 0.5]",
    )  # fmt: skip
    check_number("min_impurity_decrease", p["min_impurity_decrease"])
    check_number("ccp_alpha", p["ccp_alpha"])
    check_one_of("decomposition", p["decomposition"], ("auto", "functional", "data"))
    check_one_of("device", p["device"], DEVICES)
    weights = p["class_weight"]
    for weight in weights if isinstance(weights, list) else [weights]:
        # "balanced_subsample" is for forests, the only estimators with `bootstrap`.
        if not (isinstance(weight, str) and weight == "balanced_subsample") or "bootstrap" not in p:
            check_class_weight(weight)


def check_tree_size(p: Mapping[str, Any]) -> None:
    """Raise for invalid bounds of a tree's size: `max_leaf_nodes`, `max_depth`, `max_bins`."""
    for name, least in (("max_leaf_nodes", 2), ("max_depth", 1)):
        value = p[name]
        if value is not None and (not is_count(value) or value < least):
            raise InvalidParameterError(
                f"{name}={value!r}: use an integer >= {least}, or None for no bound."
            )
    if not is_count(p["max_bins"]) or not 2 <= p["max_bins"] <= 255:
        raise InvalidParameterError(
            f"max_bins={p['max_bins']!r}: use an integer from 2 to 255: a bin is a byte, and one "
            "is for missing values."
        )


def is_count(value: Any) -> bool:
    """Return whether a parameter is an integer, and so an absolute number."""
    # bool is a subclass of int, but True is not a count.
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """Return whether a parameter is a float, and so a share (1.0 is all, where 1 is one)."""
    return isinstance(value, Real) and not isinstance(value, Integral)


def _resolve_count(count_or_share: Any, n: int) -> int:
    """Return a number of rows, given as a number or as a share of `n`, rounded up."""
    return int(count_or_share) if is_count(count_or_share) else ceil(count_or_share * n)


def _check_count_or_share(name: str, value: Any, min_count: int, max_share: float) -> None:
    """Raise unless `value` is an integer >= `min_count` or a share in (0, `max_share`]."""
    if is_count(value) and value >= min_count:
        return
    if is_share(value) and 0 < value <= max_share:
        return
    raise InvalidParameterError(
        f"{name}={value!r}: use an integer >= {min_count}, or a share of the rows between 0 and 1."
    )


def _resolve_output_weights(
    class_weight: Any, summary: DataSummary
) -> tuple[NDArray[np.float64], ...]:
    """Return the class weights of each of several outputs; an empty tuple if all are 1."""
    if class_weight is None:
        return ()
    columns = summary.label_columns
    if class_weight == "balanced":
        return tuple(balanced_weights(sums) for _, sums in columns)
    if isinstance(class_weight, dict):
        raise InvalidParameterError(
            "For multi-output, class_weight should be a list of dicts, or the string 'balanced'. "
            "Give a dict for each output."
        )
    _check_n_dicts(class_weight, len(columns))
    return tuple(
        named_weights(weights, labels)
        for weights, (labels, _) in zip(class_weight, columns, strict=True)
    )


def _check_n_dicts(class_weight: list[Any], n_outputs: int) -> None:
    """Raise unless `class_weight` holds a dict for each output."""
    if len(class_weight) != n_outputs:
        raise InvalidParameterError(
            f"The number of elements in class_weight should match number of outputs. Got "
            f"{len(class_weight)} element(s) while y has {n_outputs}. Give a dict for each output."
        )


Array = NDArray[Any]


class TreesClassifier(BaseClassifier):
    """Base class of classification trees and forests.

    With several outputs `classes_`, `n_classes_` and probabilities are lists, an entry for each.

    Parameters
    ----------
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        Impurity that splits are to lower: Gini's index, or Shannon's entropy.
    class_weight : dict, list of dict, "balanced", "balanced_subsample" or None, default=None
        Weights of the classes, by which those of the rows are multiplied; for several outputs, a
        dict for each, whose weights are multiplied too. ``"balanced_subsample"``: balanced among
        the rows that each tree draws; for one output.
    monotonic_cst : array-like of int of shape (n_features,) or None, default=None
        1: the second class becomes likelier as the feature rises, -1: less likely, 0: free. For two
        classes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or a list of them
        A list of each output's with several outputs.
    n_classes_ : int or list of int
    """

    _min_classes = 1
    _multi_output = True
    class_weight: Any
    _trees: Trees
    n_outputs_: int
    n_classes_: Any

    def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
        assert rows.classes is not None
        columns: tuple[Array, ...] = model.columns
        self.classes_: Any = list(columns) if columns else rows.classes
        self.n_classes_ = [len(labels) for labels in columns] if columns else len(rows.classes)
        super()._set_fitted(solution, model, rows)

    @property
    def _output_ends(self) -> list[int]:
        """Return the first column of each output in the raw predictions, then their number."""
        # Raw predictions hold the class shares of all outputs side by side.
        return [0, *np.cumsum(self.n_classes_).tolist()]

    def _make_label_writer(self) -> tuple[Callable[..., None], np.dtype[Any], int | None]:
        if self.n_outputs_ == 1:
            return super()._make_label_writer()
        write = partial(_write_output_labels, self.classes_, self._output_ends)
        return write, np.result_type(*self.classes_), self.n_outputs_

    def _make_hit_counter(self) -> Callable[..., NDArray[np.float64]]:
        if self.n_outputs_ == 1:
            return super()._make_hit_counter()
        return partial(_count_all_hits, self.classes_, self._output_ends)

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities of the classes: means of their shares in the trees' leaves.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_classes)
            With several outputs a list of them.
        """
        return self._map_probabilities(None, X)

    def predict_log_proba(self, X: Any) -> Any:
        """Predict the logarithms of :meth:`predict_proba`; parameters as there."""
        return self._map_probabilities(_write_logarithms, X)

    def _map_probabilities(self, postprocess: Any, X: Any) -> Any:
        """Return `postprocess` of the class shares of X, split by output if there are several."""
        self._check_fitted(X)
        ends = self._output_ends
        values = self._map_raw_predictions(postprocess, X, np.float64, ends[-1])
        if self.n_outputs_ == 1:
            return values
        return [values[:, start:stop] for start, stop in pairwise(ends)]


def _write_logarithms(raw: Array, out: Array) -> None:
    """Write the logarithms of class shares to `out`: minus infinity for a share of 0."""
    with np.errstate(divide="ignore"):
        np.log(raw, out=out)


@declare_independent_rows
def _write_output_labels(
    classes: list[Array], output_ends: list[int], raw: Array, out: Array
) -> None:
    """Write the most likely label of each output to `out`, of shape (n_rows, n_outputs)."""
    for k, (start, stop) in enumerate(pairwise(output_ends)):
        out[:, k] = classes[k][raw[:, start:stop].argmax(axis=1)]


def _count_all_hits(
    classes: list[Array], output_ends: list[int], y: Array, raw: Array, weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weight of all rows, and of those whose labels are right in all outputs."""
    labels = np.empty(y.shape, np.result_type(*classes))
    _write_output_labels(classes, output_ends, raw, labels)
    return np.array([weight.sum(), weight @ (labels == y).all(axis=1)])


class BaseTrees(BaseRounds):
    """Base class of a decision tree and of forests, which are grown over binned features.

    Parameters
    ----------
    max_depth : int or None, default=None
        Most edges from the root to a leaf; None: until leaves are pure or small.
    min_samples_split : int or float, default=2
        Fewest rows of a node that is split; a float is a share of all rows.
    min_samples_leaf : int or float, default=1
        Fewest rows of a leaf; a float is a share of all rows.
    min_weight_fraction_leaf : float, default=0.0
        Smallest weight of a leaf, as a share of the weight of all rows of its tree.
    max_features : int, float, "sqrt", "log2" or None
        Features considered for a split, drawn at each node; a float is a share of them. More are
        considered while all of them are constant.
    max_leaf_nodes : int or None, default=None
        Most leaves of a tree; the splits are those of growth by the largest gain first.
    min_impurity_decrease : float, default=0.0
        Smallest decrease of the impurity by a split, weighted by the node's share of the rows.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.
    ccp_alpha : float, default=0.0
        Strength of minimal cost-complexity pruning (Breiman et al. 1984, section 3.3): a subtree
        that lowers the impurity by less than this for each leaf that it adds becomes a leaf.
    max_bins : int, default=255
        Most bins of a feature, from 2 to 255, in addition to the bin of missing values. With no
        more distinct values than that, all cuts are considered.
    decomposition : {"auto", "functional", "data"}, default="auto"
        ``"functional"``: every trainer gets the bins of all rows (a byte an entry), and grows
        separate trees without messages. ``"data"``: rows are not moved, and histograms are summed.
        Both grow the same trees. ``"auto"``: functional if the bins fit in memory.
    device : {"auto", "cpu", "gpu"}, default="auto"
        Resolved on each worker; trees are the same on any device.

    Attributes
    ----------
    feature_importances_ : ndarray of float64 of shape (n_features,)
        Mean decrease of impurity by each feature; their sum is 1, or 0 without any split.
    n_outputs_ : int
    """

    criterion: str
    max_depth: int | None
    min_samples_split: int | float
    min_samples_leaf: int | float
    min_weight_fraction_leaf: float
    max_features: int | float | str | None
    max_leaf_nodes: int | None
    min_impurity_decrease: float
    random_state: Any
    verbose: int
    ccp_alpha: float
    monotonic_cst: Any
    max_bins: int
    decomposition: str
    callbacks: Any
    _trees: Trees
    _impurity: NDArray[np.float64]
    #: Whether the thresholds of splits are drawn, as in extremely randomised trees (P. Geurts,
    #: D. Ernst and L. Wehenkel 2006).
    _random_cuts: Any = False
    # Half of the memory budget is for the bins of the rows and for histograms.
    _made_share = 0.5

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = True
        return tags

    # -- parameters ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def _n_trees(self) -> int:
        """Return the number of trees to be grown."""

    def _check_params(self) -> None:
        _check_tree_params(self._params(), self._classification)
        self._resolve_max_features(2)  # raises for an invalid value, whatever the number

    def _resolve_max_features(self, d: int) -> int:
        """Return the number of features, out of `d`, considered for a split."""
        max_features = self._params()["max_features"]
        if max_features is None:
            return d
        # sqrt(d) is recommended for classification by the inventors of forests (Hastie, Tibshirani
        # and Friedman 2009, section 15.3). All are rounded down.
        if isinstance(max_features, str) and max_features in ("sqrt", "log2"):
            return max(1, int(sqrt(d) if max_features == "sqrt" else log2(d)))
        if is_count(max_features) and max_features >= 1:
            return min(int(max_features), d)
        if is_share(max_features) and 0 < max_features <= 1:
            return max(1, int(max_features * d))
        raise InvalidParameterError(
            f'max_features={max_features!r}: use an integer >= 1, a share of (0, 1], "sqrt", '
            '"log2" or None for all.'
        )

    def _expected_draws(self, n_rows: int) -> float | None:
        """Return how often a tree draws a row on average; None if it uses each row once."""
        return None

    # -- fitting -------------------------------------------------------------------------------

    def _dataset_info(
        self, job: FitJob, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        """Return the facts about the rows, whose weights are not scaled to a mean of 1."""
        # Each tree balances the classes among its own draws; without draws these are all rows.
        if class_weight == "balanced_subsample":
            class_weight = None if self._expected_draws(1) is not None else "balanced"
        rows = super()._dataset_info(job, classes, None, weighted)
        # With one output class weights become weights of rows; with several the solver multiplies
        # the weights of a row's labels.
        self._output_class_weights: tuple[NDArray[np.float64], ...] = ()
        if rows.summary.n_targets is not None:
            self._output_class_weights = _resolve_output_weights(class_weight, rows.summary)
        elif class_weight is not None:
            if isinstance(class_weight, list):
                _check_n_dicts(class_weight, 1)
                (class_weight,) = class_weight
            rows = DatasetInfo.from_summary(rows.summary, rows.classes, class_weight, weighted)
        # Splits do not depend on the scale of the weights, and unscaled integer weights add up
        # exactly, in any order of the blocks.
        return rows if rows.weight_scale is None else replace(rows, weight_scale=1.0)

    def _labels_by_output(self, rows: DatasetInfo) -> tuple[NDArray[Any], ...]:
        """Return the sorted labels of each output; an empty tuple in regression."""
        if rows.classes is None:
            return ()
        if rows.summary.n_targets is None:
            return (rows.classes,)
        return tuple(labels for labels, _ in rows.summary.label_columns)

    def _make_growth_params(self, rows: DatasetInfo, n_classes: tuple[int, ...]) -> ForestParams:
        """Return the parameters of the growth, with shares of rows resolved to numbers of rows."""
        p, d, n = self._params(), rows.summary.n_features, rows.summary.n_rows
        min_leaf, n_outputs = _resolve_count(p["min_samples_leaf"], n), rows.summary.n_targets or 1
        growth = ForestParams(
            criterion=_CRITERIA[p["criterion"]],
            classes=n_classes,
            n_outputs=n_outputs,
            max_depth=p["max_depth"],
            max_leaf_nodes=p["max_leaf_nodes"],
            # A node with fewer rows than two leaves cannot be split.
            min_samples_split=max(2, _resolve_count(p["min_samples_split"], n), 2 * min_leaf),
            min_samples_leaf=min_leaf,
            min_weight_fraction_leaf=float(p["min_weight_fraction_leaf"]),
            max_features=self._resolve_max_features(d),
            min_impurity_decrease=float(p["min_impurity_decrease"]),
            ccp_alpha=float(p["ccp_alpha"]),
            rate=self._expected_draws(n),
            random_cuts=self._random_cuts,
            monotonic_signs=self._resolve_monotonic_cst(d, n_classes, n_outputs),
            balanced=p["class_weight"] == "balanced_subsample"
            and self._expected_draws(n) is not None,
        )
        if growth.balanced and n_outputs > 1:
            raise InvalidParameterError(
                'class_weight="balanced_subsample" weighs the classes of one output in the rows '
                'that each tree draws, and y has several. Use class_weight="balanced".'
            )
        return growth

    def _problem(self, rows: DatasetInfo) -> tuple[Any, Any]:
        p, columns = self._params(), self._labels_by_output(rows)
        growth = self._make_growth_params(rows, tuple(len(labels) for labels in columns))
        # A warm start keeps the seed of the existing trees: draws depend on the seed and on the
        # number of the tree.
        initial_state = self._resume_state(growth.n_values)
        if initial_state is None:
            self._seed = seed_of(self.random_state)
        solver = ForestSolver(
            growth=growth,
            n_trees=self._n_trees,
            max_bins=int(p["max_bins"]),
            seed=self._seed,
            decomposition=p.get("decomposition", "auto"),
            out_of_bag=bool(p.get("oob_score", False)),
            begin=initial_state,
            class_weight=self._output_class_weights,
        )
        return TreeRowsModel(
            rows.summary.n_features, columns if growth.n_outputs > 1 else ()
        ), solver

    def _resolve_monotonic_cst(
        self, d: int, n_classes: tuple[int, ...], n_outputs: int
    ) -> NDArray[np.int8]:
        """Return the sign of each feature's effect: 1 rising, -1 falling, 0 free."""
        constraints = self.monotonic_cst
        if constraints is None:
            return np.zeros(d, np.int8)
        if n_outputs > 1:
            raise InvalidParameterError(
                "Monotonicity constraints are not supported with multiple outputs. Fit one output "
                "at a time, or use monotonic_cst=None."
            )
        if n_classes and n_classes[0] > 2:
            raise InvalidParameterError(
                "Monotonicity constraints are not supported with multiclass classification. Use "
                "two classes, or monotonic_cst=None."
            )
        signs = np.atleast_1d(np.asarray(constraints))
        if signs.shape != (d,):
            raise InvalidParameterError(
                f"monotonic_cst has shape {' x '.join(map(str, signs.shape))} but the input data X "
                f"has {d} features. Give one of -1, 0 and 1 a feature."
            )
        if not np.isin(signs, (-1, 0, 1)).all():
            raise InvalidParameterError(
                "monotonic_cst must be None or an array-like of -1, 0 or 1, but got "
                f"{np.unique(signs).tolist()}. Use these."
            )
        return signs.astype(np.int8)

    def _resume_state(self, n_values: int) -> dict[str, NDArray[Any]] | None:
        """Return the packed trees of the last fit if this one continues it (`warm_start`)."""
        return None

    def _set_fitted(self, solution: Solution, model: TreeRowsModel, rows: DatasetInfo) -> None:
        self._trees, self._impurity = Trees.unpacked(solution.extra), solution.extra["impurity"]
        self.n_features_in_ = model.n_features
        self.n_outputs_ = rows.summary.n_targets or 1
        self.max_features_ = self._resolve_max_features(model.n_features)

    def _set_n_iter(self, solution: Solution) -> None:
        """Set nothing: `n_iter_` has no meaning for trees."""

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Return the mean decrease of impurity by each feature; they sum to 1.

        Its shape is (n_features,). It favours features of many distinct values.
        """
        # Breiman's importance, as in T. Hastie, R. Tibshirani and J. Friedman, "The elements of
        # statistical learning", 2009: the gains of a tree's splits by feature (equation 10.42),
        # and their mean over the trees (10.43).
        self._check_fitted()
        nodes, d = self._trees.nodes, self.n_features_in_
        total = np.zeros(d)
        for root, end in pairwise(self._trees.roots):
            feature = nodes.feature[root:end]
            inner = feature >= 0  # leaves have -1
            if not inner.any():
                continue
            # Each tree's importances sum to 1 before they are averaged, as in scikit-learn.
            gains = np.bincount(feature[inner], nodes.gain[root:end][inner], minlength=d)
            total += gains / gains.sum() if gains.sum() > 0 else gains
        return total / total.sum() if total.sum() > 0 else total

    # -- functions of rows ---------------------------------------------------------------------

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return RawForest(self._trees)

    def apply(self, X: Any) -> Any:
        """Return the number of the leaf that each row reaches, in each tree.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int64
            Of shape (n_rows, n_trees); of a decision tree (n_rows,).
        """
        self._check_fitted(X)
        return map_rows(
            ForestLeaves(self._trees), X, dtype=np.int64, n_outputs=self._n_leaf_columns,
            name=type(self).__name__, row_shape=self._row_shape,
        )  # fmt: skip

    @property
    def _n_leaf_columns(self) -> int | None:
        """Return the number of columns of `apply`; None for one dimension."""
        return len(self._trees)

    def _find_paths(self, X: Any) -> tuple[csr_matrix, NDArray[np.int64]]:
        """Return the nodes that rows pass, as a CSR matrix, and the first column of each tree."""
        if is_dask(X):
            raise InvalidDataError(
                "decision_path makes a sparse matrix of rows in memory. Call it block by block, or "
                "use apply, which is lazy."
            )
        # Paths follow from the leaves, whose ancestors each tree knows. Not `self.apply`, which
        # returns one column for a single tree.
        leaves = np.asarray(BaseTrees.apply(self, X)).reshape(-1, len(self._trees))
        return node_paths(self._trees, leaves), self._trees.roots


class TreesRegressor(RegressorMixin, BaseOnRows):
    """Base class of regression trees and forests, which predict means of the trees' leaves.

    Parameters
    ----------
    criterion : {"squared_error", "absolute_error", "poisson"}, default="squared_error"
        Impurity that splits are to lower: the variance; the mean absolute error from the median,
        for which a trainer needs the bins of all rows (not ``decomposition="data"``) and several
        times as long; or half the Poisson deviance, of targets >= 0. ``"friedman_mse"``, an old
        name, finds the splits of ``"squared_error"``.
    monotonic_cst : array-like of int of shape (n_features,) or None, default=None
        1: predictions rise with the feature, -1: they fall, 0: free.
    """

    _needs_target = True
    _multi_output = True
    n_outputs_: int
    score = score_r2

    def predict(self, X: Any) -> Any:
        """Predict the mean of the trees' values.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64
            Of shape (n_rows,), or (n_rows, n_outputs) with several outputs.
        """
        self._check_fitted(X)
        return self._map_raw_predictions(
            None, X, np.float64, self.n_outputs_ if self.n_outputs_ > 1 else None
        )

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the identity: raw predictions are predictions, also under "poisson"."""
        return np.asarray
