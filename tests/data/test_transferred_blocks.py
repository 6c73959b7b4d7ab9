"""Blocks on a device that travel between workers."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol import to_serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from numpy.typing import NDArray

from daskml_dist.data import Block, make_block
from tests.data.rows import X
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in

#: Serializers requested by Dask's ucx and tcp.
UCX, TCP = ("cuda", "dask", "pickle", "error"), ("dask", "pickle", "error")


def _sent(block: Block, serializers: tuple[str, ...]) -> tuple[list[Any], Block]:
    """Return the frames of a message with a block, and the block read from them."""
    frames = asyncio.run(to_frames({"block": to_serialize(block)}, serializers=serializers))
    received = asyncio.run(from_frames(frames, deserializers=serializers))["block"]
    return frames, received


def _device_block(device_rows: Any) -> Block:
    return make_block(3, device_rows, np.arange(4), np.ones(4, "float32"), classification=True)


def _check_sent(block: Block, received: Block, rows: NDArray[Any]) -> None:
    np.testing.assert_array_equal(received.X, rows)
    assert received.X.dtype == rows.dtype
    np.testing.assert_array_equal(received.y, block.y)
    np.testing.assert_array_equal(received.sample_weight, block.sample_weight)
    assert (received.index, received.device) == (block.index, block.device)


def test_device_rows_are_sent_from_the_device_only_under_ucx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    cuda_serialize.register(DeviceArray, lambda array: ({}, [array]))
    cuda_deserialize.register(DeviceArray, lambda _, frames: frames[0])
    block = _device_block(DeviceArray(X.astype("float32")))
    frames, received = _sent(block, UCX)
    assert any(frame is block.rows for frame in frames)
    assert received.rows is block.rows
    assert DeviceArray.copied == 0
    _check_sent(block, received, X.astype("float32"))
    frames, received = _sent(block, TCP)
    assert not any(isinstance(frame, DeviceArray) for frame in frames)
    assert isinstance(received.rows, np.ndarray)
    _check_sent(block, received, X.astype("float32"))


@pytest.mark.parametrize("serializers", [UCX, TCP])
def test_host_rows_are_sent_from_host_memory_on_any_network(serializers: tuple[str, ...]) -> None:
    block = make_block(3, X, np.arange(4), np.ones(4), classification=True)
    _check_sent(block, _sent(block, serializers)[1], X)


def test_device_rows_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if they were also read into host memory."""
    plug_in(FakeCupy, monkeypatch)
    block = _device_block(DeviceArray(np.zeros((4, 1000), "float32")))
    before = len(pickle.dumps(block))
    np.testing.assert_array_equal(block.X, 0)
    assert len(pickle.dumps(block)) == before


@pytest.mark.gpu
def test_cupy_rows_are_sent_from_the_device() -> None:
    import cupy

    rows = X.astype("float32")
    block = _device_block(cupy.asarray(rows))
    frames, received = _sent(block, UCX)
    assert any(isinstance(frame, cupy.ndarray) for frame in frames)
    assert isinstance(received.rows, cupy.ndarray)
    _check_sent(block, received, rows)
