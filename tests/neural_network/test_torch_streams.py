"""The CUDA stream on which torch computes: the one of the arrays' own library."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskml_dist.models.torch_modules import module as torch_module


@pytest.mark.parametrize(("address", "expected"), [(0, "default of gpu"), (64, "stream 64 of gpu")])
def test_torch_computes_on_the_stream_of_the_arrays(
    address: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address 0 is the null stream, of which ExternalStream would make another."""
    entered = []
    cuda = SimpleNamespace(
        default_stream=lambda device: f"default of {device}",
        ExternalStream=lambda address, device: f"stream {address} of {device}",
        stream=lambda stream: entered.append(stream) or nullcontext(),
    )
    monkeypatch.setattr(torch_module, "load_torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(torch_module, "stream_of", lambda array: address)
    lane: Any = SimpleNamespace(device="gpu")
    torch_module._Lane._on_stream(lane, np.zeros(1))
    assert entered == [expected]
