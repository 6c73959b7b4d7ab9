"""20 newsgroups: raw text in a Dask Bag, hashing, tf-idf and SGD in one scikit-learn pipeline.

    python examples/newsgroups.py FOLDER --loss log_loss hinge

FOLDER holds ``20news-bydate.tar.gz``; default: where ``python examples/fetch.py news20`` puts it.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import dask
import dask.bag as db
import numpy as np
from dask.delayed import delayed
from distributed import Client, LocalCluster
from fetch import data_folder, require
from sklearn.pipeline import Pipeline, make_pipeline

from daskml_dist.feature_extraction import HashingVectorizer, TfidfTransformer
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.metrics import accuracy_score


def read(folder: Path, part: str, partitions: int) -> tuple[Any, Any]:
    """A Bag of texts, with headers, and delayed blocks of their groups; workers read the files."""
    paths = sorted(path for path in folder.glob(f"*-{part}/*/*") if path.is_file())
    np.random.default_rng(0).shuffle(paths)
    names = db.from_sequence([str(path) for path in paths], npartitions=partitions)
    return names.map(read_text), [delayed(group_names)(piece) for piece in names.to_delayed()]


def read_text(name: str) -> str:
    """The text of one document."""
    return Path(name).read_text(encoding="latin-1")


def group_names(names: list[str]) -> Any:
    """Groups of some documents: the names of their folders."""
    return np.array([Path(name).parent.name for name in names])


def pipeline(loss: str) -> Pipeline:
    """Hashed words, weighted by their rareness, and a linear model."""
    return make_pipeline(
        HashingVectorizer(n_features=2**18, alternate_sign=False, norm=None),
        TfidfTransformer(sublinear_tf=True),
        SGDClassifier(loss=loss, alpha=1e-5, random_state=0, learning_rate=0.2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("news20"))
    parser.add_argument("--loss", nargs="+", default=["log_loss", "hinge"])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
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
        root = next(Path(folder).glob("**/*-train")).parent
        texts, groups = read(root, "train", partitions=8)
        texts_test, groups_test = read(root, "test", partitions=8)
        truth = np.concatenate(dask.compute(*groups_test))
        for loss in arguments.loss:
            model = pipeline(loss).fit(texts, groups)
            accuracy = accuracy_score(truth, model.predict(texts_test).compute())
            print(f"{loss:10s} accuracy {accuracy:.4f}  passes {model[-1].n_iter_}")


if __name__ == "__main__":
    main()
