"""Inner parts of twins, which have other names than those of this package's estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from daskml_dist.errors import ExportError
from daskml_dist.inference.export.boosting import set_boosting
from daskml_dist.inference.export.trees import set_forest, set_tree
from daskml_dist.losses import LOSSES, Loss

__all__ = ["FINISH", "OTHER_KINDS", "finish", "name_of", "stand_in"]


def finish(estimator: Any, twin: Any) -> None:
    """Set the inner parts of a twin that has all parameters and fitted attributes."""
    FINISH.get(type(estimator).__name__, _nothing)(estimator, twin)


def stand_in(estimator: Any) -> Any:
    """Thing that an estimator wraps, or stands for, whose twin is its own; None without."""
    if hasattr(estimator, "_as_sklearns"):
        return estimator._as_sklearns()
    return getattr(estimator, "transformer_", None) if _name(estimator) == "Blockwise" else None


def name_of(loss: Loss) -> str | None:
    """Name of a loss whose predictions are those of this name; None of one with others."""
    kind = type(loss)
    base = next((one for one in kind.__mro__ if LOSSES.get(vars(one).get("name", "")) is one), None)
    links = ("predict_proba", "write_proba", "inverse_link")
    if base is None or any(getattr(kind, one) is not getattr(base, one) for one in links):
        return None
    return base.name


def _name(estimator: Any) -> str:
    return type(estimator).__name__


def _nothing(estimator: Any, twin: Any) -> None:
    pass


# --- classes ---------------------------------------------------------------------------------


def _of_classes(estimator: Any) -> tuple[str, str] | None:
    """Multinomial log loss, which scikit-learn's SGD does not have."""
    several = np.size(getattr(estimator, "intercept_", ())) > 1
    if several and name_of(estimator._loss()) == "log_loss":
        return "linear_model", "LogisticRegression"
    return None


def _of_targets(estimator: Any) -> tuple[str, str] | None:
    """Several targets, which scikit-learn's SGD does not have."""
    loss = estimator._loss()
    if not loss.in_target_units and type(loss).inverse_link is not Loss.inverse_link:
        raise ExportError(
            f"scikit-learn's SGDRegressor has no loss={loss.name!r}, nor any with a link. Fit "
            "PoissonRegressor, GammaRegressor or TweedieRegressor of daskml_dist.linear_model, "
            "which have twins."
        )
    several = np.size(getattr(estimator, "intercept_", ())) > 1
    return ("linear_model", "LinearRegression") if several else None


#: Functions that tell in which cases the twin is of another name, and room.
OTHER_KINDS: dict[str, Callable[[Any], tuple[str, str] | None]] = {
    "SGDClassifier": _of_classes,
    "SGDRegressor": _of_targets,
}

# --- inner parts -----------------------------------------------------------------------------


def _set_centres(estimator: Any, twin: Any) -> None:
    from daskml_dist.sklearn_internals import count_openmp_threads

    twin._n_threads = count_openmp_threads()
    if {*(getattr(estimator, "_feature_dtypes", None) or ())} == {"float32"}:
        # scikit-learn's take rows of the dtype of their centres alone: that of the fit.
        twin.cluster_centers_ = twin.cluster_centers_.astype(np.float32)


def _set_bisecting(estimator: Any, twin: Any) -> None:
    from daskml_dist.sklearn_internals import BisectingTree

    _set_centres(estimator, twin)
    leaves, labels = estimator._tree.leaves, estimator._tree.labels
    centre = None if len(leaves.centroids) == 0 else leaves.centroids[0].mean(axis=0)
    nodes = [BisectingTree(centre, None, 0.0) for _ in range(2 * len(leaves.split) + 1)]
    for number, node in enumerate(leaves.split):
        parent, children = nodes[node], nodes[2 * number + 1 : 2 * number + 3]
        parent.left, parent.right = children
        for child, its in zip(children, leaves.centroids[number], strict=True):
            child.center = np.asarray(its, twin.cluster_centers_.dtype)
    for node, label in zip(nodes, labels, strict=True):
        node.label = int(label)
    twin._bisecting_tree = nodes[0]


def _set_loss(estimator: Any, twin: Any) -> None:
    twin._base_loss = twin._get_loss()


def _set_factors(estimator: Any, twin: Any) -> None:
    from daskml_dist.sklearn_internals import convert_beta_loss

    twin._n_components = len(estimator.components_)
    twin._beta_loss = convert_beta_loss(twin.beta_loss)


def _set_labels(estimator: Any, twin: Any) -> None:
    from sklearn.preprocessing import LabelBinarizer

    labels = np.eye(estimator.n_outputs_, dtype=int) if estimator._several else estimator.classes_
    twin._label_binarizer = LabelBinarizer().fit(labels)


def _set_signs(estimator: Any, twin: Any) -> None:
    from sklearn.preprocessing import LabelBinarizer

    labels = estimator.classes_
    if getattr(estimator, "_several", False):
        labels = np.eye(len(labels), dtype=int)
    twin._label_binarizer = LabelBinarizer(pos_label=1, neg_label=-1).fit(labels)


#: Functions that set the inner parts of a twin, by the name of the estimator's class.
FINISH: dict[str, Callable[[Any, Any], None]] = {
    "BisectingKMeans": _set_bisecting,
    "DecisionTreeClassifier": set_tree,
    "DecisionTreeRegressor": set_tree,
    "ExtraTreesClassifier": set_forest,
    "ExtraTreesRegressor": set_forest,
    "GammaRegressor": _set_loss,
    "HistGradientBoostingClassifier": set_boosting,
    "HistGradientBoostingRegressor": set_boosting,
    "KMeans": _set_centres,
    "MLPClassifier": _set_labels,
    "MiniBatchKMeans": _set_centres,
    "NMF": _set_factors,
    "PoissonRegressor": _set_loss,
    "RandomForestClassifier": set_forest,
    "RandomForestRegressor": set_forest,
    "RidgeClassifier": _set_signs,
    "RidgeClassifierCV": _set_signs,
    "TweedieRegressor": _set_loss,
}
