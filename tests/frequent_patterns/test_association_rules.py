"""Association rules beside their definitions, counted in the rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.frequent_patterns import association_rules, frequent_itemsets
from tests.frequent_patterns.baskets import drawn

ROWS = drawn(400, [0.6, 0.5, 0.1, 0.3, 0.9, 0.4, 1.0], seed=1)
METRICS = [
    "support", "confidence", "lift", "leverage", "conviction",
    "zhangs_metric", "jaccard", "certainty", "kulczynski",
]  # fmt: skip


@pytest.fixture(scope="module")
def sets() -> pd.DataFrame:
    """What `ROWS` hold together; not at import, where each process of a session would find it."""
    return frequent_itemsets(ROWS, min_support=0.05)


def measured(antecedent: tuple[int, ...], consequent: tuple[int, ...]) -> list[float]:
    """The measures of a rule, by their definitions."""
    a, b = ROWS[:, antecedent].all(axis=1), ROWS[:, consequent].all(axis=1)
    support, confidence = (a & b).mean(), b[a].mean()
    leverage = support - a.mean() * b.mean()
    conviction = np.inf if b[a].all() else (1 - b.mean()) / (1 - confidence)
    # Zhang's metric: leverage relative to its extreme value for the same supports.
    most = max(support * (1 - a.mean()), a.mean() * (b & ~a).mean())
    zhang = leverage / most if most else 0.0
    certainty = 0.0 if b.all() else (confidence - b.mean()) / (~b).mean()
    return [
        support, confidence, confidence / b.mean(), leverage, conviction,
        zhang, (a & b).sum() / (a | b).sum(), certainty, (confidence + a[b].mean()) / 2,
    ]  # fmt: skip


def all_rules(sets: pd.DataFrame) -> dict[tuple[Any, Any], list[float]]:
    found = {}
    for items in sets["itemset"]:
        for k in range(1, len(items)):
            for antecedent in combinations(items, k):
                rest = tuple(item for item in items if item not in antecedent)
                found[antecedent, rest] = measured(antecedent, rest)
    return found


@pytest.mark.parametrize("metric", METRICS)
def test_rules_are_all_that_reach_the_threshold(metric: str, sets: pd.DataFrame) -> None:
    at = METRICS.index(metric)
    truth = all_rules(sets)
    # Between two values, so that no rounding decides.
    values = np.unique([m[at] for m in truth.values() if np.isfinite(m[at])])
    widest = np.argmax(np.diff(values[len(values) // 3 : -1])) + len(values) // 3
    threshold = float(values[widest : widest + 2].mean())
    found = association_rules(sets, metric=metric, min_threshold=threshold)
    assert found.columns.tolist() == ["antecedent", "consequent", *METRICS]
    names = zip(found["antecedent"], found["consequent"], strict=True)
    rules = dict(zip(names, found[METRICS].to_numpy().tolist(), strict=True))
    wanted = {rule: m for rule, m in truth.items() if m[at] >= threshold}
    assert rules.keys() == wanted.keys()
    assert 0 < len(wanted) < len(truth)
    for rule, measures in wanted.items():
        np.testing.assert_allclose(rules[rule], measures, rtol=1e-9, atol=1e-12)
    assert (found[metric].to_numpy()[:-1] >= found[metric].to_numpy()[1:]).all()


def test_a_rule_without_exception_has_infinite_conviction(sets: pd.DataFrame) -> None:
    found = association_rules(sets, min_threshold=1.0)
    assert len(found)
    assert np.isinf(found["conviction"]).all()


def test_itemsets_from_a_file(sets: pd.DataFrame, tmp_path: Path) -> None:
    sets.to_parquet(tmp_path / "sets.parquet")
    stored = pd.read_parquet(tmp_path / "sets.parquet")
    for given in (stored, stored.assign(itemset=stored["itemset"].map(list))):
        pd.testing.assert_frame_equal(association_rules(given), association_rules(sets))


def test_more_than_256_items() -> None:
    """Whose numbers have several bytes."""
    sets = [((j,), 2) for j in range(600)] + [((0, 256), 1), ((256, 512), 2), ((1, 2), 1)]
    frame = pd.DataFrame(
        {
            "support": [n / 4 for _, n in sets],
            "count": [n for _, n in sets],
            "itemset": [s for s, _ in sets],
        }
    )
    found = association_rules(frame, min_threshold=0.9)
    pairs = list(zip(found["antecedent"], found["consequent"], strict=True))
    assert pairs == [((256,), (512,)), ((512,), (256,))]


def test_no_rules_are_an_empty_frame(sets: pd.DataFrame) -> None:
    for some in (sets, sets.head(0), sets[sets["itemset"].map(len) == 1]):
        found = association_rules(some, min_threshold=2.0)
        assert found.shape == (0, 2 + len(METRICS))
        assert found.dtypes.astype(str).tolist() == ["object"] * 2 + ["float64"] * len(METRICS)


Change = Callable[[pd.DataFrame], Any]
BAD: dict[str, tuple[Change, dict[str, Any], type[Exception], str]] = {
    "metric": (lambda sets: sets, {"metric": "accuracy"}, InvalidParameterError, "'lift'"),
    "threshold": (
        lambda sets: sets, {"min_threshold": np.nan}, InvalidParameterError, "min_threshold"
    ),
    "array": (lambda sets: ROWS, {}, InvalidDataError, "pandas frame"),
    "lazy": (
        lambda sets: dd.from_pandas(sets[["count"]], npartitions=1),
        {}, InvalidDataError, "pandas frame",
    ),
    "columns": (
        lambda sets: sets.drop(columns="count"), {}, InvalidDataError, "no column 'count'"
    ),
    "text": (lambda sets: sets.assign(itemset="milk"), {}, InvalidDataError, "a tuple of items"),
    "zeros": (lambda sets: sets.assign(count=0), {}, InvalidDataError, "above 0"),
    "no subsets": (
        lambda sets: sets[sets["itemset"].map(len) > 1], {}, InvalidDataError, "lacks"
    ),
    "no pairs": (lambda sets: sets[sets["itemset"].map(len) != 2], {}, InvalidDataError, "lacks"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_inputs_are_refused(case: str, sets: pd.DataFrame) -> None:
    change, options, error, match = BAD[case]
    with pytest.raises(error, match=match):
        association_rules(change(sets), **options)
