"""Every benchmark runs in a tiny size; its figures are not checked."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.subprocesses import ROOT, environment

NAMES = sorted(p.stem for p in (ROOT / "benchmarks").glob("[!_]*.py"))
#: The slowest benchmarks, mostly due to cluster starts and compilation.
LONG = {
    "accuracy", "billion", "boosting", "boosting_samples", "break_even", "click_quality",
    "clusters", "cold", "collective", "collective_kills", "columns", "corners", "cv_estimators",
    "decomposition", "defaults", "dense", "embeddings", "ensembles", "explanations", "factors",
    "fields", "forests", "goodput", "gpu_once", "growth", "hosts", "http_servers", "kept_ids",
    "large", "large_trees", "lazy_frames", "least_squares", "logistic", "many_workers", "mixture",
    "network_accuracy", "network_bytes", "networks", "overhead", "pipeline", "planner", "policies",
    "policies_by_model", "policy_by_part", "predict", "recommender", "recovery", "retrieval",
    "row_store", "search", "serving", "sessions", "simulate", "single_calls", "sparse", "staleness",
    "step_latency", "streaming", "sums", "table_kills", "topics", "transform", "transport",
    "tree_growth", "update", "what_if",
}  # fmt: skip


#: As ``python -m benchmarks``, with workers that are forked: most of a tiny size is their imports.
MAIN = """
from benchmarks.__main__ import main
from tests.forked_workers import fork_workers

fork_workers()
main()
"""
#: Benchmarks from which on two processes share them.
MANY = 12


class _Runs:
    """Benchmarks of one process, with a future of the output of each.

    They share one start of Python and its clusters.
    """

    def __init__(self, names: list[str]) -> None:
        self.printed: dict[str, Future[str]] = {name: Future() for name in names}
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *names, "--tiny"],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        """Read the output; a benchmark's text ends at the next heading or at the end."""
        name, lines = "", list[str]()
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("## ") and line[3:].strip() in self.printed:
                if name:
                    self.printed[name].set_result("".join(lines))
                name, lines = line[3:].strip(), []
            else:
                lines.append(line)
        if name:
            self.printed[name].set_result("".join(lines))
        self._errors.seek(0)
        for left in self.printed.values():
            if not left.done():
                left.set_exception(AssertionError(self._errors.read()))

    def close(self) -> None:
        self._process.terminate()
        self._reader.join(30)
        self._process.wait(30)
        for file in (self._process.stdout, self._errors):
            if file:
                file.close()


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[str]]]:
    """Run all selected benchmarks, in one process, or in two if there are many."""
    chosen = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == Path(__file__)
        and isinstance(item, pytest.Function)
        and item.originalname == test_benchmark_prints_a_table.__name__
    ]
    parts = [chosen[::2], chosen[1::2]] if len(chosen) >= MANY else [chosen]
    processes = [_Runs(part) for part in parts]
    yield {name: future for each in processes for name, future in each.printed.items()}
    for each in processes:
        each.close()


def test_there_are_benchmarks() -> None:
    assert set(NAMES) > LONG


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", sorted(set(NAMES) - LONG))
def test_short_benchmark_makes_a_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, as most of the time is that of imports and clusters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = importlib.import_module(f"benchmarks.{name}").run(tiny=True)
    assert "\n|---|" in table + capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_benchmark_prints_a_table(name: str, runs: dict[str, Future[str]]) -> None:
    printed = runs[name].result(timeout=280)
    assert "Traceback" not in printed
    assert "\n|---|" in printed
