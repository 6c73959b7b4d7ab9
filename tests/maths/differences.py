"""Gradients of models compared with finite differences of their losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskml_dist.backends.devices import get_backend


def assert_is_gradient(model: Any, w: Any, rows: Any, n_rows: int | None = None) -> Any:
    """Compare the gradient at `w` with differences of the loss, perhaps of the first `n_rows`."""
    backend = get_backend("cpu")
    out = np.zeros_like(w)
    model.add_gradient(w, rows, out, backend)
    for at in np.ndindex(len(w) if n_rows is None else n_rows, w.shape[1]):
        ends = []
        for sign in (1, -1):
            moved = w.copy()
            moved[at] += sign * 1e-6
            ends.append(model.add_gradient(moved, rows, np.zeros_like(w), backend))
        assert out[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-7)
    return out
