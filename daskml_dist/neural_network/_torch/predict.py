"""Predictions of a fitted module: a function of rows that builds it once a process."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.flat import FlatModule, torch_dtype
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.module import TorchModel
from daskml_dist.models.torch_modules.source import class_name_of, explain_errors

#: Modules that this process has built last, by the token of what built them.
_BUILT: OrderedDict[str, Any] = OrderedDict()
_MOST_BUILT = 4
_BUILDING = threading.Lock()
#: Threads share a module, and a hook on it sees what all of them compute.
_HOOKING = threading.Lock()


def fitted_module(model: TorchModel, w: NDArray[Any]) -> Any:
    """A new module with fitted parameters, ready to predict."""
    module = model.source.make_seeded(0, torch_dtype(str(w.dtype)))
    flat = FlatModule(module, model.parameters, w, trained=False)
    flat.enter(w)
    return module.eval()


@dataclass(frozen=True, eq=False)
class TorchOutputs:
    """Function from rows to a fitted module's outputs, or to what a layer of it gives.

    Parameters
    ----------
    model : TorchModel
    w : ndarray of shape (n, 1)
    layer : str or None
        Whose output is wanted, flattened; None: the module's own.
    then : callable or None
        What is made of the module's output, a tensor.
    """

    model: TorchModel
    w: NDArray[Any]
    layer: str | None = None
    then: Callable[[Any], Any] | None = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, X: Any) -> NDArray[Any]:
        """Outputs of shape (n,), or (n, ...)."""
        torch = load_torch()
        module, kind = self._module(), torch_dtype(str(self.w.dtype))
        name = self.model.source.name
        positional, named = self.model.inputs(X, kind)
        with torch.inference_mode(), explain_errors(f"{name}.forward, on {X.shape[0]} rows,"):
            if self.layer is not None:
                found = _of_layer(module, self.layer, positional, named)
            else:
                output = module(*positional, **named)
                found = output[0] if isinstance(output, tuple) else output
                found = found if self.then is None else self.then(found)
            result: NDArray[Any] = found.to(kind).numpy()
        return (
            result.reshape(len(result))
            if result.shape[1:] == (1,) and self.layer is None
            else result
        )

    def _module(self) -> Any:
        with _BUILDING:
            if self.token not in _BUILT:
                _BUILT[self.token] = fitted_module(self.model, self.w)
                while len(_BUILT) > _MOST_BUILT:
                    _BUILT.popitem(last=False)
            _BUILT.move_to_end(self.token)
            return _BUILT[self.token]

    def width(self, rows: NDArray[Any]) -> int:
        """Columns of the result, seen on a few rows."""
        return int(np.prod(self(rows).shape[1:], dtype=int))


def _of_layer(module: Any, layer: str, positional: list[Any], named: dict[str, Any]) -> Any:
    layers = dict(module.named_modules())
    if layer not in layers or not layer:
        known = [name for name in layers if name]
        raise InvalidParameterError(f"layer={layer!r}: the module's layers are {known}. Name one.")
    taken: list[Any] = []
    with _HOOKING:
        hook = layers[layer].register_forward_hook(lambda _, __, output: taken.append(output))
        try:
            module(*positional, **named)
        finally:
            hook.remove()
    if not taken:
        raise InvalidParameterError(f"layer={layer!r} has no part in forward. Name another.")
    found = taken[-1][0] if isinstance(taken[-1], tuple) else taken[-1]
    return found.flatten(1)


def nonlinearity_of(criterion: Any) -> Callable[[Any], Any] | None:
    """Function from outputs to probabilities that goes with a criterion; None: they are these."""
    return _NONLINEARITIES.get(class_name_of(criterion))


@dataclass(frozen=True)
class Above:
    """Outputs of which the largest, or the sign of a single one, tells the class.

    Parameters
    ----------
    threshold : float
        Of a single one.
    each : bool
        Whether each of several outputs is one of its own.
    """

    threshold: float
    each: bool

    def __call__(self, output: Any) -> Any:
        """Outputs themselves, or how far single ones lie above the threshold."""
        if output.ndim == 2 and output.shape[1] > 1 and not self.each:
            return output
        return output - self.threshold


def _softmax(output: Any) -> Any:
    return output.softmax(dim=1)


def either(output: Any) -> Any:
    """Probabilities of logits: one a class, or a single one for the second of two classes."""
    return _softmax(output) if output.ndim == 2 and output.shape[1] > 1 else sigmoid(output)


def sigmoid(output: Any) -> Any:
    """Probabilities of logits, each of its own."""
    return output.sigmoid()


def _exp(output: Any) -> Any:
    return output.exp()


_NONLINEARITIES = {
    "CrossEntropyLoss": _softmax,
    "cross_entropy": either,
    "BCEWithLogitsLoss": sigmoid,
    "binary_cross_entropy_with_logits": sigmoid,
    "NLLLoss": _exp,
    "nll_loss": _exp,
}
