"""What scikit-learn's users import is found under the same path."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

#: Modules of scikit-learn whose counterparts have a path of their own here.
PATHS = [
    "calibration", "cluster", "compose", "datasets", "decomposition", "ensemble",
    "feature_extraction", "feature_extraction.text", "impute", "inspection", "linear_model",
    "metrics.pairwise", "mixture", "model_selection", "naive_bayes", "neural_network",
    "preprocessing", "svm", "tree",
]  # fmt: skip


def _list_names(module: ModuleType) -> set[str]:
    return {name for name in getattr(module, "__all__", vars(module)) if not name.startswith("_")}


@pytest.mark.parametrize("path", PATHS)
def test_names_are_where_scikit_learn_has_them(path: str) -> None:
    theirs = importlib.import_module(f"sklearn.{path}")
    own = importlib.import_module(f"daskml_dist.{path}")
    room = importlib.import_module(f"daskml_dist.{path.partition('.')[0]}")
    shared = _list_names(theirs) & (set(room.__all__) | set(getattr(own, "__all__", ())))
    assert shared
    assert [name for name in sorted(shared) if not hasattr(own, name)] == []
