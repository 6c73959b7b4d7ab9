"""Base class of the estimators over modules of torch.

The user gives a recipe of the module (a class and its arguments), of which each process makes its
own copy; parameters travel as one flat vector, as those of any other model (`TorchModel`). Before a
fit the module is tried on a few rows (`ModuleTrial`), which shows its mistakes early and tells what
the fit must know: the form of targets, the fewest rows of a batch, the stages of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import isclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.collection import Collection, take_named_columns
from daskml_dist.data.computing import use_client
from daskml_dist.data.conversion import as_rows
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.estimators.gradient_steps import BaseSteps
from daskml_dist.inference.table_fields import TableFields, hash_table
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
from daskml_dist.models.torch_modules.source import ModuleSource, class_name_of, without_weights
from daskml_dist.models.torch_modules.staged import TorchChain
from daskml_dist.models.torch_modules.tables import TableInputs, TorchTableModel
from daskml_dist.neural_network._base import BaseNetwork
from daskml_dist.neural_network._torch.export import export, export_layers
from daskml_dist.neural_network._torch.module_trial import (
    ModuleTrial,
    check_batches,
    check_picklable,
    check_shapes,
)
from daskml_dist.neural_network._torch.options import resolve_groups, resolve_schedule
from daskml_dist.neural_network._torch.predict import (
    TableOutputs,
    TorchOutputs,
    make_fitted_module,
)
from daskml_dist.neural_network._torch.tables import (
    GrowingEmbeddings,
    TableTrial,
    check_optimizer,
    check_table_settings,
    fields_of_fit,
    find_columns,
    make_table_model,
    policy_of_table,
    select_table,
)
from daskml_dist.neural_network._torch.tensors import set_tensors, take_tensors
from daskml_dist.parameters.checks import check_one_of, seed_of
from daskml_dist.policies import get_policy
from daskml_dist.policies.base import Pipeline, Policy
from daskml_dist.privacy import DP
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import FitSpec, Settings

#: Rows on which a module is tried: more than one, as batch normalisation needs.
_TRIAL_ROWS = 4
#: Prefixes of the parameters that are arguments of the module or the criterion.
_PREFIXES = ("module__", "criterion__")


class BaseTorch(BaseNetwork):
    """Base class of estimators over a module of torch.

    A subclass gives the default criterion.

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
        With ``"fp16"`` the loss is scaled before the backward pass by the largest factor without an
        overflow, which each step finds anew (not in a pipeline).
    dtype : {"float32", "float64"}, default="float32"
        Of the parameters, and of rows of floats as the module gets them.
    images : {"channels_last", "channels_first"} or None, default=None
        Rows are images, of bytes: the module gets floats between 0 and 1, channels first.
    inputs : dict or None, default=None
        The module's arguments, by the column or the columns of a dataframe:
        ``{"tokens": ["t0", "t1"], "age": "age"}``; whole numbers come as int64.
    embeddings : dict, GrowingEmbeddings or None, default=None
        Parts of the module, an ``nn.Embedding`` or ``nn.EmbeddingBag`` each, whose rows are made on
        a parameter server when their ids come, and the columns of a dataframe with these ids
        (integers, strings, categories, lists of ids): ``{"item": "item_id"}``, or with options a
        :class:`GrowingEmbeddings`. In the place of ids the module gets places of rows, which it may
        look up in that part, and compare with 0: no id, as at the end of short lists. Without
        `inputs` each column is an argument by its name. Steps of ``"allreduce"`` are made as
        ``"sync"``, and only rows that a batch touches travel.
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
        The fitted module, on the host, in evaluation mode; parts that `embeddings` names have no
        rows in it.
    n_iter_ : int
        Passes made.
    row_shape_ : tuple of int
        Shape of a row of X.
    fields_, kinds_ : list of str
        With `embeddings`, names of the columns that are read, and what each holds, as in
        :class:`~daskml_dist.feature_extraction.FieldHasher`.
    """

    _tensors = True
    _run_used = tuple(n for n in BaseSteps._run_used if n not in ("compute_dtype", "shard"))
    module: Any
    criterion: Any
    images: str | None
    inputs: Mapping[str, Any] | None
    embeddings: Any
    layer: str | None
    precision: str | None
    pipeline: Pipeline | None
    privacy: DP | None
    #: Model and parameters of the last fit; of a table with the sorted ids of its rows.
    _net: TorchModel
    _w: NDArray[Any]
    _trial: ModuleTrial
    _learned_ids: NDArray[np.int64]
    fields_: list[str]
    kinds_: list[str]

    def _pass_on(self, prefixed_params: Mapping[str, Any]) -> None:
        """Set parameters of the constructor that are arguments of the module or the criterion."""
        check_torch(type(self).__name__)
        for name, value in prefixed_params.items():
            if not name.startswith(_PREFIXES):
                raise InvalidParameterError(
                    f"{type(self).__name__} has no parameter {name!r}. Prefix arguments of the "
                    "module with module__, and of the criterion with criterion__."
                )
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, with the arguments of the module and the criterion."""
        passed = {n: v for n, v in vars(self).items() if n.startswith(_PREFIXES)}
        return {**super().get_params(deep), **passed}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``module__x`` and ``criterion__x`` too."""
        # scikit-learn would take the prefix for a nested estimator.
        passed = {name: params.pop(name) for name in [*params] if name.startswith(_PREFIXES)}
        super().set_params(**params)
        for name, value in passed.items():
            setattr(self, name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # The built module can be made again, and the user's class may not be picklable.
        return {k: v for k, v in super().__getstate__().items() if k != "_built"}

    # -- tables of ids -------------------------------------------------------------------------

    @property
    def _growing_embeddings(self) -> GrowingEmbeddings | None:
        """Return the embeddings whose rows are in a table; None where there are none."""
        return GrowingEmbeddings.of(self.embeddings)

    @property
    def _fields(self) -> TableFields | None:
        """Return the fields of a fit with embeddings in a table; None of another fit."""
        attributes = vars(self)
        if "fields_" not in attributes:
            return None
        missing = "error" if self._growing_embeddings is None else self._growing_embeddings.missing
        return fields_of_fit(attributes["fields_"], attributes["kinds_"], missing, self.dtype)

    def _hash_table(self, X: Any) -> Any:
        """Return the rows of a table as entries of its fields' ids; all other rows as they are."""
        return hash_table(X, self._fields, self._select_table)

    def _align_inputs(self, X: Any, y: Any, sample_weight: Any) -> Collection:
        return super()._align_inputs(self._hash_table(X), y, sample_weight)

    def _map_rows(self, function: Any, X: Any, *map_args: Any, **options: Any) -> Any:
        return super()._map_rows(function, self._hash_table(X), *map_args, **options)

    def _select_table(self, X: Any, fields: TableFields) -> Any:
        return select_table(X, fields.names)

    def _set_row_shape(self, shape: tuple[int, ...]) -> None:
        super()._set_row_shape(shape)
        if self._fields is not None:  # hashed rows have all ids as columns
            names = vars(self).get("feature_names_in_", self.fields_)
            self.n_features_in_ = len(names)

    # -- model files ---------------------------------------------------------------------------

    def _take_tensors(self, state: dict[str, Any]) -> dict[str, NDArray[Any]]:
        """Remove the module's tensors, and its code, from a state; return the tensors by name."""
        layers = None if self._fields is None else self._outputs().module_parameters()
        return take_tensors(state, layers)

    def _set_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Set the tensors of a model file; the module's class is among the parameters."""
        set_tensors(self.__dict__, tensors, self._source())

    # -- settings ------------------------------------------------------------------------------

    def _params(self) -> dict[str, Any]:
        params = super()._params()
        params["learning_rate"] = resolve_schedule(params)
        params["groups"] = resolve_groups(params["groups"], params["optimizer"])
        return params

    def _check_settings(self, policy: str | Policy | None) -> Settings:
        growing = self._growing_embeddings
        if growing is not None:
            policy = policy_of_table(get_policy(self.policy if policy is None else policy))
        settings = super()._check_settings(policy)
        if growing is not None:
            check_table_settings(self._params() | {"device": self.device}, settings)
        check_one_of("images", self.images, (None, *IMAGES))
        check_one_of("precision", self.precision, (None, *PRECISIONS))
        if settings.privacy is not None and self.precision is not None:
            raise InvalidParameterError(
                f"precision={self.precision!r} with privacy=: gradient norms are not accurate "
                "enough in low precision. Use precision=None."
            )
        self._source()  # raises for an invalid module or criterion
        return settings

    def _default_criterion(self) -> Any:
        """Return the criterion that is used where the user gives none."""
        raise NotImplementedError

    def _threshold(self) -> float:
        """Return the threshold of a single output, above which it is the second class."""
        return 0.0

    def _arguments(self, prefix: str) -> dict[str, Any]:
        """Return the arguments that are given by a prefix, sorted by name."""
        arguments = {n[len(prefix) :]: v for n, v in vars(self).items() if n.startswith(prefix)}
        return dict(sorted(arguments.items()))

    def _source(self) -> ModuleSource:
        """Return the recipe of the module and the criterion; raise if one is invalid."""
        check_torch(type(self).__name__)
        torch, module, arguments = load_torch(), self.module, self._arguments("module__")
        if isinstance(module, torch.nn.Module):
            if self.embeddings is not None:
                raise InvalidParameterError(
                    f"module={type(module).__name__}(...) is an instance, whose embeddings "
                    "already have rows, but embeddings= creates rows for new ids. Give its "
                    f"class, module={type(module).__name__}, with its arguments as "
                    "module__name=value."
                )
            self._check_instance(module, arguments)
            module = without_weights(module)
        elif not callable(module):
            raise InvalidParameterError(
                f"module={module!r}: give a class derived from torch.nn.Module (not an "
                "instance), and its arguments as module__name=value."
            )
        criterion = self._default_criterion() if self.criterion is None else self.criterion
        if not callable(criterion):
            raise InvalidParameterError(
                f"criterion={criterion!r}: give a class such as torch.nn.CrossEntropyLoss, or a "
                "function of outputs and targets that returns the loss of each row."
            )
        of_criterion = self._arguments("criterion__")
        # A function, or an instance, is called with outputs and targets only.
        if of_criterion and not isclass(criterion):
            name = "None" if self.criterion is None else class_name_of(criterion)
            raise InvalidParameterError(
                f"criterion={name} is not a class, so {['criterion__' + n for n in of_criterion]} "
                "would be ignored. Leave them out, or give a class, such as "
                "criterion=torch.nn.CrossEntropyLoss."
            )
        return ModuleSource(module, arguments, criterion, of_criterion)

    def _check_instance(self, module: Any, arguments: dict[str, Any]) -> None:
        """Raise for a module that is an object, unless a fit is to begin with its weights."""
        name = type(module).__name__
        if not self._params()["warm_start"]:
            raise InvalidParameterError(
                f"module={name}(...) is an instance, whose weights a fit would overwrite. Give "
                f"its class, module={name}, with its arguments as module__name=value; or, to "
                "start from its weights, set warm_start=True."
            )
        if arguments:
            raise InvalidParameterError(
                f"module={name}(...) is already an instance, so {sorted(arguments)} cannot be "
                f"given. Leave them out, or give the class: module={name}."
            )

    # -- fitting -------------------------------------------------------------------------------

    def _make_collection(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Collection:
        if self._growing_embeddings is not None:
            X, y, sample_weight = take_named_columns(X, y, sample_weight)
        inputs = self._find_table(X, reset)
        collection = super()._make_collection(X, y, sample_weight, reset=reset)
        if inputs is not None:
            self._trial = TableTrial(inputs)
            return collection
        self._trial = ModuleTrial(self._rows_to_try(collection), self._inputs_of(X, collection))
        return collection

    def _find_table(self, X: Any, reset: bool) -> TableInputs | None:
        """Return how columns of ids and numbers reach the module, and set the fields' attributes.

        None where no embeddings are in a table.
        """
        growing, saved = self._growing_embeddings, vars(self).get("_saved_fields")
        if not reset and (growing is None) != (self._fields is None):
            raise InvalidParameterError(
                "Continuing needs the embeddings of the last fit. Keep them, or set "
                "warm_start=False and call fit."
            )
        if growing is None:
            for name in ("fields_", "kinds_"):
                self.__dict__.pop(name, None)
            return None
        if not reset:
            last_inputs = self._net.inputs
            assert isinstance(last_inputs, TableInputs)
            return last_inputs
        if saved is not None:
            inputs = TableInputs.from_description(saved)
            self.fields_, self.kinds_ = list(inputs.names), list(saved["kinds"])
            return inputs
        # Columns that are named may be fewer than those of X: the names of all are compared later.
        fields, inputs = find_columns(
            X, growing, self.inputs, type(self).__name__, np.dtype(self.dtype).name
        )
        self.fields_, self.kinds_ = list(fields.names), list(fields.kinds)
        return inputs

    @staticmethod
    def _rows_to_try(collection: Collection) -> NDArray[Any] | None:
        """Return the first rows of a collection in memory; None for others."""
        if collection.kind != "memory":
            return None
        X = collection.parts[0][0]
        first = X.iloc[:_TRIAL_ROWS] if hasattr(X, "iloc") else X[:_TRIAL_ROWS]
        rows = as_rows(first, tensors=True)
        dense: NDArray[Any] = rows.toarray() if hasattr(rows, "toarray") else rows
        return dense

    def _inputs_of(self, X: Any, collection: Collection) -> TorchInputs:
        """Return the function from rows to the module's arguments."""
        if self.inputs is None:
            return TorchInputs(self.images)
        names = [] if collection.feature_names is None else list(collection.feature_names)
        columns = {}
        for argument, listed in self.inputs.items():
            single = isinstance(listed, str)
            column_names = [listed] if single else list(listed)
            if missing := [name for name in column_names if name not in names]:
                raise InvalidParameterError(
                    f"inputs[{argument!r}] names {missing}, which X has no columns for: they are "
                    f"{names}. Pass a dataframe with these columns."
                )
            # A frame of several dtypes becomes one array of floats: tokens become integers again.
            are_integers = all(X.dtypes[name].kind in "iub" for name in column_names)
            columns[argument] = InputColumns(
                tuple(map(names.index, column_names)), single, are_integers
            )
        return TorchInputs(None, columns)

    def _train(self, X: Any, y: Any, sample_weight: Any, **fit_options: Any) -> None:
        torch = load_torch()
        try:
            # Columns whose types hide what they hold are looked at before the fit, by its client.
            client = None if self._growing_embeddings is None else fit_options["client"]
            # Lanes in this process draw from torch's one random stream, which is the user's: it is
            # restored after the fit.
            with use_client(client), torch.random.fork_rng(devices=()):
                super()._train(X, y, sample_weight, **fit_options)
        except DivergedError as error:
            # A fit that diverges late would lose hours of training without these parameters.
            if self._keep_snapshot(error.snapshot):
                note = "The estimator keeps earlier parameters, whose loss was finite."
                error.args = (f"{error} {note}",)
            raise
        finally:
            self.__dict__.pop("_trial", None)

    def _model(self, rows: DatasetInfo, last: Any) -> TorchModel:
        source, trial = self._source(), self._trial
        dtype = str(np.dtype(self._params()["dtype"]))
        if isinstance(trial, TableTrial):
            growing = self._growing_embeddings
            assert growing is not None
            return make_table_model(
                trial, growing, source, rows, last, dtype=dtype,
                seed=seed_of(self._params()["random_state"]), threshold=self._threshold(),
                precision=self.precision,
            )  # fmt: skip
        n_targets = rows.summary.n_targets
        # Several labels a row have no classes: each is a target of its own.
        n_classes = None if rows.classes is None or n_targets else len(rows.classes)
        # Any seed will do for the trial: the fit draws initial parameters by its own.
        module = source.make_seeded(0, torch_dtype(dtype))
        parameters = lay_out_parameters(module)
        check_shapes(source.name, parameters, last)
        if self.privacy is not None and any(part.buffer for part in parameters.parts):
            buffers = [part.name for part in parameters.parts if part.buffer]
            raise InvalidParameterError(
                f"{source.name} keeps {buffers} with privacy=: these are means over rows, which "
                "noise does not protect. Replace batch normalisation by GroupNorm or LayerNorm."
            )
        chained = self.pipeline is not None
        probe = trial.run(source, module, rows, dtype, n_classes, n_targets, chained)
        # The weights of a module that is an object are where the fit starts.
        start = None
        if isinstance(self.module, load_torch().nn.Module):
            start = flatten_parameters(self.module, dtype)
        # With a pipeline the model is a chain, whose stages the probe has found.
        target = "binary" if n_targets and rows.classes is not None else probe.target
        make: Any = TorchModel if probe.chain is None else partial(TorchChain, chain=probe.chain)
        model: TorchModel = make(
            source, parameters, trial.inputs, target, self._threshold(), self.precision, start,
            fewest_rows=probe.min_batch_rows, pixelwise=probe.channels_last_kernels,
            row_clip=None if self.privacy is None else float(self.privacy.clip),
        )  # fmt: skip
        trial.model = model, rows
        return model

    def _settings_for_lanes(
        self, settings: Settings, rows: DatasetInfo, lanes: list[LaneSpec]
    ) -> Settings:
        settings = super()._settings_for_lanes(settings, rows, lanes)
        if self._growing_embeddings is None:
            return settings
        # Layers have the rate, too: not that of parameters which a step seldom touches.
        return replace(settings, auto_rate=False)

    def _plan_fit(self, job: FitJob, settings: Settings, model: Any, initial: Any) -> FitSpec:
        if isinstance(model, TorchTableModel):
            check_optimizer(settings, model)
        # Workers draw the initial parameters themselves, and compare them by a checksum.
        if initial is None:
            model = model.checked(settings.seed, settings.dtype_of(job.rows.summary))
        fit = super()._plan_fit(job, settings, model, initial)
        check_batches(fit, model)
        if not isinstance(job.engine, InProcessEngine):
            check_picklable(model)
        return fit

    def _set_learned(self, state: ShardState, model: Any, rows: DatasetInfo) -> None:
        if state.ids is not None:
            self._learned_ids = state.ids
        super()._set_learned(state, model, rows)
        self._last_model = self._net  # without the modules that the fit has made

    def _begin_stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Any:
        return self._start_stream(super()._begin_stream, X, y, sample_weight, classes)

    def _resume_stream(self, saved: Any, path: Any, classes: Any) -> Any:
        if self._growing_embeddings is not None:
            # The made-up first rows are hashed ones, which have neither columns nor names.
            (self._saved_fields,) = saved.likeness_for("fields")
        try:
            started = self._start_stream(super()._resume_stream, saved, path, classes)
        finally:
            fields = self.__dict__.pop("_saved_fields", None)
        if fields is not None:
            self.feature_names_in_ = np.array(fields["columns"], dtype=object)
            self.n_features_in_ = len(self.feature_names_in_)
        return started

    def _start_stream(self, begin_stream: Callable[..., Any], *stream_args: Any) -> Any:
        """Return a started stream, which leaves torch's random stream, the user's, as it is."""
        fork_stream = partial(load_torch().random.fork_rng, devices=())
        try:
            with fork_stream():
                started = begin_stream(*stream_args)
        finally:
            self.__dict__.pop("_trial", None)
        started.steps.step_context = fork_stream
        if self._growing_embeddings is None:
            return started
        facts = vars(self).get("_saved_fields") or {
            **started.fit.steps.model.inputs.describe(),
            "kinds": list(self.kinds_),
            "columns": list(self.feature_names_in_),
        }
        return started.with_tables(self._hash_table, facts)

    def _set_parameters(self, w: NDArray[Any], model: Any, rows: DatasetInfo) -> None:
        self.__dict__.pop("_built", None)
        self._net, self._w = model.at_rest(), w
        # A new token, so that no process predicts with the module of an earlier fit.
        self._token, self._rows_dtype = TorchOutputs(self._net, w).token, rows.summary.rows_dtype
        self.n_outputs_ = rows.summary.n_targets or 1

    def _keep_snapshot(self, w: NDArray[Any] | None) -> bool:
        """Set a diverged fit's last parameters of finite loss; return False if there are none."""
        if w is None or self._trial.model is None:
            return False
        model, rows = self._trial.model
        self._set_parameters(w, model, rows)
        self._set_row_shape(rows.summary.row_shape)
        self._state, self._last_model, self.n_iter_, self.t_ = ShardState(w, {}), self._net, 0, 0.0
        return True

    # -- the fitted module ---------------------------------------------------------------------

    @property
    def module_(self) -> Any:
        """Return the fitted module, in evaluation mode, on the host; built when first read."""
        if not hasattr(self, "_net"):
            raise AttributeError(f"{type(self).__name__} has no module_ before it is fitted.")
        if "_built" not in self.__dict__:
            self._built = make_fitted_module(self._net, self._outputs().module_parameters())
        return self._built

    def state_dict(self) -> dict[str, Any]:
        """Return the module's parameters and buffers by name, as ``load_state_dict`` takes them."""
        # Copies: the tensors are views of the vector that predictions are made with.
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
            `images` or `inputs` make of rows is not part of either: see ``module_``. With
            `embeddings` the first alone, of all other parameters.

        Raises
        ------
        InvalidParameterError
            Another format, or a package that is missing.
        """
        self._check_fitted()
        if self._fields is not None:
            export_layers(self.module_, path)
            return
        rows = np.zeros((2, *self._row_shape), self._rows_dtype)
        export(self.module_, path, self._net.inputs(rows, torch_dtype(str(self._w.dtype))))

    def transform(self, X: Any, layer: str | None = None) -> Any:
        """Return embeddings: the outputs of a layer for each row, flattened; lazy where X is.

        Parameters
        ----------
        X : as in :meth:`fit`
        layer : str, optional
            Name of a layer, as ``module_.named_modules()`` has it; by default the parameter
            `layer`, and where that is None the module's own output.

        Returns
        -------
        ndarray or dask Array of shape (n_rows, n_embedded)
            Of CuPy, where X is.
        """
        self._check_fitted(X)
        layer = self.layer if layer is None else layer
        outputs = self._outputs(layer=layer, stays_on_device=True)
        width = outputs.width(self._row_shape, self._rows_dtype)
        return self._map_outputs(outputs, X, width)

    def _outputs(self, **options: Any) -> TorchOutputs:
        """Return the function from rows to outputs, with options of :class:`TorchOutputs`."""
        token = f"{self._token}-{options.get('layer')}"
        if self._fields is not None:
            return TableOutputs(self._net, self._w, token=token, ids=self._learned_ids, **options)
        # Integers of images are bytes, and those of columns are told apart by column.
        is_plain = self.images is None and self.inputs is None
        floats = is_plain and np.dtype(self._rows_dtype).kind == "f"
        return TorchOutputs(self._net, self._w, token=token, takes_floats=floats, **options)

    def _raw_prediction(self) -> Any:
        return self._outputs()

    def _map_outputs(
        self, outputs: TorchOutputs, X: Any, n_outputs: int | None, postprocess: Any = None
    ) -> Any:
        """Return outputs for the rows of X, lazily for a Dask collection."""
        return self._map_rows(outputs, X, self._w.dtype, n_outputs, postprocess=postprocess)
