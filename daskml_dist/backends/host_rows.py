"""Rows of a batch on the host that stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daskml_dist.backends.draws import Draw
    from daskml_dist.backends.host_chooser import HostChooser

__all__ = ["HostRows"]


class HostRows:
    """The features of a batch, with their targets and weights, for one compiled loop alone.

    Parameters
    ----------
    chooser : HostChooser
    batch : Draw
    """

    __slots__ = ("_batch", "_chooser")

    def __init__(self, chooser: HostChooser, batch: Draw) -> None:
        self._chooser = chooser
        self._batch = batch

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        runs = ((at, counts) for _, at, counts in self._batch)
        n_rows = sum(len(at) if counts is None else int(counts.sum()) for at, counts in runs)
        return n_rows, self._chooser.n_features

    def add_gradient(self, w: Any, out: Any) -> float:
        """Add the gradient of the summed loss at `w` to `out`, both of shape (n, 1); the loss."""
        return self._chooser.add_gradient(self._batch, w, out)
