"""L-BFGS with many parameters: whole vectors in one process, or a range of them in each process."""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as ScikitLearn

from benchmarks._common import markdown, processes
from daskml_dist.linear_model import LogisticRegression

PER_ROW, ITERATIONS, WORKERS = 20, 10, 2
#: Largest number of features for which whole vectors are tried. With more, SciPy's steps hold
#: Python's lock for so long that the worker counts as stopped.
MOST_WHOLE = 10**6


def run(tiny: bool = False) -> str:
    """Return the table."""
    sizes = [(1_000, 1_000)] if tiny else [(200_000, d) for d in (10**4, 10**5, 10**6, 10**7)]
    rows = []
    with processes(WORKERS), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for n_rows, n_features in sizes:
            X, y = _rows(n_rows, n_features)
            blocks = [da.from_delayed(dask.delayed(X[at]), (len(y[at]), n_features), meta=X[:0])
                      for at in np.array_split(np.arange(n_rows), 2 * WORKERS)]  # fmt: skip
            data = da.concatenate(blocks).persist(), da.from_array(y, n_rows // (2 * WORKERS))
            start = time.perf_counter()
            peer = ScikitLearn(max_iter=ITERATIONS, tol=0).fit(X, y)
            single = (time.perf_counter() - start) / peer.n_iter_[0]
            for name, ranges_from in (("one process", 10**12), ("ranges", 1)):
                if name == "one process" and n_features > MOST_WHOLE:
                    continue
                with dask.config.set({"daskml_dist.ranges_from": ranges_from}):
                    clf = LogisticRegression(max_iter=ITERATIONS, tol=0).fit(*data)
                records = clf.history_.records
                per_pass = statistics.median(r["seconds"] for r in records[1:])
                moved = statistics.median(r["bytes_pushed"] for r in records[1:]) / WORKERS
                pairs = 160 * n_features / (WORKERS if name == "ranges" else 1)
                rows.append(
                    [f"{n_features:,}", name, f"{per_pass * 1e3:.1f}", f"{single * 1e3:.1f}",
                     f"{moved / 1e6:.2f}", f"{pairs / 1e6:.0f}", f"{records[-1]['loss']:.6f}"]
                )  # fmt: skip
    title = (
        f"L-BFGS, {sizes[0][0]:,} rows, {PER_ROW} nonzeros per row, {WORKERS} worker processes of "
        f"one thread, {ITERATIONS} iterations"
    )
    columns = ["features", "solver's vectors", "ms per pass", "scikit-learn, ms per iteration",
               "MB sent per pass and process", "MB of L-BFGS pairs per process",
               "loss"]  # fmt: skip
    return markdown(title, columns, rows)


def _rows(n_rows: int, n_features: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, n_features, (n_rows, PER_ROW), dtype=np.int32), axis=1)
    indptr = np.arange(0, columns.size + 1, PER_ROW, dtype=np.int32)
    values = rng.normal(size=columns.size).astype("float32")
    X = sparse.csr_matrix((values, columns.ravel(), indptr), shape=(n_rows, n_features))
    raw = X @ rng.normal(size=n_features)
    return X, (raw + rng.logistic(size=n_rows) > 0).astype(np.int64)
