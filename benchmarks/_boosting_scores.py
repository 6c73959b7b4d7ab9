"""Scores of gradient boosting on real data, compared with LightGBM's and scikit-learn's."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier as PeerClassifier
from sklearn.ensemble import HistGradientBoostingRegressor as PeerRegressor
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score, root_mean_squared_error

from benchmarks._common import markdown
from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

GIVEN: dict[str, Any] = {"learning_rate": 0.1, "max_iter": 100, "early_stopping": False}
#: The same parameters for LightGBM, with its other limits set to those of scikit-learn.
OF_LIGHTGBM: dict[str, Any] = {
    "n_estimators": 100, "learning_rate": 0.1, "num_leaves": 31, "min_child_samples": 20,
    "max_bin": 255, "verbose": -1,
}  # fmt: skip


def tables() -> str:
    """Return a table for each data set."""
    folder = os.environ.get("DASKML_DIST_DATA")
    if not folder:
        return "Scores on real data: set DASKML_DIST_DATA to the folder that holds it."
    found = []
    for title, scores in (
        ("adult, 32,561 rows, 100 iterations", adult(Path(folder) / "adult")),
        ("nycflights, arrival delays, 4 of 5 rows, 100 iterations", flights(Path(folder))),
    ):
        names = list(next(iter(scores.values())))
        rows = [[name, *(f"{score:.4f}" for score in s.values())] for name, s in scores.items()]
        found.append(markdown(title, ["", *names], rows))
    return "\n\n".join(found)


def adult(folder: Path, peers: bool = True) -> dict[str, dict[str, float]]:
    """Return scores on the test rows of the census data, with texts as categories."""
    train, test = (_read_adult(folder / f"adult.{part}") for part in ("data", "test"))
    texts = [name for name in train if train[name].dtype.kind == "O" or train[name].dtype == "str"]
    y, y_test = (frame.pop(14).str.startswith(">").to_numpy(int) for frame in (train, test))
    for name in texts[:-1]:
        categories = sorted(train[name].dropna().unique())
        for frame in (train, test):
            frame[name] = pd.Categorical(frame[name], categories)
    for frame in (train, test):
        frame.columns = [f"column {name}" for name in frame]

    def scores(model: Any) -> dict[str, float]:
        share = model.predict_proba(test)[:, 1]
        return {
            "accuracy": accuracy_score(y_test, share > 0.5),
            "AUC": roc_auc_score(y_test, share),
        }

    models = {
        "daskml_dist": HistGradientBoostingClassifier(**GIVEN),
        "scikit-learn": PeerClassifier(**GIVEN),
        "LightGBM": _lightgbm("LGBMClassifier") if peers else None,
    }
    return {name: scores(model.fit(train, y)) for name, model in models.items() if model}


def flights(folder: Path, peers: bool = True) -> dict[str, dict[str, float]]:
    """Return scores on a fifth of the flights, with carriers and airports as categories."""
    frame = pd.read_parquet(folder / "nycflights" / "flights.parquet")
    frame = frame.dropna(subset=["arr_delay"])
    y = frame["arr_delay"].to_numpy(float)
    X = frame[["month", "dep_time", "dep_delay", "carrier", "origin", "dest", "air_time",
               "distance"]].copy()  # fmt: skip
    for name in ("carrier", "origin", "dest"):
        X[name] = X[name].astype("category")
    held = np.random.default_rng(0).random(len(X)) < 0.2
    train, test = X[~held], X[held]

    def scores(model: Any) -> dict[str, float]:
        found = model.predict(test)
        return {"RMSE": root_mean_squared_error(y[held], found), "R2": r2_score(y[held], found)}

    models = {
        "daskml_dist": HistGradientBoostingRegressor(**GIVEN),
        "scikit-learn": PeerRegressor(**GIVEN),
        "LightGBM": _lightgbm("LGBMRegressor") if peers else None,
    }
    return {name: scores(model.fit(train, y[~held])) for name, model in models.items() if model}


def _read_adult(path: Path) -> Any:
    return pd.read_csv(path, header=None, comment="|", skipinitialspace=True, na_values="?")


def _lightgbm(name: str) -> Any:
    if importlib.util.find_spec("lightgbm") is None:
        return None
    import lightgbm

    warnings.filterwarnings("ignore", module="lightgbm")
    return getattr(lightgbm, name)(**OF_LIGHTGBM)
