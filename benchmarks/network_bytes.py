"""Accuracy of a perceptron and of a convolutional network by the bytes that their lanes send."""

from __future__ import annotations

import importlib.util
import os
import time
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks._common import markdown, persisted, processes, read_mnist
from benchmarks._torch_nets import make_net
from daskml_dist import Run
from daskml_dist.compression import OneBit, PowerSGD, TopK
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD

DILOCO = LocalSGD(100, outer_rate=0.7, outer_momentum=0.5)
#: For each name: policy, compression, kind of optimizer, and networks.
CASES: dict[str, tuple[Any, Any, str, str]] = {
    "allreduce, Adam": ("allreduce", None, "adam", "MLP, CNN"),
    "allreduce, Adam, 8bit": ("allreduce", "8bit", "adam", "CNN"),
    "allreduce, Adam, 1bit": ("allreduce", "1bit", "adam", "CNN"),
    "allreduce, Adam, PowerSGD of rank 4": ("allreduce", PowerSGD(4), "adam", "CNN"),
    "allreduce, Adam, PowerSGD of rank 1": ("allreduce", PowerSGD(1), "adam", "MLP, CNN"),
    "allreduce, momentum": ("allreduce", None, "momentum", "MLP, CNN"),
    "allreduce, momentum, PowerSGD of rank 1": ("allreduce", PowerSGD(1), "momentum", "MLP, CNN"),
    "allreduce, momentum, topk of 0.25 %": ("allreduce", TopK(0.0025), "momentum", "MLP, CNN"),
    "allreduce, signs of the momentum": ("allreduce", OneBit(momentum=0.9), "sgd", "MLP"),
    "DiLoCo, 100 steps of Adam, 4bit": (DILOCO, "4bit", "adam", "CNN"),
    "DiLoCo, 100 steps of Adam, 1bit": (DILOCO, "1bit", "adam", "MLP, CNN"),
    "DiLoCo, 100 steps of Adam, topk of 5 %": (DILOCO, TopK(0.05), "adam", "CNN"),
}  # fmt: skip
#: Optimizers and learning rates of each network.
OPTIMIZERS: dict[str, dict[str, tuple[str, float]]] = {
    "MLP": {"adam": ("adam", 0.001), "momentum": ("momentum", 0.1), "sgd": ("sgd", 1.0)},
    "CNN": {"adam": ("adam", 0.001), "momentum": ("momentum", 0.02), "sgd": ("sgd", 0.2)},
}
TITLES = {
    "MLP": "MLPClassifier((256,)) on MNIST / 255, 12 passes, 2 worker processes",
    "CNN": "TorchClassifier(LeNet) on MNIST / 255, 3 passes, 2 worker processes",
}


def run(tiny: bool = False) -> str:
    """Return the tables; NETWORKS selects one of them."""
    networks = os.environ.get("NETWORKS", "MLP,CNN").split(",")
    if importlib.util.find_spec("torch") is None:
        networks.remove("CNN")
    data = _read_digits() if tiny else read_mnist()
    return "\n\n".join(_compare(name, data, tiny) for name in networks)


def _compare(name: str, data: tuple[Any, ...], tiny: bool) -> str:
    """Return the table of a network; bytes are those that all trainers sent and received."""
    X, y, X_test, y_test = data
    cases = {case: found[:3] for case, found in CASES.items() if name in found[3]}
    if tiny:
        cases = {case: c for case, c in cases.items() if case.endswith("PowerSGD of rank 1")}
    if name == "CNN":
        X, X_test = (some.reshape(-1, 1, 28, 28) for some in (X, X_test))
    rows, whole = [], 0.0
    with processes(2):
        X, y = persisted(X, 6), persisted(y, 6)
        for case, (policy, compression, kind) in cases.items():
            start = time.perf_counter()
            model = _make_model(name, kind, 1 if tiny else {"MLP": 12, "CNN": 3}[name])
            model.set_params(policy=policy, run=Run(compression=compression))
            model.fit(X, y)
            seconds = time.perf_counter() - start
            records = model.history_.records
            moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records) / 1e6
            whole = whole or moved
            rows.append([
                case, f"{model.score(X_test, y_test):.4f}", f"{records[-1]['loss']:.4f}",
                f"{seconds:.1f}", f"{moved:,.1f}", f"{moved / whole:.2%}",
            ])  # fmt: skip
    columns = ["", "test accuracy", "loss", "seconds", "MB moved", "relative to all-reduce"]
    return markdown(TITLES[name], columns, rows)


def _make_model(name: str, kind: str, passes: int) -> Any:
    """Return a network with its optimizer."""
    optimizer, rate = OPTIMIZERS[name][kind]
    params: dict[str, Any] = {"max_iter": passes, "tol": None, "random_state": 0}
    if name == "MLP":
        return MLPClassifier((256,), optimizer=optimizer, schedule=rate, **params)
    from daskml_dist.neural_network import TorchClassifier

    make = partial(make_net, "LeNet")
    return TorchClassifier(make, optimizer=optimizer, learning_rate=rate, batch_size=200, **params)


def _read_digits() -> tuple[Any, Any, Any, Any]:
    """Return digits of 8 x 8 pixels, in the middle of 28 x 28."""
    X, y = load_digits(return_X_y=True)
    X = np.pad(X.reshape(-1, 8, 8) / np.float32(16), ((0, 0), (10, 10), (10, 10)))
    X = X.reshape(-1, 784).astype(np.float32)
    return X, y, X, y
