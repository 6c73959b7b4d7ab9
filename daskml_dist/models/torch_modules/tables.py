"""A torch module whose embeddings are rows of a growing table, created when their ids occur.

The table is that of models over ids (`models/embeddings.py`): rows are numbered by ids and the part
of the module that they belong to. A batch pulls the rows of its own ids (`TorchTableModel.touched`)
and pushes their gradients; lookups in the module find them by position (`lookups.py`). All other
parameters of the module are rows of the same table, under ids of a separate field. Their rows hold
the difference from the initial values, so that a table needs no special initial values.

Columns of data are fields of hashed rows (`data/field_hashing.py`). Several columns may share a
part: equal ids have one row then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.id_hashing import FIELD_BITS, MODEL_FIELD, find_fields
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.models.base import BatchRows, GrowingTable, Parameters
from daskml_dist.models.embeddings import list_own_ids, number_ids, take_rows, to_id_rows
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.lookups import find_lookups, rows_at_hand
from daskml_dist.models.torch_modules.module import TorchInputs, TorchModel

#: Rows on which a module is tried: more than one, to detect outputs of a single row.
_TRIAL_ROWS = 2
#: Power of two up to which integers are exact in a dtype.
_WHOLE_BITS = {"float32": 24, "float64": 53}


@dataclass(frozen=True)
class TableArgument:
    """Columns of a table that form one argument of a module.

    Parameters
    ----------
    columns : tuple of int
        Numbers of their fields.
    kind : {"ids", "bags", "floats", "integers"}
    single : bool
        Whether it is one column given by its name, which becomes a tensor of shape (n,).
    """

    columns: tuple[int, ...]
    kind: str
    single: bool


class PlacedIds:
    """Rows of a table whose ids are positions among the rows that a batch has pulled.

    Parameters
    ----------
    n_rows : int
    columns : list
        For each field: numbers; positions of ids, from 1; or for bags, a tuple of all positions and
        the number in each row.
    of_parts : list of ndarray of int
        For each part of the module, where its ids' rows are among the batch's rows, by position.
    of_layers : ndarray of int
        Where the rows of all other parameters are among the batch's rows.
    dtype : dtype
        Dtype of numbers.
    """

    def __init__(
        self,
        n_rows: int,
        columns: list[Any],
        of_parts: list[NDArray[Any]],
        of_layers: NDArray[Any],
        dtype: np.dtype[Any],
    ) -> None:
        self.shape = (n_rows,)
        self.columns = columns
        self.of_parts, self.of_layers = of_parts, of_layers
        self.dtype = dtype

    def __len__(self) -> int:
        return self.shape[0]

    def toarray(self) -> NDArray[Any]:
        """Return the columns of numbers, for messages; zeros for other columns."""
        numbers = [c for c in self.columns if isinstance(c, np.ndarray) and c.dtype.kind == "f"]
        return np.stack(numbers or [np.zeros(len(self), self.dtype)], axis=1)


@dataclass(frozen=True)
class TableInputs(TorchInputs):
    """Conversion of hashed rows of a table to the tensors passed to a module.

    Parameters
    ----------
    arguments : mapping of str to TableArgument
    part_indices : tuple of int
        For each field, the number of the part that has the rows of its ids; -1: it holds numbers.
    names : tuple of str
        Names of the fields, for errors.
    """

    arguments: Mapping[str, TableArgument] = field(default_factory=dict)
    part_indices: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return plain values for JSON, of which :meth:`from_description` makes an equal object."""
        arguments = {name: list(astuple(argument)) for name, argument in self.arguments.items()}
        return {"arguments": arguments, "parts": list(self.part_indices), "names": list(self.names)}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> TableInputs:
        """Return the object that :meth:`describe` described."""
        arguments = {
            name: TableArgument(tuple(columns), kind, single)
            for name, (columns, kind, single) in description["arguments"].items()
        }
        return cls(None, None, arguments, tuple(description["parts"]), tuple(description["names"]))

    @property
    def bags(self) -> set[int]:
        """Return the fields that hold lists of ids."""
        return {c for a in self.arguments.values() if a.kind == "bags" for c in a.columns}

    def __call__(
        self, X: PlacedIds, dtype: Any, device: Any = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments of a module for some rows."""
        return [], {
            name: self._convert(X, argument, dtype) for name, argument in self.arguments.items()
        }

    def _convert(self, X: PlacedIds, argument: TableArgument, dtype: Any) -> Any:
        """Return the tensor of an argument."""
        torch = load_torch()
        if argument.kind == "bags":
            (column_number,) = argument.columns
            return torch.from_numpy(_pad_bags(*X.columns[column_number]))
        columns = [X.columns[column_number] for column_number in argument.columns]
        if argument.kind == "integers":
            for column_number, column in zip(argument.columns, columns, strict=True):
                self._check_whole(column_number, column)
        array = columns[0].copy() if argument.single else np.stack(columns, axis=1)
        return torch.from_numpy(array).to(dtype if argument.kind == "floats" else torch.int64)

    def _check_whole(self, field_index: int, column: NDArray[Any]) -> None:
        """Raise if integers have lost digits as floats."""
        bits = _WHOLE_BITS[column.dtype.name]
        if len(column) and np.abs(column).max() >= 2.0**bits:
            raise InvalidDataError(
                f"Column {self.names[field_index]!r} holds whole numbers of 2**{bits} or more, "
                f"which {column.dtype} cannot represent exactly. Name it in embeddings= if they "
                "are ids, convert them to floats, or set dtype='float64'."
            )

    def place_ids(
        self, rows: Sequence[Any], own_ids: NDArray[np.int64], own_last: bool
    ) -> tuple[NDArray[np.int64], PlacedIds]:
        """Return the ids that hashed rows and the model (`own_ids`) use, and the rows by position.

        `own_last`: the model's own ids follow those of the rows; otherwise all are sorted together.
        """
        n_rows = sum(X.shape[0] for X in rows)
        hashed = np.concatenate([X.indices for X in rows])
        data = np.concatenate([X.data for X in rows])
        entry_fields = find_fields(hashed)
        if len(entry_fields) and int(entry_fields.max()) >= len(self.part_indices):
            raise InvalidDataError(
                f"Rows have {int(entry_fields.max()) + 1} fields, but the module's arguments use "
                f"{len(self.part_indices)}. Give the columns of the fit."
            )
        entry_parts = np.array(self.part_indices, np.int64)[entry_fields]
        are_ids = entry_parts >= 0
        # The entry of a number has the id 0; another id represents a missing number.
        if (is_missing_number := ~are_ids & (hashed >> FIELD_BITS != 0)).any():
            name = self.names[entry_fields[is_missing_number][0]]
            raise InvalidDataError(
                f"Column {name!r} holds NaN or infinite numbers, which are passed on to the "
                f"module; missing='own' is only for ids. Fill them: X[{name!r}].fillna(0.0)."
            )
        # The low bits of a row's number are the part's number: columns of one part share rows.
        ids = (hashed[are_ids] & ~MODEL_FIELD) | entry_parts[are_ids]
        index, (id_places,), of_layers = number_ids([ids], own_ids, own_last)
        place, rows_of_parts = _number_by_part(index, 1 + max((-1, *self.part_indices)))
        places = np.zeros(len(hashed), np.int64)
        places[are_ids] = place[id_places]
        lengths = np.concatenate([np.diff(X.indptr) for X in rows])
        columns = self._split_columns(entry_fields, places, data, lengths)
        return index, PlacedIds(n_rows, columns, rows_of_parts, of_layers, data.dtype)

    def _split_columns(
        self, of_field: NDArray[Any], places: NDArray[Any], data: NDArray[Any],
        lengths: NDArray[Any],
    ) -> list[Any]:  # fmt: skip
        """Return the columns of :class:`PlacedIds` for the entries of rows of given lengths."""
        n_rows, bags = len(lengths), self.bags
        # Stable: entries of a field stay in row order.
        order = np.argsort(of_field, kind="stable")
        ends = np.cumsum(np.bincount(of_field, minlength=len(self.part_indices)))
        entry_rows = np.repeat(np.arange(n_rows), lengths) if bags else None
        columns: list[Any] = []
        for position, part in enumerate(self.part_indices):
            entries = order[ends[position - 1] if position else 0 : ends[position]]
            if position in bags:
                # An id that occurs twice in a bag is one entry with twice the value.
                assert entry_rows is not None
                counts = np.rint(data[entries]).astype(np.int64)
                per_row = np.bincount(entry_rows[entries], weights=counts, minlength=n_rows)
                columns.append((np.repeat(places[entries], counts), per_row.astype(np.int64)))
                continue
            if len(entries) != n_rows:
                raise InvalidDataError(
                    f"Column {self.names[position]!r} has {len(entries)} values in {n_rows} rows, "
                    "but the module takes one per row. Give the columns of the fit."
                )
            columns.append(places[entries] if part >= 0 else data[entries])
        return columns

    def make_trial_rows(self, dtype: str) -> PlacedIds:
        """Return artificial rows, in which the ids of part p have the position p + 1."""
        n = _TRIAL_ROWS
        columns: list[Any] = []
        for position, part in enumerate(self.part_indices):
            if part < 0:
                columns.append(np.zeros(n, dtype))
            elif position in self.bags:
                columns.append((np.full(2 * n, part + 1), np.full(n, 2)))
            else:
                columns.append(np.full(n, part + 1))
        no_rows = np.empty(0, np.int64)
        return PlacedIds(n, columns, [], no_rows, np.dtype(dtype))


def _number_by_part(
    index: NDArray[np.int64], n_parts: int
) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Return the position of each row within its part, from 1, and where each part's rows are.

    Rows of the model's own have no place.
    """
    row_parts = find_fields(index)
    order = np.argsort(row_parts, kind="stable")
    ends = np.cumsum(np.bincount(row_parts, minlength=n_parts))
    place = np.zeros(len(index), np.int64)
    rows_of_parts = []
    for part in range(n_parts):
        part_rows = order[ends[part - 1] if part else 0 : ends[part]]
        place[part_rows] = np.arange(1, len(part_rows) + 1)
        rows_of_parts.append(part_rows)
    return place, rows_of_parts


def _pad_bags(places: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return bags of positions as rows of one length, padded with 0."""
    padded = np.zeros((len(lengths), max(1, int(lengths.max(initial=0)))), np.int64)
    starts = np.cumsum(lengths) - lengths
    padded[
        np.repeat(np.arange(len(lengths)), lengths),
        np.arange(len(places)) - np.repeat(starts, lengths),
    ] = places
    return padded


@dataclass(frozen=True, eq=False)
class TorchTableModel(TorchModel):
    """A torch module whose named embeddings are rows of a growing table.

    Its `parameters` are the table, and `inputs` a :class:`TableInputs`.

    Parameters
    ----------
    dense : Parameters
        Layout of all parameters of the module but the embeddings.
    part_names : tuple of str
        Parts of the module whose rows are in the table.
    widths : tuple of int
        Length of the rows of each part; the table's rows have the longest length.
    table : GrowingTable
    touches : float
        Mean number of ids of a row.
    own_last : bool, default=False
        Whether the model's own rows follow the sorted ids that a batch uses.
    """

    dense: Parameters = field(default_factory=lambda: Parameters(()))
    part_names: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    table: GrowingTable | None = None
    touches: float | None = 1.0
    own_last: bool = False

    @property
    def module_parameters(self) -> Parameters:
        """Return the layout of the parameters that the module itself holds."""
        return self.dense

    @property
    def own_ids(self) -> NDArray[np.int64]:
        """Return the ids of all parameters except the embeddings."""
        n_numbers, width = self.dense.shape[0], self.parameters.width
        return list_own_ids(-(-n_numbers // width))[:-1]  # without the id of an intercept

    def with_own_rows_last(self) -> TorchTableModel:
        """Return the model with its own rows after those of the ids that a batch uses."""
        return replace(self, own_last=True)

    def at_rest(self) -> TorchTableModel:
        """Return the model without data that only a fit needs, to be kept by a fitted estimator."""
        # The table's rows hold the layers' differences from their initial values.
        return replace(self, checksum=None, _made={})

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return rows over ids."""
        return to_id_rows(X, dtype)

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the ids of a batch and of the layers; the first piece gets the rows of all."""
        rows = [take_rows(piece.X) for piece in pieces]
        index, placed = self.placing.place_ids(rows, self.own_ids, self.own_last)
        # One call of the module for all pieces: ids do not depend on the piece.
        first_piece, *other_pieces = pieces
        weights = [np.empty(0) if piece.weight is None else piece.weight for piece in pieces]
        first_piece.X, first_piece.y = placed, np.concatenate([piece.y for piece in pieces])
        first_piece.weight = None if first_piece.weight is None else np.concatenate(weights)
        for piece in other_pieces:
            piece.X, piece.y, piece.weight = _NO_ROWS, piece.y[:0], None
        return index

    @property
    def placing(self) -> TableInputs:
        """Return the conversion of rows, with its own type."""
        assert isinstance(self.inputs, TableInputs)
        return self.inputs

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the sum of the rows' losses, by torch's autograd."""
        X = rows.X
        if not len(X):
            return 0.0
        # Rows are leaves of torch's graph; their gradients are separate from those of the layers.
        tensors = self.gather_rows(w, X, trained=True)
        with rows_at_hand(tensors):
            gradient, loss = self._lane(rows, w).gradient_of(self.gather_layers(w, X), rows)
        # The last row of the layers may have entries that belong to no parameter.
        layer_gradient = np.zeros((len(X.of_layers), w.shape[1]), w.dtype)
        layer_gradient.reshape(-1)[: len(gradient)] = gradient[:, 0]
        out[X.of_layers] += layer_gradient
        for part_rows, width, tensor in zip(X.of_parts, self.widths, tensors.values(), strict=True):
            # None if the batch's loss does not depend on the part.
            if tensor.grad is not None:
                out[part_rows, :width] += tensor.grad.numpy()[1:]
        return loss

    def own_gradient(self, w: Any, rows: BatchRows, backend: Backend) -> None:
        """Return None: gradients exist only for the rows that a batch uses."""

    def gather_rows(self, w: NDArray[Any], X: PlacedIds, trained: bool) -> dict[str, Any]:
        """Return the rows of each part by position, as tensors by the part's name."""
        torch, tensors = load_torch(), {}
        for name, width, part_rows in zip(self.part_names, self.widths, X.of_parts, strict=True):
            rows = np.zeros((len(part_rows) + 1, width), w.dtype)  # the first represents no id
            rows[1:] = w[part_rows, :width]
            tensors[name] = torch.from_numpy(rows).requires_grad_(trained)
        return tensors

    def gather_layers(self, w: NDArray[Any], X: PlacedIds) -> NDArray[Any]:
        """Return all parameters except the embeddings as a matrix of one column."""
        return self.complete_layers(w[X.of_layers])

    def complete_layers(self, own_rows: NDArray[Any]) -> NDArray[Any]:
        """Return the parameters, given their differences from the start in the model's own rows."""
        assert self.start is not None
        parameters: NDArray[Any] = own_rows.reshape(-1, 1)[: len(self.start)] + self.start.astype(
            own_rows.dtype
        )
        return parameters

    def identity(self) -> dict[str, Any]:
        """Return the module's name, the parts of its dense parameters and of its table."""
        assert self.table is not None
        assert self.start is not None
        return super().identity() | {
            "dense": [[part.name, list(part.shape)] for part in self.dense.parts],
            "embeddings": dict(zip(self.part_names, self.widths, strict=True)),
            "columns": [
                *map(list, zip(self.placing.names, self.placing.part_indices, strict=True))
            ],
            "seed": self.table.seed,
            "start": crc32(np.ascontiguousarray(self.start).data),
        }


#: Piece of a batch whose rows were moved to the first piece.
_NO_ROWS: Any = ()


def try_lookups(
    name: str, module: Any, inputs: TableInputs, widths: Mapping[str, int], dtype: Any
) -> None:
    """Raise if a module does not look ids up in the right parts.

    The module is called on artificial rows: positions differ between parts, and rows at positions
    of other parts are NaN.
    """
    torch = load_torch()
    X = inputs.make_trial_rows(str(dtype).removeprefix("torch."))
    clean = make_trial_tensors(widths, dtype)
    poisoned = {}
    for part, (key, tensor) in enumerate(clean.items()):
        rows = torch.full_like(tensor, torch.nan)
        rows[[0, part + 1]] = 0.0
        poisoned[key] = rows

    def call(rows: Mapping[str, Any]) -> Any:
        positional, named = inputs(X, dtype)
        with rows_at_hand(rows):
            output = module(*positional, **named)
        return output[0] if isinstance(output, tuple) else output

    module.eval()
    with torch.enable_grad():
        output = call(clean)
        if output.requires_grad:  # otherwise it depends on no part
            output.sum().backward()
    unused = [key for key, tensor in clean.items() if tensor.grad is None]
    if unused:
        raise InvalidParameterError(
            f"The outputs of {name} do not depend on {unused}, which embeddings= names. Look up "
            "the ids there in forward, or leave the part out."
        )
    with torch.no_grad():
        if output.isfinite().all() and not call(poisoned).isfinite().all():
            raise InvalidParameterError(
                f"{name} looks up ids of a column in a different part than embeddings= says. "
                "Make forward look up each argument in its own part, or change embeddings=."
            )


def make_trial_tensors(widths: Mapping[str, int], dtype: Any) -> dict[str, Any]:
    """Return rows of zeros for artificial rows, by the name of the part."""
    zeros, n = load_torch().zeros, len(widths)
    return {
        name: zeros((n + 1, width), dtype=dtype, requires_grad=True)
        for name, width in widths.items()
    }


def find_widths(module: Any, inputs: TableInputs, names: Sequence[str]) -> dict[str, int]:
    """Return the length of the rows of each part of a module, by its name.

    Raises
    ------
    InvalidParameterError
        A column of lists is looked up in a part that makes no one row of them.
    """
    lookups = find_lookups(module)
    for column in sorted(inputs.bags):
        name = names[inputs.part_indices[column]]
        if lookups[name].mode is None:
            raise InvalidParameterError(
                f"Column {inputs.names[column]!r} holds lists of ids, whose order is not kept, and "
                f"{name!r} is an nn.Embedding. Use an nn.EmbeddingBag."
            )
    return {name: int(lookups[name].embedding_dim) for name in names}
