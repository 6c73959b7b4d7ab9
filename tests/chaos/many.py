"""Runs of many faults, one after the other, with a summary line.

``python tests/chaos/many.py 200 900`` on processes, ``... 900 1000 network`` on network namespaces.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.arenas import Arena, KilledArena, NetworkArena
from chaos.moments import NETWORK_TROUBLES, PROCESS_TROUBLES, Trouble, draw_trouble
from chaos.seeds import parser, run_seeds
from chaos.works import BOUND, do


def _do(trouble: Trouble, arena: Arena) -> tuple[bool, float]:
    maker = do(trouble, arena)
    return maker.struck, maker.seconds


def main() -> None:
    """Run a range of seeds."""
    of_seeds = parser(__doc__)
    of_seeds.add_argument("arena", choices=["processes", "network"], default="processes", nargs="?")
    options = of_seeds.parse_args()
    on_network = options.arena == "network"
    make = NetworkArena if on_network else KilledArena
    kinds = NETWORK_TROUBLES if on_network else PROCESS_TROUBLES
    run_seeds(options, partial(draw_trouble, kinds=kinds), _do, make, 2 * BOUND)


if __name__ == "__main__":
    main()
