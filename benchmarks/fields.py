"""Hashing of fields to virtual columns, and reading of click logs, against pandas on one core."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd

from benchmarks._common import markdown, median_seconds
from daskml_dist.datasets import make_clicks, read_criteo
from daskml_dist.feature_extraction import FieldHasher

N_FIELDS = 26
NAMES = ["label", *(f"I{j}" for j in range(1, 14)), *(f"C{j}" for j in range(1, 27))]


def run(tiny: bool = False) -> str:
    """Return both tables."""
    n_rows, n_lines = (1_000, 1_000) if tiny else (500_000, 300_000)
    repeats = 1 if tiny else 5
    with dask.config.set(scheduler="sync"):
        return "\n\n".join([_hash(n_rows, repeats), _read(n_lines, repeats)])


def _hash(n_rows: int, repeats: int) -> str:
    """Return cells per second for frames whose columns are of one kind."""
    rng = np.random.default_rng(0)
    many = rng.integers(0, 2**40, (n_rows, N_FIELDS))
    few = (rng.pareto(0.5, (n_rows, N_FIELDS)) * 10).clip(0, 1e5).astype(np.int64)
    words = np.array([f"id-{i:06d}" for i in range(100_001)])
    texts = pd.DataFrame({f"c{j}": words[few[:, j]] for j in range(N_FIELDS)})
    bags = [few[i, : 1 + i % 9] for i in range(n_rows)]
    frames: dict[str, Any] = {
        "integers, array": many,
        "integers, dataframe": pd.DataFrame(many),
        "numbers": pd.DataFrame(rng.normal(size=(n_rows, N_FIELDS)).astype(np.float32)),
        "100,000 distinct strings, Arrow": texts.astype("str"),
        "100,000 distinct strings, categories": texts.astype("category"),
        "bags of 1 to 9 integers": pd.DataFrame({"bag": bags}),
    }
    found = []
    for name, frame in frames.items():
        hasher = FieldHasher().fit(frame)
        n = int(sum(map(len, bags))) if "bags" in name else n_rows * N_FIELDS
        found.append([name, _rate(partial(hasher.transform, frame), n, repeats)])
    hash_texts = partial(pd.util.hash_array, texts["c0"].astype(object).to_numpy())
    found.append(["pandas' `hash_array` of the strings", _rate(hash_texts, n_rows, repeats)])
    return markdown(
        f"Millions of cells per second ({n_rows:,} rows)", ["cells", "million cells/s"], found
    )


def _rate(work: Callable[[], Any], n: int, repeats: int) -> str:
    return f"{n / median_seconds(work, repeats) / 1e6:.1f}"


def _read(n_lines: int, repeats: int) -> str:
    """Return megabytes of text per second."""
    frame = make_clicks(n_lines, random_state=0).compute()
    rng = np.random.default_rng(0)
    cells = [frame["label"].astype(str)]
    cells += [(frame[f"I{j}"] * 100).round().astype(int).astype(str) for j in range(1, 14)]
    cells += [
        (frame[f"C{j}"] * 2_654_435_761 % 2**32).map("{:08x}".format) for j in range(1, 27)
    ]  # as long as the published lines
    cells = [c if j == 0 else c.where(rng.random(n_lines) < 0.9, "") for j, c in enumerate(cells)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day_0"
        lines = "\n".join(map("\t".join, zip(*cells, strict=True))) + "\n"
        path.write_text(lines)
        (Path(folder) / "day_0.gz").write_bytes(gzip.compress(lines.encode(), 1))
        dtypes = {name: "str" if name[0] == "C" else "float32" for name in NAMES}
        plain = partial(pd.read_csv, path, sep="\t", header=None, names=NAMES, dtype=dtypes)
        ways: dict[str, Callable[[], Any]] = {
            "`read_criteo`": lambda: read_criteo(path).compute(),
            "`read_criteo`, gzipped": lambda: read_criteo(f"{path}.gz").compute(),
            "`pandas.read_csv`, ids as strings": plain,
            '`pandas.read_csv(engine="pyarrow")`, ids as strings': partial(plain, engine="pyarrow"),
        }
        found = [[name, _rate(work, len(lines), repeats)] for name, work in ways.items()]
    return markdown(f"Megabytes of text per second ({n_lines:,} lines)", ["reader", "MB/s"], found)
