"""Centres of handwritten digits: what k-means finds in images without their labels.

    python examples/clusters.py
    python examples/clusters.py --data ~/mnist --clusters 30 --picture centres.png

finds clusters in scikit-learn's small digits, or in MNIST from a folder that holds its files
(``python examples/fetch.py mnist``), tells how many images lie in a cluster of mostly their own
digit, and with --picture draws the centres (matplotlib).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import math
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from fetch import require
from sklearn.datasets import load_digits

from daskml_dist.cluster import KMeans

FILES = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files")
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--picture", type=Path, help="file to draw the centres to")
    arguments = parser.parse_args()
    folder = arguments.data
    if folder:
        require(parser, "mnist", *(folder / name for name in FILES))
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    X, y = read(folder)
    print(f"{len(X):,} x {X.shape[1]} rows on {arguments.workers} workers")
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        rows = da.from_array(X, chunks=(-(-len(X) // (4 * arguments.workers)), -1)).persist()
        start = time.perf_counter()
        model = KMeans(arguments.clusters, random_state=0).fit(rows)
        seconds = time.perf_counter() - start
        labels = model.labels_.compute()
    counts = np.zeros((arguments.clusters, 10), dtype=int)
    np.add.at(counts, (labels, y), 1)
    own = counts.max(axis=1).sum() / len(y)
    print(f"inertia {model.inertia_:,.0f} after {model.n_iter_} steps, {seconds:.1f} s")
    print(f"{own:.1%} of the images lie in a cluster of mostly their own digit")
    if arguments.picture:
        draw(model.cluster_centers_, counts, arguments.picture)


def read(folder: Path | None) -> tuple[Any, Any]:
    """Images, from 0 to 1, and their labels."""
    if folder is None:
        X, y = load_digits(return_X_y=True)
        return (X / 16).astype(np.float32), y
    images, labels = (gzip.decompress((folder / name).read_bytes()) for name in FILES)
    X = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784) / np.float32(255)
    return X, np.frombuffer(labels, np.uint8, offset=8)


def draw(centres: Any, counts: Any, path: Path) -> None:
    """The centres as images, ordered by the digit that most of their images show."""
    from matplotlib.figure import Figure

    order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
    side, columns = math.isqrt(centres.shape[1]), min(10, len(centres))
    figure = Figure(figsize=(columns, 1.3 * -(-len(centres) // columns)))
    for place, number in enumerate(order, 1):
        axes = figure.add_subplot(-(-len(centres) // columns), columns, place)
        axes.imshow(centres[number].reshape(side, side), cmap="gray_r")
        axes.set_title(f"{counts[number].argmax()}: {counts[number].sum():,}", fontsize=7)
        axes.axis("off")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
