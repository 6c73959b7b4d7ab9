"""Small problems for CUDA kernels compiled by g++, with arrays between guard bytes."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest

from daskml_dist.backends import kernels

RTOL = {"float32": 3e-6, "float64": 1e-13, "float16": 3e-6, "bfloat16": 3e-6}
DTYPES = tuple(RTOL)


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def every_version(dtype):
    """Return a number of features and an alignment for each version of the gradient kernel."""
    found = {}
    for alignment, d in itertools.product((16, 8, 4, 2), range(1, 2050)):
        teams = kernels._plan_teams(d, dtype, alignment)
        if teams is not None:
            assert teams.lanes * teams.chunks * teams.vector >= d
            assert d % teams.vector == 0
            assert 1 <= teams.rows <= teams.lanes
            found.setdefault(teams, (d, alignment))
    return list(found.values())


class Guarded:
    """Arrays between bytes of 0xff (NaN as floats, -1 as integers), which must not change."""

    def __init__(self):
        self._buffers = []

    def __call__(self, array):
        array = np.ascontiguousarray(array)
        buffer = np.full(array.nbytes + 1024, 0xFF, dtype=np.uint8)
        start = 512 - buffer.ctypes.data % 64
        inner = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        inner[...] = array
        self._buffers.append((buffer, start, start + array.nbytes))
        return inner

    def unset(self, shape, dtype=np.float64):
        """Return an array that a kernel must fill."""
        guarded = self(np.empty(shape, dtype))
        guarded.view(np.uint8)[...] = 0xFF
        return guarded

    def check(self):
        for buffer, start, stop in self._buffers:
            assert (buffer[:start] == 0xFF).all()
            assert (buffer[stop:] == 0xFF).all()


def stored_rows(X, dtype):
    """Return X in a type that NumPy may lack, and its values in float64."""
    if dtype != "bfloat16":
        X = X.astype(dtype)
        return X, X.astype(np.float64)
    bits = (X.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def make_problem(loss, n, d, dtype, seed=0):
    rng = np.random.default_rng(seed)
    X, values = stored_rows(rng.normal(size=(n, d)), dtype)
    arithmetic = "float64" if dtype == "float64" else "float32"
    if loss.kind == "classification":
        y = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    else:
        y = rng.gamma(2.0, size=n)
    w = rng.normal(size=d + 1) / np.sqrt(d)
    weight = rng.random(n)
    return X, values, *(each.astype(arithmetic) for each in (y, w, weight))


def true_sums(loss, values, y, w, weight, intercept):
    values, y, w = values.astype(float), y.astype(float), w.astype(float)
    d = values.shape[1]
    losses, g = loss.value_and_gradient(y, values @ w[:d] + (w[d] if intercept else 0))
    if weight is not None:
        losses, g = losses * weight, g * weight
    gradient = values.T @ g
    scale = np.abs(values).T @ np.abs(g)  # cancelling sums are exact relative to their terms
    if intercept:
        gradient, scale = np.append(gradient, g.sum()), np.append(scale, np.abs(g).sum())
    return losses.sum(), gradient, scale


def csr_parts(guarded, X, index):
    return guarded(X.data), guarded(X.indices.astype(index)), guarded(X.indptr.astype(index))
