"""NDCG and precision of recommended items, beside scikit-learn's and sums written out."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import ndcg_score

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import ndcg_at_k, precision_at_k

rng = np.random.default_rng(0)
N_USERS, N_ITEMS = 30, 20
SCORES = rng.permuted(np.tile(np.arange(N_ITEMS, dtype=float), (N_USERS, 1)), axis=1)
RIGHT = rng.random((N_USERS, N_ITEMS)) < 0.2
RIGHT[:, 0] = True  # every user has one
RIGHT[3] = False  # but one user
GRID = pd.MultiIndex.from_product([[f"u{i}" for i in range(N_USERS)], range(N_ITEMS)])
RECOMMENDED = pd.DataFrame({"score": SCORES.ravel()}, GRID).reset_index(names=["user", "item"])
RECOMMENDED = RECOMMENDED.sample(frac=1, random_state=0)
HELD = RECOMMENDED.loc[RIGHT.ravel()[RECOMMENDED.index], ["user", "item"]]
HELD = pd.concat([HELD, HELD[:5]])  # pairs that come twice
HAVE = RIGHT.any(axis=1)


def lazy(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=3, sort=False)


@pytest.mark.parametrize("k", [1, 5, 20, 50])
def test_they_are_those_of_scikit_learn_and_of_plain_sums(k: int) -> None:
    ndcg = ndcg_score(RIGHT[HAVE], SCORES[HAVE], k=k)
    best = np.argsort(-SCORES[HAVE], axis=1)[:, :k]
    precision = (np.take_along_axis(RIGHT[HAVE], best, axis=1).sum(axis=1) / k).mean()
    assert ndcg_at_k(HELD, RECOMMENDED, k) == pytest.approx(ndcg)
    assert precision_at_k(HELD, RECOMMENDED, k) == pytest.approx(precision)


def test_lazy_frames_and_other_names() -> None:
    expected = ndcg_at_k(HELD, RECOMMENDED), precision_at_k(HELD, RECOMMENDED)
    for held_out, found in (
        (lazy(HELD), lazy(RECOMMENDED)),
        (lazy(HELD), RECOMMENDED),
        (HELD, lazy(RECOMMENDED)),
    ):
        assert ndcg_at_k(held_out, found) == pytest.approx(expected[0])
        assert precision_at_k(held_out, found) == pytest.approx(expected[1])
    names = {"user": "who", "item": "what", "score": "how"}
    held_out, found = HELD.rename(columns=names), RECOMMENDED.rename(columns=names)
    options = {"user_col": "who", "item_col": "what", "score_col": "how"}
    assert ndcg_at_k(held_out, found, **options) == expected[0]


def test_columns_that_are_indices_too_and_tables_of_arrow() -> None:
    expected = precision_at_k(HELD, RECOMMENDED)
    held_out, found = (frame.set_index("user", drop=False) for frame in (HELD, RECOMMENDED))
    assert precision_at_k(held_out, found) == expected
    assert precision_at_k(lazy(held_out), lazy(found)) == pytest.approx(expected)
    table = pa.Table.from_pandas(RECOMMENDED)
    assert precision_at_k(pa.Table.from_pandas(HELD), table) == expected


def test_users_without_recommendations_count() -> None:
    held_out = pd.DataFrame({"user": [1, 2], "item": [5, 5]})
    found = pd.DataFrame({"user": [1, 3], "item": [5, 5], "score": [1.0, 1.0]})
    assert ndcg_at_k(held_out, found, 1) == precision_at_k(held_out, found, 1) == 0.5
    assert ndcg_at_k(held_out, found[:0]) == 0.0


def test_bad_input_names_the_remedy() -> None:
    with pytest.raises(InvalidParameterError, match="k=0: use an integer"):
        ndcg_at_k(HELD, RECOMMENDED, 0)
    with pytest.raises(InvalidDataError, match=r"recommended lacks the columns \['score'\]"):
        ndcg_at_k(HELD, HELD)
    with pytest.raises(InvalidDataError, match="held_out has no rows"):
        precision_at_k(HELD[:0], RECOMMENDED)
    text = RECOMMENDED.astype({"item": "string"})
    for given in (text, dd.from_pandas(text, npartitions=2)):
        with pytest.raises(
            InvalidDataError, match=r"'item' has the dtype int64 .* no id is in both"
        ):
            precision_at_k(HELD, given)
    missing = RECOMMENDED.assign(score=RECOMMENDED["score"].where(RECOMMENDED["item"] > 2))
    for metric in (ndcg_at_k, precision_at_k):
        for given in (missing, lazy(missing), missing.convert_dtypes()):
            with pytest.raises(InvalidDataError, match=r"'score' .*missing scores.*dropna\("):
                metric(HELD, given)
    with pytest.raises(InvalidDataError, match="held_out is a ndarray"):
        precision_at_k(HELD.to_numpy(), RECOMMENDED)
