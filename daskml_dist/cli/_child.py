"""A check in a process of its own, which is ended where it takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

from daskml_dist.cli._checks import CHECKS, Finding

__all__ = ["examine"]

_MARK = "daskml_dist finding: "


def examine(name: str, limit: float) -> Finding:
    """Make a check of `CHECKS`."""
    command = [sys.executable, "-m", __name__, name]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return Finding("broken", f"did not end within {limit:g} s. {CHECKS[name].slow}")
    finally:
        with suppress(ProcessLookupError):  # its workers, too
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for line in reversed(out.splitlines()):
        if line.startswith(_MARK):
            return Finding(*json.loads(line.removeprefix(_MARK)))
    last = (err.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return Finding("broken", f"the check itself ended: {last}")


def _main() -> None:
    """Make one check here, and print what it found."""
    try:
        found = CHECKS[sys.argv[1]].make()
    except Exception as error:
        found = Finding("broken", f"{type(error).__name__}: {error}")
    text = " ".join(found.text.split())
    print(_MARK + json.dumps([found.state, text]), flush=True)


if __name__ == "__main__":
    _main()
