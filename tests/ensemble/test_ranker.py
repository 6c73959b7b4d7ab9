"""Ranking: trees do not depend on the placement of rows; good rankings; helpful errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.metrics import ndcg_score as sklearn_ndcg

from daskml_dist import Run, load
from daskml_dist.data.query_ids import encode_query_ids
from daskml_dist.ensemble import HistGradientBoostingRanker
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import ndcg_score
from daskml_dist.model_selection import GridSearchCV, GroupKFold, cross_val_score
from daskml_dist.solvers import gradient_boosting
from tests.quick import in_turn

rng = np.random.default_rng(0)
#: Rows of 90 queries with 1 to 30 rows each; ids are unordered.
SIZES = rng.integers(1, 31, 90)
SIZES[:3] = 1, 2, 30
QID = np.repeat(rng.permutation(1_000)[:90], SIZES)
N = len(QID)
X = rng.normal(size=(N, 5))
X[rng.random(X.shape) < 0.03] = np.nan
SIGNAL = np.nan_to_num(X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2])) + 0.3 * rng.normal(size=N)
Y = np.digitize(SIGNAL, np.quantile(SIGNAL, [0.5, 0.75, 0.9, 0.97]))
#: A weight for each query.
OF_QUERY = rng.uniform(0.5, 2, 90)
WEIGHT = np.repeat(OF_QUERY, SIZES)
GIVEN: dict[str, Any] = {"max_iter": 6, "min_samples_leaf": 5, "random_state": 0}
ALONE = Run(n_lanes=1)
OBJECTIVES = ("lambdarank", "rank_xendcg", "pairwise")


def bits(model: Any) -> list[bytes]:
    """Return all fitted arrays, for bitwise comparison."""
    nodes = model._trees.nodes
    found = [getattr(nodes, f.name).tobytes() for f in fields(nodes)]
    return [*found, model.train_score_.tobytes(), model.validation_score_.tobytes()]


def chunked(n: Any, *arrays: Any) -> list[Any]:
    return [da.from_array(np.asarray(a), chunks=(n, *a.shape[1:])) for a in arrays]


def mean_ndcg(scores: Any, at: Any, k: int) -> float:
    """Mean NDCG of the queries with rows in a mask, by scikit-learn, with exponential gains."""
    found = []
    for query in np.unique(QID[at]):
        of_query = at & (QID == query)
        gains = 2.0 ** Y[of_query] - 1
        alone = of_query.sum() == 1  # scikit-learn accepts no query of one row
        found.append(
            float(gains[0] > 0) if alone else sklearn_ndcg([gains], [scores[of_query]], k=k)
        )  # fmt: skip
    return float(np.mean(found))


@pytest.mark.parametrize(("objective", "cut"), in_turn(OBJECTIVES, [(97, None), (N, 5), (13, 3)]))
def test_the_same_trees_for_any_chunks_and_lanes(
    client: Client, objective: str, cut: tuple[int, int | None]
) -> None:
    params = {**GIVEN, "objective": objective, "early_stopping": True}
    alone = HistGradientBoostingRanker(**params, run=ALONE).fit(X, Y, WEIGHT, group=QID)
    n, n_lanes = cut
    lazy_X, y, weight, qid = chunked(n, X, Y, WEIGHT, QID)
    model = HistGradientBoostingRanker(**params, run=Run(n_lanes=n_lanes))
    assert bits(model.fit(lazy_X, y, weight, group=qid)) == bits(alone)


def test_the_same_trees_of_scattered_queries(client: Client) -> None:
    """Each block has rows of almost every query."""
    at = rng.permutation(N)
    rows = X[at], Y[at], WEIGHT[at], QID[at]
    alone = HistGradientBoostingRanker(**GIVEN, run=ALONE)
    alone.fit(*rows[:3], group=rows[3])
    lazy_X, y, weight, qid = chunked(101, *rows)
    model = HistGradientBoostingRanker(**GIVEN).fit(lazy_X, y, weight, group=qid)
    assert bits(model) == bits(alone)


def test_queries_are_given_in_any_form(client: Client) -> None:
    alone = HistGradientBoostingRanker(**GIVEN, run=ALONE).fit(X, Y, WEIGHT, group=QID)
    frame = pd.DataFrame(X, columns=list("abcde"))
    words = np.array([f"query {q}" for q in QID])
    lazy = dd.from_pandas(frame.assign(qid=QID, y=Y, w=WEIGHT), npartitions=5, sort=False)
    named = lazy.rename(columns={"qid": "words"}).assign(words=lazy["qid"].astype(str))
    fits = {
        "sizes": lambda m: m.fit(X, Y, OF_QUERY, group=SIZES),
        "sizes of rows on Dask": lambda m: m.fit(*chunked(97, X, Y), OF_QUERY, group=SIZES),
        "words": lambda m: m.fit(X, Y, WEIGHT, group=words),
        "floats": lambda m: m.fit(X, Y, WEIGHT, group=QID.astype(float)),
        "list": lambda m: m.fit(X, Y, WEIGHT, group=QID.tolist()),
        "column": lambda m: m.fit(frame.assign(qid=QID), Y, WEIGHT),
        "named column": lambda m: m.fit(frame.assign(q=words), Y, WEIGHT, group="q"),
        "series": lambda m: m.fit(frame, pd.Series(Y), WEIGHT, group=pd.Series(QID)),
        "lazy frame": lambda m: m.fit(lazy, "y", "w"),
        "lazy words": lambda m: m.fit(named, "y", "w", group="words"),
        "lazy and in memory": lambda m: m.fit(*chunked(97, X, Y), WEIGHT, group=QID),
        "other chunks": lambda m: m.fit(
            *chunked(97, X, Y, WEIGHT), group=da.from_array(QID, chunks=50)
        ),
    }
    for name, fit in fits.items():
        model = fit(HistGradientBoostingRanker(**GIVEN))
        assert bits(model) == bits(alone), name
        assert model.n_features_in_ == 5


def test_predictions_do_not_depend_on_queries() -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = HistGradientBoostingRanker(**GIVEN).fit(frame.assign(qid=QID), Y)
    assert list(model.feature_names_in_) == list("abcde")
    expected = model.predict(frame)
    np.testing.assert_array_equal(model.predict(frame.assign(qid=0)), expected)
    np.testing.assert_array_equal(list(model.staged_predict(frame))[-1], expected)
    lazy = dd.from_pandas(frame.assign(qid=QID), npartitions=3)
    found = model.predict(lazy)
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(found.compute(), expected)
    assert model.apply(frame).shape == (N, 6)
    with_queries = frame.assign(qid=QID)
    assert model.score(with_queries, Y) == pytest.approx(model.score(frame, Y, group=QID))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rankings_improve(objective: str) -> None:
    model = HistGradientBoostingRanker(objective, max_iter=60, min_samples_leaf=5, random_state=0)
    model.fit(X, Y, group=QID)
    every = np.ones(N, bool)
    assert mean_ndcg(model.predict(X), every, 10) > 0.9 > 0.7 > mean_ndcg(np.zeros(N), every, 10)


@pytest.mark.parametrize("holds_out", [True, False])
def test_scores_equal_ndcg_of_whole_queries(holds_out: bool) -> None:
    params = {**GIVEN, "early_stopping": True, "ndcg_eval_at": 5}
    params["validation_fraction"] = 0.3 if holds_out else None
    model = HistGradientBoostingRanker(**params).fit(X, Y, group=QID)
    # Held-out queries are not trained on; they are identified by the scores.
    stages = [np.zeros(N), *model.staged_predict(X)]
    assert len(model.train_score_) == len(stages) == 7
    if not holds_out:
        wanted = [mean_ndcg(scores, np.ones(N, bool), 5) for scores in stages]
        np.testing.assert_allclose(model.train_score_, wanted, rtol=1e-12)
        assert not len(model.validation_score_)
        assert model.score(X, Y, group=QID) == pytest.approx(wanted[-1])
        return
    assert len(model.validation_score_) == 7
    n = len(np.unique(QID))
    whole = np.array([mean_ndcg(scores, np.ones(N, bool), 5) for scores in stages])
    # The mean over all queries is the mean of both parts, weighted by their numbers of queries.
    shares = (whole - model.train_score_) / (model.validation_score_ - model.train_score_)
    np.testing.assert_allclose(shares, round(shares[0] * n) / n, rtol=1e-6)
    assert 0.15 < shares[0] < 0.45


def test_validation_sets_are_scored_and_stop_the_fit(client: Client) -> None:
    at = np.isin(QID, np.unique(QID)[::3])
    train, validation = ((X[m], Y[m], QID[m]) for m in (~at, at))
    params = {**GIVEN, "ndcg_eval_at": [3, 10, None]}
    model = HistGradientBoostingRanker(**params, run=ALONE)
    model.fit(*train[:2], group=train[2], eval_set={"held": validation})
    keys = [key for key in model.history_.records[0] if key.startswith("eval_score_held")]
    assert keys == ["eval_score_held_ndcg@3", "eval_score_held_ndcg@10", "eval_score_held_ndcg"]
    for record, scores in zip(model.history_, model.staged_predict(X), strict=True):
        assert record["eval_score_held_ndcg@3"] == pytest.approx(mean_ndcg(scores, at, 3))
    unwatched = HistGradientBoostingRanker(**params).fit(*train[:2], group=train[2])
    assert bits(unwatched) == bits(model)
    lazy_sets = [chunked(60, *rows) for rows in (train, validation)]
    lazy = HistGradientBoostingRanker(**params)
    (lazy_X, y, qid), others = lazy_sets
    lazy.fit(lazy_X, y, group=qid, eval_set={"held": tuple(others)})
    assert bits(lazy) == bits(model)
    assert [r["eval_score_held_ndcg"] for r in lazy.history_] == [
        r["eval_score_held_ndcg"] for r in model.history_
    ]
    stopped = HistGradientBoostingRanker(
        **{**params, "max_iter": 200}, early_stopping=True, n_iter_no_change=2, tol=0.01
    ).fit(
        *train[:2],
        group=train[2],
        X_val=validation[0],
        y_val=validation[1],
        group_val=validation[2],
    )
    assert stopped.n_iter_ < 200
    last = mean_ndcg(stopped.predict(X), at, 3)
    assert stopped.validation_score_[-1] == pytest.approx(last)


def test_a_warm_start_continues_bit_for_bit() -> None:
    params = {**GIVEN, "objective": "rank_xendcg"}
    whole = HistGradientBoostingRanker(**params).fit(X, Y, group=QID)
    warm = HistGradientBoostingRanker(**{**params, "max_iter": 2}, warm_start=True)
    warm.fit(X, Y, group=QID).set_params(max_iter=6).fit(X, Y, group=QID)
    assert bits(warm) == bits(whole)


def test_gradients_of_few_bits_do_not_depend_on_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAMPLE_ROWS", "_MIN_MEAN_SQUARE", "_MIN_MEAN_HESSIAN"):
        monkeypatch.setattr(gradient_boosting, name, 0)
    one, three = (
        HistGradientBoostingRanker(**GIVEN, run=Run(n_lanes=n)).fit(X, Y, group=QID) for n in (1, 3)
    )
    assert bits(one) == bits(three)


def test_a_weight_of_a_query_equals_its_repetition() -> None:
    times = np.where(np.arange(90) % 4 == 0, 2, 1)
    twice = np.concatenate([np.arange(N), np.flatnonzero(np.repeat(times, SIZES) == 2)])
    ids = QID[twice].copy()
    ids[N:] += 5_000
    params = {"max_iter": 3, "min_samples_leaf": 1, "max_leaf_nodes": 4}
    weighted = HistGradientBoostingRanker(**params).fit(X, Y, times, group=SIZES)
    repeated = HistGradientBoostingRanker(**params).fit(X[twice], Y[twice], group=ids)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-4, atol=1e-6)


def test_searches_and_clones_keep_queries_together(client: Client) -> None:
    frame = pd.DataFrame(X, columns=list("abcde")).assign(qid=QID)
    ranker = HistGradientBoostingRanker(max_iter=3, random_state=0)
    options = {"cv": GroupKFold(3), "groups": QID}
    scores = cross_val_score(ranker, frame, Y, **options)
    search = GridSearchCV(ranker, {"max_leaf_nodes": [2, 31]}, cv=GroupKFold(3))
    search.fit(frame, Y, groups=QID)
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(scores.mean())
    lazy = dd.from_pandas(frame.assign(y=Y), npartitions=4, sort=False)
    scores_of_clone = cross_val_score(
        ranker, lazy.drop(columns="y"), lazy["y"], cv=GroupKFold(3), groups=lazy["qid"]
    )
    np.testing.assert_allclose(scores_of_clone, scores)
    assert clone(ranker).get_params() == ranker.get_params()


def test_saved_and_loaded(tmp_path: Any) -> None:
    pytest.importorskip("skops")
    model = HistGradientBoostingRanker(**GIVEN).fit(X, Y, group=QID)
    model.save(tmp_path / "ranker.skops")
    loaded = load(tmp_path / "ranker.skops")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.score(X, Y, group=QID) == model.score(X, Y, group=QID)


def test_queries_without_an_order_change_nothing() -> None:
    """Queries of one row, or of equal labels."""
    alone = HistGradientBoostingRanker(**GIVEN).fit(X, Y, group=QID)
    flat = np.concatenate([Y, np.full(40, 2)])
    more = np.concatenate([QID, np.arange(5_000, 5_020), np.full(20, 6_000)])
    rows = np.concatenate([X, X[:40]])
    found = HistGradientBoostingRanker(**GIVEN).fit(rows, flat, group=more)
    assert found.n_iter_ == alone.n_iter_
    none = HistGradientBoostingRanker(**GIVEN).fit(X[:40], np.ones(40), group=np.arange(40))
    np.testing.assert_array_equal(none.predict(X), 0.0)


@pytest.mark.parametrize(
    ("fit_params", "match"),
    [
        ({}, "which rows belong to one query"),
        ({"group": "qid"}, "which rows belong to one query"),
        ({"group": SIZES[:-1]}, "sizes of queries"),
        ({"group": ["a", "b"]}, "sizes of queries"),
        ({"group_val": QID, "group": QID}, "X_val was not provided"),
        ({"group": np.where(np.arange(N) == 3, np.nan, QID)}, "group contains NaN"),
        ({"group": [None, *QID[1:].tolist()]}, "group contains NaN"),
        ({"group": QID[:, None] * [1, 1]}, "1d array"),
        ({"group": QID, "y": Y - 1}, "negative relevance"),
        ({"group": QID, "y": Y + 0.5}, "whole numbers"),
        ({"group": QID, "y": Y * 10}, "label 40.*goes up to 31"),
        ({"group": QID, "y": np.where(np.arange(N) == 3, np.nan, Y)}, "y contains NaN"),
        ({"group": QID, "sample_weight": 1.0 + np.arange(N)}, "different weights"),
        ({"group": QID, "sample_weight": OF_QUERY}, "inconsistent numbers of samples"),
        ({"group": QID, "eval_set": (X, Y, QID)}, "queries have rows both in the training rows"),
        ({"group": QID, "y": None}, "requires y"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_rows_are_named(fit_params: dict[str, Any], match: str) -> None:
    fit_params = dict(fit_params)
    y = fit_params.pop("y", Y)
    with pytest.raises(InvalidDataError, match=match):
        HistGradientBoostingRanker(max_iter=1).fit(X, y, **fit_params)


def test_ids_of_mixed_types_are_the_same_in_any_block() -> None:
    """One block has only integers, another one integers and strings."""
    ids = np.array([3, "a", 3.0, 2**63 + 1, "3", 7.5, True], dtype=object)
    whole = encode_query_ids(ids)
    assert len(set(whole.tolist())) == 6
    parts = [np.array([one], dtype=object) for one in ids]
    assert whole.tolist() == np.concatenate([encode_query_ids(one) for one in parts]).tolist()
    typed = [np.array([3]), np.array(["a"]), np.array([3.0]), np.array([2**63 + 1], np.uint64)]
    assert whole[:4].tolist() == np.concatenate([encode_query_ids(one) for one in typed]).tolist()
    assert encode_query_ids(np.array([7.5]))[0] == whole[5]


def test_batches_hold_queries_targets_and_weights() -> None:
    frame = pd.DataFrame(X, columns=list("abcde")).assign(qid=QID)
    cuts = [0, 101, 350, N]
    batches = (
        (frame[first:end], Y[first:end], WEIGHT[first:end])
        for first, end in itertools.pairwise(cuts)
    )
    found = HistGradientBoostingRanker(**GIVEN).fit(batches)
    alone = HistGradientBoostingRanker(**GIVEN).fit(frame, Y, WEIGHT)
    assert bits(found) == bits(alone)


def test_blocks_of_unknown_sizes_are_matched_or_refused() -> None:
    lazy_X, y, qid = chunked(97, X, Y, QID)
    unknown = dd.from_pandas(pd.DataFrame({"qid": QID}), npartitions=2)["qid"]
    with pytest.raises(InvalidDataError, match="blocks and group 2"):
        HistGradientBoostingRanker(max_iter=1).fit(lazy_X, y, group=unknown)
    alone = HistGradientBoostingRanker(**GIVEN).fit(X, Y, group=QID)
    lazy = HistGradientBoostingRanker(**GIVEN).fit(X, Y, group=qid[:, None])
    assert bits(lazy) == bits(alone)
    column = HistGradientBoostingRanker(**GIVEN).fit(lazy_X, y, group=QID[:, None])
    assert bits(column) == bits(alone)


def test_bad_rows_on_dask_are_named() -> None:
    lazy_X, y, qid = chunked(97, X, Y, QID)
    with pytest.raises(InvalidDataError, match="negative relevance"):
        HistGradientBoostingRanker(max_iter=1).fit(lazy_X, y - 1, group=qid)
    unknown = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")), npartitions=2)
    with pytest.raises(InvalidDataError, match="names no column of X"):
        HistGradientBoostingRanker().fit(unknown.assign(y=1), "y", group="quid")
    with pytest.raises(InvalidDataError, match="compute_chunk_sizes"):
        HistGradientBoostingRanker().fit(unknown.assign(y=1), "y", group=SIZES)
    with pytest.raises(InvalidDataError, match="id per row"):
        HistGradientBoostingRanker().fit(lazy_X, y, group=qid[:-1])


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"objective": "lambdamart"}, "lambdarank"),
        ({"group": 3}, "name of a column"),
        ({"truncation_level": 0}, "truncation_level"),
        ({"sigmoid": 0.0}, "sigmoid"),
        ({"normalize": "yes"}, "normalize"),
        ({"label_gain": "square"}, "label_gain"),
        ({"label_gain": [0, -1]}, "label_gain"),
        ({"ndcg_eval_at": 0}, "ndcg_eval_at"),
        ({"ndcg_eval_at": []}, "ndcg_eval_at"),
        ({"validation_fraction": 5}, "share of the queries"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(params: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        HistGradientBoostingRanker(**params).fit(X, Y, group=QID)


def test_gains_of_labels_weight_the_ranking() -> None:
    params = {"max_iter": 3, "random_state": 0}
    table, named = (
        HistGradientBoostingRanker(label_gain=gain, **params).fit(X, Y, group=QID)
        for gain in ([0, 1, 3, 7, 15], "exponential")
    )
    assert bits(table) == bits(named)
    linear = HistGradientBoostingRanker(label_gain="linear", **params).fit(X, Y / 2, group=QID)
    assert bits(linear) != bits(named)
    with pytest.raises(InvalidDataError, match="label_gain of 5 numbers"):
        HistGradientBoostingRanker(label_gain=[0, 1, 3, 7], **params).fit(X, Y, group=QID)
    found = linear.score(X, Y, group=QID)
    assert found == pytest.approx(ndcg_score(Y, linear.predict(X), group=QID, k=10))


@pytest.fixture(scope="module", params=[1, 2, 8])
def workers(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Worker processes."""
    with (
        LocalCluster(
            n_workers=request.param, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_trees_of_any_number_of_workers(objective: str, scattered: bool, workers: Client) -> None:
    at = rng.permutation(N) if scattered else np.arange(N)
    rows = X[at], Y[at], WEIGHT[at], QID[at]
    params = {**GIVEN, "objective": objective, "early_stopping": True}
    alone = HistGradientBoostingRanker(**params, run=ALONE)
    alone.fit(*rows[:3], group=rows[3])
    lazy_X, y, weight, qid = chunked(N // 16, *rows)
    model = HistGradientBoostingRanker(**params)
    model.fit(lazy_X, y, weight, group=qid, client=workers)
    assert bits(model) == bits(alone)
