"""A perceptron with one hidden layer on handwritten digits, under some policies.

    python examples/mnist_mlp.py
    python examples/mnist_mlp.py --data ~/mnist --policy allreduce local hogwild

trains on scikit-learn's small digits, or on MNIST from a folder that holds its four idx files
(``python examples/fetch.py mnist``), and prints the accuracy on rows that were not trained on.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from fetch import require
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from daskml_dist.neural_network import MLPClassifier

#: Files of MNIST.
IMAGES = [f"{part}-images-idx3-ubyte.gz" for part in ("train", "t10k")]
LABELS = [f"{part}-labels-idx1-ubyte.gz" for part in ("train", "t10k")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of MNIST's idx files")
    parser.add_argument("--policy", nargs="+", default=["allreduce", "local"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="*", default=[256])
    parser.add_argument("--passes", type=int, default=12)
    arguments = parser.parse_args()
    folder = arguments.data
    if folder:
        require(parser, "mnist", *(folder / name for name in IMAGES + LABELS))
    X, X_test, y, y_test = read(arguments.data)
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
        size = -(-len(X) // (4 * arguments.workers))
        rows = da.from_array(X, chunks=(size, -1)).persist()
        labels = da.from_array(y, chunks=size).persist()
        for policy in arguments.policy:
            start = time.perf_counter()
            model = MLPClassifier(
                arguments.hidden,
                max_iter=arguments.passes,
                tol=None,  # just so many passes
                policy=policy,
                random_state=0,
            ).fit(rows, labels)
            seconds = time.perf_counter() - start
            accuracy = model.score(X_test, y_test)
            print(f"{policy:10s} loss {model.loss_:.4f}, accuracy {accuracy:.4f}, {seconds:.1f} s")


def read(folder: Path | None) -> Any:
    """Images to train on and to test with, from 0 to 1, and their labels."""
    if folder is None:
        X, y = load_digits(return_X_y=True)
        return train_test_split((X / 16).astype(np.float32), y, test_size=0.25, random_state=0)
    images, labels = ([_idx(folder / name) for name in names] for names in (IMAGES, LABELS))
    return [*(X.reshape(len(X), -1).astype(np.float32) / 255 for X in images), *labels]


def _idx(path: Path) -> Any:
    """The array of bytes in an idx file."""
    data = gzip.decompress(path.read_bytes())
    n_dimensions = data[3]
    shape = np.frombuffer(data, ">u4", n_dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * n_dimensions).reshape(shape)


if __name__ == "__main__":
    main()
