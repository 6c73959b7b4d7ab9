"""A network whose layers are spread over workers, beside one that every worker holds whole.

    python examples/pipeline.py --stages 2 --width 2048

trains the same network on made-up rows by a pipeline and by all-reduce: the losses are the same but
for rounding, and a worker of the pipeline holds and updates its own layers alone.
"""

from __future__ import annotations

import argparse
import time

import dask.array as da
from distributed import Client, LocalCluster

from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import Pipeline


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    rows = arguments.rows
    with (
        LocalCluster(
            n_workers=arguments.stages,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        X = da.random.default_rng(0).normal(size=(rows, 32), chunks=(rows // 8, -1))
        X = X.astype("float32").persist()
        y = (X[:, 0] * X[:, 1] > 0).astype("int64").persist()
        for pipeline in (None, Pipeline(arguments.stages, arguments.micro_batches)):
            start = time.perf_counter()
            model = MLPClassifier(
                (arguments.width,) * arguments.layers,
                max_iter=arguments.passes,
                tol=None,
                random_state=0,
                pipeline=pipeline,
            ).fit(X, y)
            seconds = time.perf_counter() - start
            numbers = sum(w.size for w in [*model.coefs_, *model.intercepts_])
            name = "all-reduce" if pipeline is None else f"{pipeline.stages} stages"
            print(
                f"{name:10s} {numbers / 1e6:.1f} M parameters, loss {model.loss_:.6f}, "
                f"accuracy {model.score(X, y):.4f}, {seconds:.1f} s"
            )


if __name__ == "__main__":
    main()
