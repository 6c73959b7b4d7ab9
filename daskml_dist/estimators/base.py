"""Base class of all estimators that are fitted to rows: inputs, settings, functions of rows.

Class attributes such as `_needs_target` and `_multi_output` describe the inputs of an estimator;
the base class checks and converts inputs accordingly. A fitted estimator gives one picklable
function, `_raw_prediction`, from rows to raw predictions: `predict` and similar methods map it over
rows, in memory or lazily (`_map_raw_predictions`), and `score` sums a statistic of it over blocks
(`_sum_over_blocks`). `Supervised` is the base class for users' own estimators that learn a target.
`callback_list` makes the callbacks of a fit. `choose_client` chooses where it runs: at the user's
choice, or by the planner, which simulates fits and is imported only on request.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dask
import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import column_or_1d

from daskml_dist.data.blocks import Block
from daskml_dist.data.censored_times import encode_times
from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.conversion import are_device_labels, copy_to_host, warn_of_target_column
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import check_feature_names, check_row_shape, make_no_rows_error
from daskml_dist.diagnostics.live.feed import FitFeed
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import ConstructorSignature, check_n_positional
from daskml_dist.errors.sklearn_errors import make_not_fitted_error, translate_sklearn_errors
from daskml_dist.errors.suggestions import suggest_parameter
from daskml_dist.estimators import estimator_mixin
from daskml_dist.estimators.inherited_docs import inherit_documentation
from daskml_dist.inference.row_mapping import iterate_results, map_rows
from daskml_dist.losses.base import Loss
from daskml_dist.parameters.checks import check_flags, check_names, check_run, in_run
from daskml_dist.parameters.run import Run
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary
from daskml_dist.training.job import AUTO, INLINE, FitJob, find_default_client
from daskml_dist.training.spec import RunSettings

#: Maximum labels in memory that scikit-learn's check sorts, which may take longer than a fast fit.
#: Up to this many are copied from a GPU for it.
MAX_CHECKED_LABELS = 1 << 16

if TYPE_CHECKING:
    from daskml_dist.planning.plan import Plan


@translate_sklearn_errors
class BaseOnRows(BaseEstimator):
    """Base class of estimators fitted to rows, with or without a target.

    An estimator's constructor accepts any of these parameters; its docstring inherits their
    descriptions. A fit ends with setting ``n_features_in_``.

    Parameters
    ----------
    verbose : int, default=0
        Above 0: show the progress of a fit.
    run : Run or None, default=None
        Lanes, servers, memory and so on: see :class:`daskml_dist.Run`; None: its defaults.
    device : {"auto", "cpu", "gpu"}, default="auto"
        Device that computes on blocks; ``"auto"`` is resolved on each worker.
    callbacks : object or list, default=None
        Objects with any of ``on_fit_begin(run)``, ``on_pass_end(run, record)``,
        ``on_pass_redone(run, record)``, ``on_generation(run, event)``, ``on_fit_end(run)``; they
        run in the client.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string column names.
    history_ : History
        One record for each pass over the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.base import BaseOnRows
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> model = GaussianNB().fit(np.array([[0.0, 1.0], [1.0, 0.0]]), ["a", "b"])
    >>> isinstance(model, BaseOnRows), model.n_features_in_
    (True, 2)
    """

    # Inputs of an estimator:
    #: Whether y holds labels.
    _classification: ClassVar[bool] = False
    #: Whether a target is learned; otherwise y is ignored.
    _needs_target: ClassVar[bool] = False
    #: Whether y may have several columns.
    _multi_output: ClassVar[bool] = False
    #: Loss of censored times, for which `encode_times` encodes y; None for other losses.
    _survival_loss: Any = None
    #: Loss of the last fit, by which it predicts even if the parameter `loss` is set to another.
    _loss_of_fit: Any = None
    #: Whether y of one column stays two-dimensional, if y may have several.
    _keeps_single_column: ClassVar[bool] = False
    #: Whether rows may be arrays of any shape and real dtype, which are passed to the model
    #: unchanged.
    _tensors: ClassVar[bool] = False
    # Meaning of its parameters:
    #: Parameters of a `Run` that the estimator uses; to set another one is an error.
    _run_used: ClassVar[tuple[str, ...]]
    #: Parameters of scikit-learn that are checked and have no effect; see `ACCEPTED` in
    #: `parameters/checks.py`.
    _accepted: ClassVar[tuple[str, ...]] = ()
    #: Values of parameters that a constructor lacks.
    _defaults: ClassVar[dict[str, Any]] = {"callbacks": None, "verbose": 0, "class_weight": None}
    #: Names of the parameters of all base classes, cached by `_all_params`.
    _names_of_bases: ClassVar[frozenset[str]]
    run: Run | None = None
    device: str = "auto"
    __signature__: ClassVar[Any] = ConstructorSignature()

    def __new__(cls, *args: Any, **params: Any) -> Self:
        # In __new__, since each class has its own __init__. The errors are the package's, and
        # suggest the correct name of a misspelled parameter.
        check_names(cls, params)
        if args:
            check_n_positional(cls, args)
        estimator: Self = super().__new__(cls)
        return estimator

    @property
    def _prediction_loss(self) -> Loss:
        """Return the loss of the last fit; before one, that of the parameter `loss`."""
        untyped_self: Any = self
        loss: Loss = self._loss_of_fit or untyped_self._loss()
        return loss

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        translate_sklearn_errors(cls)
        inherit_documentation(cls)

    # -- methods shared with transformers, which do not derive from this class -------------

    _doc_link_module = "daskml_dist"
    _doc_link_template = property(estimator_mixin.make_doc_link_template)
    _doc_link_url_param_generator = estimator_mixin.make_doc_link_params
    to_sklearn = estimator_mixin.to_sklearn
    to_onnx = estimator_mixin.to_onnx
    save = estimator_mixin.save
    fit_async = estimator_mixin.fit_async

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._needs_target and not self._classification:
            tags.target_tags.multi_output = self._multi_output
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = self._tensors
        return tags

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; those of `run` as ``run__n_lanes``, even if `run` is None.

        Parameters
        ----------
        **params

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            There is no such parameter; the error names the equivalent one, if known.
        """
        if params:
            self._check_no_stream("set_params")
        valid = self.get_params(deep=False)
        for name in params:
            if (prefix := name.partition("__")[0]) not in valid:
                raise InvalidParameterError(
                    f"Invalid parameter {prefix!r} for estimator {self}. Valid parameters are: "
                    f"{sorted(valid)}.{in_run(prefix, valid) or suggest_parameter(prefix, valid)}"
                )
        # None stands for a default Run, which has no attributes to set: one is made.
        if any(name.startswith("run__") for name in params) and params.get("run", self.run) is None:
            params["run"] = Run()
        super().set_params(**params)
        return self

    def _check_no_stream(self, method: str) -> None:
        """Raise if a stream is open; by default an estimator has no streams."""

    @property
    def set_callbacks(self) -> Any:
        """Raise, so that scikit-learn's pipelines and searches do not pass on their callbacks.

        Raises
        ------
        AttributeError
            Always; it names the parameter to use instead.
        """
        # An AttributeError makes `hasattr` false.
        name = type(self).__name__
        remedy = (
            f"{name}(callbacks=[...])" if "callbacks" in self.get_params(deep=False) else "none"
        )
        raise AttributeError(
            f"{name} has no set_callbacks: it does not support scikit-learn's callbacks. Its own "
            f"callbacks are constructor parameters: {remedy}."
        )

    # -- fitting -------------------------------------------------------------------------------

    @classmethod
    def _get_param_names(cls) -> list[str]:
        # Cached: a search calls it thousands of times, and signatures are slow to inspect.
        if "_names_known" not in vars(cls):
            cls._names_known = tuple(super()._get_param_names())
        return list(cls._names_known)

    def _params(self) -> dict[str, Any]:
        """Return every parameter of a fit, with defaults for those that the constructor lacks.

        An estimator may also have these as attributes, or its class.
        """
        values = {
            name: self._attribute_or_default(name, value) for name, value in self._defaults.items()
        }
        return {**values, **self._all_params()}

    def _all_params(self) -> dict[str, Any]:
        """Return the values of the parameters of this class and of its base classes.

        The constructor of a subclass may take fewer parameters than that of its base, to which it
        passes the others; `get_params` returns only its own.
        """
        kind, values = type(self), vars(self)
        # In vars: a class attribute of a base would be inherited, with too few names.
        if "_names_of_bases" not in vars(kind):  # signatures are slow to inspect
            bases = [base for base in kind.__mro__[1:] if issubclass(base, BaseOnRows)]
            names = {name for base in bases for name in base._get_param_names()}
            kind._names_of_bases = frozenset(names)
        inherited = {name: values[name] for name in kind._names_of_bases if name in values}
        return {**inherited, **self.get_params(deep=False)}

    def _attribute_or_default(self, name: str, default: Any) -> Any:
        """Return an attribute of the estimator or its class; the default for a descriptor."""
        if name in vars(self):
            return vars(self)[name]
        # A property or method with a parameter's name is not its value.
        class_attribute = getattr(type(self), name, default)
        return default if hasattr(class_attribute, "__get__") else class_attribute

    def _run_settings(self) -> RunSettings:
        """Check the estimator's flags and `run`; return the settings of the run."""
        check_flags(self)
        return check_run(
            self.run, self.device, name=type(self).__name__, used_settings=self._run_used
        )

    def _make_callbacks(
        self,
        max_iter: int | None,
        excluded_types: tuple[type, ...] = (),
        first: Sequence[object] = (),
    ) -> CallbackList:
        """Return the callbacks `first`, then the user's except `excluded_types`."""
        params, name = self._params(), type(self).__name__
        return callback_list(
            params["callbacks"], name, max_iter, params["verbose"], excluded_types=excluded_types,
            first=first, has_checkpoint="checkpoint" in self._all_params(),
        )  # fmt: skip

    def _prepare_inputs(
        self, X: Any, y: Any, sample_weight: Any, *, labels_stay: bool = False
    ) -> tuple[Any, Any, Any]:
        """Return the inputs: columns of X instead of their names, and y in its final shape.

        `labels_stay`: many numeric labels on a GPU stay there.
        """
        if not self._needs_target:
            X, _, sample_weight = take_named_columns(X, None, sample_weight)
            return X, None, sample_weight
        # Batches of a generator contain their targets.
        if y is not None or isinstance(X, Iterator):
            X, y, sample_weight = take_named_columns(X, y, sample_weight)
        if y is None:
            raise InvalidDataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. "
                "Pass y as well."
            )
        if self._survival_loss is not None:
            return X, encode_times(y, self._survival_loss), sample_weight
        if not self._multi_output:
            stays_on_device = labels_stay and self._classification and are_device_labels(y)
            if not (is_dask(y) or (stays_on_device and len(y) > MAX_CHECKED_LABELS)):
                y = as_column(y)
        elif not self._keeps_single_column:
            y = as_columns(y)
        return X, y, sample_weight

    def _check_target(self, y: Any) -> None:
        """Raise for a target in memory that cannot be learned; blocks are checked later."""

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        """Return the rows of a fit; without `reset`, they must have the last fit's features."""
        inputs = self._prepare_inputs(X, y, sample_weight, labels_stay=True)
        self._check_target(inputs[1])
        collection = self._align_inputs(*inputs)
        if reset:
            warn_of_target_column(*inputs[:2])
        check_feature_names(self, inputs[0], reset=reset)
        if not reset:
            self._check_width(collection)
        return collection

    def _align_inputs(self, X: Any, y: Any, sample_weight: Any) -> Collection:
        """Return X, y and weights as one collection, whose blocks have the same rows of each."""
        return as_collection(
            X, y, sample_weight,
            multi_output=self._multi_output or self._survival_loss is not None,
            classification=self._classification, tensors=self._tensors,
            labels_stay=self._classification,
        )  # fmt: skip

    def _dataset_info(
        self, job: FitJob, classes: Any, class_weight: Any, weighted: bool
    ) -> DatasetInfo:
        """Return the facts about the rows, from a pass over them; `classes` are the user's."""
        summary = job.summarize_rows()
        return DatasetInfo.from_summary(
            summary, self._find_classes(summary, classes), class_weight, weighted
        )

    def _find_classes(self, summary: DataSummary, classes: Any) -> NDArray[Any] | None:
        """Return the sorted labels; None if the target is not a label."""
        return None

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram; after a fit, with the history below it."""
        diagram: str = super()._html_repr()
        history = getattr(self, "history_", None)
        return diagram if history is None else f"{diagram}{history._repr_html_()}"

    # -- where a fit runs ----------------------------------------------------------------------

    def plan(self: Any, X: Any, y: Any = None, *, client: Any = None) -> Plan:
        """Estimate where :meth:`fit` runs fastest, and its time and memory at each place.

        Parameters
        ----------
        X, y, client
            As in :meth:`fit`; X is dense, and the number of its rows known.

        Returns
        -------
        Plan
            See :func:`daskml_dist.planning.advise`, which also documents the exceptions.

        Examples
        --------
        >>> from daskml_dist.linear_model import SGDClassifier
        >>> plan = SGDClassifier().plan(X, y)  # doctest: +SKIP
        >>> plan.best.fit(X, y)  # doctest: +SKIP
        """
        from daskml_dist.planning.advising import advise

        return advise(X, self, y, client=client)

    # -- functions of rows ---------------------------------------------------------------------

    def _check_fitted(self, X: Any = None) -> None:
        """Raise if the estimator is not fitted, or X has other column names than the fit."""
        if not hasattr(self, "n_features_in_"):
            raise make_not_fitted_error(self)
        if X is not None:
            check_feature_names(self, X, reset=False)

    def _read_features(self, X: Any) -> Any:
        """Return rows in the form for raw predictions, with checked columns."""
        self._check_fitted(X)
        return X

    def _check_width(self, collection: Collection) -> None:
        """Raise if rows have a different shape than in the fit."""
        check_row_shape(collection.row_shape, self._row_shape, type(self).__name__)

    @property
    def _row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row of the fit."""
        shape: tuple[int, ...] = getattr(self, "row_shape_", (self.n_features_in_,))
        return shape

    def _set_row_shape(self, shape: tuple[int, ...]) -> None:
        """Store the shape of a row; its first axis counts as the features, as in scikit-learn."""
        if self._tensors:
            self.n_features_in_, self.row_shape_ = shape[0], shape

    @abstractmethod
    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        """Return a picklable function from rows to raw predictions.

        It must support any dtype if rows are tensors, which keep the user's dtype.
        """

    def _map_raw_predictions(
        self, postprocess: Callable[..., Any] | None, X: Any, dtype: Any, n_outputs: int | None
    ) -> Any:
        """Return the output of `postprocess(raw, out)` for the rows of X; None: raw predictions."""
        X = self._read_features(X)
        return self._map_rows(self._raw_prediction(), X, dtype, n_outputs, postprocess=postprocess)

    def _map_rows(
        self,
        function: Callable[..., NDArray[Any]],
        X: Any,
        dtype: Any,
        n_outputs: int | None = None,
        *,
        row_shape: tuple[int, ...] | None = None,
        postprocess: Callable[..., Any] | None = None,
    ) -> Any:
        """Map a function over the rows of X, of `row_shape` (None: as in the fit)."""
        return map_rows(
            function, X, dtype=dtype, n_outputs=n_outputs, name=type(self).__name__,
            row_shape=self._row_shape if row_shape is None else row_shape,
            tensors=self._tensors, write_results=postprocess,
        )  # fmt: skip

    def _sum_over_blocks(
        self, statistic: Callable[..., Any], X: Any, y: Any, sample_weight: Any
    ) -> Any:
        """Return the sum of ``statistic(y, raw, weight)`` over all blocks, in one pass.

        `y` is None if the estimator has no target.
        """
        inputs = self._prepare_inputs(X, y, sample_weight)
        self._check_fitted(inputs[0])
        collection = self._align_inputs(*inputs)
        self._check_width(collection)
        make, shape = collection.block_maker, self._row_shape
        sum_block = partial(_sum_block, statistic, self._raw_prediction(), make, shape)
        total = reduce_parts(collection, sum_block, partial(reduce, add))
        if total is None:
            raise make_no_rows_error(": there is nothing to score")
        return total


class Supervised(BaseOnRows):
    """Base class of your own estimators that learn to predict a target.

    It sets the attribute by which the package's classifiers and regressors require a target; they
    need not derive from it.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.base import BaseSteps, Supervised
    >>> class Level(BaseSteps, Supervised):
    ...     def _model(self, rows, last):
    ...         raise NotImplementedError
    ...     def _set_parameters(self, w, model, rows):
    ...         raise NotImplementedError
    >>> Level().fit(np.zeros((2, 1)))
    Traceback (most recent call last):
    daskml_dist.errors.InvalidDataError: Level requires y to be passed, but ...
    """

    _needs_target = True


def _sum_block(
    statistic: Callable[..., Any],
    raw: Callable[[Any], NDArray[Any]],
    make_block: Callable[..., Block],
    row_shape: tuple[int, ...],
    index: int,
    *block_inputs: Any,
) -> Any:
    """Return the statistic of a block; None if it has no rows."""
    block = make_block(index, *block_inputs, on_device=hasattr(raw, "on_device"))
    row_weights, ones = block.sample_weight, np.empty(0)
    pieces: list[Any] = []
    if block.n_rows == 0:
        return None
    check_row_shape(block.rows.shape[1:], row_shape, index=index)
    # In pieces: raw predictions of all rows may not fit in memory.
    for piece, predictions in iterate_results(raw, block.rows, index):
        n_rows = len(predictions)
        if len(ones) < n_rows:
            ones = np.ones(n_rows)
        weight = ones[:n_rows] if row_weights is None else row_weights[piece].astype(np.float64)
        pieces.append(statistic(None if block.y is None else block.y[piece], predictions, weight))
    return reduce(add, pieces)


def as_columns(y: Any) -> Any:
    """Return targets of one or several columns; one column becomes one dimension.

    scikit-learn's warning of that is given for targets in memory.
    """
    if not is_dask(y):
        _check_not_sparse(y)
        if 0 in (columns := _columns_of(y)):
            raise InvalidDataError("y has no columns. Pass at least one target.")
        return as_column(y) if columns == (1,) else y
    if is_dataframe_like(y):
        return y[y.columns[0]] if len(y.columns) == 1 else y
    return y[:, 0] if y.shape[1:] == (1,) else y


def _columns_of(y: Any) -> tuple[int, ...]:
    """Return the shape of a row of `y`: ``()`` for one dimension."""
    if is_dataframe_like(y):
        return (len(y.columns),)
    try:
        shape: tuple[int, ...] = getattr(y, "shape", None) or np.asarray(y).shape
        return shape[1:]
    except ValueError as error:
        raise InvalidDataError(f"y is not an array: {error}. Pass rows of equal length.") from error


def _check_not_sparse(y: Any) -> None:
    """Raise if `y` is a sparse matrix."""
    if hasattr(y, "tocsr"):
        raise InvalidDataError(
            "sparse multilabel-indicator for y is not supported. Pass y.toarray()."
        )


def as_column(y: Any) -> Any:
    """Return targets in memory in one dimension, with scikit-learn's warning if they had two."""
    _check_not_sparse(y)
    y = copy_to_host(y)
    if is_dataframe_like(y) and len(y.columns) == 1:
        column_or_1d(np.empty((1, 1)), warn=True)  # called only for its warning
        return y.iloc[:, 0]  # a Series, which keeps a dtype that NumPy lacks
    if len(_columns_of(y)) == 1:
        try:
            return column_or_1d(y, warn=True)
        except ValueError as error:
            raise InvalidDataError(f"{error} Pass one column, for example y[:, 0].") from error
    return y


def callback_list(
    user_callbacks: Any, name: str, max_iter: int | None, verbose: Any = 0,
    *, excluded_types: tuple[type, ...] = (), first: Sequence[object] = (),
    has_checkpoint: bool = False,
) -> CallbackList:  # fmt: skip
    """Return a fit's callbacks: `first`, `user_callbacks` except `excluded_types`, and a display.

    `name` is the estimator's, for errors and displays; `has_checkpoint` says whether it has a
    parameter `checkpoint`.
    """
    callbacks = [
        *first,
        *(user_callbacks if isinstance(user_callbacks, list | tuple) else [user_callbacks]),
    ]
    if Checkpoint not in excluded_types and any(isinstance(c, Checkpoint) for c in callbacks):
        raise InvalidParameterError(
            "callbacks contains a Checkpoint, which has its own parameter: "
            f'{name}(checkpoint=Checkpoint("fit.npz")).'
            if has_checkpoint
            else f"{name} does not support checkpoints: remove the Checkpoint from callbacks. The "
            "fitted model can be saved: model.save(path)."
        )
    if verbose:
        callbacks.append(Progress(max_iter=max_iter, verbose=verbose))
    # Reports fits on a cluster to the dashboard's page; fits in one process are not reported.
    callbacks.append(FitFeed(name, max_iter))
    return CallbackList(
        [c for c in callbacks if c is not None and not isinstance(c, excluded_types)]
    )


def choose_client(estimator: Any, client: Any, collection: Collection, X: Any = None) -> Any:
    """Return the client of a fit, which the planner chooses if the user passes ``"auto"``."""
    if client is None:
        client = dask.config.get("daskml_dist.client", None)
        if client not in (None, AUTO):
            raise InvalidParameterError(
                f'daskml_dist.client of Dask\'s configuration is {client!r}, but must be "auto", '
                "or None for the current client. Pass other choices to each fit: "
                "fit(..., client=...)."
            )
    if not isinstance(client, str) or client != AUTO:
        return client
    # Rows on workers, or for a GPU, are not moved to this process.
    if collection.kind != "memory" or getattr(estimator, "device", "cpu") == "gpu":
        return None
    current = find_default_client(collection)
    if current is None:
        return INLINE
    from daskml_dist.planning.advising import is_sooner_inline

    return INLINE if is_sooner_inline(estimator, collection, X, current) else None
