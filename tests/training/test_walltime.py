"""A fit survives the end of every worker of a cluster with walltimes, run as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "walltime.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("policy", ["sync", "async", "average"])
def test_a_fit_outlives_its_workers(policy: str) -> None:
    """Workers live for 30 s, give or take 5; the fit takes a minute."""
    pytest.importorskip("dask_jobqueue")
    options = ["--lifetime", "30", "--seconds", "60", "--policy", policy]
    command = [sys.executable, str(EXAMPLE), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode == 0, done.stderr
    assert "each of {100000} rows" in done.stdout
    assert done.stdout.count("generation") >= 2
