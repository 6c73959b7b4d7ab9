"""Slurm jobs of a run's workers, and why the jobs of lost workers ended."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

#: Seconds within which workers count as lost together, that Slurm may take to answer, and that it
#: may take to decide how a job ended.
_TOGETHER, _ANSWER, _SETTLED = 0.2, 5.0, 15.0
#: Seconds between two queries about a job that is about to end.
_QUERY_SECONDS = 0.3
#: Seconds that the answer may take to be included in the reason for a new generation.
_MAX_REASON_SECONDS = 1.0

#: Description of how jobs ended, by Slurm's name of the final state.
_DESCRIPTIONS_BY_STATE = {
    "TIMEOUT": "reached the walltime",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "used more memory than requested",
    "FAILED": "failed",
    "COMPLETED": "ended",
}
_LIFETIME = (
    " Workers with a --lifetime a few minutes shorter than the walltime hand over their data in "
    'time: worker_extra_args=["--lifetime", "55m", "--lifetime-stagger", "4m"].'
)

logger = logging.getLogger("daskml_dist")


def query_slurm_job(job: str) -> tuple[str, str]:
    """Return the state of a job, as Slurm names it, and its walltime; empty texts if unknown."""
    if (program := shutil.which("scontrol")) is None:
        return "", ""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [program, "show", "job", "-o", job]
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER, check=False
        ).stdout
        fields = dict(re.findall(r"(JobState|Reason|TimeLimit)=(\S+)", output))
        # While its processes end, a job is "COMPLETING", and its reason is more informative.
        timed_out = fields.get("Reason") == "TimeLimit"
        return ("TIMEOUT" if timed_out else fields.get("JobState", "")), fields.get("TimeLimit", "")
    return "", ""


class BatchJobs:
    """Slurm jobs of a run's workers.

    Slurm is queried in a thread, so a fit continues whether or not it answers.

    Parameters
    ----------
    query : callable, default=query_slurm_job
    """

    def __init__(self, query: Callable[[str], tuple[str, str]] = query_slurm_job) -> None:
        self._query = query
        #: Job of each worker that belongs to one.
        self._jobs: dict[str, str] = {}
        #: Final state and walltime of the job of each worker that was lost with it.
        self._job_ends: dict[str, tuple[str, str]] = {}
        self._noted: set[str] = set()
        self._to_query: set[str] = set()
        self._lock = threading.Lock()
        self._answered = threading.Event()

    def note(self, address: str, job: str) -> None:
        """Record the job of a worker."""
        self._jobs[address] = job

    def note_lost_workers(self, addresses: Iterable[str]) -> None:
        """Find out in the background why workers were lost, and log a warning."""
        with self._lock:
            newly_lost = {a for a in addresses if a in self._jobs} - self._noted
            if not newly_lost:
                return
            is_querying = bool(self._to_query)
            self._noted |= newly_lost
            self._to_query |= newly_lost
            self._answered.clear()
        if not is_querying:
            threading.Thread(target=self._query_lost_jobs, name="daskml-jobs", daemon=True).start()

    def name(self, reason: str, lost: Iterable[str]) -> str:
        """Return a reason that also names all lost workers, and how their jobs ended."""
        lost = sorted(lost)
        self.note_lost_workers(lost)
        if unnamed := [address for address in lost if address not in reason]:
            reason = f"{reason}; worker {', '.join(unnamed)} was lost"
        if not self._noted.isdisjoint(lost):
            self._answered.wait(_MAX_REASON_SECONDS)
        job_ends = self._describe_ends(lost)
        return f"{reason}: {job_ends}" if job_ends else reason

    def describe_losses(self) -> str:
        """Return a sentence about all workers that were lost with their jobs, or an empty text."""
        lost = sorted(self._job_ends)
        return (
            f" Lost with their jobs: {', '.join(lost)} ({self._describe_ends(lost)})."
            if lost
            else ""
        )

    def _describe_ends(self, addresses: Iterable[str]) -> str:
        """Return how the jobs of lost workers ended, in words; empty if unknown."""
        ends: dict[tuple[str, str], set[str]] = defaultdict(set)
        for address in addresses:
            if address in self._job_ends:
                ends[self._job_ends[address]].add(self._jobs[address])
        return "; ".join(_describe_jobs(jobs, *end) for end, jobs in sorted(ends.items()))

    def _query_lost_jobs(self) -> None:
        """Query Slurm about the lost workers' jobs, and log a warning."""
        time.sleep(_TOGETHER)
        with self._lock:
            queried, self._to_query = sorted(self._to_query), set()
        job_ends = {
            job: self._find_job_end(job) for job in dict.fromkeys(self._jobs[a] for a in queried)
        }
        self._job_ends |= {a: end for a in queried if (end := job_ends[self._jobs[a]]) is not None}
        lost = [a for a in queried if a in self._job_ends]
        if lost:
            timed_out = any(self._job_ends[a][0] == "TIMEOUT" for a in lost)
            remedy = _LIFETIME if timed_out else ""
            logger.warning("lost %s: %s.%s", ", ".join(lost), self._describe_ends(lost), remedy)
        with self._lock:
            if not self._to_query:
                self._answered.set()

    def _find_job_end(self, job: str) -> tuple[str, str] | None:
        """Return how a job ended, and its walltime; None if it is running or unknown."""
        deadline = time.monotonic() + _SETTLED
        while True:
            state, limit = self._query(job)
            if state in _DESCRIPTIONS_BY_STATE:
                return state, limit
            # A running job may be about to end: its worker is notified first.
            if not state or time.monotonic() > deadline:
                return None
            time.sleep(_QUERY_SECONDS)


def _describe_jobs(jobs: set[str], state: str, limit: str) -> str:
    """Return how some jobs ended, in words."""
    names = ", ".join(sorted(jobs, key=lambda job: (len(job), job)))
    limit_text = f" of {limit}" if state == "TIMEOUT" and limit else ""
    return f"job {names} of Slurm {_DESCRIPTIONS_BY_STATE[state]}{limit_text}"
