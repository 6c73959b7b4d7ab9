"""Rows as the tensors that a module is called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daskml_dist.backends.namespace import is_host
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.library import load_torch

__all__ = ["IMAGES", "Columns", "TorchInputs", "tensor_of"]

#: How bytes of images lie in a row.
IMAGES = ("channels_last", "channels_first")


@dataclass(frozen=True)
class Columns:
    """Columns of a dataframe that are one input of a module.

    Parameters
    ----------
    at : tuple of int
        Positions of the columns; those of a single one by its name give a tensor of shape (n,).
    single : bool
    whole : bool
        Whether they hold whole numbers, which come as int64.
    """

    at: tuple[int, ...]
    single: bool
    whole: bool


@dataclass(frozen=True)
class TorchInputs:
    """Tensors that a module is called with, of rows.

    Rows of floats come in the dtype of the parameters, bytes and bools as they are, and other whole
    numbers (tokens) as int64.

    Parameters
    ----------
    images : {"channels_last", "channels_first"} or None
        Rows are images of bytes, which come as floats between 0 and 1, channels first.
    columns : mapping of str to Columns, or None
        The module's arguments, of columns of a dataframe; None: it takes the rows.
    """

    images: str | None = None
    columns: Mapping[str, Columns] | None = None

    def __call__(self, X: Any, dtype: Any, device: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of a module for some rows.

        Parameters
        ----------
        X : ndarray or CSR matrix of shape (n, ...), or an array of CuPy
        dtype : dtype of torch
            Of the parameters.
        device : device of torch, optional
            Where the parameters are.
        """
        rows = tensor_of(X.toarray() if hasattr(X, "toarray") else X)
        if device is not None:
            rows = rows.to(device)
        if self.columns is not None:
            return [], {name: self._input(rows, of, dtype) for name, of in self.columns.items()}
        if self.images is not None:
            return [self._image(rows, dtype)], {}
        return [_as_input(rows, dtype)], {}

    def _image(self, rows: Any, dtype: Any) -> Any:
        if rows.ndim == 3:  # grey ones
            rows = rows[:, None]
        elif rows.ndim == 4 and self.images == "channels_last":
            rows = rows.movedim(3, 1)
        scale = 1.0 if rows.is_floating_point() else 1 / 255
        return rows.to(dtype).contiguous() * scale

    def _input(self, rows: Any, of: Columns, dtype: Any) -> Any:
        torch = load_torch()
        columns = rows[:, of.at[0]] if of.single else rows[:, list(of.at)]
        return columns.to(torch.int64 if of.whole else dtype)


def tensor_of(array: Any) -> Any:
    """A tensor that shares the memory of an array, where it may be written."""
    torch = load_torch()
    if not is_host(array):
        return torch.from_dlpack(array)
    if array.dtype.kind == "u" and array.itemsize > 1:
        # Few of torch's functions take these.
        array = array.astype("int64")
    if not (array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise InvalidParameterError(f"{error} Convert X to float32 or int64 first.") from error


def _as_input(rows: Any, dtype: Any) -> Any:
    torch = load_torch()
    if rows.is_floating_point():
        return rows if rows.dtype == dtype else rows.to(dtype)
    return rows if rows.dtype in (torch.uint8, torch.bool) else rows.to(torch.int64)
