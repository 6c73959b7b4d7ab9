"""Check what works here: versions, a fit, a cluster, TLS, shared memory, GPU, NCCL, Slurm.

    python -m daskml_dist doctor

Each line is ok, missing (not here, and needed only for what the line names) or broken, with the
remedy. The exit status is 1 where something is broken.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from daskml_dist._version import __version__
from daskml_dist.cli._checks import CHECKS, run_check_apart
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.parameters.checks import check_number

#: Number of checks at a time: most of their time is imports, and a machine may have only two cores.
_AT_ONCE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CHECK",
        help=f"checks to run, of: {', '.join(CHECKS)}; default: all",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time limit of each check, in seconds; default: 60",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    check_number("--limit", arguments.limit, lambda seconds: seconds > 0, "of seconds > 0")
    names = list(CHECKS) if arguments.only is None else arguments.only
    for name in names:
        if name not in CHECKS:
            raise InvalidParameterError(
                f"There is no check {name!r}. Use one of {list(CHECKS)}."
                f"{suggest_nearest(name, CHECKS)}"
            )
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"daskml_dist {__version__}, Python {python} at {sys.executable}")
    width = max(map(len, names))  # characters
    broken = False
    # Each thread waits for a check's process; findings are printed in the order of the checks.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for name, finding in zip(
            names, pool.map(lambda n: run_check_apart(n, arguments.limit), names), strict=True
        ):
            print(f"{finding.state:7}  {name:{width}}  {finding.text}", flush=True)
            broken |= finding.state == "broken"
    return int(broken)
