"""Rows of a batch on the host that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["HostRows"]


class HostRows:
    """The features of a batch, with their targets and weights, for one compiled loop alone.

    Parameters
    ----------
    shape : tuple of two int
    dtype : dtype
    add_gradient : callable
        Adds the gradient of the summed loss at parameters, both of shape (n, 1), to an array, and
        returns the loss.
    """

    __slots__ = ("add_gradient", "dtype", "shape")

    def __init__(
        self, shape: tuple[int, int], dtype: Any, add_gradient: Callable[[Any, Any], float]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.add_gradient = add_gradient
