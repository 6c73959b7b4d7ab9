"""Registries and served models: versions, swaps, traffic shares, and damaged files."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import daskml_dist
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import (
    InvalidParameterError,
    ModelFileError,
    UnknownModelError,
)
from daskml_dist.linear_model import Ridge
from daskml_dist.serving import Metrics, Models, publish, rollback, set_route
from daskml_dist.serving.registry import (
    find_model_file,
    list_version_names,
    prune_versions,
    read_current_version,
)
from tests.serving.tiny import until

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))


def model(number: float = 0) -> Any:
    """Return a model that predicts its own number."""
    fitted = LogisticRegression().fit(X, X[:, 0] > 0)
    fitted.intercept_ = np.array([float(number)])
    return fitted


def registry(tmp_path: Path, n: int, **options: Any) -> Path:
    for number in range(n):
        assert publish(model(number + 1), tmp_path, "m", **options) == str(number + 1)
    return tmp_path


def damage(folder: Path, version: str) -> None:
    path = find_model_file(folder, "m", version)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def numbers(models: Models) -> float:
    return float(models.get("m").predictor.model.intercept_[0])


def test_published_models_are_served(tmp_path: Path) -> None:
    """A registry serves its models' names, a file its stem, a mapping its keys."""
    fitted = Ridge().fit(X, X[:, 1])
    publish(fitted, tmp_path / "models", "ridge")
    publish(model(1), tmp_path / "models", "m")
    daskml_dist.save(fitted, tmp_path / "one.skops")
    for source, name in [
        (tmp_path / "models", "ridge"),
        (tmp_path / "one.skops", "one"),
        ({"held": fitted}, "held"),
        ({"made": lambda: fitted}, "made"),
    ]:
        served = Models(source).get(name)
        assert (served.name, served.version) == (name, "1")
        assert served.manifest["inputs"]["n_features"] == 4
        np.testing.assert_array_equal(served.predictor(X), fitted.predict(X))
    assert Models(tmp_path / "models").names() == ["m", "ridge"]


def test_trees_and_networks(tmp_path: Path) -> None:
    """Models that skops cannot store are published as tensors, with the module's constructor."""
    trees = HistGradientBoostingClassifier(max_iter=3).fit(X, (X[:, 0] > 0).astype(int))
    publish(trees, tmp_path, "trees")
    served = Models(tmp_path).get("trees")
    np.testing.assert_array_equal(served.predictor(X), trees.predict_proba(X))
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("safetensors", reason="needs the extra export")
    from daskml_dist.neural_network import TorchClassifier

    def net() -> Any:
        return torch.nn.Linear(4, 2)

    rows = X.astype(np.float32)
    fitted = TorchClassifier(net, max_iter=2, tol=None).fit(rows, (X[:, 0] > 0).astype(int))
    publish(fitted, tmp_path, "net")
    models = Models(tmp_path, given={"net": {"module": net}})
    assert models.names() == ["net", "trees"]
    np.testing.assert_array_equal(models.get("net").predictor(rows), fitted.predict_proba(rows))
    assert Models(tmp_path).names() == ["trees"]  # the module's constructor is unknown


def test_a_new_version_is_swapped_in(tmp_path: Path) -> None:
    folder, metrics = registry(tmp_path, 1), Metrics()
    models = Models(folder, metrics=metrics)
    before = models.get("m")
    assert models.refresh() == []
    publish(model(2), folder, "m")
    assert models.refresh() == ["m"]
    assert (models.get("m").version, numbers(models)) == ("2", 2.0)
    assert before.version == "1"  # requests that hold it continue with it
    assert rollback(folder, "m") == "1"
    models.refresh()
    assert numbers(models) == 1.0
    assert b'daskml_dist_swaps_total{model="m"} 3' in metrics.render()
    publish(model(3), folder, "m", current=False)
    models.refresh()
    assert numbers(models) == 1.0
    assert rollback(folder, "m", "3") == "3"
    publish(model(1), folder, "other")
    assert models.refresh() == ["m", "other"]
    shutil.rmtree(folder / "other")
    assert models.refresh() == ["other"]
    with pytest.raises(UnknownModelError, match="served: m"):
        models.get("other")


def test_loaded_models_are_served_without_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_log: pytest.LogCaptureFixture
) -> None:
    """Loaded models stay in service if the folder is gone, empty, or unreadable."""
    folder = registry(tmp_path / "models", 1)
    models = Models(folder)
    folder.rename(tmp_path / "away")
    assert models.refresh() == []
    folder.mkdir()
    assert models.refresh() == []
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    listdir = os.listdir

    def stale(path: Any) -> list[str]:
        if Path(path).name == "m":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return listdir(path)

    with monkeypatch.context() as away:
        away.setattr(os, "listdir", stale)
        assert models.refresh() == []
        assert numbers(models) == 1.0
    for number in (errno.EMFILE, errno.ESTALE):
        with monkeypatch.context() as away:
            away.setattr(Path, "iterdir", _raising(OSError(number, os.strerror(number))))
            assert models.refresh() == models.refresh() == []
    assert user_log.text.count("Cannot check") == 2  # once for each reason
    publish(model(2), folder, "m")
    assert models.refresh() == ["m"]


def _raising(error: Exception) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        raise error

    return function


def test_a_pointer_to_a_missing_version_changes_nothing(
    tmp_path: Path, user_log: pytest.LogCaptureFixture
) -> None:
    """The served version stays: a newer one may not be released."""
    folder = registry(tmp_path / "models", 1)
    models = Models(folder)
    publish(model(2), folder, "m", current=False)
    words = (
        "version current cannot be loaded (the file does not name a version: write one with "
        "rollback())"
    )
    for number, content in enumerate(("", "\0", "latest")):
        (folder / "m" / "current").write_text(content)
        for _ in range(2):
            models.refresh()
        assert user_log.text.count(f"{words}; version 1 is still served") == 1
        # A server that starts now finds no version and says so.
        metrics = Metrics()
        assert numbers(Models(folder, metrics=metrics)) == 2.0
        assert user_log.text.count(f"{words}; the newest complete version is served") == number + 1
        assert b'daskml_dist_load_failures_total{model="m"} 1' in metrics.render()
        assert numbers(models) == 1.0
    for number in (1, 2):  # a repeated problem is logged again
        rollback(folder, "m", "2")
        models.refresh()
        assert numbers(models) == 2.0
        (folder / "m" / "current").write_text("")
        models.refresh()
        assert user_log.text.count(f"{words}; version 2 is still served") == number


def test_changes_are_watched(tmp_path: Path) -> None:
    """Of a registry, and of a file that is replaced."""
    daskml_dist.save(model(1), tmp_path / "m.skops")
    folder = registry(tmp_path / "models", 1)
    watched = [Models(folder), Models(tmp_path / "m.skops")]
    for models in watched:
        models.watch(0.01)
    publish(model(2), folder, "m")
    daskml_dist.save(model(2), tmp_path / "m.skops")
    for models in watched:
        until(lambda models=models: numbers(models) == 2.0)
        assert models.get("m").version == "2"
        models.close()


def test_a_broken_version_is_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, metrics = registry(tmp_path, 2), Metrics()
    models = Models(folder, metrics=metrics)
    publish(model(3), folder, "m")
    damage(folder, "3")
    for _ in range(3):  # logged once
        models.refresh()
    assert numbers(models) == 2.0
    assert b'daskml_dist_load_failures_total{model="m"} 1' in metrics.render()
    errors = [one.getMessage() for one in caplog.records if "version 3" in one.getMessage()]
    assert len(errors) == 1
    assert "version 3 cannot be loaded (ModelFileError" in errors[0]
    assert "version 2 is still served" in errors[0]
    # A server that starts now serves the previous version.
    publish(model(4), folder, "m", current=False)
    assert numbers(Models(folder)) == 2.0
    # A repaired or replaced version is loaded.
    daskml_dist.save(model(5), find_model_file(folder, "m", "3"))
    models.refresh()
    assert numbers(models) == 5.0
    damage(folder, "2")
    assert rollback(folder, "m") == "1"
    # If no version can be loaded, the error at the start refers to the log.
    damage(folder, "1")
    for version in ("3", "4"):
        damage(folder, version)
    assert "the log has the reasons" in Models(folder).why_none()


def test_traffic_is_split_by_shares(tmp_path: Path) -> None:
    folder = registry(tmp_path, 4)
    set_route(folder, "m", {"current": 8, "2": 1, "3": 1}, shadows=["1"])
    models = Models(folder)
    routes = [models.route("m") for _ in range(1000)]
    found = Counter(one.served.version for one in routes)
    for version, share in {"4": 800, "2": 100, "3": 100}.items():
        assert abs(found[version] - share) <= 3  # round-robin, not random
    assert {one.version for route in routes for one in route.shadows} == {"1"}
    assert models.get("m").version == "4"
    # By key: always the same version, with the given shares over many keys.
    by_key = {key: models.route("m", key).served.version for key in map(str, range(2000))}
    assert all(models.route("m", key.encode()).served.version == by_key[key] for key in by_key)
    assert abs(Counter(by_key.values())["4"] - 1600) < 80
    # The share of an unreadable version goes to the others; the current one may change.
    damage(folder, "3")
    publish(model(5), folder, "m")
    models.refresh()
    assert {models.route("m").served.version for _ in range(100)} == {"5", "2"}
    set_route(folder, "m")
    models.refresh()
    assert {tuple(models.route("m")) for _ in range(9)} == {(models.get("m"), ())}


def test_a_damaged_route_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = registry(tmp_path, 1)
    models = Models(folder)
    (folder / "m" / "route.json").write_text("{")
    models.refresh()
    models.refresh()
    assert numbers(models) == 1.0
    assert sum("route" in one.getMessage() for one in caplog.records) == 1


def test_old_versions_are_served_on_request_and_deleted_beyond_keep(tmp_path: Path) -> None:
    folder = registry(tmp_path, 2)
    with pytest.raises(UnknownModelError, match="No version '1' of 'm'"):
        Models(folder).get("m", "1")
    both = Models(folder, all_versions=True)
    assert both.versions("m") == ["1", "2"]
    assert both.get("m", "1").predictor.model.intercept_[0] == 1.0
    for number in range(3, 7):
        publish(model(number), folder, "m", keep=2)
    assert list_version_names(folder, "m") == ["5", "6"]
    rollback(folder, "m", "5")
    set_route(folder, "m", {"current": 1, "6": 1})
    for number in range(7, 10):
        publish(model(number), folder, "m", keep=1, current=False)
    assert list_version_names(folder, "m") == ["5", "6", "9"]
    assert read_current_version(folder, "m") == "5"
    assert [one for one in os.listdir(folder / "m") if one.startswith(".")] == []
    assert prune_versions(folder, "m", 1) == []


def test_half_written_folders_are_ignored(tmp_path: Path) -> None:
    folder = registry(tmp_path, 1)
    for junk in ("2", ".3.new", "4x", "05"):
        (folder / "m" / junk).mkdir()
    (folder / "m" / "current").write_text("nonsense")
    assert list_version_names(folder, "m") == ["1"]
    assert numbers(Models(folder)) == 1.0
    assert publish(model(7), folder, "m") == "3"  # the name "2" is taken


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda at: publish(model(), at, "a/b"),
            InvalidParameterError,
            "is not a valid model name",
        ),
        (lambda at: publish(model(), at, "m", keep=0), InvalidParameterError, "keep=0"),
        (lambda at: publish(object(), at, "m"), InvalidParameterError, "has no method"),
        (lambda at: rollback(at, "n"), UnknownModelError, "no model 'n'"),
        (lambda at: rollback(at, "m"), UnknownModelError, "no complete version before 1"),
        (lambda at: rollback(at, "m", "9"), UnknownModelError, "no version '9'"),
        (lambda at: set_route(at, "m", {"9": 1}), UnknownModelError, "no version '9'"),
        (lambda at: set_route(at, "m", {"1": -1}), InvalidParameterError, "weights"),
        (lambda at: set_route(at, "m", {"x": 1}), InvalidParameterError, "'x' is not a version"),
        (lambda at: set_route(at, "m", {"1": "x"}), InvalidParameterError, "a mapping of versions"),
        (lambda at: set_route(at, "m", ["1"]), InvalidParameterError, "a mapping of versions"),
        (lambda at: set_route(at, "m", shadows="1"), InvalidParameterError, r"shadows=\['1'\]"),
        (lambda at: Models(at / "no"), ModelFileError, "There is no"),
        (lambda at: Models(at / "m" / "current"), ModelFileError, "ends in none of"),
        (lambda at: Models(at).get("mm"), UnknownModelError, "Did you mean 'm'|served: m"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, call: Any, error: type[Exception], words: str
) -> None:
    registry(tmp_path, 1)
    with pytest.raises(error, match=words):
        call(tmp_path)
    assert list_version_names(tmp_path, "m") == ["1"]
