"""AUC of click models, compared with factorisation machines of Spark and torch, and linear models.

All are fitted to the same rows and tested on the same other rows: Adult as a9a, and clicks drawn
from a known factorisation machine. The peers' learning rates and numbers of passes are the best of
a few.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.metrics import roc_auc_score

from benchmarks._common import markdown, read_a9a
from benchmarks.logistic import open_spark
from daskml_dist.datasets import make_clicks
from daskml_dist.feature_extraction import FieldHasher
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.recommender import (
    DeepFMClassifier,
    FactorizationMachineClassifier,
    FieldAwareFMClassifier,
    WideAndDeepClassifier,
)

RANK, SEEDS = 8, 3
#: Number of generated clicks, a sixth of which are for testing; ids per field.
CLICKS, N_IDS = 120_000, 1_000

Score = Callable[[int], float]


def run(tiny: bool = False) -> str:
    """Return a table per data set: mean AUC over seeds, its standard deviation, and seconds."""
    tables = [_table("Generated clicks", *_read_clicks(2_000 if tiny else CLICKS), tiny)]
    if not tiny:
        X, y, X_test, y_test = read_a9a()
        tables.insert(0, _table("a9a", X, y > 0, X_test, y_test > 0, tiny))
    return "\n\n".join(tables)


def _table(name: str, X: Any, y: Any, X_test: Any, y_test: Any, tiny: bool) -> str:
    """Return the table of one data set."""
    rows = []
    for subject, score in _subjects(X, y, X_test, y_test, tiny).items():
        since = time.perf_counter()
        # A fit of Spark takes minutes, so it has one seed.
        n_seeds = 1 if tiny or subject.startswith("Spark") else SEEDS
        found = [score(seed) for seed in range(n_seeds)]
        seconds = (time.perf_counter() - since) / len(found)
        spread = f"{statistics.stdev(found):.4f}" if len(found) > 1 else ""
        rows.append([subject, f"{statistics.mean(found):.4f}", spread, f"{seconds:.1f}"])
    title = f"{name}: {X.shape[0]:,} training rows, {X_test.shape[0]:,} test rows"
    return markdown(title, ["", "AUC", "standard deviation", "fit, s"], rows)


def _subjects(X: Any, y: Any, X_test: Any, y_test: Any, tiny: bool) -> dict[str, Score]:
    """Return the fits by name; peers that are not installed have no row."""
    frames = isinstance(X, pd.DataFrame)
    wide, wide_test = _number_ids(X, X_test) if frames else (X, X_test)
    of_auc = roc_auc_score

    def ours(make: Callable[[int], Any]) -> Score:
        def score(seed: int) -> float:
            model = make(seed).fit(X, y)
            return float(of_auc(y_test, model.decision_function(X_test)))

        return score

    few: dict[str, Any] = {"max_iter": 1} if tiny else {}
    machine = {"max_iter": 3, "alpha": 0.01} if frames else {"max_iter": 10, "alpha": 0.001}
    found: dict[str, Score] = {
        "FactorizationMachineClassifier": ours(
            lambda seed: FactorizationMachineClassifier(RANK, random_state=seed, **machine | few)
        ),
        "DeepFMClassifier": ours(lambda seed: DeepFMClassifier(RANK, random_state=seed)),
        "WideAndDeepClassifier": ours(lambda seed: WideAndDeepClassifier(RANK, random_state=seed)),
    }
    if frames:
        found["FieldAwareFMClassifier"] = ours(
            lambda seed: FieldAwareFMClassifier(random_state=seed, **few)
        )
    found["LogisticRegression"] = lambda _: float(
        of_auc(
            y_test,
            LogisticRegression(C=1.0, max_iter=1000).fit(wide, y).decision_function(wide_test),
        )
    )
    if importlib.util.find_spec("torch") is not None:
        found["PyTorch, factorisation machine"] = lambda seed: max(
            _fit_torch(wide, y, wide_test, y_test, seed, rate, passes)
            for rate in ((0.05,) if tiny else (0.01, 0.03))
            for passes in ((1,) if tiny else (1, 3, 6))
        )
    if importlib.util.find_spec("pyspark") is not None and not tiny:
        found["Spark's FMClassifier"] = lambda seed: _fit_spark(wide, y, wide_test, y_test, seed)
    return found


def _read_clicks(n_rows: int) -> tuple[Any, ...]:
    """Return generated clicks for training and testing, as frames."""
    frame = make_clicks(
        n_rows, n_fields=10, n_numeric=3, n_ids=N_IDS, random_state=0, chunks=n_rows
    ).compute()
    y, X = frame.pop("label").to_numpy() > 0, frame
    n = n_rows * 5 // 6
    return X[:n], y[:n], X[n:], y[n:]


def _number_ids(X: Any, X_test: Any) -> tuple[Any, Any]:
    """Return matrices whose columns are the ids of the training rows, without unknown ids."""
    hasher = FieldHasher().fit(X)
    rows, tried = hasher.transform(X), hasher.transform(X_test)
    ids = np.unique(rows.indices)
    found = []
    for own in (rows, tried):
        at = np.searchsorted(ids, own.indices).clip(max=len(ids) - 1)
        data = np.where(ids[at] == own.indices, own.data, 0).astype(np.float32)
        found.append(sparse.csr_matrix((data, at, own.indptr), (own.shape[0], len(ids))))
    return found[0], found[1]


def _fit_torch(
    X: Any, y: Any, X_test: Any, y_test: Any, seed: int, rate: float, passes: int
) -> float:
    """Return the AUC of a machine on `torch.nn.functional.embedding_bag`, trained by Adagrad."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    w = nn.Parameter(torch.zeros(X.shape[1], 1))
    v = nn.Parameter(0.01 * torch.randn(X.shape[1], RANK))
    bias = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adagrad([w, v, bias], lr=rate)

    def pool(table: Any, rows: Any, values: Any) -> Any:
        places, starts = torch.from_numpy(rows.indices.astype(np.int64)), rows.indptr[:-1]
        return nn.functional.embedding_bag(
            places, table, torch.from_numpy(starts.astype(np.int64)), mode="sum",
            per_sample_weights=torch.from_numpy(values.astype(np.float32)),
        )  # fmt: skip

    def predict(rows: Any) -> Any:
        linear, sums = pool(w, rows, rows.data), pool(v, rows, rows.data)
        squares = pool(v * v, rows, rows.data**2)
        return bias + linear[:, 0] + 0.5 * (sums**2 - squares).sum(dim=1)

    target = torch.from_numpy(np.asarray(y, np.float32))
    for _ in range(passes):
        order = torch.randperm(X.shape[0]).numpy()
        for start in range(0, len(order), 512):
            at = order[start : start + 512]
            raw = predict(X[at])
            loss = nn.functional.binary_cross_entropy_with_logits(raw, target[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float(roc_auc_score(y_test, predict(X_test).numpy()))


def _fit_spark(X: Any, y: Any, X_test: Any, y_test: Any, seed: int) -> float:
    """Return the best AUC of Spark's machine over some step sizes, with its default AdamW."""
    from pyspark.ml.classification import FMClassifier
    from pyspark.ml.linalg import SparseVector

    def rows(X: Any, y: Any) -> list[tuple[float, Any]]:
        parts = zip(np.split(X.indices, X.indptr[1:-1]), np.split(X.data, X.indptr[1:-1]),
                    y, strict=True)  # fmt: skip
        found = []
        for at, values, label in parts:
            order = np.argsort(at)
            vector = SparseVector(X.shape[1], at[order].tolist(), values[order].astype(float))
            found.append((float(label), vector))
        return found

    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    with open_spark() as session:
        train = session.createDataFrame(rows(X, y), ["label", "features"]).repartition(2).cache()
        test = session.createDataFrame(rows(X_test, y_test), ["label", "features"]).cache()
        best = 0.0
        for step in (0.03, 0.1):
            model = FMClassifier(
                factorSize=RANK, stepSize=step, maxIter=100, regParam=1e-4, initStd=0.01, seed=seed
            ).fit(train)
            scored = model.transform(test).select("label", "probability").toPandas()
            chance = scored["probability"].map(lambda p: float(p[1]))
            best = max(best, float(roc_auc_score(scored["label"], chance)))
    return best
