"""Runs of many seeds, one after the other, with a summary line."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from chaos.arenas import Arena

__all__ = ["parser", "run_seeds"]

#: Function that does the work under a fault; returns whether the fault happened, and the seconds.
Do = Callable[[Any, Arena], tuple[bool, float]]


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser for a range of seeds, and for the seconds in which new ones are started."""
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument("first", type=int)
    arguments.add_argument("stop", type=int)
    arguments.add_argument(
        "--seconds", type=float, default=float("inf"), help="no more begins then"
    )
    return arguments


def _run(do: Do, trouble: Any, arena: Arena, hangs: float) -> tuple[str, float]:
    """Run one fault; return "well" or the failure, and the seconds of the work."""
    outcome, seconds = ["hang"], [float("nan")]

    def work() -> None:
        try:
            struck, seconds[0] = do(trouble, arena)
            outcome[0] = "well" if struck else "well (too late)"
        except AssertionError:
            outcome[0] = "wrong"
            traceback.print_exc()
        except BaseException:
            outcome[0] = "ended"
            traceback.print_exc()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(hangs)
    if thread.is_alive():
        faulthandler.dump_traceback()
    return outcome[0], seconds[0]


def run_seeds(
    options: argparse.Namespace,
    draw: Callable[[int], Any],
    do: Do,
    make: Callable[[], Arena],
    hangs: float,
) -> None:
    """Run a range of seeds, and exit with status 1 if one failed.

    Parameters
    ----------
    options : Namespace
        Arguments parsed by `parser`.
    draw : callable
        Function that returns the fault of a seed.
    do : callable
    make : callable
        Function that returns a new arena.
    hangs : float
        Seconds after which the work counts as hanging.
    """
    found: Counter[str] = Counter()
    bad: list[int] = []
    began, longest = time.monotonic(), 0.0
    arena = make()
    arena.start()
    for seed in range(options.first, options.stop):
        if time.monotonic() - began > options.seconds:
            break
        trouble = draw(seed)
        outcome, seconds = _run(do, trouble, arena, hangs)
        found[outcome] += 1
        longest = max(longest, seconds)
        print(f"{seed} {outcome} {seconds:.1f} s {trouble}", flush=True)
        if not outcome.startswith("well"):
            bad.append(seed)
            arena.close()
            arena = make()
            arena.start()
    arena.close()
    print(
        f"{found.total()} troubles: {found['hang']} hangs, {found['wrong']} wrong, "
        f"{found['ended']} ended that could go on; {found['well (too late)']} came too late; "
        f"longest {longest:.1f} s; seeds {bad}; {time.monotonic() - began:.0f} s"
    )
    sys.exit(bool(bad))
