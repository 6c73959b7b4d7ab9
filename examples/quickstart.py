"""Fit one classifier under several policies and compare them.

Run ``python examples/quickstart.py`` for scikit-learn's bundled digits on two worker processes, or
name a CSV, Parquet or svmlight file:

    python examples/quickstart.py --data rows.csv --target label --policy sync async --workers 4
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MaxAbsScaler

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES


def read(path: Path | None, target: str) -> tuple[Any, Any]:
    """Features and labels of a file, or of the bundled digits."""
    if path is None:
        return load_digits(return_X_y=True)
    if path.suffix not in {".csv", ".parquet"}:
        return load_svmlight_file(str(path))
    try:
        import pandas as pd
    except ImportError as error:
        raise SystemExit('Reading tables needs: pip install "daskml-dist[dataframe]"') from error
    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    if target not in frame:
        raise SystemExit(f"{path} has no column {target!r}; choose one by --target NAME.")
    labels = frame.pop(target).to_numpy()
    return frame.select_dtypes("number").to_numpy(dtype=float), labels


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Client | None]:
    """A cluster of worker processes on this machine; none for 0 workers."""
    if workers == 0:
        yield None
        return
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as processes,
        Client(processes) as client,
    ):
        yield client


def on_workers(X: Any, y: Any, workers: int) -> tuple[Any, Any]:
    """Rows as Dask arrays in the workers' memory, two blocks a worker."""
    size = -(-len(y) // (2 * workers))
    if sparse.issparse(X):
        return X, y  # a sparse matrix is spread over the workers by the fit itself
    return da.from_array(X, chunks=(size, -1)).persist(), da.from_array(y, chunks=size).persist()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="CSV, Parquet or svmlight file")
    parser.add_argument("--target", default="target", help="column of the labels in a table")
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--workers", type=int, default=2, help="worker processes; 0: no cluster")
    parser.add_argument("--passes", type=int, default=20, help="passes over the data at most")
    arguments = parser.parse_args()
    if arguments.data and not arguments.data.is_file():
        parser.error(f"no file {arguments.data}: name a CSV, Parquet or svmlight file")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    X, y = read(arguments.data, arguments.target)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    scaler = MaxAbsScaler().fit(X_train)
    X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)

    name = arguments.data.name if arguments.data else "digits"
    table = Table(title=f"{name}: {X.shape[0]} x {X.shape[1]}, {arguments.workers} workers")
    for column in ("policy", "passes", "loss", "score", "seconds", "rows/s", "MB moved"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    with cluster(arguments.workers):
        if arguments.workers:
            X_train, y_train = on_workers(X_train, y_train, arguments.workers)
        for policy in arguments.policy:
            classifier = SGDClassifier(max_iter=arguments.passes, random_state=0)
            start = time.perf_counter()
            classifier.fit(X_train, y_train, policy=policy)
            seconds = time.perf_counter() - start
            records = classifier.history_.records
            moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records)
            table.add_row(
                policy,
                str(classifier.n_iter_),
                f"{records[-1]['loss']:.4f}",
                f"{classifier.score(X_test, y_test):.4f}",
                f"{seconds:.2f}",
                f"{sum(r['rows'] for r in records) / sum(r['seconds'] for r in records):,.0f}",
                f"{moved / 1e6:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
