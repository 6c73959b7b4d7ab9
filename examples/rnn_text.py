"""An LSTM on texts: which of two newsgroups a message belongs to, by its first words.

    python examples/rnn_text.py [FOLDER]

Default: sentences that are made here, whose order of words tells the class. FOLDER holds
one subfolder of text files a class, as 20 newsgroups come.
"""

from __future__ import annotations

import argparse
import re
import zlib
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from sklearn.model_selection import train_test_split

from daskml_dist.neural_network import TorchClassifier

try:
    from torch import nn
except ImportError as error:
    raise SystemExit(f'{error}. Install PyTorch: pip install "daskml-dist[torch]"') from error

#: Words of a text, and numbers that words are hashed to; 0 fills up.
LENGTH, WORDS = 40, 4096


class Reader(nn.Module):
    """Embedded words, an LSTM over them, and a linear layer on its last state."""

    def __init__(self, n_classes: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, n_classes)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.lstm(self.words(tokens))[1][0][-1])


def tokens_of(text: str) -> Any:
    """Numbers of a text's first words, at the end of a row."""
    words = re.findall(r"[a-z]+", text.lower())[:LENGTH]
    row = np.zeros(LENGTH, np.int32)
    if words:
        row[-len(words) :] = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words]
    return row


def made_texts(n_rows: int = 2_000) -> tuple[list[str], list[str]]:
    """Sentences in which the order of two names tells the class."""
    rng, filler = np.random.default_rng(0), ["well", "then", "so", "and", "oh"]
    texts, labels = [], []
    for _ in range(n_rows):
        words = list(rng.choice(filler, size=6))
        first, second = sorted(rng.choice(6, size=2, replace=False))
        label = rng.choice(["anna", "bert"])
        words[first], words[second] = label, "bert" if label == "anna" else "anna"
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def read(folder: Path | None) -> tuple[list[str], list[str]]:
    """Texts and their classes."""
    if folder is None:
        return made_texts()
    files = sorted(path for path in folder.glob("*/*") if path.is_file())
    return [path.read_text(errors="replace") for path in files], [p.parent.name for p in files]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--policy", default="allreduce")
    parser.add_argument("--passes", type=int, default=10)
    arguments = parser.parse_args()
    texts, labels = read(arguments.folder)
    if len(set(labels)) < 2:
        parser.error(
            f"{arguments.folder} holds texts of {len(set(labels))} classes: name a folder with two "
            "subfolders or more, one for each class, of text files"
        )
    tokens = np.stack([tokens_of(text) for text in texts])
    X, X_test, y, y_test = train_test_split(tokens, np.array(labels), random_state=0)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        size = -(-len(X) // 4)
        clf = TorchClassifier(
            Reader,
            module__n_classes=len(set(labels)),
            learning_rate=0.01,
            clip=1.0,
            batch_size=64,
            max_iter=arguments.passes,
            policy=arguments.policy,
            random_state=0,
        ).fit(da.from_array(X, chunks=(size, LENGTH)), da.from_array(y, chunks=size))
    print(f"{len(X):,} texts, policy {arguments.policy}")
    print(f"accuracy {clf.score(X_test, y_test):.4f} after {clf.n_iter_} passes")


if __name__ == "__main__":
    main()
