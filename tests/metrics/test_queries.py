"""Metrics of the order of rows within queries: scikit-learn's values, in one pass."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import average_precision_score, dcg_score, ndcg_score, queries

RNG = np.random.default_rng(0)
SIZES = RNG.integers(2, 12, 40)
SIZES[7] = 60  # over several blocks
GROUP = np.repeat(RNG.permutation(500)[:40], SIZES)
N = len(GROUP)
TRUTH = RNG.integers(0, 4, N).astype(float)
TRUTH[GROUP == GROUP[0]] = 0  # no row is relevant
SCORES = RNG.normal(size=N).round(1)
OF_QUERY = RNG.uniform(0.1, 2, 40)
WEIGHT = np.repeat(OF_QUERY, SIZES)


def mean_of(metric: Any, weights: Any = None, truth: Any = TRUTH, **options: Any) -> float:
    """Mean of scikit-learn's score of each query."""
    ends = np.cumsum(SIZES)[:-1]
    parts = zip(np.split(truth, ends), np.split(SCORES, ends), strict=True)
    found = [metric([y], [s], **options) for y, s in parts]
    return float(np.average(found, weights=weights))


def chunked(values: NDArray[Any], n: int = 23) -> da.Array:
    return da.from_array(values, chunks=n)


OPTIONS: list[dict[str, Any]] = [{}, {"k": 3}, {"k": 3, "ignore_ties": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["ndcg_score", "dcg_score"])
def test_values_are_those_of_each_query(name: str, options: dict[str, Any]) -> None:
    ours, peer = globals()[name], getattr(theirs, name)
    if options.get("ignore_ties"):  # scikit-learn puts the last of equal rows first
        options = {**options}
        expected = None
    else:
        expected = mean_of(peer, **options)
    in_memory = ours(TRUTH, SCORES, group=GROUP, **options)
    if expected is not None:
        assert in_memory == pytest.approx(expected, rel=1e-12)
    weighted = ours(TRUTH, SCORES, group=SIZES, sample_weight=OF_QUERY, **options)
    if expected is not None:
        assert weighted == pytest.approx(mean_of(peer, OF_QUERY, **options), rel=1e-12)
    for n in (5, 23, 40, N):
        lazy = [chunked(a, n) for a in (TRUTH, SCORES)]
        assert ours(*lazy, group=chunked(GROUP, n), **options) == pytest.approx(
            in_memory, rel=1e-12
        )
    again = ours(
        chunked(TRUTH), chunked(SCORES), group=chunked(GROUP), sample_weight=chunked(WEIGHT),
        **options,
    )  # fmt: skip
    assert again == pytest.approx(weighted, rel=1e-12)


def test_queries_whose_rows_lie_anywhere_take_a_second_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[int] = []
    deal = queries._deal_and_score
    monkeypatch.setattr(
        queries, "_deal_and_score", lambda *args: (passes.append(1), deal(*args))[1]
    )
    in_memory = ndcg_score(TRUTH, SCORES, group=GROUP)
    lazy = [chunked(a) for a in (TRUTH, SCORES, GROUP)]
    assert ndcg_score(*lazy[:2], group=lazy[2]) == pytest.approx(in_memory, rel=1e-12)
    assert not passes
    at = RNG.permutation(N)
    lazy = [chunked(a[at]) for a in (TRUTH, SCORES, GROUP)]
    assert ndcg_score(*lazy[:2], group=lazy[2]) == pytest.approx(in_memory, rel=1e-12)
    assert len(passes) == 1


def test_frames_and_words() -> None:
    in_memory = ndcg_score(TRUTH, SCORES, group=GROUP)
    words = np.array([f"q{g}" for g in GROUP])
    frame = dd.from_pandas(
        pd.DataFrame({"y": TRUTH, "s": SCORES, "g": GROUP, "w": words}), npartitions=4, sort=False
    )
    for group in (frame["g"], frame["w"]):
        assert ndcg_score(frame["y"], frame["s"], group=group) == pytest.approx(
            in_memory, rel=1e-12
        )
    assert ndcg_score(pd.Series(TRUTH), SCORES, group=words) == pytest.approx(in_memory, rel=1e-12)
    assert ndcg_score(chunked(TRUTH), SCORES, group=GROUP) == pytest.approx(in_memory, rel=1e-12)
    assert ndcg_score(chunked(TRUTH), chunked(SCORES), group=SIZES) == pytest.approx(in_memory)


def test_gains_and_queries_without_relevant_rows() -> None:
    exponential = mean_of(theirs.ndcg_score, truth=2**TRUTH - 1)
    options = {"group": GROUP, "gain": "exponential"}
    found = ndcg_score(TRUTH, SCORES, **options)
    assert found == pytest.approx(exponential, rel=1e-12)
    table = ndcg_score(TRUTH, SCORES, group=GROUP, gain=[0, 1, 3, 7])
    assert table == pytest.approx(found)
    assert ndcg_score(TRUTH, SCORES, **options, zero_division=1.0) == pytest.approx(found + 1 / 40)
    left_out = ndcg_score(TRUTH, SCORES, **options, zero_division=np.nan)
    assert left_out == pytest.approx(found * 40 / 39)
    assert dcg_score(TRUTH, SCORES, group=GROUP, log_base=10) == pytest.approx(
        mean_of(theirs.dcg_score, log_base=10)
    )


def test_average_precision_by_query() -> None:
    truth = TRUTH > 1
    ends = np.cumsum(SIZES)[:-1]
    parts = zip(np.split(truth, ends), np.split(SCORES, ends), strict=True)
    each = [theirs.average_precision_score(y, s) if y.any() else 0.0 for y, s in parts]
    in_memory = average_precision_score(truth, SCORES, group=GROUP)
    assert in_memory == pytest.approx(np.mean(each), rel=1e-12)
    lazy = average_precision_score(
        chunked(truth), chunked(SCORES), group=chunked(GROUP), sample_weight=chunked(WEIGHT)
    )
    assert lazy == pytest.approx(np.average(each, weights=OF_QUERY), rel=1e-12)
    labels = np.where(truth, "yes", "no")
    assert average_precision_score(labels, SCORES, group=GROUP, pos_label="yes") == in_memory
    series = pd.Series(labels, dtype="string")
    assert average_precision_score(series, SCORES, group=GROUP, pos_label="yes") == in_memory


def test_missing_labels_are_not_irrelevant() -> None:
    truth = np.where(np.arange(N) == 30, np.nan, TRUTH > 1)
    for labels in (
        truth, chunked(truth), pd.Series(truth), pd.Series(truth).astype("Float64"),
    ):  # fmt: skip
        with pytest.raises(InvalidDataError, match="NaN"):
            average_precision_score(labels, SCORES, group=GROUP)
    frame = pd.DataFrame({"y": truth, "s": SCORES, "q": GROUP})
    lazy = dd.from_pandas(frame, npartitions=3)
    with pytest.raises(InvalidDataError, match="NaN"):
        average_precision_score(lazy["y"], lazy["s"], group=lazy["q"])


@pytest.mark.parametrize("name", ["ndcg_score", "dcg_score"])
def test_tables_are_scored_as_in_scikit_learn(name: str) -> None:
    truth, scores = RNG.integers(0, 4, (50, 6)).astype(float), RNG.normal(size=(50, 6))
    ours, peer, weight = globals()[name], getattr(theirs, name), RNG.random(50)
    expected = peer(truth, scores, k=4, sample_weight=weight)
    assert ours(truth, scores, k=4, sample_weight=weight) == expected
    lazy = [da.from_array(a, chunks=(11, 6)) for a in (truth, scores)]
    found = ours(*lazy, k=4, sample_weight=da.from_array(weight, chunks=11))
    assert found == pytest.approx(expected, rel=1e-12)
    assert ours(*lazy, gain="exponential") == pytest.approx(peer(2**truth - 1, scores))


def test_bad_rows_are_named() -> None:
    for invalid, match in (
        ({"group": None}, "pass group"),
        ({"group": GROUP[:-1]}, "sizes of queries"),
        ({"group": GROUP, "y": TRUTH - 3}, "negative"),
        ({"group": GROUP, "s": SCORES[:-1]}, "inconsistent|rows"),
        ({"group": GROUP, "s": np.where(SCORES > 1, np.nan, SCORES)}, "NaN"),
        ({"group": GROUP, "sample_weight": 1.0 + np.arange(N)}, "different weights"),
        ({"group": GROUP, "sample_weight": np.zeros(N)}, "sum to zero"),
        ({"group": GROUP, "gain": [0, 1]}, "label 3"),
        ({"group": GROUP, "gain": [0, 1, 3, 7], "y": TRUTH / 2}, "whole numbers >= 0"),
        ({"group": GROUP, "gain": "exponential", "y": 2000 * TRUTH}, "gain overflows"),
        ({"group": ["a", "b"]}, "sizes of queries"),
    ):
        options = {**invalid}
        y, s = options.pop("y", TRUTH), options.pop("s", SCORES)
        with pytest.raises(InvalidDataError, match=match):
            ndcg_score(y, s, **options)
    for options, match in (({"gain": "square"}, "gain"), ({"k": 0}, "k=0")):
        with pytest.raises(InvalidParameterError, match=match):
            ndcg_score(TRUTH, SCORES, group=GROUP, **options)
    with pytest.raises(InvalidDataError, match="whole numbers >= 0"):
        dcg_score(TRUTH - 1, SCORES, group=GROUP, gain=[0, 1, 3, 7])
    with pytest.raises(InvalidParameterError, match="zero_division"):
        ndcg_score(TRUTH, SCORES, group=GROUP, zero_division="warn")
    for base in (1, np.inf, "2"):
        with pytest.raises(InvalidParameterError, match="log_base"):
            dcg_score(TRUTH, SCORES, group=GROUP, log_base=base)


@pytest.mark.parametrize("gain", [[0, 1, np.nan, 3], [0, np.inf, 1, 3], [[0, 1]], ["a", "b"]])
def test_gains_are_finite_numbers(gain: Any) -> None:
    for metric in (ndcg_score, dcg_score):
        with pytest.raises(InvalidParameterError, match="finite numbers"):
            metric(TRUTH, SCORES, group=GROUP, gain=gain)


def test_normalised_gains_are_not_negative() -> None:
    gain = [-1, 0, 1, 2]
    with pytest.raises(InvalidParameterError, match="numbers >= 0"):
        ndcg_score(TRUTH, SCORES, group=GROUP, gain=gain)
    assert dcg_score(TRUTH, SCORES, group=GROUP, gain=gain) == pytest.approx(
        mean_of(theirs.dcg_score, truth=TRUTH - 1)
    )


def test_tables_take_gains_of_arrays() -> None:
    truth, scores = RNG.integers(0, 4, (20, 6)), RNG.normal(size=(20, 6))
    gain = np.array([0.0, 1.0, 3.0, 10.0])
    expected = theirs.ndcg_score(gain[truth], scores)
    assert ndcg_score(truth, scores, gain=gain) == pytest.approx(expected)
    lazy = [da.from_array(a, chunks=(7, 6)) for a in (truth, scores)]
    assert ndcg_score(*lazy, gain=gain) == pytest.approx(expected)


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_tables_have_no_other_score_of_empty_queries(value: float) -> None:
    with pytest.raises(InvalidParameterError, match="needs group"):
        ndcg_score(np.zeros((2, 3)), np.ones((2, 3)), zero_division=value)
