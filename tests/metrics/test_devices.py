"""Metrics of targets and predictions on a GPU: only sums leave it where docs/gpu.md says so.

Stand-ins for CuPy's arrays, which NumPy may not read, tell how much was copied; on a machine with a
GPU the values are compared on CuPy too.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics import METRICS, _columns, pairwise
from tests import fake_cupy
from tests.docs.blocks import PAGES
from tests.fake_cupy import DeviceArray, ToDevice, make_blocks
from tests.metrics.rows import (
    CLASSES,
    GUESSES,
    PROBA,
    WEIGHTS,
    assert_equal,
    data_for,
    metric_of,
    takes_weights,
)

_SECTION = PAGES["docs/gpu.md"].read_text().split("## Which metric computes where")[1]
#: Where each metric computes.
CELLS = {
    name: cell.strip()
    for line in _SECTION.split("\n## ")[0].splitlines()
    if line.startswith("| `")
    for names, cell in [line.strip("|").split("|")]
    for name in re.findall(r"`(\w+)`", names)
}
#: Repeated rows of metric tests, enough for sums to be small compared with blocks.
REPEATS = 20
CHUNKS = (500, 0, 1, 699)


def _repeat(values: Any) -> NDArray[Any]:
    return np.concatenate([values] * REPEATS)


def _lazy(values: Any, to_device: ToDevice = np.asarray) -> da.Array:
    """Blocks made in tasks, one of them empty and one a single row."""
    return make_blocks(values, CHUNKS, to_device)


def test_the_table_names_every_metric() -> None:
    assert set(CELLS) == set(METRICS)
    assert set(CELLS.values()) == {"GPU", "host"}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", METRICS)
def test_only_sums_leave_the_device(name: str, weights: str, to_device: ToDevice) -> None:
    y_true, y_pred = map(_repeat, data_for(name))
    on_host, on_device = {}, {}
    if WEIGHTS[weights] is not None:
        if not takes_weights(name):
            return
        weight = _repeat(WEIGHTS[weights])
        on_host, on_device = {"sample_weight": weight}, {"sample_weight": _lazy(weight, to_device)}
    expected = metric_of(name)(_lazy(y_true), _lazy(y_pred), **on_host)
    assert DeviceArray.copied == 0
    found = metric_of(name)(_lazy(y_true, to_device), _lazy(y_pred, to_device), **on_device)
    if to_device is fake_cupy.to_device:
        assert (DeviceArray.copied < len(y_true) / 4) == (CELLS[name] == "GPU")
    assert_equal(found, expected)


#: Metrics, columns that they take, and options.
_NUMBERS = _repeat(PROBA)
SHAPES: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("log_loss", _repeat(CLASSES), _NUMBERS, {}),
    ("log_loss", _repeat(CLASSES), _NUMBERS.astype("f4"), {"normalize": False}),
    ("log_loss", _repeat(CLASSES).astype("f4"), _NUMBERS, {"labels": [0, 1, 2]}),
    ("log_loss", _repeat(CLASSES) > 0, _NUMBERS[:, 0].astype("f4"), {}),
    ("brier_score_loss", _repeat(CLASSES), _NUMBERS, {}),
    ("brier_score_loss", _repeat(CLASSES) > 0, _NUMBERS[:, 0], {"pos_label": True}),
    ("mean_squared_error", _NUMBERS, _NUMBERS[:, ::-1].astype("f4"), {"multioutput": "raw_values"}),
    ("r2_score", _NUMBERS, _NUMBERS[:, ::-1], {"multioutput": "variance_weighted"}),
    ("r2_score", _repeat(CLASSES).astype("u1"), _repeat(GUESSES).astype("i2"), {}),
    ("mean_pinball_loss", _NUMBERS, _NUMBERS[:, ::-1], {"alpha": 0.9}),
    ("mean_tweedie_deviance", _repeat(CLASSES), 1 + _NUMBERS[:, 0].astype("f4"), {"power": 1}),
    ("mean_tweedie_deviance", _repeat(CLASSES), 1 + _NUMBERS[:, 0], {"power": 1.5}),
    ("d2_tweedie_score", _repeat(CLASSES) - 1, 1 + _NUMBERS[:, 0], {"power": -1}),
    ("d2_tweedie_score", _repeat(CLASSES) + 1, 1 + _NUMBERS[:, 0], {"power": 3}),
    ("calibration_curve", _repeat(CLASSES) > 0, _NUMBERS[:, 0].astype("f4"), {"n_bins": 4}),
    ("accuracy_score", _repeat(CLASSES)[:, None], _repeat(GUESSES).astype("f8"), {}),
    ("confusion_matrix", _repeat(CLASSES) > 0, _repeat(GUESSES) > 1, {"normalize": "true"}),
    ("confusion_matrix", _repeat(CLASSES).astype("i2"), _repeat(GUESSES).astype("f4"), {}),
]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[0])
def test_shapes_and_dtypes(
    shape: tuple[str, Any, Any, dict[str, Any]],
    weights: str,
    to_device: ToDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in pieces, with weights in host memory; of float32 a logarithm is a rounding off."""
    name, y_true, y_pred, options = shape
    if WEIGHTS[weights] is not None and takes_weights(name):
        options = {**options, "sample_weight": _repeat(WEIGHTS[weights])}
    monkeypatch.setattr(_columns, "_DEVICE_PIECE_BYTES", 2000)
    expected = METRICS[name](_lazy(y_true), _lazy(y_pred), **options)
    found = METRICS[name](_lazy(y_true, to_device), _lazy(y_pred, to_device), **options)
    assert DeviceArray.copied < len(y_true) / 2
    assert getattr(found, "dtype", float) == getattr(expected, "dtype", float)
    assert_allclose(found, expected, rtol=1e-6 if y_pred.dtype == "f4" else 1e-12)
    mixed = METRICS[name](_lazy(y_true, to_device), _lazy(y_pred), **options)
    assert_allclose(mixed, expected, rtol=1e-12)


def test_one_weight_for_all_rows(to_device: ToDevice) -> None:
    y_true, y_pred = _lazy(_repeat(CLASSES), to_device), _lazy(_repeat(GUESSES), to_device)
    for name in ("accuracy_score", "r2_score"):
        found = METRICS[name](y_true, y_pred, sample_weight=2.5)
        assert found == pytest.approx(METRICS[name](y_true, y_pred), rel=1e-12)


def test_indicators_are_counted_on_the_host(to_device: ToDevice) -> None:
    truth, predicted = _NUMBERS > 0.3, _NUMBERS > 0.5
    expected = metrics.f1_score(_lazy(truth), _lazy(predicted), average=None)
    found = metrics.f1_score(_lazy(truth, to_device), _lazy(predicted, to_device), average=None)
    assert_allclose(found, expected)
    expected = metrics.log_loss(_lazy(truth), _lazy(_NUMBERS))
    assert metrics.log_loss(_lazy(truth, to_device), _lazy(_NUMBERS, to_device)) == expected


def test_rows_in_memory_are_scored_on_the_host(to_device: ToDevice) -> None:
    found = metrics.accuracy_score(to_device(CLASSES), to_device(GUESSES))
    assert found == metrics.accuracy_score(CLASSES, GUESSES)


NAN = np.where(np.arange(1200) == 507, np.nan, 1.0)
#: Metrics, columns, weights, and the error.
REFUSED = [
    ("mean_squared_error", NAN, NAN * 0, None, r"Block 3: Input y_true contains NaN.*\(row 6 of"),
    ("accuracy_score", NAN, NAN * 0, None, r"Block 3: Input y_true contains NaN.*\(row 6 of"),
    ("r2_score", _NUMBERS, _NUMBERS, NAN, r"Block 3: Input sample_weight contains NaN"),
    ("r2_score", _NUMBERS, _NUMBERS, -np.ones(1200), "Negative values in sample_weight"),
    ("r2_score", _NUMBERS, _NUMBERS[:, :2], None, "different number of output"),
    ("accuracy_score", _NUMBERS[:, 0], _NUMBERS[:, 0], None, "continuous values, not labels"),
    ("accuracy_score", np.ones(1200), _NUMBERS, None, "y_pred should be a 1d array"),
    ("log_loss", np.arange(1200) % 2, 2 * _NUMBERS[:, 0], None, "y_proba holds 0.* to 1.*, which"),
    ("log_loss", np.arange(1200), _NUMBERS, None, "labels or more, .* the predictions have 3"),
    ("mean_poisson_deviance", NAN * 0 - 1, np.ones(1200), None, "contains NaN"),
    ("mean_poisson_deviance", -np.ones(1200), np.ones(1200), None, "non-negative y and strictly"),
    ("mean_gamma_deviance", np.zeros(1200), np.ones(1200), None, "strictly positive y and y_pred"),
    ("calibration_curve", np.arange(1200) % 2, 2 * np.ones(1200), None, "values outside"),
    ("mean_squared_log_error", -np.ones(1200), np.ones(1200), None, "Logarithmic Error cannot be"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[4])
def test_errors_are_those_of_the_host(
    case: tuple[str, Any, Any, Any, str], to_device: ToDevice
) -> None:
    name, y_true, y_pred, weight, message = case
    options = {} if weight is None else {"sample_weight": _lazy(weight, to_device)}
    with pytest.raises(InvalidDataError, match=message):
        METRICS[name](_lazy(y_true, to_device), _lazy(y_pred, to_device), **options)


# --- distances and kernels -------------------------------------------------------------------

_ROWS = np.random.default_rng(0).normal(size=(30, 4)) * (np.arange(30) != 5)[:, None]
#: Functions of X and Y that stay on the GPU, and one that does not.
DISTANCES = {
    "euclidean": pairwise.euclidean_distances,
    "squares": partial(pairwise.euclidean_distances, squared=True),
    "l2": partial(pairwise.pairwise_distances, metric="l2"),
    "cosine": pairwise.cosine_distances,
    "linear": pairwise.linear_kernel,
    "similarity": pairwise.cosine_similarity,
    "rbf": pairwise.rbf_kernel,
    "narrow rbf": partial(pairwise.rbf_kernel, gamma=3.0),
    "manhattan": pairwise.manhattan_distances,
}


def _blocks(values: Any, to_device: ToDevice) -> da.Array:
    chunks = (10, 0, 20)
    return da.from_array(np.arange(30), chunks=(chunks,)).map_blocks(
        lambda at: to_device(values[at]), chunks=(chunks, (4,)), new_axis=[1],
        meta=np.empty((0, 0), values.dtype),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_stay_on_the_device(name: str, dtype: str, to_device: ToDevice) -> None:
    rows, measure, tolerance = _ROWS.astype(dtype), DISTANCES[name], {"f4": 1e-5, "f8": 1e-12}
    # Distances of equal rows consist of rounding errors only.
    others = rows[::-1] + rows.dtype.type(1)
    for other_rows, Y in (
        (None, None),
        (others, _blocks(others, to_device)),
        (others[:3], others[:3]),
    ):
        expected = measure(_blocks(rows, np.asarray), other_rows).compute()
        lazy = measure(_blocks(rows, to_device), Y)
        parts = [[block.compute() for block in line] for line in lazy.to_delayed()]
        stays = name != "manhattan"
        kinds = {hasattr(part, "__cuda_array_interface__") for line in parts for part in line}
        assert kinds == {stays}
        found = np.block([[part.get() if stays else part for part in line] for line in parts])
        assert lazy.dtype == found.dtype == expected.dtype
        assert_allclose(found, expected, rtol=tolerance[dtype], atol=tolerance[dtype])


def test_distances_of_missing_values_are_refused(to_device: ToDevice) -> None:
    wrong = np.where(np.arange(4) == 2, np.nan, _ROWS)
    with pytest.raises(InvalidDataError, match=r"Block \d of X.*contains NaN"):
        pairwise.euclidean_distances(_blocks(wrong, to_device)).compute()
