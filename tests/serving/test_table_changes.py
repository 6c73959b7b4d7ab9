"""Incremental versions of an embedding table, relative to a full version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import daskml_dist
from daskml_dist.errors import InvalidParameterError, ModelFileError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.recommender import DeepFMClassifier, FactorizationMachineClassifier
from daskml_dist.serving import Models, Publisher
from daskml_dist.serving.registry import list_version_names, prune_versions

N_ROWS, N_IDS = 1_000, 500


def _rows(number: int = 0) -> tuple[Any, Any]:
    """Return rows of two ids each, from a window that moves with the number."""
    rng = np.random.default_rng(number)
    at = rng.integers(40 * number, 40 * number + 200, (N_ROWS, 2)) % N_IDS
    starts = np.arange(0, 2 * N_ROWS + 1, 2)
    X = sparse.csr_array((np.ones(2 * N_ROWS), at.ravel(), starts), (N_ROWS, N_IDS))
    return X, at.sum(axis=1) % 2


def _publish_stream(publisher: Publisher, n_calls: int = 6) -> list[Any]:
    """Return the predictions of each version for rows that contain all ids."""
    found = []

    def publish(model: Any) -> None:
        publisher(model)
        found.append(model.decision_function(_rows(3)[0]))

    clf = FactorizationMachineClassifier(random_state=0, expire_after=3)
    with clf.stream(classes=[0, 1], publish=publish, publish_every=1) as stream:
        for number in range(n_calls):
            stream.learn(*_rows(number))
    return found


def test_incremental_versions_equal_full_ones(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, "clicks", keep=None, whole_every=4)
    expected = _publish_stream(publisher)
    versions = list_version_names(tmp_path, "clicks")
    files = [next((tmp_path / "clicks" / version).iterdir()) for version in versions]
    whole = [file.suffix != ".changes" for file in files]
    assert whole == [True, False, False, False, True, False]
    assert files[1].stat().st_size < files[0].stat().st_size
    for file, wanted in zip(files, expected, strict=True):
        found = daskml_dist.load(file).decision_function(_rows(3)[0])
        np.testing.assert_array_equal(found, wanted)


def test_a_model_of_an_incremental_version_can_learn(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, "clicks", keep=None, whole_every=9)
    clf = DeepFMClassifier(n_fields=3, random_state=0, max_iter=1)
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = X[:, 0] > 0
    publisher(clf.fit(X, y))
    publisher(clf.partial_fit(X, y))
    found = daskml_dist.load(tmp_path / "clicks" / "2" / "model.changes")
    np.testing.assert_array_equal(found.predict_proba(X), clf.predict_proba(X))
    served = Models(tmp_path).get("clicks")
    assert served.version == "2"
    np.testing.assert_array_equal(served.predictor(X), clf.predict_proba(X))
    found.partial_fit(X, y)
    assert found.score(X, y) > 0.5


def test_full_versions_are_kept_while_increments_need_them(tmp_path: Path) -> None:
    _publish_stream(Publisher(tmp_path, "clicks", keep=1, whole_every=4), 3)
    assert list_version_names(tmp_path, "clicks") == ["1", "3"]
    _publish_stream(Publisher(tmp_path, "clicks", keep=1, whole_every=4), 1)
    assert list_version_names(tmp_path, "clicks") == ["4"]
    assert prune_versions(tmp_path, "clicks", 1) == []


def test_changes_of_another_version_are_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, "clicks", keep=None, whole_every=3)
    _publish_stream(publisher, 4)
    home = tmp_path / "clicks"
    whole = {version: next((home / version).iterdir()) for version in ("1", "4")}
    whole["1"].write_bytes(whole["4"].read_bytes())
    with pytest.raises(ModelFileError, match="than the one there"):
        daskml_dist.load(home / "2" / "model.changes")
    (home / "1").rename(home / "7")
    with pytest.raises(ModelFileError, match="Cannot read"):
        daskml_dist.load(home / "2" / "model.changes")


def test_models_without_a_table_are_published_in_full(tmp_path: Path) -> None:
    X = np.arange(10.0)[:, None]
    clf = SGDClassifier(random_state=0).fit(X, X[:, 0] > 5)
    with pytest.raises(InvalidParameterError, match="has no growing table of ids"):
        Publisher(tmp_path, "clicks", whole_every=2)(clf)
    with pytest.raises(InvalidParameterError, match="whole_every=0"):
        Publisher(tmp_path, "clicks", whole_every=0)
    with pytest.raises(ModelFileError, match="changes relative to another"):
        daskml_dist.save(clf, tmp_path / "it.changes")
