"""Clicks on advertisements that appear and expire, learned from a stream of dataframes.

    python examples/growing_clicks.py
    python examples/growing_clicks.py --calls 3000 --picture growing_clicks.png

draws impressions: a user, an advertisement of the last few hundred calls, a site. A factorisation
machine learns them call by call; an id has a row of its table once it comes. One stream keeps all
ids, one drops those that have not come for a while, one also waits for the second time before it
gives an id a row. --picture draws the losses and the rows of the tables (matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd

from daskml_dist.recommender import FactorizationMachineClassifier

ROWS, N_USERS, N_SITES, N_KINDS = 200, 3_000, 40, 8
#: Calls that an advertisement is shown for, and new ones a call.
LIFE, NEW = 200, 3
TABLES = {
    "keeps all ids": {},
    "drops the old": {"expire_after": LIFE},
    "also waits for the second time": {"expire_after": LIFE, "admit_after": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_500, help=f"of {ROWS} rows")
    parser.add_argument("--picture", type=Path, help="file to draw to")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    learned = {name: learn(name, options, arguments.calls) for name, options in TABLES.items()}
    if arguments.picture:
        draw(learned, arguments.picture)


def impressions(call: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of a call, and who clicked: users of a kind like advertisements of some kinds."""
    rng = np.random.default_rng([0, call])
    users = rng.zipf(1.3, ROWS) % N_USERS
    ads = NEW * call + rng.integers(NEW * LIFE, size=ROWS)
    sites = rng.integers(N_SITES, size=ROWS)
    likes = np.random.default_rng(1).normal(size=(N_KINDS, N_KINDS))
    odds = 1.5 * likes[users % N_KINDS, ads * 7 % N_KINDS] + sites / N_SITES - 1.5
    frame = pd.DataFrame({"user": users, "ad": ads, "site": [f"site {i}" for i in sites]})
    return frame, (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(int)


def learn(name: str, options: dict[str, int], calls: int) -> tuple[list[float], list[int]]:
    """Losses of the calls, each before it was learned, and now and then the rows of the table."""
    clf = FactorizationMachineClassifier(
        rank=8, init_scale=0.1, alpha=1e-4, random_state=0, **options
    )
    losses, sizes = [], []
    with clf.stream(classes=[0, 1]) as stream:
        for call in range(calls):
            losses.append(stream.learn(*impressions(call), position=call))
            if call % max(calls // 50, 1) == 0:
                sizes.append(len(clf.ids_))
    last = np.mean(losses[-calls // 4 :])
    print(
        f"{name}: progressive loss {stream.progressive_loss:.4f}, of the last quarter {last:.4f}; "
        f"{len(clf.ids_):,} ids have a row after {stream.n_rows:,} rows"
    )
    return losses, sizes


def draw(learned: dict[str, tuple[list[float], list[int]]], path: Path) -> None:
    """Mean losses, and rows of the tables, by rows seen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for name, (losses, sizes) in learned.items():
        width = max(1, len(losses) // 50)
        means = np.array(losses[: len(losses) // width * width]).reshape(-1, width).mean(axis=1)
        left.plot((np.arange(len(means)) + 0.5) * width * ROWS, means, label=name)
        right.plot(np.arange(len(sizes)) * max(1, len(losses) // 50) * ROWS, sizes, label=name)
    left.set(xlabel="rows", ylabel="loss before learning", title="Clicks on ads that come and go")
    right.set(xlabel="rows", ylabel="ids that have a row", title="The table")
    right.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
