"""ONNX models predict like the estimators that they are made from.

They need the extra `export`; treelite and SHAP read twins, and are tested if installed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from daskml_dist import linear_model, preprocessing
from daskml_dist.cluster import KMeans
from daskml_dist.compose import make_column_transformer
from daskml_dist.decomposition import NMF
from daskml_dist.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from daskml_dist.errors import ExportError, ModelFileError
from daskml_dist.feature_extraction import CountVectorizer
from daskml_dist.inference import to_onnx
from daskml_dist.inference.export.onnx_trees import prepare_trees
from tests.inference.test_tree_twins import BOOSTING, LABELS, TARGETS, TREES, X, Y

MODELS = {**TREES, **{f"boosting, {name}": found for name, found in BOOSTING.items()}}
#: Several outputs with different numbers of classes, or with missing values, have no ONNX.
SEVERAL = [name for name, (_, target) in MODELS.items() if target in ("labels", "several")]
PLAIN = [name for name in MODELS if name not in SEVERAL]
ROWS = np.nan_to_num(X)


def _fitted(name: str) -> Any:
    model, target = MODELS[name]
    return model.fit(X, np.exp(Y) if target == "positive" else TARGETS[target])


def _answers(model: Any, rows: Any) -> Any:
    return np.asarray((model.predict_proba if hasattr(model, "classes_") else model.predict)(rows))


def _rows_at_thresholds(model: Any) -> Any:
    """Return float32 rows at thresholds and at the adjacent numbers."""
    nodes = model._trees.nodes
    found = nodes.threshold[(nodes.feature >= 0) & np.isfinite(nodes.threshold)]
    thresholds = found.astype(np.float32)
    values = np.concatenate(
        [thresholds, np.nextafter(thresholds, -np.inf), np.nextafter(thresholds, np.inf)]
    )
    return np.resize(np.append(values, np.float32(0)), (300, 4)).astype(np.float32)


def _run(onnx: bytes, rows: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(onnx, providers=["CPUExecutionProvider"]).run(None, {"X": rows})


@pytest.mark.parametrize("name", SEVERAL)
def test_several_outputs_of_trees(name: str) -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model, target = MODELS[name]
    with pytest.raises(ExportError, match=r"to_sklearn\(\)"):
        _fitted(name).to_onnx()
    if target == "several":
        model = clone(model).fit(ROWS, TARGETS[target])
        _, shares = _run(model.to_onnx().SerializeToString(), ROWS)
        assert_allclose(shares, model.predict_proba(ROWS), atol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_onnx_trees_equal_the_estimator(name: str, tmp_path: Path) -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model = _fitted(name)
    model.to_onnx(tmp_path / "model.onnx")
    for rows in (X, _rows_at_thresholds(model)):
        found = _run((tmp_path / "model.onnx").read_bytes(), rows)
        wanted = _answers(model, rows)
        scale = max(1.0, np.abs(wanted).max())
        assert_allclose(found[-1].reshape(wanted.shape), wanted, rtol=0, atol=1e-5 * scale)


def test_onnx_labels_equal_the_estimator() -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model = RandomForestClassifier(5, random_state=0).fit(X, LABELS)
    labels, _ = _run(model.to_onnx().SerializeToString(), X)
    assert_array_equal(labels, model.predict(X))


@pytest.mark.parametrize(
    "model",
    [
        linear_model.LogisticRegression(),
        linear_model.SGDClassifier("log_loss", max_iter=2, tol=None, random_state=0),
        linear_model.SGDClassifier("hinge", max_iter=2, tol=None, random_state=0),
        linear_model.Ridge(),
        KMeans(3, random_state=0),
        preprocessing.StandardScaler(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_onnx_models_equal_the_estimator(model: Any) -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model.fit(ROWS.astype(float), Y if "Ridge" in repr(model) else LABELS)
    method = next(m for m in ("predict_proba", "predict", "transform") if hasattr(model, m))
    found = _run(model.to_onnx().SerializeToString(), ROWS)
    wanted = getattr(model, method)(ROWS.astype(float))
    found = found[1] if method == "predict_proba" else found[0]
    if wanted.dtype.kind == "f":
        assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)
    else:
        assert_array_equal(found, wanted)


def test_unsupported_models_are_refused() -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    with pytest.raises(ExportError, match=r"cannot convert this NMF.*(?s:.)*to_sklearn"):
        NMF(2, max_iter=300).fit(abs(ROWS)).to_onnx()


WORDS = np.array(["a", "b", "c"], dtype=object)[np.arange(40).reshape(20, 2) % 3]
CODES = WORDS.astype("U1").view(np.int32).astype(float)


@pytest.mark.parametrize(
    ("model", "rows", "sample"),
    [
        (preprocessing.OneHotEncoder(), WORDS, WORDS),
        (preprocessing.OrdinalEncoder(max_categories=2), WORDS, WORDS),
        (preprocessing.OneHotEncoder(), CODES, None),
        (preprocessing.OrdinalEncoder(), CODES, None),
        (CountVectorizer(), WORDS[:, 0] + " word", WORDS[:, :1] + " word"),
        (linear_model.LogisticRegression(), (CODES, WORDS[:, 0]), WORDS),
        (linear_model.LogisticRegression(), (CODES, WORDS[:, 0]), CODES[:, :1].astype("f4")),
        (KMeans(2, random_state=0), CODES.astype(np.float32), None),
    ],
    ids=str,
)
def test_models_are_exported_or_raise_an_export_error(model: Any, rows: Any, sample: Any) -> None:
    """Errors of skl2onnx, ONNX Runtime or the twin are translated."""
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model = model.fit(*rows) if isinstance(rows, tuple) else model.fit(rows)
    message = ""
    try:
        model.to_onnx(sample=sample)
    except ExportError as error:
        message = str(error)
    assert re.search(r"sample|to_sklearn\(\)", message or "sample")


@pytest.mark.parametrize("columns_kept", [["size"], ["size", "job"]])
def test_dropped_columns_are_no_inputs(columns_kept: list[str]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    frame = pd.DataFrame({"id": np.arange(40), "size": ROWS[:40, 0], "job": ["a", "b"] * 20})
    encoders = {"size": preprocessing.StandardScaler(), "job": preprocessing.OneHotEncoder()}
    columns = make_column_transformer(*((encoders[name], [name]) for name in columns_kept))
    model = make_pipeline(columns, linear_model.LogisticRegression())
    model.fit(frame, frame["size"] > 0)
    exported = to_onnx(model, sample=frame[:5]).SerializeToString()
    session = runtime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == columns_kept
    rows = {name: frame[[name]].to_numpy() for name in columns_kept}
    _, shares = session.run(None, rows)
    assert_allclose(shares, model.predict_proba(frame), atol=1e-6)


@pytest.mark.parametrize(("installed", "words"), [("7.36.2", "protobuf<7"), ("6.33.0", "sample")])
def test_a_newer_protobuf_is_named(
    installed: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skl2onnx = pytest.importorskip("skl2onnx", reason="needs the extra export")
    refuses = Mock(side_effect=RuntimeError("Unable to create node 'TreeEnsembleClassifier'"))
    monkeypatch.setattr(skl2onnx, "to_onnx", refuses)
    monkeypatch.setattr("daskml_dist.inference.export.onnx.version", lambda name: installed)
    with pytest.raises(ExportError, match=words):
        linear_model.LogisticRegression().fit(ROWS, Y > 0).to_onnx()


def test_onnx_files_are_replaced_atomically(tmp_path: Path) -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model = linear_model.Ridge().fit(ROWS, Y)
    model.to_onnx("memory://models/a.onnx")
    with pytest.raises(ModelFileError, match="Cannot write"):
        model.to_onnx(tmp_path / "no" / "a.onnx")
    (tmp_path / "a.onnx").mkdir()
    with pytest.raises(ModelFileError, match="Cannot write"):
        model.to_onnx(tmp_path / "a.onnx")
    assert [one.name for one in tmp_path.iterdir()] == ["a.onnx"]


def test_differing_predictions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates skl2onnx omitting the link function, as it does for boosting."""
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    from daskml_dist.inference.export import onnx_trees

    model = HistGradientBoostingRegressor("poisson", max_iter=3).fit(X, TARGETS["count"])
    monkeypatch.setattr(onnx_trees, "_has_log_link", lambda model: False)
    with pytest.raises(ExportError, match="predicts differently"):
        model.to_onnx()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"daskml-dist\[export\]"):
        linear_model.Ridge().fit(ROWS, Y).to_onnx()


RNG = np.random.default_rng(0)
CATEGORIES = np.array([-3.0, 0.5, 1.0, 2.0, 7.0, 1e9])
WITH_CATEGORIES = np.column_stack(
    [ROWS[:, 0], CATEGORIES[RNG.integers(0, 6, 400)], RNG.integers(0, 90, 400), X[:, 1]]
).astype(np.float32)
WITH_CATEGORIES[::17, 1] = np.nan
SIGNAL = np.isin(WITH_CATEGORIES[:, 1], CATEGORIES[::2]) + np.sin(WITH_CATEGORIES[:, 2])
OF_CATEGORIES = {"categorical_features": [1, 2], "max_iter": 8, "min_samples_leaf": 3}


@pytest.mark.parametrize("target", ["number", "counts", "2", "3"])
def test_categories_in_onnx(target: str) -> None:
    """Known, missing and unknown categories; categorical columns come after others."""
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    y = SIGNAL + np.nan_to_num(WITH_CATEGORIES[:, 3])
    if target in "23":
        model = HistGradientBoostingClassifier(**OF_CATEGORIES)
        y = np.digitize(y, [0, 1][: int(target) - 1])
    else:
        loss = "squared_error" if target == "number" else "poisson"
        model, y = HistGradientBoostingRegressor(loss, **OF_CATEGORIES), np.abs(y)
    onnx = model.fit(WITH_CATEGORIES, y).to_onnx().SerializeToString()
    rows = np.concatenate([WITH_CATEGORIES, WITH_CATEGORIES])
    rows[400:, 1:3] += 0.25
    rows[::5, 2] = np.nan
    wanted = _answers(model, rows)
    assert_allclose(_run(onnx, rows)[-1].reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-6)
    assert model._trees.nodes.category.max() > 9


def test_categories_of_frames_in_onnx() -> None:
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    frame = pd.DataFrame(WITH_CATEGORIES[:, [0, 1]], columns=["x", "k"])
    frame["k"] = frame["k"].astype("category")
    model = HistGradientBoostingRegressor(max_iter=3).fit(frame, SIGNAL)
    found = _run(model.to_onnx().SerializeToString(), WITH_CATEGORIES[:, [0, 1]])[0]
    assert_allclose(found[:, 0], model.predict(frame), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("categories", "words"),
    [(["a", "b"], "are not numbers"), ([1.0, 1 + 1e-12], "become equal in float32")],
)
def test_categories_unsupported_by_onnx_are_refused(categories: Any, words: str) -> None:
    frame = pd.DataFrame({"k": pd.Categorical(np.resize(categories, 400)), "x": ROWS[:, 0]})
    model = HistGradientBoostingRegressor(max_iter=2).fit(frame, np.resize([0.0, 1.0], 400))
    with pytest.raises(ExportError, match=words):
        prepare_trees(model.to_sklearn())


# --- others that read twins ------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PLAIN if "tree" not in name.split()])
def test_treelite_reads_twins(name: str) -> None:
    treelite = pytest.importorskip("treelite")
    model = _fitted(name)
    found = treelite.gtil.predict(treelite.sklearn.import_model(model.to_sklearn()), X)
    wanted = _answers(model, X).reshape(len(X), -1)
    found = np.asarray(found).reshape(len(X), -1)
    if found.shape != wanted.shape:  # for two classes that of the second
        wanted = wanted[:, 1:]
    assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["tree of 3", "forest", "extra trees of 3", "boosting, 3"])
def test_shap_values_sum_to_predictions(name: str) -> None:
    shap = pytest.importorskip("shap")
    model, rows = _fitted(name), X[:20].astype(float)
    explainer = shap.TreeExplainer(model.to_sklearn())
    total = explainer.shap_values(rows).sum(axis=1) + explainer.expected_value
    raw = getattr(model, "decision_function", lambda rows: _answers(model, rows))
    assert_allclose(total, raw(rows), atol=1e-6)
