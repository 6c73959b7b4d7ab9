"""Metadata of the server and of models, as the protocol has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist._version import __version__
from daskml_dist.inference.joined_rows import joined, told_dtype
from daskml_dist.inference.saved.manifest import members_given_rows
from daskml_dist.serving.outputs import outputs_of, predictor_of
from daskml_dist.serving.protocol.messages import datatype_of

__all__ = ["of_model", "of_server"]


def of_server() -> dict[str, Any]:
    """Facts of the server."""
    return {
        "name": "daskml_dist",
        "version": __version__,
        "extensions": ["binary_tensor_data", "arrow_stream"],
    }


def of_model(served: Any, versions: list[str]) -> dict[str, Any]:
    """Inputs and outputs of a model: one matrix, or an input a feature where dtypes differ.

    Features that the model drops are no inputs of such a request, though one may hold them.
    """
    predictor = served.predictor
    n_features, dtypes = predictor.n_features, predictor.dtypes or []
    texts = set() if dtypes else _texts(getattr(predictor, "model", None))
    if predictor.names is not None and (len(dtypes) > 1 or texts):
        inputs = [
            {
                "name": name,
                "datatype": "BYTES" if name in texts else _datatype(told_dtype(predictor, at)),
                "shape": [-1],
            }
            for at, name in enumerate(predictor.names)
            if name in predictor.needed
        ]
    else:
        width = -1 if n_features is None else n_features
        datatype = _datatype(told_dtype(predictor, 0) or "float64")
        inputs = [{"name": "rows", "datatype": datatype, "shape": [-1, width]}]
    return {
        "name": served.name,
        "versions": versions,
        "platform": served.manifest.get("estimator", "daskml_dist"),
        "inputs": inputs,
        "outputs": [_output(name, predictor) for name in outputs_of(predictor)],
    }


def _texts(model: Any) -> set[str]:
    """Features that scikit-learn's encoders within a model know as texts: it keeps no dtypes."""
    names, categories = (getattr(model, n, None) for n in ("feature_names_in_", "categories_"))
    if names is not None and categories is not None:
        known = zip(names, categories, strict=False)
        return {str(name) for name, values in known if np.asarray(values).dtype.kind not in "biuf"}
    found: set[str] = set().union(*map(_texts, members_given_rows(model)))
    for part in (*getattr(model, "steps", ()), *getattr(model, "transformers_", ())):
        found |= _texts(part[1])
        if len(part) == 3 and isinstance(part[2], str):  # one column, whose values are documents
            found.add(part[-1])
    return found


def _output(name: str, predictor: Any) -> dict[str, Any]:
    """An output, by what a row of zeros gives; where that is no row, what the classes tell."""
    try:
        rows = np.zeros((1, predictor.n_features), told_dtype(predictor, 0))
        found = predictor_of(predictor, name)(joined([rows], predictor))
        width = list(found.shape[1:])
        return {"name": name, "datatype": datatype_of(found.dtype), "shape": [-1, *width]}
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


def _datatype(dtype: str | None) -> str:
    try:
        return datatype_of(dtype or "float64")
    except TypeError:  # pandas' own
        return "BYTES"
