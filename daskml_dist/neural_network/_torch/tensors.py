"""Tensors of a fitted module, separated from the other attributes of its estimator.

A model file holds arrays and plain values, and no user code: tensors are stored under their names
in the module, and the class of the module must be given when the file is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import ModelFileError
from daskml_dist.models.torch_modules.flat import lay_out_parameters, torch_dtype
from daskml_dist.models.torch_modules.source import ModuleSource
from daskml_dist.models.torch_modules.tables import TorchTableModel

#: Key in model files: the field of the `ShardState` ("w" or "average") that equals the tensors.
_VECTOR_KEY = "_taken"
#: Name of the rows of a table, which replace the embeddings of the module.
_TABLE = "embeddings.rows"


def take_tensors(
    state: dict[str, Any], layers: NDArray[Any] | None = None
) -> dict[str, NDArray[Any]]:
    """Remove the module's tensors, and the user's code, from a state; return the tensors.

    `layers` are the parameters that the module holds if its embeddings are in a table.
    """
    shard_state, net, w = state["_state"], state["_net"], state.pop("_w")
    del state["_last_model"]
    state["_net"] = replace(net, source=None)
    # The state to continue from usually has the same array, which is not stored twice.
    taken = "w" if shard_state.average is None else "average"
    if np.array_equal(getattr(shard_state, taken), w, equal_nan=True):
        state["_state"], state[_VECTOR_KEY] = replace(shard_state, **{taken: None}), taken
    tensors: dict[str, NDArray[Any]]
    if layers is None:
        tensors = net.parameters.views(w)
    else:
        tensors = net.dense.views(layers) | {_TABLE: w}
    return tensors


def set_tensors(
    state: dict[str, Any], tensors: Mapping[str, NDArray[Any]], source: ModuleSource
) -> None:
    """Restore the attributes that :func:`take_tensors` has removed from an estimator."""
    net = state["_net"]
    if isinstance(net, TorchTableModel):
        source = replace(source, lookups=net.part_names)
    net = replace(net, source=source)
    _check_module(net, source)
    if isinstance(net, TorchTableModel):
        w = tensors[_TABLE]  # the layers are among its rows
    else:
        dtype = next(iter(tensors.values())).dtype  # all tensors have one dtype
        w = np.empty(net.parameters.shape, dtype)
        for name, view in net.parameters.views(w).items():
            view[...] = tensors[name]
    state["_net"] = state["_last_model"] = net
    state["_w"] = w
    if (taken := state.pop(_VECTOR_KEY, None)) is not None:
        state["_state"] = replace(state["_state"], **{taken: w})


def _check_module(net: Any, source: ModuleSource) -> None:
    """Raise if the parameters of the given module differ from those in the file."""
    module = source.make_seeded(0, torch_dtype("float32"))
    layout = lay_out_parameters(module, isinstance(net, TorchTableModel))
    given_shapes = {part.name: part.shape for part in layout.parts}
    saved_shapes = {part.name: part.shape for part in net.module_parameters.parts}
    changed = [
        name
        for name in {**given_shapes, **saved_shapes}
        if given_shapes.get(name) != saved_shapes.get(name)
    ]
    if changed:
        raise ModelFileError(
            f"{source.name} differs from the module in the file: "
            + ", ".join(
                f"{n} of shape {given_shapes.get(n)} was {saved_shapes.get(n)}" for n in changed[:5]
            )
            + ". Give the class of the fit."
        )
