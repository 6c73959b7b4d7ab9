"""A GPU, or a stand-in for one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import DeviceArray, plug_in
from tests.training.devices.fits import CountedMoves


@pytest.fixture(params=["strict", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a GPU, or a stand-in for one."""
    if request.param == "strict":
        plug_in(CountedMoves, monkeypatch)


class _Emulated(EmulatedCupy):
    """Emulated GPU that is always available, with rows that NumPy cannot read."""

    @classmethod
    def problem(cls) -> str | None:
        return None

    def to_device(self, array: Any) -> Any:
        return super().to_device(array.values if isinstance(array, DeviceArray) else array)

    def to_numpy(self, array: Any) -> Any:
        return array.get() if isinstance(array, DeviceArray) else super().to_numpy(array)


@pytest.fixture(params=["emulated", pytest.param("cupy", marks=pytest.mark.gpu)])
def kernels(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], Any]:
    """Return a GPU with its kernels, or the host's emulation of it, and put rows there.

    The emulation counts the entries of these rows that are copied to the host.
    """
    if request.param == "cupy":
        return import_module("cupy").asarray
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    plug_in(_Emulated, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    return DeviceArray
