"""Data sets of the examples are fetched completely, or the error names the remedy."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXT = b"1 2\n2 3\n"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names of the script, imported as the examples do."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "fetch", raising=False)
    return vars(importlib.import_module("fetch"))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Return a file as published."""
    path = tmp_path / "published.gz"
    path.write_bytes(gzip.compress(TEXT))
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_fetched_unpacked_and_not_fetched_again(
    script: dict[str, Any], packed: Path, tmp_path: Path
) -> None:
    folder, uri = tmp_path / "data" / "snap", packed.as_uri()
    file = script["File"]("edges.txt", uri, _sha256(TEXT), script["_gunzip"])
    assert script["fetch"](file, folder) == "fetched"
    assert [path.name for path in folder.iterdir()] == ["edges.txt"]
    assert (folder / "edges.txt").read_bytes() == TEXT
    packed.unlink()
    assert script["fetch"](file, folder) == "is there"
    (folder / "edges.txt").write_bytes(b"my own")
    assert "is not the published one" in script["fetch"](file, folder)
    assert (folder / "edges.txt").read_bytes() == b"my own"
    as_it_is = script["File"]("as.gz", uri, _sha256(b""))
    packed.write_bytes(b"")
    assert script["fetch"](as_it_is, folder) == "fetched"


def test_a_table_becomes_parquet(script: dict[str, Any], tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"delay": [1.0, None, 3.0], "carrier": ["UA", "B6", "UA"]})
    frame.to_csv(tmp_path / "flights.csv", index=False)
    path = tmp_path / "flights.csv"
    command = ["git", "hash-object", "--no-filters", str(path)]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert script["checksum"](path, "git:") == f"git:{name}"
    pieces = (path.as_uri(), f"git:{name}", script["_to_parquet"], False)
    file = script["File"]("flights.parquet", *pieces)
    assert script["fetch"](file, tmp_path) == "fetched"
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "flights.parquet"), frame)
    path.write_text("other")
    other = dataclasses.replace(file, name="other.parquet")
    with pytest.raises(SystemExit, match="gave another file"):
        script["fetch"](other, tmp_path)
    assert not (tmp_path / "other.parquet").exists()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file:///none/such", "could not be fetched"),
        ("http://127.0.0.1:9/file.gz", "could not be fetched"),  # no server listens there
        ("PACKED", "gave another file than the published one"),
        ("CUT", "gave no file that can be unpacked"),
    ],
)
def test_failures_are_reported_with_a_remedy(
    script: dict[str, Any], packed: Path, tmp_path: Path, uri: str, message: str
) -> None:
    folder = tmp_path / "data"
    (tmp_path / "cut.gz").write_bytes(packed.read_bytes()[:-9])
    uri = {"PACKED": packed.as_uri(), "CUT": (tmp_path / "cut.gz").as_uri()}.get(uri, uri)
    file = script["File"]("edges.txt", uri, _sha256(b"other"), script["_gunzip"])
    with pytest.raises(SystemExit, match=message) as raised:
        script["fetch"](file, folder)
    assert str(folder / "edges.txt") in str(raised.value) or "Try again" in str(raised.value)
    assert list(folder.iterdir()) == []


def test_data_sets_are_complete_and_in_the_configured_folder(
    script: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for data in script["SETS"].values():
        assert data.licence
        for file in data.files:
            assert file.url.startswith("https://")
            assert re.fullmatch(r"[0-9a-f]{64}|git:[0-9a-f]{40}", file.checksum)
    monkeypatch.setenv("DASKML_DIST_DATA", str(tmp_path))
    assert script["data_folder"]("mnist") == tmp_path / "mnist"
    for name, data in script["SETS"].items():  # as if fetched before
        (tmp_path / name).mkdir()
        for file in data.files:
            (tmp_path / name / file.name).touch()
    monkeypatch.setattr(sys, "argv", ["fetch.py", *script["SETS"]])
    script["main"]()
    assert capsys.readouterr().out.count("is there") == 10
    monkeypatch.setattr(sys, "argv", ["fetch.py", "mnits"])
    with pytest.raises(SystemExit, match="2"):
        script["main"]()
    assert "no set 'mnits': choose of adult" in capsys.readouterr().err


@pytest.mark.data
def test_local_files_equal_the_published_ones(script: dict[str, Any], data_dir: Path) -> None:
    """Data sets in the folder of real data that were not repacked."""
    for name in ("adult", "snap"):
        for file in script["SETS"][name].files:
            assert script["fetch"](file, data_dir / name) == "is there"
