"""Base classes of decision trees and of forests of them: parameters, importances, functions of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2, sqrt
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist._checks import check_class_weight, check_count, check_flag, check_number, check_one_of, seed_of
from daskml_dist._rounds import BaseRounds
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models.criteria import Criterion, Entropy, Gini, Poisson, SquaredError
from daskml_dist.models.grown import Grown
from daskml_dist.models.raw_forest import ForestLeaves, RawForest
from daskml_dist.models.trees import Trees
from daskml_dist.solvers import Solution
from daskml_dist.solvers.forest import ForestSolver
from daskml_dist.solvers.forest_grow import ForestGrowth
from daskml_dist.training.engine import Engine
from daskml_dist.training.run_settings import RunSettings
from daskml_dist.training.solver_plan import Rows

__all__ = ["BaseForest"]

_CRITERIA: dict[str, Criterion] = {
    "gini": Gini(), "entropy": Entropy(), "log_loss": Entropy(), "squared_error": SquaredError(),
    "friedman_mse": SquaredError(), "poisson": Poisson(),
}  # fmt: skip


class BaseForest(BaseRounds):
    """Base class of trees and forests, fitted by growing trees over binned features."""

    random_state: Any
    monotonic_cst: Any
    _trees: Trees

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = False
        return tags

    # -- parameters ----------------------------------------------------------------------------

    def _n_trees(self) -> int:
        return int(self._params()["n_estimators"])

    @property
    def _random_cuts(self) -> bool:
        return False

    def _check_params(self) -> None:
        p = self._params()
        names = [n for n, c in _CRITERIA.items() if c.of_classes == self._classification]
        if p["criterion"] == "absolute_error":
            raise InvalidParameterError(
                'criterion="absolute_error" needs medians of the targets, which are no sums: a '
                'histogram does not hold them. Use "squared_error" or "poisson".'
            )
        check_one_of("criterion", p["criterion"], names)
        for name, least in (("max_leaf_nodes", 2), ("max_depth", 1)):
            value = p[name]
            if value is not None and (not _is_count(value) or value < least):
                raise InvalidParameterError(
                    f"{name}={value!r}: use an integer >= {least}, or None for no bound."
                )
        _check_rows("min_samples_split", p["min_samples_split"], 2, 1.0)
        _check_rows("min_samples_leaf", p["min_samples_leaf"], 1, np.nextafter(1.0, 0))
        share = "of [0, 0.5]"
        check_number("min_weight_fraction_leaf", p["min_weight_fraction_leaf"],
                     lambda v: 0 <= v <= 0.5, share)  # fmt: skip
        check_number("min_impurity_decrease", p["min_impurity_decrease"])
        check_number("ccp_alpha", p["ccp_alpha"])
        if not _is_count(p["max_bins"]) or not 2 <= p["max_bins"] <= 255:
            raise InvalidParameterError(
                f"max_bins={p['max_bins']!r}: use an integer from 2 to 255: a bin is a byte, and "
                "one is for missing values."
            )
        check_one_of("device", p["device"], ("auto", "cpu"))
        self._features_of(2)

    def _features_of(self, d: int) -> int:
        """Features that are looked at for a split."""
        given = self._params()["max_features"]
        if given is None:
            return d
        if isinstance(given, str) and given in ("sqrt", "log2"):
            return max(1, int(sqrt(d) if given == "sqrt" else log2(d)))
        if _is_count(given) and given >= 1:
            return min(int(given), d)
        if isinstance(given, Real) and not isinstance(given, Integral) and 0 < given <= 1:
            return max(1, int(given * d))
        raise InvalidParameterError(
            f'max_features={given!r}: use an integer >= 1, a share of (0, 1], "sqrt", "log2" or '
            "None for all."
        )

    def _rate(self, n_rows: int) -> float | None:
        """Draws of a row that a tree makes, as their expected number; None: it takes all rows."""
        return None

    # -- fitting -------------------------------------------------------------------------------

    def _rows(
        self, engine: Engine, run: RunSettings, classes: Any, class_weight: Any, weighted: bool
    ) -> Rows:
        """Facts of the rows, whose weights stay as they are."""
        if class_weight == "balanced_subsample":
            class_weight = None if self._rate(1) is not None else "balanced"
        rows = super()._rows(engine, run, classes, class_weight, weighted)
        if any(info.sparse for info in rows.survey.infos):
            raise InvalidDataError(
                "X is sparse, and trees need dense rows. Convert it: X.map_blocks(lambda b: "
                "b.toarray())."
            )
        return rows if rows.weight_scale is None else replace(rows, weight_scale=1.0)

    def _problem(self, rows: Rows) -> tuple[Any, Any]:
        p, d, n = self._params(), rows.survey.n_features, rows.survey.n_rows
        leaf = _rows_of(p["min_samples_leaf"], n)
        n_classes = 0 if rows.classes is None else len(rows.classes)
        growth = ForestGrowth(
            criterion=_CRITERIA[p["criterion"]],
            n_classes=n_classes,
            max_depth=p["max_depth"],
            max_leaf_nodes=p["max_leaf_nodes"],
            min_samples_split=max(2, _rows_of(p["min_samples_split"], n), 2 * leaf),
            min_samples_leaf=leaf,
            min_weight_fraction_leaf=float(p["min_weight_fraction_leaf"]),
            max_features=self._features_of(d),
            min_impurity_decrease=float(p["min_impurity_decrease"]),
            ccp_alpha=float(p["ccp_alpha"]),
            rate=self._rate(n),
            random_cuts=self._random_cuts,
            signs=self._signs(d, n_classes),
            balanced=p["class_weight"] == "balanced_subsample" and self._rate(n) is not None,
        )
        begin = self._begin(n_classes)
        if begin is None:
            self._seed = seed_of(self.random_state)
        solver = ForestSolver(
            growth=growth,
            n_trees=self._n_trees(),
            max_bins=int(p["max_bins"]),
            seed=self._seed,
            decomposition=p.get("decomposition", "auto"),
            budget=self._run_settings().memory_budget,
            begin=begin,
        )
        return Grown(d), solver

    def _signs(self, d: int, n_classes: int) -> NDArray[np.int8]:
        given = self.monotonic_cst
        if given is None:
            return np.zeros(d, np.int8)
        if n_classes > 2:
            raise InvalidParameterError(
                "Monotonicity constraints are not supported with multiclass classification. Use "
                "two classes, or monotonic_cst=None."
            )
        signs = np.asarray(given)
        if signs.shape != (d,):
            raise InvalidParameterError(
                f"monotonic_cst has shape {len(signs)} but the input data X has {d} features. "
                "Give one of -1, 0 and 1 a feature."
            )
        if not np.isin(signs, (-1, 0, 1)).all():
            raise InvalidParameterError(
                "monotonic_cst must be None or an array-like of -1, 0 or 1, but got "
                f"{np.unique(signs).tolist()}. Use these."
            )
        return signs.astype(np.int8)

    def _begin(self, n_classes: int) -> dict[str, NDArray[Any]] | None:
        """State of the forest before, where this one goes on from it."""
        return None

    def _set_fitted(self, solution: Solution, model: Grown, rows: Rows) -> None:
        self._trees, self._impurity = Trees.unpacked(solution.extra), solution.extra["impurity"]
        self.n_features_in_ = model.n_features
        self.n_outputs_ = 1
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

    def _raw(self) -> Callable[[Any], NDArray[Any]]:
        return RawForest(self._trees)

    def _leaves(self, X: Any) -> Any:
        self._check_fitted(X)
        from daskml_dist.inference.predict import map_rows

        return map_rows(
            ForestLeaves(self._trees), X, dtype=np.int64, n_outputs=len(self._trees),
            name=type(self).__name__, row_shape=self._row_shape,
        )  # fmt: skip


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_rows(name: str, value: Any, least: int, most: float) -> None:
    if _is_count(value) and value >= least:
        return
    if isinstance(value, Real) and not isinstance(value, Integral | bool) and 0 < value <= most:
        return
    raise InvalidParameterError(
        f"{name}={value!r}: use an integer >= {least}, or a share of the rows between 0 and 1."
    )


def _rows_of(given: Any, n: int) -> int:
    return int(given) if _is_count(given) else ceil(given * n)
