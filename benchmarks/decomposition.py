"""Time of PCA and TruncatedSVD on two worker processes, compared with scikit-learn's in one.

For few features ours has one algorithm, the eigenvalues of the covariance matrix: only the peer's
same algorithm is comparable, the peer's randomized one is not.
"""

from __future__ import annotations

import gc
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy import sparse
from sklearn import decomposition as peers

from benchmarks._common import markdown, median_seconds, persisted, processes
from daskml_dist.decomposition import PCA, TruncatedSVD

ROWS, FEATURES, COMPONENTS = 2_000_000, 100, 10
#: Sparse rows: number of rows, columns, entries per row.
SPARSE = 100_000, 2**16, 50
BLOCKS = 8


def run(tiny: bool = False) -> str:
    """Return two tables: dense rows, and sparse rows with many features."""
    repeats = 1 if tiny else 3
    rows, features = (4_000, 20) if tiny else (ROWS, FEATURES)
    # Before the cluster: scikit-learn's solvers hold the interpreter for seconds.
    X, wide = _dense(rows, features), _wide(*((400, 2**10, 10) if tiny else SPARSE))
    theirs = _peers(X, wide, repeats)
    with processes(2):
        ours = _ours(X, wide, repeats)
    head = ["", "fit, s", "scikit-learn, s", "ratio", "difference of values"]
    tables = []
    for kind in ("dense", "sparse"):
        n, d = (X if kind == "dense" else wide).shape
        table = []
        for (of, name), (seconds, values) in theirs.items():
            if of == kind:
                mine, found = ours[kind]
                error = float(np.abs(found / values - 1).max())
                table.append(
                    [name, f"{mine:.3f}", f"{seconds:.3f}", f"{seconds / mine:.1f}", f"{error:.1e}"]
                )
        title = f"{COMPONENTS} components of {n:,} x {d:,} {kind} float32 rows, 2 worker processes"
        tables.append(markdown(title, head, table))
    return "\n\n".join(tables)


def _dense(n_rows: int, n_features: int) -> Any:
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
    turned *= np.logspace(0, -2, n_features)[:, None]
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32) @ turned.astype(np.float32)
    X += np.float32(3)
    return X


def _wide(n_rows: int, n_features: int, n_entries: int) -> Any:
    rng = np.random.default_rng(0)
    # Like words: a few columns occur in most rows, most columns in few rows.
    columns = (n_features * rng.random((n_rows, n_entries)) ** 3).astype(np.int32)
    values = rng.random(columns.size, dtype=np.float32)
    indptr = np.arange(0, columns.size + 1, n_entries)
    X = sparse.csr_matrix((values, columns.ravel(), indptr), shape=(n_rows, n_features))
    X.sum_duplicates()
    return X


def _peers(X: Any, wide: Any, repeats: int) -> dict[tuple[str, str], tuple[float, Any]]:
    models = {
        ("dense", "PCA, covariance_eigh for both"): (_pca(peers.PCA, "covariance_eigh"), X),
        ("dense", "PCA, covariance_eigh; scikit-learn randomized, a different algorithm"): (
            _pca(peers.PCA, "randomized"),
            X,
        ),
        ("sparse", "TruncatedSVD, randomized"): (_svd(peers.TruncatedSVD), wide),
    }
    found = {}
    for name, (model, rows) in models.items():
        seconds = median_seconds(lambda model=model, rows=rows: model.fit(rows), repeats)
        found[name] = seconds, model.singular_values_
    return found


def _ours(X: Any, wide: Any, repeats: int) -> dict[str, tuple[float, Any]]:
    found: dict[str, tuple[float, Any]] = {}
    cut = -(-wide.shape[0] // BLOCKS)
    pieces = [dask.delayed(wide[i : i + cut]) for i in range(0, wide.shape[0], cut)]
    sizes = [min(cut, wide.shape[0] - i) for i in range(0, wide.shape[0], cut)]
    lazy = [
        da.from_delayed(piece, (size, wide.shape[1]), wide.dtype, meta=wide[:0])
        for piece, size in zip(pieces, sizes, strict=True)
    ]
    for kind, make, rows in (
        ("dense", lambda: _pca(PCA, "auto"), lambda: persisted(X, BLOCKS)),
        ("sparse", lambda: _svd(TruncatedSVD), lambda: da.concatenate(lazy).persist()),
    ):
        model, held = make(), rows()
        seconds = median_seconds(lambda model=model, held=held: model.fit(held), repeats)
        found[kind] = seconds, model.singular_values_
        del held
        gc.collect()
    return found


def _pca(kind: Any, solver: str) -> Any:
    return kind(COMPONENTS, svd_solver=solver, random_state=0)


def _svd(kind: Any) -> Any:
    return kind(COMPONENTS, random_state=0)
