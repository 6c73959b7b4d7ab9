"""Sparse logistic regression compared with scikit-learn and Vowpal Wabbit: speed and accuracy.

Each is measured with its defaults, and with the best of twelve settings after one pass, chosen by
the accuracy on a tenth of the training rows, which that pass does not see. The test rows are not
used for any choice.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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
#: Number of worker processes, threads of each, and policy.
SETTINGS = [(1, 2, "hogwild"), (2, 1, "hogwild"), (2, 1, "average")]


def zipf_rows(n_rows: int, n_features: int) -> tuple[Any, NDArray[np.int64]]:
    """Return rows of 35 distinct Zipf-distributed columns (the k-th is as frequent as 1 / k)."""
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
    """Return the table; each repetition runs every line once, so that load affects all equally."""
    n_rows, n_features = (4_000, 2**13) if tiny else (240_000, 2**18)
    X, y = zipf_rows(n_rows * 5 // 4, n_features)
    data = _Data(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])
    cut = n_rows * 9 // 10
    tuning = _Data(X[:cut], y[:cut], X[cut:n_rows], y[cut:n_rows])
    with contextlib.ExitStack() as stack:
        lines: list[_Line] = []
        for tuned in (False, True):
            lines.append(_ScikitLearn(data, tuning, tuned))
        has_peer = importlib.util.find_spec("vowpalwabbit") is not None
        for tuned in (False, True) if has_peer else ():
            folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
            lines.append(_VowpalWabbit(data, tuning, tuned, folders))
        for workers, threads, policy in SETTINGS[1:2] if tiny else SETTINGS:
            client = stack.enter_context(processes(workers, threads))
            held = [_persisted(client, rows) for rows in (data, tuning)]
            for tuned in (False, True):
                name = f'policy="{policy}", {workers} x {threads}'
                lines.append(_Ours(name, data, tuning, tuned, client, held, policy))
        for line in lines:
            line.choose(tiny)
        for _ in range(1 if tiny else REPEATS):
            for line in lines:
                line.repeat()
    rates = [statistics.median(line.rates) for line in lines]
    # Compare with the defaults of each peer, which are faster.
    vw = rates[2] if has_peer else None
    table = [
        [
            line.name,
            line.setting,
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
        f"{PER_ROW} nonzeros per row, processes x threads, medians of {REPEATS}"
    )
    columns = [
        "", "setting", "million nonzeros/s", "/ scikit-learn", "/ Vowpal Wabbit",
        "whole fit of one pass, s", "accuracy after 1 pass", "accuracy after 3",
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
    """One line of the table: how to train for a number of passes, and the measurements."""

    #: Settings to choose from, of which the first is the default; equally many for each library.
    settings: ClassVar[list[dict[str, Any]]]

    def __init__(self, name: str, data: _Data, tuning: _Data, tuned: bool) -> None:
        self.name = f"{name}, {'tuned' if tuned else 'defaults'}"
        self.data, self.tuning, self._tuned = data, tuning, tuned
        self._chosen: dict[str, Any] = {}
        self.rates: list[float] = []
        self.one: list[float] = []
        self.accuracy_one: list[float] = []
        self.accuracy_three: list[float] = []

    @property
    def setting(self) -> str:
        """Return the chosen setting, for the table."""
        return ", ".join(f"{k} {v}" for k, v in self._chosen.items()) or "defaults"

    def fit(self, passes: int, setting: dict[str, Any], tuning: bool) -> tuple[float, Any]:
        """Return the seconds of the passes alone, and the predictions for the held-out rows."""
        raise NotImplementedError

    def choose(self, tiny: bool) -> None:
        """Choose a setting on held-out training rows; the first fit warms up."""
        self.fit(1, {}, False)
        if not self._tuned:
            return
        scores = []
        for setting in self.settings[:2] if tiny else self.settings:
            predicted = self.fit(1, setting, True)[1]()
            scores.append(self.tuning.accuracy(predicted))
        self._chosen = self.settings[int(np.argmax(scores))]

    def repeat(self) -> None:
        """Measure once more."""
        since = time.perf_counter()
        _, predict = self.fit(1, self._chosen, False)
        self.one.append(time.perf_counter() - since)
        self.accuracy_one.append(self.data.accuracy(predict()))
        seconds, predict = self.fit(3, self._chosen, False)
        self.accuracy_three.append(self.data.accuracy(predict()))
        self.rates.append(3 * self.data.X.nnz / seconds)


def _products(**values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return every combination of the values of each name."""
    return [dict(zip(values, v, strict=True)) for v in itertools.product(*values.values())]


class _ScikitLearn(_Line):
    settings: ClassVar[list[dict[str, Any]]] = [
        *_products(alpha=[1e-4, 1e-5, 7e-6, 1e-6]),
        *_products(alpha=[7e-6, 1e-6], learning_rate=["constant", "adaptive"], eta0=[0.02, 0.1]),
    ]

    def __init__(self, data: _Data, tuning: _Data, tuned: bool) -> None:
        super().__init__("scikit-learn SGDClassifier", data, tuning, tuned)

    def fit(self, passes: int, setting: dict[str, Any], tuning: bool) -> tuple[float, Any]:
        rows = self.tuning if tuning else self.data
        clf = ScikitLearnSGD(loss="log_loss", max_iter=passes, tol=None, random_state=0, **setting)
        since = time.perf_counter()
        clf.fit(rows.X, rows.y)
        return time.perf_counter() - since, lambda: clf.predict(rows.X_test)


class _VowpalWabbit(_Line):
    """Logistic loss; all passes read from a cache created before."""

    settings: ClassVar[list[dict[str, Any]]] = _products(
        learning_rate=[0.5, 1.0, 2.0], power_t=[0.5, 0.3], l2=[0.0, 1e-7]
    )

    def __init__(self, data: _Data, tuning: _Data, tuned: bool, folders: list[Path]) -> None:
        super().__init__("Vowpal Wabbit", data, tuning, tuned)
        self._folders = folders
        for rows, folder in zip((data, tuning) if tuned else (data,), folders, strict=False):
            _write_text(folder / "train", rows.X, rows.y)
            _write_text(folder / "test", rows.X_test, rows.y_test)
            self._run(f"-d {folder}/train -k --cache_file {folder}/cache --passes 1")

    def _run(self, arguments: str) -> float:
        import vowpalwabbit

        bits = int(np.log2(self.data.X.shape[1]))
        common = f"--loss_function logistic -b {bits} --holdout_off --quiet"
        since = time.perf_counter()
        vowpalwabbit.Workspace(f"{common} {arguments}").finish()
        return time.perf_counter() - since

    def fit(self, passes: int, setting: dict[str, Any], tuning: bool) -> tuple[float, Any]:
        folder = self._folders[tuning]
        more = " ".join(f"--{name} {value}" for name, value in setting.items())
        seconds = self._run(
            f"-d {folder}/train --cache_file {folder}/cache --passes {passes} -f {folder}/model "
            + more
        )
        return seconds, lambda: self._predict(folder)

    def _predict(self, folder: Path) -> Any:
        self._run(f"-t -i {folder}/model -d {folder}/test -p {folder}/raw")
        return np.loadtxt(folder / "raw") > 0


def _write_text(path: Path, X: Any, y: NDArray[np.int64]) -> None:
    """Write rows in Vowpal Wabbit's format."""
    with path.open("w") as file:
        for i, label in enumerate(y):
            columns = X.indices[X.indptr[i] : X.indptr[i + 1]].tolist()
            file.write(f"{2 * label - 1} | {' '.join(map(str, columns))}\n")


class _Ours(_Line):
    settings: ClassVar[list[dict[str, Any]]] = _products(
        learning_rate=[0.1, 0.25, 0.5], alpha=[7e-6, 1e-6], initial_accumulator=[0.1, 0.2]
    )

    def __init__(
        self, name: str, data: _Data, tuning: _Data, tuned: bool, client: Client,
        collections: list[Any], policy: str,
    ) -> None:  # fmt: skip
        super().__init__(name, data, tuning, tuned)
        self._client, self._collections, self._policy = client, collections, policy

    def fit(self, passes: int, setting: dict[str, Any], tuning: bool) -> tuple[float, Any]:
        given = {**setting}
        if given:
            given["optimizer"] = Adagrad(initial_accumulator=given.pop("initial_accumulator"))
        clf = SGDClassifier(policy=self._policy, max_iter=passes, tol=None, random_state=0, **given)
        clf.fit(*self._collections[tuning], client=self._client)
        seconds = sum(record["seconds"] for record in clf.history_.records)
        rows = self.tuning if tuning else self.data
        return seconds, lambda: clf.predict(rows.X_test)


def _persisted(client: Client, data: _Data) -> tuple[Any, Any]:
    """Return rows and labels in four blocks on the workers."""
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
