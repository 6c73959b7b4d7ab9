"""Frequent itemsets equal a count of all subsets; accepted inputs and refusals."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.frequent_patterns import frequent_itemsets
from tests.frequent_patterns.baskets import brute, counts, drawn

SHARES = [0.6, 0.5, 0.02, 0.3, 0.01, 0.4, 0.05, 0.2, 0.03]
ROWS = drawn(1100, SHARES)
NAMES = [f"item {j}" for j in range(len(SHARES))]
FORMS: dict[str, Any] = {
    "bools": np.asarray,
    "bytes": lambda X: X.astype(np.uint8),
    "integers": lambda X: 7 * X.astype(np.int64),
    "floats": lambda X: 0.25 * X.astype(np.float32),
    "by columns": lambda X: np.asfortranarray(X.astype(float)),
    "list": lambda X: X.astype(int).tolist(),
    "csr": sparse.csr_matrix,
    "csc of float": lambda X: sparse.csc_matrix(X.astype(float)),
    "stored zeros": lambda X: _with_zeros(X),
    "frame": lambda X: pd.DataFrame(X, columns=NAMES),
    "nullable": lambda X: pd.DataFrame(X, columns=NAMES).astype("boolean"),
    "numbers for names": lambda X: pd.DataFrame(X),
}


def _with_zeros(X: Any) -> Any:
    """A CSR matrix that stores all its entries, zeros too."""
    every = sparse.csr_matrix(np.ones(X.shape))
    every.data[:] = X.ravel()
    return every


@pytest.fixture(scope="module")
def truth() -> Any:
    return brute(ROWS, 11)


@pytest.mark.parametrize("form", FORMS)
def test_every_frequent_set_is_found_and_counted(form: str, truth: Any) -> None:
    found = frequent_itemsets(FORMS[form](ROWS), min_support=0.01)
    if form in ("frame", "nullable"):
        truth = {tuple(NAMES[j] for j in items): n for items, n in truth.items()}
    assert counts(found) == truth
    assert max(map(len, truth)) > 3
    assert found.dtypes.astype(str).tolist() == ["float64", "int64", "object"]
    np.testing.assert_array_equal(found["support"], found["count"] / len(ROWS))


def test_the_order_is_that_of_counts_and_then_of_columns() -> None:
    found = frequent_itemsets(ROWS, min_support=0.01)
    keys = [(-n, items) for items, n in counts(found).items()]
    assert keys == sorted(keys)
    assert len({n for n, _ in keys}) < len(keys)


@pytest.mark.parametrize("support", [1, 40, 0.5, 1.0, 11 / 1100, 12 / 1100, np.int64(300), 2000])
def test_a_share_or_a_number_of_baskets(support: Any) -> None:
    X = ROWS.copy()
    X[:, 4] = True
    least = support if support >= 1 and not isinstance(support, float) else support * len(X) - 1e-9
    assert counts(frequent_itemsets(X, min_support=support)) == brute(X, least)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_sets_are_no_longer_than_asked_for(length: int, truth: Any) -> None:
    found = counts(frequent_itemsets(ROWS, min_support=11, max_length=length))
    assert found == {items: n for items, n in truth.items() if len(items) <= length}


def test_nothing_frequent_is_an_empty_frame() -> None:
    found = frequent_itemsets(np.zeros((5, 3)), min_support=0.5)
    assert found.shape == (0, 3)
    assert found.dtypes.astype(str).tolist() == ["float64", "int64", "object"]


def test_many_rare_items_of_sparse_rows() -> None:
    """Their pairs are counted row by row, and their bits are larger than the rows."""
    X = drawn(1500, np.full(150, 0.012), seed=3, few=(5, 40, 77, 140))
    truth = brute(X, 3)
    assert max(map(len, truth)) > 3
    assert counts(frequent_itemsets(sparse.csr_matrix(X), min_support=3)) == truth
    assert counts(frequent_itemsets(X, min_support=3)) == truth


def test_small_random_rows() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        n, d = rng.integers(1, 140), rng.integers(1, 8)
        X = rng.random((n, d)) < rng.random(d)
        least = int(rng.integers(1, max(2, n // 3)))
        for rows in (X, sparse.csr_matrix(X)):
            assert counts(frequent_itemsets(rows, min_support=least)) == brute(X, least)


def test_workers_change_nothing(client: Client) -> None:
    alone = frequent_itemsets(ROWS, min_support=0.01)
    lazy = da.from_array(ROWS, chunks=(300, 4))
    floats = da.from_array(ROWS.astype(np.float32), chunks=(200, 9))
    for X, run in (
        (lazy, None),
        (lazy, Run(n_lanes=3, deterministic=True)),
        (floats, Run(memory_budget="8 kB")),  # streamed
        (lazy.rechunk((250, -1)).map_blocks(sparse.csr_matrix), Run(n_lanes=2)),
    ):
        pd.testing.assert_frame_equal(frequent_itemsets(X, min_support=0.01, run=run), alone)
    frame = dd.from_pandas(pd.DataFrame(ROWS), npartitions=3)
    pd.testing.assert_frame_equal(frequent_itemsets(frame, min_support=0.01), alone)


def test_rows_beyond_the_budget_are_streamed(client: Client) -> None:
    rows_of_passes: list[Any] = []

    class Looks:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            rows_of_passes.append(record["rows"])

    X = da.from_array(ROWS, chunks=(100, -1))
    frequent_itemsets(X, min_support=0.01, run=Run(memory_budget="4 kB"), callbacks=[Looks()])
    assert rows_of_passes == [1100.0] * len(rows_of_passes)
    assert len(rows_of_passes) == max(map(len, brute(ROWS, 11)))  # a pass a level


LONG = pd.DataFrame(np.argwhere(ROWS), columns=["order", "product"]).sample(frac=1, random_state=0)
LONG = pd.concat([LONG, LONG.head(300)])  # some come twice


@pytest.mark.parametrize("lazy", [False, True])
def test_a_row_for_each_item_of_a_basket(lazy: bool, client: Client) -> None:
    frame = dd.from_pandas(LONG, npartitions=3, sort=False) if lazy else LONG
    found = frequent_itemsets(frame, basket="order", item="product", min_support=11)
    n_baskets = int(ROWS.any(axis=1).sum())
    assert counts(found) == brute(ROWS, 11)
    np.testing.assert_array_equal(found["support"], found["count"] / n_baskets)


def test_items_and_baskets_may_be_text() -> None:
    texts = LONG.assign(order=LONG["order"].map("no. {}".format), product=LONG["product"].map(str))
    found = frequent_itemsets(texts, basket="order", item="product", min_support=11)
    assert counts(found) == {tuple(map(str, s)): n for s, n in brute(ROWS, 11).items()}


def test_a_stopped_search_warns_of_missing_sizes() -> None:
    class Stops:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            if record["pass"] == 2:
                run.stop()

    longest = max(map(len, brute(ROWS, 11)))
    with pytest.warns(ConvergenceWarning, match="longer itemsets are missing") as caught:
        found = frequent_itemsets(ROWS, min_support=11, callbacks=[Stops()])
    length = int(str(caught[0].message).split("after length ")[1][0])
    assert 2 <= length < longest
    assert counts(found) == brute(ROWS, 11, most=length)


WRONG = ROWS.astype(float)
WRONG[700, 3] = np.nan
BELOW = ROWS.astype(np.int16)
BELOW[700, 3] = -2
TWICE = pd.DataFrame(ROWS, columns=[*NAMES[:-1], NAMES[0]])
BAD: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "share": (ROWS, {"min_support": 1.5}, InvalidParameterError, r"of \(0, 1\]"),
    "zero": (ROWS, {"min_support": 0}, InvalidParameterError, "integer >= 1"),
    "no share": (ROWS, {"min_support": 0.0}, InvalidParameterError, "share of the baskets"),
    "true": (ROWS, {"min_support": True}, InvalidParameterError, "integer >= 1"),
    "text": (ROWS, {"min_support": "all"}, InvalidParameterError, "min_support"),
    "length": (ROWS, {"max_length": 0}, InvalidParameterError, "max_length"),
    "run": (ROWS, {"run": Run(n_servers=2)}, InvalidParameterError, "frequent_itemsets.*n_servers"),
    "NaN": (WRONG, {}, InvalidDataError, r"NaN \(row 700"),
    "NaN, sparse": (sparse.csr_matrix(WRONG), {}, InvalidDataError, r"NaN \(row 700"),
    "negative": (BELOW, {}, InvalidDataError, r"-2 \(row 700.*zero or more"),
    "negative, sparse": (sparse.csr_matrix(BELOW), {}, InvalidDataError, r"-2 \(row 700"),
    "no rows": (ROWS[:0], {}, InvalidDataError, "0 sample"),
    "no columns": (ROWS[:, :0], {}, InvalidDataError, "0 feature"),
    "lists": (
        [["tea"], [], ["tea", "milk"]], {}, InvalidDataError, r"explode.*Baskets without items"
    ),
    "cubes": (np.ones((3, 2, 2)), {}, InvalidDataError, "two dimensions"),
    "names twice": (TWICE, {}, InvalidDataError, "item 0.*Rename"),
    "text columns": (pd.DataFrame({"a": ["x", "y"]}), {}, InvalidDataError, "not numeric"),
    "one column": (LONG, {"basket": "order"}, InvalidParameterError, "name both columns"),
    "no such": (LONG, {"basket": "order", "item": "thing"}, InvalidDataError, "no column 'thing'"),
    "the same": (LONG, {"basket": "order", "item": "order"}, InvalidParameterError, "two columns"),
    "no frame": (ROWS, {"basket": "order", "item": "product"}, InvalidDataError, "not a dataframe"),
    "empty": (
        LONG.head(0), {"basket": "order", "item": "product"}, InvalidDataError, "0 sample",
    ),
    "no basket": (
        LONG.assign(order=LONG["order"].where(LONG["order"] > 3)),
        {"basket": "order", "item": "product"}, InvalidDataError, "dropna",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_inputs_are_refused(case: str) -> None:
    X, options, error, match = BAD[case]
    with pytest.raises(error, match=match):
        frequent_itemsets(X, **options)


def test_too_many_candidates_are_refused_by_number() -> None:
    with pytest.raises(InvalidParameterError, match=r"9 frequent.*length 1 .*Raise min_support"):
        frequent_itemsets(ROWS, min_support=2, max_candidates=35)
    with pytest.raises(InvalidParameterError, match=r"36 candidates of length 3.*9 of length 1, "):
        frequent_itemsets(ROWS, min_support=1, max_candidates=36)
