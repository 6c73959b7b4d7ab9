"""Rankings of items for users: two towers, matrix factorisation, ALS, and `implicit`'s BPR and ALS.

Films that users rated 4 or 5 (MovieLens 100k, from the package RecBole; generated choices if it is
not installed): a fifth of each user's choices is held out, ten items are recommended.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from benchmarks._common import markdown
from daskml_dist.metrics import ndcg_at_k, precision_at_k
from daskml_dist.recommender import ALS, MatrixFactorization, TwoTower

SEEDS = 5
#: Users, items, choices per user in the generated set.
DRAWN, TINY = (2_000, 1_500, 40), (60, 40, 8)
_USER_COLUMNS, _ITEM_COLUMNS = ["age", "gender", "occupation"], ["year", "genres"]


def run(tiny: bool = False) -> str:
    """Return the table: means over splits, and their standard deviation."""
    chosen, name = (_draw_choices(*TINY), "drawn") if tiny else _read_films()
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(1 if tiny else SEEDS):
        train, held_out = _split(chosen, seed)
        for subject, recommend in _subjects(train, held_out, seed, tiny).items():
            since = time.perf_counter()
            best = recommend(held_out["user"].unique())
            seconds = time.perf_counter() - since
            scores = ndcg_at_k(held_out, best), precision_at_k(held_out, best)
            rows.setdefault(subject, []).append((*scores, seconds))
    table = []
    for subject, found in rows.items():
        ndcg, precision, seconds = zip(*found, strict=True)
        spread = statistics.stdev(ndcg) if len(ndcg) > 1 else 0.0
        table.append(
            [
                subject, f"{statistics.mean(ndcg):.4f} ± {spread:.4f}",
                f"{statistics.mean(precision):.4f}", f"{statistics.median(seconds):.2f}",
            ]
        )  # fmt: skip
    title = (
        f"Ten items for each user, {name}: {len(chosen):,} interactions of "
        f"{chosen['user'].nunique():,} users among {chosen['item'].nunique():,} items, "
        "in one process"
    )
    return markdown(title, ["", "NDCG at 10", "precision at 10", "fit and ranking, s"], table)


#: Function from users to a frame of recommended items; it first fits its model.
Recommend = Callable[[Any], pd.DataFrame]


def _subjects(
    train: pd.DataFrame, held_out: pd.DataFrame, seed: int, tiny: bool
) -> dict[str, Recommend]:
    """Return the methods by name; peers that are not installed are left out."""
    passes: dict[str, Any] = {"max_iter": 2} if tiny else {}
    known = [name for name in _USER_COLUMNS if name in train]
    about = [name for name in _ITEM_COLUMNS if name in train]

    def ours(model: Any) -> Recommend:
        def recommend(users: Any) -> pd.DataFrame:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found: pd.DataFrame = model.fit(train).recommend(users)
            return found

        return recommend

    bpr = MatrixFactorization(
        32, implicit=True, pairwise=True, loss="log_loss", reg_param=0.01, rating_col=None,
        random_state=seed, **({"max_iter": 2} if tiny else {"max_iter": 60}),
    )  # fmt: skip
    found = {
        "TwoTower, ids": ours(TwoTower(random_state=seed, **passes)),
        "TwoTower, ids and features": ours(
            TwoTower(user_features=known, item_features=about, random_state=seed, **passes)
        ),
        "MatrixFactorization, BPR": ours(bpr),
        "ALS, implicit": ours(
            ALS(32, implicit=True, alpha=10.0, reg_param=1.0, rating_col=None, random_state=seed)
        ),
        "most popular items": lambda users: _recommend_popular(train, users),
    }
    if importlib.util.find_spec("implicit") is not None and not tiny:
        for name in ("BPR", "ALS"):
            found[f"implicit, {name}, best of 4"] = _Peer(train, held_out, name, seed)
    return found


class _Peer:
    """A model of `implicit`, fitted at its first use: the best of a few settings."""

    def __init__(self, train: pd.DataFrame, held_out: pd.DataFrame, name: str, seed: int) -> None:
        self._train, self._held_out, self._name, self._seed = train, held_out, name, seed

    def __call__(self, users: Any) -> pd.DataFrame:
        (user_ids, at_users), (item_ids, at_items) = (
            np.unique(self._train[side], return_inverse=True) for side in ("user", "item")
        )
        ones = np.ones(len(at_users), np.float32)
        matrix = sparse.csr_matrix((ones, (at_users, at_items)), (len(user_ids), len(item_ids)))
        at, found = np.searchsorted(user_ids, users), []
        for model in self._models():
            model.fit(matrix, show_progress=False)
            items, scores = model.recommend(at, matrix[at], N=10)
            found.append(
                pd.DataFrame(
                    {
                        "user": np.repeat(users, 10),
                        "item": item_ids[items.ravel()],
                        "score": scores.ravel(),
                    }
                )
            )
        return max(found, key=lambda best: ndcg_at_k(self._held_out, best))

    def _models(self) -> Iterator[Any]:
        """Yield models with several settings."""
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking

        if self._name == "BPR":
            for rate, passes in ((0.01, 100), (0.05, 100), (0.05, 300), (0.1, 100)):
                yield BayesianPersonalizedRanking(
                    32, learning_rate=rate, iterations=passes, random_state=self._seed
                )
        else:
            for alpha, reg in ((10.0, 1.0), (10.0, 10.0), (3.0, 1.0), (1.0, 0.1)):
                yield AlternatingLeastSquares(
                    32, alpha=alpha, regularization=reg, iterations=15, random_state=self._seed
                )


def _recommend_popular(train: pd.DataFrame, users: Any) -> pd.DataFrame:
    """Return the items that most users chose, without those that the user already has."""
    order = train["item"].value_counts()
    seen = train.groupby("user")["item"].agg(set).to_dict()
    parts = []
    for user in users:
        best = order[~order.index.isin(list(seen.get(user, ())))][:10]
        parts.append(pd.DataFrame({"user": user, "item": best.index, "score": best.to_numpy()}))
    return pd.concat(parts)


def _split(chosen: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return choices to train on, and a held-out fifth of each user's choices."""
    order = chosen.sample(frac=1, random_state=seed)
    place = order.groupby("user").cumcount()
    is_held = place < order.groupby("user")["item"].transform("size") // 5
    return order[~is_held], order[is_held]


def _read_films() -> tuple[pd.DataFrame, str]:
    """Return MovieLens 100k with columns of users and films, and its name; or generated choices."""
    found = importlib.util.find_spec("recbole")
    if found is None or found.origin is None:
        return _draw_choices(*DRAWN), "drawn (RecBole, which has MovieLens 100k, is not installed)"
    folder = Path(found.origin).parent / "dataset_example" / "ml-100k"
    ratings, users, items = (
        pd.read_csv(folder / f"ml-100k.{kind}", sep="\t") for kind in ("inter", "user", "item")
    )
    for frame in (ratings, users, items):
        frame.columns = [name.partition(":")[0] for name in frame.columns]
    users = users.rename(columns={"user_id": "user"})[["user", *_USER_COLUMNS]]
    items = items.rename(columns={"item_id": "item", "release_year": "year", "class": "genres"})[
        ["item", *_ITEM_COLUMNS]
    ]
    users["age"] //= 10  # decades serve as ids
    items["year"] = pd.to_numeric(items["year"], errors="coerce").fillna(0).astype(int)
    items["genres"] = items["genres"].fillna("").str.split()
    ratings = ratings.rename(columns={"user_id": "user", "item_id": "item"})
    chosen = ratings.loc[ratings["rating"] >= 4, ["user", "item"]]
    return chosen.merge(users, on="user").merge(items, on="item"), "MovieLens 100k"


def _draw_choices(n_users: int, n_items: int, n_chosen: int) -> tuple[Any, ...] | Any:
    """Return choices generated from latent vectors and popularity."""
    return pd.concat(_draw_users(n_users, n_items, n_chosen), ignore_index=True)


def _draw_users(n_users: int, n_items: int, n_chosen: int) -> Iterator[pd.DataFrame]:
    """Yield the interactions of each user."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(12, size=n_items)
    tastes, traits = rng.normal(size=(n_users, 6)), rng.normal(size=(12, 6))
    items = traits[kinds] + 0.7 * rng.normal(size=(n_items, 6))
    popular = -0.8 * np.log(np.arange(1, n_items + 1))
    for user in range(n_users):
        # With Gumbel noise, the largest logits are a sample without replacement from the softmax.
        logits = tastes[user] @ items.T + popular + rng.gumbel(size=n_items)
        best = np.argsort(-logits)[:n_chosen]
        yield pd.DataFrame({"user": user, "item": best, "genres": kinds[best]})
