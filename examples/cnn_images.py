"""A small residual network on images, on two worker processes.

    python examples/cnn_images.py [FOLDER]

Default: scikit-learn's digits. FOLDER holds the four ``*-ubyte.gz`` files of MNIST, which
``python examples/fetch.py mnist`` fetches.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from fetch import require
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from daskml_dist.neural_network import TorchClassifier

try:
    from torch import nn
except ImportError as error:
    raise SystemExit(f'{error}. Install PyTorch: pip install "daskml-dist[torch]"') from error

#: Files of MNIST.
IMAGES = [f"{part}-images-idx3-ubyte.gz" for part in ("train", "t10k")]
LABELS = [f"{part}-labels-idx1-ubyte.gz" for part in ("train", "t10k")]


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.around(x)).relu()


class SmallResNet(nn.Module):
    """Two blocks, the mean over all pixels, and a linear layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(1, width, 1), Block(width, 2 * width, 2))
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x: Any) -> Any:
        return self.out(self.blocks(x).mean(dim=(2, 3)))


def read(folder: Path | None) -> list[Any]:
    """Images of bytes and labels, to train with and to test."""
    if folder is None:
        X, y = load_digits(return_X_y=True)
        images = (X.reshape(-1, 8, 8) * 15).astype(np.uint8)
        return train_test_split(images, y, random_state=0)

    def one(name: str, offset: int) -> Any:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, -1, offset)

    images = [one(name, 16).reshape(-1, 28, 28) for name in IMAGES]
    return [*images, *(one(name, 8) for name in LABELS)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--policy", default="allreduce")
    parser.add_argument("--passes", type=int, default=8)
    arguments = parser.parse_args()
    folder = arguments.folder
    if folder:
        require(parser, "mnist", *(folder / name for name in IMAGES + LABELS))
    X, X_test, y, y_test = read(arguments.folder)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        size = -(-len(X) // 4)
        rows = da.from_array(X, chunks=(size, *X.shape[1:])), da.from_array(y, chunks=size)
        clf = TorchClassifier(
            SmallResNet,
            images="channels_first",
            learning_rate=0.01,
            schedule="cosine",
            batch_size=64,
            max_iter=arguments.passes,
            policy=arguments.policy,
            random_state=0,
        ).fit(*rows)
    print(f"{len(X):,} images {X.shape[1:]}, policy {arguments.policy}")
    print(f"accuracy {clf.score(X_test, y_test):.4f} after {clf.n_iter_} passes")


if __name__ == "__main__":
    main()
