"""Interface of models in the protocol's terms: their inputs and outputs.

`make_rows` checks the tensors of a request against the model's features, and makes them rows: one
matrix, or a column for each feature. `find_predictor` gives the predictor of an output, which is a
method of the model. `describe_model` is the metadata by which clients make such requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from daskml_dist._version import __version__
from daskml_dist.errors import RequestError
from daskml_dist.inference.predictor import METHODS, Predictor
from daskml_dist.inference.request_rows import RequestRows, find_feature_dtype, join_request_rows
from daskml_dist.inference.saved.manifest import members_given_rows
from daskml_dist.inspection._contributions import (
    CONTRIBUTIONS,
    ContributionPredictor,
    has_contributions,
)
from daskml_dist.serving.protocol.requests import Question, find_datatype

#: Methods that are outputs; requests can reach no other attribute of a model.
METHODS_SERVED = (
    *METHODS, "decision_function", "predict_log_proba", "predict_interval", "predict_set",
)  # fmt: skip

#: Predictors of methods other than the served one, by the served method's predictor; they are freed
#: with it.
_output_predictors: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def _list_outputs(predictor: Any) -> list[str]:
    """Return the names of a model's outputs, the served method first."""
    # A predictor may be any callable without a model; it then has one output.
    model = getattr(predictor, "model", None)
    names = [name for name in METHODS_SERVED if model is not None and hasattr(model, name)]
    if has_contributions(model):
        names.append(CONTRIBUTIONS)
    return list(dict.fromkeys([predictor.method, *names]))


def list_predictors(predictor: Any, question: Question) -> list[Any]:
    """Return the predictors of the outputs that a request names, else of the default one.

    Contributions are appended if the request's parameters ask for them.
    """
    predictors = [find_predictor(predictor, name) for name in question.outputs] or [predictor]
    if question.contributions and CONTRIBUTIONS not in question.outputs:
        predictors.append(find_predictor(predictor, CONTRIBUTIONS))
    return predictors


def find_predictor(predictor: Any, name: str) -> Any:
    """Return the predictor of an output, made at its first use; raise 422 for unknown ones."""
    if name == predictor.method:
        return predictor
    predictors = _output_predictors.setdefault(predictor, {})
    if name not in predictors:
        outputs = _list_outputs(predictor)
        if name == CONTRIBUTIONS and name not in outputs:
            raise RequestError(
                "The model has no contributions (only tree models of this package do): do not "
                "request them.",
                422,
            )
        if name not in outputs:
            raise RequestError(
                f"The model has no output {name[:100]!r}: ask for {' or '.join(outputs)}, or for "
                "none by name.",
                422,
            )
        make = ContributionPredictor if name == CONTRIBUTIONS else partial(Predictor, method=name)
        predictors[name] = make(predictor.model)
    return predictors[name]


#: Maximum names in an error, before it counts the rest: a fit may have thousands of features.
_MAX_NAMES_SHOWN = 5


def make_rows(tensors: Sequence[tuple[str, NDArray[Any]]], predictor: Any) -> RequestRows:
    """Return the rows of a request's tensors: one matrix, or one tensor for each feature."""
    if len(tensors) == 1:
        # A single tensor is a matrix, unless it has a feature's name and one value per row.
        ((name, values),) = tensors
        is_column = values.ndim > 0 and values.size == len(values)
        if not (is_column and name in (predictor.names or ())):
            return _check_matrix(name, values, predictor)
    return _check_columns(tensors, predictor)


def _check_matrix(name: str, values: NDArray[Any], predictor: Any) -> NDArray[Any]:
    """Return a matrix of rows; raise 422 if its shape or its strings do not fit the model."""
    width = predictor.n_features
    # Models without a known width, such as pipelines of texts, check the rows themselves.
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
        raise _wrong_input("There are no rows: send at least one.")
    # A matrix of strings has one dtype for all features, some of which may have been numbers.
    if values.dtype.kind == "O":
        for index in range(width or 0):
            _check_dtype(f"{name}[:, {index}]", values[:, index], index, predictor)
    return values


def _check_columns(
    tensors: Sequence[tuple[str, NDArray[Any]]], predictor: Any
) -> dict[str, NDArray[Any]]:
    """Return the columns that the model reads, in its order; raise 422 if they do not fit."""
    names = predictor.names
    if names is None:
        raise _wrong_input(
            f"There are {len(tensors)} inputs, but the model has no feature names: send one of "
            f"shape [rows, {predictor.n_features}]."
        )
    by_name = dict(tensors)
    if len(by_name) < len(tensors):
        raise _wrong_input("Two inputs have the same name: send each feature once.")
    _check_names(by_name, names, predictor.needed)
    columns = {name: _flatten_column(name, by_name[name]) for name in names if name in by_name}
    sizes = {len(values) for values in columns.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise _wrong_input(
            f"The inputs have {', '.join(map(str, sorted(sizes)))} rows: send the same number "
            "for each, at least one."
        )
    # Requests that are answered together need the same columns, so unused ones are dropped.
    columns = {name: columns[name] for name in predictor.needed}
    for name, values in columns.items():
        _check_dtype(name, values, names.index(name), predictor)
    return columns


def _check_names(
    input_names: Collection[str], names: Sequence[str], required_features: Sequence[str]
) -> None:
    """Refuse requests that lack a feature that the model reads, or have an unknown one."""
    missing = [name for name in required_features if name not in input_names]
    unknown = [name for name in input_names if name not in set(names)]
    if missing or unknown:
        problems = [f"{_list_names(missing)} missing"] if missing else []
        problems += [f"{_list_names(unknown)} unknown to the model"] if unknown else []
        raise _wrong_input(
            f"Of the features, {' and '.join(problems)}: send one input for each, of "
            f"{_list_names(required_features)}."
        )


def _flatten_column(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of one feature, of shape (n_rows,)."""
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise _wrong_input(
            f"Input {name[:100]!r} has shape {list(values.shape)}: send one feature as [rows] or "
            "[rows, 1]."
        )
    return values


def _check_dtype(name: str, values: NDArray[Any], feature_index: int, predictor: Any) -> None:
    """Raise 422 for strings in feature number `feature_index` if the fit had numbers."""
    # NumPy would parse strings such as "1e3" as numbers, and hide a client's mistake.
    dtype = find_feature_dtype(predictor, feature_index)
    if values.dtype.kind != "O" or dtype is None or not _is_number(dtype):
        return
    if all(isinstance(value, (int, float)) for value in values):
        return
    raise _wrong_input(
        f"Input {name[:100]!r} holds strings, and the model was fitted to {dtype}: send "
        f"{find_datatype(dtype)}."
    )


def _is_number(dtype: str) -> bool:
    """Return whether a dtype is a NumPy number; pandas' own (category, Int64) are not."""
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False


def _list_names(names: Sequence[str]) -> str:
    """Return a few names as text, and the number of the remaining ones."""
    text = ", ".join(repr(str(name)[:100]) for name in names[:_MAX_NAMES_SHOWN])
    n_remaining = len(names) - _MAX_NAMES_SHOWN
    return f"{text} and {n_remaining} more" if n_remaining > 0 else text


def _wrong_input(message: str) -> RequestError:
    """Return the error for rows that do not fit the model."""
    return RequestError(message, 422)


def describe_server() -> dict[str, Any]:
    """Return the protocol's metadata of the server."""
    return {
        "name": "daskml_dist",
        "version": __version__,
        "extensions": ["binary_tensor_data", "arrow_stream"],
    }


def describe_model(served: Any, versions: list[str]) -> dict[str, Any]:
    """Return the protocol's metadata of a model: versions, inputs and outputs.

    The inputs are one matrix, or a column for each feature if dtypes differ or are texts, or one
    column of documents for a pipeline that begins with a text vectorizer. Features that the model
    drops are not listed, though a request may contain them.
    """
    predictor = served.predictor
    n_features, dtypes = predictor.n_features, predictor.dtypes or []
    # scikit-learn's models record no dtypes, but their encoders show which features are texts.
    texts = set() if dtypes else _find_text_features(getattr(predictor, "model", None))
    if predictor.names is not None and (len(dtypes) > 1 or texts):
        inputs = [
            {
                "name": name,
                "datatype": "BYTES"
                if name in texts
                else _find_datatype(find_feature_dtype(predictor, index)),
                "shape": [-1],
            }
            for index, name in enumerate(predictor.names)
            if name in predictor.needed
        ]
    elif n_features is None and _is_model_of_texts(getattr(predictor, "model", None)):
        inputs = [{"name": "rows", "datatype": "BYTES", "shape": [-1]}]
    else:
        width = -1 if n_features is None else n_features
        datatype = _find_datatype(find_feature_dtype(predictor, 0) or "float64")
        inputs = [{"name": "rows", "datatype": datatype, "shape": [-1, width]}]
    return {
        "name": served.name,
        "versions": versions,
        "platform": served.manifest.get("estimator", "daskml_dist"),
        "inputs": inputs,
        "outputs": [_describe_output(name, predictor) for name in _list_outputs(predictor)],
    }


def _is_model_of_texts(model: Any) -> bool:
    """Return whether a model, or the first step of a pipeline, splits documents into words."""
    while steps := getattr(model, "steps", None):
        model = steps[0][1]
    return hasattr(model, "build_analyzer")


def _find_text_features(model: Any) -> set[str]:
    """Return the names of features whose categories or documents are texts, from encoders."""
    # An encoder's own features and their categories.
    names, categories = (getattr(model, n, None) for n in ("feature_names_in_", "categories_"))
    if names is not None and categories is not None:
        features = zip(names, categories, strict=False)
        return {
            str(name) for name, values in features if np.asarray(values).dtype.kind not in "biuf"
        }
    texts: set[str] = set().union(*map(_find_text_features, members_given_rows(model)))
    # Steps of pipelines are (name, step); those of column transformers (name, step, columns), in
    # which a single name, instead of a list, passes a column of documents to a vectorizer.
    for step in (*getattr(model, "steps", ()), *getattr(model, "transformers_", ())):
        texts |= _find_text_features(step[1])
        if len(step) == 3 and isinstance(step[2], str):
            texts.add(step[-1])
    return texts


def _describe_output(name: str, predictor: Any) -> dict[str, Any]:
    """Return an output's metadata: from the answer to a row of zeros, else from the classes."""
    try:
        rows = np.zeros((1, predictor.n_features), find_feature_dtype(predictor, 0))
        answer = find_predictor(predictor, name)(join_request_rows([rows], predictor))
        width = list(answer.shape[1:])
        return {"name": name, "datatype": find_datatype(answer.dtype), "shape": [-1, *width]}
    except Exception:  # of any class: models come from any package, and some refuse zeros
        pass
    # scikit-learn's conventions: labels of the classes' type, a decision for two classes, a column
    # for each class of more; -1 is an unknown number of columns.
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
    """Return the protocol's datatype of a feature; pandas' own dtypes are sent as strings."""
    try:
        return find_datatype(dtype or "float64")
    except TypeError:
        return "BYTES"
