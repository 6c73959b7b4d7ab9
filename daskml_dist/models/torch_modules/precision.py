"""Products in fewer bits, where a device has them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from daskml_dist.errors import DeviceUnavailableError
from daskml_dist.models.torch_modules.library import load_torch

__all__ = ["LOSS_FACTORS", "PRECISIONS", "autocast"]

#: Names of the dtypes, and torch's.
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}
#: What a loss is multiplied by before the backward pass in float16, one after the other until
#: nothing overflows: a gradient below 6e-8 would be 0 (Micikevicius et al., "Mixed precision
#: training", ICLR 2018).
LOSS_FACTORS = tuple(2.0**power for power in (16, 12, 8, 4, 0))


def autocast(precision: str | None, device: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Maker of a context in which torch computes products in a precision.

    Parameters
    ----------
    precision : {"bf16", "fp16"} or None
    device : device of torch, or None
        None: the host.

    Raises
    ------
    DeviceUnavailableError
        The device has no such dtype.
    """
    if precision is None:
        return nullcontext
    torch = load_torch()
    kind = "cpu" if device is None else device.type
    has = (
        precision == "bf16"
        if kind == "cpu"
        else precision == "fp16" or torch.cuda.is_bf16_supported()
    )
    if not has:
        raise DeviceUnavailableError(
            f"precision={precision!r}: {'a CPU' if kind == 'cpu' else 'this GPU'} computes no "
            f"networks in {PRECISIONS[precision]}. Use precision="
            f"{'bf16' if precision == 'fp16' else 'fp16'!r}, or None."
        )
    return partial(torch.autocast, kind, getattr(torch, PRECISIONS[precision]))
