"""Fits in one process need no Linux-only feature: features that other systems lack are removed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.quick import quick

ROOT = Path(__file__).parents[2]

#: Features that a system lacks, removed by a script before the package is loaded. Libraries that it
#: calls are loaded first, since they inspect the system themselves.
LACKS = {
    "darwin": """
        lacking = {
            os: ["memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fallocate"],
            socket: ["TCP_USER_TIMEOUT", "TCP_KEEPIDLE"],
        }
        sys.platform = "darwin"
    """,
    "win32": """
        import ctypes, mmap, select, signal

        lacking = {
            os: [
                "memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fallocate",
                "fork", "getpgrp", "geteuid", "getuid", "fchmod", "killpg", "pread", "pwrite",
                "sched_yield", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW",
            ],
            select: ["poll", "epoll"],
            signal: ["SIGHUP", "SIGCHLD", "SIGKILL", "pthread_sigmask"],
            socket: ["TCP_USER_TIMEOUT", "TCP_KEEPIDLE"],
            mmap: [name for name in dir(mmap) if name.startswith("MADV_")],
        }
        for name in ("fcntl", "resource", "grp", "pwd", "termios"):
            sys.modules[name] = None  # importing it raises ImportError
        load = ctypes.CDLL.__init__

        def refuse_own_process(self, name, *args, **options):
            if name is None:
                raise TypeError("LoadLibrary() argument 1 must be str, not None")
            load(self, name, *args, **options)

        ctypes.CDLL.__init__ = refuse_own_process
        sys.platform = "win32"
    """,
}

SCRIPT = """
    import contextlib, importlib, os, socket, sys, warnings
    import numpy as np, scipy, sklearn.linear_model, numba, pandas
    import dask.array as da, dask.dataframe, distributed
    for optional in ("torch", "skops.io", "safetensors.numpy"):
        with contextlib.suppress(ImportError):
            importlib.import_module(optional)
    {lacks}
    for module, names in lacking.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)

    import daskml_dist
    from daskml_dist import Run
    from daskml_dist.cluster import KMeans
    from daskml_dist.cli._checks import CHECKS
    from daskml_dist.ensemble import RandomForestClassifier
    from daskml_dist.errors import ServingError
    from daskml_dist.linear_model import LogisticRegression, SGDClassifier
    from daskml_dist.naive_bayes import GaussianNB
    from daskml_dist.preprocessing import StandardScaler

    warnings.simplefilter("error")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    y = (X[:, 0] > 0).astype(int)
    models = [
        LogisticRegression(), GaussianNB(), RandomForestClassifier(n_estimators=2, random_state=0),
        SGDClassifier(random_state=0, max_iter=3, tol=None, run=Run(n_lanes=2)),
        SGDClassifier(random_state=0, max_iter=3, tol=None, run=Run(n_lanes=2), policy="async"),
    ]
    for model in models:
        assert model.fit(X, y).score(X, y) > 0.8, model
    KMeans(3, random_state=0).fit(StandardScaler().fit_transform(X))

    # A Dask collection without a client: its cluster is threads of this process. Dask's own workers
    # go by the system that they were loaded on, so those of Windows cannot be had here.
    if sys.platform != "win32":
        rows, target = da.from_array(X, chunks=(200, 5)), da.from_array(y, chunks=200)
        lazy = SGDClassifier(random_state=0, max_iter=3, tol=None).fit(rows, target)
        assert (lazy.predict(rows).compute() == lazy.predict(X)).all()

    daskml_dist.save(models[0], sys.argv[1])
    assert (daskml_dist.load(sys.argv[1]).predict(X) == models[0].predict(X)).all()
    assert "needs Linux" in CHECKS["shared-memory"].run_check().text
    if sys.platform == "win32":
        from daskml_dist.serving.server import _check_parameters

        try:
            _check_parameters(8000, 1, False)
        except ServingError as error:
            assert "Use Linux" in str(error)
        else:
            raise AssertionError
    print("done")
"""


# Windows lacks nearly all that macOS lacks.
@pytest.mark.parametrize("system", quick(LACKS, "win32"))
def test_fits_of_one_process_need_no_linux(system: str, tmp_path: Path) -> None:
    lacks = textwrap.dedent(LACKS[system])
    script = textwrap.dedent(SCRIPT).format(lacks=lacks)
    completed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model.skops")],
        capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip().endswith("done")
