"""Displays of scikit-learn, fed by metrics of Dask collections."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    DetCurveDisplay,
    PrecisionRecallDisplay,
    RocCurveDisplay,
)

from daskml_dist import metrics
from tests.metrics.rows import BINARY, GUESSES, SCORES, lazy


def test_displays_show_what_they_show_of_rows_in_memory() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    y, scores = lazy(BINARY), lazy(SCORES)
    fpr, tpr, _ = metrics.roc_curve(y, scores)
    of_precision = metrics.precision_recall_curve(y, scores)[:2]
    rates = metrics.det_curve(y, scores)[:2]
    curve = metrics.calibration_curve(y, scores)
    pairs = [
        (RocCurveDisplay(fpr=fpr, tpr=tpr), RocCurveDisplay),
        (PrecisionRecallDisplay(*of_precision), PrecisionRecallDisplay),
        (DetCurveDisplay(fpr=rates[0], fnr=rates[1]), DetCurveDisplay),
        (CalibrationDisplay(*curve, None), CalibrationDisplay),
    ]
    for display, theirs in pairs:
        lines = [shown.ax_.lines[-1] for shown in (display.plot(), _of_memory(theirs))]
        np.testing.assert_allclose(lines[0].get_xydata(), lines[1].get_xydata(), rtol=1e-12)
        pyplot.close("all")
    matrix = metrics.confusion_matrix(y, lazy(GUESSES % 2))
    shown = ConfusionMatrixDisplay(matrix).plot()
    expected = ConfusionMatrixDisplay.from_predictions(BINARY, GUESSES % 2)
    np.testing.assert_array_equal(shown.im_.get_array(), expected.im_.get_array())
    pyplot.close("all")


def _of_memory(display: type) -> object:
    return display.from_predictions(BINARY, SCORES)  # type: ignore[attr-defined]
