"""A model of census incomes: trained, published, served over HTTP, asked, and swapped meanwhile.

    python examples/serve_adult.py FOLDER --workers 2

FOLDER holds ``adult.data`` of the UCI repository; default: where ``python examples/fetch.py adult``
puts it. Without it, scikit-learn's own data on breast cancer stand in.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from fetch import data_folder
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.serving import publish, rollback

NUMBERS = {"age": 0, "education-num": 4, "capital-gain": 10, "capital-loss": 11, "hours": 12}


def read(path: Path) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Rows, labels, and what they are."""
    if not path.exists():
        X, y = load_breast_cancer(return_X_y=True)
        return X[:, :5], y, "breast cancer"
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    X = np.array([[float(row[at]) for at in NUMBERS.values()] for row in rows])
    return X, np.array([row[-1] == ">50K" for row in rows]).astype(int), "census incomes"


def ask(port: int, rows: NDArray[Any], name: str = "adult") -> tuple[str, NDArray[Any]]:
    """The version that answers, and its probabilities, by nothing but the standard library."""
    tensor = {
        "name": "X",
        "shape": list(rows.shape),
        "datatype": "FP64",
        "data": rows.ravel().tolist(),
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/{name}/infer",
        data=json.dumps({"inputs": [tensor]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        reply = json.load(answer)
    output = reply["outputs"][0]
    return reply["model_version"], np.reshape(output["data"], output["shape"])


def until(port: int, rows: NDArray[Any], version: str, name: str = "adult") -> NDArray[Any]:
    """Ask until a version answers."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            found, answers = ask(port, rows, name)
        except urllib.error.URLError:  # it starts, or has seen no version yet
            found = None
        if found == version:
            return answers
        time.sleep(0.05)
    raise SystemExit(f"Version {version} did not come into service within a minute.")


def port_of(server: subprocess.Popen[str]) -> int:
    """The port that a server tells first."""
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(line)
        if match := re.search(r"Serving at \S+:(\d+),", line):
            return int(match[1])
    raise SystemExit("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("adult"))
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    X, y, what = read(arguments.folder / "adult.data")
    rows = X[:3]
    print(f"{what}: {X.shape[0]} x {X.shape[1]}")

    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "models"
        models = {}
        for C in (0.01, 1.0):
            models[C] = make_pipeline(StandardScaler(), LogisticRegression(C=C)).fit(X, y)
        publish(models[0.01], registry, "adult")
        command = [sys.executable, "-m", "daskml_dist", "serve", str(registry), "--port", "0"]
        command += ["--workers", str(arguments.workers), "--watch", "0.1"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            port = port_of(server)
            for version, C in (("1", 0.01), ("2", 1.0)):
                if version == "2":
                    publish(models[C], registry, "adult")
                answers = until(port, rows, version)
                same = np.array_equal(answers, models[C].predict_proba(rows))
                shares = ", ".join(f"{share:.3f}" for share in answers[:, 1])
                print(f"version {version}: {shares}  (predict_proba to the bit: {same})")
            rollback(registry, "adult")
            until(port, rows, "1")
            print("version 1 again, after a rollback")
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
            assert server.stderr is not None
            server.stderr.close()
        print(f"The server ended with status {status}.")


if __name__ == "__main__":
    main()
