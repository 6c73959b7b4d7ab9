"""Topics of the 20 newsgroups: raw text in a Dask Bag, counts of words, and their topics.

    python examples/topics.py FOLDER --picture topics.png

FOLDER holds ``20news-bydate.tar.gz``; default: where ``python examples/fetch.py news20`` puts it.
Prints the words of each topic; with --picture it draws them (matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import dask.bag as db
import numpy as np
from distributed import Client, LocalCluster
from fetch import data_folder, require

from daskml_dist.decomposition import LatentDirichletAllocation
from daskml_dist.feature_extraction import CountVectorizer

#: Words that are shown of a topic.
WORDS = 8


def read_text(name: str) -> str:
    """The text of one document, without its header and what it quotes."""
    text = Path(name).read_text(encoding="latin-1")
    body = re.split(r"\n\n|\t\t", text, maxsplit=1)[-1]
    return re.sub(r"^.*writes:|^[>|].*$", "", body, flags=re.MULTILINE)


def draw(topics: Any, names: Any, path: Path) -> None:
    """Draw the words of each topic, as long as they are likely."""
    from matplotlib.figure import Figure

    columns = 5
    rows = -(-len(topics) // columns)
    figure = Figure(figsize=(3 * columns, 2.2 * rows), layout="constrained")
    for number, topic in enumerate(topics, 1):
        axes = figure.add_subplot(rows, columns, number)
        best = topic.argsort()[-WORDS:]
        axes.barh(names[best], topic[best] / topic.sum(), color="tab:blue")
        axes.tick_params(labelsize=8)
        axes.set_xticks([])
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("news20"))
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    path = arguments.folder / "20news-bydate.tar.gz"
    require(parser, "news20", path)

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
        files = sorted(path for path in Path(folder).glob("**/*-train/*/*") if path.is_file())
        np.random.default_rng(0).shuffle(files)
        texts = db.from_sequence([str(file) for file in files], npartitions=8).map(read_text)
        words = CountVectorizer(
            min_df=20, max_df=0.1, stop_words="english", token_pattern=r"\b[a-zA-Z]{4,}\b"
        )
        counts = words.fit_transform(texts).persist()
        model = LatentDirichletAllocation(
            arguments.topics, max_iter=arguments.passes, random_state=0
        ).fit(counts)
    names = words.get_feature_names_out()
    print(f"{len(files)} texts, {len(names)} words, perplexity {model.bound_:.0f}")
    for topic in model.components_:
        print("  " + " ".join(names[topic.argsort()[: -WORDS - 1 : -1]]))
    if arguments.picture:
        draw(model.components_, names, arguments.picture)


if __name__ == "__main__":
    main()
