"""Rounds of Apriori: candidates, a few at a time, and going on from any of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from scipy import sparse

from daskml_dist import Run
from daskml_dist.backends import get_backend
from daskml_dist.backends.itemset_kernels import join_frequent_sets
from daskml_dist.frequent_patterns import frequent_itemsets, itemsets
from daskml_dist.models.base import BatchRows
from daskml_dist.models.row_models import Baskets
from daskml_dist.solvers import apriori
from daskml_dist.solvers.apriori import Apriori, BasketBits, SetCounts
from tests.frequent_patterns.baskets import brute, drawn

ROWS = drawn(700, [0.6, 0.5, 0.3, 0.4, 0.2, 0.3, 0.2, 0.3], seed=2)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_candidates_are_those_all_of_whose_subsets_are_frequent(k: int) -> None:
    rng = np.random.default_rng(k)
    every = list(combinations(range(9), k))
    sets = [each for each in every if rng.random() < 0.8]
    of, bounds, last = join_frequent_sets(np.array(sets, np.int32), 10**6)
    found = [
        (*sets[of[p]], int(j)) for p in range(len(of)) for j in last[slice(*bounds[p : p + 2])]
    ]
    known = set(sets)
    wanted = [c for c in combinations(range(9), k + 1) if known >= set(combinations(c, k))]
    assert found == wanted
    assert len(wanted) > 5
    assert len(join_frequent_sets(np.array(sets, np.int32), 5)[2]) == 6


class Direct:
    """Sums of rows in this process (`solvers.Sums`) that store kept solver state."""

    should_stop = False

    def __init__(self, X: Any, kept: Any = None) -> None:
        self.n_rows, self.kept = X.shape[0], kept
        self.states: list[Any] = []
        self.requests: list[Any] = []
        self._model, self._backend = Baskets(X.shape[1]), get_backend("cpu")
        self._rows = BatchRows(self._backend.rows(X, slice(0, X.shape[0])))
        self._rows.state = BasketBits().make(self._model, self._rows, self._backend)

    def __call__(self, statistic: Any) -> Any:
        self.requests.append(statistic)
        out = np.zeros(statistic.shape(self._model))
        statistic.add(self._model, self._rows, out, self._backend)
        return out

    def keep(self, w: Any, state: Any = None, *_: Any) -> None:
        self.states.append(state())


def levels(solver: Apriori, sums: Any) -> dict[Any, int]:
    found = solver.solve(Baskets(ROWS.shape[1]), sums, None).extra["levels"]
    pairs = [pair for level in found for pair in zip(*level, strict=True)]
    return {tuple(items.tolist()): int(n) for items, n in pairs}


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_a_few_candidates_at_a_time(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apriori, "_MAX_CANDIDATES_PER_PASS", 7)
    solver, truth = Apriori(7, None, 1000), brute(ROWS, 7)
    whole = Direct(form(ROWS))
    assert levels(solver, whole) == truth
    assert len(whole.requests) > 12
    assert len(whole.requests) <= solver.max_passes
    for state in whole.states:  # wherever it is lost
        rest = Direct(form(ROWS), {name: array.copy() for name, array in state.items()})
        assert levels(solver, rest) == truth
        assert len(rest.requests) < len(whole.requests)


def killing(mark: Path) -> type[Apriori]:
    """Return a search, one of whose processes kills itself while it counts sets of three."""

    @dataclass(frozen=True, eq=False)
    class Deadly(SetCounts):
        mark: str = ""

        def add(self, model: Any, rows: Any, out: Any, backend: Any) -> Any:
            import os
            import signal

            found = super().add(model, rows, out, backend)
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return found
            os.kill(os.getpid(), signal.SIGKILL)

    class Struck:
        def __init__(self, sums: Any) -> None:
            self._sums = sums

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sums, name)

        def __call__(self, statistic: Any) -> Any:
            if isinstance(statistic, SetCounts) and statistic.prefix.shape[1] == 2:
                statistic = Deadly(**vars(statistic), mark=str(mark))
            return self._sums(statistic)

    class Killing(Apriori):
        def solve(self, model: Any, sums: Any, start: Any) -> Any:
            return super().solve(model, Struck(sums), start)

    return Killing


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_a_kill_in_mid_round_changes_nothing(
    crew: LocalCluster, tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = da.from_array(ROWS.astype(np.float32), chunks=(50, -1))
    run = Run(n_lanes=3, memory_budget="8 kB" if streamed else "auto")
    undisturbed = frequent_itemsets(ROWS, min_support=7)
    monkeypatch.setattr(itemsets, "Apriori", killing(tmp_path / "struck"))
    with Client(crew) as client:
        client.wait_for_workers(3)
        found = frequent_itemsets(X, min_support=7, run=run)
    assert (tmp_path / "struck").exists()
    pd.testing.assert_frame_equal(found, undisturbed)
