"""Base class of the estimators over modules of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import as_rows
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.models.torch_modules.flat import (
    flatten_parameters,
    lay_out_parameters,
    torch_dtype,
)
from daskml_dist.models.torch_modules.library import check_torch, load_torch
from daskml_dist.models.torch_modules.module import (
    IMAGES,
    PRECISIONS,
    InputColumns,
    TorchInputs,
    TorchModel,
)
from daskml_dist.models.torch_modules.source import ModuleSource, without_weights
from daskml_dist.models.torch_modules.staged import TorchChain
from daskml_dist.neural_network._base import BaseNetwork
from daskml_dist.neural_network._torch.export import export
from daskml_dist.neural_network._torch.options import group_options, schedule_of
from daskml_dist.neural_network._torch.predict import TorchOutputs, fitted_module
from daskml_dist.neural_network._torch.tensors import set_tensors, take_tensors
from daskml_dist.neural_network._torch.trying import (
    Tried,
    check_batches,
    check_shapes,
    check_travels,
)
from daskml_dist.parameters.checks import check_one_of
from daskml_dist.policies import Pipeline, Policy
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import FitSpec, Settings

#: Rows of a trial.
_TRIED = 4
#: Beginnings of the parameters that are passed on.
_PASSED_ON = ("module__", "criterion__")


class BaseTorch(BaseNetwork):
    """Base class of estimators over a module of torch.

    A subclass says what the default criterion is.

    Parameters
    ----------
    module : class or callable
        A class derived from ``torch.nn.Module``, or a function that returns one: called with the
        arguments given as ``module__name=value``, on the client and on each worker. An object is
        taken with ``warm_start=True`` alone: the fit begins with its weights.
    optimizer : str or Optimizer, default="adam"
        One of this package's (:mod:`daskml_dist.optimizers`), which servers and trainers step by.
    learning_rate : float or "auto", default="auto"
        ``"auto"`` is the optimizer's own, 0.001 for Adam.
    schedule : str or Schedule, default=None
        How the learning rate changes, such as ``"cosine"``; None: it stays.
    max_iter : int, default=10
        Passes over the data (epochs).
    batch_size : int, "auto" or None, default=128
        Rows of one step of the parameters, of all lanes together; None: all of them.
    micro_batch_size : int or None, default=None
        Rows that the module is called with at once, where a batch is larger than memory bears.
    clip : float or None, default=None
        Largest norm of a step's mean gradient.
    groups : dict or None, default=None
        Options of parameters whose names match a pattern:
        ``{"*.bias": dict(weight_decay=0), "features.*": dict(rate=0.1)}``.
    precision : {"bf16", "fp16"} or None, default=None
        What products are computed in, where the device has it; parameters stay as they are.
        With ``"fp16"`` the loss is multiplied before the backward pass by what is as large as can
        be without an overflow, in each step anew (not in a pipeline).
    dtype : {"float32", "float64"}, default="float32"
        Of the parameters, and of rows of floats as the module gets them.
    images : {"channels_last", "channels_first"} or None, default=None
        Rows are images, of bytes: the module gets floats between 0 and 1, channels first.
    inputs : dict or None, default=None
        The module's arguments, by the column or the columns of a dataframe:
        ``{"tokens": ["t0", "t1"], "age": "age"}``; whole numbers come as int64.
    layer : str or None, default=None
        Layer whose output :meth:`transform` returns.
    policy : str or Policy, default="allreduce"
        Who may run ahead, and how gradients meet (:doc:`/policies`).
    pipeline : Pipeline or None, default=None
        Spread the layers of a ``torch.nn.Sequential`` over the trainers, with policy
        ``"allreduce"`` or ``"sync"`` (:class:`~daskml_dist.policies.Pipeline`).
    tol : float or None, default=None
        Stop once the loss (or the score) has not improved by so much for `n_iter_no_change` passes.
    early_stopping : bool, default=False
        Hold out rows and stop on their score; with a `tol`.
    average : bool or int, default=False
        Average the parameters over the steps; an int starts once so many rows were seen.
    warm_start : bool, default=False
        Go on from the last fit, or begin with the weights of a module that is an object.
    random_state : int, RandomState or None, default=None
        Decides the first weights, the order of the rows and what layers draw.

    Attributes
    ----------
    module_ : nn.Module
        The fitted module, on the host, in evaluation mode.
    n_iter_ : int
        Passes made.
    row_shape_ : tuple of int
        Shape of a row of X.
    """

    _tensors = True
    _run_used = tuple(n for n in BaseSteps._run_used if n not in ("compute_dtype", "shard"))
    module: Any
    criterion: Any
    images: str | None
    inputs: Mapping[str, Any] | None
    layer: str | None
    precision: str | None
    pipeline: Pipeline | None
    #: Of the last fit.
    _net: TorchModel
    _w: NDArray[Any]

    def _pass_on(self, given: Mapping[str, Any]) -> None:
        """Take parameters of the constructor that go to the module or the criterion."""
        check_torch(type(self).__name__)
        for name, value in given.items():
            if not name.startswith(_PASSED_ON):
                raise InvalidParameterError(
                    f"{type(self).__name__} has no parameter {name!r}. Arguments of the module "
                    "begin with module__, those of the criterion with criterion__."
                )
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, those of the module and the criterion among them."""
        passed = {n: v for n, v in vars(self).items() if n.startswith(_PASSED_ON)}
        return {**super().get_params(deep), **passed}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``module__x`` and ``criterion__x`` too."""
        passed = {name: params.pop(name) for name in [*params] if name.startswith(_PASSED_ON)}
        super().set_params(**params)
        for name, value in passed.items():
            setattr(self, name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_built"}

    # -- model files ---------------------------------------------------------------------------

    def _take_tensors(self, state: dict[str, Any]) -> dict[str, NDArray[Any]]:
        """Take the module's tensors, by its own names, and its code out of a state."""
        return take_tensors(state)

    def _set_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Set what :meth:`_take_tensors` took; the module's class is among the parameters."""
        set_tensors(self.__dict__, tensors, self._source())

    # -- settings ------------------------------------------------------------------------------

    def _params(self) -> dict[str, Any]:
        params = super()._params()
        params["learning_rate"] = schedule_of(params)
        params["groups"] = group_options(params["groups"], params["optimizer"])
        return params

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        settings = super()._check_settings(policy)
        check_one_of("images", self.images, (None, *IMAGES))
        check_one_of("precision", self.precision, (None, *PRECISIONS))
        self._source()
        return settings

    def _default_criterion(self) -> Any:
        raise NotImplementedError

    def _threshold(self) -> float:
        """Output above which a single one tells of the second class."""
        return 0.0

    def _arguments(self, prefix: str) -> dict[str, Any]:
        given = {n[len(prefix) :]: v for n, v in vars(self).items() if n.startswith(prefix)}
        return dict(sorted(given.items()))

    def _source(self) -> ModuleSource:
        """The module and the criterion that the user asked for, checked."""
        check_torch(type(self).__name__)
        torch, module, arguments = load_torch(), self.module, self._arguments("module__")
        if isinstance(module, torch.nn.Module):
            self._check_instance(module, arguments)
            module = without_weights(module)
        elif not callable(module):
            raise InvalidParameterError(
                f"module={module!r}: give a class derived from torch.nn.Module (not an object of "
                "it), and what it is called with as module__name=value."
            )
        criterion = self._default_criterion() if self.criterion is None else self.criterion
        if not callable(criterion):
            raise InvalidParameterError(
                f"criterion={criterion!r}: give a class such as torch.nn.CrossEntropyLoss, or a "
                "function of outputs and targets that returns the loss of each row."
            )
        return ModuleSource(module, arguments, criterion, self._arguments("criterion__"))

    def _check_instance(self, module: Any, arguments: dict[str, Any]) -> None:
        name = type(module).__name__
        if not self._params()["warm_start"]:
            raise InvalidParameterError(
                f"module={name}(...) is an object, whose weights a fit would overwrite. Give its "
                f"class, module={name}, with its arguments as module__name=value; or, to begin "
                "with its weights, set warm_start=True."
            )
        if arguments:
            raise InvalidParameterError(
                f"module={name}(...) is made already, and {sorted(arguments)} are given for it. "
                f"Leave them out, or give the class: module={name}."
            )

    # -- fitting -------------------------------------------------------------------------------

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        collection = super()._make_collection(X, y, sample_weight, reset=reset)
        self._tried = Tried(self._rows_to_try(collection), self._inputs_of(X, collection))
        return collection

    @staticmethod
    def _rows_to_try(collection: Collection) -> NDArray[Any] | None:
        """Some rows, where they are here."""
        if collection.kind != "memory":
            return None
        X = collection.parts[0][0]
        rows = as_rows(X.iloc[:_TRIED] if hasattr(X, "iloc") else X[:_TRIED], tensors=True)
        found: NDArray[Any] = rows.toarray() if hasattr(rows, "toarray") else rows
        return found

    def _inputs_of(self, X: Any, collection: Collection) -> TorchInputs:
        if self.inputs is None:
            return TorchInputs(self.images)
        names = [] if collection.feature_names is None else list(collection.feature_names)
        columns = {}
        for argument, given in self.inputs.items():
            single = isinstance(given, str)
            wanted = [given] if single else list(given)
            if missing := [name for name in wanted if name not in names]:
                raise InvalidParameterError(
                    f"inputs[{argument!r}] names {missing}, which X has no columns for: they are "
                    f"{names}. Pass a dataframe with these columns."
                )
            whole = all(X.dtypes[name].kind in "iub" for name in wanted)
            columns[argument] = InputColumns(tuple(map(names.index, wanted)), single, whole)
        return TorchInputs(None, columns)

    def _train(self, X: Any, y: Any, sample_weight: Any, **how: Any) -> None:
        torch = load_torch()
        try:
            # Lanes in this process draw from torch's one stream, which is the user's.
            with torch.random.fork_rng(devices=()):
                super()._train(X, y, sample_weight, **how)
        except DivergedError as error:
            if self._keep_snapshot(error.snapshot):
                kept = "The estimator keeps earlier parameters, whose loss was finite."
                error.args = (f"{error} {kept}",)
            raise
        finally:
            self.__dict__.pop("_tried", None)

    def _model(self, rows: DatasetInfo, last: Any) -> TorchModel:
        source, tried = self._source(), self._tried
        dtype = str(np.dtype(self._params()["dtype"]))
        kind = torch_dtype(dtype)
        n_targets = rows.survey.n_targets
        n_classes = None if rows.classes is None or n_targets else len(rows.classes)
        module = source.make_seeded(0, kind)
        parameters = lay_out_parameters(module)
        check_shapes(source.name, parameters, last)
        chained = self.pipeline is not None
        found = tried.by(source, module, rows, dtype, n_classes, n_targets, chained)
        start = None
        if isinstance(self.module, load_torch().nn.Module):
            start = flatten_parameters(self.module, dtype)
        target = "binary" if n_targets and rows.classes is not None else found.target
        make: Any = TorchModel if found.chain is None else partial(TorchChain, chain=found.chain)
        model: TorchModel = make(
            source, parameters, tried.inputs, target, self._threshold(), self.precision, start,
            fewest_rows=found.min_batch_rows, pixelwise=found.channels_last_kernels,
        )  # fmt: skip
        tried.begun = model, rows
        return model

    def _plan_fit(self, job: FitJob, settings: Settings, model: Any, initial: Any) -> FitSpec:
        if initial is None:
            model = model.checked(settings.seed, settings.dtype_of(job.rows.survey))
        fit = super()._plan_fit(job, settings, model, initial)
        check_batches(fit, model)
        if not isinstance(job.engine, InProcessEngine):
            check_travels(model)
        return fit

    def _set_learned(self, state: ShardState, model: Any, rows: DatasetInfo) -> None:
        super()._set_learned(state, model, rows)
        self._last_model = self._net

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Any:
        return self._tried_alone(super()._begin_stream, X, y, sample_weight, classes)

    def _resume_stream(self, saved: Any, path: Any, classes: Any) -> Any:
        return self._tried_alone(super()._resume_stream, saved, path, classes)

    def _tried_alone(self, begin: Callable[..., Any], *given: Any) -> Any:
        """The start of a stream; torch's random stream, which is the user's, stays as it is."""
        around = partial(load_torch().random.fork_rng, devices=())
        try:
            with around():
                started = begin(*given)
        finally:
            self.__dict__.pop("_tried", None)
        started.steps.around = around
        return started

    def _set_parameters(self, w: NDArray[Any], model: Any, rows: DatasetInfo) -> None:
        self.__dict__.pop("_built", None)
        self._net, self._w = model.at_rest(), w
        self._token, self._rows_dtype = TorchOutputs(self._net, w).token, rows.survey.rows_dtype
        self.n_outputs_ = rows.survey.n_targets or 1

    def _keep_snapshot(self, w: NDArray[Any] | None) -> bool:
        """Keep the last parameters whose loss was finite of a fit that diverged, if any."""
        if w is None or self._tried.begun is None:
            return False
        model, rows = self._tried.begun
        self._set_parameters(w, model, rows)
        self._set_row_shape(rows.survey.row_shape)
        self._state, self._last_model, self.n_iter_, self.t_ = ShardState(w, {}), self._net, 0, 0.0
        return True

    # -- what was fitted -----------------------------------------------------------------------

    @property
    def module_(self) -> Any:
        """The fitted module, in evaluation mode, on the host; built when first asked for."""
        if not hasattr(self, "_net"):
            raise AttributeError(f"{type(self).__name__} has no module_ before it is fitted.")
        if "_built" not in self.__dict__:
            self._built = fitted_module(self._net, self._w)
        return self._built

    def state_dict(self) -> dict[str, Any]:
        """The fitted module's parameters and buffers by name, as ``load_state_dict`` takes them."""
        self._check_fitted()
        state: dict[str, Any] = self.module_.state_dict()
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def export(self, path: str | Path) -> None:
        """Write the fitted module to a file.

        Parameters
        ----------
        path : str or Path
            ``"m.safetensors"`` holds parameters and buffers as ``state_dict()`` has them (needs
            safetensors), ``"m.onnx"`` the whole computation (needs onnx and onnxscript). What
            `images` or `inputs` make of rows is not part of either: see ``module_``.

        Raises
        ------
        InvalidParameterError
            Another format, or a package that is missing.
        """
        self._check_fitted()
        rows = np.zeros((2, *self._row_shape), self._rows_dtype)
        export(self.module_, path, self._net.inputs(rows, torch_dtype(str(self._w.dtype))))

    def transform(self, X: Any, layer: str | None = None) -> Any:
        """Embeddings: what a layer gives for each row, flattened; lazy where X is.

        Parameters
        ----------
        X : as in :meth:`fit`
        layer : str, optional
            Name of a layer, as ``module_.named_modules()`` has it; by default the parameter
            `layer`, and where that is None the module's own output.

        Returns
        -------
        ndarray or dask Array of shape (n_rows, n_embedded)
        """
        self._check_fitted(X)
        outputs = self._outputs(layer=self.layer if layer is None else layer)
        width = outputs.width(np.zeros((1, *self._row_shape), self._rows_dtype))
        return self._map_outputs(outputs, X, width)

    def _outputs(self, **how: Any) -> TorchOutputs:
        token = f"{self._token}-{how.get('layer')}"
        return TorchOutputs(self._net, self._w, token=token, **how)

    def _raw_prediction(self) -> Any:
        return self._outputs()

    def _map_outputs(
        self, outputs: TorchOutputs, X: Any, n_outputs: int | None, then: Any = None
    ) -> Any:
        return self._map_rows(outputs, X, self._w.dtype, n_outputs, then=then)
