"""A Slurm cluster with one node, on the loopback interface and in a separate folder.

``python -m tests.hpc.slurm_node FOLDER`` starts it, prints the variables to set in another shell,
and stops it at Ctrl-C. On Debian its programs are ``munge slurmctld slurmd slurm-client``.
"""

from __future__ import annotations

import argparse
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["MISSING", "NODE", "run", "slurm_node"]

NODE = "one"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue")
#: Missing programs; if there are none, a node can be started.
MISSING = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]

# No cgroups, no task plugins and no database, as a container allows. A job is ended `KillWait`
# seconds after its limit, which is in minutes.
_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=2
ReturnToService=2
KillWait=5
NodeName={node} NodeAddr=127.0.0.1 CPUs=8 RealMemory=16000 State=UNKNOWN
PartitionName=batch Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_node(folder: Path, seconds: float = 30.0) -> Iterator[Path]:
    """Run a Slurm node with a partition ``batch`` of 8 cores; sets ``SLURM_CONF`` meanwhile.

    Parameters
    ----------
    folder : Path
        A short path, since it contains a socket; the daemons' logs are there too.
    seconds : float, default=30.0
        Limit in seconds until the node is up.

    Yields
    ------
    Path
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    controller, daemon = _free_ports()
    conf.write_text(
        _CONF.format(
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            controller=controller,
            daemon=daemon,
            folder=folder,
            node=NODE,
        )
    )
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
    os.environ.update(SLURM_CONF=str(conf), PATH=_PATH)
    with ExitStack() as stack:
        stack.callback(_restore, before)
        munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "seed-file", "log-file")]
        munge += [f"--key-file={key}", f"--pid-file={folder}/munge.pid"]
        stack.enter_context(_daemon(folder, "munged", "--foreground", *munge))
        _wait((folder / "munge.socket").exists, folder, seconds)
        stack.enter_context(_daemon(folder, "slurmctld", "-D", "-i", "-f", str(conf)))
        stack.enter_context(_daemon(folder, "slurmd", "-D", "-N", NODE, "-f", str(conf)))
        _wait(lambda: "idle" in run("sinfo", "-h", "-o", "%T"), folder, seconds)
        stack.callback(_cancel_all, folder, seconds)
        yield folder


def run(*command: str) -> str:
    """Return the output of a Slurm program; an empty text if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout if done.returncode == 0 else ""


def _cancel_all(folder: Path, seconds: float) -> None:
    """Cancel all jobs and wait until their processes have ended."""
    run("scancel", "--full", "--user", getpass.getuser())
    _wait(lambda: not run("squeue", "-h"), folder, seconds)


@contextmanager
def _daemon(folder: Path, *command: str) -> Iterator[None]:
    """Run a program in the foreground until the end of the context."""
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(there: object, folder: Path, seconds: float) -> None:
    assert callable(there)
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            logs = "\n".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.log"))
            raise TimeoutError(f"Slurm did not come so far in {seconds:g} s.\n{logs}")
        time.sleep(0.1)


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        return a.getsockname()[1], b.getsockname()[1]


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def main(argv: Sequence[str] | None = None) -> None:
    """Start the node in the folder given by the arguments, until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hpc.slurm_node",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", type=Path, help="for configuration, sockets and logs; made where there is none"
    )
    arguments = parser.parse_args(argv)
    if MISSING:
        parser.exit(1, f"Not here: {', '.join(MISSING)}. See --help.\n")
    with slurm_node(arguments.folder.absolute()) as folder:
        print(f"export SLURM_CONF={folder}/slurm.conf PATH=$PATH:/usr/sbin", flush=True)
        # Not earlier, because the daemons would inherit it.
        ends = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        signal.sigwait(ends)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)


if __name__ == "__main__":
    main()
