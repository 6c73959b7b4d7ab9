"""Stand-ins for objects that the pages' code blocks assume: rows, frames, files; never code."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

from daskml_dist.linear_model import SGDClassifier

__all__ = ["ELSEWHERE", "STAND_INS", "Given"]

N_ROWS = 240
_WORDS = "sun moon rain snow wind leaf tree root bird fish stone river night light".split()


@dataclass(frozen=True)
class Given:
    """Objects that a page assumes.

    Attributes
    ----------
    names : function of a folder and a random generator
        Names that its blocks use; files that they read are written to the folder.
    slow : bool
        Whether its blocks take more than about a second.
    """

    names: Callable[[Path, np.random.Generator], dict[str, Any]]
    slow: bool = False


def _chunked(rows: Any) -> Any:
    return da.from_array(rows, chunks=(len(rows) // 4, *rows.shape[1:]))


def _classes(_: Path, rng: np.random.Generator, n_features: int = 4) -> dict[str, Any]:
    """Return rows of two classes, to fit and to validate."""
    X = rng.normal(size=(N_ROWS, n_features))
    y = (X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0).astype(int)
    names = {"X": _chunked(X), "y": _chunked(y), "X_val": X[:60], "y_val": y[:60]}
    return {**names, "groups": _chunked(np.arange(N_ROWS) % 10), "rows": X[:5], "alpha": 1e-2}


def _conformal(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    X = np.column_stack([np.arange(N_ROWS) % 2, rng.normal(size=(N_ROWS, 3))])
    names = {"X": X, "y": X[:, 1] + rng.normal(size=N_ROWS), "labels": (X[:, 1] > 0).astype(int)}
    return {**{name: _chunked(rows) for name, rows in names.items()}, "both": X, "is_new": X[:, 0]}


def _rates(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    names = _classes(folder, rng)
    counts = rng.poisson(np.exp(0.3 * names["X"].compute()[:, 0]))
    return {**names, "counts": _chunked(counts)}


def _explained(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    frame = pd.DataFrame(rng.normal(size=(N_ROWS, 3)), columns=list("abc"))
    many = dd.from_pandas(frame, npartitions=2)
    return {"X": many, "y": many["a"] + many["b"]}


def _in_memory(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    return {name: np.asarray(rows) for name, rows in _classes(folder, rng).items()}


def _fitted(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    return {**_in_memory(folder, rng), "clf": SGDClassifier(max_iter=2, tol=None)}


def _counts(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    names = _classes(folder, rng)
    return {"X": _chunked(rng.integers(0, 9, (N_ROWS, 4))), "y": names["y"]}


def _people(rng: np.random.Generator) -> pd.DataFrame:
    age = rng.normal(40, 10, N_ROWS)
    return pd.DataFrame(
        {
            "age": age,
            "hours": rng.normal(40, 5, N_ROWS),
            "job": rng.choice(["clerk", "nurse", "smith"], N_ROWS),
            "city": rng.choice(["Bern", "Rome"], N_ROWS),
            "income": np.where(age + rng.normal(0, 4, N_ROWS) > 40, ">50K", "<=50K"),
        }
    )


def _readme(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    return {**_classes(folder, rng), "frame": dd.from_pandas(_people(rng), npartitions=2)}


def _data(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    people = _people(rng)
    for part in range(2):
        people[part::2].to_csv(folder / f"census-{part}.csv", index=False)
    for day in range(2):
        line = "\t".join(["1", *["7"] * 13, *["0a1b2c3d"] * 25, ""]) + "\n"
        (folder / f"day_{day}.gz").write_bytes(gzip.compress(line.encode() * 3))
    clicks = pd.DataFrame({"user": np.arange(40) % 7, "clicks": np.arange(40)})
    y = rng.normal(size=N_ROWS) > 0
    units = np.array([1.0, 1e3, 1e-3])
    return {
        "df": dd.from_pandas(clicks, npartitions=2),
        "unscaled": _chunked(rng.normal(size=(N_ROWS, 3)) * units),
        "y": _chunked(y),
    }


def _first_fit(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    names = _classes(folder, rng)
    frame = pd.DataFrame(names["X"].compute(), columns=list("abcd"))
    frame["label"] = names["y"].compute()
    (folder / "rows").mkdir()
    for part in range(4):
        frame[part * 60 : part * 60 + 60].to_parquet(folder / "rows" / f"{part}.parquet")
    X, y = names["X"].compute(), names["y"].compute()
    held_out = frame[:60]
    return {"X_numpy": X, "y_numpy": y, "X_val": held_out[list("abcd")], "y_val": held_out["label"]}


def _positive(_: Path, rng: np.random.Generator) -> dict[str, Any]:
    X = np.abs(rng.normal(size=(N_ROWS, 60)) + 3 * rng.random((N_ROWS, 1)))
    documents = db.from_sequence(_texts(rng, 130), npartitions=2)
    return {"X": _chunked(X), "documents": documents}


def _texts(rng: np.random.Generator, n: int) -> list[str]:
    return [" ".join(rng.choice(_WORDS, 6)) for _ in range(n)]


def _topics(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    for part in range(2):
        (folder / f"articles-{part}.txt").write_text("\n".join(_texts(rng, 60)))
    return {}


def _clusters(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    X = rng.normal(size=(480, 3)) + 8 * rng.integers(0, 3, size=(480, 3))
    return {"X": _chunked(X), "more": X[:100] + 0.1}


def _baskets(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    items = rng.random((200, 4)) < [0.6, 0.5, 0.3, 0.1]
    (folder / "baskets").mkdir()
    frame = pd.DataFrame(items, columns=["tea", "milk", "bread", "jam"])
    frame.to_parquet(folder / "baskets" / "0.parquet")
    orders = rng.integers(0, 900, 3000)
    products = rng.choice(["tea", "milk"], 3000)
    sales = pd.DataFrame({"order": orders, "product": products})
    return {"sales": dd.from_pandas(sales, npartitions=2)}


def _links(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    """Return links whose columns have the default names, and again with other names."""
    ids = np.array(["a", "b", "c", "home", "d", "e"])
    source, target = ids[rng.integers(0, 6, (2, 40))]
    weights = {"visits": rng.random(40), "km": rng.random(40)}
    frame = pd.DataFrame({"source": source, "target": target, **weights})
    (folder / "links").mkdir()
    frame.assign(**{"from": source, "to": target}).to_parquet(folder / "links" / "0.parquet")
    return {}


def _ratings(_: Path, rng: np.random.Generator) -> dict[str, Any]:
    users = [*(f"user {i}" for i in range(28)), "ann", "bob"]
    items = ["tea", *(f"item {i}" for i in range(19))]
    pairs = pd.MultiIndex.from_product([users, items], names=["user", "item"]).to_frame(index=False)
    pairs = pairs.sample(frac=0.6, random_state=0, ignore_index=True)
    ratings = pairs.assign(rating=rng.integers(1, 6, len(pairs)).astype(float))
    return {
        "ratings": dd.from_pandas(ratings[:-60], npartitions=2),
        "pairs": dd.from_pandas(pairs[:20], npartitions=2),
        "thumbs": ratings.assign(rating=np.where(ratings["rating"] > 3, 1.0, -1.0)),
        "clicks": ratings[ratings["rating"] > 2],
        "chosen": pairs.assign(genre=pairs["item"].str[-1]),
        "held_out": ratings[-60:],
    }


def _classes_and_ratings(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    return {**_classes(folder, rng), "ratings": _ratings(folder, rng)["clicks"]}


def _images(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    images = rng.integers(256, size=(96, 28, 28), dtype=np.uint8)
    return {"X": images.reshape(96, -1) / 255, "y": np.arange(96) % 10, "images": images}


def _nothing(_: Path, rng: np.random.Generator) -> dict[str, Any]:
    return {}


#: Objects that each page with Python blocks assumes.
STAND_INS = {
    "README.md": Given(_readme),
    "docs/boosting.md": Given(_nothing, slow=True),
    "docs/checkpoints.md": Given(_classes),
    "docs/clusters.md": Given(_clusters),
    "docs/columns.md": Given(_classes),
    "docs/coming_from.md": Given(_images, slow=True),
    "docs/coming_from_clusters.md": Given(_classes, slow=True),
    "docs/coming_from_dask_ml.md": Given(_classes, slow=True),
    "docs/coming_from_sklearn.md": Given(_classes, slow=True),
    "docs/compression.md": Given(_classes),
    "docs/data.md": Given(_data),
    "docs/decomposition.md": Given(_positive, slow=True),
    "docs/early_stopping.md": Given(_classes, slow=True),
    "docs/conformal.md": Given(_conformal, slow=True),
    "docs/ensembles.md": Given(_classes, slow=True),
    "docs/explanations.md": Given(_explained, slow=True),
    "docs/standard_errors.md": Given(_rates),
    "docs/export.md": Given(_classes_and_ratings),
    "docs/fault_tolerance.md": Given(_fitted),
    "docs/federated.md": Given(_nothing, slow=True),
    "docs/first_fit.md": Given(_first_fit, slow=True),
    "docs/forests.md": Given(_nothing, slow=True),
    "docs/frequent_patterns.md": Given(_baskets, slow=True),
    "docs/gpu.md": Given(_classes),
    "docs/graphs.md": Given(_links, slow=True),
    "docs/hpc.md": Given(_classes),
    "docs/index.md": Given(_classes),
    "docs/live_page.md": Given(_classes),
    "docs/mixture.md": Given(_clusters),
    "docs/model_selection.md": Given(_classes, slow=True),
    "docs/networks.md": Given(_images, slow=True),
    "docs/papers.md": Given(_classes),
    "docs/pictures_of_fits.md": Given(_classes, slow=True),
    "docs/planning.md": Given(_in_memory, slow=True),
    "docs/policies.md": Given(_classes),
    "docs/policies_measured.md": Given(_in_memory, slow=True),
    "docs/privacy.md": Given(_classes),
    "docs/ranking.md": Given(_nothing, slow=True),
    "docs/recommender.md": Given(_ratings, slow=True),
    "docs/recovery.md": Given(_classes),
    "docs/serving.md": Given(_classes),
    "docs/solvers.md": Given(_counts),
    "docs/streams.md": Given(_nothing, slow=True),
    "docs/survival.md": Given(_nothing, slow=True),
    "docs/topics.md": Given(_topics, slow=True),
    "docs/tuning.md": Given(_classes, slow=True),
    "docs/when_not.md": Given(_in_memory, slow=True),
}

#: Pages whose blocks another test file runs, with their expected results.
ELSEWHERE = {
    "docs/coming_from_trees.md": "tests/ensemble/test_boosting_pages.py",
    "docs/run_together.md": "tests/collective/test_page.py",
    "docs/integrations.md": "tests/integrations/test_boosters.py",
    "docs/extending.md": "tests/contracts/test_extending.py",
    "docs/extending_models.md": "tests/contracts/test_extending.py",
    "docs/extending_statistics.md": "tests/contracts/test_extending.py",
}
