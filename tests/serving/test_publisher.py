"""Publishers serve what a stream has learned, despite full disks and concurrent deletions."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskml_dist.errors import InvalidParameterError, ModelFileError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.serving import Metrics, Models, Publisher, publish
from daskml_dist.serving.registry import list_version_names, prune_versions, read_current_version

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 3))
MODEL = SGDRegressor(max_iter=2, tol=None).fit(X, X[:, 0])


def test_published_versions_of_a_stream_are_served(tmp_path: Path) -> None:
    """Each version is served exactly, and few versions stay on the disk."""
    models = Models(tmp_path)  # empty, as for a server that starts first
    publisher = Publisher(tmp_path, "m", keep=2)
    predictions = []

    def hand_out(model: Any) -> None:
        version = publisher(model)
        assert models.refresh() == ["m"]
        served = models.get("m")
        assert served.version == version == publisher.version
        predictions.append(served.predictor(X))
        np.testing.assert_array_equal(predictions[-1], model.predict_proba(X))

    clf = SGDClassifier()
    with clf.stream(classes=[0, 1], publish=hand_out, publish_every=3) as stream:
        for _ in range(10):
            stream.learn(X, (X[:, 0] > 0).astype(int))
    np.testing.assert_array_equal(predictions[-1], clf.predict_proba(X))
    assert len(predictions) == 4
    assert len({one.tobytes() for one in predictions}) == 4
    assert list_version_names(tmp_path, "m") == ["3", "4"]
    assert repr(publisher) == f"Publisher({str(tmp_path)!r}, 'm', keep=2)"


def _full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_current_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The current version stays, nothing half written is left, and the stream may continue."""
    patient = Publisher(tmp_path, "m", on_error="log")
    assert patient(MODEL) == "1"
    with monkeypatch.context() as disk, caplog.at_level(logging.ERROR, "daskml_dist.serving"):
        disk.setattr(os, "fsync", _full)
        with pytest.raises(ModelFileError, match="No space left on device"):
            Publisher(tmp_path, "m")(MODEL)
        assert patient(MODEL) is None
    assert "No space left on device" in caplog.text
    assert sorted(os.listdir(tmp_path / "m")) == ["1", "current"]
    assert read_current_version(tmp_path, "m") == "1"
    assert patient(MODEL) == patient.version == read_current_version(tmp_path, "m") == "2"


def test_a_version_deleted_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a publisher is faster than a server, the server loads the next version silently."""
    publisher = Publisher(tmp_path, "m", keep=1)
    publisher(MODEL)
    read, overtaken = Models._load_file, iter([True])

    def late(self: Models, path: Path, name: str, version: str) -> Any:
        if next(overtaken, False):
            publisher(MODEL)
        return read(self, path, name, version)

    monkeypatch.setattr(Models, "_load_file", late)
    metrics = Metrics()
    assert Models(tmp_path, metrics=metrics).get("m").version == "2"
    assert b"load_failures_total{" not in metrics.render()


def test_concurrent_deletions_are_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions deleted by others are no error; remains of a killed publisher are deleted."""
    for _ in range(3):
        publish(MODEL, tmp_path, "m")
    left = tmp_path / "m" / f".{'0' * 32}.new"
    fresh = tmp_path / "m" / f".{'1' * 32}.new"
    for one in (left, fresh):
        one.mkdir()
    os.utime(left, (0, 0))
    replace = os.replace

    def late(source: Any, target: Any) -> None:
        replace(source, target)
        if Path(source).name == "1":
            raise FileNotFoundError(source)

    monkeypatch.setattr(os, "replace", late)
    assert prune_versions(tmp_path, "m", 1) == ["2"]
    assert list_version_names(tmp_path, "m") == ["3"]
    assert fresh.exists()
    assert not left.exists()


def test_ages_of_folders_use_the_file_servers_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that another host is writing must not count as old by this host's clock."""
    publish(MODEL, tmp_path, "m")
    fresh = tmp_path / "m" / f".{'1' * 32}.new"
    fresh.mkdir()
    ahead = time.time() + 2 * 86_400
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert prune_versions(tmp_path, "m", 1) == []
    assert [path.name for path in (tmp_path / "m").glob(".*")] == [fresh.name]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a/b"}, "is not a valid model name"),
        ({"keep": 0}, "keep=0"),
        ({"keep": 1.5}, "keep=1.5"),
        ({"on_error": "pass"}, "on_error='pass'"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """The error is raised before the stream starts."""
    with pytest.raises(InvalidParameterError, match=words):
        Publisher(tmp_path, **{"name": "m", **options})
