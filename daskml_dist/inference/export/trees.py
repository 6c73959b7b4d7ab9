"""Trees of scikit-learn's own, made of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.errors import ExportError

__all__ = ["check_fields", "set_forest", "set_tree"]

#: Fields of scikit-learn's nodes, and the names of ours by which they are called.
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


def set_tree(estimator: Any, twin: Any) -> None:
    """Give a twin of a decision tree its nodes."""
    twin.tree_ = _tree_of(estimator.tree_)


def set_forest(estimator: Any, twin: Any) -> None:
    """Give a twin of a forest its trees."""
    kind = type(twin.estimator)
    params = {name: getattr(twin, name) for name in twin.estimator_params}
    twin.estimator_ = kind(**params)
    twin.estimators_ = []
    for ours in estimator.estimators_:
        tree = kind(**params)
        for name in ("classes_", "n_classes_", "n_features_in_", "n_outputs_"):
            if hasattr(ours, name):
                setattr(tree, name, getattr(ours, name))
        tree.max_features_ = int(estimator.max_features_)
        tree.tree_ = _tree_of(ours.tree_)
        twin.estimators_.append(tree)


def _tree_of(view: Any) -> Any:
    """The tree of scikit-learn's with the nodes of a view."""
    from daskml_dist.sklearn_internals import tree_module

    dtype = tree_module.NODE_DTYPE
    check_fields(dtype, set(_FIELDS), "trees")
    nodes = np.zeros(view.node_count, dtype)
    for field, name in _FIELDS.items():
        nodes[field] = getattr(view, name)
    tree = tree_module.Tree(view.n_features, view.n_classes.astype(np.intp), view.n_outputs)
    state = {
        "max_depth": view.max_depth,
        "node_count": view.node_count,
        "nodes": nodes,
        "values": np.array(view.value, np.float64, order="C"),
    }
    tree.__setstate__(state)
    return tree


def check_fields(dtype: np.dtype[Any], known: set[str], what: str) -> None:
    """Check that nodes of scikit-learn's have the fields that are known here."""
    found = set(dtype.names or ())
    if found != known:
        import sklearn

        raise ExportError(
            f"Nodes of {what} in scikit-learn {sklearn.__version__} have the fields "
            f"{sorted(found)}, and {sorted(known)} are known here. Export with a version from 1.6 "
            "on that has these, or with a newer daskml-dist."
        )
