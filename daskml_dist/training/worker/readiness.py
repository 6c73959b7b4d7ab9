"""Dask task that readies a worker for a fit that others run: it imports what a trainer needs."""

from __future__ import annotations

from distributed.protocol import pickle

from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.host import run_trainer
from daskml_dist.training.worker.ready_blocks import backend_of

__all__ = ["get_ready", "packed"]


def packed(fit: FitSpec) -> bytes:
    """A fit to be unpacked in a task's own thread; Dask does so in the worker's event loop."""
    return bytes(pickle.dumps((run_trainer, fit)))


def get_ready(fit: FitSpec | bytes) -> bool:
    """Load a fit and what it computes with."""
    found: FitSpec = pickle.loads(fit)[1] if isinstance(fit, bytes) else fit
    backend_of(found)
    if not found.work.replays:
        found.start_state(slice(0, 1))  # the model's own imports
    return True
