"""Trees in ONNX: what skl2onnx leaves out of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from daskml_dist.errors import ExportError
from daskml_dist.inference.export.onnx_categories import (
    categories_in,
    check_categories,
    split_categories,
)

__all__ = ["complete_trees", "prepare_trees"]

#: ONNX's number of attributes that are lists of integers.
_INTEGERS = 7


def prepare_trees(twin: Any) -> list[Any]:
    """Find trees, forests and boosting in an estimator, and round their thresholds in place.

    A threshold becomes the largest number of float32 that is not above it, so that rows of float32
    take the same ways.
    """
    found = list(_trees_in(twin))
    for model in found:
        check_categories(model)
        for tree in _trees_of(model):
            if hasattr(tree, "nodes"):
                tree.nodes["num_threshold"] = _rounded_down(tree.nodes["num_threshold"])
            else:
                tree.threshold[:] = _rounded_down(tree.threshold)
    return found


def _trees_in(value: Any) -> Iterator[Any]:
    if hasattr(value, "tree_") or hasattr(value, "_predictors") or _is_forest(value):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _trees_in(one)
    elif hasattr(value, "get_params"):
        # Names of parameters are what fitted attributes were made of.
        for name, one in vars(value).items():
            if name.endswith("_") or name == "steps":
                yield from _trees_in(one)


def _is_forest(value: Any) -> bool:
    trees = getattr(value, "estimators_", ())
    return len(trees) > 0 and all(hasattr(tree, "tree_") for tree in trees)


def _trees_of(model: Any) -> list[Any]:
    """Trees of a model, in the order in which ONNX numbers them."""
    if hasattr(model, "_predictors"):
        return [tree for trees in model._predictors for tree in trees]
    return [one.tree_ for one in ([model] if hasattr(model, "tree_") else model.estimators_)]


def _rounded_down(values: Any) -> Any:
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)


def complete_trees(models: list[Any], onnx: Any) -> None:
    """Add what skl2onnx leaves out: where missing values go, categories, and logarithmic links."""
    if not any(_sends_left(m) or categories_in(m) or _has_log_link(m) for m in models):
        return
    ops = [node for node in onnx.graph.node if node.op_type.startswith("TreeEnsemble")]
    if len(ops) != len(models):
        raise ExportError(
            "Models of trees cannot be told from each other in the ONNX of this estimator. Export "
            "each by itself, or use to_sklearn()."
        )
    for model, op in zip(models, ops, strict=True):
        if _sends_left(model):
            _send_missing(model, op)
        if categories_in(model):
            split_categories(model, _trees_of(model), op)
        if _has_log_link(model):
            _apply_exponential(op, onnx.graph)


def _sends_left(model: Any) -> bool:
    """Say if missing values go left somewhere, in trees that skl2onnx does not look at for it."""
    if hasattr(model, "_predictors"):
        return False
    return any(tree.missing_go_to_left.any() for tree in _trees_of(model))


def _has_log_link(model: Any) -> bool:
    return getattr(model, "loss", None) in ("poisson", "gamma") and hasattr(model, "_predictors")


def _send_missing(model: Any, op: Any) -> None:
    by_name = {attribute.name: attribute for attribute in op.attribute}
    trees = _trees_of(model)
    at = zip(by_name["nodes_treeids"].ints, by_name["nodes_nodeids"].ints, strict=True)
    sides = [int(trees[tree].missing_go_to_left[node]) for tree, node in at]
    found = by_name.get("nodes_missing_value_tracks_true")
    if found is None:
        found = op.attribute.add()
        found.name, found.type = "nodes_missing_value_tracks_true", _INTEGERS
    del found.ints[:]
    found.ints.extend(sides)


def _apply_exponential(op: Any, graph: Any) -> None:
    from onnx.helper import make_node

    answer, raw = op.output[0], f"{op.output[0]}_raw"
    at = next(i for i, node in enumerate(graph.node) if node.name == op.name) + 1
    op.output[0] = raw
    graph.node.insert(at, make_node("Exp", [raw], [answer], name=f"{op.name}_exp"))
