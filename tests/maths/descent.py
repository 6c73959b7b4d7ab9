"""Steps of an optimizer along given gradients."""

from __future__ import annotations

from typing import Any

from daskml_dist.optimizers import (
    Optimizer,
)


def descend(optimizer: Optimizer, w: Any, gradients: Any, lr: float, l1: Any = 0.0) -> Any:
    w = w.copy()
    opt_state = optimizer.init(w)
    for step, gradient in enumerate(gradients, start=1):
        optimizer.update(w, gradient.copy(), opt_state, lr, step, l1)
    return w
