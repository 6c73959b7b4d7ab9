"""Losses of a module's outputs: one for each row, whatever the criterion."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.source import telling

__all__ = ["cross_entropy", "losses_of", "squared_error"]


def cross_entropy(output: Any, y: Any) -> Any:
    """Cross-entropy of logits: one a class, or a single one for the second of two classes."""
    functional = load_torch().nn.functional
    if y.is_floating_point():
        return functional.binary_cross_entropy_with_logits(output, y, reduction="none")
    return functional.cross_entropy(output, y, reduction="none")


def squared_error(output: Any, y: Any) -> Any:
    """Squared error of each target."""
    return load_torch().nn.functional.mse_loss(output, y, reduction="none")


def losses_of(criterion: Any, output: Any, y: Any, name: str) -> Any:
    """Loss of each row, as a tensor of shape (n,).

    Parameters
    ----------
    criterion : callable
    output : tensor of shape (n, ...), or a tuple, which the criterion gets whole
    y : tensor of shape (n, ...)
    name : str
        Of the module, for errors.

    Raises
    ------
    InvalidParameterError
        Outputs do not fit the targets, or there is no loss of each row.
    """
    first = output[0] if isinstance(output, tuple) else output
    # A column beside a vector would make torch compare each output with each target.
    if y.is_floating_point() and first.shape != y.shape:
        first = _in_shape(first, y, name)
        output = (first, *output[1:]) if isinstance(output, tuple) else first
    shapes = f"outputs of shape {tuple(first.shape)} and targets of shape {tuple(y.shape)}"
    labels = "" if y.is_floating_point() else " (numbers of the classes)"
    with telling(f"The criterion, on {shapes}{labels},"):
        losses = criterion(output, y)
    if losses.ndim == 0 or losses.shape[0] != y.shape[0]:
        raise InvalidParameterError(
            f"The criterion gives a loss of shape {tuple(losses.shape)} for {y.shape[0]} rows, and "
            'each row needs its own. Return it without a mean (reduction="none").'
        )
    if not y.is_floating_point() and losses.numel() != y.numel():
        raise InvalidParameterError(
            f"The criterion compares each of the outputs of shape {tuple(first.shape)} with the "
            "number of the class. Use one that takes labels, such as torch.nn.CrossEntropyLoss."
        )
    return losses if losses.ndim == 1 else losses.flatten(1).mean(dim=1)


def _in_shape(output: Any, y: Any, name: str) -> Any:
    if output.numel() != y.numel():
        raise InvalidParameterError(
            f"{name} gives outputs of shape {tuple(output.shape)} for targets of shape "
            f"{tuple(y.shape)}. Let its last layer have an output for each target."
        )
    return output.reshape(y.shape)
