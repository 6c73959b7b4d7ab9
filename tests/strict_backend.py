"""A backend that stands for a GPU: array-api-strict on a fake device.

Its arrays do not mix with NumPy's, and have only the functions of the standard. Code that runs on
it in a test uses nothing that CuPy's arrays lack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend

xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")

CPU, *_DEVICES = xp.__array_namespace_info__().devices()
#: A fake device with all dtypes; other such devices differ only in their names.
DEVICE = next(device for device in _DEVICES if "no_" not in str(device))


class StrictBackend(Backend):
    """Backend with dense arrays on a fake device."""

    name = "strict"
    device = "gpu"

    def __init__(self, where: Any = DEVICE) -> None:
        self.where = where

    @classmethod
    def problem(cls) -> str | None:
        return None

    def to_device(self, array: Any) -> Any:
        if sparse.issparse(array):
            raise NotImplementedError("there are no sparse arrays in the standard")
        if isinstance(array, np.ndarray):
            return xp.asarray(np.ascontiguousarray(array), device=self.where, copy=True)
        assert array.device == self.where
        return array

    def to_numpy(self, array: Any) -> NDArray[Any]:
        assert array.device == self.where
        return np.asarray(array.to_device(CPU))

    def rows(self, X: Any, rows: Any) -> Any:
        if isinstance(rows, slice):
            return X[rows, ...]
        return xp.take(X, xp.asarray(rows, device=self.where), axis=0)

    def columns(self, row_views: list[Any]) -> NDArray[np.int64]:
        raise NotImplementedError("there are no sparse arrays in the standard")

    def dot(self, X: Any, w: Any) -> Any:
        return X @ w[:, 0] if w.shape[1] == 1 else X @ w

    def add_tdot(self, X: Any, g: Any, out: Any) -> None:
        product = X.T @ (g[:, None] if g.ndim == 1 else g)
        out += xp.astype(product, out.dtype)

    def add_gram(self, X: Any, weight: Any | None, out: Any) -> None:
        scaled = X if weight is None else X * weight[:, None]
        out += xp.astype(X.T @ scaled, out.dtype)

    def add_rows(self, X: Any, target_rows: Any, weight: Any | None, out: Any) -> None:
        scaled = X if weight is None else X * xp.astype(weight, X.dtype)[:, None]
        groups = xp.arange(out.shape[0], device=self.where)
        chosen = xp.astype(
            target_rows[None, :] == xp.astype(groups, target_rows.dtype)[:, None], X.dtype
        )
        out += xp.astype(chosen @ scaled, out.dtype)
