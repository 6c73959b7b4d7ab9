"""Heavy modules that an import of an estimator must not load."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numba", "llvmlite", "distributed", "dask.dataframe", "fsspec", "matplotlib", "bokeh")


def test_an_import_of_an_estimator_loads_nothing_heavy_of_its_own() -> None:
    """Whatever scikit-learn and dask.array load themselves is not ours."""
    script = (
        "import sys, sklearn.linear_model, dask.array\n"
        "before = set(sys.modules)\n"
        "import daskml_dist.linear_model\n"
        f"print(sorted((set({HEAVY}) & set(sys.modules)) - before))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr
