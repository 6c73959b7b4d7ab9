"""scikit-learn's transformers on Dask collections: summaries of blocks are merged.

`BlockTransformer` comes before a transformer of scikit-learn in a class. Its fit is a reduction:
each block is summarised on its worker, and summaries merge in any order and grouping, so that a
tree of tasks can join them. Fits are generators of passes (`_passes`), so that several of them, as
in a search over pipelines, read each block once (`fit_in_passes`).

scikit-learn's ``set_output`` turns any result into a frame in memory; `keeping_lazy` and
`LazyTransformerMixin` exempt Dask collections.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from dask.utils import is_dataframe_like
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if

from daskml_dist.backends.namespace import cast
from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.conversion import (
    canonicalize_sparse,
    choose_float_dtype,
    convert_foreign,
    convert_missing_to_nan,
    convert_named_columns,
    convert_sparse_bools,
    convert_to_host,
    copy_to_host,
    find_device,
    get_column_names,
    restore_chunk_sizes,
)
from daskml_dist.data.lazy import is_dask, is_dask_frame, join_delayed
from daskml_dist.data.reduce import PassGenerator, ReductionPass, run_computation
from daskml_dist.data.row_checks import (
    check_declared_shape,
    check_feature_names,
    check_no_times,
    drop_feature_names,
    explain_row_errors,
    make_no_rows_error,
    raise_row_error,
    remember_dtypes,
)
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import (
    InvalidDataError,
    as_ours,
)
from daskml_dist.errors.sklearn_errors import (
    check_fitted,
    translate_parameter_errors,
)
from daskml_dist.estimators.estimator_mixin import EstimatorMixin
from daskml_dist.inference.block_mapping import call_on_sample, make_sample_row, map_blocks
from daskml_dist.inference.few_transformed_rows import (
    extract_few_rows,
    find_plain_transform,
    is_wrapped_for_output,
    returns_arrays,
    scale_device_rows,
    scale_few_rows,
    unscale_few_rows,
)
from daskml_dist.parameters.checks import refuse_sklearns_callbacks
from daskml_dist.sklearn_internals import get_output_config

_Kind = TypeVar("_Kind", bound=type)


class BlockTransformer(EstimatorMixin, BaseEstimator):
    """Base class that extends the scikit-learn transformer after it to Dask collections.

    Rows in memory are left to scikit-learn's class. On a Dask collection, `fit` makes a summary of
    each block (:meth:`_summarise`) on the worker that holds it, merges the summaries
    (:meth:`_merge`) and sets the fitted attributes from the result (:meth:`_finish`); `transform`
    is lazy and calls scikit-learn's for each block.
    """

    #: Whether the columns must be numbers.
    _numeric: ClassVar[bool] = True
    #: Whether X has two dimensions; False for texts, for example.
    _of_rows: ClassVar[bool] = True
    #: Whether `transform` uses columns by position instead of by name, once names are checked.
    _by_place: ClassVar[bool] = True
    #: Whether :meth:`_summarise` accepts dense rows on a GPU, without weights, unchanged.
    _summarises_on_device: ClassVar[bool] = False
    #: Remedy that is added to the error for a block that cannot be transformed.
    _remedy: ClassVar[str] = ""

    # -- methods that a transformer defines -------------------------------------------------------

    def _prepare_block(self, X: Any) -> Any:
        """Return a block in the form that :meth:`_summarise` needs."""
        return self._plain(X)

    def _plain(self, X: Any) -> Any:
        """Return rows in memory in the form that scikit-learn's methods need."""
        # scikit-learn's compiled code trusts sparse matrices: repeated entries are counted as
        # values of several rows, and PolynomialFeatures writes beyond its memory.
        rows = canonicalize_sparse(convert_missing_to_nan(X))
        if sparse.issparse(rows) and rows.format == "bsr":
            rows = rows.tocsr()  # a copy, and BSR cannot be sliced
            rows.eliminate_zeros()  # which fill its blocks up, and are not the user's
        return convert_sparse_bools(rows) if self._numeric else rows

    def _rows_to_transform(self, X: Any) -> Any:
        """Return rows in memory in the form that scikit-learn's ``transform`` needs."""
        return self._plain(X)

    def _summarise(self, X: Any, sample_weight: Any) -> Any:
        """Return the summary of a block that is not empty; `self` is an unfitted clone."""
        raise NotImplementedError

    def _merge(self, summaries: list[Any]) -> Any:
        """Return the merged summary of several summaries; `self` is an unfitted clone."""
        raise NotImplementedError

    def _finish(self, summary: Any) -> None:
        """Set the fitted attributes from the summary of all rows."""
        raise NotImplementedError

    def _sample(self, X: Any) -> Any:
        """Return a valid row in memory with the columns of X, to find the type of the result."""
        return make_sample_row(X)

    def _find_meta(self, function: Callable[[Any], Any], X: Any) -> Any:
        """Return the result of ``transform``, given as a function, for a row like those of X."""
        return function(self._sample(X))

    def _sample_result(self, X: Any) -> Any:
        """Return a valid row of results in memory, for `inverse_transform` of a collection X."""
        return make_sample_row(X)

    def _keep(self, X: Any) -> None:
        """Store facts about rows in memory that later calls need, such as their dtypes."""
        remember_dtypes(self, X)

    def _apply_on_device(self, X: Any, is_inverse: bool) -> Any:
        """Return rows on a GPU transformed there; None if the host must do it.

        With `is_inverse` as ``inverse_transform`` does.
        """
        return scale_device_rows(self, X, is_inverse)

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to rows in memory or, in one pass, to a Dask collection.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).
        y : array-like, dask Array or dask Series of shape (n_rows,), or None
            Ignored by most transformers.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            For a block that scikit-learn does not accept; the error names it.
        """
        X, y = convert_to_host(X, y)
        if not (is_dask(X) or is_dask(y)):
            with explain_row_errors(X, self._numeric, self._of_rows):
                super().fit(self._plain(X), y)
            self._keep(X)
            return self
        return self._fit_lazy(X, y)

    def _fit_lazy(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to a Dask collection, in separate passes."""
        with report_reading(type(self).__name__):
            run_computation(self._passes(X, y, sample_weight))
        return self

    def _passes(self, X: Any, y: Any = None, sample_weight: Any = None) -> PassGenerator[None]:
        """Fit to a Dask collection, in passes that other fits may share."""
        self._check_parameters()
        refuse_sklearns_callbacks(self)
        # The target is left out: summaries ignore it, and aligning it with X might read it.
        X_only, _, weight = take_named_columns(X, y, sample_weight)
        collection = as_collection(X_only, None, weight, numeric=self._numeric)
        summary = yield from self._summarise_all(collection)
        self._set_features(summary, collection)
        remember_dtypes(self, X)

    def _check_parameters(self) -> None:
        """Check the parameters by scikit-learn's constraints, with errors of this package."""
        with translate_parameter_errors():
            self._validate_params()

    def _summarise_all(self, collection: Collection) -> PassGenerator[tuple[int, Any]]:
        """Return the number of columns and the summary of all rows, from one pass."""
        unfitted = clone(self)  # tasks do not carry the attributes of an earlier fit
        summary: tuple[int, Any] | None
        (summary,) = yield [
            ReductionPass(
                collection, partial(_summarise_block, unfitted), partial(_merge_summaries, unfitted)
            )
        ]
        if summary is None:
            raise make_no_rows_error()
        return summary

    def _set_features(self, merged: tuple[int, Any], collection: Collection) -> None:
        """Set the fitted attributes, and the number and names of the features."""
        check_declared_shape((merged[0],), collection.row_shape)
        self.n_features_in_, summary = merged
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names
        try:
            self._finish(summary)
        except (ValueError, TypeError) as error:
            raise as_ours(error) from error
        # A `_finish` that calls scikit-learn's own fit on an array has dropped the names.
        if collection.feature_names is not None:
            self.feature_names_in_ = collection.feature_names

    def _fit_more_rows(self, X: Any, sample_weight: Any = None) -> Self:
        """Continue the last fit with the rows of a Dask collection (``partial_fit``)."""
        if not hasattr(self, "n_features_in_"):
            return self._fit_lazy(X, None, sample_weight)
        check_feature_names(self, X, reset=False)
        inputs = take_named_columns(X, None, sample_weight)
        collection = as_collection(*inputs, numeric=self._numeric)
        # The last fit is one more summary, merged with that of the new rows.
        last = self.n_features_in_, self._summary()
        with report_reading(type(self).__name__):
            summary = run_computation(self._summarise_all(collection))
        self._set_features(_merge_summaries(clone(self), [last, summary]), collection)
        return self

    def _summary(self) -> Any:
        """Return the summary that gives the fitted attributes, for `partial_fit`."""
        raise NotImplementedError

    # -- transforming ----------------------------------------------------------------------------

    def transform(self, X: Any) -> Any:
        """Transform rows; lazily, block by block, if X is a Dask collection.

        Parameters
        ----------
        X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
            Of shape (n_rows, n_features).

        Returns
        -------
        array, CSR matrix, pandas.DataFrame, dask Array or dask DataFrame
            A Dask object if `X` is one; a DataFrame after ``set_output(transform="pandas")``.
        """
        return self._transformed(X)

    def _transformed(self, X: Any, **options: Any) -> Any:
        """Return the transformed rows; scikit-learn's `options` are for rows in memory."""
        # In order of speed, since serving transforms single rows: an array of numbers needs no
        # conversion, and a frame of few rows becomes one without pandas' machinery.
        rows, transformer = X, self
        if type(X) is np.ndarray and X.dtype.kind not in "OmM":
            pass
        elif (values := extract_few_rows(self, X, options)) is not None:
            rows, transformer = values, drop_feature_names(self)
        elif is_dask(X := convert_foreign(X)):
            return self._map("transform", X)
        elif find_device(X) == "gpu" and (on_device := self._apply_on_device(X, False)) is not None:
            return on_device
        else:
            X = copy_to_host(X)
            if self._numeric:
                check_no_times(X)
            rows = self._rows_to_transform(X)
        if (
            options.get("copy") is None
            and (scaled := scale_few_rows(transformer, rows)) is not None
        ):
            return scaled
        try:
            # If the result is an array anyway, call scikit-learn's method without its wrapper.
            if type(rows) is np.ndarray and returns_arrays(transformer):
                kind: Any = type(transformer)  # mypy takes the class for unhashable
                return find_plain_transform(kind, BlockTransformer)(transformer, rows, **options)
            return super(BlockTransformer, transformer).transform(rows, **options)
        except (ValueError, TypeError) as error:
            # Rows are searched for the cause only after an error: an error of this package if it
            # is theirs, else scikit-learn's.
            if self._of_rows and not isinstance(error, SklearnNotFittedError):
                raise_row_error(X, self._numeric)
            raise

    @available_if(  # type: ignore[untyped-decorator]
        lambda self: hasattr(super(), "inverse_transform")
    )
    def inverse_transform(self, X: Any) -> Any:
        """Undo :meth:`transform`; lazily if X is a Dask collection.

        Parameters
        ----------
        X : as :meth:`transform` returns

        Returns
        -------
        array, CSR matrix or dask Array
        """
        return self._inverse_transformed(X)

    def _inverse_transformed(self, X: Any, **options: Any) -> Any:
        """Return the rows before :meth:`transform`; scikit-learn's `options` as there."""
        if options.get("copy") is None and (unscaled := unscale_few_rows(self, X)) is not None:
            return unscaled
        if is_dask(X := convert_foreign(X)):
            return self._map("inverse_transform", X)
        if find_device(X) == "gpu" and (on_device := self._apply_on_device(X, True)) is not None:
            return on_device
        X = copy_to_host(X)
        if self._numeric:
            check_no_times(X)
        return super().inverse_transform(X, **options)

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit and transform.

        Parameters
        ----------
        X, y : as in :meth:`fit`
        **params
            Passed on to :meth:`fit`.

        Returns
        -------
        as :meth:`transform`
        """
        device_rows = X if find_device(X) == "gpu" else None
        X, y = convert_to_host(X, y)
        if not (is_dask(X) or is_dask(y)):
            if device_rows is not None:
                return self.fit(X, y, **params).transform(device_rows)
            with explain_row_errors(X, self._numeric, self._of_rows):
                result = super().fit_transform(self._plain(X), y, **params)
            self._keep(X)
            return result
        return self.fit(X, y, **params).transform(X)

    def _map(self, method: str, X: Any) -> Any:
        """Return the lazy results of a method for the blocks of a Dask collection."""
        check_fitted(self)
        is_forward = method == "transform"
        X = join_delayed(X, 2, getattr(self, "n_features_in_", np.nan))
        if get_column_names(X) is not None and _makes_frames(self):
            X = convert_named_columns(X)  # so that scikit-learn finds the names in each block
        try:
            estimator = self._match_names(X) if is_forward else copy.copy(self)
            function = _BlockMethod(estimator, method, writes_into_rows(self))
            # The result for one row gives Dask the columns, the dtype and the container type.
            meta = self._find_meta(function, X) if is_forward else function(self._sample_result(X))
        except (ValueError, TypeError) as error:
            raise as_ours(error) from error
        if is_dataframe_like(meta) and is_dask_frame(X):
            meta = meta.set_axis(X._meta_nonempty.index[:1])  # results keep the labels of the rows
        return map_blocks(function, X, meta=meta)

    def _match_names(self, X: Any) -> Any:
        """Check that X has the columns of the fit; return a copy of this estimator for its blocks.

        A copy, so that a later fit does not change the results of lazy blocks.
        """
        check_feature_names(self, X, reset=False)
        estimator = copy.copy(self)
        # The copy gets the names of X, or none if X has none, so that blocks do not repeat the
        # warning about them.
        if not _makes_frames(self):
            has_names = get_column_names(X) is not None
            check_feature_names(estimator, X[:0] if has_names else X, reset=True)
        return estimator


def writes_into_rows(transformer: Any) -> bool:
    """Return whether a transformer, or one of its parts, writes results into the rows it is given.

    The user asks for it by ``copy=False``. Blocks of a Dask collection are values of tasks, which
    other tasks may read as well, so such a transformer gets a copy of each.
    """
    if not hasattr(transformer, "get_params"):
        return False
    params = transformer.get_params()
    return any(v is False and n.rpartition("__")[2] == "copy" for n, v in params.items())


def fit_in_passes(estimator: Any, X: Any, y: Any = None) -> PassGenerator[Any]:
    """Fit a transformer, or a pipeline of transformers, in passes that others may share.

    An estimator that reads rows in another way does so when this generator reaches it.
    """
    if isinstance(estimator, Pipeline) and estimator.memory is None:
        steps = [step for _, step in estimator.steps if step not in (None, "passthrough")]
        for number, step in enumerate(steps):
            is_last = number == len(steps) - 1
            if is_last or _transforms_after_fit(step):
                yield from fit_in_passes(step, X, y)
                X = X if is_last else step.transform(X)
            # Some transform the rows of their fit differently (a target encoder's folds).
            elif hasattr(step, "fit_transform"):
                X = step.fit_transform(X, y)
            else:
                X = step.fit(X, y).transform(X)
    elif _fits_in_passes(estimator):
        X, y = convert_to_host(X, y)
        yield from estimator._passes(X, y)
    else:
        estimator.fit(X, y)
    return estimator


def _transforms_after_fit(step: Any) -> bool:
    """Return whether ``fit_transform`` is only ``transform`` after ``fit``."""
    method = getattr(type(step), "fit_transform", None)
    return method is not None and (
        inspect.unwrap(method) is inspect.unwrap(BlockTransformer.fit_transform)
    )


def _fits_in_passes(estimator: Any) -> bool:
    """Return whether ``fit`` of a Dask collection only runs `_passes`."""
    if not isinstance(estimator, BlockTransformer):
        return False
    kind, base = type(estimator), BlockTransformer
    has_passes = kind._summarise is not base._summarise or kind._passes is not base._passes
    # A user's subclass may do more in its `fit`.
    is_ours = kind.fit.__module__.startswith("daskml_dist.")
    return has_passes and is_ours and kind._fit_lazy is base._fit_lazy


class LazyTransformerMixin(TransformerMixin):
    """scikit-learn's mixin of transformers, whose ``set_output`` leaves Dask collections lazy."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        keeping_lazy(cls)


def keeping_lazy(kind: _Kind) -> _Kind:
    """Make ``set_output`` of a transformer class keep Dask collections lazy; a class decorator.

    scikit-learn wraps ``transform`` and ``fit_transform`` of each class with its mixin: if frames
    are requested, it converts any result to one in memory, which would gather a Dask collection.
    """
    for name in ("transform", "fit_transform"):
        method: Any = getattr(kind, name, None)
        if hasattr(method, "keeps_lazy"):
            continue
        # Other decorators may enclose scikit-learn's wrapper: search inside them.
        wrapper = method
        while wrapper is not None and not is_wrapped_for_output(wrapper):
            wrapper = getattr(wrapper, "__wrapped__", None)
        if wrapper is not None:
            setattr(kind, name, _keep_lazy(name, method, wrapper.__wrapped__))
    return kind


def _keep_lazy(name: str, method: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that makes lazy frames from lazy rows; `plain` is the unwrapped method."""

    @wraps(method)
    def answer(self: Any, X: Any, *args: Any, **params: Any) -> Any:
        if not _makes_frames(self) or not is_dask(X := convert_to_host(X)):
            return method(self, X, *args, **params)
        result = plain(self, X, *args, **params)
        # `fit_transform` ends in `transform`, which has made the frame; some methods always do.
        if name == "fit_transform" or is_dask_frame(result):
            return result
        # scikit-learn's configuration of this thread is unknown where the tasks run.
        configured = copy.copy(self)
        configured._sklearn_output_config = {
            "transform": get_output_config("transform", self)["dense"]
        }
        return answer_lazily(configured, name, X, params)

    setattr(answer, "keeps_lazy", True)  # noqa: B010
    return answer


def _makes_frames(transformer: Any) -> bool:
    """Return whether ``set_output`` requests dataframes from a transformer."""
    return bool(get_output_config("transform", transformer)["dense"] != "default")


def answer_lazily(
    estimator: Any, name: str, X: Any, params: dict[str, Any], meta: Any = None
) -> Any:
    """Return the lazy results of an estimator's method for the blocks of a Dask collection.

    `meta` is an empty result; None: it is found by calling the method on a row, an artificial one
    if it accepts that.
    """
    check_fitted(estimator)
    check_feature_names(estimator, X, reset=False)
    rows = convert_named_columns(join_delayed(X, 2, getattr(estimator, "n_features_in_", np.nan)))
    # A copy, so that a later fit does not change lazy results; n_jobs=None, so that a task starts
    # no processes.
    block_estimator = copy.copy(estimator)
    if hasattr(block_estimator, "n_jobs"):
        block_estimator.n_jobs = None
    function = partial(_call_method, block_estimator, name, params)
    if meta is None:
        try:
            _, meta = call_on_sample(function, rows)
        except (ValueError, TypeError) as error:
            raise as_ours(error) from error
    return restore_chunk_sizes(map_blocks(function, rows, meta=meta), X)


def _call_method(estimator: Any, name: str, params: dict[str, Any], X: Any) -> Any:
    """Return the result of an estimator's method for a block."""
    X = canonicalize_sparse(X)
    return getattr(estimator, name)(X.copy() if writes_into_rows(estimator) else X, **params)


def append_remedy(message: str, remedy: str) -> str:
    """Return a message that ends in a remedy, which it may hold already; "": the message."""
    return message if remedy in message else f"{message.rstrip('. ')}. {remedy}"


@dataclass(frozen=True, eq=False)
class _BlockMethod:
    """Function of a block: a method of a transformer, `transform` or `inverse_transform`."""

    estimator: Any
    method: str
    copies: bool = False

    def __call__(self, X: Any) -> Any:
        """Return the method's result; an error includes the remedy of the transformer."""
        estimator, is_forward = self.estimator, self.method == "transform"
        prepare = estimator._rows_to_transform if is_forward else estimator._plain
        try:
            if self.copies:
                X = X.copy()
            return getattr(estimator, self.method)(prepare(X))
        except TypeError:  # also InvalidTypeError: the remedy is for values
            raise
        except ValueError as error:
            raise ValueError(append_remedy(str(error), estimator._remedy)) from error

    def on_device(self, X: Any) -> Any:
        """Return the result for rows on a GPU, on that GPU; None if the host computes it."""
        return self.estimator._apply_on_device(X, self.method == "inverse_transform")


def _summarise_block(
    unfitted: BlockTransformer, index: int, X: Any, y: None, sample_weight: Any
) -> tuple[int, Any] | None:
    """Return the number of columns and the summary of a block; None for an empty one."""
    if X.shape[0] == 0:
        return None
    is_dense_there = find_device(X) == "gpu" and not hasattr(X, "tocsr") and X.dtype.kind in "fiub"
    stays_on_device = is_dense_there and sample_weight is None and unfitted._summarises_on_device
    if not stays_on_device:
        X = copy_to_host(X)
    elif unfitted._numeric:  # categories keep their dtype
        X = cast(X, np.dtype(choose_float_dtype(X.dtype)))
    sample_weight = copy_to_host(sample_weight)
    if isinstance(sample_weight, float):
        sample_weight = np.full(X.shape[0], sample_weight)
    elif sample_weight is not None:  # without the labels of a Series
        sample_weight = np.asarray(sample_weight)
    try:
        # A clone: threads of one process share `unfitted`. A feature that is missing in a whole
        # block has no mean there (0 / 0), which the merge expects.
        with np.errstate(invalid="ignore", divide="ignore"):
            transformer = clone(unfitted)
            rows = X if stays_on_device else transformer._prepare_block(X)
            return int(X.shape[1]), transformer._summarise(rows, sample_weight)
    except (ValueError, TypeError) as error:
        raise as_ours(error, f"Block {index} of X: ") from error


def _merge_summaries(
    unfitted: BlockTransformer, block_summaries: list[tuple[int, Any]]
) -> tuple[int, Any]:
    """Return the merged results of :func:`_summarise_block` of blocks that have rows."""
    if len(block_summaries) == 1:
        return block_summaries[0]
    widths = {n_features for n_features, _ in block_summaries}
    if len(widths) > 1:
        raise InvalidDataError(
            f"Blocks have different numbers of columns: {sorted(widths)}. Give every partition "
            "the same columns."
        )
    return widths.pop(), unfitted._merge([summary for _, summary in block_summaries])
