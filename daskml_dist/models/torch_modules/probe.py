"""Trial of a module on a few rows before a fit: whether it fits them, and the targets."""

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

__all__ = ["Trial", "try_module"]


@dataclass(frozen=True)
class Trial:
    """Findings of a trial.

    Parameters
    ----------
    target : {"labels", "binary", "numbers"}
        How the criterion takes targets.
    output_shape : tuple of int
        Of a row.
    fewest_rows : int
        Rows that a batch must have.
    chain : tuple of tuple of str, or None
        Layers, each the paths of its children, where they were asked for.
    pixelwise : bool
        Whether its kernels may lie in memory pixel after pixel.
    """

    target: str
    output_shape: tuple[int, ...]
    fewest_rows: int
    chain: tuple[tuple[str, ...], ...] | None
    pixelwise: bool


def try_module(
    source: ModuleSource,
    module: Any,
    inputs: TorchInputs,
    rows: NDArray[Any],
    dtype: str,
    n_classes: int | None,
    n_targets: int | None,
    chained: bool,
) -> Trial:
    """Call a module and its criterion on a few rows; the module is left in another state."""
    torch, kind = load_torch(), torch_dtype(dtype)
    positional, named = inputs(rows, kind)
    with seeded(0), torch.enable_grad():
        module.eval()
        what = f"{source.name}.forward, tried on rows of shape {rows.shape[1:]} and {rows.dtype},"
        with explain_errors(what):
            output = module(*positional, **named)
        first = output[0] if isinstance(output, tuple) else output
        _check_output(source.name, first, len(rows), n_classes)
        y = _targets(first, len(rows), n_classes, n_targets)
        loss = compute_row_losses(source.make_criterion(kind), output, y, source.name).sum()
        if not loss.requires_grad:
            raise InvalidParameterError(
                f"No parameter of {source.name} has a part in the loss, so that there is no "
                "gradient. Compute it from the module's outputs, without detach() or no_grad()."
            )
        target = "labels" if n_classes and not y.is_floating_point() else "binary"
        return Trial(
            target if n_classes else "numbers",
            tuple(first.shape[1:]),
            _find_fewest_rows(module, inputs, rows, kind),
            split_chain(source.name, module.eval(), positional, named) if chained else None,
            pixelwise=_accepts_channels_last(source, module, inputs, rows, kind, y),
        )


def _accepts_channels_last(
    source: ModuleSource, module: Any, inputs: TorchInputs, rows: Any, dtype: Any, y: Any
) -> bool:
    """Return True if steps with channels-last kernels work and give the same result.

    Not where a module looks at the memory of a tensor, as its ``view`` does.
    """
    torch, kernels = load_torch(), find_convolution_kernels(module)
    if dtype != torch.float32 or not kernels:
        return False
    positional, named = inputs(rows, dtype)
    with torch.no_grad():
        before = module.eval()(*positional, **named)
    for owner, key in kernels:
        kernel = getattr(owner, key)
        kernel.data = to_channels_last(kernel.data)
    try:
        with torch.no_grad():
            after = module(*positional, **named)
        output = module.train()(*positional, **named)
        compute_row_losses(source.make_criterion(dtype), output, y, source.name).sum().backward()
    except (RuntimeError, ValueError, InvalidParameterError):
        return False
    before, after = (o[0] if isinstance(o, tuple) else o for o in (before, after))
    return bool(torch.allclose(before, after, rtol=1e-3, atol=1e-4))


def _check_output(name: str, output: Any, n_rows: int, n_classes: int | None) -> None:
    """Raise an error if the output's shape does not fit the rows and classes."""
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
    width = output.shape[1] if output.ndim == 2 else 1
    if n_classes is None or (output.ndim <= 2 and width in _widths(n_classes)):
        return
    last = " (or 1)" if n_classes == 2 else ""
    raise InvalidParameterError(
        f"{name} gives outputs of shape {tuple(output.shape[1:])} for a row, and y holds "
        f"{n_classes} classes. Let its last layer have {n_classes}{last} outputs."
    )


def _widths(n_classes: int) -> tuple[int, ...]:
    return (1, 2) if n_classes == 2 else (n_classes,)


def _targets(output: Any, n_rows: int, n_classes: int | None, n_targets: int | None) -> Any:
    torch = load_torch()
    if n_classes is None:
        shape = (n_rows,) if n_targets is None else (n_rows, n_targets)
        return torch.zeros(shape, dtype=output.dtype)
    one = output.ndim == 1 or output.shape[1] == 1
    return torch.zeros(n_rows, dtype=output.dtype if one else torch.int64)


def _find_fewest_rows(module: Any, inputs: TorchInputs, rows: NDArray[Any], dtype: Any) -> int:
    """Return 2 if a batch normalisation cannot take a single row, else 1."""
    torch = load_torch()
    norms = torch.nn.modules.batchnorm._BatchNorm
    if not any(isinstance(part, norms) for part in module.modules()):
        return 1
    positional, named = inputs(np.ascontiguousarray(rows[:1]), dtype)
    module.train()
    try:
        with torch.no_grad():
            module(*positional, **named)
    except ValueError as error:
        return 2 if "more than 1 value per channel" in str(error) else 1
    return 1
