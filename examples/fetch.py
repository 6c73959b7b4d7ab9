"""Data sets of the examples: fetched from where they are published, checked, and put in place.

    python examples/fetch.py mnist adult
    python examples/fetch.py --list

puts them into the folder that the environment variable ``DASKML_DIST_DATA`` names, by default
``~/.cache/daskml_dist/data``. Each set has its own licence, which --list tells; nothing of them is
part of this project. A file whose checksum is not the published one is not kept.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "DASKML_DIST_DATA"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FLIGHTS = "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/"


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Attributes
    ----------
    name : str
        What the examples call it.
    url : str
    checksum : str
        Of what is kept, or of what comes where ``unpack`` makes another file of it: SHA-256, or, by
        ``git:``, the name that git gives the file's content.
    unpack : function of two paths, optional
        Makes the file that is kept of the one that came.
    unpacked : bool
        Whether the checksum is of the file that is kept.
    """

    name: str
    url: str
    checksum: str
    unpack: Callable[[Path, Path], None] | None = None
    unpacked: bool = True


@dataclass(frozen=True)
class DataSet:
    """What an example reads, with whose it is."""

    about: str
    licence: str
    files: tuple[File, ...]


def _gunzip(path: Path, target: Path) -> None:
    with gzip.open(path) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)


def _to_parquet(path: Path, target: Path) -> None:
    """A table with some row groups, so that workers share the reading."""
    try:
        import pandas as pd
    except ImportError as error:
        raise SystemExit('Writing tables needs: pip install "daskml-dist[dataframe]"') from error
    frame = pd.read_csv(path, low_memory=False)
    frame.to_parquet(target, row_group_size=1 << 15)


def _idx(name: str, checksum: str) -> File:
    return File(name, _MNIST + name, checksum)


SETS = {
    "adult": DataSet(
        "income of 48,842 people of the 1994 census (Becker and Kohavi)",
        "CC BY 4.0",
        (
            File(
                "adult.data",
                _UCI + "adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            File(
                "adult.test",
                _UCI + "adult.test",
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
    ),
    "jester": DataSet(
        "1.8 million ratings of 100 jokes (Goldberg et al. 2001); reading it needs xlrd",
        "for research, with the paper cited",
        (
            File(
                "jester-data-1.zip",
                "https://eigentaste.berkeley.edu/dataset/archive/jester_dataset_1_1.zip",
                "cb7841756ded125b15f3d95c9f8241224065e96354c132a46ae4214deeab7615",
            ),
        ),
    ),
    "mnist": DataSet(
        "70,000 images of handwritten digits (LeCun, Cortes and Burges)",
        "CC BY-SA 3.0",
        (
            _idx(
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            _idx(
                "train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            _idx(
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            _idx(
                "t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "news20": DataSet(
        "18,846 messages to 20 newsgroups (Lang 1995)",
        "none stated; used for research",
        (
            File(
                "20news-bydate.tar.gz",
                "https://ndownloader.figshare.com/files/5975967",
                "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
            ),
        ),
    ),
    "nycflights": DataSet(
        "336,776 flights from New York in 2013 (Wickham; US Bureau of Transportation Statistics)",
        "CC0",
        (
            File(
                "flights.parquet",
                f"{_FLIGHTS}1dcc2bf5f955cc1224a3e1307256e1fe86b68dae/csv/nycflights13/flights.csv",
                "git:d72630cde3a70916b6f8ed76c18725722a110c3d",
                _to_parquet,
                unpacked=False,
            ),
        ),
    ),
    "snap": DataSet(
        "103,689 votes for administrators of Wikipedia (Leskovec, Huttenlocher, Kleinberg 2010)",
        "public, with the paper cited",
        (
            File(
                "wiki-Vote.txt",
                "https://snap.stanford.edu/data/wiki-Vote.txt.gz",
                "b05c0226f5544f0e4a8ac607ae573db42e42716b6dd5aa00e8c769a1219c796f",
                _gunzip,
            ),
        ),
    ),
}


def data_folder(name: str) -> Path:
    """Where a data set lies, or will lie once it is fetched."""
    root = os.environ.get(VARIABLE)
    return (Path(root) if root else Path.home() / ".cache" / "daskml_dist" / "data") / name


def require(parser: argparse.ArgumentParser, name: str, *paths: Path) -> None:
    """End with what to do, where a file of a data set is missing."""
    for path in paths:
        if not path.is_file():
            parser.error(
                f"no file {path}: name a place that has it, or fetch it to the folder that the "
                f"environment variable {VARIABLE} names by\n    python examples/fetch.py {name}"
            )


def checksum(path: Path, kind: str) -> str:
    """The checksum of a file, of the same kind as another."""
    if kind.startswith("git:"):
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return ("git:" if kind.startswith("git:") else "") + digest.hexdigest()


def fetch(file: File, folder: Path) -> str:
    """Put one file in place, and tell what was done; what is there is left as it is."""
    target = folder / file.name
    if target.exists():
        same = not file.unpacked or checksum(target, file.checksum) == file.checksum
        return "is there" if same else "is there, and is not the published one: left as it is"
    folder.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that it appears there whole or not at all.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        came = made = Path(scratch) / "came"
        try:
            with urllib.request.urlopen(file.url, timeout=60) as answer, came.open("wb") as out:
                shutil.copyfileobj(answer, out)
        except OSError as error:
            raise SystemExit(
                f"{file.url} could not be fetched: {error}. Where this machine has no way to it "
                f"(or needs one told by HTTPS_PROXY), fetch it elsewhere and put "
                f"{'what it unpacks to' if file.unpack else 'it'} as {target}."
            ) from error
        if file.unpack is not None:
            made = Path(scratch) / "made"
            if file.unpacked:
                _unpack(file, came, made)
        found = checksum(made if file.unpacked else came, file.checksum)
        if found != file.checksum:
            raise SystemExit(
                f"{file.url} gave another file than the published one (checksum {found}, not "
                f"{file.checksum}); nothing was kept. Try again; if it stays so, the file has "
                f"changed: look at it before you put it as {target}."
            )
        if file.unpack is not None and not file.unpacked:
            _unpack(file, came, made)
        os.replace(made, target)
    return "fetched"


def _unpack(file: File, came: Path, made: Path) -> None:
    assert file.unpack is not None
    try:
        file.unpack(came, made)
    except (OSError, EOFError) as error:
        raise SystemExit(
            f"{file.url} gave no file that can be unpacked ({error}); nothing was kept. Try again."
        ) from error


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--list", action="store_true", help="tell what there is, and whose it is")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sets if name not in SETS]:
        parser.error(f"no set {unknown[0]!r}: choose of {', '.join(SETS)}")
    if arguments.list or not arguments.sets:
        for name, data in SETS.items():
            print(f"{name:10s} {data.about}. Licence: {data.licence}.")
        return
    for name in arguments.sets:
        print(f"{name}: {SETS[name].about}. Licence: {SETS[name].licence}.")
        for file in SETS[name].files:
            print(f"  {data_folder(name) / file.name} {fetch(file, data_folder(name))}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
