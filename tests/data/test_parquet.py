"""Parquet read directly into arrays gives the same blocks as Dask's frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from daskml_dist.data import collection, parquet
from daskml_dist.data.collection import as_collection

N = 500


def _frame(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    holes = rng.normal(size=N)
    holes[3] = np.nan
    return pd.DataFrame(
        {
            "f4": rng.normal(size=N).astype("f4"),
            "g4": rng.normal(size=N).astype("f4"),
            "f8": rng.normal(size=N),
            "i1": rng.integers(-9, 9, N).astype("i1"),
            "i8": rng.integers(-(2**60), 2**60, N),
            "u8": rng.integers(0, 2**63, N).astype("u8") * np.uint64(2),
            "b": rng.random(N) > 0.5,
            "holes": holes,
            "text": rng.choice(["no", "yes"], N),
            "kind": pd.Categorical(rng.choice(["a", "b"], N)),
            "code": pd.Categorical(rng.integers(0, 3, N)),
            "null": pd.array(np.where(rng.random(N) > 0.1, 1, None), "Int64"),
            "full": pd.array(rng.integers(0, 9, N), "Int64"),
            "day": pd.date_range("2020", periods=N),
            "y": (rng.random(N) > 0.5).astype("i1"),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("columns")
    for k in range(3):
        frame = _frame(k)
        frame.to_parquet(path / f"{k}.parquet", row_group_size=120)
    return path


Read = Callable[[Path], Any]
#: Reads, their features and target, and whether no frame is needed.
CASES: dict[str, tuple[Read, Any, Any, bool]] = {
    "float32": (dd.read_parquet, ["f4", "g4"], "y", True),
    "one column": (dd.read_parquet, ["f4"], "y", True),
    "other order": (dd.read_parquet, ["g4", "f4"], "i8", True),
    "mixed widths": (dd.read_parquet, ["f4", "f8", "i1"], "y", True),
    "large integers": (dd.read_parquet, ["i8", "u8", "f4"], "y", True),
    "bools": (dd.read_parquet, ["b", "f4"], "b", True),
    "target among features": (dd.read_parquet, ["f4", "y"], "y", True),
    "nullable, nothing missing": (dd.read_parquet, ["full", "f8"], "full", True),
    "NaN": (dd.read_parquet, ["holes", "f4"], "y", False),
    "missing integers": (dd.read_parquet, ["null", "f4"], "y", False),
    "labels of text": (dd.read_parquet, ["f4", "g4"], "text", False),
    "labels of categories": (dd.read_parquet, ["f4", "g4"], "kind", False),
    "row groups": (lambda p: dd.read_parquet(p, split_row_groups=True), ["f4", "f8"], "y", True),
    "several a part": (lambda p: dd.read_parquet(p, split_row_groups=2), ["f4", "f8"], "y", True),
    "pushed filter": (
        lambda p: dd.read_parquet(p, filters=[("i1", ">", 0)]), ["f4", "f8"], "y", False,
    ),
    "filter": (lambda p: (f := dd.read_parquet(p))[f.i1 > 0], ["f4", "f8"], "y", False),
    "column as index": (lambda p: dd.read_parquet(p, index="i8"), ["f4", "f8"], "y", True),
    "no index": (lambda p: dd.read_parquet(p, index=False), ["f4", "f8"], "y", True),
    "made category": (lambda p: dd.read_parquet(p, categories=["i1"]), ["f4"], "i1", False),
    "Arrow's dtypes": (
        lambda p: dd.read_parquet(p, dtype_backend="pyarrow"), ["f4", "f8"], "y", True,
    ),
    "by Arrow's file system": (
        lambda p: dd.read_parquet(f"file://{p}", filesystem="arrow"), ["f4", "f8"], "y", False,
    ),
    "changed column": (
        lambda p: dd.read_parquet(p).assign(f4=lambda f: f.f4 * 2), ["f4", "f8"], "y", False,
    ),
}  # fmt: skip


def _blocks(frame: Any, names: list[str], target: str) -> Any:
    lazy = as_collection(frame[names], frame[target], classification=True).delayed_blocks()
    return dask.compute(*lazy, scheduler="sync")


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's, about the index
@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_those_of_frames(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, names, target, is_direct = CASES[case]
    by_columns: list[bool] = []
    arrays = parquet.ColumnRead._read_arrays

    def spy(self: Any, part: Any) -> Any:
        found = arrays(self, part)
        by_columns.append(found is not None)
        return found

    monkeypatch.setattr(parquet.ColumnRead, "_read_arrays", spy)
    blocks = _blocks(read(folder), names, target)
    assert (bool(by_columns) and all(by_columns)) is is_direct
    monkeypatch.setattr(collection, "read_columns", lambda parts: parts)
    expected = _blocks(read(folder), names, target)
    assert len(blocks) == len(expected)
    for block, truth in zip(blocks, expected, strict=True):
        assert block.X.dtype == truth.X.dtype
        assert block.y.dtype == truth.y.dtype
        np.testing.assert_array_equal(block.X, truth.X)
        np.testing.assert_array_equal(block.y, truth.y)


def test_the_users_own_tasks_keep_their_results(folder: Path) -> None:
    """Reads into arrays have separate keys."""
    frame = dd.read_parquet(folder)
    lazy = as_collection(frame[["f4"]], frame["y"], classification=True).delayed_blocks()
    ours = {key for block in lazy for key in block.dask if "columns-" in str(key)}
    theirs = set(frame[["f4"]].optimize().dask) | set(frame["y"].optimize().dask)
    assert ours
    assert not ours & theirs
