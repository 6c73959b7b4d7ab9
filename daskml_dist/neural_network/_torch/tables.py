"""Tables of ids for torch modules: the columns that they are read from, and the model over them.

`GrowingEmbeddings` is the user's specification: the parts of a module whose rows are created when
ids first occur, and the columns of these ids. `find_columns` determines from a dataframe how its
columns become arguments of the module; `make_table_model` builds the model. Rows, lookups and
gradients are in `models/torch_modules/tables.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like

from daskml_dist.data.field_hashing import shorten_names
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.table_fields import TableFields, as_table
from daskml_dist.models.base import N_TABLE_IDS, GrowingTable, Parameters, Part
from daskml_dist.models.torch_modules.flat import (
    flatten_parameters,
    lay_out_parameters,
    torch_dtype,
)
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.lookups import rows_at_hand
from daskml_dist.models.torch_modules.probe import ProbeResult
from daskml_dist.models.torch_modules.source import ModuleSource, named_tensors
from daskml_dist.models.torch_modules.tables import (
    TableArgument,
    TableInputs,
    TorchTableModel,
    find_widths,
    make_trial_tensors,
    try_lookups,
)
from daskml_dist.neural_network._torch.module_trial import ModuleTrial
from daskml_dist.parameters.checks import check_number, check_one_of, check_table_limits
from daskml_dist.policies.base import Policy
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.spec import Settings

#: For each kind of ids, the family of kinds within which equal ids are equal.
_FAMILIES = {
    "integer": "whole numbers", "integers": "whole numbers", "float": "whole numbers",
    "text": "texts", "texts": "texts", "date": "dates",
}  # fmt: skip
#: Kinds of numeric columns.
_NUMERIC_KINDS = ("integer", "float", "missing")


@dataclass(frozen=True)
class GrowingEmbeddings:
    """Embeddings of a module whose rows are created on a parameter server for new ids.

    ``embeddings={"item": "item_id"}`` of a :class:`TorchClassifier` is short for one with defaults.

    Parameters
    ----------
    columns : dict of str to str or list of str
        Columns of a dataframe whose ids each part of the module looks up: the part is given by its
        name in ``named_modules()``, an ``nn.Embedding`` or ``nn.EmbeddingBag``. Equal ids in
        several columns of a part share one row. The number of rows in the module itself does not
        matter.
    init_scale : float, default=1.0
        Standard deviation of the initial numbers of a row, as in torch's own embeddings. They
        depend only on the seed and the row's id.
    missing : {"error", "own"}, default="error"
        Treatment of missing ids: an error, or a separate id.
    admit_after : int, default=1
        Number of steps that must touch an id before it gets a row.
    expire_after : int or None, default=None
        Number of steps without its id after which a row is dropped; None: never.
    max_rows : int or None, default=None
        Largest number of rows in a server's table; beyond it, the least recently used rows are
        dropped.

    Examples
    --------
    >>> from daskml_dist.neural_network import GrowingEmbeddings
    >>> GrowingEmbeddings({"item": ["item", "history"]}, init_scale=0.01, admit_after=2).missing
    'error'
    """

    columns: Mapping[str, Any]
    init_scale: float = 1.0
    missing: str = "error"
    admit_after: int = 1
    expire_after: int | None = None
    max_rows: int | None = None

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """Return the checked value of an estimator's parameter `embeddings`; None for None."""
        if given is None:
            return None
        embeddings = given if isinstance(given, cls) else cls(given)
        embeddings.check()
        return embeddings

    def check(self) -> None:
        """Raise for invalid parameters."""
        listed = self.columns.values() if isinstance(self.columns, Mapping) else ()
        names = [name for columns in listed for name in _list_columns(columns)]
        if not names or not all(isinstance(name, str) for name in (*self.columns, *names)):
            raise InvalidParameterError(
                f"embeddings={self.columns!r}: name the columns of ids of each part of the module, "
                'such as embeddings={"item": "item_id"}, where module.item is an nn.Embedding.'
            )
        if repeated := [name for name in names if names.count(name) > 1]:
            raise InvalidParameterError(
                f"embeddings names the column {repeated[0]!r} twice. The ids of a column belong to "
                "one part: for another part, use a copy of the column."
            )
        check_number("init_scale", self.init_scale)
        check_one_of("missing", self.missing, ("error", "own"))
        check_table_limits(self.admit_after, self.expire_after, self.max_rows)

    @property
    def part_of_column(self) -> dict[str, int]:
        """Return the number of the part for each column of ids."""
        return {
            name: part
            for part, columns in enumerate(self.columns.values())
            for name in _list_columns(columns)
        }

    def make_table(self, width: int, seed: int) -> GrowingTable:
        """Return the description of a table with rows of length `width`."""
        return GrowingTable(
            (float(self.init_scale),) * width, seed, self.admit_after, self.expire_after,
            self.max_rows,
        )  # fmt: skip


def _list_columns(columns: Any) -> list[Any]:
    """Return the columns of a part or argument; a single column may be given by its name."""
    return list(columns) if isinstance(columns, list | tuple) else [columns]


#: Parameters of an estimator that are not supported with a table.
_UNUSED = ("clip", "groups", "micro_batch_size", "pipeline", "privacy", "images")


def check_table_settings(params: Mapping[str, Any], settings: Settings) -> None:
    """Raise for parameters of an estimator that are not supported with a table."""
    names = [name for name in _UNUSED if params[name] is not None]
    texts = [f"{name}={params[name]!r}" for name in names]
    if params["precision"] == "fp16":
        texts.append("precision='fp16'")
    if params["device"] == "gpu":
        texts.append("device='gpu'")
    if texts:
        raise InvalidParameterError(
            f"{' and '.join(texts)} with embeddings=: rows of a table are on servers, and are "
            "sent to the trainer with each batch. Leave it out (optimizers and rates of the "
            "layers: policies.PolicyByPart)."
        )


def policy_of_table(policy: Policy) -> Policy | str:
    """Return the policy for a module over a table: ``"allreduce"`` is replaced by ``"sync"``."""
    return "sync" if policy.name == "allreduce" else policy


def find_columns(
    X: Any,
    growing_embeddings: GrowingEmbeddings,
    inputs: Mapping[str, Any] | None,
    reader: str,
    dtype: str,
) -> tuple[TableFields, TableInputs]:
    """Return the fields of a dataframe, and how they become the arguments of a module.

    Parameters
    ----------
    X : DataFrame
        In memory or of Dask.
    growing_embeddings : GrowingEmbeddings
    inputs : mapping of str to str or list of str, or None
        Columns of each argument; None: each column is an argument of the same name.
    reader : str
        Name of the estimator.
    dtype : str

    Raises
    ------
    InvalidParameterError, InvalidDataError
        A column is missing, or of a kind that the module cannot get.
    """
    if not is_dataframe_like(X):
        raise InvalidDataError(
            f"{reader} with embeddings= reads columns of ids by their names, and X is a "
            f"{type(X).__name__}. Give a dataframe: pandas.DataFrame(X, columns=[...])."
        )
    table = as_table(X)
    if inputs is None:
        inputs = {name: name for name in table.columns}
    # A column that several arguments read is one field.
    names = list(dict.fromkeys(n for columns in inputs.values() for n in _list_columns(columns)))
    for name in (*names, *growing_embeddings.part_of_column):
        if name not in table.columns:
            raise InvalidParameterError(
                f"X has no column {name!r}, which inputs or embeddings name; it has "
                f"{shorten_names(list(table.columns))}.{suggest_nearest(name, table.columns)}"
            )
    if unread := [name for name in growing_embeddings.part_of_column if name not in names]:
        raise InvalidParameterError(
            f"embeddings names {unread}, which are not arguments of the module. Add them to "
            "inputs, such as inputs={'item': 'item_id'}."
        )
    fields = TableFields.find(
        table[names], [], reader=reader, bags="sum", missing=growing_embeddings.missing, dtype=dtype
    )
    parts = [growing_embeddings.part_of_column.get(name, -1) for name in names]
    _check_kinds(fields, parts)
    arguments = {
        argument: _make_argument(argument, columns, fields, parts)
        for argument, columns in inputs.items()
    }
    # If the module gets a column as numbers, the hasher must treat it as numeric, even integers.
    kinds = zip(fields.kinds, parts, strict=True)
    fields = replace(fields, kinds=tuple("numeric" if part < 0 else kind for kind, part in kinds))
    return fields, TableInputs(None, None, arguments, tuple(parts), tuple(names))


def _check_kinds(fields: TableFields, field_parts: Sequence[int]) -> None:
    """Raise if a column is neither numbers nor ids, or if equal ids would not be equal."""
    families: dict[int, tuple[str, Any]] = {}
    for name, kind, part in zip(fields.names, fields.kinds, field_parts, strict=True):
        if part < 0:
            if kind not in _NUMERIC_KINDS:
                raise InvalidDataError(
                    f"Column {name!r} is of kind {kind}, but is passed to the module as numbers. "
                    "Name it in embeddings= if the module looks it up, or leave it out of "
                    "inputs=."
                )
            continue
        family = _FAMILIES.get(kind)
        if family is None:  # the column has no known value yet
            continue
        first = families.setdefault(part, (family, name))
        if first[0] != family:
            raise InvalidDataError(
                f"Columns {first[1]!r} and {name!r} share a part of the module, and hold "
                f"{first[0]} and {family}, which are never equal. Convert them to one type, such "
                f"as X[{name!r}].astype(str), or give each its own part."
            )


def _make_argument(
    name: str, column_names: Any, fields: TableFields, field_parts: Sequence[int]
) -> TableArgument:
    """Return the columns of an argument, which must be of one kind."""
    columns = tuple(fields.names.index(column) for column in _list_columns(column_names))
    single = not isinstance(column_names, list | tuple)
    kinds = set()
    for position in columns:
        is_bag = fields.kinds[position] in ("integers", "texts")
        if field_parts[position] >= 0:
            kinds.add(("bags" if is_bag else "ids", field_parts[position]))
        else:
            kinds.add(("numbers", -1))
    if len(kinds) != 1 or (("bags" in {kind for kind, _ in kinds}) and not single):
        raise InvalidParameterError(
            f"inputs[{name!r}]={column_names!r} mixes kinds of columns. Use a separate argument "
            "for the ids of each part, for numbers, and for each column of lists."
        )
    ((kind, _),) = kinds
    if kind == "numbers":
        are_integers = all(fields.kinds[position] == "integer" for position in columns)
        kind = "integers" if are_integers else "floats"
    return TableArgument(columns, kind, single)


class TableTrial(ModuleTrial):
    """Trial of a module on made-up rows; its embeddings have rows only for these.

    Parameters
    ----------
    inputs : TableInputs
    """

    inputs: TableInputs

    def __init__(self, inputs: TableInputs) -> None:
        super().__init__(None, inputs)
        self._dtype = "float32"

    def _list_samples(self, rows: DatasetInfo) -> list[Any]:
        return [self.inputs.make_trial_rows(self._dtype)]

    def run_on_table(
        self, source: ModuleSource, rows: DatasetInfo, dtype: str, n_classes: int | None,
        n_targets: int | None,
    ) -> tuple[ProbeResult, dict[str, int]]:  # fmt: skip
        """Return the result of the trial on the sample, and the length of each part's rows."""
        self._dtype, kind = dtype, torch_dtype(dtype)
        # Any seed is fine: the trial only checks shapes, and which outputs depend on which inputs.
        module = source.make_seeded(0, kind)
        _check_module(source.name, module)
        widths = find_widths(module, self.inputs, source.lookups)
        with rows_at_hand(make_trial_tensors(widths, kind)):
            probe = self.run(source, module, rows, dtype, n_classes, n_targets, False)
        try_lookups(source.name, source.make_seeded(0, kind), self.inputs, widths, kind)
        return probe, widths


def _check_module(name: str, module: Any) -> None:
    """Raise for a module with running means, which steps of a table's rows cannot update."""
    batch_norm = load_torch().nn.modules.batchnorm._BatchNorm
    buffers = [n.name for n in named_tensors(module) if n.is_buffer]
    if buffers or any(isinstance(child, batch_norm) for child in module.modules()):
        raise InvalidParameterError(
            f"{name} keeps means over batches or other buffers {buffers}, which embeddings= does "
            "not support. Replace batch normalisation by LayerNorm, and register constants with "
            "persistent=False."
        )


def make_table_model(
    trial: TableTrial,
    growing_embeddings: GrowingEmbeddings,
    source: ModuleSource,
    rows: DatasetInfo,
    last: TorchTableModel | None,
    *,
    dtype: str,
    seed: int,
    threshold: float,
    precision: str | None,
) -> TorchTableModel:
    """Return the model of a module and a table.

    `last` is the model of the fit that this one continues: its table and initial layers are kept.
    """
    n_targets = rows.summary.n_targets
    n_classes = None if rows.classes is None or n_targets else len(rows.classes)
    source = replace(source, lookups=tuple(growing_embeddings.columns))
    probe, widths = trial.run_on_table(source, rows, dtype, n_classes, n_targets)
    module = source.make_seeded(seed, torch_dtype(dtype))
    # All rows of the table have the length of the widest part.
    width = max(widths.values())
    if last is not None:
        assert last.table is not None
        seed = last.table.seed  # rows of new ids start as they would have in the first fit
    model = TorchTableModel(
        source,
        Parameters((Part("table", (N_TABLE_IDS, width)),), width),
        trial.inputs,
        "binary" if n_targets and rows.classes is not None else probe.target,
        threshold,
        precision,
        flatten_parameters(module, dtype) if last is None else last.start,
        pixelwise=probe.channels_last_kernels,
        dense=lay_out_parameters(module, beside_table=True),
        part_names=tuple(widths),
        widths=tuple(widths.values()),
        table=growing_embeddings.make_table(width, seed),
        touches=float(sum(part >= 0 for part in trial.inputs.part_indices)),
    )
    if last is not None and model.identity() != last.identity():
        raise InvalidParameterError(
            f"{source.name} has other parts, shapes or columns than in the fit that is "
            "continued. Keep its arguments, inputs and embeddings, or set warm_start=False."
        )
    return model


def check_optimizer(settings: Settings, model: TorchTableModel) -> None:
    """Raise for an optimizer whose steps would depend on the lengths of other parts' rows."""
    if settings.optimizer.row_wise and len({*model.widths}) > 1:
        raise InvalidParameterError(
            f"optimizer={settings.optimizer.name!r} keeps one number per row, but rows of the "
            f"parts have widths {model.widths}. Give the parts one embedding_dim, or use "
            "'adagrad' or 'adam'."
        )


def select_table(X: Any, names: Sequence[str]) -> Any:
    """Return the columns of a dataframe that the fit used."""
    if not is_dataframe_like(X):
        raise InvalidDataError(
            f"X is a {type(X).__name__}, but the fit used a dataframe with the columns "
            f"{shorten_names(list(names))}. Give a dataframe with these."
        )
    table = as_table(X)
    if missing := [name for name in names if name not in table.columns]:
        raise InvalidDataError(
            f"X has no columns {missing}, which the fit had. Give a dataframe with the columns "
            f"{shorten_names(list(names))}."
        )
    return table[list(names)]


def fields_of_fit(names: Any, kinds: Any, missing: str, dtype: Any) -> TableFields:
    """Return the fields of a fit, from its attributes."""
    return TableFields(
        tuple(names), tuple(kinds), "sum", missing=missing, dtype=np.dtype(dtype).name
    )
