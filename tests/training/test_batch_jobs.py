"""Errors about workers whose Slurm jobs ended name all workers and the jobs' final states."""

from __future__ import annotations

import threading

import pytest

from daskml_dist.training.client import batch_jobs
from daskml_dist.training.client.batch_jobs import BatchJobs

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"


@pytest.fixture(autouse=True)
def _start_thread_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_jobs, "_TOGETHER", 0.01)
    monkeypatch.setattr(batch_jobs, "_QUERY_SECONDS", 0.01)


def _jobs(*states: str) -> BatchJobs:
    """Stand-in for Slurm: a job reports the given states in order, then repeats the last one."""
    remaining = list(states)

    def ask(job: str) -> tuple[str, str]:
        return (remaining.pop(0) if len(remaining) > 1 else remaining[0]), "01:00:00"

    jobs = BatchJobs(ask)
    for number, address in enumerate((A, B), 7):
        jobs.note(address, str(number))
    return jobs


def _end_of_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "daskml-jobs":
            thread.join(20)


def test_a_walltime_names_all_workers_and_the_remedy(user_log: pytest.LogCaptureFixture) -> None:
    jobs = _jobs("TIMEOUT")
    reason = jobs.name(f"worker {A} was lost", {A, B})
    assert reason == (
        f"worker {A} was lost; worker {B} was lost: job 7, 8 of Slurm reached the walltime of "
        "01:00:00"
    )
    _end_of_thread()
    assert f"lost {A}, {B}: job 7, 8 of Slurm reached the walltime" in user_log.text
    assert "--lifetime" in user_log.text
    assert jobs.describe_losses().startswith(f" Lost with their jobs: {A}, {B} (job 7, 8 of Slurm")


def test_a_completing_job_is_queried_again(user_log: pytest.LogCaptureFixture) -> None:
    jobs = _jobs("RUNNING", "COMPLETING", "CANCELLED")
    jobs.note_lost_workers({A})
    _end_of_thread()
    assert jobs.describe_losses() == f" Lost with their jobs: {A} (job 7 of Slurm was cancelled)."
    assert "--lifetime" not in user_log.text


def test_workers_without_jobs_are_named_alone() -> None:
    jobs = _jobs("TIMEOUT")
    assert jobs.name("worker x joined", ()) == "worker x joined"
    assert jobs.name(f"worker {C} was lost", {C}) == f"worker {C} was lost"
    assert jobs.describe_losses() == ""


def test_no_cause_is_given_if_slurm_reports_no_state(user_log: pytest.LogCaptureFixture) -> None:
    jobs = _jobs("")
    assert jobs.name(f"worker {A} was lost", {A}) == f"worker {A} was lost"
    _end_of_thread()
    assert "Slurm" not in user_log.text
