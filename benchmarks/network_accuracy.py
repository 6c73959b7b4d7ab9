"""Accuracy of a network under every policy and some variants, and the bytes that they send."""

from __future__ import annotations

import time
from typing import Any

from sklearn.datasets import load_digits

from benchmarks._common import markdown, persisted, processes, read_mnist
from daskml_dist import Run
from daskml_dist.compression import TopK
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import POLICIES, Asynchronous, LocalSGD

PASSES = 12
MOMENTUM: dict[str, Any] = {"solver": "sgd", "learning_rate_init": 0.1}
#: Names, and the parameters that differ from the policy's defaults.
RELATIVES: dict[str, dict[str, Any]] = {
    "local, 100 steps": {"policy": LocalSGD(100)},
    "DiLoCo, 100 steps": {"policy": LocalSGD(100, outer_rate=0.7, outer_momentum=0.5)},
    **{
        f"DiLoCo, 100 steps, {name}": {
            "policy": LocalSGD(100, outer_rate=0.7, outer_momentum=0.5),
            "run": Run(compression=compression),
        }
        for name, compression in {"8bit": "8bit", "4bit": "4bit", "topk 5 %": TopK(0.05)}.items()
    },
    "Downpour, 4 steps, Adagrad": {
        "policy": Asynchronous(push_every=4, pull_every=4),
        "optimizer": "adagrad",
        "schedule": 0.02,
    },
    "sync, one server": {"policy": "sync", "run": Run(n_servers=2)},
    **{
        f"sync, {name}": {"policy": "sync", "run": Run(compression=name)}
        for name in ("fp16", "8bit")
    },
    "sync, momentum": {"policy": "sync", **MOMENTUM},
    "sync, momentum, topk 5 %": {
        "policy": "sync", "run": Run(compression=TopK(0.05)), **MOMENTUM
    },
}  # fmt: skip


def run(tiny: bool = False) -> str:
    """Return the table."""
    X, y, X_test, y_test = _digits() if tiny else read_mnist()
    cases: dict[str, dict[str, Any]] = {name: {"policy": name} for name in POLICIES} | RELATIVES
    if tiny:
        cases = {name: cases[name] for name in ("allreduce", "DiLoCo, 100 steps")}
    rows = []
    with processes(2):
        X, y = persisted(X, 6), persisted(y, 6)
        for name, params in cases.items():
            start = time.perf_counter()
            model = MLPClassifier(
                (256,), max_iter=2 if tiny else PASSES, tol=None, random_state=0, **params
            ).fit(X, y)
            seconds = time.perf_counter() - start
            records = model.history_.records
            moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records) / 1e6
            rows.append([
                name, f"{model.score(X_test, y_test):.4f}", f"{records[-1]['loss']:.4f}",
                f"{seconds:.1f}", f"{moved:,.1f}",
            ])  # fmt: skip
    title = f"MLPClassifier((256,)) on MNIST / 255, {PASSES} passes, 2 worker processes"
    return markdown(title, ["", "test accuracy", "loss", "seconds", "MB moved"], rows)


def _digits() -> tuple[Any, Any, Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y, X / 16, y
