"""Models: pure functions of arrays, behind one door (`models/base.py`)."""

from daskml_dist.models.base import BatchRows, LinearForm, Model, Parameters, Part, StepModel
from daskml_dist.models.columned import ColumnModel, ColumnPart
from daskml_dist.models.distinct import distinct
from daskml_dist.models.staged import StagedModel

__all__ = [
    "BatchRows",
    "ColumnModel",
    "ColumnPart",
    "LinearForm",
    "Model",
    "Parameters",
    "Part",
    "StagedModel",
    "StepModel",
    "distinct",
]
