"""Run benchmarks: ``python -m benchmarks NAME [NAME ...] [--tiny] [--log [FOLDER]]``.

With ``--log`` the output of a benchmark is also written to FOLDER/NAME.txt (``benchmarks/results``
by default), below the command, the commit, the machine and the packages' versions. ``python -m
benchmarks papers --help`` describes the experiments of the papers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pkgutil
import sys
import traceback
from pathlib import Path

import benchmarks
from benchmarks import papers
from benchmarks._common import keep_clusters
from benchmarks._log import RunLog

#: Folder of the logged runs from which the documentation's tables are made.
RESULTS = Path(__file__).parent / "results"


def names() -> list[str]:
    """Return the benchmarks, by the names of their modules."""
    found = pkgutil.iter_modules(benchmarks.__path__)
    return sorted(m.name for m in found if not (m.ispkg or m.name.startswith("_")))


def main() -> None:
    if sys.argv[1:2] == ["papers"]:
        papers.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=names(), metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="small enough for a test")
    parser.add_argument(
        "--log", nargs="?", const=RESULTS, type=Path, metavar="FOLDER",
        help="write what is printed to FOLDER/NAME.txt too",
    )  # fmt: skip
    arguments = parser.parse_args()
    tiny = arguments.tiny
    failed = False
    with keep_clusters() if tiny else contextlib.nullcontext():
        for name in arguments.names:
            if tiny:
                print(f"## {name}", flush=True)
            log = RunLog(name, tiny) if arguments.log else None
            try:
                text = importlib.import_module(f"benchmarks.{name}").run(tiny=tiny)
            except Exception:
                text, failed = traceback.format_exc(), True
            print(text, flush=True)
            if log is not None:
                log.write(arguments.log, text)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
