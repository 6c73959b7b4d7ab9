"""Base classes of decision trees and forests: parameters, importances, functions of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from math import log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.regressor import BaseRegressor
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.estimators.supervised import as_columns
from daskml_dist.estimators.trees.parameters import (
    CRITERIA,
    check_tree_params,
    class_weights,
    common_weights,
    count_of_share,
    is_count,
    is_share,
)
from daskml_dist.inference.predict import map_rows
from daskml_dist.models.row_models import TreeRowsModel
from daskml_dist.models.tree_predictions import ForestLeaves, RawForest
from daskml_dist.models.tree_view import node_paths
from daskml_dist.models.trees import Trees
from daskml_dist.parameters.checks import seed_of
from daskml_dist.solvers import Solution
from daskml_dist.solvers.forest import ForestSolver
from daskml_dist.solvers.forest_growth import ForestParams
from daskml_dist.training.engine import Engine
from daskml_dist.training.plan import DatasetInfo
from daskml_dist.training.settings import RunSettings

__all__ = ["BaseTrees", "TreesRegressor"]


class BaseTrees(BaseRounds):
    """Base class of trees and forests, fitted by growing trees over binned features."""

    random_state: Any
    monotonic_cst: Any
    _trees: Trees
    _impurity: NDArray[np.float64]
    #: Whether thresholds are drawn.
    _random_cuts: Any = False
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
        """Trees that are to be grown."""

    def _check_params(self) -> None:
        check_tree_params(self._params(), self._classification)
        self._features_of(2)

    def _features_of(self, d: int) -> int:
        """Features that are looked at for a split."""
        given = self._params()["max_features"]
        if given is None:
            return d
        if isinstance(given, str) and given in ("sqrt", "log2"):
            return max(1, int(sqrt(d) if given == "sqrt" else log2(d)))
        if is_count(given) and given >= 1:
            return min(int(given), d)
        if is_share(given) and 0 < given <= 1:
            return max(1, int(given * d))
        raise InvalidParameterError(
            f'max_features={given!r}: use an integer >= 1, a share of (0, 1], "sqrt", "log2" or '
            "None for all."
        )

    def _rate(self, n_rows: int) -> float | None:
        """Draws of a row that a tree makes, as their expected number; None: it takes all rows."""
        return None

    # -- fitting -------------------------------------------------------------------------------

    def _dataset_info(
        self, engine: Engine, run: RunSettings, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        """Facts of the rows, whose weights stay as they are."""
        if class_weight == "balanced_subsample":
            class_weight = None if self._rate(1) is not None else "balanced"
        rows = super()._dataset_info(engine, run, classes, None, weighted)
        self._of_outputs: tuple[NDArray[np.float64], ...] = ()
        if rows.survey.n_targets is not None:
            self._of_outputs = class_weights(class_weight, rows.survey)
        elif class_weight is not None:
            (only,) = (
                [class_weight]
                if not isinstance(class_weight, list)
                else common_weights(class_weight)
            )
            rows = DatasetInfo.of(rows.survey, rows.classes, only, weighted)
        return rows if rows.weight_scale is None else replace(rows, weight_scale=1.0)

    def _columns(self, rows: DatasetInfo) -> tuple[NDArray[Any], ...]:
        """Sorted labels of each output; none in regression."""
        if rows.classes is None:
            return ()
        if rows.survey.n_targets is None:
            return (rows.classes,)
        return tuple(labels for labels, _ in rows.survey.label_columns)

    def _growth(self, rows: DatasetInfo, n_classes: tuple[int, ...]) -> ForestParams:
        """Bounds of the growth of trees on some rows."""
        p, d, n = self._params(), rows.survey.n_features, rows.survey.n_rows
        leaf, n_outputs = count_of_share(p["min_samples_leaf"], n), rows.survey.n_targets or 1
        growth = ForestParams(
            criterion=CRITERIA[p["criterion"]],
            classes=n_classes,
            n_outputs=n_outputs,
            max_depth=p["max_depth"],
            max_leaf_nodes=p["max_leaf_nodes"],
            min_samples_split=max(2, count_of_share(p["min_samples_split"], n), 2 * leaf),
            min_samples_leaf=leaf,
            min_weight_fraction_leaf=float(p["min_weight_fraction_leaf"]),
            max_features=self._features_of(d),
            min_impurity_decrease=float(p["min_impurity_decrease"]),
            ccp_alpha=float(p["ccp_alpha"]),
            rate=self._rate(n),
            random_cuts=self._random_cuts,
            signs=self._signs(d, n_classes, n_outputs),
            balanced=p["class_weight"] == "balanced_subsample" and self._rate(n) is not None,
        )
        if growth.balanced and n_outputs > 1:
            raise InvalidParameterError(
                'class_weight="balanced_subsample" weighs the classes of one output in the rows '
                'that each tree draws, and y has several. Use class_weight="balanced".'
            )
        return growth

    def _problem(self, rows: DatasetInfo) -> tuple[Any, Any]:
        p, columns = self._params(), self._columns(rows)
        growth = self._growth(rows, tuple(len(labels) for labels in columns))
        begin = self._begin(growth.n_values)
        if begin is None:
            self._seed = seed_of(self.random_state)
        solver = ForestSolver(
            growth=growth,
            n_trees=self._n_trees,
            max_bins=int(p["max_bins"]),
            seed=self._seed,
            decomposition=p.get("decomposition", "auto"),
            out_of_bag=bool(p.get("oob_score", False)),
            begin=begin,
            class_weight=self._of_outputs,
        )
        return TreeRowsModel(
            rows.survey.n_features, columns if growth.n_outputs > 1 else ()
        ), solver

    def _signs(self, d: int, n_classes: tuple[int, ...], n_outputs: int) -> NDArray[np.int8]:
        given = self.monotonic_cst
        if given is None:
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
        signs = np.atleast_1d(np.asarray(given))
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

    def _begin(self, n_values: int) -> dict[str, NDArray[Any]] | None:
        """State of the forest before, where this one goes on from it."""
        return None

    def _set_fitted(self, solution: Solution, model: TreeRowsModel, rows: DatasetInfo) -> None:
        self._trees, self._impurity = Trees.unpacked(solution.extra), solution.extra["impurity"]
        self.n_features_in_ = model.n_features
        self.n_outputs_ = rows.survey.n_targets or 1
        self.max_features_ = self._features_of(model.n_features)

    def _set_n_iter(self, solution: Solution) -> None:
        """Nothing: trees are grown one by one."""

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Mean decrease of impurity by each feature, of shape (n_features,); its sum is 1."""
        self._check_fitted()
        nodes, d = self._trees.nodes, self.n_features_in_
        total = np.zeros(d)
        for a, b in zip(self._trees.roots, self._trees.roots[1:], strict=False):
            feature = nodes.feature[a:b]
            inner = feature >= 0
            if not inner.any():
                continue
            found = np.bincount(feature[inner], nodes.gain[a:b][inner], minlength=d)
            total += found / found.sum() if found.sum() > 0 else found
        return total / total.sum() if total.sum() > 0 else total

    # -- functions of rows ---------------------------------------------------------------------

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return RawForest(self._trees)

    def apply(self, X: Any) -> Any:
        """Leaves that rows end in, by their numbers in the tree.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of int64
            Of shape (n_rows, n_trees); of a single tree (n_rows,).
        """
        self._check_fitted(X)
        return map_rows(
            ForestLeaves(self._trees), X, dtype=np.int64, n_outputs=self._n_leaf_columns,
            name=type(self).__name__, row_shape=self._row_shape,
        )  # fmt: skip

    @property
    def _n_leaf_columns(self) -> int | None:
        return len(self._trees)

    def _paths(self, X: Any) -> tuple[csr_matrix, NDArray[np.int64]]:
        """Nodes that rows in memory come through, and where each tree's are among the columns."""
        if is_dask(X):
            raise InvalidDataError(
                "decision_path makes a sparse matrix of rows in memory. Call it block by block, or "
                "use apply, which is lazy."
            )
        leaves = np.asarray(BaseTrees.apply(self, X)).reshape(-1, len(self._trees))
        return node_paths(self._trees, leaves), self._trees.roots


class TreesRegressor(BaseRegressor):
    """Base class of trees and forests of regression: means of the trees' answers."""

    _multi_output = True
    n_outputs_: int

    def _prepare_inputs(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        X, y, sample_weight = super()._prepare_inputs(X, y, sample_weight)
        return X, as_columns(y), sample_weight

    def predict(self, X: Any) -> Any:
        """Means of the trees' answers.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of float64
            Of shape (n_rows,), or (n_rows, n_outputs) of several.
        """
        self._check_fitted(X)
        return self._map_raw_predictions(
            None, X, np.float64, self.n_outputs_ if self.n_outputs_ > 1 else None
        )

    def _inverse_link(self) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return np.asarray
