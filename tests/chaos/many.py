"""Many troubles, one after the other, and a line that sums them up.

``python tests/chaos/many.py 200 900`` on processes, ``... 900 1000 network`` on network namespaces.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.arenas import Arena, KilledArena, NetworkArena
from chaos.moments import NETWORK_TROUBLES, PROCESS_TROUBLES, Trouble, draw_trouble
from chaos.works import BOUND, do

#: Seconds after which a piece of work counts as hanging.
_HANGS = 2 * BOUND


def run(trouble: Trouble, arena: Arena) -> tuple[str, float]:
    """One trouble; "well", or what went wrong; seconds that the work took."""
    outcome, seconds = ["hang"], [float("nan")]

    def work() -> None:
        try:
            maker = do(trouble, arena)
            outcome[0] = "well" if maker.struck else "well (too short for it)"
            seconds[0] = maker.seconds
        except AssertionError:
            outcome[0] = "wrong"
            traceback.print_exc()
        except BaseException:
            outcome[0] = "ended"
            traceback.print_exc()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_HANGS)
    if thread.is_alive():
        faulthandler.dump_traceback()
    return outcome[0], seconds[0]


def main() -> None:
    """Run a range of seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("stop", type=int)
    parser.add_argument("arena", choices=["processes", "network"], default="processes", nargs="?")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more begins then")
    asked = parser.parse_args()
    make = NetworkArena if asked.arena == "network" else KilledArena
    kinds = NETWORK_TROUBLES if asked.arena == "network" else PROCESS_TROUBLES
    found: Counter[str] = Counter()
    bad: list[int] = []
    began = time.monotonic()
    arena: Arena = make()
    arena.start()
    for seed in range(asked.first, asked.stop):
        if time.monotonic() - began > asked.seconds:
            break
        trouble = draw_trouble(seed, kinds)
        outcome, seconds = run(trouble, arena)
        found[outcome] += 1
        print(f"{seed} {outcome} {seconds:.1f} s {trouble}", flush=True)
        if not outcome.startswith("well"):
            bad.append(seed)
            arena.close()
            arena = make()
            arena.start()
    arena.close()
    print(
        f"{found.total()} faults: {found['hang']} hangs, {found['wrong']} wrong, {found['ended']} "
        f"ended that could go on; {found['well (too short for it)']} came too late; seeds {bad}; "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
