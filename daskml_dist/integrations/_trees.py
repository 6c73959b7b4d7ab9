"""Code shared by the libraries of boosted trees: rows of a rank, argument checks, classes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from scipy import sparse

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


def list_rows(given: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Return the names of the given arrays, and the collections that blocks are made from."""
    if given["X"] is None or given["y"] is None:
        raise InvalidDataError("X and y are both needed: rows and targets.")
    names = [name for name in ROW_NAMES if given.get(name) is not None]
    return names, [given[name] for name in names]


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
    shapes: list[tuple[Any, ...]] = [getattr(one, "shape", ()) for one in (*eval_set, X)]
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


def _join(parts: list[Any]) -> Any:
    """Return the concatenation of parts of rows."""
    if len(parts) == 1:
        return parts[0]
    if sparse.issparse(parts[0]):
        return sparse.vstack(parts, format="csr")
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts)
    return np.concatenate(parts)


def find_n_classes(y: Any, allreduce: Callable[..., Any]) -> int:
    """Return the number of classes 0, 1, ... over all ranks; raise for other labels."""
    own = np.asarray(y)
    is_code = own.dtype.kind in "biuf" and (own == own.astype(np.int64)).all()
    lowest = float(own.min()) if is_code and own.size else 0.0
    highest = float(own.max()) if is_code and own.size else 0.0
    wrong, _, highest = allreduce(np.array([not is_code or lowest < 0, 0, highest], float), "max")
    if wrong:
        raise InvalidDataError(
            "The labels are not 0, 1, 2, ...: these libraries need classes numbered from 0. "
            "Encode them first, with daskml_dist.preprocessing.LabelEncoder."
        )
    return int(highest) + 1
