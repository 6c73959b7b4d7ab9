"""Tensors of a fitted module, apart from all else that its estimator holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import ModelFileError
from daskml_dist.models.torch_modules.flat import lay_out_parameters, torch_dtype
from daskml_dist.models.torch_modules.source import ModuleSource

#: Field of the state, for the time between, that the tensors are.
_TAKEN = "_taken"


def take_tensors(state: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Take the module's tensors out of the attributes of an estimator, and the user's code."""
    whole, net, w = state["_state"], state["_net"], state.pop("_w")
    del state["_last_model"]
    state["_net"] = replace(net, source=None)
    taken = "w" if whole.average is None else "average"
    if np.array_equal(getattr(whole, taken), w, equal_nan=True):
        state["_state"], state[_TAKEN] = replace(whole, **{taken: None}), taken
    found: dict[str, NDArray[Any]] = net.parameters.views(w)
    return found


def set_tensors(
    state: dict[str, Any], tensors: Mapping[str, NDArray[Any]], source: ModuleSource
) -> None:
    """Set what :func:`take_tensors` took."""
    net = replace(state["_net"], source=source)
    _check_module(net, source)
    dtype = next(iter(tensors.values())).dtype  # of all
    w = np.empty(net.parameters.shape, dtype)
    for name, view in net.parameters.views(w).items():
        view[...] = tensors[name]
    state["_net"] = state["_last_model"] = net
    state["_w"] = w
    if (taken := state.pop(_TAKEN, None)) is not None:
        state["_state"] = replace(state["_state"], **{taken: w})


def _check_module(net: Any, source: ModuleSource) -> None:
    module = source.make_seeded(0, torch_dtype("float32"))
    here = {part.name: part.shape for part in lay_out_parameters(module).parts}
    there = {part.name: part.shape for part in net.parameters.parts}
    odd = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if odd:
        raise ModelFileError(
            f"{source.name} is another module than that of the file: "
            + ", ".join(f"{n} of shape {here.get(n)} was {there.get(n)}" for n in odd[:5])
            + ". Give the class of the fit."
        )
