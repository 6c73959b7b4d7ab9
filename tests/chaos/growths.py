"""Workers killed while trees grow: no fit may hang, and none may find another tree.

A seed determines which worker of which fit is killed, and when. ``python tests/chaos/growths.py
1000 1100`` runs many seeds, one after the other, and prints a summary.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dask
import dask.array as da
import numpy as np

from chaos.arenas import Arena, KilledArena
from chaos.seeds import parser, run_seeds
from chaos.works import check_clean
from daskml_dist import Run
from daskml_dist.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRanker,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from daskml_dist.losses import AFT, Cox

__all__ = ["BOUND", "Kills", "Strike", "draw_strike", "survive"]

N_ROWS, N_BLOCKS, FEATURES = 12_000, 12, 8
#: Limit in seconds for a fit, whatever happens.
BOUND = 200.0
#: Seconds between two kills in the same fit: about the time of a worker's restart.
BETWEEN = 2.0

_BOOSTING = {"random_state": 0, "max_features": 0.7, "max_iter": 40}
_FOREST = {"random_state": 0, "n_estimators": 60}
MODELS: dict[str, Any] = {
    "boosting": HistGradientBoostingRegressor(
        early_stopping=True, n_iter_no_change=50, **_BOOSTING
    ),
    "boosting, 3 classes": HistGradientBoostingClassifier(early_stopping=False, **_BOOSTING),
    "boosting, median": HistGradientBoostingRegressor(loss="absolute_error", **_BOOSTING),
    "boosting, large gradients": HistGradientBoostingClassifier(
        sampling_method="goss", early_stopping=False, **_BOOSTING
    ),
    "boosting, dropped trees": HistGradientBoostingRegressor(
        drop_rate=0.2, subsample=0.7, early_stopping=True, n_iter_no_change=50, **_BOOSTING
    ),
    "boosting, failure times": HistGradientBoostingRegressor(
        AFT("logistic", 0.5), subsample=0.7, early_stopping=True, n_iter_no_change=50, **_BOOSTING
    ),
    "boosting, hazards": HistGradientBoostingRegressor(
        Cox(), sampling_method="goss", drop_rate=0.2, early_stopping=False, **_BOOSTING
    ),
    "ranking": HistGradientBoostingRanker(early_stopping=False, **_BOOSTING),
    "forest, functional": RandomForestClassifier(decomposition="functional", **_FOREST),
    "forest, data": RandomForestClassifier(
        decomposition="data", class_weight="balanced_subsample", oob_score=True, **_FOREST
    ),
    "extra trees, data": ExtraTreesRegressor(decomposition="data", **_FOREST),
    "extra trees, functional": ExtraTreesRegressor(decomposition="functional", **_FOREST),
    "boosting, vectors": HistGradientBoostingClassifier(
        multi_strategy="multi_output_tree",
        subsample=0.7,
        early_stopping=True,
        n_iter_no_change=50,
        **_BOOSTING,
    ),
}
#: Seconds of an undisturbed fit in the arena, and its trees.
_calm: dict[tuple[str, str], tuple[float, list[bytes]]] = {}


@dataclass(frozen=True)
class Strike:
    """Kills of workers in one fit.

    Parameters
    ----------
    seed : int
    model : str
        Name in `MODELS`.
    rows : {"lazy", "persisted", "streamed"}
    at : float
        Time of the first kill, as a share of an undisturbed fit's time.
    kills : int
    weighted : bool
    """

    seed: int
    model: str
    rows: str
    at: float
    kills: int
    weighted: bool


def draw_strike(seed: int) -> Strike:
    """Return the kills of a seed; models take turns, a generator draws the rest."""
    rng = np.random.default_rng([seed, 5])
    return Strike(
        seed=seed,
        model=list(MODELS)[seed % len(MODELS)],
        rows=str(rng.choice(["lazy", "persisted", "streamed"])),
        at=float(rng.uniform(0, 1)),
        kills=int(rng.choice([1, 1, 1, 2])),
        weighted=bool(rng.integers(2)),
    )


def survive(strike: Strike, arena: Arena) -> tuple[float, int]:
    """Fit while workers are killed, and compare; return the seconds, and the number of kills."""
    arena.heal()
    key = strike.model, f"{strike.rows}, {strike.weighted}"
    if key not in _calm:
        rows = _rows(strike, arena)
        _fit(strike, rows)  # loads the kernels
        since = time.monotonic()
        _calm[key] = 0.0, _bits(_fit(strike, rows))
        _calm[key] = time.monotonic() - since, _calm[key][1]
    seconds, wanted = _calm[key]
    rows = _rows(strike, arena)
    waits = [strike.at * seconds, *[BETWEEN] * (strike.kills - 1)]
    killer = Kills(strike.seed, arena, waits)
    since = time.monotonic()
    with dask.config.set({"daskml_dist.timeout": 60}), killer:
        model = _fit(strike, rows)
        taken = time.monotonic() - since
    del rows
    assert taken < BOUND, f"took {taken:.1f} s"
    assert _bits(model) == wanted, "other trees"
    check_clean(arena)
    return taken, killer.met


def _rows(strike: Strike, arena: Arena) -> list[Any]:
    """Return rows, targets and weights, made by blocks with local functions (pickled by value)."""
    kind, weighted = type(MODELS[strike.model]).__name__, strike.weighted
    classes = "Classifier" in kind or "Ranker" in kind
    times = isinstance(getattr(MODELS[strike.model], "loss", None), AFT | Cox)

    def make_block(empty: Any, block_info: Any = None) -> Any:
        rng = np.random.default_rng(block_info[0]["chunk-location"][0])
        X = rng.standard_normal(empty.shape)
        X[:, 3] = np.round(X[:, 3])
        X[rng.random(X.shape) < 0.02] = np.nan
        return X

    def target(X: Any) -> Any:
        X = np.nan_to_num(X)
        raw = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + X[:, 3] + 0.3 * X[:, 7]
        if times:  # negative if no event was seen
            return np.where(X[:, 6] > -0.5, 1, -1) * np.ceil(4 * np.exp(raw / 4)) / 4
        return np.digitize(raw, [-0.5, 0.5]) if classes else raw

    def weight(X: Any) -> Any:
        return 1 + np.abs(np.nan_to_num(X[:, 5]))

    empty = da.zeros((N_ROWS, FEATURES), chunks=(N_ROWS // N_BLOCKS, -1))
    X = empty.map_blocks(make_block, dtype=float)
    found = [X, X.map_blocks(target, drop_axis=1, dtype=int if classes else float)]
    if weighted:
        found.append(X.map_blocks(weight, drop_axis=1, dtype=float))
    return list(arena.client.persist(found)) if strike.rows == "persisted" else found


def _fit(strike: Strike, rows: list[Any]) -> Any:
    budget = 2 * N_ROWS // N_BLOCKS * (FEATURES + 2) * 8 if strike.rows == "streamed" else "auto"
    model = MODELS[strike.model].set_params(run=Run(n_lanes=3, memory_budget=budget))
    if isinstance(model, HistGradientBoostingRanker):
        # Blocks split queries, and all rows of a query have the same weight.
        group = da.arange(N_ROWS, chunks=N_ROWS // N_BLOCKS) // 17
        weight = 1.0 + group % 3 if strike.weighted else None
        model.fit(*rows[:2], weight, group=group)
    else:
        model.fit(*rows)
    assert bool(model.history_.extra["streamed"]) == (strike.rows == "streamed")
    return model


def _bits(model: Any) -> list[bytes]:
    """Return all results of a fit as bytes."""
    nodes = model._trees.nodes
    found = [getattr(nodes, f.name).tobytes() for f in fields(nodes)]
    for name in ("train_score_", "validation_score_", "oob_decision_function_"):
        if hasattr(model, name):
            found.append(np.asarray(getattr(model, name)).tobytes())
    return found


class Kills:
    """Killer of workers from a separate thread, while a fit runs.

    Parameters
    ----------
    seed : int
        Determines which workers are killed.
    arena : Arena
    waits : list of float
        Seconds before each kill.
    in_turn : bool, default=False
        Whether no worker is killed twice before all were killed, including restarted ones.

    Attributes
    ----------
    met : int
        Number of kills before the end of the fit.
    """

    def __init__(
        self, seed: int, arena: Arena, waits: list[float], *, in_turn: bool = False
    ) -> None:
        self.met = 0
        self._arena, self._waits, self._in_turn = arena, waits, in_turn
        self._rng = np.random.default_rng([seed, 6])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._pids = self._alive()

    def _alive(self) -> dict[str, int]:
        return {a: self._arena.pids([a])[0] for a in sorted(self._arena.workers())}

    def __enter__(self) -> Kills:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        for wait in self._waits:
            if self._ended.wait(wait):
                return
            if self._in_turn and not self._pids:
                with suppress(Exception):  # one of them may have gone in the meantime
                    self._pids = self._alive()
            if not self._pids:
                continue
            victim = str(self._rng.choice(sorted(self._pids)))
            self.met += 1
            with suppress(ProcessLookupError):
                os.kill(self._pids.pop(victim), signal.SIGKILL)


def _do(strike: Strike, arena: Arena) -> tuple[bool, float]:
    seconds, met = survive(strike, arena)
    return bool(met), seconds


if __name__ == "__main__":
    run_seeds(parser(__doc__).parse_args(), draw_strike, _do, KilledArena, 2 * BOUND)
