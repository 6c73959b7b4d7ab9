"""GPU checks that fail, hang or crash their process do not affect the others."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_once
from benchmarks._gpu_checks import STAGES, TEST_FOLDERS, Check, take_part

#: Script of a child from its first check on: checks that fail, break CUDA, pass, hang, end the
#: process, and pass again.
CHILD = """
import json, os, sys, time
for number in range(int(sys.argv[1]), 6):
    print("BEGIN", number, flush=True)
    if number == 3:
        time.sleep(1000)
    if number == 4:
        os._exit(11)
    print("a log")
    ok = number in (2, 5)
    found = {"name": str(number), "ok": ok, "value": f"value {number}", "seconds": 0}
    print("RESULT", json.dumps(found), flush=True)
    if number == 1:
        os._exit(3)
print("END", flush=True)
"""


def test_each_check_has_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_once, "_IMPORTS", 60.0)
    checks = [Check(str(k), lambda tiny: None, 0.1 if k == 3 else 60.0) for k in range(6)]
    command, log = [sys.executable, "-S", "-u", "-c", CHILD], io.StringIO()
    until = time.monotonic() + 240
    found = list(gpu_once.run_stage(command, checks, until, False, log))
    assert [result["name"] for result in found] == list("012345")
    assert [result["ok"] for result in found] == [False, False, True, False, False, True]
    assert found[1]["value"] == "value 1"  # reported once, before its process ended
    assert found[3]["value"].startswith("no end after")
    assert found[4]["value"] == "the process ended with 11"
    assert log.getvalue().count("a log") == 4
    summary = gpu_once.summarise({"smoke": found})
    assert "| smoke | 2 | 4 | 0 | 0 |" in summary
    assert summary.count("BAD smoke") == 4


def test_checks_without_time_left_are_reported() -> None:
    checks = [Check("late", lambda tiny: None, 1.0)]
    (result,) = gpu_once.run_stage([], checks, time.monotonic() - 1, False, io.StringIO())
    assert result["ok"] is None
    assert "| smoke | 0 | 0 | 0 | 1 |" in gpu_once.summarise({"smoke": [result]})


def test_parts_of_a_stage_are_all_of_its_checks() -> None:
    for stage, make in STAGES.items():
        names = [check.name for check in make()]
        assert len(set(names)) == len(names), stage
        for n in (1, 2, 3):
            parts = [take_part(f"{stage}:{k}/{n}") for k in range(n)]
            found = gpu_once.join_parts(
                [[{"name": check.name} for check in part] for part in parts]
            )
            assert [result["name"] for result in found] == names


def test_time_is_reserved_for_the_last_stages() -> None:
    assert set(gpu_once._TOGETHER) == set(STAGES) - {"smoke", "bench"}
    assert gpu_once._SMOKE + gpu_once._BENCH < gpu_once._VISIT


def test_all_folders_with_tests_for_a_gpu_are_run() -> None:
    root = Path(__file__).parents[1]
    # With the mark, or with the fixture that has it.
    uses = ("mark.gpu", "to_device: ToDevice")
    marked = {
        path.parent
        for path in root.rglob("test_*.py")
        if any(use in path.read_text() for use in uses)
    }
    # In this folder, one example of dask-cuda, which is checked separately.
    assert {path.relative_to(root).as_posix() for path in marked} - {"benchmarks"} <= {
        *TEST_FOLDERS
    }
