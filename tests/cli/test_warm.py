"""The command that compiles what first fits of common estimators call."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numba
import pytest
from distributed import LocalCluster

from daskml_dist.cli import main
from daskml_dist.cli.warm import DTYPES, SUBJECTS, _count_of_compiled
from tests.subprocesses import environment

ONE = ["warm", "--only", "GaussianNB", "--dtype", "float64"]


def test_compilation_is_reported_and_cached(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ONE) == 0
    assert "GaussianNB  float64" in capsys.readouterr().out
    assert main(ONE) == 0
    assert "  0 functions" in capsys.readouterr().out


def test_a_worker_of_each_host_compiles(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ONE, "--scheduler", cluster.scheduler_address]) == 0
    assert "functions compiled on 1 host in" in capsys.readouterr().out


def test_functions_within_others_are_not_counted_again() -> None:
    inner = numba.njit(lambda x: x + 1)
    outer = numba.njit(lambda x: inner(x) * 2)
    with _count_of_compiled() as count:
        outer(1)
        assert count() == 1
        outer(2)
        assert count() == 1
        outer(1.0)
        assert count() == 2


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "--only", "Kmeans"]) == 1
    assert "Did you mean 'KMeans'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", SUBJECTS)
def test_subjects_are_estimators(name: str) -> None:
    for subject in SUBJECTS[name]:
        subpackage, _, kind = subject.name.partition(".")
        assert kind == name
        estimator = getattr(import_module(f"daskml_dist.{subpackage}"), kind)(**subject.params)
        assert subject.params.items() <= estimator.get_params().items()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_another_process_compiles_nothing_more(name: str, dtype: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "daskml_dist", "warm", "--only", name, "--dtype", dtype]
    outputs = [
        subprocess.run(
            command,
            env=environment() | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert not outputs[0].startswith(f"{name}  {dtype}    0 functions")
    assert outputs[1].startswith(f"{name}  {dtype}    0 functions")
