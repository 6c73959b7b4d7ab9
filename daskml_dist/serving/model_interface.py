"""Metadata of the server and of models, as the protocol has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from daskml_dist._version import __version__
from daskml_dist.errors import RequestError
from daskml_dist.inference.predictor import METHODS, Predictor
from daskml_dist.inference.request_rows import RequestRows, find_feature_dtype, join_request_rows
from daskml_dist.inference.saved.manifest import members_given_rows
from daskml_dist.serving.protocol.requests import find_datatype

#: Methods that are outputs; no other attribute of a model can be reached by a request.
METHODS_SERVED = (*METHODS, "decision_function", "predict_log_proba")

_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def list_outputs(predictor: Any) -> list[str]:
    """Return the names of the outputs that a model has, its own first."""
    model = getattr(predictor, "model", None)
    others = [name for name in METHODS_SERVED if model is not None and hasattr(model, name)]
    return list(dict.fromkeys([predictor.method, *others]))


def find_predictor(predictor: Any, name: str) -> Any:
    """Return the predictor of an output, made at its first use."""
    if name == predictor.method:
        return predictor
    known = _made.setdefault(predictor, {})
    if name not in known:
        there = list_outputs(predictor)
        if name not in there:
            raise RequestError(
                f"The model has no output {name[:100]!r}: ask for {' or '.join(there)}, or for "
                "none by name.",
                422,
            )
        known[name] = Predictor(predictor.model, name)
    return known[name]


MAX_NAMES_SHOWN = 5


def make_rows(tensors: Sequence[tuple[str, NDArray[Any]]], predictor: Any) -> RequestRows:
    """Return rows for a predictor, of one matrix or of one tensor for each feature."""
    if len(tensors) == 1 and not _is_feature(*tensors[0], predictor):
        return _check_matrix(*tensors[0], predictor)
    return _check_columns(tensors, predictor)


def _is_feature(name: str, values: NDArray[Any], predictor: Any) -> bool:
    """Return whether a single tensor is one column of the rows."""
    names = predictor.names
    single = values.ndim > 0 and values.size == len(values)
    return names is not None and name in names and single


def _check_matrix(name: str, values: NDArray[Any], predictor: Any) -> NDArray[Any]:
    width = predictor.n_features
    if values.ndim != 2 and width is not None:
        raise _wrong_input(
            f"Input {name[:100]!r} has shape {list(values.shape)}: send [rows, {width}]."
        )
    if width is not None and values.shape[1] != width:
        raise _wrong_input(
            f"Input {name[:100]!r} has {values.shape[1]} features and the model {width}: send "
            f"shape [rows, {width}]."
        )
    if values.ndim == 0 or values.shape[0] == 0:
        raise _wrong_input("There are no rows: send one at least.")
    if values.dtype.kind == "O":
        for at in range(width or 0):
            _check_dtype(f"{name}[:, {at}]", values[:, at], at, predictor)
    return values


def _check_columns(
    tensors: Sequence[tuple[str, NDArray[Any]]], predictor: Any
) -> dict[str, NDArray[Any]]:
    names = predictor.names
    if names is None:
        raise _wrong_input(
            f"There are {len(tensors)} inputs, and the model knows no names of features: send "
            f"one of shape [rows, {predictor.n_features}]."
        )
    given = dict(tensors)
    if len(given) < len(tensors):
        raise _wrong_input("Two inputs have one name: send each feature once.")
    _check_names(given, names, predictor.needed)
    columns = {name: _flatten_column(name, given[name]) for name in names if name in given}
    sizes = {len(values) for values in columns.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise _wrong_input(
            f"The inputs have {', '.join(map(str, sorted(sizes)))} rows: send as many of each, one "
            "at least."
        )
    # Requests that are answered together have the same columns: dropped ones go no further.
    columns = {name: columns[name] for name in predictor.needed}
    for name, values in columns.items():
        _check_dtype(name, values, names.index(name), predictor)
    return columns


def _check_names(given: Collection[str], names: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse requests that lack a feature that the model reads, or hold one unknown to it."""
    missing = [name for name in needed if name not in given]
    unknown = [name for name in given if name not in set(names)]
    if missing or unknown:
        said = [f"{_list_names(missing)} missing"] if missing else []
        said += [f"{_list_names(unknown)} unknown to the model"] if unknown else []
        raise _wrong_input(
            f"Of the features, {' and '.join(said)}: send one input for each, of "
            f"{_list_names(needed)}."
        )


def _flatten_column(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise _wrong_input(
            f"Input {name[:100]!r} has shape {list(values.shape)}: send a feature as [rows] or "
            "[rows, 1]."
        )
    return values


def _check_dtype(name: str, values: NDArray[Any], at: int, predictor: Any) -> None:
    """Refuse strings where the fit had numbers."""
    dtype = find_feature_dtype(predictor, at)
    if values.dtype.kind != "O" or dtype is None or not _is_number(dtype):
        return
    if all(isinstance(value, (int, float)) for value in values):
        return
    raise _wrong_input(
        f"Input {name[:100]!r} holds strings, and the model was fitted to {dtype}: send "
        f"{find_datatype(dtype)}."
    )


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:  # pandas' own: category, string, Int64
        return False


def _list_names(names: Sequence[str]) -> str:
    """Return a few names as text, and how many more there are."""
    shown = ", ".join(repr(str(name)[:100]) for name in names[:MAX_NAMES_SHOWN])
    more = len(names) - MAX_NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _wrong_input(message: str) -> RequestError:
    return RequestError(message, 422)


def describe_server() -> dict[str, Any]:
    """Return the protocol's metadata of the server."""
    return {
        "name": "daskml_dist",
        "version": __version__,
        "extensions": ["binary_tensor_data", "arrow_stream"],
    }


def describe_model(served: Any, versions: list[str]) -> dict[str, Any]:
    """Return inputs and outputs: one matrix, or an input for each feature where dtypes differ.

    Features that the model drops are no inputs of such a request, though one may hold them.
    """
    predictor = served.predictor
    n_features, dtypes = predictor.n_features, predictor.dtypes or []
    texts = set() if dtypes else _find_text_features(getattr(predictor, "model", None))
    if predictor.names is not None and (len(dtypes) > 1 or texts):
        inputs = [
            {
                "name": name,
                "datatype": "BYTES"
                if name in texts
                else _find_datatype(find_feature_dtype(predictor, at)),
                "shape": [-1],
            }
            for at, name in enumerate(predictor.names)
            if name in predictor.needed
        ]
    else:
        width = -1 if n_features is None else n_features
        datatype = _find_datatype(find_feature_dtype(predictor, 0) or "float64")
        inputs = [{"name": "rows", "datatype": datatype, "shape": [-1, width]}]
    return {
        "name": served.name,
        "versions": versions,
        "platform": served.manifest.get("estimator", "daskml_dist"),
        "inputs": inputs,
        "outputs": [_describe_output(name, predictor) for name in list_outputs(predictor)],
    }


def _find_text_features(model: Any) -> set[str]:
    """Return features that encoders of scikit-learn within a model know as texts."""
    names, categories = (getattr(model, n, None) for n in ("feature_names_in_", "categories_"))
    if names is not None and categories is not None:
        known = zip(names, categories, strict=False)
        return {str(name) for name, values in known if np.asarray(values).dtype.kind not in "biuf"}
    found: set[str] = set().union(*map(_find_text_features, members_given_rows(model)))
    for part in (*getattr(model, "steps", ()), *getattr(model, "transformers_", ())):
        found |= _find_text_features(part[1])
        if len(part) == 3 and isinstance(part[2], str):  # one column, whose values are documents
            found.add(part[-1])
    return found


def _describe_output(name: str, predictor: Any) -> dict[str, Any]:
    """Return an output, by the answer to a row of zeros; where that fails, by the classes."""
    try:
        rows = np.zeros((1, predictor.n_features), find_feature_dtype(predictor, 0))
        found = find_predictor(predictor, name)(join_request_rows([rows], predictor))
        width = list(found.shape[1:])
        return {"name": name, "datatype": find_datatype(found.dtype), "shape": [-1, *width]}
    except Exception:  # of a model of anybody's
        pass
    classes = predictor.classes
    if name == "predict":
        sample = classes[0] if classes else 0.0
        datatype = {bool: "BOOL", int: "INT64", str: "BYTES"}.get(type(sample), "FP64")
        return {"name": name, "datatype": datatype, "shape": [-1]}
    if name == "decision_function" and classes and len(classes) == 2:
        return {"name": name, "datatype": "FP64", "shape": [-1]}
    is_probability = name in ("predict_proba", "predict_log_proba")
    return {
        "name": name,
        "datatype": "FP64",
        "shape": [-1, len(classes) if classes and is_probability else -1],
    }


def _find_datatype(dtype: str | None) -> str:
    try:
        return find_datatype(dtype or "float64")
    except TypeError:  # pandas' own
        return "BYTES"
