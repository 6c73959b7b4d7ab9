"""Workers recompute blocks from any Dask graph with the same results as Dask.

Blocks that do not fit in memory are recomputed in each pass from their part of the graph, without
Dask's scheduler; so cases draw everything that a graph may refer to, above all data on workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from tests.contracts.cases import Case
from tests.contracts.graphs import ARRAY_SOURCES, ARRAY_STEPS, FRAME_SOURCES, FRAME_STEPS
from tests.contracts.same_rows import deliver
from tests.lost_workers import wait_for_three
from tests.quick import quick
from tests.training.recovery.strikes import kill_worker

N_ROWS = 150
#: Bytes of blocks on each of two workers: less than half of the rows, at least the largest block.
BUDGET = 2_600

#: Without a sort by a two-class target, which would put all rows of a class into one partition.
STEPS_OF_FRAMES = [step for step in FRAME_STEPS if step != "sorted by target"]
FRAMES = [("frame", source, step) for source in FRAME_SOURCES for step in STEPS_OF_FRAMES]
ARRAYS = [
    (container, source, step)
    for container in ("array", "sparse array", "list of delayed")
    for source in ARRAY_SOURCES
    for step in ARRAY_STEPS
    # Delayed blocks of arrays with different chunks are not aligned.
    if not (container == "list of delayed" and step == "rechunked")
]
QUICK = [
    ("frame", "from_pandas", "transformed"),
    ("frame", "from_map", "in tuples"),
    ("frame", "from_delayed", "parts nested"),
    ("array", "from_array", "parts nested"),
]
#: Steps in tests of lost workers; the source does not matter for persisted rows.
LOST = [("frame", "from_pandas", step) for step in STEPS_OF_FRAMES] + [
    ("array", "from_array", step) for step in ARRAY_STEPS
]


def _case(container: str, source: str, step: str) -> Case:
    return Case("SGDClassifier", container, source, (step,), n_rows=N_ROWS, n_blocks=8, seed=0)


def _model(*callbacks: Any, **run: Any) -> SGDClassifier:
    """Return a model with full batches, so that the result does not depend on order and blocks."""
    return SGDClassifier(
        optimizer="sgd",
        learning_rate=0.5,
        batch_size=None,
        max_iter=3,
        tol=None,
        callbacks=list(callbacks),
        run=Run(**run),
    )


def _check(case: Case, folder: Path, *callbacks: Any, n_workers: int = 2) -> None:
    user_input = deliver(case, folder)
    in_memory = user_input.in_memory()
    assert sorted(in_memory.row.tolist()) == list(range(N_ROWS))
    truth = _model().fit(in_memory.X, in_memory.y)
    budget = BUDGET * 2 // n_workers
    streamed = _model(*callbacks, memory_budget=budget).fit(user_input.X, user_input.y)
    assert streamed.history_.extra["streamed"]
    assert [record["rows"] for record in streamed.history_] == [N_ROWS] * 3
    np.testing.assert_allclose(streamed.coef_, truth.coef_, rtol=1e-9)


@pytest.mark.parametrize("graph", quick([*FRAMES, *ARRAYS], *QUICK), ids=" ".join)
def test_blocks_are_streamed(graph: tuple[str, str, str], client: Client, tmp_path: Path) -> None:
    _check(_case(*graph), tmp_path)


@pytest.fixture
def crew_client(crew: LocalCluster, assert_clean: Callable[..., None]) -> Iterator[Client]:
    with Client(crew) as client:
        wait_for_three(client)
        yield client
        _wait_for_answers(client)
        assert_clean(client)


def _wait_for_answers(client: Client) -> None:
    """Wait until the scheduler has no connection to a killed worker."""
    deadline = time.monotonic() + 100
    # Errors are returned, since asyncio would log several raised ones later.
    while list(client.run(bool, on_error="return").values()) != [False] * 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("graph", LOST, ids=" ".join)
def test_blocks_of_lost_workers_are_streamed_again(
    graph: tuple[str, str, str], crew_client: Client, tmp_path: Path
) -> None:
    """Persisted rows are lost with a worker; Dask recomputes them, and blocks are read again."""

    class Killer:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            if record["pass"] == 1:
                kill_worker(crew_client, run.trainer_addresses[0])

    _check(_case(*graph), tmp_path, Killer(), n_workers=3)
