"""Probe of a torch module on a few rows before a fit.

`probe_module` calls the module and its criterion once. It raises if shapes or targets are
inconsistent, and reports the properties that the fit needs in a `ProbeResult`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.flat import (
    find_convolution_kernels,
    to_channels_last,
    torch_dtype,
)
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.module import TorchInputs, compute_row_losses
from daskml_dist.models.torch_modules.source import (
    ModuleSource,
    explain_errors,
    seeded,
    split_chain,
)


@dataclass(frozen=True)
class ProbeResult:
    """Properties of a module that a fit needs, found by :func:`probe_module`.

    Parameters
    ----------
    target : {"labels", "binary", "numbers"}
        Form of the targets that the criterion needs: class numbers (int64), 0 and 1 as floats, or
        regression targets.
    min_batch_rows : int
        Minimum rows of a batch that the module supports in training: 2 with some batch
        normalisations.
    chain : tuple of tuple of str, or None
        Stages of a pipeline, each the paths of its submodules; None if not requested.
    channels_last_kernels : bool
        Whether convolution kernels may be stored in channels-last order.
    output_range : tuple of (float, float)
        Smallest and largest output of the few rows.
    """

    target: str
    min_batch_rows: int
    chain: tuple[tuple[str, ...], ...] | None
    channels_last_kernels: bool
    output_range: tuple[float, float]


def probe_module(
    source: ModuleSource,
    module: Any,
    inputs: TorchInputs,
    rows: NDArray[Any],
    dtype: str,
    n_classes: int | None,
    n_targets: int | None,
    chained: bool,
) -> ProbeResult:
    """Return the properties of a module, by calling it and its criterion on a few rows.

    The module is changed: its mode, gradients, buffers and memory formats.
    """
    torch, float_dtype = load_torch(), torch_dtype(dtype)
    positional, named = inputs(rows, float_dtype)
    # Dropout may draw random numbers: torch's stream is restored afterwards.
    with seeded(0), torch.enable_grad():
        # Not in training mode: a batch normalisation might refuse so few rows.
        module.eval()
        subject = (
            f"{source.name}.forward, tried on rows of shape {rows.shape[1:]} and {rows.dtype},"
        )
        with explain_errors(subject):
            output = module(*positional, **named)
        prediction = output[0] if isinstance(output, tuple) else output
        _check_output(source.name, prediction, len(rows), n_classes)
        # The criterion on zero targets: whether shapes and dtypes fit does not depend on their
        # values.
        y = _make_zero_targets(prediction, len(rows), n_classes, n_targets)
        loss = compute_row_losses(source.make_criterion(float_dtype), output, y, source.name).sum()
        if not loss.requires_grad:
            raise InvalidParameterError(
                f"No parameter of {source.name} influences the loss, so there is no gradient. "
                "Compute the loss from the module's outputs, without detach() or no_grad()."
            )
        # `_make_zero_targets` chose the dtype by the number of outputs.
        target = "labels" if n_classes and not y.is_floating_point() else "binary"
        output_range = prediction.min().item(), prediction.max().item()
        min_batch_rows = _find_min_batch_rows(module, inputs, rows, float_dtype)
        chain = split_chain(source.name, module.eval(), positional, named) if chained else None
        return ProbeResult(
            target if n_classes else "numbers",
            min_batch_rows,
            chain,
            # Last: it leaves the module's kernels in the other memory order.
            channels_last_kernels=_accepts_channels_last(
                source, module, inputs, rows, float_dtype, y
            ),
            output_range=output_range,
        )


def _accepts_channels_last(
    source: ModuleSource, module: Any, inputs: TorchInputs, rows: Any, dtype: Any, y: Any
) -> bool:
    """Return whether a step with channels-last kernels works and gives the same outputs.

    It does not if the module depends on the memory order of a tensor, as ``Tensor.view`` does.
    """
    torch, kernels = load_torch(), find_convolution_kernels(module)
    # Only float32 convolutions profit from the format.
    if dtype != torch.float32 or not kernels:
        return False
    positional, named = inputs(rows, dtype)
    with torch.no_grad():
        plain_output = module.eval()(*positional, **named)
    for owner, key in kernels:
        kernel = getattr(owner, key)
        kernel.data = to_channels_last(kernel.data)
    try:
        with torch.no_grad():
            converted_output = module(*positional, **named)
        # A backward pass too: `Tensor.view` of a gradient may fail even if the forward pass works.
        output = module.train()(*positional, **named)
        compute_row_losses(source.make_criterion(dtype), output, y, source.name).sum().backward()
    except (RuntimeError, ValueError, InvalidParameterError):
        return False
    # Sums in another order: equal up to rounding, unless the module mixes up its dimensions.
    plain_output, converted_output = (
        o[0] if isinstance(o, tuple) else o for o in (plain_output, converted_output)
    )
    return bool(torch.allclose(plain_output, converted_output, rtol=1e-3, atol=1e-4))


def _check_output(name: str, output: Any, n_rows: int, n_classes: int | None) -> None:
    """Raise if the output is not a float tensor, or its shape does not fit the rows and classes."""
    if not isinstance(output, load_torch().Tensor) or not output.is_floating_point():
        raise InvalidParameterError(
            f"{name}.forward returns a {type(output).__name__}, where a tensor of floats (or a "
            "tuple that begins with it) is needed. Return the last layer's outputs."
        )
    if output.ndim == 0 or output.shape[0] != n_rows:
        raise InvalidParameterError(
            f"{name} gives outputs of shape {tuple(output.shape)} for {n_rows} rows. Keep the "
            "first dimension, which counts rows, as it is."
        )
    # A vector of outputs counts as one logit per row.
    width = output.shape[1] if output.ndim == 2 else 1
    # Two classes may have one output, a logit.
    valid_widths = (1, 2) if n_classes == 2 else (n_classes,)
    if n_classes is None or (output.ndim <= 2 and width in valid_widths):
        return
    or_one = " (or 1)" if n_classes == 2 else ""
    raise InvalidParameterError(
        f"{name} gives outputs of shape {tuple(output.shape[1:])} per row, but y holds "
        f"{n_classes} classes. Let its last layer have {n_classes}{or_one} outputs."
    )


def _make_zero_targets(
    output: Any, n_rows: int, n_classes: int | None, n_targets: int | None
) -> Any:
    """Return zeros with the shape and dtype of targets that the criterion needs in this fit."""
    torch = load_torch()
    if n_classes is None:
        shape = (n_rows,) if n_targets is None else (n_rows, n_targets)
        return torch.zeros(shape, dtype=output.dtype)
    # One logit per row is compared with floats, several with class numbers.
    has_one_output = output.ndim == 1 or output.shape[1] == 1
    return torch.zeros(n_rows, dtype=output.dtype if has_one_output else torch.int64)


def _find_min_batch_rows(module: Any, inputs: TorchInputs, rows: NDArray[Any], dtype: Any) -> int:
    """Return 2 if a batch normalisation does not support a single row, else 1."""
    torch = load_torch()
    batch_norm = torch.nn.modules.batchnorm._BatchNorm
    if not any(isinstance(child, batch_norm) for child in module.modules()):
        return 1
    positional, named = inputs(np.ascontiguousarray(rows[:1]), dtype)
    module.train()
    try:
        with torch.no_grad():
            module(*positional, **named)
    except ValueError as error:
        return 2 if "more than 1 value per channel" in str(error) else 1
    return 1
