"""Models: pure functions of arrays, with one interface (`models/base.py`)."""

from daskml_dist.models.base import (
    BatchRows,
    ColumnModel,
    ColumnPart,
    GrowingTable,
    LinearForm,
    Model,
    Parameters,
    Part,
    StagedModel,
    StepModel,
    distinct,
)

__all__ = [
    "BatchRows",
    "ColumnModel",
    "ColumnPart",
    "GrowingTable",
    "LinearForm",
    "Model",
    "Parameters",
    "Part",
    "StagedModel",
    "StepModel",
    "distinct",
]
