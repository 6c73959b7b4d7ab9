"""DeepFM under one policy for all parts, and under one for each: seconds and AUC of a pass."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
from sklearn.metrics import roc_auc_score

from benchmarks._common import markdown, processes
from daskml_dist import Run
from daskml_dist.datasets import make_clicks
from daskml_dist.feature_extraction import FieldHasher
from daskml_dist.models.base import N_TABLE_IDS
from daskml_dist.recommender import DeepFMClassifier

#: Numbers of rows to train and to score, fields of ids and of numbers, and ids of a field.
ROWS, SCORED, FIELDS, NUMBERS, N_IDS = 400_000, 100_000, 12, 4, 5_000
#: Rows of a step of all lanes together, units of the layers, and number of workers.
BATCH, HIDDEN, WORKERS = 4096, (128, 64), 2
BY_PART = {"embeddings": "async", "dense": "allreduce"}
POLICIES = {'`"sync"`': "sync", '`"async"`': "async", "by part": BY_PART}


def run(tiny: bool = False) -> str:
    """Return a row for each policy."""
    n, n_scored = (4_000, 1_000) if tiny else (ROWS, SCORED)
    X, y = _make_rows(n + n_scored)
    later = X[n:], y[n:]
    rows = []
    with processes(WORKERS) as client:
        blocks = _spread(X[:n], y[:n])
        for name, policy in POLICIES.items():
            _machine(policy, 64 if tiny else BATCH, 1).fit(*_spread(X[:2_000], y[:2_000]))
            found = _machine(policy, 64 if tiny else BATCH, 1)
            found.fit(*blocks, client=client)
            auc = roc_auc_score(later[1], found.predict_proba(later[0])[:, 1])
            records = found.history_.records
            seconds = sum(record["seconds"] for record in records)
            megabytes = records[-1]["bytes_pushed"] + records[-1]["bytes_pulled"]
            rows.append([
                name, f"{seconds:.1f}", f"{len(records) * n / seconds:,.0f}",
                f"{megabytes / 1e6:,.0f}", f"{records[-1]['staleness_mean']:.2f}", f"{auc:.4f}",
            ])  # fmt: skip
    title = (
        f"DeepFM, {n:,} rows of {FIELDS} ids and {NUMBERS} numbers, layers {HIDDEN}, "
        f"{WORKERS} workers, {WORKERS} servers, steps of {BATCH:,} rows"
    )
    columns = [
        "policy", "seconds of a pass", "rows a second", "MB a pass", "mean staleness",
        f"AUC of {n_scored:,} later rows",
    ]  # fmt: skip
    return markdown(title, columns, rows)


def _make_rows(n: int) -> tuple[Any, Any]:
    """Return rows of ids, and clicks."""
    clicks = make_clicks(
        n, n_fields=FIELDS, n_numeric=NUMBERS, n_ids=N_IDS, random_state=0, chunks=n
    ).compute(scheduler="synchronous")
    X = FieldHasher().fit_transform(clicks.drop(columns="label"))
    return X, clicks["label"].to_numpy()


def _spread(X: Any, y: Any) -> tuple[Any, Any]:
    """Return the rows, one block per worker."""
    size = -(-len(y) // WORKERS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        parts = [
            da.from_delayed(
                dask.delayed(X[at : at + size]), (len(y[at : at + size]), N_TABLE_IDS), X.dtype,
                meta=X[:0],
            )
            for at in range(0, len(y), size)
        ]  # fmt: skip
        return da.concatenate(parts).persist(), da.from_array(y, chunks=size).persist()


def _machine(policy: Any, batch: int, passes: int) -> DeepFMClassifier:
    return DeepFMClassifier(
        n_fields=FIELDS + NUMBERS, rank=8, hidden_layer_sizes=HIDDEN, max_iter=passes,
        batch_size=batch // WORKERS, policy=policy, random_state=0,
        run=Run(n_lanes=WORKERS, n_servers=WORKERS),
    )  # fmt: skip
