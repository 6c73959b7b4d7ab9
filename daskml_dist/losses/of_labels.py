"""Losses of regression, of two classes' targets -1 and +1, as scikit-learn's SGD has them."""

from __future__ import annotations

from dataclasses import dataclass

from daskml_dist.backends.namespace import cast
from daskml_dist.losses.base import Array, Loss

__all__ = ["OF_LABELS", "of_labels"]

#: Names of the losses that are one of labels too.
OF_LABELS = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")


@dataclass(frozen=True)
class _OfLabels(Loss):
    """A loss of the residual ``raw - y``, with y in {-1, +1}; one against the rest.

    It has its array form alone: kernels of regression read targets of one column an output.

    Parameters
    ----------
    loss : Loss
        Of regression.
    """

    kind = "classification"
    multiclass = "ovr"
    loss: Loss

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the loss of regression."""
        return self.loss.name

    def value_and_gradient(self, y: Array, raw: Array) -> tuple[Array, Array]:
        return self.loss.value_and_gradient(cast(y, raw.dtype), raw)


def of_labels(loss: Loss) -> Loss:
    """The loss of regression as one of labels."""
    return _OfLabels(loss)
