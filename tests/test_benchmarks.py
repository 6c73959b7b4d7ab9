"""Every benchmark runs, in a tiny size; its figures are not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(p.stem for p in (ROOT / "benchmarks").glob("[!_]*.py"))
Done = subprocess.CompletedProcess[str]


def _run(name: str) -> Done:
    command = [sys.executable, "-m", "benchmarks", name, "--tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Done]]]:
    """All that are asked for, three at a time: most of a tiny run is waiting for processes."""
    with ThreadPoolExecutor(3) as pool:
        chosen = [
            item.callspec.params["name"]
            for item in request.session.items
            if item.path == Path(__file__) and hasattr(item, "callspec")
        ]
        yield {name: pool.submit(_run, name) for name in chosen}


def test_there_are_benchmarks() -> None:
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_benchmark_prints_a_table(name: str, runs: dict[str, Future[Done]]) -> None:
    done = runs[name].result(timeout=115)
    assert done.returncode == 0, done.stderr
    assert "\n|---|" in done.stdout
