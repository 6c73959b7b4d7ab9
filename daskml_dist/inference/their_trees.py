"""scikit-learn's trees and forests, whose answers to a row know nothing of its neighbours."""

from __future__ import annotations

from typing import Any

__all__ = ["is_tree_of_theirs"]


def is_tree_of_theirs(model: Any) -> bool:
    """Return whether a model looks rows up in scikit-learn's trees, and adds these up in one order.

    Threads of a forest with `n_jobs` add them up in the order in which they end.
    """
    if not type(model).__module__.startswith("sklearn."):
        return False
    from sklearn import ensemble, tree

    forests = (
        ensemble.ExtraTreesClassifier, ensemble.ExtraTreesRegressor,
        ensemble.RandomForestClassifier, ensemble.RandomForestRegressor,
    )  # fmt: skip
    if isinstance(model, forests):
        return model.n_jobs in (None, 1)
    return isinstance(model, tree.BaseDecisionTree)
