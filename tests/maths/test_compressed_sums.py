"""Sums over lanes of gradients that travel compressed: nothing is lost, wherever lanes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.compression import (
    EF21,
    CompressedSum,
    EightBit,
    Float16,
    FourBit,
    LaneExchange,
    OneBit,
    PowerSGD,
    TopK,
    get_compressor,
)
from daskml_dist.compression.sums import RangeSum
from daskml_dist.models import Parameters, Part
from tests.maths.compressors import ALL

#: A layer, its bias, running means in the middle, a kernel of a convolution, and a count.
NETWORK = Parameters(
    (
        Part("layer", (20, 12)),
        Part("bias", (12,)),
        Part("means", (5,), buffer=True),
        Part("kernel", (8, 3, 5, 5)),
        Part("rows", (1,), additive=True),
    )
)
PLAIN = np.r_[252:257, 857]
N_LANES = 5


def _all_in_one() -> LaneExchange:
    """Of one process with all lanes."""

    def scatter(sent: Any) -> Any:
        owners = next(iter(sent.values()))
        return {to: {n: sent[n][to] for n in sent} for to in owners}

    return LaneExchange(
        dict,
        lambda gradients: np.sum(
            [gradients[n] for n in sorted(gradients)], axis=0, dtype=np.float64
        ),
        scatter,
    )


def _make(compressor: Any, ranged: bool = False) -> CompressedSum:
    found = get_compressor(compressor)
    assert found is not None
    if ranged:
        return RangeSum(found, range(N_LANES), N_LANES, NETWORK, "float64", found.momentum)
    return found.make_sum(range(N_LANES), N_LANES, NETWORK, "float64")


def _gradients(seed: int) -> dict[int, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=NETWORK.shape) for n in range(N_LANES)}


CASES = [(c, False) for c in ALL if c != "ef21"] + [
    (c, True) for c in (Float16(), EightBit(), FourBit(), OneBit(64))
]


@pytest.mark.parametrize(("compressor", "ranged"), CASES)
def test_all_gradients_arrive_in_the_end(compressor: Any, ranged: bool) -> None:
    sums, sent, arrived = _make(compressor, ranged), 0.0, 0.0
    for step in range(30):
        gradients = _gradients(step)
        before = {n: gradient.copy() for n, gradient in gradients.items()}
        whole = sum(gradients.values())
        found = sums.add_up(gradients, _all_in_one(), last=step == 29)
        for n, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, before[n])
        # Running means and counts do not wait for other steps.
        np.testing.assert_allclose(found[PLAIN], whole[PLAIN], atol=1e-12)
        if step < 29:
            assert not np.allclose(found, whole, atol=1e-9)
        sent, arrived = sent + whole, arrived + found
    np.testing.assert_allclose(arrived, sent, atol=1e-9)


FORMS: list[Any] = ["8bit", "topk", OneBit(64, momentum=0.5), EF21(0.1, 0.5), PowerSGD(1)]


@pytest.mark.parametrize("compressor", FORMS, ids=lambda c: getattr(c, "name", c))
@pytest.mark.parametrize("ranged", [False, True])
def test_a_sum_resumes_from_snapshots(compressor: Any, ranged: bool) -> None:
    if ranged and compressor not in ("8bit", FORMS[2]):
        return
    first, second = (_make(compressor, ranged) for _ in range(2))
    for step in range(4):
        first.add_up(_gradients(step), _all_in_one())
    second.add_up(_gradients(9), _all_in_one())  # another course until then
    snapshots = {n: first.snapshot(n) for n in range(N_LANES)}
    expected = [first.add_up(_gradients(step), _all_in_one()) for step in (4, 5)]
    second.restore(snapshots)
    found = [second.add_up(_gradients(step), _all_in_one()) for step in (4, 5)]
    np.testing.assert_array_equal(found, expected)


def test_a_matrix_that_stays_comes_to_its_largest_directions() -> None:
    """As block power iteration does, by the factor of the step before."""
    layer = Parameters((Part("layer", (40, 30)),))
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 30)))[0] for n in (40, 30))
    matrix = (left * 2.0 ** -np.arange(30)) @ right.T
    best = (left[:, :3] * 2.0 ** -np.arange(3)) @ right[:, :3].T
    sums = PowerSGD(3).make_sum([0], 1, layer, "float64")
    for _ in range(30):
        sums.kept[0]["residual"][...] = 0  # no error feedback: one matrix again and again
        found = sums.add_up({0: matrix.reshape(-1, 1)}, _all_in_one())
    np.testing.assert_allclose(found.reshape(40, 30), best, atol=1e-6)


def test_vectors_are_sent_uncompressed_by_factors() -> None:
    vector = Parameters((Part("coef", (30, 1)), Part("intercept", (1, 1))))
    sums = PowerSGD(2).make_sum(range(2), 2, vector, "float64")
    for step in range(3):
        gradients = {n: np.full((31, 1), 1.0 + n + step) for n in range(2)}
        np.testing.assert_array_equal(
            sums.add_up(gradients, _all_in_one()), gradients[0] + gradients[1]
        )


def test_zeros_and_non_finite_values_pass_through_factors() -> None:
    sums = _make(PowerSGD(2))
    zeros = {n: np.zeros(NETWORK.shape) for n in range(N_LANES)}
    assert not sums.add_up(zeros, _all_in_one()).any()
    gradients = _gradients(0)
    gradients[1][3] = np.nan
    assert not np.isfinite(sums.add_up(gradients, _all_in_one())[:240]).all()


def test_estimates_follow_gradients_that_stay() -> None:
    sums, gradients = _make(EF21(0.1)), _gradients(0)
    np.testing.assert_allclose(
        sums.add_up(_gradients(1), _all_in_one()), sum(_gradients(1).values())
    )
    for _ in range(11):
        found = sums.add_up(gradients, _all_in_one())
    np.testing.assert_allclose(found, sum(gradients.values()), atol=1e-12)


@pytest.mark.parametrize(
    ("compressor", "share"),
    [
        (Float16(), 0.5),
        (EightBit(), 0.254),
        (TopK(0.05), 0.05 + 1 / 32),  # of so few entries, positions are a bit for each
        # Factors of the layer and of the kernel, the bias, running means and the count.
        (PowerSGD(2), (2 * (20 + 12) + 2 * (8 + 75) + 12 + 5 + 1) / 858),
    ],
)
def test_bytes_are_counted_before_a_fit(compressor: Any, share: float) -> None:
    assert compressor.count_bytes(NETWORK, "float32") == pytest.approx(858 * 4 * share, rel=0.05)
