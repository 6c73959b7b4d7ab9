"""Every benchmark runs, in a tiny size; its figures are not looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(p.stem for p in (ROOT / "benchmarks").glob("[!_]*.py"))


def _run(names: list[str]) -> dict[str, str]:
    """What each of some benchmarks printed."""
    command = [sys.executable, "-m", "benchmarks", *names, "--tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    found = re.split(r"^## \w+$", done.stdout, flags=re.MULTILINE)[1:]
    assert len(found) == len(names), done.stderr
    return dict(zip(names, found, strict=True))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, str]]]]:
    """All that are asked for, a half of them in each of two processes."""
    chosen = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(2) as pool:
        halves = [pool.submit(_run, half) for half in (chosen[::2], chosen[1::2]) if half]
        yield {name: halves[i % 2] for i, name in enumerate(chosen)}


def test_there_are_benchmarks() -> None:
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_benchmark_prints_a_table(name: str, runs: dict[str, Future[dict[str, str]]]) -> None:
    printed = runs[name].result(timeout=115)[name]
    assert "Traceback" not in printed
    assert "\n|---|" in printed
