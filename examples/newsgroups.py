"""20 newsgroups: raw text in a Dask Bag, hashing, tf-idf and SGD in one scikit-learn pipeline.

    python examples/newsgroups.py FOLDER --loss log_loss hinge

FOLDER holds ``20news-bydate.tar.gz``; default: the folder ``news20`` in ``DASKML_DIST_DATA``, or in
``shared/data`` beside the project.
"""

from __future__ import annotations

import argparse
import os
import tarfile
from pathlib import Path
from typing import Any

import dask.bag as db
import numpy as np
from distributed import Client, LocalCluster
from sklearn.pipeline import Pipeline, make_pipeline

from daskml_dist.feature_extraction import HashingVectorizer, TfidfTransformer
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.metrics import accuracy_score


def data_folder() -> Path:
    """Where the real data lies by default."""
    sibling = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("DASKML_DIST_DATA") or sibling) / "news20"


def read(path: Path, part: str, partitions: int) -> tuple[Any, Any]:
    """A Bag of texts, with headers, and a Dask Array of their groups."""
    texts, groups = [], []
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and f"-{part}/" in member.name:
                file = archive.extractfile(member)
                assert file is not None
                texts.append(file.read().decode("latin-1"))
                groups.append(Path(member.name).parent.name)
    order = np.random.default_rng(0).permutation(len(texts))
    size = -(-len(texts) // partitions)
    bag = db.from_sequence([texts[i] for i in order], partition_size=size)
    labels = db.from_sequence([groups[i] for i in order], partition_size=size)
    return bag, [np_array(piece) for piece in labels.to_delayed()]


def np_array(piece: Any) -> Any:
    """One delayed block of labels."""
    from dask import delayed

    return delayed(np.asarray)(piece)


def pipeline(loss: str) -> Pipeline:
    """Hashed words, weighted by their rareness, and a linear model."""
    return make_pipeline(
        HashingVectorizer(n_features=2**18, alternate_sign=False, norm=None),
        TfidfTransformer(sublinear_tf=True),
        SGDClassifier(loss=loss, alpha=1e-5, random_state=0, learning_rate=0.1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder())
    parser.add_argument("--loss", nargs="+", default=["log_loss", "hinge"])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    path = arguments.folder / "20news-bydate.tar.gz"
    if not path.is_file():
        parser.error(f"no file {path}")

    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        texts, groups = read(path, "train", partitions=8)
        texts_test, groups_test = read(path, "test", partitions=8)
        # Sent to the workers once, not with each of the passes below.
        texts, texts_test = texts.persist(), texts_test.persist()
        for loss in arguments.loss:
            model = pipeline(loss).fit(texts, groups)
            print(f"{loss:10s} accuracy {score(model, texts_test, groups_test):.4f}")


def score(model: Pipeline, texts: Any, groups: Any) -> float:
    """Accuracy of the predicted groups."""
    import dask

    truth = np.concatenate(dask.compute(*groups))
    return accuracy_score(truth, model.predict(texts).compute())


if __name__ == "__main__":
    main()
