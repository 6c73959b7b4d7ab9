"""Fit one classifier under several policies and compare how fast each gets there, and at what cost.

Run ``python examples/quickstart.py`` for scikit-learn's bundled digits on two worker processes, or
name a CSV, Parquet or svmlight file:

    python examples/quickstart.py --data rows.csv --target label --policy sync async --workers 4

All fits make the same number of passes at the same fixed rate from the same start, so what differs
is the policy alone. ``--rate auto`` is what fits do by default: they begin so near their end that
all policies come to the same loss. ``--picture policies.png`` draws the loss over the passes and
over what was sent.
"""

from __future__ import annotations

import argparse
import contextlib
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

#: Bars of a curve in a line of text, from low to high.
BARS = "▁▂▃▄▅▆▇█"


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
    parser.add_argument("--passes", type=int, default=10, help="passes over the data")
    parser.add_argument("--rate", default="0.5", help="learning rate of all fits, or auto")
    parser.add_argument(
        "--picture", type=Path, help="file for a picture of the fits, such as a PNG"
    )
    arguments = parser.parse_args()
    if arguments.rate != "auto":
        try:
            arguments.rate = float(arguments.rate)
        except ValueError:
            parser.error(f"--rate {arguments.rate}: give a number, or auto")
    if arguments.data and not arguments.data.is_file():
        parser.error(f"no file {arguments.data}: name a CSV, Parquet or svmlight file")
    return arguments


def text_curve(values: list[float], low: float, high: float) -> str:
    """A curve as a line of bars, on an axis from `low` to `high`."""
    span = max(high - low, 1e-12)
    return "".join(BARS[round((len(BARS) - 1) * (v - low) / span)] for v in values)


def draw(fits: dict[str, SGDClassifier], path: Path) -> None:
    """Write a picture of the fits' losses, over the passes and over what was sent."""
    try:
        import matplotlib.pyplot as plt

        from daskml_dist.diagnostics import plots
    except ImportError as error:
        raise SystemExit('The picture needs: pip install "daskml-dist[viz]"') from error
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    plots.learning_curves(fits, ax=left)
    plots.learning_curves(fits, over="bytes", ax=right)
    right.set_xscale("log")
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = parse_arguments()
    X, y = read(arguments.data, arguments.target)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    scaler = MaxAbsScaler().fit(X_train)
    X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)

    settings: dict[str, Any] = {"max_iter": arguments.passes, "tol": None, "random_state": 0}
    if arguments.rate != "auto":
        settings |= {"learning_rate": "constant", "eta0": arguments.rate, "optimizer": "sgd"}
    fits: dict[str, SGDClassifier] = {}
    with cluster(arguments.workers):
        if arguments.workers:
            X_train, y_train = on_workers(X_train, y_train, arguments.workers)
        for policy in arguments.policy:
            fits[policy] = SGDClassifier(policy=policy, **settings).fit(X_train, y_train)

        name = arguments.data.name if arguments.data else "digits"
        table = Table(title=f"{name}: {X.shape[0]} x {X.shape[1]}, {arguments.workers} workers")
        columns = ("loss by pass", "first", "last", "score", "rows/s", "MB moved")
        table.add_column("policy")
        for column in columns:
            table.add_column(column, justify="right")
        every = [r["loss"] for fit in fits.values() for r in fit.history_.records]
        for policy, classifier in fits.items():
            records = classifier.history_.records
            losses = [record["loss"] for record in records]
            moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records)
            table.add_row(
                policy,
                text_curve(losses, min(every), max(every)),
                f"{losses[0]:.4f}",
                f"{losses[-1]:.4f}",
                f"{classifier.score(X_test, y_test):.4f}",
                f"{sum(r['rows'] for r in records) / sum(r['seconds'] for r in records):,.0f}",
                f"{moved / 1e6:.4g}",
            )
    Console().print(table)
    if arguments.picture is not None:
        draw(fits, arguments.picture)


if __name__ == "__main__":
    main()
