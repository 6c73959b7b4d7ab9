"""A GPU, or what stands for one."""

from __future__ import annotations

import shutil

import pytest

from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import plug_in
from tests.training.devices.fits import CountedMoves


@pytest.fixture(params=["strict", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, or what stands for one."""
    if request.param == "strict":
        plug_in(CountedMoves, monkeypatch)


class _Emulated(EmulatedCupy):
    """Is always there."""

    @classmethod
    def problem(cls) -> str | None:
        return None


@pytest.fixture(params=["emulated", pytest.param("cupy", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with its kernels, or the host's emulation of it."""
    if request.param == "emulated":
        if shutil.which("g++") is None:
            pytest.skip("no g++ here")
        plug_in(_Emulated, monkeypatch)
