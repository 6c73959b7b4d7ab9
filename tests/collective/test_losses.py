"""Workers that are lost, join or leave while a function runs on them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist.collective import ParameterServer, RankGroup, run_together
from daskml_dist.errors import WorkerLostError
from daskml_dist.training.client import cluster_run
from tests.collective.functions import count_to_ten, obey, wait_for
from tests.lost_workers import wait_for_three
from tests.quick import in_turn, quick


@pytest.fixture
def crew_client(crew: LocalCluster, assert_clean: Callable[..., None]) -> Any:
    """Provide a client of three workers; fail if it leaves anything on the cluster."""
    with Client(crew) as client:
        wait_for_three(client)
        yield client
        assert_clean(client)


def _order(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"end-{step}").touch()


@pytest.mark.parametrize("steps", quick([(0,), (4,), (9,), (2, 3)], (0,), (2, 3)))
def test_saved_state_and_all_blocks_survive_a_killed_worker(
    steps: tuple[int, ...], tmp_path: Path, crew_client: Client
) -> None:
    """The last rank is killed during its steps; its blocks are recomputed elsewhere."""
    _order(tmp_path, *steps)
    x = da.arange(12.0, chunks=1).persist()
    found = run_together(crew_client, count_to_ten, x, state=(str(tmp_path), 0, 0.0))
    assert {(n, total) for n, total, _ in found} == {(10, 660.0)}
    assert {generation for *_, generation in found} >= {len(steps)}
    del x


def test_rows_in_memory_survive_a_killed_worker(tmp_path: Path, crew_client: Client) -> None:
    _order(tmp_path, 5)
    found = run_together(crew_client, count_to_ten, np.arange(12.0), state=(str(tmp_path), 0, 0.0))
    assert {(n, total) for n, total, _ in found} == {(10, 660.0)}


def test_retries_are_limited(tmp_path: Path, crew_client: Client) -> None:
    _order(tmp_path, 3)
    x = da.arange(12.0, chunks=1).persist()
    with pytest.raises(WorkerLostError, match="retries=0"):
        run_together(crew_client, count_to_ten, x, state=(str(tmp_path), 0, 0.0), retries=0)
    del x


def _descend(group: RankGroup, blocks: list[Any], state: Any) -> int:
    """Push gradients of the squared distance to the blocks' mean ten times."""
    folder, n = state
    mean = np.mean([np.mean(block) for block in blocks])
    while n < 30:
        if group.rank == group.size - 1:
            obey(folder, n)
        w = group.parameters.pull()["w"]
        group.parameters.push({"w": len(blocks) * (w - mean)}, rows=len(blocks))
        n += 1
        group.save((folder, n))
    return n


@pytest.mark.parametrize(("policy", "n_servers"), in_turn(["sync", "async", "ssp"], [1, 2]))
def test_parameters_survive_a_killed_worker(
    policy: str, n_servers: int, tmp_path: Path, crew_client: Client
) -> None:
    _order(tmp_path, 20)
    server = ParameterServer({"w": np.zeros(3)}, policy=policy, n_servers=n_servers,
                             learning_rate=0.5)  # fmt: skip
    x = da.full(12, 2.0, chunks=1).persist()
    run_together(crew_client, _descend, x, state=(str(tmp_path), 0), server=server)
    np.testing.assert_allclose(server.as_numpy()["w"], 2.0, atol=1e-3)
    del x


def test_blocks_move_when_workers_join_and_leave(
    tmp_path: Path, assert_clean: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function restarts from its last saved state whenever the cluster has changed."""
    # Ranks of the first generation do not wait for work done since a move.
    monkeypatch.setattr(cluster_run, "_UNMOVED", np.inf)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        (first,) = client.scheduler_info()["workers"]

        def change() -> None:
            wait_for(tmp_path / "size-1")
            cluster.scale(2)
            wait_for(tmp_path / "size-2")
            client.retire_workers([first])  # the one with the server, which moves

        changing = threading.Thread(target=change)
        changing.start()
        x = da.arange(6.0, chunks=1)
        found = run_together(client, _await_changes, x, state=(str(tmp_path), []))
        changing.join(200)
        # The remaining worker takes over the other's lanes, as one rank, not two.
        assert found == [([1, 2, 1], 15.0)]
        assert_clean(client)


def _await_changes(group: RankGroup, blocks: list[Any], state: Any) -> tuple[list[int], float]:
    """Note the group's size until it has been one, two and one again."""
    folder, sizes = state
    sizes = [*sizes, group.size]
    total = group.allreduce(float(sum(map(np.sum, blocks))))
    group.save((folder, sizes))
    Path(folder, f"size-{group.size}").touch()
    while len(sizes) < 3:
        group.barrier()
    return sizes, float(total)
