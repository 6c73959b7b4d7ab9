"""Training steps/s of networks on two worker processes, compared with PyTorch and peers."""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from benchmarks._common import markdown, persisted, processes
from benchmarks._network_peers import peers
from benchmarks._torch_nets import ddp, make_net, one_process, some_rows
from daskml_dist.neural_network import MLPClassifier, TorchClassifier

#: Network, rows of a step over both processes, and number of steps that takes about a second.
CASES = [
    ("MLP", 64, 1000), ("MLP", 256, 600), ("MLP", 1024, 200),
    ("LeNet", 64, 300), ("LeNet", 256, 100), ("ResNet-8", 64, 24), ("ResNet-8", 256, 6),
]  # fmt: skip
DDP = "PyTorch DDP (gloo), 2 processes"
#: PyTorch in one process, without communication: number of threads, and whether it compiles.
ALONE = {
    "PyTorch, 1 process of 1 thread": (1, False),
    "PyTorch, 1 process of 2 threads": (2, False),
    "PyTorch, 1 process of 2 threads, torch.compile": (2, True),
}
#: Number of rows of all passes, and number of passes, of which the first ones warm up.
ROWS, PASSES = 8_192, 4


def run(tiny: bool = False) -> str:
    """Return the table; NETWORKS selects cases by name, such as ``MLP,LeNet-64``."""
    chosen = os.environ.get("NETWORKS", "").split(",") if os.environ.get("NETWORKS") else None
    cases = [c for c in CASES if chosen is None or {c[0], f"{c[0]}-{c[1]}"} & set(chosen)]
    cases = [(name, batch, 2) for name, batch, _ in cases[:1]] if tiny else cases
    n_rows = 512 if tiny else ROWS
    columns = [f"{name}, {batch:,}" for name, batch, _ in cases]
    # Compiling takes half a minute, even for the smallest case.
    alone = {name: how for name, how in ALONE.items() if not (tiny and how[1])}
    lines: dict[str, list[float | None]] = {}
    if importlib.util.find_spec("torch") is not None:
        lines[DDP] = _noted(DDP, [*ddp(cases, n_rows)])
        for name, (threads, compiled) in alone.items():
            lines[name] = _noted(name, [*one_process(cases, n_rows, threads, compiled)])
    missing = []
    for name, rates in peers(cases, n_rows).items():
        if rates is None:
            missing.append([name, *["not installed"] * len(cases)])
        else:
            lines[name] = _noted(name, rates)
    with processes(2):
        if DDP in lines:
            rates = [_ours(*case, n_rows) for case in cases]
            lines["TorchClassifier"] = _noted("TorchClassifier", rates)
        lines["MLPClassifier"] = [_mlp(*case, n_rows) for case in cases]
    table = [[name, *map(_format_rate, rates)] for name, rates in lines.items()] + missing
    if DDP in lines:
        for name in ("TorchClassifier", "MLPClassifier"):
            table.append([f"{name} / DDP", *map(_ratio, lines[name], lines[DDP])])
        for peer in alone:
            ratios = map(_ratio, lines["TorchClassifier"], lines[peer])
            table.append([f"TorchClassifier / {peer}", *ratios])
    else:
        table.append(["PyTorch", *["not installed"] * len(cases)])
    title = "Steps per second, Adam, float32; columns: network, rows per step of both processes"
    return markdown(title, ["", *columns], table)


def _noted(name: str, rates: Sequence[float | None]) -> list[float | None]:
    """Return rates, and print each line of them to stderr as soon as it is measured."""
    print(name, *map(_format_rate, rates), sep=" | ", file=sys.stderr, flush=True)
    return [*rates]


def _format_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _ratio(rate: float | None, base: float | None) -> str:
    return "-" if rate is None or base is None else f"{rate / base:.2f}"


def _ours(name: str, batch: int, steps: int, n_rows: int) -> float:
    make = partial(make_net, name)
    return _rate(TorchClassifier(make, batch_size=batch), name, batch, steps, n_rows)


def _mlp(name: str, batch: int, steps: int, n_rows: int) -> float | None:
    if name != "MLP":
        return None
    clf = MLPClassifier((256,), alpha=0.0, batch_size=batch, policy="allreduce")
    return _rate(clf, name, batch, steps, n_rows)


def _rate(clf: Any, name: str, batch: int, steps: int, n_rows: int) -> float:
    """Return steps per second of the later passes: the first ones start, compile and warm up."""
    X, y = some_rows(name, min(n_rows, batch * max(steps // 4, 2)))
    passes = max(PASSES, -(-2 * steps * batch // len(X)))
    clf.set_params(max_iter=passes, tol=0.0, n_iter_no_change=10**6, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clf.fit(persisted(X, 2), persisted(y, 2))
    later = clf.history_.records[len(clf.history_.records) // 2 :]
    return 1 / statistics.median(record["seconds"] / record["steps"] for record in later)
