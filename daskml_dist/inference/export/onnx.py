"""Files of ONNX, which other languages and ONNX Runtime read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist.errors import ExportError
from daskml_dist.inference.export.twins import to_sklearn

__all__ = ["to_onnx"]

_NO_CATEGORIES = (
    "Boosting with categorical features has no form in ONNX that skl2onnx makes. Encode the "
    "categories as numbers before the fit (TargetEncoder, OneHotEncoder), or use to_sklearn()."
)


def to_onnx(estimator: Any, path: Any = None, *, sample: Any = None) -> Any:
    """Make a fitted estimator a model of ONNX, by way of scikit-learn's (see `to_sklearn`).

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, or a pipeline of scikit-learn's of such.
    path : str or path-like, optional
        Of the file to write.
    sample : array-like or pandas.DataFrame of shape (n, n_features), optional
        A few rows like those to come, which tell the dtypes of the inputs; None: all are float32,
        in one matrix.

    Returns
    -------
    onnx.ModelProto
        Of a classifier, the outputs are labels and probabilities (a matrix).

    Raises
    ------
    ExportError
        scikit-learn or ONNX has no such estimator, or skl2onnx is not installed:
        ``pip install "daskml-dist[export]"``.
    NotFittedError
        The estimator is not fitted.

    Notes
    -----
    Rows, thresholds and coefficients are float32 there, so results differ in the last digits of
    float32. Thresholds are rounded such that float32 rows take the same ways through trees.
    """
    twin = to_sklearn(estimator)
    try:
        import skl2onnx
    except ImportError as error:
        raise ExportError('ONNX is made by skl2onnx: pip install "daskml-dist[export]".') from error
    from sklearn.base import is_classifier

    trees = list(_trees_in(twin))
    for one in trees:
        _round_thresholds(one)
    more: dict[str, Any] = {"X": None if sample is None else sample[:1]}
    if sample is None:
        kind = skl2onnx.common.data_types.FloatTensorType
        more["initial_types"] = [("X", kind([None, twin.n_features_in_]))]
    if is_classifier(twin):
        more["options"] = {"zipmap": False}
    try:
        model = skl2onnx.to_onnx(twin, **more)
    except (skl2onnx.common.exceptions.MissingShapeCalculator, NotImplementedError,
            RuntimeError, ValueError, TypeError, AttributeError) as error:  # fmt: skip
        raise ExportError(
            f"skl2onnx {skl2onnx.__version__} has no ONNX for this {type(twin).__name__}: {error}\n"
            "Pass rows like those to come as `sample` where inputs are not all numbers, or use "
            "to_sklearn()."
        ) from error
    _send_missing([one for one in trees if not hasattr(one, "_predictors")], model)
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


def _trees_in(value: Any) -> Iterator[Any]:
    """Fitted trees, forests and boosting in an estimator."""
    if hasattr(value, "tree_") or hasattr(value, "_predictors"):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _trees_in(one)
    elif hasattr(value, "get_params"):
        if _is_forest(value):
            yield value
            return
        for one in vars(value).values():
            yield from _trees_in(one)


def _is_forest(value: Any) -> bool:
    return all(hasattr(tree, "tree_") for tree in getattr(value, "estimators_", [0]))


def _nodes_of(model: Any) -> list[Any]:
    """scikit-learn's trees of a tree or a forest."""
    return [model.tree_] if hasattr(model, "tree_") else [one.tree_ for one in model.estimators_]


def _round_thresholds(model: Any) -> None:
    """Make thresholds the largest numbers of float32 that go left."""
    if not hasattr(model, "_predictors"):
        for tree in _nodes_of(model):
            tree.threshold[:] = _rounded_down(tree.threshold)
        return
    for trees in model._predictors:
        for tree in trees:
            if tree.nodes["is_categorical"].any():
                raise ExportError(_NO_CATEGORIES)
            tree.nodes["num_threshold"] = _rounded_down(tree.nodes["num_threshold"])


def _rounded_down(values: Any) -> Any:
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)


def _send_missing(models: list[Any], onnx: Any) -> None:
    """Let missing values go where trees send them, which skl2onnx does for boosting alone."""
    wanted = [model for model in models if any(_sends_left(tree) for tree in _nodes_of(model))]
    if not wanted:
        return
    ops = [node for node in onnx.graph.node if node.op_type.startswith("TreeEnsemble")]
    if len(ops) != len(models):
        raise ExportError(
            "Trees that send missing values to the left cannot be told from each other in the ONNX "
            "of this model. Export each tree model by itself, or impute missing values before."
        )
    for model, op in zip(models, ops, strict=True):
        by_name = {attribute.name: attribute for attribute in op.attribute}
        trees = _nodes_of(model)
        at = zip(by_name["nodes_treeids"].ints, by_name["nodes_nodeids"].ints, strict=True)
        sides = [int(trees[tree].missing_go_to_left[node]) for tree, node in at]
        found = by_name.get("nodes_missing_value_tracks_true")
        if found is None:
            found = op.attribute.add()
            found.name, found.type = "nodes_missing_value_tracks_true", 7  # a list of integers
        del found.ints[:]
        found.ints.extend(sides)


def _sends_left(tree: Any) -> bool:
    return bool(tree.missing_go_to_left.any())
