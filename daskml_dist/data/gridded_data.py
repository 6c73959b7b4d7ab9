"""Datasets of xarray as rows: one row per cell of the grid, one column per variable.

Cells are in C order of the dimensions of the variable with the most dimensions (the first such), as
stored in memory or on disk; ``reshape`` gives predictions that variable's shape again. A variable
that lacks some dimensions (an altitude beside a series in time) is repeated along them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from daskml_dist.errors import InvalidDataError


def flatten_dataset(dataset: Any) -> dict[str, Any]:
    """Return each variable of an xarray.Dataset as one column, lazy if any variable is."""
    import xarray

    names = list(dataset.data_vars)
    if not names:
        raise InvalidDataError(
            "The xarray.Dataset has no data variables. Coordinates become variables by "
            "dataset.reset_coords()."
        )
    if non_string_names := [name for name in names if not isinstance(name, str)]:
        raise InvalidDataError(
            f"Variables {non_string_names} of the xarray.Dataset have names that are not strings. "
            "Rename them: dataset.rename({old: 'new'})."
        )
    # The grid has the dimensions of the variable with the most, in the same order.
    widest = max((dataset[name] for name in names), key=lambda variable: variable.ndim)
    dims = [*widest.dims, *(dim for dim in dataset.dims if dim not in widest.dims)]
    lazy = any(isinstance(dataset[name].data, da.Array) for name in names)
    variables = xarray.broadcast(*(dataset[name] for name in names))
    # Chunk the grid identically for all variables; else their rows would be in different blocks.
    if lazy:
        variables = xarray.unify_chunks(
            *(variable.chunk() if variable.chunks is None else variable for variable in variables)
        )
    used_dims = [dim for dim in dims if dim in variables[0].dims]
    return {
        name: variable.transpose(*used_dims).data.reshape(-1)
        for name, variable in zip(names, variables, strict=True)
    }


def stack_columns(columns: dict[str, Any], dtype: Any) -> Any:
    """Return columns of equal chunks side by side, as one array of a dtype."""
    values = list(columns.values())
    if not isinstance(values[0], da.Array):
        return _stack_block(dtype, *values)
    return da.map_blocks(
        partial(_stack_block, dtype),
        *values,
        new_axis=1,
        chunks=(values[0].chunks[0], (len(values),)),
        meta=np.empty((0, len(values)), dtype),
    )


def _stack_block(dtype: Any, *columns: Any) -> Any:
    """Return one-dimensional arrays side by side."""
    return np.stack([np.asarray(column, dtype) for column in columns], axis=1)
