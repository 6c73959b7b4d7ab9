"""Checks of the command `doctor`: each returns a `Finding`, or raises an error.

`run_check_apart` runs a check in a separate process (this module as a script, with the check's
name), since a broken driver or firewall may hang or kill the process, and the other checks must
continue. The process prints its finding as one line of JSON with a prefix, since libraries also
print to standard output.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from daskml_dist.cli._places import start_cluster

#: Prefix of the line of output with the finding of a check's process.
_FINDING_PREFIX = "daskml_dist finding: "
_BUSY = "Is the machine very busy? Allow more time: --limit 300."


@dataclass(frozen=True)
class Finding:
    """Finding of a check.

    Parameters
    ----------
    state : {"ok", "missing", "broken"}
    text : str
        One line, with the remedy if the state is not "ok".
    """

    state: str
    text: str


@dataclass(frozen=True)
class Check:
    """Check of one feature of this machine or installation.

    Parameters
    ----------
    run_check : callable
        Returns the finding; an exception that it raises is the finding "broken".
    slow : str
        Advice if it does not end in time.
    """

    run_check: Callable[[], Finding]
    slow: str = _BUSY


def _check_versions() -> Finding:
    """Check that all required packages are installed, in the versions that the metadata requires.

    Installers check this, but a later installation of another package may replace one of them.
    """
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("daskml-dist") or []
    except metadata.PackageNotFoundError:
        return Finding("broken", "daskml-dist itself is not installed: pip install -e .")
    versions, wrong = [], []
    for requirement in map(Requirement, lines):
        # Requirements of extras have the marker `extra == "..."`, false for the empty extra; other
        # markers depend on platforms and versions of Python.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = "none"
        if version == "none" or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} ({requirement.specifier} is needed)")
        versions.append(f"{requirement.name} {version}")
    if wrong:
        return Finding("broken", f"{'; '.join(wrong)}. pip install -U daskml-dist")
    return Finding("ok", ", ".join(versions))


def _time_small_fit(client: Any = None) -> float:
    """Return the seconds of a small fit, without a client in this process; check its score."""
    import numpy as np

    from daskml_dist.linear_model import SGDClassifier

    X = np.random.default_rng(0).normal(size=(2_000, 4))
    y = X[:, 0] > 0  # separable by one feature: five passes score about 1
    since = time.perf_counter()
    model = SGDClassifier(max_iter=5, tol=None, random_state=0)
    model.fit(X, y, client="inline" if client is None else client)
    seconds = time.perf_counter() - since
    if (score := model.score(X, y)) < 0.9:
        raise ArithmeticError(f"a fit of separable rows scores {score:.2f} only")
    return seconds


def _check_inline_fit() -> Finding:
    """Check a fit in this process, without a cluster."""
    return Finding(
        "ok",
        f"a small fit in this process: {_time_small_fit():.2f} s, including loading its loops",
    )


def _check_cluster_fit(**options: Any) -> Finding:
    """Check a fit on a cluster of this machine, started with the options of a `LocalCluster`."""
    # Two workers are the minimum for an exchange of gradients.
    with start_cluster(2, **options) as client:
        address, seconds = client.scheduler.address, _time_small_fit(client)
    return Finding("ok", f"a small fit on two worker processes at {address}: {seconds:.2f} s")


def _check_tls() -> Finding:
    """Check the same fit with connections encrypted by certificates made for this check."""
    if find_spec("cryptography") is None:
        return Finding(
            "missing",
            "temporary certificates need: pip install cryptography. TLS with your own "
            "certificates works without it.",
        )
    from distributed import Security

    return _check_cluster_fit(security=Security.temporary(), protocol="tls://")


def _check_shared_memory() -> Finding:
    """Check that another process can open an anonymous segment, as workers open each other's."""
    if not hasattr(os, "memfd_create"):
        return Finding(
            "missing",
            "anonymous shared memory needs Linux: workers of one machine use TCP here. Fits in "
            "one process are not affected.",
        )
    handle = os.memfd_create("daskml_dist-doctor")
    try:
        os.pwrite(handle, b"shared", 0)
        # The kernel lets only processes that may trace this one open its descriptors (proc(5),
        # ptrace(2)): those of the same user, unless a container or Yama restricts it.
        script = f"print(open('/proc/{os.getpid()}/fd/{handle}', 'rb').read(6).decode())"
        command = [sys.executable, "-c", script]
        read = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    finally:
        os.close(handle)
    if read.stdout.strip() != "shared":
        return Finding(
            "broken",
            "processes of this user cannot open each other's memory through /proc/PID/fd, so "
            "workers of one machine use TCP, which is slower. Containers that forbid ptrace "
            "forbid this too: docker run --cap-add SYS_PTRACE.",
        )
    return Finding("ok", "processes of this machine share memory")


def _check_gpu() -> Finding:
    """Check that CuPy works on this machine's GPUs."""
    from daskml_dist.backends.devices import gpu_problem

    if (problem := gpu_problem()) is not None:
        # The driver's device file or program distinguishes a broken GPU from a machine without one.
        has_device = os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None
        return Finding("broken" if has_device else "missing", problem)
    cupy = import_module("cupy")
    runtime = cupy.cuda.runtime
    names = [
        runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())
    ]
    # CuPy compiles kernels at their first use, so this also needs CUDA's compiler and headers.
    total = float(cupy.arange(10, dtype="float32").sum())
    if total != 45.0:
        return Finding(
            "broken", f"{names[0]} computes wrong sums: {total} instead of 45. Check its driver."
        )
    return Finding("ok", f"{', '.join(names)}; CuPy {cupy.__version__}")


def _check_nccl() -> Finding:
    """Check that NCCL can be loaded on a GPU."""
    # Found without an import, which may hang in a driver.
    if find_spec("nccl") is None:
        return Finding(
            "missing", 'for sums between GPUs of one machine: pip install "daskml-dist[nccl]"'
        )
    from daskml_dist.comm.nccl import find_gpu_and_nccl

    gpu, version = find_gpu_and_nccl()
    if not gpu:
        return Finding("missing", "NCCL is installed, but there is no GPU")
    if not version:
        return Finding("broken", 'its library cannot be loaded: pip install -U "daskml-dist[nccl]"')
    # NCCL's version is major * 10000 + minor * 100 + patch.
    return Finding(
        "ok", f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100} on GPU {gpu}"
    )


def _check_slurm() -> Finding:
    """Check that Slurm responds, and that dask-jobqueue is installed."""
    # The programs that dask-jobqueue calls, and one that only queries.
    missing = [name for name in ("sbatch", "scancel", "sinfo") if shutil.which(name) is None]
    if missing:
        return Finding(
            "missing", f"no {', '.join(missing)} here: not a node that can submit Slurm jobs"
        )
    answer = subprocess.run(
        ["sinfo", "-h", "-o", "%P %a %D"], capture_output=True, text=True, timeout=30, check=False
    )
    # sinfo's "Could not establish a configuration source": a machine with only the client.
    if "configuration source" in answer.stderr:
        return Finding(
            "missing", "Slurm's programs are installed, but not configured: set SLURM_CONF"
        )
    if answer.returncode:
        return Finding("broken", f"sinfo: {answer.stderr.strip()} Is SLURM_CONF set, slurmctld up?")
    if find_spec("dask_jobqueue") is None:
        return Finding(
            "missing", 'Slurm works, but SLURMCluster needs: pip install "daskml-dist[hpc]"'
        )
    return Finding("ok", f"partitions: {'; '.join(answer.stdout.strip().splitlines())}")


def _check_tables() -> Finding:
    """Check that tables can be read, for DataFrames and files of Parquet and CSV."""
    if missing := [name for name in ("pandas", "pyarrow") if find_spec(name) is None]:
        return Finding("missing", f'no {", ".join(missing)}: pip install "daskml-dist[dataframe]"')
    import_module("dask.dataframe")  # raises if the versions do not fit together
    return Finding(
        "ok", f"pandas {metadata.version('pandas')}, pyarrow {metadata.version('pyarrow')}"
    )


def _check_pictures() -> Finding:
    """Check that the libraries for plots and Dask's dashboard are installed."""
    if missing := [name for name in ("bokeh", "matplotlib") if find_spec(name) is None]:
        return Finding(
            "missing",
            f"no {', '.join(missing)}, for Dask's dashboard and plots: pip install "
            '"daskml-dist[viz]"',
        )
    return Finding("ok", "Dask's dashboard and plots")


#: Every check by its name, in the order of the report.
CHECKS: dict[str, Check] = {
    "versions": Check(_check_versions),
    "fit": Check(_check_inline_fit),
    "cluster": Check(
        _check_cluster_fit,
        (
            "Can processes of this machine reach each other at 127.0.0.1, or does a firewall block "
            "them? "
        )
        + _BUSY,
    ),
    "tls": Check(_check_tls),
    "shared-memory": Check(_check_shared_memory),
    "gpu": Check(
        _check_gpu, "Does nvidia-smi answer? If not, the driver hangs: restart the machine."
    ),
    "nccl": Check(_check_nccl, "Does nvidia-smi answer?"),
    "slurm": Check(
        _check_slurm, "slurmctld does not answer: ask the administrators of the cluster."
    ),
    "tables": Check(_check_tables),
    "pictures": Check(_check_pictures),
}


def run_check_apart(name: str, limit: float) -> Finding:
    """Return the finding of a check in a separate process, with a limit of `limit` seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # and with it a process group, which holds the check's workers too
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return Finding("broken", f"did not finish within {limit:g} s. {CHECKS[name].slow}")
    finally:
        # Workers that outlive the check hold the pipes open: they are killed, so that reading ends
        # and none of them remains.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for line in reversed(out.splitlines()):
        if line.startswith(_FINDING_PREFIX):
            return Finding(*json.loads(line.removeprefix(_FINDING_PREFIX)))
    # No finding: the interpreter crashed or did not start. The last line of a traceback has the
    # reason.
    last = (err.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return Finding("broken", f"the check itself crashed: {last}")


def _run_named_check() -> None:
    """Print the finding of the check that the command line names."""
    try:
        finding = CHECKS[sys.argv[1]].run_check()
    except Exception as error:
        finding = Finding("broken", f"{type(error).__name__}: {error}")
    text = " ".join(finding.text.split())  # the report has one line for each check
    print(_FINDING_PREFIX + json.dumps([finding.state, text]), flush=True)


if __name__ == "__main__":
    _run_named_check()
