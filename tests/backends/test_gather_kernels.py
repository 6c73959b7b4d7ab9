"""CUDA kernels that gather the rows of a batch, compiled by g++."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from daskml_dist.backends import kernels
from tests.backends.kernel_problems import csr_parts, needs_compiler
from tests.cuda_emulation import build, run

#: Runs of selected rows: block, first row, count.
RUNS = [(1, 0, 70), (0, 6, 1), (1, 99, 1), (0, 0, 3), (0, 2, 0), (1, 40, 33)]
#: Offset of the first row in the output, and trailing entries that must not change.
BEFORE, BEHIND = 5, 2


def _picked(arrays):
    """Return the runs' rows of arrays that exist for each block."""
    return np.concatenate([arrays[block][row : row + count] for block, row, count in RUNS])


def _gather_rows(guarded, function, dtype, where, chosen, targets, *row_bytes):
    """Run a kernel that gathers targets and weights; `targets` holds both for each block."""
    counts = np.array([count for _, _, count in RUNS])
    at = BEFORE + np.cumsum(counts) - counts
    table = np.array([(b, row, a, n) for (b, row, n), a in zip(RUNS, at, strict=True)], np.int32)
    found = [guarded(np.full(len(chosen), 1, dtype)) for _ in range(2)]
    weighted = targets[0][1] is not None
    parts = [(*w, *t) for w, t in zip(where, targets, strict=True)]
    table_of = [[0 if a is None else a.ctypes.data for a in part] for part in parts]
    launch = replace(kernels.launch(function, len(RUNS), 1, dtype, 1), grid=1)
    library = build("gather_rows", kernels.options("gather_rows", dtype))
    arrays = guarded(np.array(table_of, np.uint64)), guarded(table), chosen, found[0]
    weights = found[1] if weighted else None
    run(library, function, launch, *arrays, weights, len(RUNS), *row_bytes)
    for k in range(1 + weighted):
        expected = [1] * BEFORE + [*_picked([t[k] for t in targets])] + [1] * BEHIND
        np.testing.assert_array_equal(found[k], expected)


def _targets(guarded, sizes, dtype, weighted):
    rng = np.random.default_rng(1)
    return [
        (guarded(rng.random(n).astype(dtype)), guarded(rng.random(n).astype(dtype)))
        if weighted
        else (guarded(rng.random(n).astype(dtype)), None)
        for n in sizes
    ]


@needs_compiler
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gathered_rows(dtype, weighted, guarded):
    d, sizes = 3, (7, 100)
    blocks = [guarded(np.random.default_rng(0).normal(size=(n, d))) for n in sizes]
    chosen = guarded(np.full(BEFORE + sum(n for *_, n in RUNS) + BEHIND, 1, np.uint64))
    targets = _targets(guarded, sizes, dtype, weighted)
    _gather_rows(guarded, "gather_rows", dtype, [(X,) for X in blocks], chosen, targets, d * 8)
    rows = [(ctypes.c_double * d).from_address(int(at)) for at in chosen[BEFORE:-BEHIND]]
    np.testing.assert_array_equal(rows, _picked(blocks))


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gathered_csr_rows(dtype, guarded):
    d, sizes = 12, (7, 100)
    blocks = [sparse.random_array((n, d), density=0.3, format="csr", rng=n) for n in sizes]
    blocks = [X.astype(dtype) for X in blocks]
    where = [csr_parts(guarded, X, np.int32) for X in blocks]
    chosen = guarded(np.full((BEFORE + sum(n for *_, n in RUNS) + BEHIND, 3), 1, np.uint64))
    targets = _targets(guarded, sizes, dtype, weighted=True)
    _gather_rows(guarded, "gather_csr_rows", dtype, where, chosen, targets)
    assert (chosen[:BEFORE] == 1).all()
    assert (chosen[-BEHIND:] == 1).all()
    expected = _picked([X.toarray() for X in blocks])
    for (data, indices, count), row in zip(chosen[BEFORE:-BEHIND].tolist(), expected, strict=True):
        found, entry = np.zeros(d), ctypes.c_float if dtype == "float32" else ctypes.c_double
        columns = (ctypes.c_int * count).from_address(indices) if count else []
        found[list(columns)] = (entry * count).from_address(data) if count else []
        np.testing.assert_array_equal(found, row)
