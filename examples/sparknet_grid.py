"""SparkNet's grid: a network trained by K lanes that take tau steps alone, then average.

    python examples/sparknet_grid.py --picture grid.png

prints the test accuracy of scikit-learn's digits after equally many passes, and the bytes that
workers moved, for each K and tau; with --picture it draws them (matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from daskml_dist import Run
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD

#: Rows of a step of each lane.
BATCH = 16


def train(X: Any, y: Any, lanes: int, tau: int, passes: int) -> Any:
    """A network trained by so many lanes, which meet every `tau` steps."""
    return MLPClassifier(
        (64,),
        policy=LocalSGD(sync_every=tau),
        batch_size=BATCH * lanes,
        learning_rate_init=0.002,
        max_iter=passes,
        tol=None,
        random_state=0,
        run=Run(n_lanes=lanes),
    ).fit(X, y)


def draw(path: Path, grid: dict[tuple[int, int], tuple[float, float]]) -> None:
    """Draw accuracy against bytes, a line for each K."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    ax = figure.subplots()
    for lanes in sorted({k for k, _ in grid}):
        cells = [(mb, accuracy, tau) for (k, tau), (accuracy, mb) in grid.items() if k == lanes]
        ax.plot(
            *zip(*((mb, accuracy) for mb, accuracy, _ in cells), strict=True), "o-", label=lanes
        )
        for mb, accuracy, tau in cells:
            ax.annotate(f"{tau}", (mb, accuracy), textcoords="offset points", xytext=(3, 4))
    ax.set(xscale="log", xlabel="MB moved (numbers: tau)", ylabel="test accuracy")
    ax.legend(title="lanes", frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lanes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tau", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")

    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / 16, y, test_size=0.25, random_state=0)
    grid = {}
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        X, y = da.from_array(X, chunks=(170, -1)).persist(), da.from_array(y, chunks=170).persist()
        for lanes in arguments.lanes:
            for tau in arguments.tau:
                model = train(X, y, lanes, tau, arguments.passes)
                moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in model.history_.records)
                grid[lanes, tau] = model.score(X_test, y_test), moved / 1e6
                accuracy, mb = grid[lanes, tau]
                print(f"{lanes} lanes, tau {tau:3d}: accuracy {accuracy:.4f}, {mb:8.2f} MB moved")
    if arguments.picture:
        draw(arguments.picture, grid)


if __name__ == "__main__":
    main()
