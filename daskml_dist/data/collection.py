"""Collections: any X, y and sample_weight that users pass, as aligned parts of rows.

Only metadata is computed here: the parts of a Dask collection stay lazy, and become blocks on the
workers that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from numbers import Real
from typing import Any, ClassVar, Literal

import dask.array as da
import numpy as np
from dask.delayed import Delayed, delayed
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.block_errors import (
    DeclaredNumbers,
    call_on_declared_blocks,
    find_declared_numbers,
)
from daskml_dist.data.blocks import Block, make_block
from daskml_dist.data.computing import compute_with_retries
from daskml_dist.data.conversion import (
    RowShape,
    are_device_labels,
    as_column,
    check_unique_names,
    convert_batches,
    convert_foreign,
    copy_to_host,
    describe_target_column,
    find_columns,
    get_column_names,
    take_columns,
)
from daskml_dist.data.lazy import (
    align_partitions,
    is_dask,
    is_dask_frame,
    join_column_chunks,
    join_delayed,
)
from daskml_dist.data.parquet import read_columns
from daskml_dist.data.paths import open_listed_paths
from daskml_dist.data.row_checks import (
    check_holds_rows,
    check_holds_values,
    check_rows,
    check_weight_shape,
    find_row_shape,
    make_unsupported_error,
)
from daskml_dist.data.table_frames import find_row_counts
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.suggestions import suggest_nearest

#: Hint for frames without columns: `dask.dataframe.read_parquet` returns such a frame, without an
#: error, if there are no files.
_NO_FILES_HINT = (
    " If it is read from files, perhaps no file matched the path: check the path and its pattern."
)


@dataclass(frozen=True, eq=False)
class Collection:
    """Aligned parts of rows: of X, of y and of the weights, part by part.

    Parameters
    ----------
    kind : {"memory", "dask"}
        Whether the rows are in this process, or on workers.
    parts : list of (X, y, sample_weight)
        In-memory objects or `dask.delayed.Delayed`, each as an argument of `make_block`; None if
        absent. A "memory" collection has one part with all rows.
    row_shape : tuple of int, or None
        Shape of a row of X; None if Dask does not know it.
    feature_names : ndarray of object, or None
        Column names of a dataframe, if they are strings.
    row_counts : list of int, or None
        Rows of each part; None if Dask does not know them.
    multi_output : bool
        Whether y may have several columns.
    classification : bool
        Whether y holds labels, which are not converted.
    tensors : bool
        Whether a row of X may be an array of any shape and real dtype, which is not converted.
    inputs : tuple of (X, y, sample_weight)
        Objects from which the parts are cut.
    columns : tuple of int, or None
        First column of each part of the columns, and their number, if parts do not hold whole rows:
        `parts` are then all those of the first columns, then of the next, and so on.
    names : tuple of str
        Names of the arguments that X, y and sample_weight came from, for errors.
    """

    kind: Literal["memory", "dask"]
    parts: list[tuple[Any, ...]]
    row_shape: RowShape
    feature_names: NDArray[Any] | None
    row_counts: list[int] | None
    multi_output: bool = False
    classification: bool = False
    tensors: bool = False
    inputs: tuple[Any, ...] = (None, None, None)
    columns: tuple[int, ...] | None = None
    names: tuple[str, str, str] = ("X", "y", "sample_weight")

    @property
    def has_lane_blocks(self) -> bool:
        """Return whether each part is a whole block of one lane, whatever the number of parts."""
        return self.columns is not None

    #: Whether parts in memory are sent unchanged, rather than as X, y and weights of a block.
    travels_in_parts: ClassVar[bool] = False
    #: Whether blocks hold rows, so that the time of a pass can be measured.
    has_timed_rows: ClassVar[bool] = True

    @property
    def bundles(self) -> list[tuple[int, ...]]:
        """Return groups of blocks that one task makes: here, single blocks."""
        return [(i,) for i in range(len(self.parts))]

    @property
    def bundles_at_once(self) -> int | None:
        """Return how many bundles may be made concurrently; None if memory sets no bound."""
        return None

    def find_share(self, block_number: int) -> tuple[int, int] | None:
        """Return which part of the columns a block holds, and the number of parts, or None."""
        # Blocks of whole rows may be made by any worker that holds them.
        if self.columns is None:
            return None
        n_parts = len(self.columns) - 1
        return block_number * n_parts // len(self.parts), n_parts

    @property
    def n_features(self) -> int | None:
        """Return the number of columns of X, if known."""
        return None if self.row_shape is None else self.row_shape[0]

    @property
    def is_weighted(self) -> bool:
        """Return whether rows have weights."""
        return bool(self.parts) and self.parts[0][2] is not None

    @property
    def n_rows(self) -> int | None:
        """Return the number of rows, if known."""
        return None if self.row_counts is None else sum(self.row_counts)

    @property
    def chunk_rows(self) -> list[Any]:
        """Return the rows of each part as chunks of an array, NaN if Dask does not know them."""
        return self.row_counts or [np.nan] * len(self.parts)

    @property
    def nbytes(self) -> list[float] | None:
        """Return the maximum bytes of each part's block; None if row counts are unknown."""
        if self.row_counts is None or self.row_shape is None:
            return None
        # As float64, the widest dtype of dense rows; sparse rows take less.
        widths = [math.prod(self.row_shape)]
        if self.columns is not None:
            widths = np.diff(self.columns).tolist()
        y = self.inputs[1]
        n_targets = y.shape[1] if getattr(y, "ndim", 1) == 2 else 1
        # Plus the targets and a weight.
        row_sizes = [8.0 * (width + n_targets + 1) for width in widths]
        return [size * count for size in row_sizes for count in self.row_counts]

    @property
    def block_maker(self) -> Callable[..., Block]:
        """Return :func:`make_block` for parts of this collection; picklable, contains no rows."""
        # For Dask, the shape of a block is only declared until it is computed, so each block is
        # compared with the declaration. Rows in memory show their shape, and a stream uses this
        # function for blocks of other rows.
        is_declared = self.kind == "dask" and self.columns is None
        make = partial(
            make_block,
            classification=self.classification,
            multi_output=self.multi_output,
            tensors=self.tensors,
            row_shape=self.row_shape if is_declared else None,
        )
        return partial(_make_declared_block, self.declared_numbers, make) if is_declared else make

    @property
    def declared_numbers(self) -> tuple[DeclaredNumbers | None, ...]:
        """Return what Dask's metadata declares of numbers in X, y and sample_weight, or None."""
        return tuple(map(find_declared_numbers, self.inputs, self.names))

    def delayed_blocks(self, dtype: str | None = None) -> list[Any]:
        """Make lazy blocks, one for each part."""
        # pure=False: a new key per call, without hashing data.
        make = delayed(self.block_maker, pure=False)
        # `read_columns` reads a Parquet file to one array of one dtype; for tensors every column
        # keeps its dtype.
        parts = self.parts if self.tensors else read_columns(self.parts)
        return [make(index, *part, dtype=dtype) for index, part in enumerate(parts)]


def _make_declared_block(
    declared: tuple[DeclaredNumbers | None, ...], build_block: Callable[..., Block], index: int,
    X: Any, y: Any = None, sample_weight: Any = None, **options: Any,
) -> Block:  # fmt: skip
    """Make a block; if that fails, raise the error of a part that contradicts Dask's metadata."""
    parts = (X, y, sample_weight)
    block: Block = call_on_declared_blocks(
        declared, parts, index, partial(build_block, index, *parts, **options)
    )
    return block


def as_collection(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    numeric: bool = True,
    multi_output: bool = False,
    classification: bool = False,
    tensors: bool = False,
    any_shape: bool = False,
    labels_stay: bool = False,
) -> Collection:
    """Align X, y and sample_weight by rows, without computing data.

    `labels_stay`: labels on a GPU stay there.
    """
    try:
        X = check_rows(X, numeric=numeric, tensors=tensors, any_shape=any_shape)
    except InvalidDataError as error:
        # A frame may still hold its target as words: then the error mentions this too.
        error.args = (f"{error}{describe_target_column(X, y)}",)
        raise
    # For splits of rows, y is cut like X, whatever its dimensions.
    if any_shape and multi_output and y is not None:
        y = join_column_chunks(check_rows(y, numeric=False, any_shape=True))
    else:
        y = _check_column(y, "y", multi_output=multi_output, labels_stay=labels_stay)
    inputs = {
        "X": join_column_chunks(X),
        "y": y,
        "sample_weight": _check_column(sample_weight, "sample_weight"),
    }
    # Check metadata before any row is read.
    n_rows = check_equal_lengths(inputs)
    shape = find_row_shape(X) if not any_shape else None
    _check_not_empty(n_rows, shape)
    # One lazy input makes all lazy: inputs in memory are cut to its blocks and sent with them.
    if any(map(is_dask, inputs.values())):
        row_counts, parts = cut_into_blocks(inputs)
        _check_not_empty(len(parts), shape)
        kind: Literal["memory", "dask"] = "dask"
    else:
        kind, row_counts, parts = "memory", [int(X.shape[0])], [tuple(inputs.values())]
    return Collection(
        kind=kind,
        parts=parts,
        row_shape=shape,
        feature_names=None if any_shape else _find_feature_names(X),
        row_counts=row_counts,
        multi_output=multi_output,
        classification=classification,
        tensors=tensors,
        inputs=(X, inputs["y"], inputs["sample_weight"]),
    )


def take_named_columns(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Extract the target and the weights from named columns, if they are given by name."""
    X, y, sample_weight = convert_batches(open_listed_paths(X), y, sample_weight)
    X, y, sample_weight = convert_foreign(X, y, sample_weight)
    check_holds_rows(X)
    # From here on, lists of delayed blocks are Dask Arrays with unknown chunk sizes.
    X, y, sample_weight = join_delayed(X, 2), join_delayed(y, 1), join_delayed(sample_weight, 1)
    check_unique_names(X)
    if y is not None:
        check_holds_values(y, "y")
        _check_not_swapped(X, y)
    values_by_name = {"y": y, "sample_weight": sample_weight}
    # A string is a column name, as in formulas and scikit-learn's column selectors.
    named = {name: column for name, column in values_by_name.items() if isinstance(column, str)}
    columns = find_columns(X)
    for name, column in named.items():
        if column not in (columns or ()):
            _check_has_columns(X, f"{name}={column!r}")
            columns_hint = (
                f"its columns are {columns}. Earlier steps of a pipeline may have dropped some"
                if columns is not None
                else "X is not a dataframe here; steps of a pipeline may have made it an array"
            ) + f": take the column out before, {name} = X.pop({column!r})"
            # A frequent mistake, with its own remedy.
            if name == "sample_weight" and column == "balanced":
                raise InvalidDataError(
                    "sample_weight='balanced' names no column of X. To weight classes, pass "
                    "class_weight='balanced' to the constructor."
                )
            raise InvalidDataError(
                f"{name}={column!r} names no column of X: {columns_hint}. Name a column of a "
                f"dataframe, or pass the values themselves.{suggest_nearest(column, columns or ())}"
            )
        values_by_name[name] = take_columns(X, column)
    # A column used as target or weight is not a feature.
    taken_names = set(named.values())
    if _names_columns(y, X):
        values_by_name["y"], taken_names = take_columns(X, list(y)), taken_names | set(y)
    if taken_names:
        X = take_columns(X, [column for column in columns or () if column not in taken_names])
    return X, values_by_name["y"], values_by_name["sample_weight"]


def _check_has_columns(X: Any, argument: str) -> None:
    """Raise `InvalidDataError` for a frame without columns, which Dask makes without files."""
    if is_dataframe_like(X) and not len(X.columns):
        raise InvalidDataError(
            f"{argument} names no column of X, which has no columns.{_NO_FILES_HINT}"
        )


def _check_not_swapped(X: Any, y: Any) -> None:
    """Check, by their dimensions, that X and y are not passed in the order (y, X)."""
    if _count_dimensions(X) != 1 or _count_dimensions(y) != 2:
        return
    raise InvalidDataError(
        "Expected 2D array, got 1D array instead for X, and a 2D array for y: they are swapped. "
        "Pass the rows first and then the target, fit(X, y)."
    )


def _count_dimensions(values: Any) -> int | None:
    """Return the dimensions of numbers, of a list by its first entry; None for texts."""
    if isinstance(values, list | tuple):
        first = values[0] if values else ""
        return 2 if isinstance(first, list | tuple) else 1 if isinstance(first, Real) else None
    kind = getattr(getattr(values, "dtype", None), "kind", "f")
    return getattr(values, "ndim", None) if kind in "biuf" else None


def _names_columns(y: Any, X: Any) -> bool:
    """Return whether y names columns of X rather than holding labels."""
    if not (isinstance(y, list | tuple) and y and all(isinstance(name, str) for name in y)):
        return False
    # A list of as many strings as rows is more likely the labels.
    columns = find_columns(X)
    if columns is None or (not is_dask(X) and len(X) == len(y)):
        return False
    _check_has_columns(X, f"y={list(y)!r}")
    # All are names: columns. None is: labels. Some are: probably a typing error.
    unknown = [name for name in y if name not in columns]
    if unknown and len(unknown) < len(y):
        raise InvalidDataError(
            f"y={list(y)!r} names {unknown}, which are not columns of X: its columns are "
            f"{columns}. Name columns of the dataframe, or pass the values themselves."
        )
    return not unknown


def _find_feature_names(X: Any) -> NDArray[Any] | None:
    """Return the column names of X if they are strings; raise if only some are."""
    if not is_dataframe_like(X):
        return get_column_names(X)
    names = list(X.columns)
    # As in scikit-learn: names are used if all are strings, and a mixture is an error.
    are_strings = [isinstance(name, str) for name in names]
    if any(are_strings) and not all(are_strings):
        raise InvalidTypeError(
            "Feature names are only supported if all input features have string names. Convert "
            "them: X.columns = X.columns.astype(str)."
        )
    return np.asarray(names, dtype=object) if all(are_strings) else None


# --- y and sample_weight ---------------------------------------------------------------------


def _check_column(
    values: Any, name: str, multi_output: bool = False, labels_stay: bool = False
) -> Any:
    """Return y or sample_weight as one column; None and a single number stay as they are."""
    if values is None:
        return None
    values = convert_foreign(values)
    check_holds_values(values, name, single=name == "sample_weight")
    values = join_delayed(values, 1)
    if name == "sample_weight":
        if isinstance(values, Real):
            return float(values)
        check_weight_shape(values)
    if is_dask(values):
        return _check_dask_column(values, name, multi_output)
    if labels_stay and are_device_labels(values):
        return values
    return as_column(values, name=name, multi_output=multi_output)


def _check_dask_column(values: Any, name: str, multi_output: bool) -> Any:
    """Return a Dask collection of one column, or of `multi_output` if allowed."""
    if is_dask_frame(values):
        if is_series_like(values):
            return values
        shape: tuple[Any, ...] = ("n_rows", len(values.columns))
        if multi_output:
            return values
        if len(values.columns) == 1:
            return values[values.columns[0]]
    elif isinstance(values, da.Array):
        shape = values.shape
        if values.ndim == 1:
            return values
        if values.ndim == 2 and multi_output:
            return join_column_chunks(values)
        if values.ndim == 2 and shape[1] == 1:
            return values[:, 0]
    else:
        raise make_unsupported_error(values, name)
    raise InvalidDataError(
        f"{name} should be a 1d array, got an array of shape {shape} instead. Pass one column, "
        f"for example {name}[:, 0]."
    )


def _check_not_empty(n_rows: int | None, of_row: RowShape) -> None:
    """Raise `InvalidDataError` if there are known to be no rows or no columns."""
    shape = (n_rows, *((None,) if of_row is None else of_row))
    if n_rows == 0:
        raise InvalidDataError(
            f"Found array with 0 sample(s) (shape={shape}) while a minimum of 1 is required. "
            "Check the files or the filter that X comes from."
        )
    if of_row is not None and 0 in of_row:
        raise InvalidDataError(
            f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is required. "
            f"Select at least one column of X.{_NO_FILES_HINT}"
        )


def find_length(value: Any) -> int | None:
    """Return the number of rows of an input; None if it has none or Dask does not know."""
    if value is None or np.isscalar(value) or is_dask_frame(value):
        return None
    n_rows = value.shape[0] if hasattr(value, "shape") else len(value)
    return None if np.isnan(n_rows) else int(n_rows)


def check_equal_lengths(inputs: dict[str, Any]) -> int | None:
    """Return the number of rows, if any input knows it; raise if inputs differ."""
    known_lengths = {
        name: n for name, value in inputs.items() if (n := find_length(value)) is not None
    }
    check_same_length(known_lengths)
    return next(iter(known_lengths.values()), None)


def check_same_length(lengths: dict[str, int], unit: str = "rows") -> None:
    """Raise if inputs have different numbers of rows (or of another `unit`)."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise InvalidDataError(
            f"Found input variables with inconsistent numbers of samples: {counts} {unit}. Pass "
            "the same rows in each, in the same order."
        )


def _find_known_chunks(value: Any) -> tuple[int, ...] | None:
    """Return the row chunks of a Dask Array; None if it does not know them."""
    chunks: tuple[int, ...] | None = value.chunks[0] if isinstance(value, da.Array) else None
    return None if chunks is None or np.isnan(chunks).any() else chunks


def count_blocks(value: Any) -> int:
    """Return the number of blocks of rows of a Dask collection."""
    return int(value.npartitions if is_dask_frame(value) else value.numblocks[0])


def _find_row_counts(inputs: dict[str, Any]) -> list[int] | None:
    """Return the rows of each block of the first lazy input, if any input knows them."""
    lazy = [value for value in inputs.values() if is_dask(value)]
    known_row_counts = [rows for value in lazy if (rows := _find_known_rows(value)) is not None]
    n_blocks = count_blocks(lazy[0])
    return next(([*map(int, rows)] for rows in known_row_counts if len(rows) == n_blocks), None)


def _find_known_rows(value: Any) -> Sequence[int] | None:
    """Return the rows of each block of a Dask collection; None if it does not know them."""
    return find_row_counts(value) if is_dask_frame(value) else _find_known_chunks(value)


def cut_into_blocks(inputs: dict[str, Any]) -> tuple[list[int] | None, list[tuple[Any, Any, Any]]]:
    """Cut inputs into blocks: lazy pieces of Dask collections, slices of inputs in memory.

    If inputs must be sliced, the rows of blocks of unknown sizes are counted, in one pass.
    """
    row_counts = _find_row_counts(inputs)
    lazy = {name: value for name, value in inputs.items() if is_dask(value)}
    # Arrays of known sizes are rechunked like the first input, if their chunks differ.
    if row_counts is not None:
        lazy = {name: _rechunk_rows(value, tuple(row_counts)) for name, value in lazy.items()}
    scalars = [name for name, v in inputs.items() if v is None or isinstance(v, float)]
    in_memory = [name for name in inputs if name not in lazy and name not in scalars]
    # Lazy inputs are lowered together, so that X and y come out of the same shuffles and reads;
    # lowered separately, an unordered shuffle could give them different row orders.
    pieces: dict[str, list[Any]] = dict(align_partitions(lazy, in_memory))
    first = next(iter(pieces))
    # Inputs in memory can be sliced only by known row counts, which need a pass over the data.
    if in_memory and row_counts is None:
        row_counts = _count_rows_of_pieces(pieces[first])
        check_same_length(
            {
                first: sum(row_counts),
                **{name: count_rows_of_block(inputs[name]) for name in in_memory},
            }
        )
    pieces.update({name: [inputs[name]] * len(pieces[first]) for name in scalars})
    pieces.update({name: slice_rows(inputs[name], row_counts or []) for name in in_memory})
    return row_counts, list(zip(*(pieces[name] for name in inputs), strict=True))


def _count_rows_of_pieces(pieces: list[Any]) -> list[int]:
    """Compute and return the number of rows of each lazy piece."""
    count = delayed(count_rows_of_block, pure=False)
    row_counts: list[int] = compute_with_retries(
        lambda _: delayed(list, pure=False)([count(piece) for piece in pieces])
    )
    return row_counts


def count_rows_of_block(block: Any) -> int:
    """Return the number of rows of an array, frame, sparse matrix or list in memory."""
    return int(block.shape[0]) if hasattr(block, "shape") else len(block)


def join_lazy_blocks(block_results: Sequence[Delayed], rows: Collection, sample: Any) -> da.Array:
    """Join lazy results for the blocks of a collection; `sample` is a small example of a result."""
    meta = sample[:0] if sparse.issparse(sample) else np.asarray(sample)[:0]
    array: da.Array = da.concatenate(
        [
            da.from_delayed(piece, (n, *meta.shape[1:]), dtype=meta.dtype, meta=meta)
            for piece, n in zip(block_results, rows.chunk_rows, strict=True)
        ]
    )
    return array


def _rechunk_rows(value: Any, row_counts: tuple[int, ...]) -> Any:
    """Return a Dask Array cut into these row chunks, if it knows its own."""
    chunks = _find_known_chunks(value)
    return value if chunks is None or chunks == row_counts else value.rechunk({0: row_counts})


def slice_rows(value: Any, row_counts: list[int]) -> list[Any]:
    """Return slices of an input in memory, for blocks of these numbers of rows."""
    value = copy_to_host(value)  # since it is sent to workers
    rows = value.iloc if hasattr(value, "iloc") else value
    stops = list(accumulate(row_counts))
    return [rows[stop - n : stop] for n, stop in zip(row_counts, stops, strict=True)]


#: A cut moves to a chunk edge closer than this share of a part: parts are then at most 50 % wider
#: than even ones, and no chunk is sliced and sent in two.
_SNAP_SHARE = 0.25


def cut_by_columns(collection: Collection, n_parts: int) -> Collection:
    """Cut rows by columns; each part also gets y and the weights.

    Chunks of a Dask Array with exactly the columns of a part are kept, on their workers.
    """
    X, y, weight = collection.inputs
    n_features = _find_column_count(collection)
    if n_parts > n_features:
        raise InvalidParameterError(
            f'shard="features" with {n_parts} lanes, but X has only {n_features} columns. Use '
            f'Run(n_lanes={n_features}) at most, or shard="rows".'
        )
    # Every part gets y and the weights, so that each lane can compute the loss of all rows.
    bounds = _choose_column_bounds(X, n_features, n_parts)
    parts = [
        as_collection(
            _take_column_range(X, start, stop),
            y,
            weight,
            multi_output=collection.multi_output,
            classification=collection.classification,
        ).parts
        for start, stop in pairwise(bounds)
    ]
    return replace(
        collection, parts=[part for column_parts in parts for part in column_parts], columns=bounds
    )


def _find_column_count(collection: Collection) -> int:
    """Return the number of columns of X; raise if they cannot be cut."""
    if any(map(is_dask_frame, collection.inputs)):
        raise InvalidDataError(
            'shard="features" splits X by columns, and may read a dataframe once for each part, '
            "each time in another order of rows. Give Dask Arrays: "
            "X.to_dask_array(lengths=True), and y likewise."
        )
    n_features = collection.n_features
    if n_features is None or len(collection.row_shape or ()) != 1:
        raise InvalidDataError(
            'shard="features" needs to know the number of columns of X, which is '
            f"{collection.row_shape}. Give a Dask Array that knows it, such as "
            "da.from_delayed(block, shape=(n_rows, n_columns), dtype=float)."
        )
    return n_features


def _choose_column_bounds(X: Any, n_features: int, n_parts: int) -> tuple[int, ...]:
    """Return the bounds of the parts of the columns, moved to chunk edges that are near."""
    # Even bounds, unless a chunk of a Dask Array ends nearby: a whole chunk need not be moved.
    even_bounds = [n_features * part // n_parts for part in range(n_parts + 1)]
    if not isinstance(X, da.Array):
        return tuple(even_bounds)
    edges = np.cumsum([0, *X.chunks[1]])
    nearest_edges = [int(edges[np.abs(edges - cut).argmin()]) for cut in even_bounds]
    max_move = _SNAP_SHARE * n_features / n_parts
    return tuple(
        edge if abs(edge - cut) <= max_move else cut
        for cut, edge in zip(even_bounds, nearest_edges, strict=True)
    )


def _take_column_range(X: Any, start: int, stop: int) -> Any:
    """Return columns `start` to `stop` of X, as whole chunks if the bounds are chunk edges."""
    if is_dataframe_like(X):
        return X.iloc[:, start:stop]
    if isinstance(X, da.Array):
        edges = np.cumsum([0, *X.chunks[1]])
        # Whole chunks keep their tasks; slicing would add a task for each.
        first_chunk, stop_chunk = np.searchsorted(edges, [start, stop]).tolist()
        if edges[first_chunk] == start and edges[stop_chunk] == stop:
            return X.blocks[:, first_chunk:stop_chunk]
        return X[:, start:stop]
    return (X.tocsr() if hasattr(X, "tocsr") else X)[:, start:stop]
