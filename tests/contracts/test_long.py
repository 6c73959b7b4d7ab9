"""Many random cases, for a configurable time.

``DASKML_DIST_CONTRACTS_SECONDS`` (60) and ``DASKML_DIST_CONTRACTS_SEED`` (0) set the duration and
seed; every case is printed with the command that repeats it::

    DASKML_DIST_CONTRACTS_SECONDS=3600 pytest -s -m slow tests/contracts
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from distributed import Client, LocalCluster

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")

from hypothesis import given, seed, settings

from tests.contracts import cases, relations, same_rows
from tests.contracts.report import describe_case, drawn, lines_of, simplest, what

SECONDS = float(os.environ.get("DASKML_DIST_CONTRACTS_SECONDS", "60"))
SEED = int(os.environ.get("DASKML_DIST_CONTRACTS_SEED", "0"))
#: Seconds after which a case counts as hanging.
HANGS = 180
BATCH = 20


class Tally:
    """Tally of the cases that ran and their failures."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.counts: Counter[str] = Counter()
        self.found: dict[Any, str] = {}
        self.again: Counter[Any] = Counter()

    def run(self, case: Any, check: Callable[[Any], list[str]], kind: str, module: str) -> None:
        """Check a case, and print new failures."""
        if time.monotonic() > self.until:
            return
        self.counts[kind] += 1
        signal.alarm(HANGS)
        try:
            lines = lines_of(case, check, all_errors=True)
            signal.alarm(20 * HANGS)
            if lines:
                self._add(case, lines, check, module)
        except _Hangs:
            self.found[case.of.name, "hangs"] = f'python -m {module} "{case}"\n    hangs'
            print(f"\nhangs for {HANGS} s: {case}", flush=True)
        finally:
            signal.alarm(0)

    def look(self, number: int, client: Client, assert_clean: Callable[[Client], None]) -> None:
        """Record what a batch has left on the cluster, once."""
        if any("left" in key for key in self.found):
            return  # each further check would wait in vain, for the time of a hundred cases
        try:
            assert_clean(client)
        except pytest.fail.Exception as error:
            self.found[number, "left"] = f"after the batch of seed {number}: {error}"

    def _add(self, case: Any, lines: list[str], check: Any, module: str) -> None:
        key = case.of.name, min(what(lines))
        self.again[key] += 1
        if key in self.found:
            return
        plainest = simplest(case, check)
        text = describe_case(plainest, check, module)
        if "\n" not in text:  # the failure does not occur each time
            text = "\n    ".join([f'python -m {module} "{case}"', *lines])
        self.found[key] = text
        print(f"\n{sum(self.counts.values())}: {text}", flush=True)

    def __str__(self) -> str:
        cases_run = ", ".join(f"{n} {kind}" for kind, n in self.counts.items())
        differ = [f"({self.again[key]} times) {text}" for key, text in self.found.items()]
        head = f"{sum(self.counts.values())} cases ({cases_run}), {len(differ)} differences"
        return "\n".join([head, *differ])


def _end_a_hang(number: int, frame: Any) -> None:
    traceback.print_stack(frame, file=sys.__stderr__)
    raise _Hangs


class _Hangs(BaseException):
    """Error for a hanging case, not of the subject."""


KINDS: dict[str, tuple[Any, Callable[[Any], list[str]], str]] = {
    "without a client": (cases.cases(), same_rows.check, "tests.contracts.same_rows"),
    "with a client": (cases.cases(client=True), same_rows.check, "tests.contracts.same_rows"),
    "relations": (relations.related(), relations.check, "tests.contracts.relations"),
}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 40 * HANGS, method="thread")
def test_many_random_cases(cluster: LocalCluster, assert_clean: Callable[..., None]) -> None:
    before = signal.signal(signal.SIGALRM, _end_a_hang)
    tally, number = Tally(time.monotonic() + SECONDS), SEED
    while time.monotonic() < tally.until:
        for kind, (strategy, check, module) in KINDS.items():

            @seed(number)
            @settings(drawn, derandomize=False, max_examples=BATCH)
            @given(strategy)
            def batch(case: Any) -> None:
                tally.run(case, check, kind, module)  # noqa: B023

            with Client(cluster) if kind == "with a client" else nullcontext() as client:
                batch()
                if client is not None:
                    tally.look(number, client, assert_clean)
            number += 1
    signal.signal(signal.SIGALRM, before)
    print(f"\nseeds {SEED} to {number - 1}: {tally}", flush=True)
    assert not tally.found, str(tally)
    assert tally.counts.total() > 0
