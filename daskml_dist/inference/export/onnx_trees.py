"""Trees in ONNX: corrections of skl2onnx's conversion.

skl2onnx does not export the direction of missing values in trees of forests, the categorical splits
of boosting, and logarithmic links; and it rounds thresholds to the nearest float32. `prepare_trees`
rounds thresholds before the conversion, and `complete_trees` rewrites the operators after it. An
operator (TreeEnsembleClassifier or TreeEnsembleRegressor) holds all nodes of all trees of a model,
as lists of equal length, one for each attribute:
https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsembleRegressor.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import ExportError

#: Attributes of the operator TreeEnsemble that have an entry for each node.
_NODE_ATTRIBUTES = (
    "nodes_falsenodeids", "nodes_featureids", "nodes_hitrates", "nodes_missing_value_tracks_true",
    "nodes_modes", "nodes_nodeids", "nodes_treeids", "nodes_truenodeids", "nodes_values",
)  # fmt: skip


def find_categories(model: Any) -> dict[int, NDArray[Any]]:
    """Return the categories by feature of scikit-learn's boosting; empty for other models."""
    # Its encoder's attributes are private and may change with a release; the check of predictions
    # detects that.
    mask = getattr(model, "is_categorical_", None)
    if mask is None or not hasattr(model, "_predictors"):
        return {}
    known = model._preprocessor.named_transformers_["encoder"].categories_
    return dict(zip(np.flatnonzero(mask).tolist(), known, strict=True))


def _check_categories(model: Any) -> None:
    """Raise if categories are not numbers, or become equal when rounded to float32."""
    for feature, known in find_categories(model).items():
        if known.dtype.kind not in "biuf":
            raise ExportError(
                f"Categories of feature {feature} are not numbers, but ONNX trees only accept "
                "numbers. Encode them before the fit (OrdinalEncoder, with its columns as "
                "categorical_features), or use to_sklearn()."
            )
        present = known[~np.isnan(known)]
        if len(np.unique(present.astype(np.float32))) < len(present):
            raise ExportError(
                f"Categories of feature {feature} are different float64 numbers that become "
                "equal in float32, which ONNX trees use. Number them from 0 before the fit "
                "(OrdinalEncoder), or use to_sklearn()."
            )


def make_category_rows(model: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows with a known category in every second row of the categorical columns.

    The other rows have numbers that are unknown categories, so that their path is checked too.
    """
    rows = rows.copy()
    for feature, known in find_categories(model).items():
        rows[::2, feature] = np.resize(known, len(rows[::2]))
    return rows


def _split_categories(model: Any, trees: list[Any], op: Any) -> None:
    """Rewrite the categorical splits of an ONNX operator, which skl2onnx exports as numeric ones.

    Each becomes a chain of equality tests, one for each category on the side opposite to missing
    values; all other values, including unknown categories and NaN, go to the side of missing
    values.
    """
    categories = find_categories(model)
    mask = np.asarray(model.is_categorical_)
    # The trees number categorical columns first.
    order = np.concatenate([np.flatnonzero(mask), np.flatnonzero(~mask)])
    # Convert a list for each attribute to a dict for each node, grouped by tree; converted back
    # below.
    lists = {one.name: one for one in op.attribute if one.name in _NODE_ATTRIBUTES}
    given = {name: list(a.ints or a.floats or a.strings) for name, a in lists.items()}
    nodes = [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]
    of_trees: list[list[dict[str, Any]]] = [[] for _ in trees]
    for node in nodes:
        of_trees[node["nodes_treeids"]].append(node)
    for tree, own in zip(trees, of_trees, strict=True):
        # The range covers the original nodes only: the loop appends those of chains.
        for number in range(len(own)):
            node, record = own[number], tree.nodes[number]
            if record["is_leaf"]:
                continue
            feature = int(order[record["feature_idx"]])
            node["nodes_featureids"] = feature
            if record["is_categorical"]:
                words = tree.raw_left_cat_bitsets[record["bitset_idx"]]
                _make_chain(own, node, record, categories[feature], words)
    made = [node for own in of_trees for node in own]
    for name, attribute in lists.items():
        _write_list(attribute, [node[name] for node in made])


def _make_chain(
    nodes: list[dict[str, Any]],
    node: dict[str, Any],
    record: Any,
    categories: NDArray[Any],
    left_bitset: Any,
) -> None:
    """Make a node the first of a chain of tests for one category each, the others new `nodes`.

    `categories` are the feature's categories, and `left_bitset` is the bitset of those that go
    left.
    """
    bits = np.unpackbits(np.asarray(left_bitset, "<u4").view(np.uint8), bitorder="little")
    missing_left = bool(record["missing_go_to_left"])
    ends = int(record["left"]), int(record["right"])
    # A test is true for its category, which goes to the side opposite to missing values; the last
    # false edge leads to the side of all other values.
    listed_to, rest_to = ends[::-1] if missing_left else ends
    is_listed = bits[: len(categories)].astype(bool) != missing_left
    listed = categories[is_listed & ~np.isnan(categories)].astype(np.float32).tolist()
    for place, value in enumerate(listed):
        last = place == len(listed) - 1
        node.update(
            nodes_modes=b"BRANCH_EQ", nodes_values=value, nodes_truenodeids=listed_to,
            nodes_missing_value_tracks_true=0,
            nodes_falsenodeids=rest_to if last else len(nodes),
        )  # fmt: skip
        if not last:
            node = {**node, "nodes_nodeids": len(nodes)}
            nodes.append(node)


def _write_list(attribute: Any, values: list[Any]) -> None:
    """Replace the values of an attribute that is a list, keeping its type."""
    kind = next(k for k in ("ints", "floats", "strings") if len(getattr(attribute, k)))
    field = getattr(attribute, kind)
    del field[:]
    field.extend(values)


#: Type number of attributes that are lists of integers (``AttributeProto.INTS``).
_INTEGERS_TYPE = 7


def prepare_trees(twin: Any) -> list[Any]:
    """Return the trees, forests and boosting of an estimator, with thresholds rounded in place.

    A threshold t becomes the largest float32 number that is not above it: then x <= t has the same
    result for each float32 number x, so that rows reach the same leaves.
    """
    found = list(_find_tree_operators(twin))
    for model in found:
        _check_categories(model)
        for tree in _list_trees(model):
            if hasattr(tree, "nodes"):
                tree.nodes["num_threshold"] = _round_down(tree.nodes["num_threshold"])
            else:
                tree.threshold[:] = _round_down(tree.threshold)
    return found


def _find_tree_operators(value: Any) -> Iterator[Any]:
    """Yield the models within an estimator that become one operator each, in skl2onnx's order."""
    if hasattr(value, "tree_") or hasattr(value, "_predictors") or _is_forest(value):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _find_tree_operators(one)
    elif hasattr(value, "get_params"):
        # Fitted attributes only: parameters hold estimators that are not fitted.
        for name, one in vars(value).items():
            if name.endswith("_") or name == "steps":
                yield from _find_tree_operators(one)


def _is_forest(value: Any) -> bool:
    """Return whether an estimator's members are all trees."""
    trees = getattr(value, "estimators_", ())
    return len(trees) > 0 and all(hasattr(tree, "tree_") for tree in trees)


def _list_trees(model: Any) -> list[Any]:
    """Return the trees of a model in ONNX's order."""
    if hasattr(model, "_predictors"):
        return [tree for trees in model._predictors for tree in trees]
    return [one.tree_ for one in ([model] if hasattr(model, "tree_") else model.estimators_)]


def _round_down(values: Any) -> Any:
    """Return the largest float32 numbers that are not above the values."""
    # Beyond the range of float32 the nearest is infinity, whose neighbour below is the largest
    # number.
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)


def complete_trees(models: list[Any], onnx: Any) -> None:
    """Add the direction of missing values, categorical splits and log links to an ONNX model."""
    if not any(_sends_missing_left(m) or find_categories(m) or _has_log_link(m) for m in models):
        return
    # Models and operators are matched by their order.
    ops = [node for node in onnx.graph.node if node.op_type.startswith("TreeEnsemble")]
    if len(ops) != len(models):
        raise ExportError(
            "The tree models in the ONNX of this estimator cannot be told apart. Export each "
            "separately, or use to_sklearn()."
        )
    for model, op in zip(models, ops, strict=True):
        if _sends_missing_left(model):
            _send_missing(model, op)
        if find_categories(model):
            _split_categories(model, _list_trees(model), op)
        if _has_log_link(model):
            _apply_exponential(op, onnx.graph)


def _sends_missing_left(model: Any) -> bool:
    """Return whether a tree or forest sends missing values left at any node."""
    # skl2onnx exports it for boosting.
    if hasattr(model, "_predictors"):
        return False
    return any(tree.missing_go_to_left.any() for tree in _list_trees(model))


def _has_log_link(model: Any) -> bool:
    """Return whether boosting predicts the exponential of the sum of its trees."""
    return getattr(model, "loss", None) in ("poisson", "gamma") and hasattr(model, "_predictors")


def _send_missing(model: Any, op: Any) -> None:
    """Mark the nodes of an operator that send missing values left, which is its true branch."""
    by_name = {attribute.name: attribute for attribute in op.attribute}
    trees = _list_trees(model)
    at = zip(by_name["nodes_treeids"].ints, by_name["nodes_nodeids"].ints, strict=True)
    sides = [int(trees[tree].missing_go_to_left[node]) for tree, node in at]
    found = by_name.get("nodes_missing_value_tracks_true")
    if found is None:
        found = op.attribute.add()
        found.name, found.type = "nodes_missing_value_tracks_true", _INTEGERS_TYPE
    del found.ints[:]
    found.ints.extend(sides)


def _apply_exponential(op: Any, graph: Any) -> None:
    """Insert an exponential between an operator and the nodes that read its output."""
    from onnx.helper import make_node

    answer, raw = op.output[0], f"{op.output[0]}_raw"
    at = next(i for i, node in enumerate(graph.node) if node.name == op.name) + 1
    op.output[0] = raw
    graph.node.insert(at, make_node("Exp", [raw], [answer], name=f"{op.name}_exp"))
