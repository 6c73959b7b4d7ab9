"""Model files of PyTorch networks: tensors with the module's names, without its class."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import daskml_dist
from daskml_dist import Run
from daskml_dist.errors import ModelFileError
from daskml_dist.inference import read_manifest
from daskml_dist.neural_network import TorchClassifier, TorchRegressor

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.digitize(X[:, 0], [-0.5, 0.5])
OURS = "daskml_dist."


@cache
def make_net() -> Any:
    class Net(nn.Module):
        def __init__(self, hidden: int = 3, n_out: int = 3) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(4, hidden), nn.BatchNorm1d(hidden)
            self.last = nn.Linear(hidden, n_out)

        def forward(self, x: Any) -> Any:
            return self.last(self.norm(self.first(x)).relu())

    return Net


def _settings(**more: Any) -> dict[str, Any]:
    run = Run(deterministic=True)
    return {"max_iter": 2, "batch_size": 20, "random_state": 0, "run": run, **more}


@pytest.mark.parametrize("average", [False, True])
def test_loaded_networks_predict_and_continue_their_fit(average: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    first = TorchClassifier(make_net(), module__hidden=5, **_settings(average=average)).fit(X, Y)
    first.save(path)
    second = daskml_dist.load(path, module=make_net())
    assert_array_equal(second.predict_proba(X), first.predict_proba(X))
    assert second.get_params()["module__hidden"] == 5
    assert read_manifest(path)["outputs"]["classes"] == [0, 1, 2]
    first.partial_fit(X, Y), second.partial_fit(X, Y)
    assert_array_equal(second.predict_proba(X), first.predict_proba(X))


def test_torch_can_read_the_tensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = TorchClassifier(make_net(), **_settings()).fit(X, Y)
    model.save(tmp_path / "a.safetensors")
    tensors = load_file(tmp_path / "a.safetensors")
    net = make_net()()
    net.load_state_dict({n: one for n, one in tensors.items() if not n.startswith(OURS)})
    net.eval()
    with torch.inference_mode():
        found = net(torch.from_numpy(X)).softmax(dim=1).numpy()
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=1e-5)


def test_criteria_are_passed_at_loading(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    y = X[:, 0].astype(np.float64)
    params = {"module": make_net(), "criterion": nn.HuberLoss}
    first = TorchRegressor(**params, module__n_out=1, **_settings()).fit(X, y)
    first.save(path)
    with pytest.raises(ModelFileError, match=r"criterion=\.\.\., module=\.\.\."):
        daskml_dist.load(path)
    second = daskml_dist.load(path, **params)
    assert_array_equal(second.predict(X), first.predict(X))


def test_other_modules_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    TorchClassifier(make_net(), **_settings()).fit(X, Y).save(path)

    class Wider(make_net()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(hidden=7)

    with pytest.raises(ModelFileError, match=r"first\.weight of shape \(7, 4\) was \(3, 4\)"):
        daskml_dist.load(path, module=Wider)
    with pytest.raises(ModelFileError, match=r"holds max_iter itself"):
        daskml_dist.load(path, module=make_net(), max_iter=3)
    with pytest.raises(
        ModelFileError, match=r"Net, which other processes cannot import.*as \.safetensors"
    ):
        TorchClassifier(make_net(), **_settings()).fit(X, Y).save(tmp_path / "a.skops")
