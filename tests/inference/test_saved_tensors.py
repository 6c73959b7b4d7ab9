"""Safetensors model files: named tensors, identical predictions, and no code execution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline

import daskml_dist
from daskml_dist.callbacks import EarlyStopping
from daskml_dist.errors import InvalidDataError, ModelFileError, NotFittedError
from daskml_dist.inference import read_manifest
from daskml_dist.linear_model import Ridge, SGDClassifier
from daskml_dist.losses import SquaredError
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.neural_network import MLPClassifier, MLPRegressor
from daskml_dist.optimizers import Adam
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.recommender import ALS, MatrixFactorization

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
RATINGS = pd.DataFrame(
    {"user": list("aabbc"), "item": ["x", "y", "x", "z", "z"], "rating": [1.0, 2, 3, 4, 5]}
)
FACTORS = [ALS(2, max_iter=2, random_state=0), MatrixFactorization(2, max_iter=2, random_state=0)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


@pytest.mark.parametrize("kind", [MLPClassifier, MLPRegressor])
def test_loaded_networks_continue_their_fit(kind: type, path: Path) -> None:
    settings = {"hidden_layer_sizes": (3, 2), "max_iter": 2, "tol": None, "random_state": 0}
    first = kind(**settings, callbacks=[EarlyStopping("loss")], optimizer=Adam()).fit(X, Y)
    first.save(path)
    second = daskml_dist.load(path)
    assert_array_equal(first.predict(X), second.predict(X))
    assert second.callbacks is None
    assert second.history_.records == first.history_.records
    tensors = safetensors.load_file(path)
    assert_array_equal(tensors["coefs_.1"], first.coefs_[1])
    assert_array_equal(tensors["intercepts_.0"], first.intercepts_[0])
    first.partial_fit(X, Y), second.partial_fit(X, Y)
    for more, less in zip(first.coefs_, second.coefs_, strict=True):
        assert_array_equal(more, less)


@pytest.mark.parametrize("suffix", [".skops", ".safetensors"])
@pytest.mark.parametrize("model", FACTORS, ids=lambda model: type(model).__name__)
def test_factor_models_store_seen_items(model: Any, suffix: str, tmp_path: Path) -> None:
    model = model.fit(RATINGS)
    daskml_dist.save(model, tmp_path / f"a{suffix}")
    found = daskml_dist.load(tmp_path / f"a{suffix}")
    assert_array_equal(found.predict(RATINGS), model.predict(RATINGS))
    for users in (None, ["b", "of nowhere"]):
        pd.testing.assert_frame_equal(found.recommend(users), model.recommend(users))
    loaded = found.save(tmp_path / f"b{suffix}") or daskml_dist.load(tmp_path / f"b{suffix}")
    pd.testing.assert_frame_equal(loaded.recommend(), model.recommend())
    assert not hasattr(found._given, "columns")  # no ratings
    if suffix == ".safetensors":
        tensors = safetensors.load_file(tmp_path / "a.safetensors")
        assert_array_equal(tensors["item_factors_"], model.item_factors_)
        assert tensors["user_ids_.utf8"].tobytes() == b"abc"


def test_recommendations_after_lazy_ratings_need_filter_seen_false(path: Path) -> None:
    lazy = dd.from_pandas(RATINGS, npartitions=2)
    model = ALS(2, max_iter=2, random_state=0).fit(lazy)
    model.save(path)
    found = daskml_dist.load(path)
    with pytest.raises(InvalidDataError, match="The items that users have seen are unknown"):
        found.recommend()
    wanted = model.recommend(filter_seen=False)
    pd.testing.assert_frame_equal(found.recommend(filter_seen=False), wanted)


@pytest.mark.parametrize("dtype", ["int32", "datetime64[s]", "str"])
def test_ids_of_any_type(dtype: str, path: Path) -> None:
    users = np.arange(5).astype("int64" if "date" in dtype else "int32").astype(dtype)
    model = ALS(2, max_iter=2, random_state=0).fit(RATINGS.assign(user=users))
    model.save(path)
    found = daskml_dist.load(path)
    assert found.user_ids_.dtype == model.user_ids_.dtype
    assert_array_equal(found.user_ids_, model.user_ids_)


def test_values_without_a_json_type_are_restored(path: Path) -> None:
    odd: dict[str, Any] = {
        "floats": [np.nan, -np.inf, np.float32(0.1), 1e-320],
        "texts": np.array([["a", "ü"], ["", "b\0c"]]),
        "mixed": np.array(["a", None, 1.5], object),
        "nothing": np.array([], object),
        "keys": {1: "a", (2, "b"): np.zeros((0, 3))},
        "dollar": {"$": "object"},
        "dtype": np.dtype("f4"),
        "type": np.float32,
        "order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "when": np.datetime64("2024-01-01"),
    }
    model = GaussianNB().fit(X, Y)
    model.odd_ = odd
    model.save(path)
    found = daskml_dist.load(path).odd_
    assert repr(found) == repr(odd)
    assert found["order"].flags.f_contiguous
    assert found["floats"][2].dtype == np.float32
    found["order"][0] = 7  # is writable


def test_the_manifest_equals_that_of_other_formats(path: Path) -> None:
    clf = SGDClassifier(max_iter=2, tol=None).fit(X, np.where(Y, "yes", "no"))
    clf.save(path)
    clf.save(path.with_suffix(".skops"))
    ours, theirs = (read_manifest(path.with_suffix(s)) for s in (".safetensors", ".skops"))
    parts = ("estimator", "inputs", "outputs", "training", "versions")
    assert [ours[part] for part in parts] == [theirs[part] for part in parts]
    assert ours["outputs"]["classes"] == ["no", "yes"]


class Doubled(SquaredError):
    """Custom loss."""


def test_custom_classes_are_read_if_trusted(path: Path) -> None:
    model = MatrixFactorization(2, loss=Doubled(), max_iter=1, random_state=0).fit(RATINGS)
    model.save(path)
    with pytest.raises(ModelFileError, match=r"trusted=\['.*Doubled'\]"):
        daskml_dist.load(path)
    found = daskml_dist.load(path, trusted=[f"{Doubled.__module__}.Doubled"])
    assert_array_equal(found.predict(RATINGS), model.predict(RATINGS))


class Own(Ridge):
    """Custom estimator."""


def test_unsupported_estimators_are_refused(path: Path) -> None:
    with pytest.raises(ModelFileError, match="Own is not a public estimator"):
        Own().fit(X, Y).save(path)
    with pytest.raises(ModelFileError, match=r"Pipeline is not a public estimator.*\.skops"):
        daskml_dist.save(make_pipeline(StandardScaler()).fit(X), path)
    with pytest.raises(NotFittedError):
        MLPClassifier().save(path)
    model = Ridge().fit(X, Y)
    model.note_ = {"a": [RATINGS]}
    with pytest.raises(ModelFileError, match=r"note_\.a\.0 is a pandas.*DataFrame"):
        model.save(path)
    assert not path.exists()


# --- files that save() did not write -----------------------------------------------------------


def _changed(path: Path, key: str, change: Any) -> None:
    """Rewrite the file with other metadata and matching checksums."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    content = json.loads(header["__metadata__"][key])
    header["__metadata__"][key] = json.dumps(change(content))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


STATE, MANIFEST = "daskml_dist.state", "daskml_dist.manifest"
ATTACKS: dict[str, tuple[Any, str]] = {
    "cut off": (lambda p: p.write_bytes(p.read_bytes()[:-3]), "is damaged, or"),
    "empty": (lambda p: p.write_bytes(b""), "is damaged, or"),
    "another byte": (
        lambda p: p.write_bytes(p.read_bytes()[:-1] + b"!"), "damaged: tensor .* a wrong checksum"
    ),
    "tensors alone": (
        lambda p: safetensors.save_file(safetensors.load_file(p), p),
        "not written by save",
    ),
    "another state": (
        lambda p: _changed(p, STATE, lambda state: {**state, "x": 1}), "state has a wrong checksum"
    ),
    "later": (lambda p: _changed(p, MANIFEST, lambda m: {**m, "format": 9}), "Install a newer"),
    "no mapping": (lambda p: _changed(p, MANIFEST, lambda m: [1]), "without checksums"),
    "a function": (
        lambda p: _changed(p, MANIFEST, lambda m: {**m, "estimator": "daskml_dist.data.is_dask"}),
        "not a public estimator",
    ),
    "elsewhere": (
        lambda p: _changed(p, MANIFEST, lambda m: {**m, "estimator": "subprocess.Popen"}),
        "not a public estimator",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_other_files_are_refused(attack: str, path: Path) -> None:
    GaussianNB().fit(X, Y).save(path)
    change, message = ATTACKS[attack]
    change(path)
    with pytest.raises(ModelFileError, match=message):
        daskml_dist.load(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os.system", "made of os.system"),
        ("subprocess.Popen", "made of subprocess.Popen"),
        ("daskml_dist.callbacks.loggers.CSVLogger", "made of daskml_dist.callbacks"),
        ("daskml_dist.losses.get_loss", "which is no class here"),
        ("daskml_dist.losses.margin.np", "which is no class here"),
    ],
)
def test_functions_and_classes_of_other_modules_are_refused(
    name: str, message: str, path: Path
) -> None:
    from daskml_dist.inference.saved.archive import compute_checksum

    GaussianNB().fit(X, Y).save(path)
    states: list[str] = []

    def change(state: dict[str, Any]) -> dict[str, Any]:
        state["state"]["x"] = {"$": "object", "class": name, "state": {}}
        states.append(json.dumps(state))
        return state

    _changed(path, STATE, change)
    right = {"state": compute_checksum(states[0].encode())}
    _changed(path, MANIFEST, lambda m: {**m, "sha256": m["sha256"] | right})
    with pytest.raises(ModelFileError, match=message):
        daskml_dist.load(path)
