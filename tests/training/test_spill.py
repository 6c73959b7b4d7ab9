"""SpillStore: data derived from rows are in memory, then in mapped files with released pages."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
from typing import Any

import numpy as np
import pytest

from daskml_dist.errors import TrainingError
from daskml_dist.training.worker import spill as module
from daskml_dist.training.worker.spill import SpillStore


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return array is not None


def test_data_beyond_the_memory_limit_are_stored_in_files() -> None:
    store = SpillStore(1_000)
    first = store.zeros((100,), np.int64)
    second = store.zeros((10, 30), np.int32)
    second[:] = np.arange(300).reshape(10, 30)
    assert not is_mapped(first)
    assert is_mapped(second)
    assert second.dtype == np.int32
    assert second.sum() == 44_850
    assert not is_mapped(store.zeros((0, 7), np.int64))
    view = first[:10]
    del first
    gc.collect()
    assert is_mapped(store.zeros((100,), np.int64))  # a part is still referenced
    del view
    gc.collect()
    assert not is_mapped(store.zeros((100,), np.int64))
    store.end()


@pytest.mark.skipif(not module._STATM.exists(), reason="no /proc to read the pages from")
def test_released_pages_keep_their_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_MAPPED_BYTES", 2**20)
    store = SpillStore(0)
    array = store.zeros((2**21,), np.int64)
    store.end()
    assert store._at_first is not None
    array[:] = np.arange(len(array))
    assert module._count_file_pages() - store._at_first >= array.nbytes // mmap.PAGESIZE
    store.begin()
    deadline = time.monotonic() + 200
    while module._count_file_pages() - store._at_first > 2**20 // mmap.PAGESIZE:
        assert time.monotonic() < deadline, "pages stay"
        time.sleep(0.01)
    np.testing.assert_array_equal(array[:: 2**12], np.arange(0, len(array), 2**12))
    store.end()


def test_a_full_disk_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(TrainingError, match=r"no space for 8,000 bytes.*temporary-directory"):
        SpillStore(0).zeros((1_000,), np.int64)
