"""Displays of Dask collections against scikit-learn's of the same rows in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.calibration
import sklearn.metrics
from sklearn.linear_model import LogisticRegression

from daskml_dist import calibration, metrics
from daskml_dist.errors import DaskMLDistError, InvalidParameterError, NotFittedError
from tests.metrics.rows import BINARY, CLASSES, GUESSES, RNG, SCORES, WEIGHTS, lazy

CURVES = ["RocCurveDisplay", "PrecisionRecallDisplay", "DetCurveDisplay", "CalibrationDisplay"]
ALL = [*CURVES, "ConfusionMatrixDisplay"]
X = RNG.normal(size=(len(BINARY), 2)) + BINARY[:, None]
WORDS = np.array(["no", "yes"])[BINARY]


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    found = pytest.importorskip("matplotlib.pyplot")
    found.switch_backend("Agg")
    yield found
    found.close("all")


def _pair(name: str) -> tuple[Any, Any]:
    of_calibration = name == "CalibrationDisplay"
    ours, theirs = (
        (calibration, sklearn.calibration) if of_calibration else (metrics, sklearn.metrics)
    )
    return getattr(ours, name), getattr(theirs, name)


def _assert_same(shown: Any, expected: Any) -> None:
    if hasattr(expected, "im_"):
        np.testing.assert_array_equal(shown.im_.get_array(), expected.im_.get_array())
        texts = [[t.get_text() for t in d.ax_.get_xticklabels()] for d in (shown, expected)]
        assert texts[0] == texts[1]
        return
    assert len(shown.ax_.lines) == len(expected.ax_.lines)
    for one, other in zip(shown.ax_.lines, expected.ax_.lines, strict=True):
        # Points in line between two others depend on which scores there are.
        np.testing.assert_allclose(one.get_xydata(), other.get_xydata(), rtol=1e-12, atol=1e-15)
        if not one.get_label().startswith("_"):
            assert one.get_label() == other.get_label()


@pytest.mark.parametrize(
    ("name", "weights"),  # scikit-learn's CalibrationDisplay takes none
    [*((name, "none") for name in ALL), *((n, "whole") for n in ALL if n != "CalibrationDisplay")],
)
def test_displays_of_predictions(name: str, weights: str) -> None:
    ours, theirs = _pair(name)
    labels, scores = (CLASSES, GUESSES) if name == "ConfusionMatrixDisplay" else (BINARY, SCORES)
    options: Any = {} if WEIGHTS[weights] is None else {"sample_weight": WEIGHTS[weights]}
    lazily = {key: lazy(value) for key, value in options.items()}
    expected = theirs.from_predictions(labels, scores, **options)
    _assert_same(ours.from_predictions(lazy(labels), lazy(scores), **lazily), expected)
    _assert_same(ours.from_predictions(labels, scores, **options), expected)


@pytest.mark.parametrize("first", [False, True], ids=["second label", "first label"])
@pytest.mark.parametrize("name", CURVES)
def test_displays_of_an_estimator(name: str, first: bool) -> None:
    ours, theirs = _pair(name)
    model = LogisticRegression().fit(X, WORDS)
    options = {"pos_label": "no"} if first else {}
    shown = ours.from_estimator(model, lazy(X), lazy(WORDS), **options)
    expected = theirs.from_estimator(model, X, WORDS, **options)
    _assert_same(shown, expected)
    for attribute in ("name", "estimator_name"):  # older versions have the second
        assert getattr(shown, attribute, "") == getattr(expected, attribute, "")


@pytest.mark.parametrize("lazily", [False, True], ids=["in memory", "Dask"])
@pytest.mark.parametrize("name", ALL)
def test_a_display_is_of_a_fitted_classifier(name: str, lazily: bool) -> None:
    rows = (lazy(X), lazy(BINARY)) if lazily else (X, BINARY)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        _pair(name)[0].from_estimator(LogisticRegression(), *rows)


def test_a_target_may_be_a_column() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": WORDS})
    model = LogisticRegression().fit(frame[["a", "b"]], WORDS)
    rows = dd.from_pandas(frame, npartitions=3)
    for name in ALL:
        ours, theirs = _pair(name)
        expected = theirs.from_estimator(model, frame[["a", "b"]], WORDS)
        _assert_same(ours.from_estimator(model, rows, "y"), expected)


def test_the_level_of_chance() -> None:
    ours, theirs = _pair("PrecisionRecallDisplay")
    shown = ours.from_predictions(lazy(BINARY), lazy(SCORES), plot_chance_level=True)
    _assert_same(shown, theirs.from_predictions(BINARY, SCORES, plot_chance_level=True))


def test_invalid_plots_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LogisticRegression().fit(X, CLASSES)
    with pytest.raises(InvalidParameterError, match="not have two labels"):
        metrics.RocCurveDisplay.from_estimator(model, lazy(X), lazy(CLASSES))
    model = LogisticRegression().fit(X, WORDS)
    with pytest.raises(InvalidParameterError, match="choose one of"):
        metrics.DetCurveDisplay.from_estimator(model, lazy(X), lazy(WORDS), pos_label="maybe")
    with pytest.raises(InvalidParameterError, match="name the positive label"):
        metrics.PrecisionRecallDisplay.from_predictions(lazy(WORDS), lazy(SCORES))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(DaskMLDistError, match=r"daskml-dist\[viz\]"):
        metrics.RocCurveDisplay.from_predictions(lazy(BINARY), lazy(SCORES))
