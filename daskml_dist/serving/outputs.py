"""Outputs by name: the methods of a served model that a request may ask for."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from daskml_dist.errors import RequestError
from daskml_dist.inference.predictor import METHODS, Predictor

__all__ = ["METHODS_SERVED", "outputs_of", "predictor_of"]

#: Methods that are outputs; no other attribute of a model can be reached by a request.
METHODS_SERVED = (*METHODS, "decision_function", "predict_log_proba")

_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def outputs_of(predictor: Any) -> list[str]:
    """Names of the outputs that a model has, its own first."""
    model = getattr(predictor, "model", None)
    others = [name for name in METHODS_SERVED if model is not None and hasattr(model, name)]
    return list(dict.fromkeys([predictor.method, *others]))


def predictor_of(predictor: Any, name: str) -> Any:
    """The predictor of an output."""
    if name == predictor.method:
        return predictor
    known = _made.setdefault(predictor, {})
    if name not in known:
        there = outputs_of(predictor)
        if name not in there:
            raise RequestError(
                f"The model has no output {name[:100]!r}: ask for {' or '.join(there)}, or for "
                "none by name.",
                422,
            )
        known[name] = Predictor(predictor.model, name)
    return known[name]
