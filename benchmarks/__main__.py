"""Run one benchmark: ``python -m benchmarks NAME [--tiny]``."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

import benchmarks


def names() -> list[str]:
    """Benchmarks by the names of their modules."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=names())
    parser.add_argument("--tiny", action="store_true", help="small enough for a test")
    arguments = parser.parse_args()
    print(importlib.import_module(f"benchmarks.{arguments.name}").run(tiny=arguments.tiny))


if __name__ == "__main__":
    main()
