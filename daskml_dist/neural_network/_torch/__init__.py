"""Estimators over modules of PyTorch."""
