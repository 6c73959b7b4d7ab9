"""Model files: a loaded model equals the saved one bit for bit; other files are refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_array_equal
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.model_selection import GridSearchCV as TheirGridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

import daskml_dist
from daskml_dist.callbacks import EarlyStopping
from daskml_dist.ensemble import BaggingClassifier
from daskml_dist.errors import InvalidTypeError, ModelFileError, NotFittedError
from daskml_dist.impute import SimpleImputer
from daskml_dist.inference import read_manifest
from daskml_dist.inference.saved import manifest as of_manifest
from daskml_dist.inference.saved.archive import MANIFEST
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.losses import LogLoss
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import KBinsDiscretizer, StandardScaler, TargetEncoder
from tests.inference.test_to_sklearn import MODELS, OTHERS, fitted
from tests.inference.twins import assert_answers

skops_io = pytest.importorskip("skops.io", reason="skops is not installed")
X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
#: scikit-learn's classes that skops does not trust by itself.
UNKNOWN_TO_SKOPS = (
    "BisectingKMeans", "Generic", "HistGradient", "KBins", "Select", "SimpleImputer", "Tweedie",
    "Voting", "bag", "calibrated", "halving", "hyperband", "search", "stack", "vote",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:n_quantiles", "ignore:.*failed to converge")
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_loaded_models_equal_the_saved_ones(name: str, tmp_path: Path) -> None:
    model, rows = fitted(name)
    daskml_dist.save(model, tmp_path / "model.skops")
    found = daskml_dist.load(tmp_path / "model.skops")
    assert type(found) is type(model)
    aside = ("inverse_transform",) if hasattr(model, "transform") else ()
    assert_answers(model, found, rows, 0, aside)
    # All other estimators use scikit-learn's.
    unknown = skops_io.get_untrusted_types(file=tmp_path / "model.skops")
    assert not [one for one in unknown if one.startswith("daskml_dist")]
    assert not unknown or name.startswith(UNKNOWN_TO_SKOPS)


def test_a_loaded_model_continues_its_fit(tmp_path: Path) -> None:
    first = SGDClassifier(learning_rate=0.1, random_state=0).partial_fit(X, Y, classes=[0, 1])
    first.save(tmp_path / "a.skops")
    second = daskml_dist.load(tmp_path / "a.skops")
    assert_array_equal(first.partial_fit(X, Y).coef_, second.partial_fit(X, Y).coef_)


def test_callbacks_are_left_out(tmp_path: Path) -> None:
    class Shout:
        def on_pass_end(self, run: Any, record: Any) -> None:
            pass

    shout = Shout()
    clf = SGDClassifier(max_iter=2, tol=None, callbacks=[EarlyStopping("loss"), shout]).fit(X, Y)
    clf.save(tmp_path / "a.skops")
    assert daskml_dist.load(tmp_path / "a.skops").callbacks is None
    assert clf.callbacks[1] is shout


def test_the_manifest_describes_inputs_and_outputs(tmp_path: Path) -> None:
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).astype({"b": np.float32})
    clf = SGDClassifier(max_iter=2, tol=None).fit(frame, np.where(Y, "yes", "no"))
    clf.save(tmp_path / "a.skops")
    manifest = read_manifest(tmp_path / "a.skops")
    assert manifest["estimator"] == "daskml_dist.linear_model.SGDClassifier"
    names = {"n_features": 2, "names": ["a", "b"], "dtypes": ["float64", "float32"]}
    assert manifest["inputs"] == names
    assert manifest["outputs"]["classes"] == ["no", "yes"]
    assert manifest["training"]["passes"] == 2
    assert manifest["training"]["rows"] == 60
    assert manifest["versions"]["daskml-dist"] == daskml_dist.__version__


@pytest.mark.parametrize("lazy", [False, True])
def test_dtypes_of_a_pipeline_are_taken_from_its_first_step(lazy: bool, tmp_path: Path) -> None:
    rows, y = X.astype(np.float32), Y
    if lazy:
        rows, y = da.from_array(rows, chunks=(30, -1)), da.from_array(y, chunks=30)
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, y)
    daskml_dist.save(pipe, tmp_path / "a.skops")
    inputs = read_manifest(tmp_path / "a.skops")["inputs"]
    assert inputs == {"n_features": 4, "names": None, "dtypes": ["float32"]}


_C = {"C": [0.1, 1.0]}


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        (GridSearchCV(LogisticRegression(), _C, cv=2), 1),
        (make_pipeline(GridSearchCV(LogisticRegression(), _C, cv=2)), 1),
        (OneVsRestClassifier(LogisticRegression()), 1),
        (CalibratedClassifierCV(LogisticRegression(), cv=2), 2),
        (CalibratedClassifierCV(make_pipeline(StandardScaler(), LogisticRegression()), cv=2), 2),
        (BaggingClassifier(LogisticRegression(), n_estimators=2), 0),
        (StandardScaler(), 0),
        (KBinsDiscretizer(2), 0),
        (TargetEncoder(cv=2), 0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_wrappers_include_the_training_record_of_their_estimator(model: Any, fits: int) -> None:
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).astype({"b": np.float32})
    manifest = of_manifest.make_manifest(model.fit(frame, Y))
    assert manifest["inputs"]["dtypes"] == ["float64", "float32"]
    assert manifest["training"].get("rows") == ({1: 60, 2: 30}[fits] if fits else None)
    assert manifest["training"].get("fits", 1) == max(fits, 1)


def test_unfitted_estimators_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        Ridge().save(tmp_path / "a.skops")
    assert not list(tmp_path.iterdir())


def test_urls_of_other_file_systems() -> None:
    model = Ridge().fit(X, Y)
    model.save("memory://models/a.skops")
    assert_array_equal(daskml_dist.load("memory://models/a.skops").coef_, model.coef_)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a.pkl", "ends in none of .skops, .safetensors"),
        ("no/a.skops", "Cannot write .* folder that exists"),
    ],
)
def test_paths_that_cannot_be_written(path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        Ridge().fit(X, Y).save(tmp_path / path)


@pytest.mark.parametrize("path", [5, None, 1.0, io.BytesIO()])
def test_invalid_paths_are_refused(path: Any) -> None:
    for use in (Ridge().fit(X, Y).save, daskml_dist.load, read_manifest):
        with pytest.raises(InvalidTypeError, match="Pass the name of a file"):
            use(path)


def test_paths_of_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "a.skops")
    Ridge(2.0).fit(X, Y).save(path)
    assert daskml_dist.load(path).alpha == 2.0


def test_endless_files_are_refused(tmp_path: Path) -> None:
    """A pipe without a writer, and a device."""
    os.mkfifo(tmp_path / "a.skops")
    (tmp_path / "b.skops").symlink_to("/dev/zero")
    for one in ("a.skops", "b.skops"):
        with pytest.raises(ModelFileError, match="not a regular file"):
            daskml_dist.load(tmp_path / one)


def test_restricted_permissions_of_a_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    path.touch(0o600)
    Ridge().fit(X, Y).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_missing_files_raise(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"Cannot read .*FileNotFoundError"):
        daskml_dist.load(tmp_path / "a.skops")


def test_unsupported_values_are_named(tmp_path: Path) -> None:
    clf = SGDClassifier(max_iter=1, tol=None).fit(X, Y)
    clf.note_ = (one for one in "ab")
    with pytest.raises(ModelFileError, match="SGDClassifier holds objects that skops cannot store"):
        clf.save(tmp_path / "a.skops")


SEARCHED = LogisticRegression(), {"C": [0.1, 1.0]}
COLUMNS = {"dtype_include": "number"}, {"dtype_include": np.number}, {"dtype_exclude": object}


@pytest.mark.parametrize(
    "model",
    [
        *(GridSearchCV(*SEARCHED, cv=2, scoring=one) for one in ("roc_auc", "neg_log_loss", "r2")),
        GridSearchCV(*SEARCHED, cv=2, scoring=["accuracy", "f1"], refit="f1"),
        TheirGridSearchCV(*SEARCHED, cv=2, scoring="roc_auc_ovr"),
        *(
            make_column_transformer((StandardScaler(), make_column_selector(**one)))
            for one in COLUMNS
        ),
    ],
    ids=lambda model: type(model).__name__,
)
def test_scores_and_selectors_of_scikit_learn_are_trusted(model: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    daskml_dist.save(model.fit(frame, Y), tmp_path / "a.skops")
    assert_answers(model, daskml_dist.load(tmp_path / "a.skops"), frame, 0)


def test_unreadable_values_are_not_written(tmp_path: Path) -> None:
    """skops writes pandas.NA, but cannot read it."""
    model = SimpleImputer(missing_values=pd.NA, strategy="most_frequent").fit(
        pd.DataFrame({"a": [1]})
    )
    with pytest.raises(ModelFileError, match=r"NAType.*cannot read"):
        model.save(tmp_path / "a.skops")
    assert not list(tmp_path.iterdir())


class Doubled(LogLoss):
    """Custom loss."""


def test_custom_classes_are_read_if_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    clf = SGDClassifier(Doubled(), max_iter=1, tol=None).fit(X, Y)
    clf.save(path)
    with pytest.raises(ModelFileError, match=r"trusted=\['.*Doubled'\]"):
        daskml_dist.load(path)
    found = daskml_dist.load(path, trusted=[f"{Doubled.__module__}.Doubled"])
    assert_array_equal(found.predict_proba(X), clf.predict_proba(X))


# --- files that save() did not write -----------------------------------------------------------


def _members(path: Path) -> dict[str, bytes]:
    return _members_of(path.read_bytes())


def _members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _written(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _with_facts(members: dict[str, bytes], **facts: Any) -> dict[str, bytes]:
    manifest = json.loads(members[MANIFEST]) | facts
    return members | {MANIFEST: json.dumps(manifest).encode()}


def _attacks() -> dict[str, Any]:
    changed = "daskml_dist/estimator.skops"
    return {
        "cut off": (lambda m: _written(m)[:-40], "is damaged, or"),
        "no zip": (lambda m: b"coef: 1", "damaged, or not a model file"),
        "empty": (lambda m: b"", "damaged, or not a model file"),
        "no manifest": (
            lambda m: _written({n: d for n, d in m.items() if n != MANIFEST}), "not written by save"
        ),
        "another byte": (
            lambda m: _written(m | {"schema.json": m["schema.json"] + b" "}), "a wrong checksum"
        ),
        "a member gone": (
            lambda m: _written({n: d for n, d in m.items() if n != changed}), "is missing"
        ),
        "a member more": (lambda m: _written(m | {"x": b"1"}), "a wrong checksum"),
        "of a later version": (lambda m: _written(_with_facts(m, format=99)), "Install a newer"),
        "a manifest of another kind": (
            lambda m: _written(m | {MANIFEST: b"[1]"}), "without checksums"
        ),
        "manifest without end": (lambda m: _written(m | {MANIFEST: b"[" * 10**5}), "not JSON"),
        "compressed": (lambda m: _written(m, zipfile.ZIP_DEFLATED), "compressed members"),
    }  # fmt: skip


@pytest.mark.parametrize("attack", _attacks())
def test_other_files_are_refused(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    GaussianNB().fit(X, Y).save(path)
    change, message = _attacks()[attack]
    path.write_bytes(change(_members(path)))
    with pytest.raises(ModelFileError, match=message):
        daskml_dist.load(path)


@pytest.mark.parametrize(
    "name", ["os.system", "daskml_dist.callbacks.CSVLogger", "builtins.eval", "subprocess.Popen"]
)
def test_functions_and_classes_of_other_modules_are_refused(name: str, tmp_path: Path) -> None:
    module, _, kind = name.rpartition(".")
    inner = {
        "__class__": kind, "__module__": module, "__loader__": "TypeNode", "__id__": 7,
        "protocol": 2, "_skops_version": "0.16",
    }  # fmt: skip
    path = tmp_path / "a.skops"
    GaussianNB().fit(X, Y).save(path)
    members = _members(path)
    bad = _written({"schema.json": json.dumps(inner).encode()})

    sums = json.loads(members[MANIFEST])["sha256"]
    sums["daskml_dist/estimator.skops"] = hashlib.sha256(bad).hexdigest()
    members = _with_facts(members | {"daskml_dist/estimator.skops": bad}, sha256=sums)
    path.write_bytes(_written(members))
    with pytest.raises(ModelFileError, match=f"made of {name}"):
        daskml_dist.load(path)


# --- files of other versions -------------------------------------------------------------------


def _of_versions(path: Path, **versions: str) -> None:
    """Rewrite a file as if made by other versions, including scikit-learn's version marks."""
    members = _members(path)
    manifest = json.loads(members[MANIFEST])
    manifest["versions"] |= versions
    for name in [n for n in members if n.endswith(".skops")]:
        inner = _members_of(members[name])
        text = inner["schema.json"].decode()
        assert "_sklearn_version" in text
        assert sklearn.__version__ in text
        inner["schema.json"] = text.replace(sklearn.__version__, "1.5.2").encode()
        members[name] = _written(inner)
        manifest["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
    path.write_bytes(_written(members | {MANIFEST: json.dumps(manifest).encode()}))


def test_files_of_another_scikit_learn_warn_once_and_work(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    daskml_dist.save(pipe, path)
    _of_versions(path, **{"scikit-learn": "1.5.2"})
    with pytest.warns(UserWarning, match="written with") as caught:
        found = daskml_dist.load(path)
    (only,) = caught
    words = f"{path} was written with scikit-learn 1.5.2 .here {sklearn.__version__}.*save"
    assert re.search(words, str(only.message))
    assert only.filename == __file__
    assert_array_equal(found.predict_proba(X), pipe.predict_proba(X))


@pytest.mark.parametrize("suffix", [".skops", ".safetensors"])
def test_files_of_an_older_daskml_dist_warn(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{suffix}"
    monkeypatch.setattr(of_manifest, "__version__", "0.0.9")
    GaussianNB().fit(X, Y).save(path)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=rf"daskml-dist 0\.0\.9 \(here {daskml_dist.__version__}"):
        daskml_dist.load(path)


@pytest.mark.parametrize("suffix", [".skops", ".safetensors"])
def test_a_renamed_class_error_names_the_versions(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file refers to a class that has moved since."""
    path = tmp_path / f"a{suffix}"
    moved = type("Moved", (LogLoss,), {"__module__": "daskml_dist.losses.margin"})
    monkeypatch.setattr("daskml_dist.losses.margin.Moved", moved, raising=False)
    SGDClassifier(moved(), max_iter=1, tol=None).fit(X, Y).save(path)
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match=r"Moved(?s:.)*scikit-learn \d.*install these"):
        daskml_dist.load(path)
