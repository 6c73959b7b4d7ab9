"""Models: pure functions of arrays, behind one door (`models/base.py`)."""

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
