"""Factorisation machines of torch and TorchRec, to compare with ours; ids are row numbers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Learning rate of Adagrad, about the one that ours chooses for rows of 26 ids.
RATE = 0.015


def fit_sparse_torch(
    places: NDArray[np.int64], y: NDArray[np.float32], n_ids: int, width: int, batch: int,
    passes: int, rank: int = 0, world: int = 1,
) -> list[float]:  # fmt: skip
    """Return rows/s of each pass with ``torch.nn.Embedding(sparse=True)``, or DDP if several."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    table: Any = nn.Embedding(n_ids, width, sparse=True)
    nn.init.normal_(table.weight, std=0.01)
    bias = nn.Parameter(torch.zeros(1))

    class Machine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bias = table, bias

        def forward(self, at: Any) -> Any:
            return _predict(self.table(at), self.bias)

    machine: Any = Machine()
    if world > 1:
        machine = nn.parallel.DistributedDataParallel(machine)
    optimizers = [
        torch.optim.Adagrad(table.parameters(), lr=RATE),
        torch.optim.Adagrad([bias], lr=RATE),
    ]
    X, target = torch.from_numpy(places), torch.from_numpy(y)
    rates, n = [], len(X)
    for _ in range(passes):
        order, since = torch.randperm(n), time.perf_counter()
        for start in range(0, n, batch * world):
            at = order[start + rank * batch : start + (rank + 1) * batch]
            loss = nn.functional.binary_cross_entropy_with_logits(machine(X[at]), target[at])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        rates.append(n / (time.perf_counter() - since))
    return rates


def fit_torchrec(
    places: NDArray[np.int64], y: NDArray[np.float32], n_ids: int, width: int, batch: int,
    passes: int,
) -> list[float]:  # fmt: skip
    """Return rows/s of each pass with TorchRec's fused table on the CPU (FBGEMM)."""
    import torch
    from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    n_fields = places.shape[1]
    names = [f"f{k}" for k in range(n_fields)]
    # Fields share a table, in which their ids are different rows.
    config = EmbeddingBagConfig(
        name="table", embedding_dim=width, num_embeddings=n_ids, feature_names=names
    )
    table = FusedEmbeddingBagCollection(
        tables=[config], optimizer_type=torch.optim.Adagrad,
        optimizer_kwargs={"lr": RATE, "eps": 1e-10}, device=torch.device("cpu"),
    )  # fmt: skip
    bias = torch.nn.Parameter(torch.zeros(1))
    own = torch.optim.Adagrad([bias], lr=RATE)
    X, target = torch.from_numpy(places), torch.from_numpy(y)
    rates, n = [], len(X)
    for _ in range(passes):
        order, since = torch.randperm(n), time.perf_counter()
        for start in range(0, n, batch):
            at = order[start : start + batch]
            values = X[at].T.reshape(-1)
            lengths = torch.ones(len(values), dtype=torch.int32)
            rows = KeyedJaggedTensor(keys=names, values=values, lengths=lengths)
            found = table(rows).values().view(len(at), n_fields, width)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                _predict(found, bias), target[at]
            )
            own.zero_grad()
            loss.backward()
            own.step()
        rates.append(n / (time.perf_counter() - since))
    return rates


def _predict(rows: Any, bias: Any) -> Any:
    """Return the raw predictions of rows of weights and vectors (n, n_fields, 1 + rank)."""
    vectors = rows[..., 1:]
    pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
    return bias + rows[..., 0].sum(1) + pairs


def fit_spark(
    places: NDArray[np.int64], y: NDArray[np.float32], n_ids: int, width: int, batch: int,
    passes: int,
) -> list[float]:  # fmt: skip
    """Return rows/s of Spark's factorisation machine: of few steps, and of the additional steps.

    It uses AdamW. Spark draws the rows of each step anew, and sums a gradient of all parameters.
    """
    from pyspark.ml.classification import FMClassifier
    from pyspark.ml.linalg import SparseVector

    from benchmarks.logistic import open_spark

    ones = np.ones(places.shape[1])
    rows = [
        (float(label), SparseVector(n_ids, at.tolist(), ones))
        for label, at in zip(y, np.sort(places, axis=1), strict=True)
    ]

    def seconds(steps: int) -> float:
        since = time.perf_counter()
        FMClassifier(
            factorSize=width - 1, stepSize=RATE, maxIter=steps, tol=0.0, seed=0,
            miniBatchFraction=batch / len(y),
        ).fit(frame)  # fmt: skip
        return time.perf_counter() - since

    with open_spark() as session:
        frame = session.createDataFrame(rows, ["label", "features"]).repartition(2).cache()
        frame.count()
        few, more = passes, 3 * passes
        first = seconds(few)
        return [few * batch / first, (more - few) * batch / max(1e-9, seconds(more) - first)]
