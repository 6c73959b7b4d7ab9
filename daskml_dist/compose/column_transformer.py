"""`ColumnTransformer` and `make_column_transformer`: a transformer for each group of columns.

`ColumnTransformer._passes` fits all transformers at the same time: each is a generator that yields
reductions over the rows; these generators run in lock-step and share each pass. Then scikit-learn's
class, with the fitted transformers frozen, is fitted to the first rows, which sets its other
attributes. Its own `transform` joins the transformers' results for each block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
from dask.utils import is_dataframe_like
from scipy import sparse
from sklearn import compose
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from daskml_dist.compose.blockwise import Blockwise
from daskml_dist.data.collection import as_collection
from daskml_dist.data.computing import get_computing_client
from daskml_dist.data.conversion import (
    convert_missing_to_nan,
    convert_named_columns,
    convert_to_host,
    load_pandas,
    restore_chunk_sizes,
)
from daskml_dist.data.lazy import is_dask, join_delayed
from daskml_dist.data.reduce import PassGenerator, ReductionPass, run_computation, run_in_lock_step
from daskml_dist.data.row_checks import check_row_shape, find_row_shape, make_no_rows_error
from daskml_dist.diagnostics.operation_progress import report_phase, report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_parameter_errors
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.estimators.transformer import BlockTransformer, fit_in_passes

#: Largest number of rows of the first block to which scikit-learn's class is fitted: from their
#: share of zeros it decides whether results are dense or sparse.
_N_FIRST_ROWS = 1000


class _MetadataRouting(BlockTransformer):
    """Base class whose ``transform`` accepts the metadata that scikit-learn routes."""

    def transform(self, X: Any, **params: Any) -> Any:
        """Transform rows; lazily, block by block, for a Dask collection.

        Parameters
        ----------
        X : pandas.DataFrame, array-like, dask DataFrame or dask Array
        **params
            Metadata for the transformers; only for rows in memory.

        Returns
        -------
        array, CSR matrix, pandas.DataFrame, dask Array or dask DataFrame
        """
        _check_no_metadata(X, params)
        return self._transformed(X, **params)


class ColumnTransformer(_MetadataRouting, compose.ColumnTransformer):
    """Transformer that applies transformers to groups of columns; supports Dask collections.

    As :class:`sklearn.compose.ColumnTransformer`. All transformers are fitted in the same passes
    over the rows, one for each step of the longest pipeline among them. One task transforms a block
    with all transformers, and scikit-learn joins their results.

    Parameters
    ----------
    transformers : list of (name, transformer, columns)
        Transformers of daskml_dist, "drop", "passthrough", stateless ones of scikit-learn, or
        pipelines of these.
    remainder : {"drop", "passthrough"} or estimator, default="drop"
    sparse_threshold : float, default=0.3
        The result is sparse if less than this share of the entries of the first 1000 transformed
        rows is nonzero.
    n_jobs : int, default=None
        Only for rows in memory.
    transformer_weights : dict, default=None
    verbose : bool or int, default=False
        True shows how many blocks the transformers have read.
    verbose_feature_names_out : bool, str or callable, default=True

    Attributes
    ----------
    transformers_ : list of (name, fitted transformer, columns)
    sparse_output_ : bool
    output_indices_ : dict of str to slice
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.compose import ColumnTransformer
    >>> from daskml_dist.preprocessing import OneHotEncoder, StandardScaler
    >>> frame = pd.DataFrame({'age': [20.0, 40.0], 'job': ['clerk', 'nurse']})
    >>> prepare = ColumnTransformer(
    ...     [('numbers', StandardScaler(), ['age']), ('jobs', OneHotEncoder(), ['job'])]
    ... )
    >>> prepare.fit_transform(frame)
    array([[-1.,  1.,  0.],
           [ 1.,  0.,  1.]])
    >>> prepare.get_feature_names_out().tolist()
    ['numbers__age', 'jobs__job_clerk', 'jobs__job_nurse']
    """

    _numeric: ClassVar[bool] = False
    _by_place: ClassVar[bool] = False  # columns are selected by name, and transformers see dtypes

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit all transformers.

        Parameters
        ----------
        X : pandas.DataFrame, array-like, dask DataFrame or dask Array
            Of shape (n_rows, n_features).
        y : array-like, dask Array or dask Series of shape (n_rows,), or None
        **params
            Metadata for the transformers; only for rows in memory, if scikit-learn's
            ``enable_metadata_routing`` is set.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            A transformer does not support Dask collections, or names or columns are invalid.
        """
        X, y = convert_named_columns(*convert_to_host(X, y))
        if not is_dask(X):
            compose.ColumnTransformer.fit(self, X, y, **params)
            return self
        _check_no_metadata(X, params)
        with report_reading(type(self).__name__, self.verbose):
            run_computation(self._passes(X, y))
        return self

    def _passes(self, X: Any, y: Any = None, sample_weight: Any = None) -> PassGenerator[None]:
        """Fit all transformers at the same time, so that they share each pass over the rows."""
        malformed = [
            entry
            for entry in self.transformers
            if not isinstance(entry, tuple | list) or len(entry) != 3
        ]
        if malformed:
            raise InvalidParameterError(
                f"transformers holds {malformed[0]!r}: each must be (name, transformer, "
                'columns), such as ("age", StandardScaler(), ["age"]); make_column_transformer '
                "generates the names."
            )
        self._check_parameters()
        X, y = convert_named_columns(X, y)
        report_phase("reading the first rows")
        # Callables select columns of these rows, and the share of zeros in their results decides
        # whether all results are sparse.
        rows = yield from _read_first_rows(X)
        X = join_delayed(X, 2, rows.shape[1])
        fitted = yield from self._fit_transformers(X, rows, y)
        if hasattr(self, "_sklearn_output_config"):
            fitted.set_output(transform=self._sklearn_output_config.get("transform"))
        # All other attributes come from a fit of scikit-learn's class to the first rows; the
        # transformers are frozen, so they are not fitted again.
        compose.ColumnTransformer.fit(fitted, rows)
        # The parameters are not updated: they must stay as given, neither fitted nor frozen.
        params = self.get_params(deep=False)
        self.__dict__.update({k: v for k, v in vars(fitted).items() if k not in params})
        self.transformers_ = [
            (name, part.estimator if isinstance(part, FrozenEstimator) else part, columns)
            for name, part, columns in fitted.transformers_
        ]
        self._keep(rows)

    def _fit_transformers(
        self, X: Any, rows: Any, y: Any
    ) -> PassGenerator[compose.ColumnTransformer]:
        """Return an unfitted copy with transformers that are fitted to X and frozen.

        `rows` are the first rows of X.
        """
        columns_of_parts = [c(rows) if callable(c) else c for _, _, c in self.transformers]
        # The remainder gets the columns that no transformer uses.
        used = {
            position for columns in columns_of_parts for position in _find_positions(rows, columns)
        }
        unused = [position for position in range(rows.shape[1]) if position not in used]
        parts = [part for _, part, _ in self.transformers]
        report_phase(f"fitting {len(parts)} transformers")
        *fitted, remainder = yield from run_in_lock_step(
            self._fit_transformer(part, X, rows, columns, y)
            for part, columns in zip(
                [*parts, self.remainder], [*columns_of_parts, unused], strict=True
            )
        )
        frozen = [
            (name, part, columns)
            for part, (name, _, columns) in zip(fitted, self.transformers, strict=True)
        ]
        return clone(self).set_params(transformers=frozen, remainder=remainder)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        with translate_parameter_errors():
            self._validate_transformers()

    def _fit_transformer(
        self, transformer: Any, X: Any, rows: Any, columns: Any, y: Any
    ) -> PassGenerator[Any]:
        """Return a transformer fitted to its columns, and frozen so that no fit changes it."""
        # "drop", "passthrough" and transformers without columns: scikit-learn does not fit them
        # either.
        if isinstance(transformer, str) or not len(_find_positions(rows, columns)):
            return transformer
        fitted = clone(transformer)
        if _fits_collections(fitted):
            yield from fit_in_passes(fitted, _select_columns(X, columns), y)
        elif not get_tags(fitted).requires_fit:
            # A stateless one of scikit-learn learns at most the column names, so any rows suffice.
            fitted.fit(_select_columns(rows, columns))
        else:
            name = type(transformer).__name__
            raise InvalidParameterError(
                f"{name} of {type(transformer).__module__} cannot be fitted to a Dask "
                f"collection. Use the {name} of daskml_dist if there is one, or fit it on a "
                "sample and pass Blockwise(fitted)."
            )
        return FrozenEstimator(fitted)

    def _keep(self, X: Any) -> None:
        """Store the first row, from which samples for lazy results are made."""
        super()._keep(X)
        # A row of the data: transformers may refuse a made-up row, for example for unknown
        # categories.
        row = copy.copy(X[:1])
        if is_dataframe_like(X):  # as plain values, so that model files do not need pandas
            dtypes = row.dtypes.astype(str)
            used = {
                row.columns[position]
                for _, part, columns in self.transformers_
                if not (isinstance(part, str) and part == "drop")
                for position in _find_positions(row, columns)
            }
            row = {
                name: _make_plain_value(row[name].iloc[0], dtypes[name], name in used)
                for name in row.columns
            }
        self._first_row = row

    def _transformed(self, X: Any, **options: Any) -> Any:
        X = convert_to_host(X)
        return restore_chunk_sizes(super()._transformed(convert_named_columns(X), **options), X)

    def _match_names(self, X: Any) -> Any:
        """Return a copy: scikit-learn accepts frames with more columns, or in another order."""
        if not (hasattr(X, "columns") and hasattr(self, "feature_names_in_")):
            check_row_shape(find_row_shape(X), (self.n_features_in_,), type(self).__name__)
        return copy.copy(self)

    def _sample(self, X: Any) -> Any:
        """Return the first row of the fit, with the columns of X in the order of X."""
        row, pandas = self._first_row, load_pandas()
        if isinstance(row, dict):
            row = pandas.DataFrame(
                {n: pandas.Series([v], dtype=_parse_dtype(d)) for n, (v, d) in row.items()}
            )
            # NaN in columns that were not in the fit; no transformer uses them.
            return row.reindex(columns=X.columns) if hasattr(X, "columns") else np.asarray(row)
        row = row.toarray() if sparse.issparse(row) else np.asarray(row)
        return pandas.DataFrame(row, columns=X.columns) if hasattr(X, "columns") else row

    def _find_meta(self, function: Callable[[Any], Any], X: Any) -> Any:
        row = self._sample(X)
        try:  # columns that are passed through or scaled have the dtypes of X, not of the fit
            return function(_convert_like(row, X._meta))
        except (ValueError, TypeError):
            if sparse.issparse(X._meta):
                raise
            return function(row)  # for instance if an encoder does not know the converted value


def _convert_like(row: Any, meta: Any) -> Any:
    """Return a row with the dtypes and the kind of matrix of an empty collection."""
    if not is_dataframe_like(row):
        row = row.astype(meta.dtype)
        return type(meta)(row) if sparse.issparse(meta) else row
    if not row.columns.is_unique:
        return row  # the transformer raises the error of repeated names
    pandas, columns = load_pandas(), {}
    for name, column in row.items():
        dtype = meta[name].dtype
        if isinstance(dtype, pandas.CategoricalDtype):  # with the row's value, which encoders know
            values = pandas.Index(column.dropna()).difference(dtype.categories)
            dtype = pandas.CategoricalDtype([*dtype.categories, *values], dtype.ordered)
        columns[name] = column.astype(dtype)
    return pandas.DataFrame(columns)


#: Classes of values that model files hold as they are.
_SAVED_VALUES = (str, bytes, int, float, complex, np.number, np.bool)


def _make_plain_value(value: Any, dtype: str, is_used: bool) -> tuple[Any, str]:
    """Return a value of a frame, and its dtype's name, as model files can hold them.

    `is_used`: some transformer reads the column.
    """
    if type(value).__name__ in ("NaTType", "NAType"):
        return None, dtype
    # Dates, spans, decimals: of a column that is dropped nobody asks for the value.
    if not is_used and not isinstance(value, _SAVED_VALUES):
        return None, "object"
    # From the texts of dates and spans of time pandas makes the same values.
    is_time = type(value).__name__ in ("Timestamp", "Timedelta", "Period")
    return (str(value) if is_time else value), dtype


def _parse_dtype(name: str) -> Any:
    """Return the dtype with a name."""
    if not name.startswith("Sparse["):
        return name
    # pandas does not parse the fill value of a sparse dtype, as in "Sparse[float64, 0]".
    subtype, _, fill = name[len("Sparse[") : -1].partition(", ")
    value = fill == "True" if subtype == "bool" else np.dtype(subtype).type(fill)
    return load_pandas().SparseDtype(subtype, value)


def _check_no_metadata(X: Any, params: dict[str, Any]) -> None:
    """Raise an error if metadata is given with a Dask collection."""
    if params and is_dask(X):
        raise InvalidParameterError(
            f"{', '.join(params)}: ColumnTransformer only routes metadata for rows in memory. "
            "Leave it out, or fit the transformers that need it separately."
        )


@suggest_arguments
def make_column_transformer(
    *transformers: Any,
    remainder: Any = "drop",
    sparse_threshold: float = 0.3,
    n_jobs: int | None = None,
    verbose: bool = False,
    verbose_feature_names_out: Any = True,
) -> ColumnTransformer:
    """Make a :class:`ColumnTransformer` whose transformers are named after their classes.

    Parameters
    ----------
    *transformers : (transformer, columns)
    remainder, sparse_threshold, n_jobs, verbose, verbose_feature_names_out
        As in :class:`ColumnTransformer`.

    Returns
    -------
    ColumnTransformer

    Raises
    ------
    InvalidParameterError
        An argument is not a pair of a transformer and its columns, in this order.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.compose import make_column_transformer
    >>> from daskml_dist.preprocessing import OneHotEncoder, StandardScaler
    >>> frame = pd.DataFrame({'age': [20.0, 40.0], 'job': ['clerk', 'nurse']})
    >>> prepare = make_column_transformer((StandardScaler(), ['age']), (OneHotEncoder(), ['job']))
    >>> prepare.fit_transform(frame)
    array([[-1.,  1.,  0.],
           [ 1.,  0.,  1.]])
    """
    for pair in transformers:
        _check_pair(pair)
    named = compose.make_column_transformer(*transformers).transformers
    return ColumnTransformer(
        named,
        remainder=remainder,
        sparse_threshold=sparse_threshold,
        n_jobs=n_jobs,
        verbose=verbose,
        verbose_feature_names_out=verbose_feature_names_out,
    )


def _check_pair(argument: Any) -> None:
    """Raise an error unless an argument of `make_column_transformer` is (transformer, columns)."""
    is_pair = isinstance(argument, tuple | list) and len(argument) == 2
    if is_pair and (isinstance(argument[0], str) or hasattr(argument[0], "fit")):
        if argument[0] in ("drop", "passthrough") or not hasattr(argument[1], "fit"):
            return
    hint = "the transformer comes first: " if is_pair else ""
    raise InvalidParameterError(
        f"{argument!r}: {hint}give (transformer, columns), such as (StandardScaler(), ['age'])."
    )


def _fits_collections(transformer: Any) -> bool:
    """Return whether a transformer, or each step of a pipeline, can be fitted to Dask rows."""
    if isinstance(transformer, Pipeline):
        return all(
            step == "passthrough" or _fits_collections(step) for _, step in transformer.steps
        )
    return isinstance(transformer, BlockTransformer | Blockwise)


def _read_first_rows(X: Any) -> PassGenerator[Any]:
    """Return the first rows of the first block that is not empty."""
    get_computing_client()  # raises for an asynchronous client
    collection = as_collection(X, numeric=False)
    # Read the blocks one after the other, until one is not empty.
    for part in collection.parts:
        (rows,) = yield [
            ReductionPass(replace(collection, parts=[part]), _take_first_rows, itemgetter(0))
        ]
        if rows.shape[0]:
            return rows
    raise make_no_rows_error()


def _take_first_rows(index: int, X: Any, y: Any, sample_weight: Any) -> Any:
    """Return the first rows of a block."""
    return convert_missing_to_nan(X[:_N_FIRST_ROWS])


# --- columns ---------------------------------------------------------------------------------


def _find_positions(rows: Any, columns: Any) -> list[int]:
    """Return the positions of columns that are given as names, numbers, slices or masks."""
    positions = np.arange(rows.shape[1])
    try:
        if not is_dataframe_like(rows):
            # An index that selects columns of an array selects the same entries of `positions`.
            return list(np.atleast_1d(positions[columns]))
        return _find_positions_in_frame(positions, rows, columns)
    except IndexError as error:
        raise InvalidDataError(
            f"Columns {columns!r} are not in X, which has {len(positions)} columns. Give numbers "
            "from 0, slices or masks; names need a dataframe."
        ) from error


def _find_positions_in_frame(positions: Any, rows: Any, columns: Any) -> list[int]:
    """Return the positions of columns of a dataframe."""
    # pandas itself resolves names, numbers, slices and masks, here to positions.
    by_position = load_pandas().Series(positions, index=rows.columns)
    values = [columns] if isinstance(columns, str | int | np.integer) else columns
    if isinstance(values, slice):
        ends = [values.start, values.stop]
        # As in pandas and scikit-learn, a slice of names includes its end, a slice of numbers does
        # not.
        by_name = any(isinstance(end, str) for end in ends)
        return list(by_position.loc[values] if by_name else by_position.iloc[values])
    if len(values) and all(isinstance(value, str) for value in values):
        missing = [name for name in values if name not in by_position.index]
        if missing:
            hint = suggest_nearest(missing[0], rows.columns) if len(missing) == 1 else ""
            raise InvalidDataError(
                f"Columns {missing} are not in X, which has {list(rows.columns)}. Name existing "
                f"columns.{hint}"
            )
        return list(by_position.loc[list(values)])
    return list(by_position.iloc[list(values)]) if len(values) else []


def _select_columns(X: Any, columns: Any) -> Any:
    """Return columns; a Series for a single name, as in scikit-learn."""
    if isinstance(columns, str):
        return X[columns]
    if hasattr(X, "columns"):
        positions = _find_positions(getattr(X, "_meta", X), columns)
        return X[[X.columns[i] for i in positions]]
    return X[:, columns if isinstance(columns, slice) else list(np.atleast_1d(columns))]
