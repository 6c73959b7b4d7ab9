"""Scores on real data with default hyper-parameters, under every policy, on worker processes."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from daskml_dist.cluster import KMeans
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES
from tests.quick import quick

pytestmark = pytest.mark.data

ADULT_NUMBERS = [0, 2, 4, 10, 11, 12]


@pytest.mark.parametrize("policy", quick(POLICIES, "sync"))
def test_a9a(client: Client, data_dir: Path, policy: str) -> None:
    X, y = load_svmlight_file(str(data_dir / "a9a" / "a9a"), n_features=123)
    X_test, y_test = load_svmlight_file(str(data_dir / "a9a" / "a9a.t"), n_features=123)
    clf = SGDClassifier(policy=policy, random_state=0).fit(X, y)
    assert clf.n_iter_ <= 20
    assert clf.score(X_test, y_test) >= (0.845 if policy == "average" else 0.848)
    assert roc_auc_score(y_test, clf.predict_proba(X_test)[:, 1]) >= 0.900


def test_unscaled_features(client: Client, data_dir: Path) -> None:
    """Within half a point of the scaled rows' accuracy."""

    def read(name: str, skip: int) -> tuple[Any, Any]:
        options: dict[str, Any] = {"header": None, "skiprows": skip, "skipinitialspace": True}
        frame = pd.read_csv(data_dir / "adult" / name, **options)
        return frame[ADULT_NUMBERS].to_numpy(float), frame[14].str.startswith(">").to_numpy()

    (X, y), (X_test, y_test) = read("adult.data", 0), read("adult.test", 1)
    scaler = StandardScaler().fit(X)
    scaled = SGDClassifier(random_state=0).fit(scaler.transform(X), y)
    unscaled = SGDClassifier(optimizer="nag", random_state=0).fit(X, y)
    best = scaled.score(scaler.transform(X_test), y_test)
    assert unscaled.score(X_test, y_test) >= best - 0.005


def _idx(path: Path, offset: int) -> NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)


@pytest.fixture(scope="module")
def mnist(data_dir: Path) -> Any:
    folder = data_dir / "mnist"
    return tuple(
        _idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784) / np.float32(255)
        if what == "images"
        else _idx(folder / f"{part}-labels-idx1-ubyte.gz", 8)
        for part in ("train", "t10k")
        for what in ("images", "labels")
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_mnist(client: Client, mnist: Any, policy: str) -> None:
    X, y, X_test, y_test = mnist
    rows, labels = da.from_array(X, chunks=(10_000, -1)), da.from_array(y, chunks=10_000)
    clf = SGDClassifier(policy=policy, random_state=0).fit(rows, labels)
    assert clf.score(X_test, y_test) >= (0.905 if policy == "average" else 0.920)


@pytest.mark.slow
def test_clusters_of_mnist(mnist: Any) -> None:
    """Compared with the best of ten runs of scikit-learn 1.9, with inertia 2,352,825."""
    model = KMeans(10, random_state=0).fit(mnist[0])
    assert model.inertia_ < 1.001 * 2_352_825
    assert model.score(mnist[0]) == pytest.approx(-model.inertia_, rel=1e-6)
