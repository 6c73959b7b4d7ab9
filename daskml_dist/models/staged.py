"""Networks whose layers form a chain, which a pipeline cuts into stages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from daskml_dist.backends import Backend
from daskml_dist.models.base import BatchRows, StepModel

__all__ = ["StagedModel"]


class StagedModel(StepModel):
    """Base class of networks whose layers form a chain, which a pipeline cuts into stages.

    Attributes
    ----------
    layers : tuple of tuple of str
        Names of the parts of each layer. The parts of a layer lie one after the other in
        `parameters`, and the layers as data goes through them.

    Examples
    --------
    >>> from daskml_dist.losses import SquaredError
    >>> from daskml_dist.models import StagedModel
    >>> from daskml_dist.models.mlp import MLP
    >>> model = MLP(SquaredError(), sizes=(3, 2, 1), activation="tanh", n_classes=0)
    >>> isinstance(model, StagedModel), model.layers[0]
    (True, ('coefs.0', 'intercepts.0'))
    >>> model.rows_of(range(1)), model.rows_of(range(1, 2))
    (slice(0, 8, None), slice(8, 11, None))
    """

    layers: tuple[tuple[str, ...], ...]

    def rows_of(self, layers: range) -> slice:
        """Rows of the parameters' matrix that some neighbouring layers take."""
        rows = self.parameters.rows
        found = [rows[name] for layer in layers for name in self.layers[layer]]
        return slice(found[0].start, found[-1].stop) if found else slice(0, 0)

    @abstractmethod
    def forward(
        self, w: Any, x: Any, layers: range, rows: BatchRows, backend: Backend
    ) -> tuple[Any, Any]:
        """Output of some neighbouring layers.

        Parameters
        ----------
        w : array
            The rows of the parameters' matrix that are these layers'.
        x : array of shape (n, ...)
            Rows as prepared, or the output of the layer before; not to be changed.
        layers : range
        rows : BatchRows
            The rows that all begins with. Only the first layer may look at their `X`.
        backend : Backend

        Returns
        -------
        array of shape (n, ...)
        object
            Memory for :meth:`backward`; good until then, though other rows come in between.
        """

    @abstractmethod
    def backward(
        self,
        w: Any,
        memory: Any,
        gradient: Any,
        out: Any,
        layers: range,
        rows: BatchRows,
        backend: Backend,
        *,
        wants_input: bool,
    ) -> Any:
        """Add the gradient of some neighbouring layers' parameters to `out`, in place.

        Parameters
        ----------
        w : array
            As in :meth:`forward`.
        memory : object
            What that left.
        gradient : array of shape (n, ...)
            Of the loss by the output; may be changed.
        out : array like `w`
        layers : range
        rows : BatchRows
        backend : Backend
        wants_input : bool

        Returns
        -------
        array of shape (n, ...) or None
            Gradient of the loss by the input, where it is wanted.
        """

    @abstractmethod
    def loss_gradient(self, output: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Sum of the rows' weighted losses, and its gradient by the last layer's output."""

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        layers = range(len(self.layers))
        output, memory = self.forward(w, rows.X, layers, rows, backend)
        loss, gradient = self.loss_gradient(output, rows, backend)
        self.backward(w, memory, gradient, out, layers, rows, backend, wants_input=False)
        return loss
