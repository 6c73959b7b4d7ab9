"""Heavy modules that an import of an estimator, and a small fit, must not load."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numba", "llvmlite", "distributed", "dask.dataframe", "fsspec", "matplotlib", "bokeh")


def test_an_import_and_a_small_fit_load_no_heavy_modules() -> None:
    """Modules loaded by scikit-learn and dask.array themselves do not count."""
    script = (
        "import sys, sklearn.linear_model, dask.array\n"
        "before = set(sys.modules)\n"
        "import daskml_dist.linear_model\n"
        f"print(sorted((set({HEAVY}) & set(sys.modules)) - before))\n"
        "import numpy as np\n"
        "X = np.random.default_rng(0).normal(size=(500, 5))\n"
        "params = dict(optimizer='adam', penalty='l1', tol=None, max_iter=5, batch_size=16)\n"
        "daskml_dist.linear_model.SGDClassifier(**params).fit(X, X[:, 0] > 0)\n"
        "print('numba' in set(sys.modules) - before)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "[]\nFalse\n", found.stderr
