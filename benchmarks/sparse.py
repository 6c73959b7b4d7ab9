"""Sparse logistic regression beside scikit-learn and Vowpal Wabbit: nonzeros/s and accuracy."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask import delayed
from distributed import Client, wait
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import SGDClassifier as ScikitLearnSGD

from benchmarks._common import markdown, processes
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import Adagrad

PER_ROW, REPEATS = 35, 5
#: Worker processes, threads of each, and policy.
SETTINGS = [(1, 2, "hogwild"), (2, 1, "hogwild"), (2, 1, "average")]


def zipf_rows(n_rows: int, n_features: int) -> tuple[Any, NDArray[np.int64]]:
    """Rows of 35 different columns, Zipf-distributed (the k-th is as frequent as 1 / k)."""
    rng = np.random.default_rng(0)
    names = rng.permutation(n_features)
    drawn = (n_features ** rng.random((n_rows, 5 * PER_ROW))).astype(np.int64) - 1
    columns = np.empty((n_rows, PER_ROW), dtype=np.int32)
    for i, ranks in enumerate(drawn):
        _, first = np.unique(ranks, return_index=True)
        columns[i] = np.sort(names[ranks[np.sort(first)[:PER_ROW]]])
    values = np.ones(columns.size, dtype=np.float32)
    indptr = np.arange(0, columns.size + 1, PER_ROW, dtype=np.int32)
    X = sparse.csr_matrix((values, columns.ravel(), indptr), shape=(n_rows, n_features))
    raw = X @ rng.normal(size=n_features)
    y = raw - raw.mean() + rng.logistic(size=n_rows) > 0
    return X, y.astype(np.int64)


def run(tiny: bool = False) -> str:
    """The table; each repetition runs every line once, so that all share the machine's moods."""
    n_rows, n_features = (4_000, 2**13) if tiny else (240_000, 2**18)
    X, y = zipf_rows(n_rows * 5 // 4, n_features)
    data = _Data(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])
    with contextlib.ExitStack() as stack:
        peers: list[_Line] = [_ScikitLearn("scikit-learn SGDClassifier", data)]
        if importlib.util.find_spec("vowpalwabbit") is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            peers.append(_VowpalWabbit("Vowpal Wabbit", data, Path(folder)))
        ours: list[_Line] = []
        for workers, threads, policy in SETTINGS[1:2] if tiny else SETTINGS:
            client = stack.enter_context(processes(workers, threads))
            name = f'policy="{policy}", {workers} x {threads}'
            ours.append(_Ours(name, data, client, _persisted(client, data), policy))
        lines = [*peers, *ours]
        for _ in range(1 if tiny else REPEATS):
            for line in lines:
                line.repeat()
    rates = [statistics.median(line.rates) for line in lines]
    vw = rates[1] if len(peers) == 2 else None
    table = [
        [
            line.name,
            f"{rate / 1e6:.0f}",
            f"{rate / rates[0]:.2f}",
            f"{rate / vw:.2f}" if vw else "not installed",
            f"{statistics.median(line.one):.3f}",
            f"{statistics.median(line.accuracy_one):.4f}",
            f"{statistics.median(line.accuracy_three):.4f}",
        ]
        for line, rate in zip(lines, rates, strict=True)
    ]
    title = (
        f"Sparse logistic regression, {n_rows:,} rows x {n_features:,} features, "
        f"{PER_ROW} nonzeros a row, processes x threads, medians of {REPEATS}"
    )
    columns = [
        "", "million nonzeros/s", "/ scikit-learn", "/ Vowpal Wabbit", "s for one pass, all told",
        "accuracy after 1 pass", "after 3",
    ]  # fmt: skip
    return markdown(title, columns, table)


@dataclass
class _Data:
    X: Any
    y: NDArray[np.int64]
    X_test: Any
    y_test: NDArray[np.int64]

    def accuracy(self, predicted: Any) -> float:
        return float((np.asarray(predicted) == self.y_test).mean())


class _Line:
    """One line of the table: how to train so many passes, and what was measured."""

    def __init__(self, name: str, data: _Data) -> None:
        self.name = name
        self.data = data
        self.rates: list[float] = []
        self.one: list[float] = []
        self.accuracy_one: list[float] = []
        self.accuracy_three: list[float] = []

    def fit(self, passes: int) -> tuple[float, Any]:
        """Seconds of the passes alone, and the predictions for the test rows."""
        raise NotImplementedError

    def repeat(self) -> None:
        """Measure once more."""
        since = time.perf_counter()
        _, predict = self.fit(1)
        self.one.append(time.perf_counter() - since)
        self.accuracy_one.append(self.data.accuracy(predict()))
        seconds, predict = self.fit(3)
        self.accuracy_three.append(self.data.accuracy(predict()))
        self.rates.append(3 * self.data.X.nnz / seconds)


class _ScikitLearn(_Line):
    def fit(self, passes: int) -> tuple[float, Any]:
        clf = ScikitLearnSGD(loss="log_loss", max_iter=passes, tol=None, random_state=0)
        since = time.perf_counter()
        clf.fit(self.data.X, self.data.y)
        return time.perf_counter() - since, lambda: clf.predict(self.data.X_test)


class _VowpalWabbit(_Line):
    """Its defaults for logistic loss, all passes read from a cache made before."""

    def __init__(self, name: str, data: _Data, folder: Path) -> None:
        super().__init__(name, data)
        self._folder = folder
        self._write("train", data.X, data.y)
        self._write("test", data.X_test, data.y_test)
        self._run(f"-d {folder}/train -k --cache_file {folder}/cache --passes 1")

    def _write(self, name: str, X: Any, y: NDArray[np.int64]) -> None:
        with (self._folder / name).open("w") as file:
            for i, label in enumerate(y):
                columns = X.indices[X.indptr[i] : X.indptr[i + 1]].tolist()
                file.write(f"{2 * label - 1} | {' '.join(map(str, columns))}\n")

    def _run(self, arguments: str) -> float:
        import vowpalwabbit

        bits = int(np.log2(self.data.X.shape[1]))
        common = f"--loss_function logistic -b {bits} --holdout_off --quiet"
        since = time.perf_counter()
        vowpalwabbit.Workspace(f"{common} {arguments}").finish()
        return time.perf_counter() - since

    def fit(self, passes: int) -> tuple[float, Any]:
        folder = self._folder
        seconds = self._run(
            f"-d {folder}/train --cache_file {folder}/cache --passes {passes} -f {folder}/model"
        )
        return seconds, self._predict

    def _predict(self) -> Any:
        folder = self._folder
        self._run(f"-t -i {folder}/model -d {folder}/test -p {folder}/raw")
        return np.loadtxt(folder / "raw") > 0


class _Ours(_Line):
    def __init__(
        self, name: str, data: _Data, client: Client, collections: Any, policy: str
    ) -> None:
        super().__init__(name, data)
        self._client = client
        self._collections = collections
        self._policy = policy
        self.fit(1)  # compiles, or loads what was compiled

    def fit(self, passes: int) -> tuple[float, Any]:
        # Chosen, unlike the peers' defaults; docs/benchmarks_linear.md says how.
        clf = SGDClassifier(
            policy=self._policy,
            max_iter=passes,
            tol=None,
            random_state=0,
            alpha=7e-6,
            optimizer=Adagrad(initial_accumulator=0.2),
            learning_rate=0.25,
        )
        clf.fit(*self._collections, client=self._client)
        seconds = sum(record["seconds"] for record in clf.history_.records)
        return seconds, lambda: clf.predict(self.data.X_test)


def _persisted(client: Client, data: _Data) -> tuple[Any, Any]:
    """Rows and labels in four blocks on the workers."""
    cuts = np.linspace(0, len(data.y), 5).astype(int)
    parts = list(itertools.pairwise(cuts))
    X = client.scatter([data.X[a:b] for a, b in parts])
    y = client.scatter([data.y[a:b] for a, b in parts])
    width = data.X.shape[1]
    chunks = [
        da.from_delayed(delayed(f), (b - a, width), meta=data.X[:0])
        for f, (a, b) in zip(X, parts, strict=True)
    ]
    labels = [
        da.from_delayed(delayed(f), (b - a,), meta=data.y[:0])
        for f, (a, b) in zip(y, parts, strict=True)
    ]
    both = client.persist([da.concatenate(chunks), da.concatenate(labels)])
    wait(both)
    return both[0], both[1]
