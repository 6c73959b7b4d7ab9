"""Attributes of twins with another form in scikit-learn: trees, bins, losses, centroids.

Many are private and may change with a release of scikit-learn: layouts of nodes are compared with
those known here before any is written (`check_fields`), and the tests compare the predictions of
all twins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas
from daskml_dist.errors import ExportError
from daskml_dist.losses.base import LOSSES, Loss
from daskml_dist.models.trees import Tree

#: Fields of scikit-learn's tree nodes, and this package's names of them.
_FIELDS = {
    "left_child": "children_left",
    "right_child": "children_right",
    "feature": "feature",
    "threshold": "threshold",
    "impurity": "impurity",
    "n_node_samples": "n_node_samples",
    "weighted_n_node_samples": "weighted_n_node_samples",
    "missing_go_to_left": "missing_go_to_left",
}


def _set_tree(estimator: Any, twin: Any) -> None:
    """Set the nodes of a decision tree's twin."""
    twin.tree_ = _make_sklearn_tree(estimator.tree_)


def _set_forest(estimator: Any, twin: Any) -> None:
    """Set the trees of a forest's twin."""
    # Like scikit-learn's forests: from a template, with the forest's parameters.
    kind = type(twin.estimator)
    params = {name: getattr(twin, name) for name in twin.estimator_params}
    twin.estimator_ = kind(**params)
    twin.estimators_ = []
    for ours in estimator.estimators_:
        tree = kind(**params)
        for name in ("classes_", "n_classes_", "n_features_in_", "n_outputs_"):
            if hasattr(ours, name):
                setattr(tree, name, getattr(ours, name))
        # scikit-learn sets it when a tree is fitted, but these trees are not.
        tree.max_features_ = int(estimator.max_features_)
        tree.tree_ = _make_sklearn_tree(ours.tree_)
        twin.estimators_.append(tree)


def _make_sklearn_tree(view: Any) -> Any:
    """Return a scikit-learn tree with the nodes of a view of this package's tree."""
    from daskml_dist.sklearn_internals import tree_module

    dtype = tree_module.NODE_DTYPE
    check_fields(dtype, set(_FIELDS), "trees")
    nodes = np.zeros(view.node_count, dtype)
    for field, name in _FIELDS.items():
        nodes[field] = getattr(view, name)
    # A tree accepts nodes only from its own fit or from a pickle, whose state is built here.
    tree = tree_module.Tree(view.n_features, view.n_classes.astype(np.intp), view.n_outputs)
    state = {
        "max_depth": view.max_depth,
        "node_count": view.node_count,
        "nodes": nodes,
        "values": np.array(view.value, np.float64, order="C"),
    }
    tree.__setstate__(state)
    return tree


def check_fields(dtype: np.dtype[Any], expected_fields: set[str], model_kind: str) -> None:
    """Raise if nodes of the installed scikit-learn have other fields than those known here."""
    found = set(dtype.names or ())
    if found != expected_fields:
        import sklearn

        raise ExportError(
            f"Nodes of {model_kind} in scikit-learn {sklearn.__version__} have the fields "
            f"{sorted(found)}, but only {sorted(expected_fields)} are supported. Export with a "
            "scikit-learn version (1.6 or newer) that has these, or with a newer daskml-dist."
        )


#: Fields of the nodes of scikit-learn's boosted trees.
_BOOSTED_NODE_FIELDS = {
    "value", "count", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "gain",
    "depth", "is_leaf", "bin_threshold", "is_categorical", "bitset_idx",
}  # fmt: skip


def _set_boosting(estimator: Any, twin: Any) -> None:
    """Set the trees, bins, categories and loss of a twin of gradient boosting."""
    if not isinstance(estimator.loss, str):
        raise ExportError(
            f"scikit-learn's boosting does not support loss={estimator.loss!r}. Keep the "
            "estimator itself: model.save(path); or fit with a built-in loss."
        )
    trees = estimator._trees
    n_outputs = len(estimator._baseline)
    has_targets = n_outputs > 1 and not hasattr(estimator, "classes_")
    if trees.n_per_iteration != n_outputs or has_targets:
        what = "several targets" if has_targets else "leaves of several classes"
        raise ExportError(
            f"scikit-learn's boosting has no trees of {what}. Keep the estimator itself: "
            "model.save(path); or fit "
            + ("a model for each." if has_targets else 'multi_strategy="one_output_per_tree".')
        )
    # scikit-learn's encoder moves categorical features to the front: `order` holds this package's
    # feature numbers in that order, and `place` is its inverse.
    order = _learn_categories(estimator, twin)
    twin.n_trees_per_iteration_ = trees.n_per_iteration
    twin._n_features = estimator.n_features_in_
    twin._baseline_prediction = np.array(estimator._baseline, np.float64).reshape(1, -1)
    twin._loss = twin._get_loss(sample_weight=None)
    twin._use_validation_data = len(estimator.validation_score_) > 0
    twin._scorer = None
    if hasattr(estimator, "classes_"):
        from sklearn.preprocessing import LabelEncoder

        twin._label_encoder = LabelEncoder().fit(estimator.classes_)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    # A list of trees for each iteration, one for each class.
    found = [_make_tree_predictor(trees.tree(number), place) for number in range(len(trees))]
    n = trees.n_per_iteration
    twin._predictors = [found[first : first + n] for first in range(0, len(found), n)]
    for name in ("train_score_", "validation_score_"):
        setattr(twin, name, np.array(getattr(estimator, name)))


def _learn_categories(estimator: Any, twin: Any) -> NDArray[np.intp]:
    """Fit the encoder of a twin to rows with each category; return the order of its features."""
    from daskml_dist.sklearn_internals import BinMapper

    bins = estimator._trees.bins
    mask = bins.categorical
    names = getattr(estimator, "feature_names_in_", None)
    # The encoder is fitted by scikit-learn's code, so other forms of the parameter (names,
    # "from_dtype") are replaced by a mask during the fit.
    given, twin.categorical_features = twin.categorical_features, mask if mask.any() else None
    twin._preprocess_X(_make_category_rows(estimator, names), reset=True)
    twin.categorical_features = given
    if names is not None:
        twin.feature_names_in_ = np.array(names)
    # Bins are set in scikit-learn's order. The edges of a categorical feature are its categories,
    # as the encoder numbers them.
    order = np.concatenate([np.flatnonzero(mask), np.flatnonzero(~mask)])
    mapper = BinMapper(n_bins=bins.max_bins + 1, is_categorical=mask[order])
    mapper.is_categorical_ = mask[order].astype(np.uint8)
    mapper.missing_values_bin_idx_ = bins.max_bins
    mapper.bin_thresholds_ = [
        np.arange(float(len(bins.edges[j]))) if mask[j] else np.array(bins.edges[j]) for j in order
    ]
    mapper.n_bins_non_missing_ = bins.counts[order].astype(np.uint32)
    twin._bin_mapper = mapper
    return order


def _make_category_rows(estimator: Any, names: Any) -> Any:
    """Return rows like those of the fit that contain every category: an array or a frame."""
    bins, of_frame = estimator._trees.bins, estimator._categories
    d = bins.n_features
    labels = np.arange(d) if names is None else names
    known: dict[Any, Any] = {}
    for label, edges, is_one in zip(labels, bins.edges, bins.categorical, strict=True):
        if is_one:
            known[label] = np.asarray(of_frame.get(label, edges) if of_frame else edges)
    n = max((len(values) for values in known.values()), default=1) or 1
    columns = {
        label: _repeat_values(known[label], n) if label in known else np.zeros(n)
        for label in labels
    }
    if names is None and not of_frame:
        return np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
    return load_pandas().DataFrame(columns)


def _repeat_values(values: NDArray[Any], n: int) -> NDArray[Any]:
    """Return values repeated up to a length; NaN if there are none."""
    return np.resize(values, n) if len(values) else np.full(n, np.nan)


def _make_tree_predictor(tree: Tree, feature_numbers: NDArray[np.intp]) -> Any:
    """Return a tree of scikit-learn's boosting with the nodes of this package's tree.

    `feature_numbers` has scikit-learn's number of each feature.
    """
    from daskml_dist.sklearn_internals import PREDICTOR_RECORD_DTYPE, TreePredictor

    check_fields(PREDICTOR_RECORD_DTYPE, _BOOSTED_NODE_FIELDS, "boosting")
    # Leaves have no feature and no children, which are zeros in scikit-learn's records.
    leaf = tree.feature < 0
    nodes = np.zeros(len(leaf), PREDICTOR_RECORD_DTYPE)
    nodes["value"] = tree.value[:, 0]
    nodes["count"] = np.minimum(tree.count, np.iinfo(np.uint32).max)
    nodes["feature_idx"] = np.where(leaf, 0, feature_numbers[tree.feature])
    nodes["num_threshold"] = np.where(leaf | (tree.category >= 0), 0.0, tree.threshold)
    nodes["missing_go_to_left"] = tree.missing_left & ~leaf
    nodes["left"] = np.where(leaf, 0, tree.left)
    nodes["right"] = np.where(leaf, 0, tree.left + 1)
    nodes["gain"] = tree.gain
    nodes["depth"] = tree.depth
    nodes["is_leaf"] = leaf
    nodes["bin_threshold"] = np.where(leaf, 0, np.clip(tree.bin, 0, 255))
    nodes["is_categorical"] = tree.category >= 0
    nodes["bitset_idx"] = np.maximum(tree.category, 0)
    # Each bitset of four 64-bit words becomes eight 32-bit words, the lowest first.
    words = tree.bitsets.astype("<u8").view("<u4").reshape(-1, 8).astype(np.uint32)
    return TreePredictor(nodes, words, words.copy())


def finish(estimator: Any, twin: Any) -> None:
    """Set the remaining attributes of a twin that has all parameters and copied attributes."""
    if (set_rest := _FINISH.get(type(estimator).__name__)) is not None:
        set_rest(estimator, twin)


def find_stand_in(estimator: Any) -> Any:
    """Return the estimator to export in place of another; None if it is exported itself."""
    if hasattr(estimator, "_as_sklearns"):
        return estimator._as_sklearns()
    is_blockwise = type(estimator).__name__ == "Blockwise"
    return getattr(estimator, "transformer_", None) if is_blockwise else None


def find_loss_name(loss: Loss) -> str | None:
    """Return scikit-learn's name of a loss with the same predictions; None if it has none."""
    # A user's subclass has the predictions of its base unless it overrides the link.
    kind = type(loss)
    base = next((one for one in kind.__mro__ if LOSSES.get(vars(one).get("name", "")) is one), None)
    links = ("predict_proba", "write_proba", "inverse_link")
    if base is None or any(getattr(kind, one) is not getattr(base, one) for one in links):
        return None
    return base.name


# --- classes ---------------------------------------------------------------------------------


def _find_kind_of_sgd_classifier(estimator: Any) -> tuple[str, str] | None:
    """Return LogisticRegression for multinomial log loss, which scikit-learn's SGD lacks."""
    several = np.size(getattr(estimator, "intercept_", ())) > 1
    if several and find_loss_name(estimator._prediction_loss) == "log_loss":
        return "linear_model", "LogisticRegression"
    return None


def _find_kind_of_sgd_regressor(estimator: Any) -> tuple[str, str] | None:
    """Return LinearRegression for several targets; raise for losses with a link.

    scikit-learn's SGD has neither.
    """
    loss = estimator._prediction_loss
    if not loss.in_target_units and type(loss).inverse_link is not Loss.inverse_link:
        raise ExportError(
            f"scikit-learn's SGDRegressor has no loss={loss.name!r}, nor losses with a link "
            "function. Fit PoissonRegressor, GammaRegressor or TweedieRegressor of "
            "daskml_dist.linear_model, which can be converted."
        )
    several = np.size(getattr(estimator, "intercept_", ())) > 1
    return ("linear_model", "LinearRegression") if several else None


#: Functions that return the module and class of the twin if these differ, else None.
OTHER_KINDS: dict[str, Callable[[Any], tuple[str, str] | None]] = {
    "SGDClassifier": _find_kind_of_sgd_classifier,
    "SGDRegressor": _find_kind_of_sgd_regressor,
}

# --- attributes ------------------------------------------------------------------------------


def _set_centroids(estimator: Any, twin: Any) -> None:
    """Set the number of threads and the dtype of the centroids of a k-means twin."""
    from daskml_dist.sklearn_internals import count_openmp_threads

    twin._n_threads = count_openmp_threads()
    if {*(getattr(estimator, "_feature_dtypes", None) or ())} == {"float32"}:
        # scikit-learn accepts only rows of the centroids' dtype: use that of the fit.
        twin.cluster_centers_ = twin.cluster_centers_.astype(np.float32)


def _set_bisecting_tree(estimator: Any, twin: Any) -> None:
    """Set the tree of splits that a twin of bisecting k-means assigns rows with."""
    from daskml_dist.sklearn_internals import BisectingTree

    _set_centroids(estimator, twin)
    leaves, labels = estimator._tree.leaves, estimator._tree.labels
    # Split number i divided node `split[i]` into nodes 2 i + 1 and 2 i + 2; node 0 is the root,
    # whose centroid no prediction reads.
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
    """Set the loss of a generalized linear model's twin, whose link its predictions use."""
    twin._base_loss = twin._get_loss()


def _set_factors(estimator: Any, twin: Any) -> None:
    """Set the settings of NMF's twin that its fit derives from parameters."""
    from daskml_dist.sklearn_internals import convert_beta_loss

    twin._n_components = len(estimator.components_)
    twin._beta_loss = convert_beta_loss(twin.beta_loss)


def _set_labels(estimator: Any, twin: Any) -> None:
    """Set a network twin's label encoder; fitting it to an identity matrix makes it multilabel."""
    from sklearn.preprocessing import LabelBinarizer

    labels = np.eye(estimator.n_outputs_, dtype=int) if estimator._several else estimator.classes_
    twin._label_binarizer = LabelBinarizer().fit(labels)


def _set_signs(estimator: Any, twin: Any) -> None:
    """Set the label encoder of a ridge classifier's twin, which codes classes as -1 and 1."""
    from sklearn.preprocessing import LabelBinarizer

    labels = estimator.classes_
    if getattr(estimator, "_several", False):
        labels = np.eye(len(labels), dtype=int)
    twin._label_binarizer = LabelBinarizer(pos_label=1, neg_label=-1).fit(labels)


#: Functions that set the remaining attributes of a twin, by the name of the estimator's class.
_FINISH: dict[str, Callable[[Any, Any], None]] = {
    "BisectingKMeans": _set_bisecting_tree,
    "DecisionTreeClassifier": _set_tree,
    "DecisionTreeRegressor": _set_tree,
    "ExtraTreesClassifier": _set_forest,
    "ExtraTreesRegressor": _set_forest,
    "GammaRegressor": _set_loss,
    "HistGradientBoostingClassifier": _set_boosting,
    "HistGradientBoostingRegressor": _set_boosting,
    "KMeans": _set_centroids,
    "MLPClassifier": _set_labels,
    "MiniBatchKMeans": _set_centroids,
    "NMF": _set_factors,
    "PoissonRegressor": _set_loss,
    "RandomForestClassifier": _set_forest,
    "RandomForestRegressor": _set_forest,
    "RidgeClassifier": _set_signs,
    "RidgeClassifierCV": _set_signs,
    "TweedieRegressor": _set_loss,
}
