"""Clicks learned as they come, and served meanwhile: each version comes into service by itself.

    python examples/learn_then_serve.py
    python examples/learn_then_serve.py --calls 2000 --publish-every 500 --workers 2

A server, a process of its own, watches a registry that is empty at first. A stream learns batch by
batch and publishes what it has learned; the tastes behind the clicks change half way, and so do the
answers that are served. Those of each version are compared with the estimator's own.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from online_ctr import N_FEATURES, ROWS, impressions
from serve_adult import port_of, until

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.serving import Publisher
from daskml_dist.streaming import PageHinkley


def learn(port: int, registry: Path, calls: int, every: int) -> None:
    """Learn a stream, and look at what is served after each version."""
    rows = np.random.default_rng(3).standard_normal((3, N_FEATURES))
    publisher = Publisher(registry, "clicks", keep=3)

    def publish(model: Any) -> None:
        version = publisher(model)
        assert version is not None
        answers = until(port, rows, version, "clicks")
        same = np.array_equal(answers, model.predict_proba(rows))
        shares = ", ".join(f"{share:.3f}" for share in answers[:, 1])
        print(f"version {version}, {stream.n_rows} rows: {shares} (to the bit: {same})")

    clf = SGDClassifier()
    with clf.stream(
        classes=[0, 1],
        drift=PageHinkley(),
        on_drift="rate",
        publish=publish,
        publish_every=every,
    ) as stream:
        for call in range(calls):
            stream.learn(*impressions(call, calls), position=call)
    print(f"progressive loss {stream.progressive_loss:.4f}, drifts at rows {stream.drifts}")
    kept = sorted(one.name for one in (registry / "clicks").glob("[0-9]*"))
    print(f"versions on disk: {', '.join(kept)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000, help=f"of {ROWS} rows")
    parser.add_argument("--publish-every", type=int, default=200, help="calls")
    parser.add_argument("--workers", type=int, default=1, help="processes that answer")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "models"
        registry.mkdir()
        command = [sys.executable, "-m", "daskml_dist", "serve", str(registry), "--port", "0"]
        command += ["--workers", str(arguments.workers), "--watch", "0.05"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            learn(port_of(server), registry, arguments.calls, arguments.publish_every)
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
            assert server.stderr is not None
            server.stderr.close()
        print(f"The server ended with status {status}.")


if __name__ == "__main__":
    main()
