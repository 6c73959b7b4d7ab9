"""Code shared by the libraries of boosted trees: rows of a rank, argument checks, classes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.collective import RankGroup
from daskml_dist.data.conversion import (
    check_class_labels,
    check_no_missing,
    convert_object_values,
)
from daskml_dist.data.row_checks import explain_unsortable_labels, merge_block_labels
from daskml_dist.errors import InvalidDataError, InvalidParameterError

#: Names of the arrays in a block, in their order; arrays that were not given are left out.
ROW_NAMES = ("X", "y", "sample_weight", "qid")


def load_library(name: str) -> ModuleType:
    """Return a library; raise `InvalidParameterError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidParameterError(
            f"{name} is not installed here ({error}): pip install {name}. All workers need it too."
        ) from error


def check_model(model: Any, kind: type, name: str) -> None:
    """Raise `InvalidParameterError` if an argument is not a model of the library."""
    if not isinstance(model, kind):
        raise InvalidParameterError(
            f"model={model!r} is not a model of {name}: give an unfitted instance of one of its "
            "scikit-learn classes."
        )


def list_rows(arrays: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return the names of the given arrays, and the collections that blocks are made from."""
    if arrays["X"] is None or arrays["y"] is None:
        raise InvalidDataError("X and y are both needed: rows and targets.")
    names = [name for name in ROW_NAMES if arrays.get(name) is not None]
    return names, [arrays[name] for name in names]


def check_eval_set(eval_set: Any, X: Any) -> None:
    """Raise if `eval_set` is not one pair of rows and targets with as many features as `X`.

    The libraries do not compare the widths: LightGBM would read beyond the end of narrower rows.
    """
    if eval_set is None:
        return
    is_pair = isinstance(eval_set, (tuple, list)) and len(eval_set) == 2
    if not is_pair or isinstance(eval_set[0], tuple):
        raise InvalidParameterError(
            "eval_set must be one tuple of rows and targets in memory, such as "
            f"eval_set=(X_val, y_val); it is a {type(eval_set).__name__}."
        )
    # Lists, and some collections, have no shape: the libraries look at them.
    shapes: list[tuple[Any, ...]] = [getattr(array, "shape", ()) for array in (*eval_set, X)]
    rows, targets, trained = shapes
    if rows and targets and rows[0] != targets[0]:
        raise InvalidDataError(
            f"eval_set has {rows[0]} rows and {targets[0]} targets. Pass a row for each target, "
            "in the same order."
        )
    if rows[1:] and trained[1:] and rows[1] != trained[1]:
        raise InvalidDataError(
            f"The rows of eval_set have {rows[1]} features, and those of the training "
            f"{trained[1]}. Select the same columns."
        )


def join_rows(blocks: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, Any]:
    """Return a rank's rows, joined from its blocks, by name."""
    columns = zip(*blocks, strict=True)
    return {name: _join(list(parts)) for name, parts in zip(names, columns, strict=True)}


def _join(row_parts: list[Any]) -> Any:
    """Return the concatenation of parts of rows."""
    if len(row_parts) == 1:
        return row_parts[0]
    if sparse.issparse(row_parts[0]):
        return sparse.vstack(row_parts, format="csr")
    if hasattr(row_parts[0], "iloc"):
        import pandas as pd

        return pd.concat(row_parts)
    return np.concatenate(row_parts)


def encode_rank_labels(y: Any, group: RankGroup) -> tuple[Any, NDArray[Any] | None]:
    """Return a rank's labels as positions among the classes, and the sorted classes of all ranks.

    Targets of several labels per row (two dimensions of 0 and 1) have no such classes: None.
    """
    labels: Any = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    own_labels: Any = None
    error = None
    if labels.ndim == 1:
        try:
            own_labels = _find_own_labels(labels)
        except InvalidDataError as label_error:
            error = str(label_error)
    # Every rank takes part in the exchange, and so also learns of another rank's error.
    exchanged = group.allgather((labels.ndim, own_labels, error))
    if errors := [text for _, _, text in exchanged if text is not None]:
        raise InvalidDataError(errors[0])
    if own_labels is None:
        return labels, None
    classes = _merge_labels([rank_labels for _, rank_labels, _ in exchanged if len(rank_labels)])
    return encode_labels(labels, classes), classes


def _find_own_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted labels of a rank's rows; raise if one is missing or no label."""
    check_no_missing(labels, "y")
    with explain_unsortable_labels("y"):
        own_labels = np.unique(convert_object_values(labels))
    return check_class_labels(own_labels)


def _merge_labels(rank_labels: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the sorted labels of all ranks; raise if there are fewer than two of them."""
    classes, _ = merge_block_labels(rank_labels, "y")
    if len(classes) < 2:
        raise InvalidDataError(
            f"y holds only one class: {classes.tolist()[0]!r}. Check how the rows were filtered."
        )
    return classes


def encode_labels(y: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the positions of labels among the sorted classes; raise if one is not among them."""
    labels = convert_object_values(np.asarray(y)).reshape(-1)
    positions = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    if (wrong := classes[positions] != labels).any():
        raise InvalidDataError(
            f"The label(s) {labels[wrong][:5].tolist()} of eval_set are not in y, whose labels are "
            f"{classes[:10].tolist()}. Leave such rows out."
        )
    codes: NDArray[np.int64] = positions.astype(np.int64)
    return codes


def encode_eval_set(eval_set: Any, classes: NDArray[Any] | None) -> Any:
    """Return a pair of rows and labels, or None, with positions in place of the labels."""
    if eval_set is None or classes is None:
        return eval_set
    rows, labels = eval_set
    return rows, encode_labels(labels, classes)
