"""First fits: each in a separate process, with an empty numba cache, and with a filled one.

Imports are timed separately. "Warm" is the first fit of a new process, which loads the code
compiled by the previous one; "again" is the second fit of that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._cold_cases import CASES, Figures
from benchmarks._common import markdown

__all__ = ["run"]

_ROOT = Path(__file__).resolve().parents[1]
#: Seconds after which a process is given up.
_LIMIT = 300.0


def run(tiny: bool = False) -> str:
    """Return one table."""
    rows = []
    for name in list(CASES)[:1] if tiny else CASES:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = _in_new_process(name, cache), _in_new_process(name, cache)
        asked = CASES[name].asked
        rows.append([
            name,
            "" if asked is None else f"{asked:g}",
            f"{cold.first_wall:.2f}",
            f"{cold.first_cpu:.2f}",
            f"{warm.first_wall:.2f}",
            f"{warm.again_wall:.3f}",
            f"{cold.import_wall:.2f}",
        ])  # fmt: skip
    columns = [
        "first fit", "target, s", "empty cache, s", "CPU s of that",
        "filled cache, s", "second fit, s", "import, s",
    ]  # fmt: skip
    return markdown("First fit of a process", columns, rows)


def _in_new_process(name: str, cache: str) -> Figures:
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks._cold_cases", name],
        cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=_LIMIT,
    ).stdout  # fmt: skip
    return Figures(**json.loads(output.splitlines()[-1]))
