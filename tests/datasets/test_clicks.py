"""Random clicks: power laws, new ids over time, and labels with the returned probabilities."""

from __future__ import annotations

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit

from daskml_dist.datasets import _clicks, make_clicks
from daskml_dist.errors import InvalidParameterError


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def test_rows_are_the_same_on_any_chunks(monkeypatch):
    monkeypatch.setattr(_clicks, "UNIT_ENTRIES", 100 * 32)

    def draw(chunks, seed=3):
        return make_clicks(
            220, n_fields=20, n_numeric=12, drift=1.0, random_state=seed, chunks=chunks,
            return_probability=True,
        )  # fmt: skip

    # Units of 100 rows: partitions end in them, and hold several.
    whole, p_whole = dask.compute(*draw(-1))
    assert len(whole) == 220
    assert whole.index.tolist() == list(range(220))
    for chunks in (42, (5, 215)):
        frame, p = draw(chunks)
        assert frame.known_divisions
        assert frame.dtypes.to_dict() == whole.dtypes.to_dict()
        pd.testing.assert_frame_equal(frame.compute(), whole)
        pd.testing.assert_series_equal(p.compute(), p_whole)
    other, _ = draw(-1, seed=4)
    assert (other.compute()["C1"] != whole["C1"]).mean() > 0.3
    # No unit repeats another.
    assert not whole[["I1", "I2"]].duplicated().any()


def test_labels_have_the_returned_probabilities():
    frame, p = dask.compute(
        *make_clicks(60_000, click_rate=0.2, random_state=0, return_probability=True)
    )
    assert p.mean() == pytest.approx(0.2, abs=0.01)
    # Calibrated in each tenth, and spread: there is something to learn.
    tenths = pd.qcut(p, 10, labels=False)
    means = pd.DataFrame({"label": frame["label"], "p": p}).groupby(tenths).mean()
    np.testing.assert_allclose(means["label"], means["p"], atol=0.02)
    assert np.std(logit(p)) == pytest.approx(np.sqrt(2), rel=0.3)


def test_the_log_odds_are_those_of_a_factorization_machine():
    """Pair by pair, in plain loops over weights and factors that a hash gives."""
    frame, p = dask.compute(
        *make_clicks(
            40, n_fields=3, n_ids=5, n_numeric=2, n_factors=3, random_state=1,
            return_probability=True,
        )
    )  # fmt: skip
    seed = int(np.random.RandomState(1).randint(2**31))
    model = _clicks._ClickModel(seed, 40, 3, 5, 2, 1.1, 0.0, 3).with_click_rate(0.25)
    mask, step = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(word: int, number: int) -> int:
        x = word + (number + 1) * step & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    def effect(term: int, value: int, number: int) -> float:
        word = mixed(mixed(mixed(seed, term), value), number)
        return ((word >> 11) / 2**53 - 0.5) * 12**0.5

    for (_, row), probability in zip(frame.iterrows(), p, strict=True):
        features = [(int(row[f"C{j}"]), 1.0) for j in (1, 2, 3)]
        features += [(0, float(row[f"I{j}"])) for j in (1, 2)]
        total = model.intercept
        for a, (first, x) in enumerate(features):
            total += effect(a, first, 0) * x / 5**0.5
            for b, (second, z) in enumerate(features[:a]):
                products = [effect(a, first, k) * effect(b, second, k) for k in (1, 2, 3)]
                total += sum(products) * x * z / (10 * 3) ** 0.5
        assert expit(total) == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize("zipf", [0.0, 1.0, 1.5])
def test_ids_follow_a_power_law(zipf):
    frame = make_clicks(100_000, n_fields=1, n_ids=50, n_numeric=0, zipf=zipf, random_state=0)
    assert list(frame.columns) == ["label", "C1"]
    counts = np.bincount(frame["C1"].compute(), minlength=50)
    assert len(counts) == 50
    # The integral of x ** -zipf over each rank.
    edges = np.arange(1, 52.0)
    integral = np.log(edges) if zipf == 1 else edges ** (1 - zipf) / (1 - zipf)
    shares = np.diff(integral) / (integral[-1] - integral[0])
    np.testing.assert_allclose(counts / 100_000, shares, atol=0.006)


def test_ids_are_replaced_over_time():
    def first_and_last(drift):
        frame = make_clicks(
            40_000, n_fields=1, n_ids=100, n_numeric=0, zipf=0.0, drift=drift, random_state=0
        )
        ids = frame["C1"].compute().to_numpy()
        return set(ids[:2000]), set(ids[-2000:]), set(ids)

    first, last, all_ids = first_and_last(0.0)
    assert first == last == all_ids == set(range(100))
    first, last, all_ids = first_and_last(0.5)
    assert len(all_ids) == pytest.approx(150, abs=15)
    assert len(first & last) == pytest.approx(50, abs=15)
    first, last, all_ids = first_and_last(3.0)
    assert not first & last
    assert len(all_ids) == pytest.approx(400, abs=20)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"n_rows": 0}, "n_rows"),
        ({"n_fields": 0}, "n_fields"),
        ({"n_ids": 0}, "n_ids"),
        ({"n_numeric": -1}, "n_numeric"),
        ({"n_factors": 0}, "n_factors"),
        ({"zipf": -1.0}, "zipf"),
        ({"drift": -1.0}, "drift"),
        ({"click_rate": 1.0}, "click_rate"),
        ({"chunks": "big"}, "chunks"),
    ],
)
def test_refusals(params, match):
    with pytest.raises(InvalidParameterError, match=match):
        make_clicks(**params)
