"""The examples run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_iris

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_compares_policies_on_workers() -> None:
    output = _run("quickstart.py", "--passes", "3", "--policy", "sync", "async")
    assert "digits: 1797 x 64, 2 workers" in output
    assert "sync" in output
    assert "async" in output


@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("parquet", "svm"))]
)
def test_quickstart_reads_files(tmp_path: Path, kind: str) -> None:
    X, y = load_iris(return_X_y=True)
    path = tmp_path / f"iris.{kind}"
    if kind == "svm":
        dump_svmlight_file(X, y, str(path))
    else:
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame(X, columns=list("abcd")).assign(species=np.array(["i", "v", "w"])[y])
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    options = ["--target", "species", "--workers", "0", "--policy", "sync", "--passes", "5"]
    output = _run("quickstart.py", "--data", str(path), *options)
    assert f"iris.{kind}: 150 x 4, 0 workers" in output


@pytest.mark.data
@pytest.mark.slow
def test_adult_census(data_dir: Path) -> None:
    output = _run("adult_census.py", str(data_dir / "adult"), "--policy", "sync")
    assert float(output.split("AUC")[1].split()[0]) >= 0.903


@pytest.mark.data
@pytest.mark.slow
def test_nycflights(data_dir: Path) -> None:
    output = _run("nycflights.py", str(data_dir / "nycflights"))
    assert float(output.split("RMSE")[1].split()[0]) <= 17.95


@pytest.mark.data
@pytest.mark.slow
def test_newsgroups(data_dir: Path) -> None:
    output = _run("newsgroups.py", str(data_dir / "news20"))
    accuracy = [float(part.split()[0]) for part in output.split("accuracy")[1:]]
    assert len(accuracy) == 2
    assert min(accuracy) >= 0.850


@pytest.mark.data
@pytest.mark.slow
def test_mnist(data_dir: Path) -> None:
    options = ["--policy", "allreduce", "--passes", "3"]
    output = _run("mnist_policies.py", str(data_dir / "mnist"), *options)
    assert float(output.split("accuracy")[1].split()[0]) > 0.88
