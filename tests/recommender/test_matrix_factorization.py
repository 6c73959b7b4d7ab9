"""The estimator `MatrixFactorization`: policies, workers, losses, continued fits, invalid input."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import is_dask_collection
from dask.delayed import delayed
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
from daskml_dist.policies import POLICIES
from daskml_dist.recommender import ALS, MatrixFactorization
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import quick


def ratings(n_users: int, n_items: int, n: int) -> pd.DataFrame:
    """Provide ratings of rank 2 with noise of 0.1."""
    rng = np.random.default_rng(0)
    tastes = rng.normal(size=(n_users, 2)), rng.normal(size=(n_items, 2))
    users, items = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    values = 3 + (tastes[0][users] * tastes[1][items]).sum(axis=1) + 0.1 * rng.normal(size=n)
    names = np.char.add("u", users.astype(str)).astype(object)
    return pd.DataFrame({"user": names, "item": items, "rating": values})


#: Enough for a batch to touch few of them.
N_USERS, N_ITEMS = 1600, 900
WHOLE = ratings(N_USERS, N_ITEMS, 40_000)
RATINGS, HELD = WHOLE[:36_000], WHOLE[36_000:]
SOME = RATINGS[:6000]
ATTRIBUTES = (
    "user_factors_", "item_factors_", "user_biases_", "item_biases_", "user_ids_", "item_ids_",
    "mean_", "n_iter_",
)  # fmt: skip
SUMMED = [name for name, kind in POLICIES.items() if not kind().averages]


def make_model(**params: Any) -> MatrixFactorization:
    return MatrixFactorization(2, **{"reg_param": 0.02, "random_state": 0, **params})


def lazy(frame: pd.DataFrame, n: int = 5) -> Any:
    return dd.from_pandas(frame, npartitions=n, sort=False)


def assert_same(one: MatrixFactorization, other: MatrixFactorization) -> None:
    for name in ATTRIBUTES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("n_servers", quick([1, 2], 2))
@pytest.mark.parametrize("policy", quick(["sync", "allreduce"], "sync"))
def test_results_do_not_depend_on_the_workers(policy: str, n_servers: int, client: Client) -> None:
    run = Run(n_lanes=3, n_servers=n_servers, deterministic=True)
    one = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
    frame = lazy(SOME)
    on_cluster = make_model(policy=policy, run=run, max_iter=2, batch_size=64).fit(frame)
    assert on_cluster.history_.extra["n_lanes"] == 3
    parts = client.persist(frame, workers=[one])
    in_process = make_model(policy=policy, run=run, max_iter=2, batch_size=64).fit(parts)
    assert_same(in_process, on_cluster)
    loss = [[record["loss"] for record in model.history_] for model in (in_process, on_cluster)]
    np.testing.assert_allclose(*loss, rtol=1e-12)


@pytest.mark.parametrize("policy", quick(SUMMED, "async"))
def test_every_policy_predicts_held_out_ratings(policy: str, client: Client) -> None:
    # With many ratings of each, held-out ones are predicted up to noise in any order of lanes.
    whole = ratings(400, 250, 40_000)
    fitted_ratings, held_out = whole[:36_000], whole[36_000:]
    model = make_model(policy=policy, run=Run(n_lanes=2, n_servers=2), max_iter=12)
    # More factors than the true rank, with which a fit may be stuck for some passes.
    model.set_params(rank=6).fit(lazy(fitted_ratings))
    assert model.score(held_out) > -0.25 > -held_out["rating"].std() / 5
    loss = [record["loss"] for record in model.history_]
    assert loss[-1] < 0.02 < loss[0] / 4
    assert len(loss) == model.n_iter_ == 12


@pytest.mark.slow
def test_the_objective_equals_that_of_least_squares() -> None:
    """With the same penalty both reach equally small losses."""

    def objective(model: Any) -> float:
        u = np.searchsorted(model.user_ids_, RATINGS["user"].astype(str))
        i = np.searchsorted(model.item_ids_, RATINGS["item"])
        error = model.predict(RATINGS) - RATINGS["rating"].to_numpy()
        total = error @ error
        for rows, at in ((model.user_factors_, u), (model.item_factors_, i)):
            total += 0.05 * (rows[at] ** 2).sum()
        for biases, at in ((model.user_biases_, u), (model.item_biases_, i)):
            total += 0.05 * (biases[at] ** 2).sum()
        return float(total / len(RATINGS))

    steps = make_model(reg_param=0.05, max_iter=60, learning_rate=0.1).fit(RATINGS)
    exact = ALS(2, reg_param=0.05, biases=True, max_iter=40, random_state=0).fit(RATINGS)
    assert objective(steps) == pytest.approx(objective(exact), rel=0.02)


def test_results_do_not_depend_on_the_type_of_ids(client: Client) -> None:
    """Steps on a frame of arbitrary ids equal those on a frame of indices."""
    frame = SOME.assign(user=SOME["user"].str[1:].astype(int))
    matrix = sparse.csr_matrix(
        (SOME["rating"], (frame["user"], frame["item"])), shape=(N_USERS, N_ITEMS)
    )
    cells = matrix.tocoo()
    ordered = pd.DataFrame({"user": cells.row, "item": cells.col, "rating": cells.data})
    found = make_model(max_iter=2).fit(ordered)
    assert_same(make_model(max_iter=2).fit(matrix), found)
    assert found.user_ids_.tolist() == sorted(set(ordered["user"]))
    halves = [matrix[:800], matrix[800:]]
    chunks = da.concatenate(
        [da.from_delayed(delayed(part), part.shape, meta=matrix[:0]) for part in halves]
    )
    run = Run(n_lanes=2)
    lazily = make_model(max_iter=2, run=run).fit(chunks)
    two = ordered.assign(part=ordered["user"] >= 800)
    split = dd.concat([lazy(part, 1) for _, part in two.groupby("part")])
    assert_same(make_model(max_iter=2, run=run).fit(split), lazily)
    # Empty partitions, and strings in another order than their partitions.
    gaps = dd.concat([lazy(SOME[:2000], 2), lazy(SOME, 1)[lazy(SOME, 1)["rating"] > 99]])
    gaps = make_model(max_iter=1, run=run).fit(gaps)
    assert gaps.user_ids_.tolist() == sorted(set(SOME["user"][:2000]))
    assert np.isfinite(gaps.user_factors_).all()


def test_predictions_and_recommendations(client: Client) -> None:
    for params in ({}, {"biases": False}):
        model = make_model(max_iter=3, **params).fit(SOME)
        pairs = SOME[["item", "user"]].head(100)
        u = np.searchsorted(model.user_ids_, pairs["user"].astype(str))
        i = np.searchsorted(model.item_ids_, pairs["item"])
        expected = model.mean_ + (model.user_factors_[u] * model.item_factors_[i]).sum(axis=1)
        if not params:
            expected += model.user_biases_[u] + model.item_biases_[i]
        found = model.predict(pairs)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        later = model.predict(lazy(pairs, 3))
        assert is_dask_collection(later)
        np.testing.assert_array_equal(later.compute(), found)
        cold = model.predict(pd.DataFrame({"user": ["who", "u1"], "item": [10**6, 10**6]}))
        known = 0.0 if params else model.user_biases_[model.user_ids_ == "u1"][0]
        np.testing.assert_allclose(cold, model.mean_ + np.array([0, known]), rtol=1e-6)
        best = model.recommend(["u1", "who"], 3)
        assert best["user"].tolist() == ["u1"] * 3 + ["who"] * 3
        assert not set(best["item"][:3]) & set(SOME[SOME["user"] == "u1"]["item"])
        np.testing.assert_allclose(best["score"][:3], model.predict(best[:3]), rtol=1e-4)
        assert len(model.similar_items([model.item_ids_[0]], 2)) == 2


LOSSES: dict[str, tuple[Any, Any]] = {
    "huber": (RATINGS["rating"], lambda m: m.score(HELD) > -0.9),
    "log_loss": (RATINGS["rating"] > 3, lambda m: m.score(HELD - [3]) > 0.85),
    "hinge": (RATINGS["rating"] > 3, lambda m: m.score(HELD) > 0.85),
    "poisson": (RATINGS["rating"].clip(0), lambda m: m.score(HELD) > -1.3),
}


@pytest.mark.parametrize("loss", quick(LOSSES, "log_loss"))
def test_losses(loss: str) -> None:
    kinds = HELD.assign(rating=(HELD["rating"] > 3).astype(float))
    frame = RATINGS.assign(rating=LOSSES[loss][0].astype(float))
    model = make_model(loss=loss, max_iter=20).fit(frame)
    found = model.predict(HELD)
    if loss in ("log_loss", "hinge"):
        assert model.score(kinds) > 0.85
        assert np.mean((found > (0.5 if loss == "log_loss" else 0)) == kinds["rating"]) > 0.85
    else:
        assert model.score(HELD.assign(rating=HELD["rating"].clip(0))) > -1.2
    if loss != "huber":
        assert found.min() >= (0 if loss != "hinge" else -100)
    assert model.recommend(["u1"], 2)["score"].tolist() == pytest.approx(
        model.predict(model.recommend(["u1"], 2)).tolist(), rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("pairwise", [True, False])
def test_implicit_feedback_samples_negatives(pairwise: bool, client: Client) -> None:
    """Users who like one half of the items are recommended others of that half."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 400, 16_000), rng.integers(0, 100, 16_000)
    chosen = pd.DataFrame({"user": users, "item": 2 * items + users % 2, "rating": 1.0})
    model = make_model(
        implicit=True, loss="log_loss", pairwise=pairwise, max_iter=10, early_stopping=True
    ).fit(lazy(chosen))
    # Half of the sampled negatives are of the preferred half.
    assert 0.65 < model.history_[-1]["val_score"] < 0.8
    best = model.recommend([0, 1, 2], 5)
    assert (best["item"] % 2 == best["user"] % 2).mean() > 0.9
    assert model.score(chosen.sample(300, random_state=0)) >= 0
    cold = model.predict(pd.DataFrame({"user": [-1], "item": [-1]}))
    assert cold == pytest.approx([0.5])


def test_a_fit_continues_with_new_ids() -> None:
    first = make_model(max_iter=4, warm_start=True).fit(SOME)
    before = {
        name: dict(
            zip(getattr(first, f"{name}_ids_"), getattr(first, f"{name}_factors_"), strict=True)
        )
        for name in ("user", "item")
    }
    more = pd.concat([SOME[500:], pd.DataFrame({"user": ["a", "zz"], "item": -1, "rating": 4.0})])
    mean, loss = first.mean_, first.history_[-1]["loss"]
    first.set_params(max_iter=1, learning_rate=1e-9).fit(more)
    assert first.mean_ == mean
    assert 0.5 * loss < first.history_[0]["loss"] < 1.1 * loss  # started from earlier factors
    assert {"a", "zz"} < set(first.user_ids_)
    for name, known in before.items():
        ids, factors = getattr(first, f"{name}_ids_"), getattr(first, f"{name}_factors_")
        for one, row in zip(ids, factors, strict=True):
            if one in known:
                np.testing.assert_allclose(row, known[one], atol=1e-5)
    with pytest.raises(InvalidParameterError, match="continues with rank=2"):
        first.set_params(rank=3).fit(more)


def test_early_stopping_and_clipping() -> None:
    noise = SOME.assign(rating=np.random.default_rng(1).normal(size=len(SOME)))
    model = make_model(early_stopping=True, max_iter=40, n_iter_no_change=2).fit(noise)
    scores = [record["val_score"] for record in model.history_]
    assert len(scores) < 40
    assert max(scores) < 0
    # Steps of a clipped gradient are no longer than it.
    tight = make_model(optimizer="sgd", learning_rate=1.0, clip=1e-6, max_iter=1).fit(SOME)
    barely_fitted = make_model(optimizer="sgd", learning_rate=1e-12, max_iter=1).fit(SOME)
    steps = np.abs(tight.item_factors_ - barely_fitted.item_factors_)
    n_steps = tight.history_[0]["steps"]
    assert 0 < steps.max() <= 1.1e-6 * n_steps


def test_a_checkpoint_resumes(tmp_path: Path) -> None:
    through = make_model(max_iter=4).fit(SOME)
    path = tmp_path / "fit"
    make_model(max_iter=2, checkpoint=Checkpoint(path)).fit(SOME)
    resumed = make_model(max_iter=4, checkpoint=Checkpoint(path)).fit(SOME)
    np.testing.assert_array_equal(resumed.item_factors_, through.item_factors_)


def test_it_follows_the_estimator_interface(client: Client) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        make_model().predict(RATINGS)
    model = clone(make_model(max_iter=1)).fit(SOME)
    unpickled = pickle.loads(pickle.dumps(model))
    pd.testing.assert_frame_equal(unpickled.recommend(["u3"], 3), model.recommend(["u3"], 3))
    lazily = pickle.loads(pickle.dumps(make_model(max_iter=1).fit(lazy(SOME))))
    with pytest.raises(InvalidDataError, match=r"recommend\(\.\.\., seen=ratings\)"):
        lazily.recommend(["u3"])


NAN, INF = float("nan"), float("inf")
BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "rank": ({"rank": 0}, SOME, InvalidParameterError, "rank=0: use an integer >= 1"),
    "loss": ({"loss": "no"}, SOME, InvalidParameterError, "loss='no'"),
    "average": ({"policy": "average"}, SOME, InvalidParameterError, "averages the factors"),
    "local": ({"policy": "local"}, SOME, InvalidParameterError, 'Use "sync"'),
    "negative": ({"implicit": True}, SOME.assign(rating=-1.0), InvalidDataError, "at least 0"),
    "pairwise": ({"pairwise": True}, SOME, InvalidParameterError, "Set implicit=True and loss"),
    "columns": ({"user_col": "who"}, SOME, InvalidDataError, "no column 'who'"),
    "nan rating": ({}, SOME.assign(rating=NAN), InvalidDataError, "'rating' holds NaN"),
    "infinite": ({}, lazy(SOME.assign(rating=INF)), InvalidDataError, "holds NaN or inf"),
    "nan id": ({}, SOME.assign(user=NAN), InvalidDataError, "missing id"),
    "empty": ({}, SOME[:0], InvalidDataError, "no rows"),
    "empty dask": ({}, lazy(SOME[SOME["rating"] > 99]), InvalidDataError, "no entries in any"),
    "counts": ({"loss": "poisson"}, SOME.assign(rating=-1.0), InvalidDataError, "out of the valid"),
    "diverges": (
        {"optimizer": "sgd", "learning_rate": 1e4, "biases": False, "max_iter": 30},
        SOME, DivergedError, "learning_rate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_remedy(case: str, client: Client) -> None:
    params, frame, error, match = BAD[case]
    model = MatrixFactorization(**params)
    with pytest.raises(error, match=match):
        model.fit(frame)
    assert not hasattr(model, "user_factors_")


def test_odd_ratings() -> None:
    one = pd.DataFrame({"user": [7, 7, 7], "item": ["a", "b", "a"], "rating": [1.0, 5.0, 1.0]})
    model = MatrixFactorization(10, reg_param=0.01, max_iter=50, random_state=0).fit(one)
    assert model.user_factors_.shape == (1, 10)
    found = model.predict(pd.DataFrame({"user": 7, "item": ["a", "b"]}))
    np.testing.assert_allclose(found, [1, 5], atol=0.3)
    same = one.assign(rating=2.0)
    model = MatrixFactorization(2, random_state=0).fit(same)
    np.testing.assert_allclose(model.predict(same), 2, atol=0.05)
