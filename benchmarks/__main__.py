"""Run benchmarks: ``python -m benchmarks NAME [NAME ...] [--tiny]``.

``python -m benchmarks papers --help`` tells of the papers' experiments.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pkgutil
import sys
import traceback

import benchmarks
from benchmarks import papers
from benchmarks._common import keep_clusters


def names() -> list[str]:
    """Benchmarks by the names of their modules."""
    found = pkgutil.iter_modules(benchmarks.__path__)
    return sorted(m.name for m in found if not (m.ispkg or m.name.startswith("_")))


def main() -> None:
    if sys.argv[1:2] == ["papers"]:
        papers.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=names(), metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="small enough for a test")
    arguments = parser.parse_args()
    tiny = arguments.tiny
    failed = False
    with keep_clusters() if tiny else contextlib.nullcontext():
        for name in arguments.names:
            if tiny:
                print(f"## {name}", flush=True)
            try:
                print(importlib.import_module(f"benchmarks.{name}").run(tiny=tiny), flush=True)
            except Exception:
                print(traceback.format_exc(), flush=True)
                failed = True
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
