"""Every benchmark runs, in a tiny size; its figures are not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(p.stem for p in (ROOT / "benchmarks").glob("[!_]*.py"))


def test_there_are_benchmarks() -> None:
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_benchmark_prints_a_table(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "\n|---|" in done.stdout
