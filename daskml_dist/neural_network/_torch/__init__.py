"""Estimators for PyTorch modules."""
