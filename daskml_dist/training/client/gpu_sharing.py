"""Count of the workers that share a GPU, and so share its memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from distributed import Client

from daskml_dist.training.client.calls import call_workers

#: Seconds for workers to report their GPU; a worker without an answer counts as the only one.
_ANSWER = 5.0


def first_visible_gpu() -> str:
    """Return the name of the GPU that this process uses, without calling CUDA."""
    # Fits use the first visible device; dask-cuda and SLURM give each process its own visible
    # device.
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()


def count_workers_of_gpus(
    client: Client, workers: Mapping[str, Mapping[str, Any]]
) -> dict[str, int]:
    """Count, for each worker, the workers that use its GPU, including itself."""
    host_of = {address: facts.get("host", address) for address, facts in workers.items()}
    of_host = Counter(host_of.values())
    requests = {address: () for address, host in host_of.items() if of_host[host] > 1}
    answers = call_workers(client, first_visible_gpu, requests, _ANSWER)
    gpu_of = {address: (host_of[address], answers.get(address, address)) for address in workers}
    of_gpu = Counter(gpu_of.values())
    return {address: of_gpu[gpu] for address, gpu in gpu_of.items()}
