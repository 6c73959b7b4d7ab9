"""Wide sparse rows of several classes: each worker holds some columns, and their parameters.

    python examples/columns.py --features 1048576 --workers 2

fits made-up sparse rows by lanes of rows and by lanes of columns, and says what moved: gradients of
what the batches touch, or the sums of products alone.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from scipy import sparse

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--features", type=int, default=1 << 20)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    X, y = make_rows(arguments.rows, arguments.features, arguments.classes)
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        # A chunk for each worker: of its rows, or of its columns.
        some = -(-arguments.rows // arguments.workers), -(-arguments.features // arguments.workers)
        for shard, axis in (("rows", 0), ("features", 1)):
            data = chunks(X, some[axis], axis).persist()
            start = time.perf_counter()
            model = SGDClassifier(
                optimizer="adagrad", max_iter=3, tol=None, random_state=0, run=Run(shard=shard)
            ).fit(data, y)
            seconds = time.perf_counter() - start
            record = model.history_.records[-1]
            sent = record["bytes_pushed"] / record["steps"] / arguments.workers
            print(
                f"lanes of {shard:8s} {model.coef_.size / 1e6:.1f} M parameters, accuracy "
                f"{model.score(X, y):.4f}, {sent / 1e3:.1f} kB sent a step and worker, "
                f"{seconds:.1f} s"
            )


def make_rows(n_rows: int, n_features: int, n_classes: int) -> tuple[Any, Any]:
    """Rows of 30 words each, some of which tell the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n_rows)
    words = rng.integers(0, n_features, (n_rows, 30))
    words[:, :8] = rng.integers(0, n_features // 100, (n_rows, 8)) * n_classes + y[:, None]
    words.sort(axis=1)
    indptr = np.arange(0, words.size + 1, 30)
    X = sparse.csr_matrix(
        (np.ones(words.size, np.float32), words.ravel(), indptr), (n_rows, n_features)
    )
    X.sum_duplicates()
    return X, y


def chunks(X: Any, size: int, axis: int) -> Any:
    """A dask Array of sparse chunks, cut along an axis."""
    at = [slice(start, start + size) for start in range(0, X.shape[axis], size)]
    parts = [X[part] if axis == 0 else X[:, part] for part in at]
    arrays = [da.from_array(part, chunks=part.shape, asarray=False) for part in parts]
    return da.concatenate(arrays, axis=axis)


if __name__ == "__main__":
    main()
