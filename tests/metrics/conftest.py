"""Scheduler of the tests of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import pytest


@pytest.fixture(autouse=True)
def in_process() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield
