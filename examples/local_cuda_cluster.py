"""One worker per GPU of this machine, with rows that are made on the GPUs and stay there.

    pip install "daskml-dist[gpu]" rmm-cu13
    python examples/local_cuda_cluster.py --rows 10_000_000 --features 100

The client needs no GPU and calls no CuPy: blocks are made by tasks, and their `meta` is NumPy's.
``--cpu`` runs the same on two worker processes without GPUs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from daskml_dist.linear_model import LogisticRegression, SGDClassifier


def gpu_workers(arguments: argparse.Namespace) -> Any:
    """A worker per GPU, with a pool of device memory where RMM is installed."""
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise SystemExit(
            'One worker per GPU needs: pip install "daskml-dist[gpu]" (or try --cpu)'
        ) from error
    options: dict[str, Any] = {}
    if importlib.util.find_spec("rmm") is not None:
        options = {
            "rmm_pool_size": arguments.pool,
            "rmm_allocator_external_lib_list": ["cupy"],  # else CuPy keeps a pool of its own
        }
    try:
        return LocalCUDACluster(
            # Persisted blocks beyond this share of a GPU's memory go to host memory.
            device_memory_limit=arguments.device_memory_limit,
            dashboard_address=":0",
            **options,
        )
    except Exception as error:  # no driver, no GPU: NVML, CUDA and dask-cuda each have their own
        raise SystemExit(
            f"No GPU can be used here ({type(error).__name__}: {error}). Check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or try --cpu."
        ) from error


def cpu_workers() -> LocalCluster:
    return LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0")


def array_library(on_gpu: bool) -> Any:
    """CuPy or NumPy; called on a worker alone."""
    return importlib.import_module("cupy" if on_gpu else "numpy")


def make_rows(on_gpu: bool, block_info: Any = None) -> Any:
    """A block of random rows, made where it will lie."""
    place, xp = block_info[None], array_library(on_gpu)
    generator = xp.random.default_rng(place["chunk-location"][0])
    return generator.standard_normal(place["chunk-shape"], dtype="float32")


def make_labels(X: Any, on_gpu: bool) -> Any:
    """Classes that a plane parts, but for some rows near it; where the block lies."""
    xp = array_library(on_gpu)
    w = xp.linspace(-1, 1, X.shape[1], dtype=X.dtype)
    return X @ w + X[:, 0] * X[:, 1] > 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--pool", default="50%", help="of a GPU's memory, or bytes such as 8GB")
    parser.add_argument("--device-memory-limit", type=float, default=0.8, help="share of a GPU")
    parser.add_argument("--cpu", action="store_true", help="two workers without GPUs")
    arguments = parser.parse_args()
    if arguments.pool.endswith("%"):
        arguments.pool = float(arguments.pool[:-1]) / 100
    return arguments


def main() -> None:
    arguments = parse_arguments()
    device = "cpu" if arguments.cpu else "gpu"
    with cpu_workers() if arguments.cpu else gpu_workers(arguments) as cluster, Client(cluster):
        workers = len(cluster.workers)
        blocks = 2 * workers
        size = -(-arguments.rows // blocks)
        X = da.map_blocks(
            make_rows,
            not arguments.cpu,
            chunks=((size,) * blocks, (arguments.features,)),
            dtype="float32",
            meta=np.empty((0, 0), "float32"),
        ).persist()
        y = X.map_blocks(
            make_labels, not arguments.cpu, drop_axis=1, dtype=bool, meta=np.empty(0, bool)
        ).persist()
        print(f"{X.shape[0]:,} x {X.shape[1]} rows on {workers} workers, device={device!r}")
        models = [
            LogisticRegression(device=device),
            SGDClassifier(device=device, max_iter=10, random_state=0),
        ]
        for model in models:
            start = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - start
            name, passes = type(model).__name__, len(model.history_.records)
            accuracy = float(model.score(X, y))
            print(f"{name}: {seconds:.2f} s, {passes} passes, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
