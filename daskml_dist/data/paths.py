"""Files given by path, as Dask collections or as the objects of their library.

The path is passed to fsspec unchanged: a path on this host, or in an object store such as
``s3://``, for which fsspec needs the store's own package.
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

#: Endings of files that are compressed as a whole, and must be read as one block.
_COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst", ".zip"})
#: Maximum number of files listed to find out what a folder holds.
_MAX_LISTED_FILES = 1000
#: Bytes of a block of text; blocks end at line ends.
_TEXT_BLOCK_BYTES = 1 << 25

#: A path, or the paths of files of one kind.
Paths = str | list[str]


def open_listed_paths(X: Any) -> Any:
    """Return, lazily, the rows in files given by a list of paths; other values unchanged.

    For arguments that are rows: a list of labels may look like a list of paths.
    """
    # Documents are recognised by the first text, which is not a path.
    are_paths = (
        isinstance(X, list | tuple)
        and bool(X)
        and all(isinstance(item, str | os.PathLike) and _names_files(item) for item in X)
    )
    return open_path(X) if are_paths else X


def open_path(path: Any) -> Any:
    """Return, lazily, the rows in files given by a path; a text that is no path is unchanged.

    Parameters
    ----------
    path : str or os.PathLike, or list of these
        Path of a file or a folder, or a pattern of files; a list must have one kind of files.

    Returns
    -------
    dask DataFrame, or the contents of a Zarr store

    Raises
    ------
    InvalidDataError
        There are no such files, or they cannot be read.
    """
    is_list = isinstance(path, list | tuple)
    names = [os.fsdecode(item) for item in (path if is_list else [path])]
    endings = {_find_ending(name) for name in names}
    if len(endings) > 1:
        raise InvalidDataError(
            f"X names files of several kinds: {', '.join(sorted(endings))}. Pass files of one kind."
        )
    (ending,) = endings
    if ending not in _READERS:
        return path
    file_names: Paths = names if is_list else names[0]
    try:
        return _READERS[ending](file_names)
    except DaskMLDistError:
        raise
    # Any error of the reader, the file system or the store.
    except Exception as error:
        raise InvalidDataError(
            f"X={file_names!r} could not be read: {error!r}. Check the path and its pattern; a "
            "store such as s3:// needs its fsspec package (s3fs, gcsfs, adlfs), and options go to "
            f"{_OWN_READERS.get(ending, 'the reader itself')}, whose result is passed as X."
        ) from error


def _names_files(path: Any) -> bool:
    """Return whether a text has the ending of a supported file."""
    return _get_ending(os.fsdecode(path)) in _READERS


def _find_ending(name: str) -> str:
    """Return the ending that identifies the file format; for a folder, that of its files."""
    ending = _get_ending(name)
    if ending in _READERS:
        return ending
    # Texts that do not look like a path are not looked up in a file system, which may be remote.
    if "://" not in name and not os.path.isdir(name):
        return ending
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    try:
        files, root = url_to_fs(name)
        if not files.isdir(root):
            return ending
        listed_files = files.find(root)[:_MAX_LISTED_FILES]
    except Exception as error:  # of any store
        raise InvalidDataError(
            f"X={name!r} could not be read: {error!r}. Check the path; a store such as s3:// "
            "needs its fsspec package (s3fs, gcsfs, adlfs)."
        ) from error
    # Only Parquet is spread over folders, with other kinds of files beside it.
    return (
        ".parquet"
        if any(_get_ending(file_name) == ".parquet" for file_name in listed_files)
        else ending
    )


def _get_ending(name: str) -> str:
    """Return the ending of a path in lower case, ignoring a compression suffix."""
    if name.startswith(("http://", "https://")):
        name = urlsplit(name).path  # without a query, whose ? is no pattern
    endings = [suffix.lower() for suffix in PurePosixPath(name.rstrip("/")).suffixes]
    if endings and endings[-1] in _COMPRESSED:
        endings.pop()
    ending = endings[-1] if endings else ""
    return _ALIASES.get(ending, ending)


def _is_compressed(name: str) -> bool:
    """Return whether a path names files that are compressed as a whole."""
    return PurePosixPath(name).suffix.lower() in _COMPRESSED


def make_unread_error(path: Any, name: str) -> InvalidTypeError:
    """Return the error for an argument that is a text, but no path of a supported format."""
    path = os.fspath(path)
    remedy = _REMEDIES.get(
        _get_ending(os.fsdecode(path)),
        f"Read the files first, and pass what the reader returns, such as {name} = "
        f"dask.dataframe.read_parquet({path!r}).",
    )
    return InvalidTypeError(
        f"{name}={path!r} is a string, not rows. Paths that can be read end with "
        f"{', '.join(_READERS)}, or name a folder of Parquet files. {remedy}"
    )


# --- readers ---------------------------------------------------------------------------------


def _read_parquet(names: Paths) -> Any:
    """Return Parquet files as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    return dd.read_parquet(names)


def _find_files_of_folders(names: Paths, ending: str) -> Paths:
    """Return paths in which each folder, as Spark writes, is replaced by its files' pattern."""
    if isinstance(names, list):
        patterns = [_find_files_of_folders(name, ending) for name in names]
        return [name for name in patterns if isinstance(name, str)]
    return os.path.join(names, f"*{ending}*") if os.path.isdir(names) else names


def _choose_text_block(names: Paths) -> int | None:
    """Return the bytes of a block of text; None for compressed files, which are not split."""
    all_names = names if isinstance(names, list) else [names]
    return None if any(map(_is_compressed, all_names)) else _TEXT_BLOCK_BYTES


def _read_csv(names: Paths, ending: str = ".csv", **options: Any) -> Any:
    """Return files of delimited values as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    names = _find_files_of_folders(names, ending)
    # Dask chooses the block size by this machine's memory, unless files cannot be split.
    if _choose_text_block(names) is None:
        options["blocksize"] = None
    return dd.read_csv(names, **options)


def _read_json_lines(names: Paths) -> Any:
    """Return files with one JSON object per line as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    names = _find_files_of_folders(names, ".json")
    # By default Dask makes one block per file, however large.
    return dd.read_json(names, lines=True, blocksize=_choose_text_block(names))


def _read_arrow(names: Paths) -> Any:
    """Return files in Arrow's format as a Dask dataframe, one partition per file."""
    load_pandas()
    from fsspec.core import url_to_fs
    from pyarrow.dataset import dataset

    all_names = names if isinstance(names, list) else [names]
    systems, roots = zip(*map(url_to_fs, all_names), strict=True)
    files, file_names = systems[0], list[str]()
    for root in roots:
        is_pattern = any(mark in root for mark in "*?[")
        file_names += sorted(files.glob(root)) if is_pattern else [root]
    if not file_names:
        raise FileNotFoundError(names)
    # Use pyarrow's local file system if possible: it memory-maps files.
    options = {} if type(files).__name__ == "LocalFileSystem" else {"filesystem": files}
    # A single path may be a folder; paths in a list may not.
    arrow_dataset = dataset(
        file_names if len(file_names) > 1 else file_names[0], format="ipc", **options
    )
    _check_same_columns(arrow_dataset)
    return convert_lazy_table(arrow_dataset)


def _check_same_columns(dataset: Any) -> None:
    """Check that all files have the same columns; pyarrow would fill missing ones with nulls."""
    for fragment in dataset.get_fragments():
        columns = fragment.physical_schema.names
        if sorted(columns) != sorted(dataset.schema.names):
            raise InvalidDataError(
                f"{fragment.path} has the columns {columns}, and the first file "
                f"{dataset.schema.names}. Pass the files of one table."
            )


def _read_zarr(name: Paths) -> Any:
    """Return the array in a Zarr store; a group written by xarray as a Dataset."""
    import zarr

    if isinstance(name, list):
        raise InvalidDataError(
            f"X names {len(name)} Zarr stores. Open and join them: dask.array.concatenate("
            "[dask.array.from_zarr(path) for path in paths]), or xarray.open_mfdataset(paths)."
        )
    store = zarr.open(name, mode="r")
    if hasattr(store, "shape"):
        return store
    remedy = (
        f"{name!r} is a Zarr group of several arrays. Pass the array that holds the rows, "
        f"zarr.open({name!r})['name'], or "
    )
    try:
        import xarray
    except ImportError as error:
        raise InvalidDataError(
            f"{remedy}install xarray, which reads a group as one Dataset."
        ) from error
    try:
        return xarray.open_zarr(name)
    # Arrays whose dimensions have no names.
    except KeyError as error:
        raise InvalidDataError(f"{remedy}write the group with xarray: {error.args[0]}") from error


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
#: Readers that take options, by ending.
_OWN_READERS = {
    ".parquet": "dask.dataframe.read_parquet",
    ".csv": "dask.dataframe.read_csv",
    ".tsv": "dask.dataframe.read_csv",
    ".jsonl": "dask.dataframe.read_json",
    ".arrow": "pyarrow.dataset.dataset",
    ".zarr": "zarr.open",
}
#: Remedies for files in other formats.
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
