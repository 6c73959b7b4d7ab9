"""What the engine asks of every model."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

__all__ = ["Model"]


class Model(Protocol):
    """Pure functions of arrays, and the shape of the parameters that they read.

    Attributes
    ----------
    n_features : int
    shape : tuple of two int
        Of the parameters.
    width : int
        Second part of `shape`.
    n_penalised : int
        Leading rows of the parameters that a penalty applies to.
    """

    @property
    def n_features(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def width(self) -> int: ...

    @property
    def n_penalised(self) -> int: ...

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Turn targets into what the maths reads; `classes` are sorted, None for regression."""
