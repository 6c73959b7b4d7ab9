"""MNIST: softmax regression on the raw pixels under every policy.

    python examples/mnist_policies.py FOLDER --policy sync local

FOLDER holds the four ``*-ubyte.gz`` files; default: where ``python examples/fetch.py mnist`` puts
them.
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
from fetch import data_folder, require

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES

#: Files of MNIST.
IMAGES = [f"{part}-images-idx3-ubyte.gz" for part in ("train", "t10k")]
LABELS = [f"{part}-labels-idx1-ubyte.gz" for part in ("train", "t10k")]


def read_images(path: Path, rows: slice = slice(None)) -> Any:
    """Images of an idx file as rows of pixels between 0 and 1."""
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16)
    return pixels.reshape(-1, 784)[rows] / np.float32(255)


def read_labels(path: Path) -> Any:
    """Labels of an idx file."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("mnist"))
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--passes", type=int, default=20)
    arguments = parser.parse_args()
    folder = arguments.folder
    require(parser, "mnist", *(folder / name for name in IMAGES + LABELS))

    y, y_test = (read_labels(folder / name) for name in LABELS)
    X_test = read_images(folder / IMAGES[1])
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        # Each worker reads its own rows, so nothing large passes through this process.
        size = 10_000
        image_file = folder / IMAGES[0]
        blocks = [
            da.map_blocks(
                lambda path=image_file, at=start: read_images(path, slice(at, at + size)),
                dtype=np.float32,
                chunks=((min(size, len(y) - start),), (784,)),
                meta=np.empty((0, 0), dtype=np.float32),
            )
            for start in range(0, len(y), size)
        ]
        X, y = da.concatenate(blocks).persist(), da.from_array(y, chunks=size).persist()
        for policy in arguments.policy:
            start = time.perf_counter()
            clf = SGDClassifier(policy=policy, max_iter=arguments.passes, random_state=0).fit(X, y)
            seconds = time.perf_counter() - start
            accuracy = clf.score(X_test, y_test)
            print(f"{policy:10s} accuracy {accuracy:.4f}  passes {clf.n_iter_}  {seconds:.1f} s")


if __name__ == "__main__":
    main()
