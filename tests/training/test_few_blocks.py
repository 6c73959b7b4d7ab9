"""The warning about fewer blocks than workers: when it is issued, and its advice."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.dataframe import from_pandas
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import LinearRegression
from daskml_dist.training.client.cluster_rows import warn_of_few_blocks

X = da.zeros((100, 2), chunks=(100, 2))
FRAME = from_pandas(pd.DataFrame({"a": [1.0]}), npartitions=1)
LARGE, SMALL = 1 << 23, 1 << 20
TWO = ["a", "b"]


def _infos(*blocks: tuple[int, int]) -> Any:
    return [SimpleNamespace(n_rows=n, nbytes=size) for n, size in blocks]


@pytest.mark.parametrize(
    ("rows", "blocks", "workers", "tasks", "advice"),
    [
        (X, [(100, LARGE)], TWO, {}, r"1 block of rows for 2 workers.* X.rechunk\({0: 50}\)"),
        (FRAME, [(9, LARGE)], TWO, {}, r"npartitions=2\), or .*split_row_groups=True"),
        ([X], [(9, LARGE), (0, 0)], TWO, {"a": ["ServerHost-x"], "b": ["ours"]}, "pass at least 2"),
        (X, [(50, LARGE)] * 2, ["a", "b", "c"], {}, r"2 blocks of rows for 3 .*{0: 34}"),
        (X, [(50, LARGE)] * 2, TWO, {}, None),
        (X, [(100, SMALL)], TWO, {}, None),
        (X, [(100, LARGE)], ["a"], {}, None),
        (X, [(100, LARGE)], TWO, {"b": ["another's"]}, None),
        (X, [(0, LARGE)], TWO, {}, None),
    ],
)
def test_warning_is_issued_if_more_blocks_would_pay_off(
    rows: Any, blocks: Any, workers: list[str], tasks: dict[str, list[str]], advice: str | None
) -> None:
    client: Any = SimpleNamespace(processing=lambda workers: tasks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # garbage collection may run at any time
        warn_of_few_blocks(client, rows, _infos(*blocks), workers, {"ours"})
    assert len(caught) == (advice is not None)
    if advice is not None:
        with pytest.warns(UserWarning, match=advice):
            warn_of_few_blocks(client, rows, _infos(*blocks), workers, {"ours"})


@pytest.mark.parametrize("persisted", [False, True])
def test_a_fit_of_one_large_block_warns_unless_lanes_are_given(
    client: Client, persisted: bool
) -> None:
    rows = np.random.default_rng(0).normal(size=(1 << 16, 10))
    lazy, y = da.from_array(rows, chunks=-1), da.from_array(rows[:, 0], chunks=-1)
    if persisted:
        lazy, y = client.persist([lazy, y])
    with pytest.warns(UserWarning, match=r"1 block of rows for 2 workers.*X.rechunk\({0: 32768}"):
        LinearRegression().fit(lazy, y)
    LinearRegression(run=Run(n_lanes=1)).fit(lazy, y)
    LinearRegression().fit(lazy.rechunk({0: 32768}), y.rechunk(32768))
