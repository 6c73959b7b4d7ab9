"""One visit to a GPU: correctness checks, several at a time, then timed cases.

Each check runs in a child process, under a time limit; if one crashes, hangs or breaks CUDA,
another child continues with the next check. If the environment variable ``OUT`` names a folder, it
gets a log of each stage as it grows. Without a usable GPU, checks that need one are skipped and the
others run on the CPU, to try the checks themselves. A failed check makes the command fail.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from benchmarks._common import markdown
from benchmarks._gpu_checks import STAGES, Check, take_part

COLUMNS = ("stage", "good", "bad", "skipped", "not reached", "seconds")
#: Seconds of the whole visit: a machine lent for minutes has to give results in one call.
_VISIT = 325.0
#: Limit in seconds for `smoke`, and seconds reserved for `bench`, which is timed, so it runs last
#: and alone.
_SMOKE, _BENCH = 90.0, 75.0
#: Stages whose times do not count; they run concurrently in the remaining time. The number of child
#: processes that share the checks of each.
_TOGETHER = {"fits": 3, "nets": 2, "cluster": 1, "nccl": 1, "tests": 4}
#: Seconds for a child's imports, before the time limit of its first check begins.
_IMPORTS = 30.0
_ROOT = Path(__file__).resolve().parents[1]


def run(tiny: bool = False) -> str:
    """Return the table of stages, followed by a line for each failure."""
    until = time.monotonic() + _VISIT
    with tempfile.TemporaryDirectory() as own:
        folder = Path(os.environ.get("OUT") or own)
        found: dict[str, list[dict[str, Any]]] = {}

        def run_part(stage: str, part: int, n_parts: int, end: float) -> None:
            name = f"{stage}:{part}/{n_parts}"
            command = [sys.executable, "-u", "-m", "benchmarks._gpu_checks", name]
            with (folder / f"{stage}.{part}.txt").open("w") as log:
                found[name] = list(run_stage(command, take_part(name), end, tiny, log))

        def run_together(stages: dict[str, int], end: float) -> None:
            parts = [(stage, k, n, end) for stage, n in stages.items() for k in range(n)]
            threads = [threading.Thread(target=run_part, args=part) for part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for stage, n in stages.items():
                found[stage] = join_parts([found.pop(f"{stage}:{k}/{n}") for k in range(n)])

        run_together({"smoke": 1}, min(until - _BENCH, time.monotonic() + _SMOKE))
        run_together(_TOGETHER, until - _BENCH)
        run_together({"bench": 1}, until)
        summary = summarise({stage: found[stage] for stage in STAGES})
        (folder / "summary.txt").write_text(summary)
    if "BAD " in summary:
        print(summary, flush=True)
        raise AssertionError("checks failed: see the lines that begin with BAD")
    return summary


def join_parts(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the results of a stage in the order of its checks, which its parts shared."""
    dealt = itertools.zip_longest(*parts)
    return [result for results in dealt for result in results if result is not None]


def run_stage(
    command: list[str], checks: list[Check], until: float, tiny: bool, log: IO[str]
) -> Iterator[dict[str, Any]]:
    """Run the checks of a stage in child processes; yield the result of each."""
    number = 0
    while number < len(checks) and time.monotonic() < until:
        arguments = [str(number), *(["--tiny"] if tiny else [])]
        child = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that its own children end with it
            cwd=_ROOT,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(child, lines), daemon=True)
        reader.start()
        is_running, reason = True, ""
        began, allowed = time.monotonic(), checks[number].seconds + _IMPORTS
        while number < len(checks):
            try:
                left = min(began + allowed, until) - time.monotonic()
                line = lines.get(timeout=max(left, 0.01))
            except queue.Empty:
                if time.monotonic() >= until:
                    break  # the stage's time is over; not a failure of the check
                reason = f"no end after {time.monotonic() - began:.0f} s"
                break
            if line is None:
                reason = f"the process ended with {child.wait()}"
                break
            log.write(line)
            log.flush()
            if line.startswith("BEGIN "):
                is_running, began, allowed = True, time.monotonic(), checks[number].seconds
            elif line.startswith("RESULT "):
                is_running, number = False, number + 1
                yield json.loads(line.removeprefix("RESULT "))
        _end(child)
        reader.join(5)
        # A child that ends between two checks has already reported the error that broke CUDA.
        if reason and is_running:
            yield _make_result(checks[number], False, reason, time.monotonic() - began)
            number += 1
    for check in checks[number:]:
        yield _make_result(check, None, "not reached", 0.0)


def _read_lines(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Put the lines of a child into a queue, and None at their end."""
    assert child.stdout is not None
    with child.stdout as output:
        for line in output:
            lines.put(line)
    lines.put(None)


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and all processes that it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with suppress(subprocess.TimeoutExpired):
            child.wait(3)


def _make_result(check: Check, ok: bool | None, value: str, seconds: float) -> dict[str, Any]:
    return {"name": check.name, "ok": ok, "value": value, "seconds": round(seconds, 2)}


def summarise(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of stages, the failures, and the values of the other checks."""
    rows, bad, good = [], [], []
    for stage, results in found.items():
        verdicts = [result["ok"] for result in results]
        late = sum(result["value"] == "not reached" for result in results)
        seconds = sum(result["seconds"] for result in results)
        counts = verdicts.count(True), verdicts.count(False), verdicts.count(None) - late, late
        rows.append([stage, *map(str, counts), f"{seconds:.0f}"])
        for result in results:
            line = f"{stage}, {result['name']}: {result['value']}"
            if result["ok"]:
                good.append(line[:250])
            elif result["ok"] is False:
                bad.append(f"BAD {line[:400]}")
    return "\n".join([markdown("Checks on a GPU", COLUMNS, rows), "", *bad, *good])
