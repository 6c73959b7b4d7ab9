"""Word counts and topics of documents compared with scikit-learn, from whole fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.bag as db
import numpy as np
import sklearn.decomposition
from dask.delayed import delayed
from distributed import wait
from scipy import sparse
from sklearn.feature_extraction import text

from benchmarks._common import markdown, median_seconds, processes
from daskml_dist import feature_extraction
from daskml_dist.decomposition import LatentDirichletAllocation

WORKERS, BLOCKS = 2, 4
DOCUMENTS, VOCABULARY, LENGTH = 10_000, 12_000, 100


def documents(n: int, n_words: int, topics: int, seed: int = 0) -> Any:
    """Return word counts drawn from the topic model, with a few topics per document."""
    rng = np.random.default_rng(seed)
    ranks = 1.0 / np.arange(1, n_words + 1)  # word frequencies by Zipf's law
    tables = np.cumsum([rng.permutation(ranks) for _ in range(topics)], axis=1)
    rows = np.repeat(np.arange(n), LENGTH)
    shares = np.cumsum(rng.dirichlet(np.full(topics, 0.1), n), axis=1)
    drawn = (rng.random((n, LENGTH, 1)) > shares[:, None, :-1]).sum(axis=2).ravel()
    places = rng.random(len(rows)) * tables[0, -1]
    words = np.empty(len(rows), dtype=np.int64)
    for topic in range(topics):
        words[drawn == topic] = np.searchsorted(tables[topic], places[drawn == topic])
    ones = np.ones(len(rows))
    return sparse.csr_array((ones, (rows, np.minimum(words, n_words - 1))), shape=(n, n_words))


def run(tiny: bool = False) -> str:
    """Return the tables."""
    n, n_words = (400, 300) if tiny else (DOCUMENTS, VOCABULARY)
    runs, passes = (1, 1) if tiny else (1, 3)
    X = documents(n, n_words, 20)
    with processes(WORKERS) as client:
        step = -(-n // BLOCKS)
        parts = [X[start : start + step] for start in range(0, n, step)]
        blocks = [da.from_delayed(delayed(part), part.shape, meta=X[:0]) for part in parts]
        lazy = client.persist(da.concatenate(blocks))
        rows = np.split(X.indices, X.indptr[1:-1])
        texts = [" ".join(f"w{word}" for word in row) for row in rows]
        bag = client.persist(db.from_sequence(texts, npartitions=BLOCKS))
        wait([lazy, bag])
        lines = []
        for topics, method in ((20, "batch"), (20, "online"), (100, "batch")):
            params: dict[str, Any] = {"max_iter": passes, "learning_method": method}
            params |= {"batch_size": max(n // 10, 1), "random_state": 0}
            ours = LatentDirichletAllocation(topics, **params)
            peer = sklearn.decomposition.LatentDirichletAllocation(topics, n_jobs=2, **params)
            name = f"LatentDirichletAllocation, {topics} topics, {method}"
            lines.append(_line(name, lambda m=ours: m.fit(lazy), lambda m=peer: m.fit(X), runs))
            lines[-1] += [f"{ours.bound_:.0f}", f"{peer.bound_:.0f}"]
        for name in ("CountVectorizer", "TfidfVectorizer"):
            model, other = getattr(feature_extraction, name)(), getattr(text, name)()
            fits = lambda m=model: m.fit(bag), lambda m=other: m.fit(texts)
            lines.append([*_line(name, *fits, runs), "", ""])
    columns = [
        "fit",
        "daskml_dist, s",
        "scikit-learn, s",
        "ratio",
        "perplexity",
        "scikit-learn, perplexity",
    ]
    title = f"{n:,} documents of {LENGTH} words, {n_words:,} words, {passes} passes, {WORKERS} "
    return markdown(f"{title}single-threaded worker processes", columns, lines)


def _line(name: str, ours: Callable[[], Any], peer: Callable[[], Any], runs: int) -> list[str]:
    """Return the seconds of both, alternating after a first fit of each."""
    seconds = median_seconds(ours, runs), median_seconds(peer, runs)
    return [name, *(f"{s:.2f}" for s in seconds), f"{seconds[1] / seconds[0]:.1f}"]
