"""Files named by their path, as the collections that Dask or their library reads.

The path goes to fsspec as it is: of this host, or of an object store such as ``s3://``, for which
fsspec needs the store's own package.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from daskml_dist.data.eager_tables import load_pandas
from daskml_dist.data.table_scans import convert_lazy_table
from daskml_dist.errors import DaskMLDistError, InvalidDataError, InvalidTypeError

#: Endings of files that are compressed as a whole, and have to be read as one block.
_COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst", ".zip"})
#: Files that are looked at to find out what a folder holds.
_MAX_LISTED_FILES = 1000


def open_path(path: Any) -> Any:
    """Return the rows of the files that a path names, lazily; a text that is no path as it is.

    Parameters
    ----------
    path : str or os.PathLike
        Of a file, a folder, or a pattern of files.

    Returns
    -------
    dask.dataframe.DataFrame, or what a Zarr store holds

    Raises
    ------
    InvalidDataError
        There are no such files, or they cannot be read.
    """
    name = os.fspath(path)
    ending = _find_ending(name)
    if ending not in _READERS:
        return path
    try:
        return _READERS[ending](name)
    except DaskMLDistError:
        raise
    except (OSError, ImportError, ValueError) as error:
        raise InvalidDataError(
            f"X={name!r} could not be read: {error!r}. Check the path and its pattern; a store "
            "such as s3:// needs fsspec's package for it (s3fs, gcsfs, adlfs), and its options "
            f"go to {_OWN_READERS.get(ending, 'the reader itself')}, whose result is passed as X."
        ) from error


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
    except (OSError, ImportError, ValueError) as error:
        raise InvalidDataError(
            f"X={name!r} could not be read: {error!r}. Check the path; a store such as s3:// needs "
            "fsspec's package for it (s3fs, gcsfs, adlfs)."
        ) from error
    # Parquet is the one format that is spread over folders, with files of other kinds beside it.
    return ".parquet" if any(_get_ending(one) == ".parquet" for one in listed) else ending


def _get_ending(name: str) -> str:
    """Return the ending of a path in lower case, without that of a compression."""
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
        _get_ending(path),
        f"Read the files first, and pass what the reader returns, such as {name} = "
        f"dask.dataframe.read_parquet({path!r}).",
    )
    return InvalidTypeError(
        f"{name}={path!r} is a text, and no rows. Paths that are read end with "
        f"{', '.join(_READERS)}, or are of a folder of Parquet files. {told}"
    )


# --- readers ---------------------------------------------------------------------------------


def _read_parquet(name: str) -> Any:
    """Return Parquet files as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    return dd.read_parquet(name)


def _read_csv(name: str, **options: Any) -> Any:
    """Return files of separated values as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    # Of a compressed file no part can be read by itself.
    if _is_compressed(name):
        options["blocksize"] = None
    return dd.read_csv(name, **options)


def _read_json_lines(name: str) -> Any:
    """Return files with a JSON object a line as a Dask dataframe."""
    load_pandas()
    import dask.dataframe as dd

    return dd.read_json(name, lines=True)


def _read_arrow(name: str) -> Any:
    """Return files of Arrow's format as a Dask dataframe, one part a file."""
    load_pandas()
    from fsspec.core import url_to_fs
    from pyarrow.dataset import dataset

    files, root = url_to_fs(name)
    found = sorted(files.glob(root)) if "*" in root else root
    if not found:
        raise FileNotFoundError(name)
    # pyarrow's own file system where there is one: it maps files of this host.
    options = {} if type(files).__name__ == "LocalFileSystem" else {"filesystem": files}
    return convert_lazy_table(dataset(found, format="ipc", **options))


def _read_zarr(name: str) -> Any:
    """Return the array of a Zarr store; a group of xarray's as its Dataset."""
    import zarr

    found = zarr.open(name, mode="r")
    if hasattr(found, "shape"):
        return found
    try:
        import xarray
    except ImportError as error:
        raise InvalidDataError(
            f"{name!r} is a Zarr group of several arrays. Pass the one of the rows, "
            f"zarr.open({name!r})['name'], or install xarray, which reads a group as one Dataset."
        ) from error
    return xarray.open_zarr(name)


#: Other endings of the same formats.
_ALIASES = {
    ".pq": ".parquet", ".parq": ".parquet", ".feather": ".arrow", ".ipc": ".arrow",
    ".ndjson": ".jsonl",
}  # fmt: skip
_READERS: dict[str, Callable[[str], Any]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": lambda name: _read_csv(name, sep="\t"),
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
    ".npy": "Pass the array: numpy.load(path), or with mmap_mode='r' for one beyond memory.",
    ".npz": "Pass an array of it: numpy.load(path)['X'], or scipy.sparse.load_npz(path).",
    ".nc": "Pass xarray.open_dataset(path, chunks={}).",
    ".h5": "Pass an array of it: dask.array.from_array(h5py.File(path)['X']).",
    ".h5ad": "Pass the counts and the labels: adata = anndata.read_h5ad(path), adata.X, "
    "adata.obs['label'].",
    ".json": "Pass a frame: dask.dataframe.read_json(path); lines of JSON end with .jsonl.",
    ".xlsx": "Pass a frame: pandas.read_excel(path).",
    ".svm": "Pass what sklearn.datasets.load_svmlight_file(path) returns.",
    ".libsvm": "Pass what sklearn.datasets.load_svmlight_file(path) returns.",
    ".pkl": "Unpickle it first, if you trust it.",
}
