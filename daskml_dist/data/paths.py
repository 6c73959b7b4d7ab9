"""Files named by their path, as the collections that Dask or their library reads.

The path goes to fsspec as it is: of this host, or of an object store such as ``s3://``, for which
fsspec needs the store's own package.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from daskml_dist.data.eager_tables import load_pandas
from daskml_dist.data.table_scans import convert_lazy_table
from daskml_dist.errors import DaskMLDistError, InvalidDataError, InvalidTypeError

#: Endings of files that are compressed as a whole, and have to be read as one block.
_COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst", ".zip"})
#: Files that are looked at to find out what a folder holds.
_MAX_LISTED_FILES = 1000
#: Bytes of a block of text that is cut at ends of lines.
_TEXT_BLOCK_BYTES = 1 << 25

#: A path, or the paths of files of one kind.
Paths = str | list[str]


def open_listed_paths(X: Any) -> Any:
    """Return the rows of the files that a list of paths names, lazily; all else as it is.

    For arguments that are rows: a list of labels may look like one of paths.
    """
    # Texts of documents are told by the first one, which is no path.
    are_paths = (
        isinstance(X, list | tuple)
        and bool(X)
        and all(isinstance(one, str | os.PathLike) and _names_files(one) for one in X)
    )
    return open_path(X) if are_paths else X


def open_path(path: Any) -> Any:
    """Return the rows of the files that a path names, lazily; a text that is no path as it is.

    Parameters
    ----------
    path : str or os.PathLike, or list of these
        Of a file, a folder, or a pattern of files; of a list, all of one kind.

    Returns
    -------
    dask.dataframe.DataFrame, or what a Zarr store holds

    Raises
    ------
    InvalidDataError
        There are no such files, or they cannot be read.
    """
    several = isinstance(path, list | tuple)
    names = [os.fsdecode(one) for one in (path if several else [path])]
    endings = {_find_ending(name) for name in names}
    if len(endings) > 1:
        raise InvalidDataError(
            f"X names files of several kinds: {', '.join(sorted(endings))}. Pass files of one kind."
        )
    (ending,) = endings
    if ending not in _READERS:
        return path
    given: Paths = names if several else names[0]
    try:
        return _READERS[ending](given)
    except DaskMLDistError:
        raise
    # Whatever the reader, its file system or the store raises.
    except Exception as error:
        raise InvalidDataError(
            f"X={given!r} could not be read: {error!r}. Check the path and its pattern; a store "
            "such as s3:// needs its fsspec package (s3fs, gcsfs, adlfs), and options go to "
            f"{_OWN_READERS.get(ending, 'the reader itself')}, whose result is passed as X."
        ) from error


def _names_files(path: Any) -> bool:
    """Return whether a text ends as files do that are read."""
    return _get_ending(os.fsdecode(path)) in _READERS


def _find_ending(name: str) -> str:
    """Return the ending that tells the kind of the files; of a folder that of those in it."""
    ending = _get_ending(name)
    if ending in _READERS:
        return ending
    # A text that looks like no path is not asked of a file system, which may be a remote one.
    if "://" not in name and not os.path.isdir(name):
        return ending
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    try:
        files, root = url_to_fs(name)
        if not files.isdir(root):
            return ending
        listed = files.find(root)[:_MAX_LISTED_FILES]
    except Exception as error:  # of any store
        raise InvalidDataError(
            f"X={name!r} could not be read: {error!r}. Check the path; a store such as s3:// "
            "needs its fsspec package (s3fs, gcsfs, adlfs)."
        ) from error
    # Parquet is the one format that is spread over folders, with files of other kinds beside it.
    return ".parquet" if any(_get_ending(one) == ".parquet" for one in listed) else ending


def _get_ending(name: str) -> str:
    """Return the ending of a path in lower case, without that of a compression."""
    if name.startswith(("http://", "https://")):
        name = urlsplit(name).path  # without a query, whose ? is no pattern
    endings = [one.lower() for one in PurePosixPath(name.rstrip("/")).suffixes]
    if endings and endings[-1] in _COMPRESSED:
        endings.pop()
    found = endings[-1] if endings else ""
    return _ALIASES.get(found, found)


def _is_compressed(name: str) -> bool:
    """Return whether a path names files that are compressed as a whole."""
    return PurePosixPath(name).suffix.lower() in _COMPRESSED


def make_unread_error(path: Any, name: str) -> InvalidTypeError:
    """Return the error of an argument that is a text, and no path of a kind that is read."""
    path = os.fspath(path)
    told = _REMEDIES.get(
        _get_ending(os.fsdecode(path)),
        f"Read the files first, and pass what the reader returns, such as {name} = "
        f"dask.dataframe.read_parquet({path!r}).",
    )
    return InvalidTypeError(
        f"{name}={path!r} is a string, not rows. Paths that can be read end with "
        f"{', '.join(_READERS)}, or name a folder of Parquet files. {told}"
    )


# --- readers ---------------------------------------------------------------------------------


def _read_parquet(names: Paths) -> Any:
    """Return Parquet files as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    return dd.read_parquet(names)


def _find_files_of_folders(names: Paths, ending: str) -> Paths:
    """Return paths with the pattern of its files in the place of each folder, as Spark writes."""
    if isinstance(names, list):
        found = [_find_files_of_folders(name, ending) for name in names]
        return [name for name in found if isinstance(name, str)]
    return os.path.join(names, f"*{ending}*") if os.path.isdir(names) else names


def _choose_text_block(names: Paths) -> int | None:
    """Return the bytes of a block of text; None of compressed files, of which no part is read."""
    several = names if isinstance(names, list) else [names]
    return None if any(map(_is_compressed, several)) else _TEXT_BLOCK_BYTES


def _read_csv(names: Paths, ending: str = ".csv", **options: Any) -> Any:
    """Return files of separated values as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    names = _find_files_of_folders(names, ending)
    # Dask chooses the size of blocks by the memory of this machine, but where none can be cut.
    if _choose_text_block(names) is None:
        options["blocksize"] = None
    return dd.read_csv(names, **options)


def _read_json_lines(names: Paths) -> Any:
    """Return files with a JSON object a line as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    names = _find_files_of_folders(names, ".json")
    # By default Dask makes one block of each file, however large.
    return dd.read_json(names, lines=True, blocksize=_choose_text_block(names))


def _read_arrow(names: Paths) -> Any:
    """Return files of Arrow's format as a Dask dataframe, one part a file."""
    load_pandas()
    from fsspec.core import url_to_fs
    from pyarrow.dataset import dataset

    several = names if isinstance(names, list) else [names]
    systems, roots = zip(*map(url_to_fs, several), strict=True)
    files, found = systems[0], list[str]()
    for root in roots:
        is_pattern = any(mark in root for mark in "*?[")
        found += sorted(files.glob(root)) if is_pattern else [root]
    if not found:
        raise FileNotFoundError(names)
    # pyarrow's own file system where there is one: it maps files of this host.
    options = {} if type(files).__name__ == "LocalFileSystem" else {"filesystem": files}
    # A single one may be a folder, which a list may not hold.
    opened = dataset(found if len(found) > 1 else found[0], format="ipc", **options)
    _check_same_columns(opened)
    return convert_lazy_table(opened)


def _check_same_columns(dataset: Any) -> None:
    """Check that all files have the columns of the first, whose lack pyarrow fills with nulls."""
    for fragment in dataset.get_fragments():
        found = fragment.physical_schema.names
        if sorted(found) != sorted(dataset.schema.names):
            raise InvalidDataError(
                f"{fragment.path} has the columns {found}, and the first file "
                f"{dataset.schema.names}. Pass the files of one table."
            )


def _read_zarr(name: Paths) -> Any:
    """Return the array of a Zarr store; a group of xarray's as its Dataset."""
    import zarr

    if isinstance(name, list):
        raise InvalidDataError(
            f"X names {len(name)} Zarr stores. Open and join them: dask.array.concatenate("
            "[dask.array.from_zarr(path) for path in paths]), or xarray.open_mfdataset(paths)."
        )
    found = zarr.open(name, mode="r")
    if hasattr(found, "shape"):
        return found
    try:
        import xarray
    except ImportError as error:
        raise InvalidDataError(
            f"{name!r} is a Zarr group of several arrays. Pass the array that holds the rows, "
            f"zarr.open({name!r})['name'], or install xarray, which reads a group as one Dataset."
        ) from error
    return xarray.open_zarr(name)


#: Other endings of the same formats.
_ALIASES = {
    ".pq": ".parquet", ".parq": ".parquet", ".feather": ".arrow", ".ipc": ".arrow",
    ".ndjson": ".jsonl",
}  # fmt: skip
_READERS: dict[str, Callable[[Paths], Any]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": lambda names: _read_csv(names, ".tsv", sep="\t"),
    ".jsonl": _read_json_lines,
    ".arrow": _read_arrow,
    ".zarr": _read_zarr,
}
#: What takes options, by the ending.
_OWN_READERS = {
    ".parquet": "dask.dataframe.read_parquet",
    ".csv": "dask.dataframe.read_csv",
    ".tsv": "dask.dataframe.read_csv",
    ".jsonl": "dask.dataframe.read_json",
    ".arrow": "pyarrow.dataset.dataset",
    ".zarr": "zarr.open",
}
#: What to do about files of other kinds.
_REMEDIES = {
    ".npy": "Pass the array: numpy.load(path), or with mmap_mode='r' if it is larger than memory.",
    ".npz": "Pass one of its arrays: numpy.load(path)['X'], or scipy.sparse.load_npz(path).",
    ".nc": "Pass xarray.open_dataset(path, chunks={}).",
    ".h5": "Pass one of its arrays: dask.array.from_array(h5py.File(path)['X']).",
    ".h5ad": "Pass the counts and the labels: adata = anndata.read_h5ad(path), adata.X, "
    "adata.obs['label'].",
    ".json": "Pass a dataframe: dask.dataframe.read_json(path); files of JSON lines must end with "
    ".jsonl.",
    ".xlsx": "Pass a frame: pandas.read_excel(path).",
    ".svm": "Pass the result of sklearn.datasets.load_svmlight_file(path).",
    ".libsvm": "Pass the result of sklearn.datasets.load_svmlight_file(path).",
    ".pkl": "Unpickle it first, if you trust it.",
}
