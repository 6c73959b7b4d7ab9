"""PyTorch networks as MLflow models, which are loaded without passing their class."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from daskml_dist.errors import ModelFileError
from daskml_dist.inference import mlflow as flavor
from daskml_dist.neural_network import TorchClassifier, TorchRegressor

pytest.importorskip("torch", reason="PyTorch is not installed")
mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
SETTINGS = {"max_iter": 2, "batch_size": 20, "random_state": 0}
SOURCE = """
import torch


class Net(torch.nn.Module):
    def __init__(self, n_out=3):
        super().__init__()
        self.last = torch.nn.Linear(4, n_out)

    def forward(self, x):
        return self.last(x)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Provide a class in a user's module; changes of paths and modules are undone."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "a_net_of_mine.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    yield __import__("a_net_of_mine").Net
    sys.modules.pop("a_net_of_mine", None)


def forget(home: Path) -> None:
    """Remove the module from this process, as in another one."""
    sys.path.remove(str(home))
    del sys.modules["a_net_of_mine"]


@pytest.mark.parametrize("suffix", [".safetensors", ".skops"])
def test_pyfunc_reads_networks_with_their_code(tmp_path: Path, net: Any, suffix: str) -> None:
    home, path = tmp_path / "home", tmp_path / "model"
    model = TorchClassifier(net, **SETTINGS).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    flavor.save_model(model, path, suffix=suffix, code_paths=[home / "a_net_of_mine.py"])
    wanted, labels = model.predict_proba(X), model.predict(X)
    assert "torch==" in (path / "requirements.txt").read_text()
    forget(home)
    served = mlflow.pyfunc.load_model(str(path))
    assert sys.modules["a_net_of_mine"].__file__ == str(path / "code" / "a_net_of_mine.py")
    assert_array_equal(served.predict(X), labels)
    assert_array_equal(served.predict(X, params={"method": "predict_proba"}), wanted)


def test_custom_criteria_are_found(tmp_path: Path, net: Any) -> None:
    from torch import nn

    for suffix in (".safetensors", ".skops"):
        model = TorchRegressor(net, criterion=nn.HuberLoss, module__n_out=1, **SETTINGS).fit(
            X, X[:, 0]
        )
        flavor.save_model(model, tmp_path / suffix[1:], suffix=suffix)
        served = mlflow.pyfunc.load_model(str(tmp_path / suffix[1:]))
        assert_array_equal(served.predict(X), model.predict(X))


def test_missing_classes_are_named(tmp_path: Path, net: Any) -> None:
    class Inner(net):  # type: ignore[misc]
        pass

    y = np.digitize(X[:, 0], [-0.5, 0.5])
    local = TorchClassifier(Inner, **SETTINGS).fit(X, y)
    with pytest.warns(UserWarning, match=r"Inner cannot be imported.*code_paths"):
        flavor.save_model(local, tmp_path / "local", suffix=".safetensors")
    found = flavor.load_model(str(tmp_path / "local"), module=Inner)
    assert_array_equal(found.predict(X), local.predict(X))

    model = TorchClassifier(net, **SETTINGS).fit(X, y)
    flavor.save_model(model, tmp_path / "bare", suffix=".safetensors")
    forget(tmp_path / "home")
    for name in ("local", "bare"):
        with pytest.raises(ModelFileError, match=r"which cannot be imported here .*code_paths"):
            mlflow.pyfunc.load_model(str(tmp_path / name))
    with pytest.raises(ModelFileError, match="Cannot copy"):
        flavor.save_model(local, tmp_path / "c", suffix=".safetensors", code_paths=["nowhere.py"])
