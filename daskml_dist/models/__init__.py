"""Models: pure functions of arrays, behind one door (`models/base.py`)."""

from daskml_dist.models.base import BatchRows, LinearForm, Model, Parameters, Part, StepModel

__all__ = ["BatchRows", "LinearForm", "Model", "Parameters", "Part", "StepModel"]
