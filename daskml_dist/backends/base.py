"""What a backend can do: at most ten methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import DeviceUnavailableError, InvalidParameterError

__all__ = ["DEVICES", "Backend", "get_backend"]

DEVICES = ("auto", "cpu", "gpu")


class Backend(ABC):
    """Operations on blocks and batches of one array library.

    A batch's `X` is whatever :meth:`rows` returned: a dense array, or a view of chosen rows of
    a CSR block. Weights `w` are dense ``(n_features, width)`` arrays.
    """

    name: str

    @abstractmethod
    def to_device(self, array: Any) -> Any:
        """Move a block's array (dense or CSR) to the device; no copy when it is there."""

    @abstractmethod
    def to_numpy(self, array: Any) -> NDArray[Any]:
        """Return a dense device array as NumPy."""

    @abstractmethod
    def rows(self, X: Any, rows: NDArray[np.intp] | slice) -> Any:
        """The rows of a block that make up (a piece of) a batch."""

    def gather(self, array: Any, rows: NDArray[np.intp], out: Any) -> None:
        """Copy rows of a dense array to `out`."""
        out[...] = array[rows]

    @abstractmethod
    def columns(self, pieces: list[Any]) -> NDArray[np.int64]:
        """Sorted unique columns that sparse pieces touch; renumbers the pieces to them."""

    @abstractmethod
    def dot(self, X: Any, w: Any) -> Any:
        """Product ``X @ w`` of shape (rows, width), or (rows,) where width is 1."""

    @abstractmethod
    def add_rows(self, X: Any, at: Any, weight: Any | None, out: Any) -> None:
        """Add each row, times its weight, to row ``at[i]`` of `out`, in place."""

    @abstractmethod
    def add_tdot(self, X: Any, g: Any, out: Any) -> None:
        """Add ``X.T @ g`` to `out` of shape (n_features, width), in place."""

    def add_fused(
        self, kernel: str | None, w: Any, X: Any, y: Any, weight: Any | None, out: Any
    ) -> float | None:
        """Add the gradient of a linear model's summed loss to `out`, reading X once.

        Parameters
        ----------
        kernel : str or None
            What a loss calls its kernel; None: it has none.
        w, out : arrays of shape (n_features, width), or a row longer with intercepts
        X, y, weight : rows, their encoded targets and their weights (or None)

        Returns
        -------
        float or None
            The summed loss; None where no kernel fits, and nothing was done.
        """
        return None

    def row_blocks(self, X: Any) -> Iterable[slice]:
        """Slices of X's rows to be worked on one after the other, so that caches hold them."""
        return (slice(0, X.shape[0]),)

    @abstractmethod
    def add_gram(self, X: Any, weight: Any | None, out: Any) -> None:
        """Add ``X.T @ diag(weight) @ X``, weight >= 0, to `out` (n_features, n_features)."""


def get_backend(device: str) -> Backend:
    """Return the backend of a device; called on the worker, never on the client.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu"}
        ``"auto"`` takes the CPU until a block lies on a GPU.

    Raises
    ------
    InvalidParameterError
        For another name.
    DeviceUnavailableError
        For ``"gpu"``: this version has no GPU backend.
    """
    if device in {"auto", "cpu"}:
        from daskml_dist.backends.numpy_backend import NumpyBackend

        return NumpyBackend()
    if device == "gpu":
        raise DeviceUnavailableError(
            'device="gpu": this version of daskml_dist has no GPU backend. '
            'Use device="cpu" or device="auto".'
        )
    raise InvalidParameterError(f"Unknown device {device!r}. Use one of {list(DEVICES)}.")
