"""Both of two workers are killed under a pipeline over a dataframe: the fit must not change.

A seed determines the rows, the transformers, whether blocks are kept, and when each worker is
killed. ``python tests/chaos/pipelines.py 1100 1300`` runs many seeds, one after the other.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from sklearn.pipeline import make_pipeline

from chaos.arenas import Arena, KilledArena
from chaos.growths import BOUND, Kills
from chaos.seeds import parser, run_seeds
from chaos.works import check_clean
from daskml_dist import Run
from daskml_dist.compose import make_column_transformer
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

__all__ = ["Ambush", "PairArena", "draw_ambush", "outlast"]

N_ROWS, N_PARTS = 4_000, 8
#: Approximate bytes of a block: four numbers per row, the target and the index.
_BLOCK = 8 * 6 * N_ROWS // N_PARTS

TRANSFORMERS: dict[str, Any] = {
    "scaled": (StandardScaler(), ["a", "b"]),
    "encoded": (OneHotEncoder(), ["c"]),
    "by target": (TargetEncoder(random_state=0), ["c"]),
}
MODELS: dict[str, Any] = {
    "steps": SGDClassifier(
        policy="sync", optimizer="sgd", learning_rate=0.1, max_iter=6, tol=None, random_state=0
    ),
    "rounds": LogisticRegression(tol=1e-8),
    "one round": Ridge(),
}
_calm: dict[Any, tuple[float, Any]] = {}


class PairArena(KilledArena):
    """Two workers, which are restarted whenever they are killed."""

    n_workers = 2


@dataclass(frozen=True)
class Ambush:
    """Kills of both workers under one pipeline.

    Parameters
    ----------
    seed : int
    model : str
        Name in `MODELS`.
    transformers : tuple of str
        Names in `TRANSFORMERS`.
    rows : {"lazy", "persisted", "persisted and mapped"}
    is_streamed : bool
        Whether blocks are computed again in each pass.
    waits : tuple of float
        Seconds between kills; before the first, as a share of an undisturbed fit's time.
    """

    seed: int
    model: str
    transformers: tuple[str, ...]
    rows: str
    is_streamed: bool
    waits: tuple[float, ...]


def draw_ambush(seed: int) -> Ambush:
    """Return the kills of a seed: each worker once, together or in turn, perhaps another kill."""
    rng = np.random.default_rng([seed, 7])
    names = list(TRANSFORMERS)
    some = rng.permutation(names)[: rng.integers(1, len(names) + 1)].tolist()
    second = float(rng.choice([0.0, rng.uniform(0, 1), rng.uniform(1, 3)]))
    third = [float(rng.uniform(0.5, 3))] * int(rng.integers(2))
    return Ambush(
        seed=seed,
        model=list(MODELS)[seed % len(MODELS)],
        transformers=tuple(some),
        rows=str(rng.choice(["lazy", "persisted", "persisted and mapped"])),
        is_streamed=bool(rng.integers(2)),
        waits=(float(rng.uniform(0, 1)), second, *third),
    )


def outlast(ambush: Ambush, arena: Arena) -> tuple[float, int]:
    """Fit while workers are killed, and compare; return the seconds, and the number of kills."""
    arena.heal()
    key = ambush.model, ambush.transformers, ambush.is_streamed, ambush.rows
    if key not in _calm:
        rows = _rows(ambush, arena)
        _fit(ambush, rows)  # loads the kernels
        since = time.monotonic()
        undisturbed = _fit(ambush, rows)
        _calm[key] = time.monotonic() - since, undisturbed
        del rows
        check_clean(arena)
    seconds, undisturbed = _calm[key]
    rows = _rows(ambush, arena)
    first, *others = ambush.waits
    killer = Kills(ambush.seed, arena, [first * seconds, *others], in_turn=True)
    since = time.monotonic()
    with dask.config.set({"daskml_dist.timeout": 60}), killer:
        found = _fit(ambush, rows)
        taken = time.monotonic() - since
    del rows
    assert taken < BOUND, f"took {taken:.1f} s"
    np.testing.assert_allclose(found.coef_, undisturbed.coef_, atol=1e-6, rtol=0)
    np.testing.assert_allclose(found.intercept_, undisturbed.intercept_, atol=1e-6, rtol=0)
    check_clean(arena)
    return taken, killer.met


def _rows(ambush: Ambush, arena: Arena) -> Any:
    """Return a frame that takes a moment to compute; local functions are pickled by value."""

    def slowly(part: Any) -> Any:
        time.sleep(0.03)
        return part

    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=N_ROWS), "b": 3 + rng.normal(size=N_ROWS)})
    table["c"] = rng.choice(list("xyz"), N_ROWS)
    table["y"] = (table["a"] + (table["c"] == "x") + rng.normal(size=N_ROWS) > 0).astype(int)
    frame = dd.from_pandas(table, npartitions=N_PARTS).map_partitions(slowly, meta=table[:0])
    if ambush.rows == "lazy":
        return frame
    frame = arena.client.persist(frame)
    return frame if ambush.rows == "persisted" else frame.map_partitions(slowly, meta=table[:0])


def _fit(ambush: Ambush, frame: Any) -> Any:
    budget = int(1.5 * _BLOCK) if ambush.is_streamed else "auto"
    run = Run(n_lanes=2, memory_budget=budget)
    transformers = [TRANSFORMERS[name] for name in ambush.transformers]
    model = MODELS[ambush.model].set_params(run=run)
    columns = frame[["a", "b", "c"]]
    pipeline = make_pipeline(make_column_transformer(*transformers), model).fit(columns, frame["y"])
    return pipeline[-1]


def _do(ambush: Ambush, arena: Arena) -> tuple[bool, float]:
    seconds, met = outlast(ambush, arena)
    return met > 1, seconds


if __name__ == "__main__":
    run_seeds(parser(__doc__).parse_args(), draw_ambush, _do, PairArena, 2 * BOUND)
