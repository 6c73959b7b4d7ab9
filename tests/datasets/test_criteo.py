"""Click logs of Criteo's format: every cell is what Python's own parsing makes of it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from daskml_dist.datasets import read_criteo
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.feature_extraction import FieldHasher

NUMBERS, IDS = [f"I{j}" for j in range(1, 14)], [f"C{j}" for j in range(1, 27)]


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def _lines(n: int, seed: int = 0) -> list[str]:
    """Lines with gaps, negative counts and ids of 1 to 8 digits."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        counts = [str(rng.integers(-2, 5000)) for _ in NUMBERS]
        ids = [f"{rng.integers(0, 16 ** rng.integers(1, 9)):x}" for _ in IDS]
        cells = [c if rng.random() < 0.8 else "" for c in (*counts, *ids)]
        lines.append("\t".join([str(rng.integers(0, 2)), *cells]))
    return lines


LINES = _lines(300)


def _truth(lines: list[str]) -> pd.DataFrame:
    """The frame of lines, cell by cell."""
    cells = [line.split("\t") for line in lines]
    columns: dict[str, Any] = {"label": np.array([int(row[0]) for row in cells], np.int8)}
    for j, name in enumerate(NUMBERS, 1):
        columns[name] = np.array([float(row[j] or "nan") for row in cells], np.float32)
    for j, name in enumerate(IDS, 14):
        values = [int(row[j], 16) if row[j] else None for row in cells]
        columns[name] = pd.array(values, dtype="UInt32")
    return pd.DataFrame(columns)


def _assert_frames(lazy: Any, expected: pd.DataFrame) -> None:
    found = lazy.compute()
    assert found.dtypes.to_dict() == lazy.dtypes.to_dict() == expected.dtypes.to_dict()
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "not ended"])
@pytest.mark.parametrize("blocksize", [None, 700, "5 kiB", 10**9])
def test_cells_are_those_of_the_text(tmp_path: Path, blocksize, last, end):
    text = end.join(LINES) + end * last
    (tmp_path / "day_0").write_bytes(text.encode())
    frame = read_criteo(tmp_path / "day_0", blocksize=blocksize)
    assert frame.npartitions == (-(-len(text) // 700) if blocksize == 700 else frame.npartitions)
    _assert_frames(frame, _truth(LINES))


def test_files_folders_patterns_and_gzip(tmp_path: Path):
    parts = [LINES[:100], LINES[100:110], LINES[110:]]
    for k, part in enumerate(parts):
        data = ("\n".join(part) + "\n").encode()
        if k == 1:
            (tmp_path / "day_1.gz").write_bytes(gzip.compress(data))
        else:
            (tmp_path / f"day_{k}").write_bytes(data)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".day_0.crc").write_bytes(b"x")
    (tmp_path / "day_3").touch()  # without rows
    truth = _truth(LINES)
    for path in (tmp_path, f"{tmp_path}/day_*", [tmp_path / f"day_{k}" for k in ("0", "1.gz", 2)]):
        _assert_frames(read_criteo(path, blocksize=4000), truth)
    (tmp_path / "_mine").write_text("\n".join(LINES))
    _assert_frames(read_criteo(tmp_path / "_mine"), truth)  # named, unlike the others of its kind
    few = read_criteo(tmp_path, columns=["C3", "label"])
    _assert_frames(few, truth[["C3", "label"]])
    pd.testing.assert_series_equal(few["C3"].compute().reset_index(drop=True), truth["C3"])


def test_blank_lines_are_no_rows(tmp_path: Path):
    (tmp_path / "day").write_text(f"\n{LINES[0]}\n\n\n{LINES[1]}\n\n")
    _assert_frames(read_criteo(tmp_path / "day"), _truth(LINES[:2]))


CELLS = ["1", *["7"] * 13, *["0a"] * 26]


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("\t".join(CELLS[:-1]), "C25"),
        ("\t".join([*CELLS, "0a"]), "C26"),
        ("\t".join(["2", *CELLS[1:]]), "label"),
        ("\t".join(["", *CELLS[1:]]), "label"),
        ("\t".join(["1", "x", *CELLS[2:]]), "I1"),
        ("\t".join(["1", "1.5", *CELLS[2:]]), "I1"),
        ("\t".join(["1", "-", *CELLS[2:]]), "I1"),
        ("\t".join(["1", "9" * 19, *CELLS[2:]]), "I1"),
        ("\t".join([*CELLS[:13], "7 ", *CELLS[14:]]), "I13"),
        ("\t".join([*CELLS[:14], "xyz", *CELLS[15:]]), "C1"),
        ("\t".join([*CELLS[:14], "123456789", *CELLS[15:]]), "C1"),
        ("\t".join([*CELLS[:39], "0g"]), "C26"),
        ("1", "label"),
        ("label,I1", "label"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path: Path, line, column):
    # In the second block of the file, behind two lines of that block.
    good = "\t".join(CELLS) + "\n"
    (tmp_path / "day").write_text(good * 8 + line + "\n" + good)
    frame = read_criteo(tmp_path / "day", blocksize=5 * len(good) + 10)
    match = rf"day, block 1 \(from byte .*\), line 3 of the block: {column} or .*Correct the line"
    with pytest.raises(InvalidDataError, match=match):
        frame.compute()


@pytest.mark.parametrize("ids", ["hex", "integers", "floats"])
def test_parquet(tmp_path: Path, ids):
    truth = _truth(LINES)
    frame = truth.astype({"label": "int64", "I1": "Float64"})
    for name in IDS:
        if ids == "hex":
            texts = [None if v is pd.NA else f"{v:08x}" for v in truth[name]]
            frame[name] = pd.array(texts, dtype="str")
        else:
            frame[name] = truth[name].astype("Int64" if ids == "integers" else "float64")
    for part in range(2):
        frame[150 * part : 150 * part + 150].to_parquet(tmp_path / f"{part}.parquet")
    _assert_frames(read_criteo(tmp_path), truth)
    _assert_frames(read_criteo(f"{tmp_path}/*.parquet", columns=["C1"]), truth[["C1"]])


@pytest.mark.parametrize(
    ("column", "values", "match"),
    [
        ("C1", [-1], "from 0"),
        ("C1", [2**32], "2..32"),
        ("C1", ["xyz"], "hexadecimal"),
        ("C1", ["123456789"], "hexadecimal"),
        ("label", [2], "0 or 1"),
        ("I1", ["many"], "numbers"),
    ],
)
def test_parquet_that_cannot_be_read(tmp_path: Path, column, values, match):
    pd.DataFrame({column: values}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InvalidDataError, match=f"Column '{column}' cannot be read.*{match}"):
        read_criteo(tmp_path, columns=[column]).compute()


def test_refusals(tmp_path: Path):
    pd.DataFrame({"label": [1]}).to_parquet(tmp_path / "a.parquet")
    for path in (tmp_path / "none", f"{tmp_path}/*.txt"):
        with pytest.raises(InvalidDataError, match="Name files, a folder or a pattern"):
            read_criteo(path)
    with pytest.raises(InvalidDataError, match=r"has no columns \['I1'.*it has \['label'\]"):
        read_criteo(tmp_path)
    (tmp_path / "b.txt").touch()
    with pytest.raises(InvalidDataError, match="Parquet and of text"):
        read_criteo(tmp_path)
    for params, match in (
        ({"columns": ["C27"]}, "'C27'.*C1 to C26"),
        ({"columns": "C1"}, r"\['C1'\]"),
        ({"blocksize": 0}, "blocksize=0"),
        ({"blocksize": "much"}, "blocksize='much'"),
    ):
        with pytest.raises(InvalidParameterError, match=match):
            read_criteo(tmp_path / "b.txt", **params)


def test_a_frame_of_clicks_is_hashed(tmp_path: Path):
    (tmp_path / "day").write_text("\n".join(LINES))
    X = read_criteo(tmp_path / "day", blocksize=4000).drop(columns="label")
    rows = FieldHasher(missing="own").fit_transform(X)
    found = rows.compute()
    assert found.shape == (300, 2**62)
    assert (np.diff(found.indptr) == 39).all()
    numbers = _truth(LINES)["I1"].to_numpy()
    counts = found.data[(found.indices & 255) == 0]
    np.testing.assert_array_equal(counts, np.where(np.isnan(numbers), 1, numbers))
