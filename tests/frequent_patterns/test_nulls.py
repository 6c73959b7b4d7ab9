"""Baskets of which some entries are unknown, beside the definitions counted in the rows."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.frequent_patterns import association_rules, frequent_itemsets
from tests.frequent_patterns.baskets import drawn

ROWS = drawn(400, [0.6, 0.5, 0.1, 0.3, 0.9, 0.4], seed=1, few=(0, 3, 5)).astype(float)
ROWS[np.random.default_rng(0).random(ROWS.shape) < 0.2] = np.nan
NAMES = [f"item {j}" for j in range(ROWS.shape[1])]
FORMS: dict[str, Any] = {
    "array": np.asarray,
    "objects": lambda X: np.where(np.isnan(X), None, X),
    "frame": lambda X: pd.DataFrame(X, columns=NAMES),
    "nullable": lambda X: pd.DataFrame(X, columns=NAMES).astype("boolean"),
    "Dask": lambda X: da.from_array(X, chunks=(150, 4)),
    "Dask frame": lambda X: dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=3),
}


def both(items: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the baskets that contain all of some items, and those in which all are known."""
    part = ROWS[:, items]
    return (part == 1).all(axis=1), ~np.isnan(part).any(axis=1)


def brute(share: float) -> dict[tuple[int, ...], tuple[float, int, float]]:
    """Support, count and representativity of the sets that are found, with all their parts."""
    found: dict[tuple[int, ...], tuple[float, int, float]] = {}
    for k in range(1, ROWS.shape[1] + 1):
        for items in combinations(range(ROWS.shape[1]), k):
            contains, known = both(items)
            support = contains.sum() / known.sum()
            parts = list(combinations(items, k - 1)) if k > 1 else []
            if support >= share and all(part in found for part in parts):
                found[items] = support, int(contains.sum()), known.mean()
    return found


@pytest.mark.parametrize("form", FORMS)
def test_sets_are_found_among_the_baskets_in_which_they_are_known(
    form: str, client: Client
) -> None:
    found = frequent_itemsets(FORMS[form](ROWS), min_support=0.05, null_values=True)
    truth = brute(0.05)
    assert max(map(len, truth)) > 3
    names = NAMES if "frame" in form or form == "nullable" else list(range(ROWS.shape[1]))
    assert dict(
        zip(
            found["itemset"],
            zip(found["support"], found["count"], found["representativity"], strict=True),
            strict=True,
        )
    ) == {tuple(names[j] for j in items): pytest.approx(scores) for items, scores in truth.items()}


def test_rules_know_which_baskets_could_tell() -> None:
    sets = frequent_itemsets(ROWS, min_support=0.05, null_values=True)
    rules = association_rules(sets, metric="support", min_threshold=0.0)
    assert len(rules) == sum(2 ** len(one) - 2 for one in sets["itemset"])
    for rule in rules.to_dict("records"):
        a, c = rule["antecedent"], rule["consequent"]
        (contains_all, known), (has_a, known_a), (has_c, known_c) = both(a + c), both(a), both(c)
        support = contains_all.sum() / known.sum()
        of_a, of_c = has_a.sum() / known_a.sum(), has_c.sum() / known_c.sum()
        confidence = contains_all.sum() / (has_a & known_c).sum()
        backwards = contains_all.sum() / (has_c & known_a).sum()
        expected = {
            "support": support,
            "confidence": confidence,
            "lift": confidence / of_c,
            "leverage": support - of_a * of_c,
            "jaccard": support / (of_a + of_c - support),
            "kulczynski": (confidence + backwards) / 2,
            "representativity": known.mean(),
        }
        assert {name: rule[name] for name in expected} == pytest.approx(expected)


def test_rows_without_nulls_are_counted_as_ever() -> None:
    plain = np.nan_to_num(ROWS)
    known = frequent_itemsets(plain, min_support=0.1)
    found = frequent_itemsets(plain, min_support=0.1, null_values=True)
    pd.testing.assert_frame_equal(found[list(known)], known)
    assert (found["representativity"] == 1).all()
    rules = association_rules(found)
    pd.testing.assert_frame_equal(rules.drop(columns="representativity"), association_rules(known))
    few = frequent_itemsets(plain, min_support=1.0, null_values=True)
    assert few.empty
    assert association_rules(few).empty


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: frequent_itemsets(ROWS), InvalidDataError, "null_values=True"),
        (
            lambda: frequent_itemsets(sparse.csr_matrix(ROWS > 0), null_values=True),
            InvalidDataError,
            "toarray",
        ),
        (
            lambda: frequent_itemsets(-ROWS, null_values=True),
            InvalidDataError,
            "make it zero or more",
        ),
        (
            lambda: frequent_itemsets(np.array([["a", None]]), null_values=True),
            InvalidDataError,
            "not numbers",
        ),
        (
            lambda: frequent_itemsets(
                pd.DataFrame({"b": [1], "i": ["x"]}), basket="b", item="i", null_values=True
            ),
            InvalidParameterError,
            "Leave null_values out",
        ),
        (
            lambda: association_rules(
                frequent_itemsets(ROWS, null_values=True).drop(columns="split_counts")
            ),
            InvalidDataError,
            "split_counts",
        ),
    ],
)
def test_invalid_inputs_are_named(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
