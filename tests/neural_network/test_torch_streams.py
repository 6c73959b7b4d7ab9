"""Torch computes on the CUDA stream of the arrays' library."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskml_dist.models.torch_modules import module as torch_module
from daskml_dist.models.torch_modules.source import Drawing
from daskml_dist.training.worker.lane import Lane
from tests.fake_cupy import DeviceArray


class _Device:
    """Stand-in for a torch device."""

    type = "cuda"

    def __str__(self) -> str:
        return "gpu"


@pytest.mark.parametrize(("address", "expected"), [(0, "default of gpu"), (64, "stream 64 of gpu")])
def test_torch_computes_on_the_stream_of_the_arrays(
    address: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address 0 is the null stream, for which ExternalStream would make a different one."""
    entered = []
    cuda = SimpleNamespace(
        default_stream=lambda device: f"default of {device}",
        ExternalStream=lambda address, device: f"stream {address} of {device}",
        stream=lambda stream: entered.append(stream) or nullcontext(),
        current_stream=lambda device: SimpleNamespace(cuda_stream=32),
    )
    monkeypatch.setattr(torch_module, "load_torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(torch_module, "stream_of", lambda array: address)
    torch_module.on_stream_of(np.zeros(1), _Device())
    assert entered == [expected]


def test_the_current_stream_is_not_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entering and leaving it would cost ten CUDA calls in each step."""
    cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch_module, "load_torch", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(torch_module, "stream_of", lambda array: 0)
    with torch_module.on_stream_of(np.zeros(1), _Device()):
        pass


def test_a_step_on_a_gpu_seeds_the_generators_that_it_draws_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the CPU's and this device's generators are seeded, as by `torch.manual_seed`."""
    torch = pytest.importorskip("torch")
    of_devices = tuple(torch.Generator() for _ in range(2))
    monkeypatch.setattr(torch.cuda, "default_generators", of_devices)
    others = of_devices[0].get_state()
    numbers = []
    seed_all = torch.default_generator.manual_seed

    def draw(seed: Any) -> Any:
        seed((5, 0, 3, 0))
        numbers.append(torch.default_generator.initial_seed())
        return torch.rand(4), torch.rand(4, generator=of_devices[1])

    def refuse(*_: Any) -> None:
        raise AssertionError("a seed was queued for a device that is not there")

    monkeypatch.setattr("traceback.format_stack", refuse)
    before = torch.default_generator.get_state()
    try:
        on_host, on_device = Drawing(SimpleNamespace(index=1)).call(draw, refuse)
        seed_all(numbers[0])
        expected = torch.rand(4)
    finally:
        torch.default_generator.set_state(before)
    assert torch.equal(on_host, expected)
    assert torch.equal(on_device, expected)
    assert torch.equal(of_devices[0].get_state(), others)


@pytest.mark.parametrize("waits", [False, True])
def test_the_gradient_of_a_network_stays_in_torchs_memory_on_a_gpu(waits: bool) -> None:
    """Unless parameters are on the host: then their gradient is moved there."""
    device_gradient = DeviceArray(np.ones((3, 1)))
    rows = SimpleNamespace(X=None)
    lane: Any = SimpleNamespace(
        _on_host=False,
        backend=None,
        _model=SimpleNamespace(own_gradient=lambda w, piece, backend: (device_gradient, 2.0)),
        _add_busy_time=lambda since, waited: counted.append(waited),
        _count_batch=lambda n_rows, loss: counted.append((n_rows, loss)),
    )
    counted: list[Any] = []
    batch: Any = SimpleNamespace(pieces=[rows], add_gradient=None, n_rows=7, index=None)
    w = np.zeros((3, 1)) if waits else DeviceArray(np.zeros((3, 1)))
    found = Lane._gradient_in_model_memory(lane, w, batch)
    assert found is (None if waits else device_gradient)
    assert counted == ([] if waits else [False, (7, 2.0)])
