"""The estimator `ALS`: frames and sparse arrays, workers, recommendations, invalid input."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import is_dask_collection
from distributed import Client
from scipy import sparse
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.errors import (
    DivergedError,
    InvalidDataError,
    InvalidParameterError,
    NotFittedError,
)
from daskml_dist.recommender import ALS, MatrixFactorization, TwoTower
from tests.quick import quick

rng = np.random.default_rng(0)
N_USERS, N_ITEMS = 120, 50
TASTES = rng.normal(size=(N_USERS, 3)), rng.normal(size=(N_ITEMS, 3))
WHOLE = 3 + TASTES[0] @ TASTES[1].T
PAIRS = rng.permutation(N_USERS * N_ITEMS)[:3000]
RATINGS = pd.DataFrame(
    {
        "user": PAIRS // N_ITEMS,
        "item": np.char.add("i", (PAIRS % N_ITEMS).astype(str)).astype(object),
        "rating": WHOLE.ravel()[PAIRS] + 0.1 * rng.normal(size=len(PAIRS)),
    }
)
LAZY = dd.from_pandas(RATINGS, npartitions=5, sort=False)
COUNTS = RATINGS.assign(rating=rng.integers(1, 9, len(PAIRS)))
HELD = pd.DataFrame({"user": (rest := np.setdiff1d(np.arange(WHOLE.size), PAIRS)) // N_ITEMS})
HELD["item"] = ["i" + str(i) for i in rest % N_ITEMS]
HELD["rating"] = WHOLE.ravel()[rest]
CALM = Run(n_lanes=3, deterministic=True)
ATTRIBUTES = ("user_factors_", "item_factors_", "user_ids_", "item_ids_", "mean_", "n_iter_")
KINDS: dict[str, dict[str, Any]] = {
    "explicit": {},
    "biased": {"biases": True},
    "implicit": {"implicit": True, "alpha": 5.0},
    "conjugate gradients": {"solver": "cg", "implicit": True},
}


def make_als(**params: Any) -> ALS:
    return ALS(4, **{"reg_param": 0.02, "random_state": 0, **params})


def assert_same(one: ALS, other: ALS) -> None:
    for name in ATTRIBUTES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("kind", quick(KINDS, "implicit"))
def test_results_do_not_depend_on_the_workers(kind: str, client: Client) -> None:
    frame = COUNTS if "implicit" in KINDS[kind] else RATINGS
    lazy = dd.from_pandas(frame, npartitions=5, sort=False)
    alone = make_als(**KINDS[kind], run=CALM).fit(frame)
    on_cluster = make_als(**KINDS[kind], run=CALM).fit(lazy)
    assert_same(on_cluster, alone)
    losses = [[record["loss"] for record in model.history_] for model in (on_cluster, alone)]
    np.testing.assert_allclose(*losses, rtol=1e-12)
    # For any lanes, up to rounding.
    other = make_als(**KINDS[kind]).fit(frame)
    np.testing.assert_allclose(other.item_factors_, alone.item_factors_, rtol=0, atol=1e-3)


def test_factors_beyond_the_budget_are_processed_in_parts(client: Client) -> None:
    whole = make_als(implicit=True, max_iter=3, run=CALM).fit(COUNTS)
    with dask.config.set({"daskml_dist.touched": 200}):
        parts = make_als(implicit=True, max_iter=3, run=CALM).fit(
            dd.from_pandas(COUNTS, npartitions=5, sort=False)
        )
    assert_same(parts, whole)
    losses = [[record["loss"] for record in model.history_] for model in (parts, whole)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


def test_held_out_ratings_are_predicted() -> None:
    for biases in (False, True):
        model = make_als(biases=biases).fit(RATINGS)
        assert model.score(HELD) > -0.5 > -HELD["rating"].std()
        loss = [record["loss"] for record in model.history_]
        assert loss[-1] == pytest.approx(-model.score(RATINGS), rel=1e-4)
        assert len(loss) == model.n_iter_ == 10


def test_a_sparse_matrix_equals_a_frame_of_indices(client: Client) -> None:
    matrix = sparse.csr_matrix(
        (RATINGS["rating"], (RATINGS["user"], RATINGS["item"].str[1:].astype(int))),
        shape=(N_USERS, N_ITEMS),
    )
    frame = RATINGS.assign(item=RATINGS["item"].str[1:].astype(int))
    found = make_als(run=CALM).fit(frame)
    assert_same(make_als(run=CALM).fit(matrix), found)
    chunks = da.concatenate(
        [
            da.from_delayed(part, (n, N_ITEMS), meta=matrix[:0])
            for n, part in ((40, _delayed(matrix[:40])), (80, _delayed(matrix[40:])))
        ]
    )
    lazily = make_als(run=CALM).fit(chunks)
    assert_same(lazily, found)
    mine = lazily.recommend([3, 7], 4)
    pd.testing.assert_frame_equal(mine, found.recommend([3, 7], 4))


def _delayed(part: Any) -> Any:
    from dask.delayed import delayed

    return delayed(part)


@pytest.mark.parametrize("kind", ["pyarrow", "polars"])
@pytest.mark.parametrize("model", [make_als(), MatrixFactorization(4), TwoTower(4)], ids=str)
def test_tables_of_any_kind(kind: str, model: Any) -> None:
    module = pytest.importorskip(kind)
    table = module.Table.from_pandas(COUNTS) if kind == "pyarrow" else module.from_pandas(COUNTS)
    wanted = clone(model).set_params(random_state=0).fit(COUNTS)
    found = clone(model).set_params(random_state=0).fit(table)
    np.testing.assert_array_equal(found.predict(table), wanted.predict(COUNTS))
    assert found.score(table) == wanted.score(COUNTS)
    assert found.recommend(n=3).equals(wanted.recommend(n=3))
    assert found.recommend(n=3, seen=table).equals(wanted.recommend(n=3))
    assert pickle.loads(pickle.dumps(found)).recommend(n=3).equals(wanted.recommend(n=3))


def test_predictions(client: Client) -> None:
    for kind in ("explicit", "biased", "implicit"):
        model = make_als(**KINDS[kind]).fit(COUNTS)
        some = RATINGS[["item", "user"]].head(200)
        found = model.predict(some)
        users = np.searchsorted(model.user_ids_, some["user"])
        items = np.searchsorted(model.item_ids_, some["item"].astype(str))
        expected = (model.user_factors_[users] * model.item_factors_[items]).sum(axis=1)
        if kind == "biased":
            expected += model.mean_ + model.user_biases_[users] + model.item_biases_[items]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        lazy = model.predict(dd.from_pandas(some, npartitions=3))
        assert is_dask_collection(lazy)
        np.testing.assert_array_equal(lazy.compute(), found)
        strange = [(10**6, "i3"), (3, "no such"), (10**6, "no such")]
        default = 0.0 if kind == "implicit" else model.mean_
        extra = np.zeros(3)
        if kind == "biased":
            (item,), (user,) = (np.flatnonzero(model.item_ids_ == "i3"), [3])
            extra[:2] = model.item_biases_[item], model.user_biases_[user]
        cold = model.predict(pd.DataFrame(strange, columns=["user", "item"]))
        np.testing.assert_allclose(cold, default + extra, rtol=1e-6)


@pytest.mark.parametrize("kind", quick(["explicit", "biased", "implicit"], "biased"))
def test_recommended_items_are_the_best_new_ones(kind: str, client: Client) -> None:
    frame = COUNTS if kind == "implicit" else RATINGS
    model = make_als(**KINDS[kind]).fit(frame)
    lazily = make_als(**KINDS[kind]).fit(dd.from_pandas(frame, npartitions=3, sort=False))
    users = [7, 3, 10**6, 11]
    for filter_seen in (True, False):
        found = model.recommend(users, 5, filter_seen=filter_seen)
        assert list(found.columns) == ["user", "item", "score"]
        assert found["user"].tolist() == [user for user in users for _ in range(5)]
        for user, group in found.groupby("user"):
            if user not in model.user_ids_:
                continue
            pairs = pd.DataFrame({"user": user, "item": model.item_ids_})
            pairs["score"] = model.predict(pairs)
            if filter_seen:
                pairs = pairs[~pairs["item"].isin(frame[frame["user"] == user]["item"])]
            best = pairs.nlargest(5, "score")
            assert group["item"].tolist() == best["item"].tolist()
            np.testing.assert_allclose(group["score"], best["score"], rtol=1e-4, atol=1e-5)
        again = lazily.recommend(users, 5, filter_seen=filter_seen)
        assert again["user"].tolist() == found["user"].tolist()
        lazy_users = dd.from_pandas(pd.Series(users, name="user"), npartitions=2, sort=False)
        lazy = model.recommend(lazy_users, 5, filter_seen=filter_seen)
        assert is_dask_collection(lazy)
        pd.testing.assert_frame_equal(lazy.compute().reset_index(drop=True), found)
    assert len(model.recommend(n=3)) == 3 * len(model.user_ids_)


@pytest.mark.parametrize(
    ("fitted", "given"),
    [("int64", "int32"), ("int64", "Int64"), ("str", "object"), ("str", "string[pyarrow]")],
)
def test_lazy_recommendations_declare_their_dtypes(fitted: str, given: str) -> None:
    frame = pd.DataFrame({"user": [0, 0, 0, 1], "item": [0, 1, 2, 2], "rating": 1.0})
    model = ALS(2).fit(frame.astype({"user": fitted, "item": fitted}))
    # The first partition is empty, and the user of the second has seen all items.
    users = pd.Series([0, 1, 1], name="user").astype("str").astype(given)
    parts = [dask.delayed(part) for part in (users[:0], users[:1], users[1:])]
    lazy = model.recommend(dd.from_delayed(parts, meta=users[:0]), 2)
    for part in dask.compute(lazy.to_delayed())[0]:
        pd.testing.assert_series_equal(part.dtypes, lazy.dtypes)
    assert len(lazy) == 4


def test_users_with_few_unseen_items_get_fewer_recommendations() -> None:
    frame = pd.DataFrame({"user": [0, 0, 0, 1], "item": [0, 1, 2, 2], "rating": 1.0})
    found = ALS(2).fit(frame).recommend(n=2)
    assert found["user"].tolist() == [1, 1]
    assert found["item"].tolist() in ([0, 1], [1, 0])


def test_similar_items() -> None:
    model = make_als().fit(RATINGS)
    found = model.similar_items(["i3", "i4"], 2)
    assert found["item"].tolist() == ["i3", "i3", "i4", "i4"]
    unit = model.item_factors_ / np.linalg.norm(model.item_factors_, axis=1, keepdims=True)
    row = unit @ unit[np.flatnonzero(model.item_ids_ == "i3")[0]]
    order = [i for i in model.item_ids_[np.argsort(-row)] if i != "i3"]
    assert found["similar"].tolist()[:2] == order[:2]
    assert found["score"].iloc[0] == pytest.approx(np.sort(row)[-2], rel=1e-5)
    with pytest.raises(InvalidDataError, match=r"not seen the items \['x'\]"):
        model.similar_items(["x"])


def test_duplicate_counts_are_summed_and_duplicate_ratings_are_not() -> None:
    once = COUNTS.groupby(["user", "item"], as_index=False).sum()
    twice = pd.concat([once, once], ignore_index=True)
    summed = once.assign(rating=2 * once["rating"])
    implicit = [
        make_als(implicit=True, alpha=3.0, dtype="float64").fit(frame) for frame in (twice, summed)
    ]
    np.testing.assert_allclose(implicit[0].item_factors_, implicit[1].item_factors_, rtol=1e-9)
    explicit = [make_als(dtype="float64").fit(frame) for frame in (twice, once)]
    np.testing.assert_allclose(explicit[0].item_factors_, explicit[1].item_factors_, rtol=1e-7)


def test_als_follows_the_estimator_interface(client: Client) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        make_als().predict(RATINGS)
    model = clone(make_als(run=CALM)).fit(RATINGS)
    unpickled = pickle.loads(pickle.dumps(model))
    pd.testing.assert_frame_equal(unpickled.recommend([3], 3), model.recommend([3], 3))
    lazily = pickle.loads(pickle.dumps(make_als().fit(LAZY)))
    with pytest.raises(InvalidDataError, match=r"recommend\(\.\.\., seen=ratings\)"):
        lazily.recommend([3])
    assert len(lazily.recommend([3], 3, seen=LAZY)) == 3
    assert len(lazily.recommend([3], 3, filter_seen=False)) == 3


def test_implicit_score() -> None:
    model = make_als(implicit=True, alpha=5.0).fit(COUNTS)
    liked = HELD[HELD["rating"] > 4]
    assert 0 <= model.score(liked) <= 1


NAN, INF = float("nan"), float("inf")
BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "rank": ({"rank": 0}, RATINGS, InvalidParameterError, "rank=0: use an integer >= 1"),
    "columns": ({"user_col": "who"}, RATINGS, InvalidDataError, "no column 'who'"),
    "columns of dask": ({"item_col": "what"}, LAZY, InvalidDataError, "no column 'what'"),
    "nan rating": ({}, RATINGS.assign(rating=NAN), InvalidDataError, "'rating' holds NaN"),
    "infinite": ({}, RATINGS.assign(rating=INF), InvalidDataError, "'rating' holds NaN or inf"),
    "nan id": ({}, RATINGS.assign(user=NAN), InvalidDataError, "missing id"),
    "empty": ({}, RATINGS[:0], InvalidDataError, "no rows"),
    "empty dask": ({}, LAZY[LAZY["rating"] > 99], InvalidDataError, "no entries in any part"),
    "negative": ({"implicit": True}, RATINGS, InvalidDataError, "must be at least 0"),
    "biases": ({"implicit": True, "biases": True}, COUNTS, InvalidParameterError, "biases=False"),
    "array": ({}, RATINGS[["user", "rating"]].to_numpy(), InvalidDataError, "Give a pandas"),
    "singular": ({"rank": 40, "reg_param": 0.0}, RATINGS, DivergedError, "Raise reg_param"),
    "gpu": ({"device": "gpu"}, RATINGS, InvalidParameterError, 'Use "auto" or "cpu"'),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_remedy(case: str, client: Client) -> None:
    params, frame, error, match = BAD[case]
    model = ALS(**params)
    with pytest.raises(error, match=match):
        model.fit(frame)
    assert not hasattr(model, "user_factors_")


#: Ids of the fit, ids of the prediction, and the remedy that is named.
OTHER_IDS = {
    "texts": (range(3), ["0", "1", "2"], r"ids of type str, but those of the fit.*'int64'"),
    "numbers": (["0", "1", "2"], range(3), r"astype\(str\)"),
    "bytes": (["0", "1", "2"], [b"0", b"1", b"2"], r"str\.decode\('utf-8'\)"),
    "no bytes": ([b"0", b"1", b"2"], ["0", "1", "2"], r"str\.encode\('utf-8'\)"),
    "rounded": (range(2**60, 2**60 + 3), np.arange(3) + 2.0**60, "could become equal"),
}


@pytest.mark.parametrize("case", OTHER_IDS)
def test_ids_of_another_type_are_refused(case: str) -> None:
    fitted, others, match = OTHER_IDS[case]
    ratings = pd.DataFrame({"user": fitted, "item": range(3), "rating": 1.0})
    with pytest.raises(InvalidDataError, match=match):
        make_als().fit(ratings).predict(ratings.assign(user=others))


def test_pairs_in_a_list_may_have_ids_of_two_types() -> None:
    model = make_als().fit(RATINGS)
    pairs = RATINGS[["user", "item"]].head()
    for rows in (pairs.to_numpy().tolist(), tuple(pairs.itertuples(index=False))):
        np.testing.assert_array_equal(model.predict(rows), model.predict(pairs))
    with pytest.raises(InvalidDataError, match="one user and one item per row"):
        model.predict([(1, "i1"), (2,)])


def test_users_in_a_frame(client: Client) -> None:
    model = make_als().fit(RATINGS)
    users = pd.DataFrame({"age": [3, 4], "user": [7, 1]})
    expected = model.recommend(users["user"], 2)
    pd.testing.assert_frame_equal(model.recommend(users, 2), expected)
    lazy = model.recommend(dd.from_pandas(users, npartitions=2), 2)
    np.testing.assert_array_equal(lazy.compute()["item"], expected["item"])
    for frame in (users[["age"]], dd.from_pandas(users[["age"]], npartitions=1)):
        with pytest.raises(InvalidDataError, match="users has no column 'user'"):
            model.recommend(frame)


@pytest.mark.parametrize(
    "model",
    [make_als(), make_als(implicit=True), MatrixFactorization(4, loss="log_loss", max_iter=1)],
    ids=str,
)
def test_no_ratings(model: Any, client: Client) -> None:
    model = clone(model).fit(COUNTS)
    for nothing in (COUNTS[:0], dd.from_pandas(COUNTS, npartitions=2).query("rating < 0")):
        assert len(model.recommend([1], 3, seen=nothing)) == 3
        with pytest.raises(InvalidDataError, match=r"filter that (it|they)"):
            model.score(nothing)


# -- new users, and explanations ------------------------------------------------------------------


def _systems(model: ALS, ratings: pd.DataFrame) -> dict[Any, tuple[Any, Any, Any]]:
    """Return matrix, right-hand side and items of each user's normal equations, by definition."""
    Y = model.item_factors_.astype(float)
    offsets = np.zeros(len(Y))
    if model.biases:
        Y = np.column_stack([Y, np.ones(len(Y))])
        offsets = model.mean_ + model.item_biases_.astype(float)
    found = {}
    if model.implicit:
        ratings = ratings.groupby(["user", "item"], as_index=False)["rating"].sum()
    for user, ratings_of_user in ratings[ratings["item"].isin(model.item_ids_)].groupby("user"):
        at, r = (
            np.searchsorted(model.item_ids_, ratings_of_user["item"]),
            ratings_of_user["rating"].to_numpy(float),
        )
        if model.implicit:
            confidence = 1 + model.alpha * r
            A = Y.T @ Y + (Y[at].T * (confidence - 1)) @ Y[at] + model.reg_param * np.eye(len(Y.T))
            found[user] = A, Y[at] * confidence[:, np.newaxis], at
        else:
            A = Y[at].T @ Y[at] + model.reg_param * len(ratings_of_user) * np.eye(len(Y.T))
            found[user] = A, Y[at] * (r - offsets[at])[:, np.newaxis], at
    return found


@pytest.mark.parametrize("kind", ["explicit", "biased", "implicit"])
def test_factors_of_new_users_solve_their_normal_equations(kind: str) -> None:
    frame = COUNTS if kind == "implicit" else RATINGS
    model = make_als(**KINDS[kind]).fit(frame)
    new = frame[frame["user"] < 3].assign(user=lambda rows: rows["user"] + 10**6)
    new = pd.concat([new, new.head(4), pd.DataFrame([(10**6, "no", 1.0)], columns=new.columns)])
    found = model.fold_in(new)
    assert found.user_ids_.tolist() == [10**6, 10**6 + 1, 10**6 + 2]
    np.testing.assert_array_equal(found.item_factors_, model.item_factors_)
    for at, (A, terms, _) in enumerate(_systems(model, new).values()):
        wanted = np.linalg.solve(A, terms.sum(axis=0))
        factors = found.user_factors_[at]
        factors = np.append(factors, found.user_biases_[at]) if kind == "biased" else factors
        np.testing.assert_allclose(factors, wanted, rtol=1e-3, atol=1e-3 * abs(wanted).max())
    best = found.recommend(n=50)
    assert not best.merge(new, on=["user", "item"]).size  # items that they have rated are excluded
    assert model.user_ids_.max() < 10**6


@pytest.mark.parametrize("kind", ["explicit", "biased", "implicit"])
def test_explanations_sum_to_the_prediction(kind: str) -> None:
    frame = COUNTS if kind == "implicit" else RATINGS
    model = make_als(**KINDS[kind]).fit(frame)
    ratings_of_user = frame[frame["user"] == 7]
    found = model.explain(ratings_of_user, "i3", n=1000)
    ((A, terms, at),) = _systems(model, ratings_of_user).values()
    item = int(np.searchsorted(model.item_ids_, "i3"))
    y = model.item_factors_[item].astype(float)
    y = np.append(y, 1.0) if kind == "biased" else y
    wanted = pd.Series(terms @ np.linalg.solve(A, y), model.item_ids_[at])
    # Means and biases subtracted from ratings are rounded to the factors' float32.
    np.testing.assert_allclose(found["score"], wanted[found["item"]], rtol=1e-5, atol=1e-6)
    assert (found["score"].diff().dropna() <= 0).all()
    (total,) = model.fold_in(ratings_of_user).predict(pd.DataFrame({"user": [7], "item": ["i3"]}))
    if kind == "biased":
        total -= model.mean_ + model.item_biases_[item]
    assert found["score"].sum() == pytest.approx(total, rel=1e-3, abs=1e-3)
    assert len(model.explain(ratings_of_user, "i3")) == 10


def test_similar_users_and_excluded_items() -> None:
    model = make_als().fit(RATINGS)
    unit = model.user_factors_ / np.linalg.norm(model.user_factors_, axis=1, keepdims=True)
    cosines = unit @ unit[5]
    found = model.similar_users([5], 3)
    assert found["user"].tolist() == [5] * 3
    assert found["similar"].tolist() == [i for i in np.argsort(-cosines).tolist() if i != 5][:3]
    np.testing.assert_allclose(found["score"], np.sort(cosines)[::-1][1:4], rtol=1e-5)
    every = model.recommend([3, 7], 50)
    hidden = every["item"].head(2).tolist()
    filtered = model.recommend([3, 7], 50, filter_items=[*hidden, "unseen"])
    expected = every[~every["item"].isin(hidden)].reset_index(drop=True)
    pd.testing.assert_frame_equal(filtered, expected)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: m.similar_users([10**6]), "not seen the users"),
        (lambda m: m.fold_in(RATINGS.head(2).assign(item="no")), "rated no item"),
        (lambda m: m.explain(RATINGS, "i3"), "ratings of one of them"),
        (lambda m: m.explain(RATINGS.head(1), "no"), "not seen the item 'no'"),
    ],
)
def test_refusals_of_new_users(call: Any, match: str) -> None:
    with pytest.raises(InvalidDataError, match=match):
        call(make_als().fit(RATINGS))


def test_parameters_of_the_next_fit_leave_new_users_alone() -> None:
    new, one = RATINGS[RATINGS["user"] < 3], RATINGS[RATINGS["user"] == 1]
    for biases in (False, True):
        model = make_als(biases=biases, dtype="float64").fit(RATINGS)
        expected, explained = model.fold_in(new).predict(new), model.explain(one, "i3")
        model.set_params(rank=2, biases=not biases)
        np.testing.assert_array_equal(model.fold_in(new).predict(new), expected)
        pd.testing.assert_frame_equal(model.explain(one, "i3"), explained)
