"""Full disks of hosts: the error of the fit, and complete cleanup."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from benchmarks._hosts import HostCluster, HostNetwork, network_problem
from daskml_dist import Run
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import TrainingError
from daskml_dist.linear_model import SGDClassifier

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20_000, 20))
Y = (X[:, 0] > 0).astype(np.int64)
#: Bytes of rows that a worker may hold: less than needed, so that bins are on disk.
BUDGET = 1 << 18


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[tuple[Client, dict[str, Path]]]:
    """Provide two hosts with temporary files on small file systems, and the folders by host."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    folders: dict[str, Path] = {}
    with HostNetwork(2) as network:
        try:
            for host in network.hosts:
                folder = tmp_path / host.name
                folder.mkdir()
                mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
                subprocess.run(mount, check=True)
                folders[host.name] = folder
            with HostCluster(
                network, environ=lambda host: {"DASK_TEMPORARY_DIRECTORY": str(folders[host.name])}
            ) as client:
                yield client, folders
        finally:
            for folder in folders.values():
                subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk; return the file that fills it."""
    ballast = folder / "ballast"
    with (
        open(ballast, "wb", buffering=0) as file,
        pytest.raises(OSError, match="No space left"),
    ):
        file.writelines(repeat(bytes(1 << 12)))
    return ballast


def rows() -> tuple[Any, Any]:
    """Return the rows as Dask arrays."""
    return da.from_array(X, chunks=(500, -1)), da.from_array(Y, chunks=500)


def trees() -> HistGradientBoostingClassifier:
    """Return trees whose bins exceed the memory budget of the fit."""
    return HistGradientBoostingClassifier(max_iter=3, random_state=0, run=Run(memory_budget=BUDGET))


def test_bins_on_a_full_disk_raise(
    small_disks: tuple[Client, dict[str, Path]], assert_clean: Any
) -> None:
    """One host's disk is full: the fit fails and names the folder; free space fixes it."""
    client, folders = small_disks
    full = list(folders.values())[1]
    ballast = fill(full)
    with pytest.raises(TrainingError, match=r"has no space for .*temporary-directory") as caught:
        trees().fit(*rows())
    assert str(full) in str(caught.value)
    assert_clean(client)
    ballast.unlink()
    assert trees().fit(*rows()).score(X, Y) > 0.9
    assert_clean(client)
    # Files without names: nothing of the fits takes space.
    left = {path.name for path in full.rglob("*") if path.is_file() and path.stat().st_size > 4096}
    assert not left


def test_full_disks_do_not_affect_fits_that_need_none(
    small_disks: tuple[Client, dict[str, Path]], assert_clean: Any
) -> None:
    """Full disks on all hosts change nothing."""
    client, folders = small_disks
    settings = {"max_iter": 3, "tol": None, "random_state": 0, "policy": "sync"}
    truth = SGDClassifier(**settings).fit(*rows()).coef_
    for folder in folders.values():
        fill(folder)
    np.testing.assert_array_equal(SGDClassifier(**settings).fit(*rows()).coef_, truth)
    assert_clean(client)
