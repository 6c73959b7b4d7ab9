"""Categories in ONNX: a split of categories as a chain of questions whether a value is one of them.

scikit-learn's boosting puts categorical features first and numbers their categories before its
trees see a row; trees of ONNX are made to ask for the values themselves, in their own columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import ExportError

__all__ = ["categories_in", "check_categories", "rows_of_categories", "split_categories"]

#: Lists of an operator that have an entry for each node.
_OF_NODES = (
    "nodes_falsenodeids", "nodes_featureids", "nodes_hitrates", "nodes_missing_value_tracks_true",
    "nodes_modes", "nodes_nodeids", "nodes_treeids", "nodes_truenodeids", "nodes_values",
)  # fmt: skip


def categories_in(model: Any) -> dict[int, NDArray[Any]]:
    """Categories of each categorical feature of scikit-learn's boosting; empty without any."""
    mask = getattr(model, "is_categorical_", None)
    if mask is None or not hasattr(model, "_predictors"):
        return {}
    known = model._preprocessor.named_transformers_["encoder"].categories_
    return dict(zip(np.flatnonzero(mask).tolist(), known, strict=True))


def check_categories(model: Any) -> None:
    """Check that values of float32 tell the categories from each other."""
    for feature, known in categories_in(model).items():
        if known.dtype.kind not in "biuf":
            raise ExportError(
                f"Categories of feature {feature} are no numbers, and trees of ONNX take rows of "
                "numbers alone. Number them before the fit (OrdinalEncoder, and its columns as "
                "categorical_features), or use to_sklearn()."
            )
        there = known[~np.isnan(known)]
        if len(np.unique(there.astype(np.float32))) < len(there):
            raise ExportError(
                f"Categories of feature {feature} are different numbers of float64 that are the "
                "same of float32, which trees of ONNX read. Number them from 0 before the fit "
                "(OrdinalEncoder), or use to_sklearn()."
            )


def rows_of_categories(model: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """Rows with categories of the model in the columns that have some, and now and then others."""
    rows = rows.copy()
    for feature, known in categories_in(model).items():
        rows[::2, feature] = np.resize(known, len(rows[::2]))
    return rows


def split_categories(model: Any, trees: list[Any], op: Any) -> None:
    """Let an operator of ONNX, which takes categories for numbers, split them.

    A category that is listed goes to the side where missing values do not go; what is in no list,
    unknown categories and NaN too, goes where these do.
    """
    categories = categories_in(model)
    mask = np.asarray(model.is_categorical_)
    # Columns in the order in which the trees number them.
    order = np.concatenate([np.flatnonzero(mask), np.flatnonzero(~mask)])
    lists = {one.name: one for one in op.attribute if one.name in _OF_NODES}
    given = {name: _read(lists[name]) for name in lists}
    nodes = [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]
    of_trees: list[list[dict[str, Any]]] = [[] for _ in trees]
    for node in nodes:
        of_trees[node["nodes_treeids"]].append(node)
    for tree, own in zip(trees, of_trees, strict=True):
        for number in range(len(own)):
            node, record = own[number], tree.nodes[number]
            if record["is_leaf"]:
                continue
            feature = int(order[record["feature_idx"]])
            node["nodes_featureids"] = feature
            if record["is_categorical"]:
                words = tree.raw_left_cat_bitsets[record["bitset_idx"]]
                _chain(own, node, record, categories[feature], words)
    made = [node for own in of_trees for node in own]
    for name, attribute in lists.items():
        _write(attribute, [node[name] for node in made])


def _chain(
    own: list[dict[str, Any]], node: dict[str, Any], record: Any, known: NDArray[Any], words: Any
) -> None:
    """Make a node the first of those that ask for a category each; the others follow at the end."""
    bits = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little")
    missing_left = bool(record["missing_go_to_left"])
    ends = int(record["left"]), int(record["right"])
    listed_to, rest_to = ends[::-1] if missing_left else ends
    is_listed = bits[: len(known)].astype(bool) != missing_left
    listed = known[is_listed & ~np.isnan(known)].astype(np.float32).tolist()
    for place, value in enumerate(listed):
        last = place == len(listed) - 1
        node.update(
            nodes_modes=b"BRANCH_EQ", nodes_values=value, nodes_truenodeids=listed_to,
            nodes_missing_value_tracks_true=0,
            nodes_falsenodeids=rest_to if last else len(own),
        )  # fmt: skip
        if not last:
            node = {**node, "nodes_nodeids": len(own)}
            own.append(node)


def _read(attribute: Any) -> list[Any]:
    return list(attribute.ints or attribute.floats or attribute.strings)


def _write(attribute: Any, values: list[Any]) -> None:
    kind = next(k for k in ("ints", "floats", "strings") if len(getattr(attribute, k)))
    field = getattr(attribute, kind)
    del field[:]
    field.extend(values)
