"""Labels on a GPU are counted and encoded there with the same result as on the host."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.data import blocks
from daskml_dist.data.blocks import inspect_block, make_block
from daskml_dist.errors import InvalidDataError
from daskml_dist.estimators import base
from daskml_dist.linear_model import LinearRegression, LogisticRegression
from daskml_dist.losses import LogLoss
from daskml_dist.models.linear import LinearModel
from daskml_dist.training.worker.reader import prepare_block
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 4)).astype(np.float32)
#: Labels, and whether they are counted without a copy.
LABELS: dict[str, tuple[NDArray[Any], bool]] = {
    "bools": (RNG.random(N) < 0.4, True),
    "whole": (RNG.integers(0, 2, N), True),
    "bytes": (RNG.integers(-1, 4, N).astype(np.int8), True),
    "unsigned": (RNG.integers(3, 6, N).astype(np.uint64), True),
    "signs": (np.where(RNG.random(N) < 0.4, 1, -1).astype(np.float32), True),
    "gaps": (RNG.choice([2.0, 5.0, 9.0], N), True),
    "halves": (RNG.choice([0.5, 1.0, 1.5], N), False),
    "wide": (RNG.choice([-1000, 7], N), False),
    "many": (RNG.integers(0, 60, N), False),
}


def _fit_on(device: str, classes: NDArray[Any]) -> Any:
    """Return a fit with the attributes that `prepare_block` reads."""
    model = LinearModel(LogLoss(), 4, len(classes), fit_intercept=True)
    rows = SimpleNamespace(
        dtype="float32", rows_dtype="float32", classes=classes, weights=lambda block: None,
        compute_dtype=None, streaming=None,
    )  # fmt: skip
    work = SimpleNamespace(
        model=model, coordinates=False, on_host=False, loop="solver", privacy=None
    )
    return SimpleNamespace(rows=rows, work=work, run=SimpleNamespace(device=device))


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_counted_and_encoded_on_their_device(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(FakeCupy, monkeypatch)
    y, stays = LABELS[kind]
    on_host = make_block(0, X, y, classification=True)
    on_device = make_block(0, DeviceArray(X), DeviceArray(y), classification=True)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    found, expected = inspect_block(on_device), inspect_block(on_host)
    for name in ("labels", "label_weights", "label_rows"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert (DeviceArray.copied < N) == stays
    classes = expected.labels
    assert classes is not None
    codes = prepare_block(on_host, _fit_on("cpu", classes)).y
    for block in (on_host, on_device):
        moved = prepare_block(block, _fit_on("gpu", classes)).y
        assert isinstance(moved, DeviceArray)
        assert moved.dtype == codes.dtype
        np.testing.assert_array_equal(moved.values, codes)
    assert (DeviceArray.copied < N) == stays
    # Other readers of the labels get a copy.
    np.testing.assert_array_equal(on_device.y, y)
    np.testing.assert_array_equal(prepare_block(on_device, _fit_on("cpu", classes)).y, codes)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(on_device)).target, y)


def test_weighted_counts_of_labels_equal_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(FakeCupy, monkeypatch)
    y, weight = LABELS["whole"][0], RNG.uniform(0.5, 2, N)
    on_host = inspect_block(make_block(0, X, y, weight, classification=True))
    on_device = inspect_block(
        make_block(0, DeviceArray(X), DeviceArray(y), weight, classification=True)
    )
    np.testing.assert_array_equal(on_device.label_weights, on_host.label_weights)


def test_a_label_that_is_not_finite_is_named_by_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(FakeCupy, monkeypatch)
    y = LABELS["signs"][0].copy()
    y[11] = np.nan
    with pytest.raises(InvalidDataError, match=r"Block 2: Input y contains NaN \(row 11"):
        make_block(2, DeviceArray(X), DeviceArray(y), classification=True)


def test_labels_are_counted_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles may contain different labels."""
    monkeypatch.setattr(blocks, "_TILE_BYTES", 128)
    for y, _ in LABELS.values():
        for order in (y, np.sort(y)):
            expected = np.unique(order, return_counts=True)
            found = inspect_block(make_block(0, X, order, classification=True))
            np.testing.assert_array_equal(found.labels, expected[0])
            np.testing.assert_array_equal(found.label_rows, expected[1])
            assert found.labels is not None
            assert found.labels.dtype == y.dtype


def test_many_labels_in_memory_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few labels are copied for scikit-learn's check; so are targets, and labels of host rows."""
    plug_in(FakeCupy, monkeypatch)
    device_rows, y = DeviceArray(X), DeviceArray(LABELS["whole"][0])

    def take(model: Any, rows: Any, target: Any) -> Any:
        return model._make_collection(rows, target, None, reset=True).parts[0][1]

    assert isinstance(take(LogisticRegression(), device_rows, y), np.ndarray)
    monkeypatch.setattr(base, "MAX_CHECKED_LABELS", N - 1)
    assert take(LogisticRegression(), device_rows, y) is y
    assert isinstance(take(LinearRegression(), device_rows, y), np.ndarray)
    collection = LogisticRegression()._make_collection(X, y, None, reset=True)
    assert isinstance(collection.block_maker(0, *collection.parts[0]).target, np.ndarray)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bools", "whole", "bytes", "unsigned", "signs", "gaps", "halves"])
def test_a_fit_on_a_gpu_takes_labels_from_either_side(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coefficients are equal bit for bit, since kernels get the same targets."""
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(base, "MAX_CHECKED_LABELS", N - 1)
    y = LABELS[kind][0]
    if kind in ("gaps", "halves"):
        y = (
            y.astype(np.float64) * 2
        )  # whole numbers, or scikit-learn would consider the target continuous
    fits = [
        LogisticRegression(device="gpu").fit(cupy.asarray(X), target)
        for target in (y, cupy.asarray(y))
    ]
    assert fits[0].classes_.dtype == fits[1].classes_.dtype == y.dtype
    np.testing.assert_array_equal(fits[0].classes_, fits[1].classes_)
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
