"""Clicks learned as they come: progressive loss, a drift in the middle, and going on after a stop.

    python examples/online_ctr.py
    python examples/online_ctr.py --calls 4000 --picture online_ctr.png --checkpoint clicks.npz

draws impressions of advertisements, of which users' tastes decide who clicks, and learns them call
by call. In the middle the tastes change. One stream goes on as it is, one lets its learning rates
begin anew when a detector sees the losses rise, one forgets all. With --checkpoint each of these
saves itself, and called again goes on from there; --picture draws the losses (matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist.callbacks import Checkpoint
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.streaming import PageHinkley

N_FEATURES, ROWS = 28, 100
ANSWERS = {"goes on": None, "rates anew": "rate", "forgets all": "reset"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2_000, help=f"of {ROWS} rows")
    parser.add_argument("--picture", type=Path, help="file to draw to")
    parser.add_argument("--checkpoint", type=Path, help="file to save to, a name for each stream")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    losses = {}
    for name, answer in ANSWERS.items():
        losses[name] = learned(name, answer, arguments.calls, arguments.checkpoint)
    if arguments.picture:
        draw(losses, arguments.picture)


def impressions(call: int, calls: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a call, and who clicked; half way tastes change."""
    tastes = np.random.default_rng(1 if call < calls // 2 else 2).standard_normal(N_FEATURES)
    rng = np.random.default_rng([0, call])
    X = rng.standard_normal((ROWS, N_FEATURES))
    return X, (rng.random(ROWS) < 1 / (1 + np.exp(1 - X @ tastes))).astype(int)


def learned(name: str, answer: Any, calls: int, path: Path | None) -> list[float]:
    """Losses of the calls that a stream learned, each before it was learned."""
    checkpoint = None
    if path is not None:
        own = path.with_name(f"{path.stem}_{name.replace(' ', '_')}{path.suffix}")
        checkpoint = Checkpoint(own, every=500, resume=True)
    clf, losses, seconds = SGDClassifier(), [], 0.0
    with clf.stream(
        classes=[0, 1], checkpoint=checkpoint, drift=PageHinkley(), on_drift=answer
    ) as stream:
        for call in range(calls):
            X, y = impressions(call, calls)
            since = time.perf_counter()
            loss = stream.learn(X, y, position=call)
            seconds += time.perf_counter() - since
            if loss is not None:
                losses.append(loss)
    timing = f"{len(losses)} calls of {ROWS} rows, {1e3 * seconds / max(calls, 1):.3f} ms each"
    last = np.mean(losses[-calls // 4 :]) if losses else float("nan")
    print(
        f"{name}: progressive loss {stream.progressive_loss:.4f}, of the last quarter {last:.4f}; "
        f"drifts at rows {stream.drifts}; {timing}"
    )
    return losses


def draw(losses: dict[str, list[float]], path: Path) -> None:
    """Mean losses of fifty calls each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for name, values in losses.items():
        width = max(1, len(values) // 100)
        means = np.array(values[: len(values) // width * width]).reshape(-1, width).mean(axis=1)
        axes.plot((np.arange(len(means)) + 0.5) * width * ROWS, means, label=name)
    axes.set(xlabel="rows", ylabel="loss before learning", title="Clicks whose tastes change")
    axes.legend(title="on a drift")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
