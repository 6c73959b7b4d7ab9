"""Shared code for processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, with the working tree first in ``PYTHONPATH``."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
