"""Gradient boosting of scikit-learn's own, made of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.containers import load_pandas
from daskml_dist.inference.export.trees import check_fields
from daskml_dist.models.trees import Tree

__all__ = ["set_boosting"]

_FIELDS = {
    "value", "count", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "gain",
    "depth", "is_leaf", "bin_threshold", "is_categorical", "bitset_idx",
}  # fmt: skip


def set_boosting(estimator: Any, twin: Any) -> None:
    """Give a twin its trees, bins, categories and loss."""
    trees = estimator._trees
    # Where scikit-learn puts categories first, features have other places.
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
    found = [_predictor(trees.tree(number), place) for number in range(len(trees))]
    n = trees.n_per_iteration
    twin._predictors = [found[first : first + n] for first in range(0, len(found), n)]
    for name in ("train_score_", "validation_score_"):
        setattr(twin, name, np.array(getattr(estimator, name)))


def _learn_categories(estimator: Any, twin: Any) -> NDArray[np.intp]:
    """Let a twin learn the categories, in its own way, from rows that hold each."""
    from daskml_dist.sklearn_internals import BinMapper

    bins = estimator._trees.bins
    mask = bins.categorical
    names = getattr(estimator, "feature_names_in_", None)
    # The mask, whatever the user told it by.
    given, twin.categorical_features = twin.categorical_features, mask if mask.any() else None
    twin._preprocess_X(_rows_of_categories(estimator, names), reset=True)
    twin.categorical_features = given
    if names is not None:
        twin.feature_names_in_ = np.array(names)
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


def _rows_of_categories(estimator: Any, names: Any) -> Any:
    """Rows like those of the fit, in which every category is once at least."""
    bins, of_frame = estimator._trees.bins, estimator._categories
    d = bins.n_features
    labels = np.arange(d) if names is None else names
    known: dict[Any, Any] = {}
    for label, edges, is_one in zip(labels, bins.edges, bins.categorical, strict=True):
        if is_one:
            known[label] = np.asarray(of_frame.get(label, edges) if of_frame else edges)
    n = max((len(values) for values in known.values()), default=1) or 1
    columns = {
        label: _repeated(known[label], n) if label in known else np.zeros(n) for label in labels
    }
    if names is None and not of_frame:
        return np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
    return load_pandas().DataFrame(columns)


def _repeated(values: NDArray[Any], n: int) -> NDArray[Any]:
    return np.resize(values, n) if len(values) else np.full(n, np.nan)


def _predictor(tree: Tree, place: NDArray[np.intp]) -> Any:
    """A tree of scikit-learn's with the nodes of ours."""
    from daskml_dist.sklearn_internals import PREDICTOR_RECORD_DTYPE, TreePredictor

    check_fields(PREDICTOR_RECORD_DTYPE, _FIELDS, "boosting")
    leaf = tree.feature < 0
    nodes = np.zeros(len(leaf), PREDICTOR_RECORD_DTYPE)
    nodes["value"] = tree.value[:, 0]
    nodes["count"] = np.minimum(tree.count, np.iinfo(np.uint32).max)
    nodes["feature_idx"] = np.where(leaf, 0, place[tree.feature])
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
    # Eight words of 32 bits, the lowest first, for four of 64.
    words = tree.bitsets.astype("<u8").view("<u4").reshape(-1, 8).astype(np.uint32)
    return TreePredictor(nodes, words, words.copy())
