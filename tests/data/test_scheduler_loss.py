"""Statistics whose scheduler is lost while rows are read raise the error of that loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist.data.computing import use_client
from daskml_dist.errors import SchedulerLostError
from daskml_dist.metrics import mean_squared_error
from daskml_dist.preprocessing import StandardScaler

#: The workers are threads of this process.
BEGUN, MAY_END = threading.Event(), threading.Event()


def read(rows: Any) -> Any:
    BEGUN.set()
    MAY_END.wait(100)
    return rows


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "transformer": lambda X: StandardScaler().fit(X),
    "metric": lambda X: mean_squared_error(X[:, 0], X[:, 1]),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_connection_that_breaks_while_rows_are_read_is_named(name: str) -> None:
    BEGUN.clear()
    MAY_END.clear()
    X = da.ones((40, 3), chunks=(10, 3)).map_blocks(read, meta=np.ones((0, 3)))

    def compute(client: Client) -> Any:
        with use_client(client):
            return STATISTICS[name](X)

    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        result = pool.submit(compute, client)
        try:
            assert BEGUN.wait(100)
            client.loop.add_callback(client.scheduler_comm.abort)
            with pytest.raises(SchedulerLostError, match="make a new Client"):
                result.result(100)
        finally:
            MAY_END.set()
