"""Two-tower models: learning beyond popularity, workers and servers, kills, refusals."""

from __future__ import annotations

from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import daskml_dist
from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import ndcg_at_k
from daskml_dist.recommender import TwoTower
from daskml_dist.serving import Publisher

N_USERS, N_ITEMS = 60, 40


def _choices(n: int = 2_400) -> pd.DataFrame:
    """Return choices of items of the user's side; a few items are popular on either side."""
    rng = np.random.default_rng(0)
    users = rng.integers(N_USERS, size=n)
    items = 2 * rng.zipf(1.6, size=n).clip(max=N_ITEMS // 2) - 1 - users % 2
    frame = pd.DataFrame({"user": users, "item": [f"film {i:02d}" for i in items]})
    frame["age"] = users % 5 + 20.0
    frame["kinds"] = [[int(i) % 2, int(i) % 3 + 2] for i in items]
    return frame


def _side(frame: pd.DataFrame) -> Any:
    """Return whether the item is of its user's side."""
    return frame["item"].str[-2:].astype(int) % 2 == (frame["user"] + 1) % 2


PARAMS: dict[str, Any] = {"rank": 8, "random_state": 0, "batch_size": 100}
WITH_COLUMNS: dict[str, Any] = {
    **PARAMS, "user_features": ["age"], "item_features": ["kinds"], "hidden_layer_sizes": (8,),
}  # fmt: skip


def _assert_same(first: TwoTower, second: TwoTower) -> None:
    for name in (
        "user_ids_",
        "item_ids_",
        "ids_",
        "user_factors_",
        "item_factors_",
        "item_biases_",
    ):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("params", [PARAMS, WITH_COLUMNS])
def test_items_of_a_users_side_are_recommended(params: dict[str, Any]) -> None:
    chosen = _choices()
    model = TwoTower(max_iter=20, **params).fit(chosen)
    best = model.recommend(n=5, filter_seen=False)
    assert _side(best).mean() > 0.97
    assert sorted(model.item_ids_) == sorted(chosen["item"].unique())
    # Popular items come first, since the logit is that of an item among all.
    assert best.groupby("user")["item"].first().isin(["film 00", "film 01"]).mean() > 0.9
    held_out = chosen.sample(300, random_state=0)
    assert model.score(held_out) == pytest.approx(
        ndcg_at_k(held_out, model.recommend(held_out["user"].unique()))
    )
    alike = model.similar_items(["film 05"], n=3)["similar"].str[-2:].astype(int)
    assert (alike % 2 == 1).mean() > 0.6


def test_logits_are_corrected_by_frequencies() -> None:
    """Without user features scores are the logarithms of the items' shares."""
    rng = np.random.default_rng(0)
    items = rng.choice(4, p=[0.6, 0.25, 0.1, 0.05], size=4_000)
    chosen = pd.DataFrame({"user": 0, "item": items})
    model = TwoTower(2, max_iter=40, random_state=0, init_scale=0.0, batch_size=200).fit(chosen)
    scores = model.predict(pd.DataFrame({"user": 0, "item": range(4)}))
    shares = np.bincount(items) / len(items)
    np.testing.assert_allclose(scores - scores[0], np.log(shares / shares[0]), atol=0.15)


def test_tower_outputs_of_columns_equal_the_factors(client: Client) -> None:
    chosen = _choices()
    model = TwoTower(max_iter=3, **WITH_COLUMNS).fit(chosen)
    users = chosen.drop_duplicates("user").sort_values("user")
    items = chosen.drop_duplicates("item").sort_values("item")
    found = model.embed_users(users), model.embed_items(items)
    np.testing.assert_array_equal(found[0][:, :-1], model.user_factors_)
    np.testing.assert_array_equal(found[1][:, :-1], model.item_factors_)
    np.testing.assert_array_equal(found[1][:, -1], model.item_biases_)
    pairs = pd.DataFrame(
        {"user": users["user"].iloc[:3], "item": items["item"].iloc[:3].to_numpy()}
    )
    scores = np.einsum("ij,ij->i", found[0][:3], found[1][:3])
    np.testing.assert_allclose(model.predict(pairs), scores, rtol=1e-5)
    with dask.config.set({"dataframe.convert-string": False}):  # lists would become strings
        lazy = model.embed_items(dd.from_pandas(items, npartitions=2, sort=False))
    # The order of sums in BLAS depends on the number of rows, which is smaller in blocks.
    np.testing.assert_allclose(lazy.compute(), found[1], rtol=1e-5, atol=1e-6)
    # The kinds of a new item determine its side.
    new = pd.DataFrame({"item": ["new"], "kinds": [[1, 2]]})
    scores = (found[0] @ model.embed_items(new).T)[:, 0]
    assert scores.shape == (N_USERS,)


@pytest.mark.parametrize("params", [PARAMS, WITH_COLUMNS])
def test_lock_step_fits_do_not_depend_on_the_servers(
    client: Client, params: dict[str, Any]
) -> None:
    chosen = _choices(600)
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = dd.from_pandas(chosen, npartitions=3, sort=False)
    fits = [
        TwoTower(
            max_iter=2, run=Run(n_lanes=3, n_servers=n_servers, deterministic=True), **params
        ).fit(lazy, client=where)
        for n_servers, where in ((1, client), (2, client), (1, None))
    ]
    for other in fits[1:]:
        _assert_same(other, fits[0])
    best = fits[0].recommend([3, 4], n=2)
    assert len(best) == 4
    known_pairs = set(map(tuple, chosen[["user", "item"]].to_numpy().tolist()))
    assert not known_pairs & set(map(tuple, best[["user", "item"]].to_numpy().tolist()))


def test_a_fit_continues_with_other_rows() -> None:
    chosen = _choices(600)
    params = WITH_COLUMNS | {"batch_size": None, "shuffle": False, "dtype": "float64"}
    whole = TwoTower(max_iter=6, **params).fit(chosen)
    parts = TwoTower(max_iter=3, warm_start=True, **params).fit(chosen).fit(chosen)
    np.testing.assert_array_equal(parts.ids_, whole.ids_)
    for name in ("user_factors_", "item_factors_", "item_biases_"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-9)
    newer = chosen[:100].assign(user=chosen["user"][:100] + N_USERS)
    parts.fit(newer)
    assert parts.user_ids_.min() >= N_USERS
    # Users of earlier rows still have rows in the table.
    assert len(parts.ids_) > len(whole.ids_)
    with pytest.raises(InvalidParameterError, match="columns of the last fit"):
        parts.set_params(user_features=()).fit(chosen)
    with pytest.raises(InvalidParameterError, match="Continuing needs"):
        TwoTower(warm_start=True, **PARAMS).fit(chosen).set_params(rank=4).fit(chosen)


def test_weights_are_relative() -> None:
    chosen = _choices(400)
    twice = pd.concat([chosen, chosen[:100]])
    weighed = chosen.assign(count=np.where(np.arange(400) < 100, 2.0, 1.0))
    params = PARAMS | {"batch_size": None, "shuffle": False, "max_iter": 2, "dtype": "float64"}
    zeros = chosen[:100].assign(count=0.0)
    model = TwoTower(rating_col="count", **params).fit(pd.concat([weighed, zeros]))
    other = TwoTower(rating_col="count", **params).fit(
        pd.concat([weighed.assign(count=weighed["count"] * 3), zeros])
    )
    # Weights are relative; rows of weight 0 serve as negatives only.
    np.testing.assert_allclose(model.item_factors_, other.item_factors_, rtol=1e-6)
    assert TwoTower(**params).fit(twice).history_[0]["rows"] == 500


@pytest.mark.parametrize("suffix", [pytest.param("skops", marks=pytest.mark.slow), "safetensors"])
def test_a_saved_model_recommends_and_embeds(tmp_path: Any, suffix: str) -> None:
    chosen = _choices(400)
    model = TwoTower(max_iter=2, **WITH_COLUMNS).fit(chosen)
    path = tmp_path / f"towers.{suffix}"
    model.save(path)
    loaded = daskml_dist.load(path)
    pd.testing.assert_frame_equal(loaded.recommend([1, 2]), model.recommend([1, 2]))
    np.testing.assert_array_equal(loaded.embed_users(chosen), model.embed_users(chosen))


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"temperature": 0}, "temperature"), ({"hidden_layer_sizes": 0}, "hidden_layer_sizes"),
        ({"user_features": "age"}, "user_features"), ({"item_features": ["user"]}, "named twice"),
        ({"item_features": ["size"]}, "no column 'size'"), ({"policy": "allreduce"}, "policy"),
        ({"activation": "none"}, "activation"), ({"normalize": 2}, "normalize"),
        ({"rating_col": "stars"}, "no column 'stars'"), ({"user_col": "kinds"}, "explode"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(params: dict[str, Any], names: str) -> None:
    with pytest.raises((InvalidParameterError, InvalidDataError), match=names):
        TwoTower(**params).fit(_choices(100))


def test_bad_rows_name_the_remedy() -> None:
    chosen = _choices(100)
    with pytest.raises(InvalidDataError, match="dataframe"):
        TwoTower().fit(chosen[["user"]].to_numpy())
    with pytest.raises(InvalidDataError, match="cannot be negative"):
        TwoTower().fit(chosen.assign(user=-1))
    with pytest.raises(InvalidDataError, match=r"missing id|missing='own'"):
        TwoTower().fit(chosen.assign(item=[None, *["a"] * 99]))
    with pytest.raises(InvalidDataError, match="mixed"):
        TwoTower().fit(chosen.assign(item=["a", 1] * 50))
    with pytest.raises(InvalidDataError, match="sample"):
        TwoTower().fit(chosen[:0])
    with pytest.raises(InvalidParameterError, match="not support streams"):
        TwoTower().stream()


def test_a_fit_that_fails_leaves_what_users_have_seen() -> None:
    chosen = _choices(200)
    model = TwoTower(**PARAMS, max_iter=1).fit(chosen)
    expected = model.recommend([3], N_ITEMS)
    with pytest.raises(InvalidDataError, match="cannot be negative"):
        model.fit(chosen.assign(user=-1 - chosen["user"]))
    pd.testing.assert_frame_equal(model.recommend([3], N_ITEMS), expected)


def test_towers_under_a_policy_for_each_part(client: Client) -> None:
    chosen = _choices()
    lazy = dd.from_pandas(chosen[["user", "item", "age"]], npartitions=3, sort=False)
    model = TwoTower(
        max_iter=20, user_features=["age"], hidden_layer_sizes=(8,), run=Run(n_lanes=2),
        policy={"embeddings": "async", "dense": "allreduce"}, **PARAMS,
    ).fit(lazy, client=client)  # fmt: skip
    assert _side(model.recommend([1, 2, 3], n=5, filter_seen=False)).mean() > 0.9


def test_towers_are_published_in_full(tmp_path: Any) -> None:
    model = TwoTower(max_iter=1, **PARAMS).fit(_choices(100))
    with pytest.raises(InvalidParameterError, match="whole_every at 1"):
        Publisher(tmp_path, "towers", whole_every=3)(model)
    assert model.as_frame().shape[1] == 2 + model.rank
